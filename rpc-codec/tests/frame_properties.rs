//! What holds for every frame: it comes back, from any split of its bytes, at a cost in proportion
//! to them; and no bytes at all make the decoder panic.

use std::{
    cell::RefCell,
    env,
    hint::black_box,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use rpc_codec::{
    CodecId, CodecSet, DecodeError, Decoded, EMPTY_REQUEST_LEN, EMPTY_RESPONSE_LEN, Frame, FrameDecoder, GoAway,
    GoAwayReason, HEADER_LEN, Hello, Kind, MIN_PART_LEN, OpenMessage, RequestHead, SendBounds, encode_cancel,
    encode_credit, encode_end, encode_go_away, encode_ping, encode_pong, encode_status, patch_id,
};
use rpc_core::{CallId, Executed, Metadata, MethodId, Status, StatusCode};

const MAX_FRAME: u32 = 256 * 1024;
const BOUNDS: SendBounds = SendBounds { max_frame: MAX_FRAME, max_message: MAX_FRAME };
const MORE: u8 = 1;

/// A frame by hand, as the specification draws it; `head_len` and `len` are what they should be.
fn raw(kind: u8, flags: u8, id: u64, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = ((12 + head.len() + body.len()) as u32).to_be_bytes().to_vec();
    frame.extend([kind, flags]);
    frame.extend((head.len() as u16).to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend(head);
    frame.extend(body);
    frame
}

/// The one frame that `wire` is.
#[track_caller]
fn only(wire: &[u8]) -> Frame<'_> {
    match FrameDecoder::new(MAX_FRAME).decode(wire) {
        Ok(Decoded::Frame { frame, len }) if len == wire.len() => frame,
        other => panic!("not one whole frame: {other:?}"),
    }
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// As much as is promised; of costs, in figures too.
fn is_long() -> bool {
    env::var("SLUICEGATE_SIEGE").is_ok_and(|size| size == "full")
}

fn bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..len)
}

fn metadata() -> impl Strategy<Value = Metadata> {
    prop::collection::vec(("[a-z0-9._-]{1,20}", bytes(40)), 0..5).prop_map(|pairs| {
        let mut metadata = Metadata::new();
        for (key, value) in pairs {
            metadata.insert_reserved(&key, value).expect("it is small");
        }
        metadata
    })
}

fn request_head() -> impl Strategy<Value = RequestHead> {
    any::<(u64, u64, u32, [u8; 4])>().prop_map(
        |(method, timeout_us, sent_at_us, [codec, compression, priority, attempt])| RequestHead {
            method: MethodId::from_wire(method),
            timeout_us,
            sent_at_us,
            codec: CodecId::from_wire(codec),
            compression,
            priority,
            attempt,
        },
    )
}

fn request(head: &RequestHead, metadata: &Metadata, body: &[u8], id: u64) -> Vec<u8> {
    let mut wire = Vec::new();
    let message = OpenMessage::request(&mut wire, head, metadata);
    wire.extend_from_slice(body);
    message.finish(&mut wire, CallId::from_wire(id), BOUNDS).expect("it is small");
    wire
}

fn response(metadata: &Metadata, body: &[u8], id: u64) -> Vec<u8> {
    let mut wire = Vec::new();
    let mut message = OpenMessage::response(&mut wire);
    message.insert_metadata(&mut wire, metadata);
    wire.extend_from_slice(body);
    message.finish(&mut wire, CallId::from_wire(id), BOUNDS).expect("it is small");
    wire
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<[u32; 4]>(), any::<[u64; 3]>(), 0..=1u8, 1..=9u8).prop_map(|([frame, rest @ ..], bits, min, max)| {
        let mut hello = Hello::default();
        (hello.min_version, hello.max_version) = (min, max);
        hello.max_frame = frame.max(4096);
        [hello.max_message, hello.stream_window, hello.advised_calls] = rest;
        hello.codecs = (0..64).filter(|id| bits[0] & (1 << id) != 0).map(CodecId::from_wire).collect::<CodecSet>();
        [hello.compressions, hello.features] = [bits[1], bits[2]];
        hello
    })
}

