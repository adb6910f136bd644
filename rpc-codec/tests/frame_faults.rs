//! What a fault costs: one in the head of a call that call, one in the framing the connection; and each
//! is found as soon as its bytes are there.

use rpc_codec::{
    DecodeError, Decoded, Frame, FrameDecoder, HeadError, Hello, Kind, OpenMessage, SendBounds, encode_ping,
};
use rpc_core::{CallId, Metadata};

const MAX_FRAME: u32 = 256 * 1024;
const MORE: u8 = 1;

/// A frame by hand, as the specification draws it.
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

#[test]
fn a_head_that_is_cut_short_costs_that_call() {
    for (kind, whole) in [(Kind::Request as u8, 29), (Kind::Response as u8, 12)] {
        for len in 0..whole {
            let wire = raw(kind, 0, 8, &vec![0; len], &[]);
            assert_eq!(only(&wire), Frame::Malformed { id: CallId::from_wire(8), error: HeadError::Truncated });
        }
        assert!(!matches!(only(&raw(kind, 0, 8, &vec![0; whole], &[])), Frame::Malformed { .. }));
    }
}

#[test]
fn a_body_of_another_length_than_its_head_says_costs_that_call() {
    let body_len_at = |kind| if kind == Kind::Request { 20 } else { 4 };
    for kind in [Kind::Request, Kind::Response] {
        for (more, claimed, fits) in [
            (0, 3, false),
            (0, 4, true),
            (0, 5, false),
            (0, u32::MAX, false),
            (MORE, 3, false),
            (MORE, 4, false),
            (MORE, 5, true),
            (MORE, u32::MAX, true),
        ] {
            let mut head = [0; 29];
            head[body_len_at(kind)..][..4].copy_from_slice(&u32::to_be_bytes(claimed));
            let wire = raw(kind as u8, more, 8, &head, b"body");
            match only(&wire) {
                Frame::Malformed { id, error } => {
                    assert!(!fits);
                    assert_eq!(id, CallId::from_wire(8));
                    assert_eq!(error, HeadError::BodyLen { claimed, actual: 4 });
                }
                frame => assert!(fits, "{frame:?}"),
            }
        }
    }
}

#[test]
fn bad_metadata_costs_that_call_and_the_next_frame_is_read() {
    let long = [b'k'; 255];
    let keys = [&b""[..], b"Upper", b"with space", b"nul\0", b"del\x7f", "schl\u{fc}ssel".as_bytes(), b"\xff", b"k:v"];
    for (key, good) in keys.into_iter().map(|key| (key, false)).chain([(&long[..], true), (b"k", true)]) {
        let mut pairs = vec![1, key.len() as u8];
        pairs.extend(key);
        pairs.extend([0, 1, 0xff]);
        let heads = [[&[0; 28][..], &pairs].concat(), [&[0; 8][..], &pairs, &[0; 3]].concat()];
        for (kind, head) in [Kind::Request, Kind::Response].into_iter().zip(heads) {
            let mut stream = raw(kind as u8, 0, 8, &head, &[]);
            let first = stream.len();
            encode_ping(&mut stream, [1; 8]);
            let metadata = match only(&stream[..first]) {
                Frame::Request(request) => request.metadata(),
                Frame::Response(response) => {
                    assert_eq!(response.status().is_ok(), good);
                    response.metadata()
                }
                frame => panic!("{frame:?}"),
            };
            assert_eq!(metadata.is_ok(), good, "{key:?}");
            assert!(good || matches!(metadata, Err(HeadError::Metadata(_))));
            assert_eq!(only(&stream[first..]), Frame::Ping([1; 8]));
        }
    }
}

#[test]
fn any_byte_may_be_a_value_of_metadata() {
    let random: Vec<_> = (0..16_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let bounds = SendBounds { max_frame: MAX_FRAME, max_message: MAX_FRAME };
    let values = (0..=u8::MAX).map(|byte| vec![byte]).chain([vec![], random]);
    for value in values {
        let mut metadata = Metadata::new();
        metadata.insert("key", &value).unwrap();
        let mut wire = Vec::new();
        let mut message = OpenMessage::response(&mut wire);
        message.insert_metadata(&mut wire, &metadata);
        message.finish(&mut wire, CallId::from_wire(3), bounds).expect("it is short");
        let Frame::Response(response) = only(&wire) else { panic!("not a response") };
        assert_eq!(response.metadata().unwrap().get("key"), Some(&value[..]));
    }
}

#[test]
fn a_frame_that_its_kind_forbids_names_the_kind_and_why() {
    for (kind, why, head) in [
        (Kind::Hello, "it must be the first frame", &[0; 8][..]),
        (Kind::Credit, "it must say how many bytes", &[1; 3]),
        (Kind::Credit, "it gives nothing", &[0; 4]),
        (Kind::Ping, "it must carry eight bytes", &[0; 7]),
        (Kind::Pong, "it must carry eight bytes", &[0; 7]),
        (Kind::GoAway, "the head is cut short", &[0; 11]),
        (Kind::GoAway, "the message is cut short", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        (Kind::GoAway, "the message is not UTF-8", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]),
    ] {
        let wire = raw(kind as u8, 0, 0, head, b"12345678");
        let decoded = FrameDecoder::new(MAX_FRAME).decode(&wire);
        assert_eq!(decoded, Err(DecodeError::Malformed { kind: kind.name(), why }));
    }
}

#[test]
fn an_item_in_parts_says_a_length_that_its_first_part_is_below() {
    let more = |head: &[u8]| raw(Kind::Item as u8, 1, 3, head, b"12345678");
    let decode = |wire: &[u8]| FrameDecoder::new(MAX_FRAME).decode(wire).map(|_| ());
    let malformed = |why| Err(DecodeError::Malformed { kind: "ITEM", why });
    assert_eq!(decode(&more(&[0, 0, 0])), malformed("an item in parts must say its length"));
    assert_eq!(decode(&more(&[0, 0, 0, 8])), malformed("the first part is as long as the item"));
    assert_eq!(decode(&more(&[0, 0, 0, 9])), Ok(()));
    assert_eq!(decode(&more(&[0, 0, 0, 9, 77])), Ok(()), "an unknown tail");
}

#[test]
fn a_head_longer_than_its_frame_is_found_at_the_eighth_byte() {
    let mut wire = raw(Kind::Cancel as u8, 0, 5, b"head", &[]);
    wire[6..8].copy_from_slice(&5u16.to_be_bytes());
    let decoder = FrameDecoder::new(MAX_FRAME);
    assert_eq!(decoder.decode(&wire[..7]), Ok(Decoded::Incomplete { frame_len: None }));
    assert_eq!(decoder.decode(&wire[..8]), Err(DecodeError::HeadTooLong { head_len: 5, len: 16 }));
}

#[test]
fn a_first_frame_of_another_kind_is_not_a_connection_of_ours() {
    let mut wire = Vec::new();
    encode_ping(&mut wire, [0; 8]);
    assert_eq!(Hello::decode(&wire[..4]), Ok(None));
    assert_eq!(Hello::decode(&wire[..5]), Err(DecodeError::NotSluicegate));
}
