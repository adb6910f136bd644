//! Limits are exact, and the same on both sides: what the encoder lets through the decoder takes, and
//! what is too long fails where it is sent, with both sizes, and leaves no trace in the buffer.

use proptest::prelude::*;
use rpc_codec::{
    CodecId, DecodeError, Decoded, EncodeError, Frame, FrameDecoder, GoAwayReason, HEADER_LEN, Hello, MAX_HELLO_LEN,
    OpenMessage, PART_LEN, RequestHead, SendBounds, encode_go_away, encode_ping, encode_refusal, encode_status,
};
use rpc_core::{CallId, ErrorInfo, Metadata, MethodId, Refusal, RefusalReason, Status};

const ID: CallId = CallId::new(7, 3);
const HEAD: RequestHead = RequestHead {
    method: MethodId::of("Library", "get_book"),
    timeout_us: 0,
    sent_at_us: 0,
    codec: CodecId::BYTES,
    compression: 0,
    priority: 0,
    attempt: 0,
};

/// Metadata of `len` bytes on the wire.
fn metadata_of(len: usize) -> Metadata {
    let mut metadata = Metadata::new();
    if len > 1 {
        metadata.insert("k", vec![b'v'; len - 5]).expect("it is within its own bounds");
    }
    assert_eq!(metadata.encoded_len(), len);
    metadata
}

/// A message of `body_len` behind something that stands in the buffer already.
fn encode(
    is_request: bool,
    metadata: &Metadata,
    body_len: usize,
    bounds: SendBounds,
) -> (Vec<u8>, Result<(), EncodeError>) {
    let mut out = b"before".to_vec();
    let message = match is_request {
        true => OpenMessage::request(&mut out, &HEAD, metadata),
        false => {
            let mut message = OpenMessage::response(&mut out);
            message.insert_metadata(&mut out, metadata);
            message
        }
    };
    out.resize(out.len() + body_len, 0x5a);
    let check = message.check(&out, bounds);
    let result = message.finish(&mut out, ID, bounds);
    assert_eq!(check, result.as_ref().map(|_| ()).map_err(Clone::clone), "what is checked is what counts");
    let result = result.map(|remainder| {
        if let Some(mut remainder) = remainder {
            while !remainder.encode_part(&mut out, ID, bounds.max_frame) {}
        }
    });
    (out.split_off(6), result)
}

/// Checks what an encoder accepted or did not, against a decoder of the same setting. Says how many
/// frames it is.
#[track_caller]
fn check_both_sides(mut wire: &[u8], accepted: bool, max_frame: u32) -> usize {
    let decoder = FrameDecoder::new(max_frame);
    assert_eq!(!wire.is_empty(), accepted, "nothing is left of a frame that is not sent");
    let mut frames = 0;
    while !wire.is_empty() {
        let Ok(Decoded::Frame { len, .. }) = decoder.decode(wire) else { panic!("it is not taken") };
        wire = &wire[len..];
        frames += 1;
    }
    frames
}

/// By how many bytes something exceeds a limit: what a limit that is not exact gets wrong.
const AROUND: [i64; 5] = [-2, -1, 0, 1, 2];

mod messages {
    use super::*;

    fn head_len(is_request: bool, metadata: &Metadata) -> u32 {
        metadata.encoded_len() as u32 + if is_request { 28 } else { 8 + 3 }
    }

    #[test]
    fn a_body_fills_its_frame_to_the_very_byte_before_a_second_one_is_begun() {
        for is_request in [true, false] {
            for metadata in [metadata_of(1), metadata_of(100)] {
                for max_frame in [8192, 32_000, 70_000] {
                    let room = max_frame - 12 - head_len(is_request, &metadata);
                    for over in AROUND {
                        let bounds = SendBounds { max_frame, max_message: u32::MAX };
                        let body_len = (i64::from(room.min(PART_LEN as u32)) + over) as usize;
                        let (wire, result) = encode(is_request, &metadata, body_len, bounds);
                        assert_eq!(result, Ok(()));
                        assert_eq!(check_both_sides(&wire, true, max_frame), if over > 0 { 2 } else { 1 });
                    }
                }
            }
        }
    }