/// Any frame that may follow the HELLOs, some of them with faults that cost one call only.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let encoded = |encode: fn(&mut Vec<u8>, u64)| {
        any::<u64>().prop_map(move |n| {
            let mut wire = Vec::new();
            encode(&mut wire, n);
            wire
        })
    };
    prop_oneof![
        3 => (request_head(), metadata(), bytes(60), any::<u64>()).prop_map(|(h, m, b, id)| request(&h, &m, &b, id)),
        2 => (metadata(), bytes(60), any::<u64>()).prop_map(|(m, b, id)| response(&m, &b, id)),
        1 => ("\\PC{0,20}", bytes(30), any::<u64>()).prop_map(|(message, detail, id)| {
            let status = Status::aborted(message).with_detail("type", detail);
            let mut wire = Vec::new();
            encode_status(&mut wire, CallId::from_wire(id), &status, MAX_FRAME).expect("it is small");
            wire
        }),
        1 => encoded(|wire, n| encode_cancel(wire, CallId::from_wire(n))),
        1 => encoded(|wire, n| encode_ping(wire, n.to_be_bytes())),
        1 => encoded(|wire, n| encode_pong(wire, n.to_be_bytes())),
        1 => encoded(|wire, n| encode_go_away(wire, CallId::from_wire(n), GoAwayReason::from_wire(n as u16), "reason")),
        1 => (any::<u64>(), any::<bool>(), bytes(40))
            .prop_map(|(id, more, mut part)| {
                part.resize(part.len() + if more { MIN_PART_LEN } else { 0 }, 7);
                raw(Kind::Cont as u8, u8::from(more), id, &[], &part)
            }),
        // A kind that may be ignored, and heads of calls that are not well formed.
        1 => (0x80..=0xffu8, any::<u8>(), any::<u64>(), bytes(20), bytes(20))
            .prop_map(|(kind, flags, id, head, body)| raw(kind, flags, id, &head, &body)),
        1 => (2..=3u8, any::<u64>(), bytes(50), bytes(20)).prop_map(|(kind, id, head, body)| raw(kind, 0, id, &head, &body)),
    ]
}

mod round_trips {
    use super::*;

    proptest! {
        #![proptest_config(cases(200))]

        #[test]
        fn a_hello_comes_back(hello in hello()) {
            let mut wire = Vec::new();
            hello.encode(&mut wire);
            let len = wire.len();
            prop_assert_eq!(Hello::decode(&wire), Ok(Some((hello, len))));
        }

        #[test]
        fn a_request_comes_back(head in request_head(), metadata in metadata(), body in bytes(300), id in any::<u64>()) {
            let wire = request(&head, &metadata, &body, id);
            prop_assert_eq!(wire.len(), EMPTY_REQUEST_LEN + metadata.encoded_len() - 1 + body.len());
            let Frame::Request(request) = only(&wire) else { panic!("not a request") };
            prop_assert_eq!(request.id.to_wire(), id);
            prop_assert_eq!((request.head, request.more), (head, false));
            prop_assert_eq!(request.body_len as usize, body.len());
            prop_assert_eq!(request.body, &body[..]);
            prop_assert_eq!(request.metadata(), Ok(metadata));
        }

        #[test]
        fn a_response_comes_back(metadata in metadata(), body in bytes(300), id in any::<u64>()) {
            let wire = response(&metadata, &body, id);
            prop_assert_eq!(wire.len(), EMPTY_RESPONSE_LEN + metadata.encoded_len() - 1 + body.len());
            let Frame::Response(response) = only(&wire) else { panic!("not a response") };
            prop_assert_eq!((response.id.to_wire(), response.more), (id, false));
            prop_assert_eq!((response.code, response.executed), (StatusCode::Ok, Executed::Finished));
            prop_assert_eq!((response.compression, response.body_len as usize), (0, body.len()));
            prop_assert_eq!(response.body, &body[..]);
            prop_assert_eq!(response.metadata(), Ok(metadata.clone()));
            let status = response.status().expect("it is whole");
            prop_assert_eq!(status.metadata(), &metadata);
        }

        #[test]
        fn metadata_put_in_late_gives_the_same_bytes(metadata in metadata(), body in bytes(100), before in bytes(9)) {
            let mut wire = before.clone();
            let mut message = OpenMessage::response(&mut wire);
            wire.extend_from_slice(&body);
            message.insert_metadata(&mut wire, &metadata);
            prop_assert_eq!(message.body(&wire), &body[..]);
            message.finish(&mut wire, CallId::from_wire(7), BOUNDS).expect("it is small");
            prop_assert_eq!(&wire[..before.len()], &before[..]);
            prop_assert_eq!(&wire[before.len()..], &response(&metadata, &body, 7)[..]);
        }

        #[test]
        fn the_small_frames_come_back(n in any::<u64>(), reason in any::<u16>(), message in "\\PC{0,80}") {
            let id = CallId::from_wire(n);
            let mut wire = Vec::new();
            encode_cancel(&mut wire, id);
            prop_assert_eq!(only(&wire), Frame::Cancel { id });
            wire.clear();
            encode_ping(&mut wire, n.to_be_bytes());
            prop_assert_eq!(only(&wire), Frame::Ping(n.to_be_bytes()));
            wire.clear();
            encode_pong(&mut wire, n.to_be_bytes());
            prop_assert_eq!(only(&wire), Frame::Pong(n.to_be_bytes()));
            wire.clear();
            encode_end(&mut wire, id);
            prop_assert_eq!(only(&wire), Frame::End { id });
            wire.clear();
            let bytes = u32::from(reason) + 1;
            encode_credit(&mut wire, id, bytes);
            prop_assert_eq!(only(&wire), Frame::Credit { id, bytes });
            wire.clear();
            let reason = GoAwayReason::from_wire(reason);
            encode_go_away(&mut wire, id, reason, &message);
            prop_assert_eq!(only(&wire), Frame::GoAway(GoAway { last: id, reason, message: &message }));
        }

        #[test]
        fn a_part_of_a_body_comes_back(n in any::<u64>(), more in any::<bool>(), mut part in bytes(200)) {
            if more {
                part.resize(MIN_PART_LEN + part.len(), 7);
            }
            let wire = raw(Kind::Cont as u8, u8::from(more), n, &[], &part);
            prop_assert_eq!(only(&wire), Frame::Cont { id: CallId::from_wire(n), more, part: &part });
        }

        #[test]
        fn an_id_may_be_set_when_the_frame_is_written(head in request_head(), body in bytes(50), id in any::<u64>()) {
            let mut wire = request(&head, &Metadata::new(), &body, 0);
            patch_id(&mut wire, CallId::from_wire(id));
            prop_assert_eq!(wire, request(&head, &Metadata::new(), &body, id));
        }
    }

