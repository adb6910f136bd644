//! `docs/protocol.md` says what the code does: every example in it is read and written here, and the
//! numbers in its tables are those of the code.

use std::{collections::BTreeSet, time::Duration};

use rpc_codec::{
    CallKind, CodecId, CodecSet, DecodeError, Decoded, Frame, FrameDecoder, GoAway, GoAwayReason, HEADER_LEN, Hello,
    Kind, MAX_HELLO_LEN, OpenMessage, RequestFrame, RequestHead, ResponseFrame, SendBounds, encode_cancel,
    encode_credit, encode_end, encode_go_away, encode_item, encode_ping, encode_pong, encode_refusal, encode_status,
    mark_kind, payload::MAX_DEPTH,
};
use rpc_core::{CallId, Executed, Metadata, MethodId, Refusal, RefusalReason, Status, StatusCode};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md"));
const MAX_FRAME: u32 = 64 * 1024;
const BOUNDS: SendBounds = SendBounds { max_frame: MAX_FRAME, max_message: MAX_FRAME };
const GET_BOOK: MethodId = MethodId::of("Library", "get_book");
const ISBN: &str = "9780131103627";

/// Asserts that bytes are what they should be, read and written.
type Check = fn(&[u8]);

/// Every example in the document by its name, and what it must be.
const CHECKS: &[(&str, Check)] = &[
    ("ignorable", |wire| {
        assert_eq!(only(wire), Frame::Ignored { kind: 0xc0 });
        assert_eq!(wire, raw(0xc0, 3, 0x10000, &[0xaa, 0xbb], &[0xcc, 0xdd]));
    }),
    ("hello-client", |wire| {
        let codecs = [CodecId::BYTES, CodecId::BINCODE, CodecId::JSON, CodecId::MESSAGE_PACK];
        check_hello(wire, 64, codecs.into_iter().collect());
    }),
    ("hello-server", |wire| {
        check_hello(wire, 1024, [CodecId::BYTES, CodecId::BINCODE].into_iter().collect());
    }),
    ("request-get-book", |wire| {
        let head = RequestHead {
            method: GET_BOOK,
            timeout_us: 250_000,
            sent_at_us: 0x1234_5678,
            codec: CodecId::BINCODE,
            compression: 0,
            priority: 0,
            attempt: 0,
        };
        let mut body = Vec::new();
        CodecId::BINCODE.encode(&(ISBN,), &mut body).expect("a string encodes");
        check_request(wire, CallId::new(1, 0), &head, &Metadata::new(), &body);
    }),
    ("request-with-metadata", |wire| {
        let head = RequestHead {
            method: GET_BOOK,
            timeout_us: 0,
            sent_at_us: 0x1234_5abc,
            codec: CodecId::JSON,
            compression: 0,
            priority: 0,
            attempt: 1,
        };
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "acme").unwrap();
        metadata.insert("trace-id", 0x4bf9_2f35_77b3_4da6_u64.to_be_bytes()).unwrap();
        check_request(wire, CallId::new(2, 3), &head, &metadata, format!("[\"{ISBN}\"]").as_bytes());
    }),
    ("response-get-book", |wire| {
        let mut body = Vec::new();
        CodecId::BINCODE.encode(&"The C Programming Language", &mut body).expect("a string encodes");
        let response = response(wire);
        assert_eq!((response.id, response.more), (CallId::new(1, 0), false));
        assert_eq!((response.code, response.executed), (StatusCode::Ok, Executed::Finished));
        assert_eq!((response.compression, response.body_len as usize), (0, body.len()));
        assert_eq!(response.body, body);
        assert_eq!(response.metadata(), Ok(Metadata::new()));
        assert_encodes(wire, |out| {
            let message = OpenMessage::response(out);
            out.extend_from_slice(&body);
            message.finish(out, CallId::new(1, 0), BOUNDS).expect("it is short");
        });
    }),
    ("response-status-with-detail", |wire| {
        let mut detail = Vec::new();
        CodecId::BINCODE.encode(&(ISBN,), &mut detail).expect("a string encodes");
        let status = Status::not_found("no such book").with_detail("example.org/MissingBook", detail);
        assert_eq!(response(wire).id, CallId::new(2, 3));
        assert_eq!(response(wire).status(), Ok(status.clone()));
        assert_encodes(wire, |out| encode_status(out, CallId::new(2, 3), &status, MAX_FRAME).expect("it is short"));
    }),
    ("response-refused", |wire| {
        let refusal = Refusal::new(RefusalReason::ConcurrencyLimit)
            .with_limit("global", 64, 64)
            .with_retry_delay(Duration::from_millis(10));
        assert_eq!(response(wire).id, CallId::new(3, 1));
        assert_eq!(response(wire).status(), Ok(Status::from(&refusal)));
        assert_encodes(wire, |out| encode_refusal(out, CallId::new(3, 1), &refusal));
    }),
    ("cont", |wire| {
        let part = [0xde, 0xad, 0xbe, 0xef];
        assert_eq!(only(wire), Frame::Cont { id: CallId::new(4, 2), more: false, part: &part });
        assert_eq!(wire, raw(Kind::Cont as u8, 0, CallId::new(4, 2).to_wire(), &[], &part));
    }),
    ("item", |wire| {
        assert_eq!(only(wire), Frame::Item { id: CallId::new(5, 0), more: false, len: 3, part: b"\x02hi" });
        assert_encodes(wire, |out| {
            let len = encode_item(out, CallId::new(5, 0), BOUNDS, |out| CodecId::BINCODE.encode(&"hi", out));
            assert_eq!(len, Ok(3));
        });
    }),
    ("item-in-parts", |wire| {
        let part = [0xfe, 0x85, 0x13];
        assert_eq!(only(wire), Frame::Item { id: CallId::new(5, 0), more: true, len: 5_000, part: &part });
        assert_eq!(
            wire,
            raw(Kind::Item as u8, 1, CallId::new(5, 0).to_wire(), &5_000_u32.to_be_bytes(), &part),
            "parts of our own are longer"
        );
    }),
    ("end", |wire| {
        assert_eq!(only(wire), Frame::End { id: CallId::new(5, 0) });
        assert_encodes(wire, |out| encode_end(out, CallId::new(5, 0)));
    }),
    ("credit", |wire| {
        assert_eq!(only(wire), Frame::Credit { id: CallId::new(5, 0), bytes: 32_768 });
        assert_encodes(wire, |out| encode_credit(out, CallId::new(5, 0), 32_768));
    }),
    ("cancel", |wire| {
        assert_eq!(only(wire), Frame::Cancel { id: CallId::new(1, 0) });
        assert_encodes(wire, |out| encode_cancel(out, CallId::new(1, 0)));
    }),
    ("ping", |wire| {
        assert_eq!(only(wire), Frame::Ping([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_encodes(wire, |out| encode_ping(out, [1, 2, 3, 4, 5, 6, 7, 8]));
    }),
    ("pong", |wire| {
        assert_eq!(only(wire), Frame::Pong([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_encodes(wire, |out| encode_pong(out, [1, 2, 3, 4, 5, 6, 7, 8]));
    }),
    ("goaway-drain", |wire| {
        check_go_away(wire, CallId::new(7, 2), GoAwayReason::Drain, "the server is draining");
    }),
    ("goaway-protocol-error", |wire| {
        let message = DecodeError::UnknownKind { kind: 0x2a }.to_string();
        check_go_away(wire, CallId::CONNECTION, GoAwayReason::ProtocolError, &message);
    }),
];

fn check_hello(wire: &[u8], advised_calls: u32, codecs: CodecSet) {
    let mut hello = Hello::default();
    (hello.max_frame, hello.max_message) = (1 << 18, 1 << 18);
    (hello.advised_calls, hello.codecs) = (advised_calls, codecs);
    assert_eq!(Hello::decode(wire), Ok(Some((hello.clone(), wire.len()))));
    assert_encodes(wire, |out| hello.encode(out));
}

fn check_request(wire: &[u8], id: CallId, head: &RequestHead, metadata: &Metadata, body: &[u8]) {
    let Frame::Request(RequestFrame { id: got_id, more: false, head: got_head, body_len, body: got_body, .. }) =
        only(wire)
    else {
        panic!("not a whole request")
    };
    assert_eq!((got_id, got_head, got_body), (id, *head, body));
    assert_eq!(body_len as usize, body.len());
    let Frame::Request(request) = only(wire) else { panic!("not a request") };
    assert_eq!(request.metadata().as_ref(), Ok(metadata));
    assert_encodes(wire, |out| {
        let message = OpenMessage::request(out, head, metadata);
        out.extend_from_slice(body);
        message.finish(out, id, BOUNDS).expect("it is short");
    });
}

fn check_go_away(wire: &[u8], last: CallId, reason: GoAwayReason, message: &str) {
    assert_eq!(only(wire), Frame::GoAway(GoAway { last, reason, message }));
    assert_encodes(wire, |out| encode_go_away(out, last, reason, message));
}

fn assert_encodes(wire: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
    let mut out = Vec::new();
    encode(&mut out);
    assert_eq!(out, wire);
}

fn only(wire: &[u8]) -> Frame<'_> {
    match FrameDecoder::new(MAX_FRAME).decode(wire) {
        Ok(Decoded::Frame { frame, len }) if len == wire.len() => frame,
        other => panic!("not one whole frame: {other:?}"),
    }
}

fn response(wire: &[u8]) -> ResponseFrame<'_> {
    match only(wire) {
        Frame::Response(response) => response,
        other => panic!("not a response: {other:?}"),
    }
}

/// A frame as the document draws it.
fn raw(kind: u8, flags: u8, id: u64, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = ((12 + head.len() + body.len()) as u32).to_be_bytes().to_vec();
    frame.extend([kind, flags]);
    frame.extend((head.len() as u16).to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend(head);
    frame.extend(body);
    frame
}

/// A block of the document that is marked as `hex`.
struct Example {
    name: &'static str,
    /// The bytes of each line, and the comment behind them.
    lines: Vec<(Vec<u8>, &'static str)>,
}

impl Example {
    fn bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|(bytes, _)| bytes).copied().collect()
    }
}

fn examples() -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut inside = false;
    for line in DOCUMENT.lines() {
        if let Some(name) = line.strip_prefix("```hex ") {
            examples.push(Example { name: name.trim(), lines: Vec::new() });
            inside = true;
        } else if line.starts_with("```") {
            inside = false;
        } else if inside {
            let (hex, comment) = line.split_once('#').unwrap_or((line, ""));
            let bytes = hex.split_whitespace().map(|byte| {
                assert_eq!(byte.len(), 2, "{line}");
                u8::from_str_radix(byte, 16).unwrap_or_else(|_| panic!("not hex: {line}"))
            });
            examples.last_mut().expect("a block is open").lines.push((bytes.collect(), comment.trim()));
        }
    }
    examples
}

/// The rows of the first table below a heading, each cell without its padding and back-quotes.
fn table(heading: &str) -> Vec<Vec<String>> {
    let below =
        DOCUMENT.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading || !line.starts_with('#'));
    let rows = below.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner.split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    let rows: Vec<_> = rows.skip(2).map(cells).collect();
    assert!(!rows.is_empty(), "no table below {heading}");
    rows
}

/// The number at the front of `text`, which may have commas.
fn number(text: &str) -> u64 {
    let digits: String = text.chars().filter(|c| *c != ',').take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

#[test]
fn every_example_is_what_the_code_reads_and_writes() {
    for example in examples() {
        let (_, check) = CHECKS.iter().find(|(name, _)| *name == example.name).expect("checked by another test");
        println!("{}", example.name);
        check(&example.bytes());
    }
}

#[test]
fn every_example_has_one_check_and_every_check_one_example() {
    let mut in_document: Vec<_> = examples().iter().map(|example| example.name).collect();
    let mut checked: Vec<_> = CHECKS.iter().map(|(name, _)| *name).collect();
    in_document.sort_unstable();
    checked.sort_unstable();
    assert_eq!(in_document, checked);
}

#[test]
fn every_kind_has_an_example() {
    let kinds: BTreeSet<_> = examples().iter().map(|example| example.bytes()[4]).collect();
    for &kind in Kind::ALL {
        assert!(kinds.contains(&(kind as u8)), "{kind:?}");
    }
}

#[test]
fn lengths_in_comments_are_those_of_the_bytes() {
    for example in examples() {
        for (bytes, comment) in &example.lines {
            let mut words = comment.split_whitespace();
            if let (Some("len" | "head_len" | "body_len" | "timeout_us"), Some(word)) = (words.next(), words.next())
                && word.starts_with(|c: char| c.is_ascii_digit())
            {
                let value = bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
                assert_eq!(value, number(word), "{}: {comment}", example.name);
            }
        }
    }
}

#[test]
fn the_kinds_are_those_of_the_code() {
    let rows = table("Kinds");
    assert_eq!(rows.len(), Kind::ALL.len());
    for (row, &kind) in rows.iter().zip(Kind::ALL) {
        assert_eq!((number(&row[0]), &*row[1]), (kind as u64, kind.name()));
        let takes = |flag: u8| FrameDecoder::new(MAX_FRAME).decode(&raw(kind as u8, flag, 0, &[], &[])[..6]).is_ok();
        let flags = [(1, "MORE"), (2, "SENDS"), (4, "TAKES"), (8, "?")].into_iter().filter(|(flag, _)| takes(*flag));
        assert_eq!(row[2].split_whitespace().collect::<Vec<_>>(), flags.map(|(_, name)| name).collect::<Vec<_>>());
    }
}

#[test]
fn the_kinds_of_calls_are_those_of_the_code() {
    let kinds = [CallKind::Unary, CallKind::ClientStream, CallKind::ServerStream, CallKind::BothWays];
    let rows = table("Streams");
    assert_eq!(rows.len(), kinds.len());
    for (row, kind) in rows.iter().zip(kinds) {
        let flags = row[0].split_whitespace().map(|flag| match flag {
            "SENDS" => 2,
            "TAKES" => 4,
            _ => 0,
        });
        let mut wire = raw(Kind::Request as u8, 0, 0x10000, &[0; 29], &[]);
        mark_kind(&mut wire, kind);
        assert_eq!((wire[5], &*row[1]), (flags.sum::<u8>(), kind.name()));
        assert!(matches!(only(&wire), Frame::Request(request) if request.kind == kind), "{kind:?}");
    }
}

#[test]
fn the_fields_of_a_hello_and_their_defaults_are_those_of_the_code() {
    let fixed = b"\x89SLUICE\n\x01\x01";
    let decode = |fields: &[u8]| {
        let wire = raw(Kind::Hello as u8, 0, 0, &[fixed, fields].concat(), &[]);
        Hello::decode(&wire).expect("it is well formed").expect("it is whole").0
    };
    assert_eq!(decode(&[]), Hello::default());
    let rows = table("HELLO");
    assert_eq!(rows.len(), 7);
    for row in rows {
        let kind = (number(&row[0]) as u16).to_be_bytes();
        let value: &[u8] = match &*row[2] {
            "u32" => &[0x00, 0x01, 0x23, 0x45],
            "u64" => &[1, 2, 3, 4, 5, 6, 7, 8],
            "a byte each" => &[0, 3],
            other => panic!("{other}"),
        };
        let mut expected = Hello::default();
        let (field, wanted) = match &*row[1] {
            "max frame" => (&mut expected.max_frame, 0x1_2345),
            "max message" => (&mut expected.max_message, 0x1_2345),
            "stream window" => (&mut expected.stream_window, 0x1_2345),
            "advised calls" => (&mut expected.advised_calls, 0x1_2345),
            name => {
                match name {
                    "codecs" => {
                        assert_eq!((expected.codecs.iter().count(), &*row[3]), (0, "none"));
                        expected.codecs = [CodecId::BYTES, CodecId::JSON].into_iter().collect();
                    }
                    "compressions" => expected.compressions = 0x0102_0304_0506_0708,
                    "features" => expected.features = 0x0102_0304_0506_0708,
                    other => panic!("{other}"),
                }
                assert_eq!(decode(&[&kind[..], &[0, value.len() as u8], value].concat()), expected);
                continue;
            }
        };
        assert_eq!(u64::from(*field), number(&row[3]), "default of {}", row[1]);
        *field = wanted;
        assert_eq!(decode(&[&kind[..], &[0, value.len() as u8], value].concat()), expected);
    }
}

#[test]
fn the_hashes_of_methods_are_those_of_the_code() {
    for row in table("Methods") {
        let path = if row[0] == "(empty)" { "" } else { &row[0] };
        assert_eq!(MethodId::of_path(path).to_string(), row[1], "{path}");
    }
}

#[test]
fn the_codes_are_those_of_the_code() {
    let rows: Vec<_> = table("Codes").iter().map(|row| (number(&row[0]), row[1].clone())).collect();
    let codes: Vec<_> =
        StatusCode::ALL.iter().map(|code| (u64::from(code.to_wire()), code.name().to_owned())).collect();
    assert_eq!(rows, codes);
}

#[test]
fn the_values_of_executed_are_those_of_the_code() {
    let rows = table("Executed");
    assert_eq!(rows.len(), 3);
    for row in rows {
        let executed = Executed::from_wire(number(&row[0]) as u8);
        assert_eq!(format!("{executed:?}").to_lowercase(), row[1]);
        assert_eq!(u64::from(executed.to_wire()), number(&row[0]));
    }
}

#[test]
fn the_types_of_details_are_those_of_the_code() {
    for row in table("Details") {
        let info = Status::from(&Refusal::new(RefusalReason::Draining)).error_info().unwrap().clone();
        let status = match &*row[1] {
            "Any" => Status::aborted("").with_detail("", ""),
            "ErrorInfo" => Status::aborted("").with_error_info(info),
            "RetryInfo" => Status::aborted("").with_retry_delay(Duration::ZERO),
            other => panic!("{other}"),
        };
        let mut wire = Vec::new();
        encode_status(&mut wire, CallId::new(1, 0), &status, MAX_FRAME).unwrap();
        let details = &wire[HEADER_LEN + 8 + 1 + 2..];
        assert_eq!(details[..3], [1, 0, number(&row[0]) as u8]);
    }
}

#[test]
fn the_refusals_are_those_of_the_code() {
    let rows = table("Refusals");
    assert_eq!(rows.len(), RefusalReason::ALL.len());
    for (row, &reason) in rows.iter().zip(RefusalReason::ALL) {
        assert_eq!((&*row[0], &*row[1]), (reason.name(), reason.code().name()));
        let refusal = Refusal::new(reason);
        let keys: Vec<_> = refusal.figures().map(|(key, _)| key).collect();
        assert_eq!(row[2].split_whitespace().collect::<Vec<_>>(), keys);
    }
}

#[test]
fn the_codecs_are_those_of_the_code() {
    let rows = table("Bodies");
    for (index, row) in rows.iter().enumerate() {
        assert_eq!((number(&row[0]), &*row[1]), (index as u64, CodecId::from_wire(index as u8).name()));
    }
    assert_eq!(CodecId::from_wire(rows.len() as u8).name(), "unknown");
}

#[test]
fn the_reasons_of_goaway_are_those_of_the_code() {
    for row in table("GOAWAY") {
        let reason = GoAwayReason::from_wire(number(&row[0]) as u16);
        let words = row[1].split(':').next().unwrap_or_default().split(' ');
        let name: String = words.map(|word| word[..1].to_uppercase() + &word[1..]).collect();
        match reason {
            GoAwayReason::Other(number) => assert_eq!(number, 64),
            reason => assert_eq!(format!("{reason:?}"), name),
        }
    }
}

#[test]
fn the_limits_are_those_of_the_code() {
    let limit = |what: &str| {
        let rows = table("Limits");
        let row = rows.iter().find(|row| row[0].starts_with(what)).unwrap_or_else(|| panic!("no limit of {what}"));
        number(&row[1])
    };
    assert_eq!(limit("a HELLO frame"), u64::from(MAX_HELLO_LEN));
    assert_eq!(limit("pairs of metadata"), Metadata::MAX_ENTRIES as u64);
    assert_eq!(limit("bytes of metadata"), Metadata::MAX_LEN as u64);
    assert_eq!(limit("calls before the server's HELLO"), u64::from(Hello::default().advised_calls));
    assert_eq!(limit("frames before the server's HELLO"), u64::from(Hello::default().max_frame));
    assert_eq!(limit("levels of a value"), MAX_DEPTH as u64);
}