    #[test]
    fn a_body_is_taken_up_to_the_very_byte_of_the_limit() {
        for is_request in [true, false] {
            for metadata in [metadata_of(1), metadata_of(100)] {
                for max_message in [0_u32, 1, 2, 1000] {
                    for body_len in [0, 1, max_message.saturating_sub(1), max_message, max_message + 1] {
                        let bounds = SendBounds { max_frame: 4096, max_message };
                        let (wire, result) = encode(is_request, &metadata, body_len as usize, bounds);
                        let too_long =
                            EncodeError::MessageTooLong { len: u64::from(body_len), max: u64::from(max_message) };
                        let expected = if body_len > max_message { Err(too_long) } else { Ok(()) };
                        assert_eq!(result, expected);
                        check_both_sides(&wire, body_len <= max_message, 4096);
                    }
                }
            }
        }
    }

    #[test]
    fn a_head_alone_may_be_too_long_for_a_frame() {
        for is_request in [true, false] {
            let metadata = metadata_of(5000);
            let head_len = head_len(is_request, &metadata);
            for over in [-1, 0, 1, 2000] {
                let max_frame = (i64::from(12 + head_len) - over) as u32;
                let bounds = SendBounds { max_frame, max_message: 100 };
                let (wire, result) = encode(is_request, &metadata, 0, bounds);
                let too_long = EncodeError::HeadTooLong { len: head_len as usize, max: max_frame as usize - 12 };
                assert_eq!(result, if over > 0 { Err(too_long) } else { Ok(()) });
                check_both_sides(&wire, over <= 0, max_frame);
            }
        }
    }

    #[test]
    fn the_longest_metadata_fits_into_a_head() {
        for is_request in [true, false] {
            let bounds = SendBounds { max_frame: 64 * 1024, max_message: 64 * 1024 };
            let (wire, result) = encode(is_request, &metadata_of(Metadata::MAX_LEN + 1), 10, bounds);
            assert_eq!(result, Ok(()));
            check_both_sides(&wire, true, 64 * 1024);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_the_bounds_a_frame_is_sent_if_and_only_if_it_is_taken(
            is_request in any::<bool>(), metadata_len in prop_oneof![Just(1), 6..9000usize],
            body_len in prop_oneof![Just(0), 0..20_000usize], max_frame in 8192..9100u32, max_message in 0..30_000u32,
        ) {
            let metadata = metadata_of(metadata_len);
            let bounds = SendBounds { max_frame, max_message };
            let (wire, result) = encode(is_request, &metadata, body_len, bounds);
            let head_fits = 12 + head_len(is_request, &metadata) <= max_frame;
            prop_assert_eq!(result.is_ok(), head_fits && body_len <= max_message as usize);
            check_both_sides(&wire, result.is_ok(), max_frame);
        }
    }

    #[test]
    fn the_next_message_after_one_too_long_is_fine() {
        let bounds = SendBounds { max_frame: 4096, max_message: 4096 };
        let mut out = Vec::new();
        for body_len in [5000, 10, 5000] {
            let message = OpenMessage::request(&mut out, &HEAD, &metadata_of(50));
            out.resize(out.len() + body_len, 0);
            assert_eq!(message.finish(&mut out, ID, bounds).is_ok(), body_len == 10);
        }
        let (wire, _) = encode(true, &metadata_of(50), 10, bounds);
        assert_eq!(out.len(), wire.len());
        check_both_sides(&out, true, 4096);
    }
}

mod statuses {
    use super::*;

    /// Encodes behind something that stands in the buffer already; if that fails, it must still be
    /// there, and the next status be fine.
    fn encode(status: &Status, max_frame: u32) -> (Vec<u8>, Result<(), EncodeError>) {
        let mut out = b"before".to_vec();
        let result = encode_status(&mut out, ID, status, max_frame);
        if result.is_err() {
            assert_eq!(out, b"before", "out is cut back");
            encode_status(&mut out, ID, &Status::aborted("next"), max_frame).expect("it is short");
            assert!(matches!(FrameDecoder::new(max_frame).decode(&out[6..]), Ok(Decoded::Frame { .. })));
            out.truncate(6);
        }
        (out.split_off(6), result)
    }

    /// Asserts that `status` is sent and comes back.
    #[track_caller]
    fn assert_sent(status: &Status) {
        let (wire, result) = encode(status, u32::MAX);
        assert_eq!(result, Ok(()));
        let Ok(Decoded::Frame { frame: Frame::Response(response), len }) = FrameDecoder::new(u32::MAX).decode(&wire)
        else {
            panic!("not a response");
        };
        assert_eq!(len, wire.len());
        assert!(response.status().as_ref() == Ok(status));
    }