    #[test]
    fn every_reason_of_a_goaway_has_one_number() {
        for reason in 0..=u16::MAX {
            assert_eq!(GoAwayReason::from_wire(reason).to_wire(), reason);
        }
    }
}

mod later_versions {
    use super::*;

    /// `frame` with `tail` at the end of its head.
    fn with_tail(frame: &[u8], tail: &[u8]) -> Vec<u8> {
        let head_len = usize::from(u16::from_be_bytes([frame[6], frame[7]]));
        let (head, body) = frame[HEADER_LEN..].split_at(head_len);
        let id = u64::from_be_bytes(frame[8..16].try_into().unwrap());
        raw(frame[4], frame[5], id, &[head, tail].concat(), body)
    }

    proptest! {
        #![proptest_config(cases(100))]

        #[test]
        fn what_they_append_to_a_head_is_ignored(
            head in request_head(), metadata in metadata(), body in bytes(50), tail in bytes(30), n in any::<u64>(),
        ) {
            let wire = with_tail(&request(&head, &metadata, &body, n), &tail);
            let Frame::Request(got) = only(&wire) else { panic!("not a request") };
            prop_assert_eq!((got.head, got.body, got.metadata()), (head, &body[..], Ok(metadata.clone())));

            let status = Status::aborted("why").with_detail("url", &tail[..]).with_metadata(metadata.clone());
            let mut wire = Vec::new();
            encode_status(&mut wire, CallId::from_wire(n), &status, MAX_FRAME).expect("it is small");
            let wire = with_tail(&wire, &tail);
            let Frame::Response(got) = only(&wire) else { panic!("not a response") };
            prop_assert_eq!(got.status(), Ok(status));

            let small: [fn(&mut Vec<u8>, u64); 5] = [
                |wire, n| encode_cancel(wire, CallId::from_wire(n)),
                |wire, n| encode_ping(wire, n.to_be_bytes()),
                |wire, n| encode_pong(wire, n.to_be_bytes()),
                |wire, n| encode_go_away(wire, CallId::from_wire(n), GoAwayReason::Drain, "bye"),
                |wire, n| wire.extend(raw(Kind::Cont as u8, MORE, n, &[], &[7; MIN_PART_LEN])),
            ];
            for encode in small {
                let mut wire = Vec::new();
                encode(&mut wire, n);
                let longer = with_tail(&wire, &tail);
                prop_assert_eq!(only(&longer), only(&wire));
            }
        }

        #[test]
        fn their_ignorable_kinds_are_skipped(kind in 0x80..=0xffu8, flags in any::<u8>(), head in bytes(30), body in bytes(30)) {
            let wire = raw(kind, flags, 5, &head, &body);
            prop_assert_eq!(only(&wire), Frame::Ignored { kind });
        }
    }

