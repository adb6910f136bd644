//! A status comes back as it was sent, whatever its message and details; one that is not well formed
//! is an error of its call; and a refusal is the same bytes as its status.

use std::time::Duration;

use proptest::prelude::*;
use rpc_codec::{
    Decoded, EMPTY_RESPONSE_LEN, Frame, FrameDecoder, HEADER_LEN, HeadError, RefusalEncoder, ResponseFrame,
    encode_refusal, encode_status,
};
use rpc_core::{AnyDetail, CallId, ErrorInfo, Executed, Metadata, Refusal, RefusalReason, Status, StatusCode};

const ID: CallId = CallId::new(7, 3);
const MAX_FRAME: u32 = 256 * 1024;

fn encode(status: &Status) -> Vec<u8> {
    let mut wire = Vec::new();
    encode_status(&mut wire, ID, status, MAX_FRAME).expect("it is within the bounds");
    wire
}

fn decode(wire: &[u8]) -> ResponseFrame<'_> {
    match FrameDecoder::new(MAX_FRAME).decode(wire) {
        Ok(Decoded::Frame { frame: Frame::Response(response), len }) if len == wire.len() => response,
        other => panic!("not one whole response: {other:?}"),
    }
}

/// A RESPONSE by hand: the fixed fields, then `rest`.
fn raw(rest: &[u8]) -> Vec<u8> {
    let mut wire = encode(&Status::aborted(""));
    wire.truncate(HEADER_LEN + 8);
    wire.extend_from_slice(rest);
    let len = wire.len();
    wire[..4].copy_from_slice(&(len as u32 - 4).to_be_bytes());
    wire[6..8].copy_from_slice(&((len - HEADER_LEN) as u16).to_be_bytes());
    wire
}

/// What reading the status of a RESPONSE with `details` gives.
fn with_details(details: &[u8]) -> Result<Status, HeadError> {
    decode(&raw(&[&[0, 0, 0], details].concat())).status()
}

fn bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=len)
}

fn text(len: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..=len / 4).prop_map(|chars| chars.into_iter().collect())
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

fn status() -> impl Strategy<Value = Status> {
    let code = prop::sample::select(StatusCode::ALL);
    let executed = prop::sample::select(&[Executed::Finished, Executed::Never, Executed::Maybe][..]);
    let info = prop::option::of((text(255), text(255), metadata()));
    let details = prop::collection::vec((text(100), bytes(4096)), 0..3);
    let parts = (code, executed, text(4096), info, prop::option::of(any::<u64>()), details, metadata());
    parts.prop_map(|(code, executed, message, info, delay, details, metadata)| {
        let mut status = Status::new(code, message).with_executed(executed);
        if let Some((reason, domain, metadata)) = info {
            status = status.with_error_info(ErrorInfo { reason: reason.into(), domain: domain.into(), metadata });
        }
        if let Some(us) = delay {
            status = status.with_retry_delay(Duration::from_micros(us));
        }
        for (type_url, value) in details {
            status = status.with_detail(type_url, value);
        }
        if metadata.is_empty() { status } else { status.with_metadata(metadata) }
    })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let limit =
        prop::option::of((prop::sample::select(&["", "global", "connection", "tenant"][..]), any::<[u64; 2]>()));
    (prop::sample::select(RefusalReason::ALL), limit, prop::option::of(any::<Duration>())).prop_map(
        |(reason, limit, delay)| {
            let mut refusal = Refusal::new(reason);
            if let Some((limit, [max, current])) = limit {
                refusal = refusal.with_limit(limit, max, current);
            }
            match delay {
                Some(delay) => refusal.with_retry_delay(delay),
                None => refusal,
            }
        },
    )
}

/// Few of each, so that some are like the one before.
fn alike() -> impl Strategy<Value = Refusal> {
    let reason = prop::sample::select(&[RefusalReason::RateLimit, RefusalReason::QueueFull][..]);
    let limit = (prop::sample::select(&["global", "tenant"][..]), 63..=64_u64, 63..=64_u64);
    let tenant = prop::sample::select(&["", "acme"][..]);
    (reason, limit, tenant, prop::option::of(any::<Duration>())).prop_map(
        |(reason, (limit, max, current), tenant, delay)| {
            let refusal = Refusal::new(reason).with_limit(limit, max, current).with_tenant(tenant);
            match delay {
                Some(delay) => refusal.with_retry_delay(delay),
                None => refusal,
            }
        },
    )
}