    #[track_caller]
    fn assert_too_long(status: &Status, len: usize, max: usize) {
        assert_eq!(encode(status, u32::MAX).1, Err(EncodeError::HeadTooLong { len, max }));
    }

    /// What a status with an empty message takes: fixed fields, metadata, message, details.
    const EMPTY: usize = 8 + 1 + 2 + 1;
    /// What a detail of the user's takes beside its type URL and value.
    const ANY: usize = 4 + 2;

    #[test]
    fn a_status_is_taken_up_to_the_very_byte_of_the_limit() {
        for max_frame in [100_u32, 4096, 60_000] {
            for over in AROUND {
                let head_len = (i64::from(max_frame) - 12 + over) as usize;
                let message = "m".repeat(head_len - EMPTY);
                let detail = vec![0xff; head_len - EMPTY - ANY - 3];
                for status in [Status::aborted(message), Status::aborted("").with_detail("url", detail)] {
                    let (wire, result) = encode(&status, max_frame);
                    let too_long = EncodeError::HeadTooLong { len: head_len, max: max_frame as usize - 12 };
                    assert_eq!(result, if over > 0 { Err(too_long) } else { Ok(()) });
                    check_both_sides(&wire, over <= 0, max_frame);
                }
            }
        }
    }

    #[test]
    fn a_message_is_sent_as_far_as_a_head_can_hold_it() {
        let longest = 0xffff - EMPTY;
        assert_sent(&Status::aborted("m".repeat(longest)));
        assert_too_long(&Status::aborted("m".repeat(longest + 1)), 0x1_0000, 0xffff);
        for len in [0xffff, 0x1_0000, 0x1_0001, 200_000] {
            let error = encode(&Status::aborted("m".repeat(len)).with_detail("url", "value"), u32::MAX).1.unwrap_err();
            let EncodeError::HeadTooLong { len: named, max: 0xffff } = error else { panic!("{error}") };
            assert!(named >= len && named <= len + 100, "{named} for a message of {len}");
        }
    }

    #[test]
    fn a_type_url_and_a_value_are_sent_as_far_as_a_head_can_hold_them() {
        let longest = 0xffff - EMPTY - ANY;
        assert_sent(&Status::aborted("").with_detail("u".repeat(longest), ""));
        assert_sent(&Status::aborted("").with_detail("", vec![0; longest]));
        assert_too_long(&Status::aborted("").with_detail("u".repeat(longest + 1), ""), 0x1_0000, 0xffff);
        assert_too_long(&Status::aborted("").with_detail("", vec![0; longest + 1]), 0x1_0000, 0xffff);
        for len in [0xfffd, 0xfffe, 0xffff, 0x1_0000, 200_000] {
            for detail in [("u".repeat(len), vec![]), (String::new(), vec![0; len])] {
                let error = encode(&Status::aborted("why").with_detail(detail.0, detail.1), u32::MAX).1.unwrap_err();
                let EncodeError::HeadTooLong { len: named, max: 0xffff } = error else { panic!("{error}") };
                assert!(named >= len && named <= len + 100, "{named} for a detail of {len}");
            }
        }
    }

    #[test]
    fn a_reason_and_a_domain_are_sent_up_to_255_bytes() {
        let info = |reason: usize, domain: usize| {
            let (reason, domain) = ("R".repeat(reason).into(), "d".repeat(domain).into());
            Status::aborted("why").with_error_info(ErrorInfo { reason, domain, metadata: metadata_of(10) })
        };
        assert_sent(&info(255, 255));
        assert_too_long(&info(256, 255), 256, 255);
        assert_too_long(&info(255, 256), 256, 255);
        assert_too_long(&info(100_000, 0), 100_000, 255);
    }

    #[test]
    fn details_are_sent_up_to_255_of_them() {
        let with = |count| (0..count).fold(Status::aborted("why"), |status, _| status.with_detail("", ""));
        assert_sent(&with(255));
        assert_too_long(&with(256), 256, 255);
        assert_too_long(&with(255).with_retry_delay(std::time::Duration::ZERO), 256, 255);
    }

    #[test]
    fn the_longest_metadata_fits_beside_a_status_and_into_an_error_info() {
        let metadata = metadata_of(Metadata::MAX_LEN + 1);
        let info = ErrorInfo { reason: "R".into(), domain: "d".into(), metadata: metadata.clone() };
        assert_sent(&Status::aborted("why").with_error_info(info).with_metadata(metadata));
    }
}

mod claims {
    use super::*;