    #[test]
    fn their_ignorable_flags_are_ignored() {
        for flags in [0x10, 0x20, 0x40, 0x80, 0xf0] {
            let wire = raw(Kind::Cancel as u8, flags, 5, &[], &[]);
            assert_eq!(only(&wire), Frame::Cancel { id: CallId::from_wire(5) });
            let wire = raw(Kind::Cont as u8, flags | MORE, 5, &[], &[7; MIN_PART_LEN]);
            assert_eq!(only(&wire), Frame::Cont { id: CallId::from_wire(5), more: true, part: &[7; MIN_PART_LEN] });
        }
    }

    #[test]
    fn what_they_add_to_frames_of_streams_is_ignored() {
        let (id, tail) = (CallId::from_wire(5), [1, 2, 3]);
        let [nine, seven] = [9_u32, 7].map(|n| [&n.to_be_bytes()[..], &tail].concat());
        for flags in [0, 0x10, 0x20, 0x40, 0x80, 0xf0] {
            let wire = raw(Kind::Item as u8, flags, 5, &tail, b"item");
            assert_eq!(only(&wire), Frame::Item { id, more: false, len: 4, part: b"item" });
            let wire = raw(Kind::Item as u8, flags | MORE, 5, &nine, b"item");
            assert_eq!(only(&wire), Frame::Item { id, more: true, len: 9, part: b"item" });
            // Neither has a body in this version.
            let wire = raw(Kind::End as u8, flags, 5, &tail, b"body");
            assert_eq!(only(&wire), Frame::End { id });
            let wire = raw(Kind::Credit as u8, flags, 5, &seven, b"body");
            assert_eq!(only(&wire), Frame::Credit { id, bytes: 7 });
        }
    }

    #[test]
    fn their_other_kinds_name_themselves_at_the_fifth_byte() {
        let known: Vec<_> = Kind::ALL.iter().map(|&kind| kind as u8).collect();
        for kind in (0..0x80).filter(|kind| !known.contains(kind)) {
            let wire = raw(kind, 0, 5, &[], &[]);
            let decoder = FrameDecoder::new(MAX_FRAME);
            assert_eq!(decoder.decode(&wire[..4]), Ok(Decoded::Incomplete { frame_len: None }));
            assert_eq!(decoder.decode(&wire[..5]), Err(DecodeError::UnknownKind { kind }));
        }
    }

    #[test]
    fn their_other_flags_name_themselves_at_the_sixth_byte() {
        for &kind in Kind::ALL {
            let known = match kind {
                Kind::Request => MORE | 0x02 | 0x04,
                Kind::Response | Kind::Cont | Kind::Item => MORE,
                _ => 0,
            };
            for flags in 0..=u8::MAX {
                let unknown = flags & 0x0f & !known;
                let decoded = FrameDecoder::new(MAX_FRAME).decode(&raw(kind as u8, flags, 5, &[0; 40], &[])[..6]).err();
                let expected = (unknown != 0).then(|| DecodeError::UnknownFlags { kind: kind.name(), flags: unknown });
                assert_eq!(decoded, expected, "{kind:?} with {flags:#04x}");
            }
        }
    }
}

mod splits {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Seen<'a> {
        Hello(Hello),
        Frame(Frame<'a>),
        Broken(DecodeError),
    }

    /// What stands at the front of `buf`, and how long it is.
    fn next(buf: &[u8], hello: bool) -> Option<(Seen<'_>, usize)> {
        let seen = if hello {
            Hello::decode(buf).map(|found| found.map(|(hello, len)| (Seen::Hello(hello), len)))
        } else {
            FrameDecoder::new(MAX_FRAME).decode(buf).map(|decoded| match decoded {
                Decoded::Frame { frame, len } => Some((Seen::Frame(frame), len)),
                Decoded::Incomplete { .. } => None,
            })
        };
        seen.unwrap_or_else(|error| Some((Seen::Broken(error), 0)))
    }