#[track_caller]
fn assert_refusal_is_its_status(refusal: &Refusal) {
    let mut wire = Vec::new();
    encode_refusal(&mut wire, ID, refusal);
    assert_eq!(wire, encode(&Status::from(refusal)), "{refusal:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_refusal_is_encoded_as_if_none_had_been_before_it(
        refusals in prop::collection::vec((alike(), 1..=3_usize, any::<u32>()), 1..=20),
    ) {
        let (mut encoder, mut wire, mut expected) = (RefusalEncoder::new(), b"before".to_vec(), b"before".to_vec());
        for (refusal, times, id) in refusals {
            for nth in 0..times as u64 {
                let refusal = match refusal.retry_delay() {
                    Some(delay) => refusal.with_retry_delay(delay / (nth as u32 + 1)),
                    None => refusal,
                };
                let id = CallId::new(u64::from(id) + nth + 1, 0);
                encoder.encode(&mut wire, id, &refusal);
                encode_refusal(&mut expected, id, &refusal);
                prop_assert_eq!(&wire, &expected);
            }
        }
    }

    #[test]
    fn a_status_comes_back_whole(status in status()) {
        let wire = encode(&status);
        let response = decode(&wire);
        prop_assert_eq!((response.id, response.code, response.executed), (ID, status.code(), status.executed()));
        prop_assert_eq!((response.body_len, response.body), (0, &b""[..]));
        prop_assert_eq!(response.metadata(), Ok(status.metadata().clone()));
        prop_assert!(response.status().as_ref() == Ok(&status));
    }

    #[test]
    fn a_status_with_a_few_bytes_changed_is_read_or_is_an_error_of_its_call(
        status in status(), mutations in prop::collection::vec(any::<(usize, u8)>(), 1..=8),
    ) {
        let mut wire = encode(&status);
        let head_len = wire.len() - EMPTY_RESPONSE_LEN + 12;
        for (at, value) in mutations {
            // The length of the body stays: another one is found sooner.
            let at = HEADER_LEN + at % head_len;
            if !(HEADER_LEN + 4..HEADER_LEN + 8).contains(&at) {
                wire[at] = value;
            }
        }
        let _ = decode(&wire).status();
    }

    #[test]
    fn any_refusal_is_the_same_bytes_as_its_status(refusal in refusal()) {
        assert_refusal_is_its_status(&refusal);
    }
}

#[test]
fn every_reason_is_the_same_bytes_as_its_status() {
    for &reason in RefusalReason::ALL {
        let limited = Refusal::new(reason).with_limit("global", 64, 63);
        for refusal in [Refusal::new(reason), limited, limited.with_tenant("acme")] {
            assert_refusal_is_its_status(&refusal);
            for delay in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(10), Duration::MAX] {
                assert_refusal_is_its_status(&refusal.with_retry_delay(delay));
            }
        }
    }
}

#[test]
fn a_retry_delay_is_rounded_up_and_held_to_what_the_field_can_say() {
    for (sent, received) in [
        (Duration::from_nanos(1), Duration::from_micros(1)),
        (Duration::from_nanos(1_001), Duration::from_micros(2)),
        (Duration::from_micros(2), Duration::from_micros(2)),
        (Duration::MAX, Duration::from_micros(u64::MAX)),
    ] {
        let wire = encode(&Status::aborted("").with_retry_delay(sent));
        assert_eq!(decode(&wire).status().unwrap().retry_delay(), Some(received));
    }
}

#[test]
fn any_byte_and_any_bytes_may_be_the_value_of_a_detail() {
    let random: Vec<_> = (0..65_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for value in (0..=u8::MAX).map(|byte| vec![byte]).chain([vec![], random]) {
        let wire = encode(&Status::internal("why").with_detail("type", value.clone()));
        let status = decode(&wire).status().unwrap();
        assert_eq!(status.details(), [AnyDetail { type_url: "type".to_owned(), value }]);
    }
}

#[test]
fn an_unknown_code_is_unknown_and_an_unknown_executed_is_maybe() {
    let mut wire = encode(&Status::aborted(""));
    for code in 17..=u8::MAX {
        wire[HEADER_LEN] = code;
        wire[HEADER_LEN + 1] = code;
        wire[HEADER_LEN + 3] = code;
        assert_eq!((decode(&wire).code, decode(&wire).executed), (StatusCode::Unknown, Executed::Maybe));
    }
}

#[test]
fn text_that_is_not_utf8_is_an_error_of_its_call() {
    assert_eq!(decode(&raw(&[0, 0, 1, 0xff, 0])).status(), Err(HeadError::Text));
    assert_eq!(with_details(&[1, 0, 0, 0, 3, 0, 1, 0xff]), Err(HeadError::Text));
    assert_eq!(with_details(&[1, 0, 1, 0, 4, 1, 0xff, 0, 0]), Err(HeadError::Text));
    assert_eq!(with_details(&[1, 0, 1, 0, 4, 0, 1, 0xff, 0]), Err(HeadError::Text));
}

#[test]
fn details_that_are_cut_short_are_an_error_of_their_call() {
    for details in [
        // No detail at all, no length, a value shorter than its length.
        &[1][..],
        &[1, 0, 9, 0],
        &[1, 0, 9, 0, 2, 0],
        // A type URL longer than its detail, an ErrorInfo without a domain, a delay of seven bytes.
        &[1, 0, 0, 0, 1, 0],
        &[1, 0, 0, 0, 2, 0, 1],
        &[1, 0, 1, 0, 1, 0],
        &[1, 0, 1, 0, 2, 9, 0],
        &[1, 0, 2, 0, 7, 0, 0, 0, 0, 0, 0, 0],
        // The second of two.
        &[2, 0, 9, 0, 0],
    ] {
        assert_eq!(with_details(details), Err(HeadError::Truncated), "{details:?}");
    }
    // An ErrorInfo without metadata, and with a key of capitals.
    for info in [&[1, 0, 1, 0, 2, 0, 0][..], &[1, 0, 1, 0, 7, 0, 0, 1, 1, b'K', 0, 0]] {
        assert!(matches!(with_details(info), Err(HeadError::Metadata(_))), "{info:?}");
    }
}

#[test]
fn details_of_later_versions_are_ignored() {
    // An unknown type, then a delay that has a tail, then one more delay: the last one counts.
    let details = [
        &[3][..],
        &[0x12, 0x34, 0, 2, 9, 9],
        &[0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0xee],
        &[0, 2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 6],
    ];
    assert_eq!(with_details(&details.concat()), Ok(Status::aborted("").with_retry_delay(Duration::from_micros(6))));
}