    #[test]
    fn a_length_above_the_limit_is_refused_from_its_four_bytes() {
        for max in [12, 4096, 256 * 1024, u32::MAX - 1] {
            let decoder = FrameDecoder::new(max);
            for len in [max + 1, u32::MAX] {
                let error = DecodeError::FrameTooLong { len, max };
                assert_eq!(decoder.decode(&len.to_be_bytes()[..3]), Ok(Decoded::Incomplete { frame_len: None }));
                assert_eq!(decoder.decode(&len.to_be_bytes()), Err(error));
            }
            for len in [max - 1, max].into_iter().filter(|&len| len >= 12) {
                assert_eq!(decoder.decode(&len.to_be_bytes()), Ok(Decoded::Incomplete { frame_len: None }));
            }
            for len in 0..12 {
                assert_eq!(decoder.decode(&u32::to_be_bytes(len)), Err(DecodeError::FrameTooShort { len }));
            }
        }
    }

    #[test]
    fn a_frame_at_the_limit_is_waited_for_and_its_length_told() {
        let mut wire = u32::to_be_bytes(4096).to_vec();
        wire.extend([4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        let decoder = FrameDecoder::new(4096);
        assert_eq!(decoder.decode(&wire), Ok(Decoded::Incomplete { frame_len: Some(4100) }));
        wire.resize(4099, 0);
        assert_eq!(decoder.decode(&wire), Ok(Decoded::Incomplete { frame_len: Some(4100) }));
        wire.resize(4100, 0);
        assert!(matches!(decoder.decode(&wire), Ok(Decoded::Frame { len: 4100, .. })));
    }

    #[test]
    fn a_frame_too_long_is_refused_alike_whole_in_halves_and_byte_by_byte() {
        let mut wire = Vec::new();
        encode_go_away(&mut wire, ID, GoAwayReason::Drain, &"m".repeat(100));
        let len = wire.len() as u32 - 4;
        let whole = wire.len();
        encode_ping(&mut wire, [0; 8]);
        let decoder = FrameDecoder::new(len - 1);
        for shown in [wire.len(), whole, whole / 2].into_iter().chain(4..whole) {
            assert_eq!(decoder.decode(&wire[..shown]), Err(DecodeError::FrameTooLong { len, max: len - 1 }));
        }
        assert!(matches!(FrameDecoder::new(len).decode(&wire), Ok(Decoded::Frame { len, .. }) if len == whole));
    }

    #[test]
    fn a_hello_is_believed_up_to_4096_bytes() {
        assert_eq!(Hello::decode(&MAX_HELLO_LEN.to_be_bytes()), Ok(None));
        for len in [MAX_HELLO_LEN + 1, u32::MAX] {
            assert_eq!(Hello::decode(&len.to_be_bytes()), Err(DecodeError::NotSluicegate));
        }
    }

    #[test]
    fn a_hello_that_takes_less_than_the_shortest_limit_is_refused() {
        for (max_frame, taken) in [(0, false), (8191, false), (8192, true), (u32::MAX, true)] {
            let mut hello = Hello::default();
            hello.max_frame = max_frame;
            let mut wire = Vec::new();
            hello.encode(&mut wire);
            let refused =
                DecodeError::Malformed { kind: "HELLO", why: "the longest frame it takes is below 8,192 bytes" };
            assert_eq!(Hello::decode(&wire), if taken { Ok(Some((hello, wire.len()))) } else { Err(refused) });
        }
    }

    #[test]
    fn what_is_sent_unchecked_fits_into_every_frame_that_a_hello_may_allow() {
        let mut out = Vec::new();
        encode_go_away(&mut out, ID, GoAwayReason::Drain, &"m".repeat(5000));
        assert_eq!(out.len(), HEADER_LEN + 12 + 1024);
        for &reason in RefusalReason::ALL {
            out.clear();
            encode_refusal(&mut out, ID, &Refusal::new(reason).with_limit("connection", u64::MAX, u64::MAX));
            assert!(out.len() < 4096);
        }
    }

    #[test]
    fn a_long_farewell_is_cut_between_characters() {
        let mut out = Vec::new();
        encode_go_away(&mut out, ID, GoAwayReason::Drain, &"\u{20ac}".repeat(1000));
        let Ok(Decoded::Frame { frame: Frame::GoAway(away), .. }) = FrameDecoder::new(4096).decode(&out) else {
            panic!()
        };
        assert_eq!(away.message, "\u{20ac}".repeat(341));
    }
}