    /// Everything in `stream`, read in one piece.
    fn whole(stream: &[u8]) -> Vec<Seen<'_>> {
        let mut seen = Vec::new();
        let mut at = 0;
        while let Some((next, len)) = next(&stream[at..], seen.is_empty()) {
            at += len;
            seen.push(next);
            if len == 0 {
                break;
            }
        }
        seen
    }

    /// Reads `stream` in the pieces between `cuts`, each handed over in a buffer of its own, and
    /// checks that the same is seen.
    fn check(stream: &[u8], cuts: impl Iterator<Item = usize>, expected: &[Seen<'_>]) {
        let mut buf: Vec<u8> = Vec::new();
        let (mut seen, mut start) = (0, 0);
        for end in cuts.chain([stream.len()]) {
            let mut next_buf = buf.clone();
            next_buf.extend_from_slice(&stream[start..end]);
            (buf, start) = (next_buf, end);
            let mut at = 0;
            while let Some((found, len)) = next(&buf[at..], seen == 0) {
                assert_eq!(Some(&found), expected.get(seen), "piece ends at {end}");
                seen += 1;
                at += len;
                if len == 0 {
                    assert_eq!(seen, expected.len());
                    return;
                }
            }
            buf.drain(..at);
        }
        assert_eq!(seen, expected.len());
    }

    fn check_all_splits(stream: &[u8], random: &[Vec<usize>]) {
        let expected = whole(stream);
        for cut in 0..=stream.len() {
            check(stream, [cut].into_iter(), &expected);
        }
        check(stream, 0..stream.len(), &expected);
        for cuts in random {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
            cuts.sort_unstable();
            check(stream, cuts.into_iter(), &expected);
        }
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        (hello(), prop::collection::vec(frame(), 0..8)).prop_map(|(hello, frames)| {
            let mut stream = Vec::new();
            hello.encode(&mut stream);
            stream.extend(frames.into_iter().flatten());
            stream
        })
    }

    fn mutations() -> impl Strategy<Value = Vec<(usize, u8)>> {
        prop::collection::vec(any::<(usize, u8)>(), 1..=8)
    }

    fn mutate(stream: &mut [u8], mutations: &[(usize, u8)]) {
        for &(at, value) in mutations {
            let at = at % stream.len();
            stream[at] = value;
        }
    }

    fn cuts() -> impl Strategy<Value = Vec<Vec<usize>>> {
        prop::collection::vec(prop::collection::vec(any::<usize>(), 2..12), if is_long() { 1_000 } else { 20 })
    }

    proptest! {
        #![proptest_config(cases(if is_long() { 200 } else { 48 }))]

        #[test]
        fn any_split_of_a_stream_gives_the_same_frames(stream in stream(), cuts in cuts()) {
            check_all_splits(&stream, &cuts);
        }

        #[test]
        fn any_split_of_a_broken_stream_gives_the_same_frames_and_the_same_error(
            mut stream in stream(), mutations in mutations(), cuts in cuts(),
        ) {
            mutate(&mut stream, &mutations);
            check_all_splits(&stream, &cuts);
        }

        #[test]
        fn any_split_of_a_bad_hello_gives_the_same_error(
            hello in hello(), mutations in mutations(), head_len in 0..90u16, more in bytes(40), cuts in cuts(),
        ) {
            let mut stream = Vec::new();
            hello.encode(&mut stream);
            mutate(&mut stream[16..], &mutations[1..]);
            stream[6..8].copy_from_slice(&head_len.to_be_bytes());
            if mutations[0].1 % 2 == 0 {
                // A head that is the whole frame, and so perhaps shorter than the magic bytes.
                stream[..4].copy_from_slice(&(12 + u32::from(head_len)).to_be_bytes());
            }
            stream.extend(more);
            check_all_splits(&stream, &cuts);
        }
    }

    #[test]
    fn a_hello_that_is_wrong_twice_gives_one_error_from_any_split() {
        // Neither magic bytes nor an end of the frame at the end of the head.
        check_all_splits(&raw(Kind::Hello as u8, 0, 0, &[b'x'; 12], b"body"), &[]);
        // A head that ends inside the magic bytes, which then look like more of them or do not.
        for next in [&b"ICE\n..."[..], b"other"] {
            check_all_splits(&[&raw(Kind::Hello as u8, 0, 0, b"\x89SLU", &[]), next].concat(), &[]);
        }
    }

    /// The least time of a few runs of `work`, which a busy machine disturbs least.
    fn quickest(work: impl Fn()) -> Duration {
        let time = || {
            let start = Instant::now();
            work();
            start.elapsed()
        };
        (0..3).map(|_| time()).min().expect("three runs")
    }

    /// Asserts that twice the size costs less than three times as much. A quadratic cost would be four times, and every
    /// attempt would see it; a linear one is seen by the first quiet attempt, also where the larger size does not fit
    /// into a cache any more that holds the smaller one.
    fn assert_linear(size: usize, work: impl Fn(usize)) {
        let mut ratios = Vec::new();
        for _ in 0..4 {
            let once = quickest(|| work(size));
            let twice = quickest(|| work(2 * size));
            let ratio = twice.as_secs_f64() / once.as_secs_f64();
            if ratio < 3.0 {
                return;
            }
            ratios.push(ratio);
        }
        panic!("twice the size costs {ratios:?} times as much");
    }

    fn read_in_pieces_of(piece: usize, stream: &[u8]) {
        read_into(&mut Vec::with_capacity(stream.len()), piece, stream);
    }

    fn read_into(buf: &mut Vec<u8>, piece: usize, stream: &[u8]) {
        let decoder = FrameDecoder::new(u32::MAX);
        buf.clear();
        let mut at = 0;
        for piece in stream.chunks(piece) {
            buf.extend_from_slice(piece);
            while let Ok(Decoded::Frame { frame, len }) = decoder.decode(&buf[at..]) {
                black_box(frame);
                at += len;
            }
        }
        assert_eq!(at, stream.len());
    }

    #[test]
    fn a_long_frame_costs_in_proportion_to_its_length_byte_by_byte() {
        let frame = |size| raw(Kind::Cont as u8, 0, 7, &[], &vec![0; size]);
        let size = if is_long() { 16 << 20 } else { 120 << 10 };
        // Made once: from 32 MiB on the allocator asks the system for memory each time, which costs more than to decode.
        let (frames, buf) = ([frame(size), frame(2 * size)], RefCell::new(Vec::with_capacity(3 * size)));
        for piece in [1, 1_024] {
            assert_linear(size, |len| read_into(&mut buf.borrow_mut(), piece, &frames[usize::from(len > size)]));
        }
        if is_long() {
            let [frame, _] = frames;
            let each = quickest(|| read_in_pieces_of(1, &frame)).as_nanos() as f64 / size as f64;
            println!("{each:.1} ns for each byte of a frame that comes byte by byte");
            assert!(each <= 20.0, "{each} ns for each byte");
        }
    }

    #[test]
    fn many_frames_cost_in_proportion_to_their_number() {
        let mut ping = Vec::new();
        encode_ping(&mut ping, [7; 8]);
        assert_linear(2048, |count| read_in_pieces_of(1, &ping.repeat(count)));
        assert_linear(2048, |count| read_in_pieces_of(ping.len() * count, &ping.repeat(count)));
    }

    proptest! {
        #![proptest_config(cases(600))]

        #[test]
        fn random_bytes_never_panic(bytes in bytes(400)) {
            drain(&bytes);
        }

        #[test]
        fn random_frames_never_panic(
            kind in prop_oneof![Just(2u8), Just(3u8), 0..12u8, any::<u8>()],
            flags in prop_oneof![Just(0), Just(MORE), any::<u8>()],
            head in bytes(200), body in bytes(60), head_len in prop::option::weighted(0.2, any::<u16>()),
            claimed in prop::option::weighted(0.2, 0..400u32),
        ) {
            let mut wire = raw(kind, flags, 9, &head, &body);
            if let Some(head_len) = head_len {
                wire[6..8].copy_from_slice(&head_len.to_be_bytes());
            }
            if let Some(claimed) = claimed {
                wire[..4].copy_from_slice(&claimed.to_be_bytes());
            }
            drain(&wire);
        }

        #[test]
        fn streams_with_a_few_bytes_changed_never_panic(mut stream in stream(), mutations in mutations()) {
            mutate(&mut stream, &mutations);
            drain(&stream);
            if let Ok(Some((_, len))) = Hello::decode(&stream) {
                drain(&stream[len..]);
            }
        }
    }

    /// Reads frames until there are no more, and all that a frame reads only when asked.
    fn drain(mut stream: &[u8]) {
        let _ = Hello::decode(stream);
        while let Ok(Decoded::Frame { frame, len }) = FrameDecoder::new(MAX_FRAME).decode(stream) {
            match frame {
                Frame::Request(request) => drop(black_box(request.metadata())),
                Frame::Response(response) => drop(black_box((response.metadata(), response.status()))),
                frame => drop(black_box(frame)),
            }
            assert!(len >= HEADER_LEN, "no progress");
            stream = &stream[len..];
        }
    }
}
