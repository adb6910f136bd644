//! Calls that cannot be: each is told why, was never executed, and costs the connection nothing.

use rpc_codec::CodecId;
use rpc_core::MethodId;
use sluicegate::{CallError, Executed, StatusCode, client::Method};

use crate::support::{
    Got, Harness, Req, method, no_call_runs,
    raw::frame,
    shims::{is_full, times_in},
    traces::Traces,
};

const REQUEST: u8 = 2;

/// Sends a request that is refused, then a good one behind it.
async fn refused(harness: &Harness, bytes: &[u8], code: StatusCode, reason: &str, figures: &[(&str, &str)]) {
    let mut peer = harness.peer().await;
    peer.send(&[bytes.to_vec(), Req::new(2, method::ECHO, ("fine",)).bytes()].concat()).await;
    let (status, _) = peer.answer(1).await;
    assert_eq!((status.code(), status.executed()), (code, Executed::Never), "{reason}");
    let info = status.error_info().unwrap_or_else(|| panic!("{status:?}"));
    assert_eq!((&*info.reason, &*info.domain), (reason, "sluicegate"));
    for (key, value) in figures {
        assert_eq!(info.metadata.get_str(key), Some(*value), "{reason}: {key}");
    }
    assert_eq!(peer.reply::<String>(2).await, "fine");
    harness.until_flushed(0).await;
    no_call_runs(&harness.handle);
    assert_eq!(harness.refused(reason), 1);
    peer.part().await;
    harness.assert_idle().await;
    assert_eq!(harness.probe.started(), 1, "only the good call reached the service");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_method_is_unimplemented() {
    let request = Req::new(1, method::UNKNOWN, ()).bytes();
    refused(&Harness::new(), &request, StatusCode::Unimplemented, "UNKNOWN_METHOD", &[]).await;
}

#[tokio::test(start_paused = true)]
async fn an_unsupported_codec_costs_its_call_and_is_named() {
    for codec in [CodecId::PROTOBUF, CodecId::from_wire(6), CodecId::from_wire(77)] {
        let request = Req::new(1, method::ECHO, ("hi",)).head(|head| head.codec = codec).bytes();
        let figures = [("codec", &*codec.to_wire().to_string())];
        refused(&Harness::new(), &request, StatusCode::Unimplemented, "UNSUPPORTED_CODEC", &figures).await;
    }
}

#[cfg(feature = "json")]
#[tokio::test(start_paused = true)]
async fn a_codec_that_the_server_was_told_not_to_take_is_refused() {
    let harness = Harness::with(|builder| builder.codecs([CodecId::BINCODE]));
    let request = Req::new(1, method::ECHO, ()).head(|head| head.codec = CodecId::JSON).body(*b"[\"hi\"]").bytes();
    refused(&harness, &request, StatusCode::Unimplemented, "UNSUPPORTED_CODEC", &[("codec", "3")]).await;
}

#[tokio::test(start_paused = true)]
async fn bytes_for_a_typed_method_and_a_typed_body_for_a_method_of_bytes_are_refused() {
    let untouched = Req::new(1, method::ECHO, ("hi",)).head(|head| head.codec = CodecId::BYTES).bytes();
    refused(&Harness::new(), &untouched, StatusCode::Unimplemented, "UNSUPPORTED_CODEC", &[("codec", "0")]).await;
    let typed = Req::new(1, method::BYTES, ("hi",)).bytes();
    refused(&Harness::new(), &typed, StatusCode::Unimplemented, "UNSUPPORTED_CODEC", &[("codec", "1")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_compressed_body_is_refused() {
    let request = Req::new(1, method::ECHO, ("hi",)).head(|head| head.compression = 4).bytes();
    let figures = [("compression", "4")];
    refused(&Harness::new(), &request, StatusCode::Unimplemented, "UNSUPPORTED_COMPRESSION", &figures).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_longer_than_a_message_may_be_is_refused_with_both_lengths() {
    let harness = Harness::with(|builder| builder.max_message(1_000));
    let request = Req::new(1, method::ECHO, ("x".repeat(2_000),));
    let len = request.body.len().to_string();
    let figures = [("max_len", "1000"), ("len", &*len)];
    refused(&harness, &request.bytes(), StatusCode::ResourceExhausted, "MESSAGE_TOO_LARGE", &figures).await;
}

#[tokio::test(start_paused = true)]
async fn a_malformed_head_costs_its_call() {
    let good = Req::new(1, method::ECHO, ("hi",)).bytes();
    let (head_len, whole) = (usize::from(good[7]), &good[16..]);
    let (head, body) = whole.split_at(head_len);
    let cut_short = frame(REQUEST, 0, 1, &head[..20], body);
    let wrong_length = frame(REQUEST, 0, 1, head, &[body, b"more"].concat());
    let bad_metadata = frame(REQUEST, 0, 1, &[&head[..28], &[1, 3, b'K', b'E', b'Y', 0, 0]].concat(), body);
    let too_many_pairs = frame(REQUEST, 0, 1, &[&head[..28], &[200]].concat(), body);
    for bytes in [cut_short, wrong_length, bad_metadata, too_many_pairs] {
        refused(&Harness::new(), &bytes, StatusCode::InvalidArgument, "MALFORMED_REQUEST", &[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tail_of_the_head_that_this_version_does_not_know_is_ignored() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let good = Req::new(1, method::ECHO, ("hi",)).bytes();
    let (head, body) = good[16..].split_at(usize::from(good[7]));
    peer.send(&frame(REQUEST, 0xf0, 1, &[head, b"of a later version"].concat(), body)).await;
    assert_eq!(peer.reply::<String>(1).await, "hi");
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn arguments_that_cannot_be_decoded_are_invalid_and_the_service_is_not_called() {
    let bad_utf8 = [2, 0xff, 0xfe];
    let cut_short = [200];
    let trailing = b"\x02hi and more".to_vec();
    let claims_too_much = [0xfd, 0, 0, 0, 0, 0, 1, 0, 0];
    for method in [method::ECHO, method::ECHO_SPAWNED] {
        let harness = Harness::new();
        let mut peer = harness.peer().await;
        let bodies = [&bad_utf8[..], &cut_short, &trailing, &claims_too_much, &[]];
        for (id, body) in (1..).zip(bodies) {
            peer.send(&Req::new(id, method, ()).body(body).bytes()).await;
            let (status, _) = peer.answer(id).await;
            assert_eq!((status.code(), status.executed()), (StatusCode::InvalidArgument, Executed::Never), "{body:?}");
            harness.until_flushed(0).await;
            no_call_runs(&harness.handle);
        }
        assert_eq!(harness.probe.started(), 0);
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn bad_calls_between_good_ones_spoil_none_of_them() {
    let logged = Traces::default();
    let _listening = tracing::subscriber::set_default(logged.clone());
    let harness = Harness::with(|builder| builder.max_concurrent_calls(4));
    let mut peer = harness.peer().await;
    let mut id = 0;
    for _ in 0..times_in(5_000, 200) {
        let mut bytes = Vec::new();
        let mut next = |request: fn(u64) -> Vec<u8>| {
            id += 1;
            bytes.extend(request(id));
        };
        next(|id| Req::new(id, method::UNKNOWN, ()).bytes());
        next(|id| Req::new(id, method::ECHO, (id.to_string(),)).bytes());
        next(|id| Req::new(id, method::ECHO, ()).bytes());
        next(|id| frame(REQUEST, 0, id, &[0; 8], &[]));
        next(|id| Req::new(id, method::ECHO_SPAWNED, (id.to_string(),)).bytes());
        next(|id| Req::new(id, method::ECHO_SPAWNED, ()).bytes());
        peer.send(&bytes).await;
        for _ in 0..6 {
            let Got::Response { id, code, body, .. } = peer.next().await else { panic!("an answer is missing") };
            let good = [2, 5].contains(&(id.sequence() % 6));
            assert_eq!(code == StatusCode::Ok, good, "{id}: {code:?}");
            if good {
                assert_eq!(CodecId::BINCODE.decode::<String>(&body).unwrap(), id.sequence().to_string());
            }
        }
        harness.until_flushed(0).await;
    }
    peer.part().await;
    harness.assert_idle().await;
    assert_eq!(logged.troubles(), 0, "what costs a call is told its caller, and not our user");
}

/// Sends requests until all are answered; each is refused with `code` for `reason`, and none reaches the service.
async fn all_refused(requests: impl Iterator<Item = Req>, code: StatusCode, reason: Option<&str>) {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let mut count = 0;
    for request in requests {
        count += 1;
        let request = request.with_id(count);
        peer.send(&request.bytes()).await;
        let (status, _) = peer.answer(count).await;
        let what = format!("{:?}: {status:?}", request.head);
        assert_eq!((status.code(), status.executed()), (code, Executed::Never), "{what}");
        if let Some(reason) = reason {
            assert_eq!(&*status.error_info().expect("a reason").reason, reason, "{what}");
        }
    }
    assert!(count > 0);
    assert_eq!((harness.probe.started(), harness.snapshot().protocol_errors), (0, 0));
    peer.part().await;
    harness.assert_idle().await;
}

/// Methods that exist: all in the long form, else one of each kind.
fn methods() -> Vec<Method> {
    let few = [method::ECHO, method::GATE_SPAWNED, method::BYTES];
    if is_full() { method::ALL.iter().copied().filter(|&m| m != method::UNKNOWN).collect() } else { few.to_vec() }
}

fn takes_bytes(method: Method) -> bool {
    method == method::BYTES || method == method::BYTES_SPAWNED
}

/// A body that nobody can decode: whoever tries says something else.
fn undecodable(method: Method) -> Req {
    Req::new(1, method, ()).body(*b"\xff\xff\xff")
}

#[tokio::test(start_paused = true)]
async fn no_other_codec_or_compression_makes_any_method_decode_a_body() {
    let codecs = methods().into_iter().flat_map(|method| {
        let others = (0..=u8::MAX).map(CodecId::from_wire).filter(move |codec| match takes_bytes(method) {
            true => *codec != CodecId::BYTES,
            false => *codec == CodecId::BYTES || !CodecId::supported().contains(codec),
        });
        others.map(move |codec| undecodable(method).head(|head| head.codec = codec))
    });
    all_refused(codecs, StatusCode::Unimplemented, Some("UNSUPPORTED_CODEC")).await;
    let compressions = methods().into_iter().flat_map(|method| {
        let codec = if takes_bytes(method) { CodecId::BYTES } else { CodecId::BINCODE };
        let one =
            move |compression| undecodable(method).head(|head| (head.codec, head.compression) = (codec, compression));
        (1..=u8::MAX).map(one)
    });
    all_refused(compressions, StatusCode::Unimplemented, Some("UNSUPPORTED_COMPRESSION")).await;
}

#[tokio::test(start_paused = true)]
async fn ids_of_methods_choose_among_those_that_are_registered_and_nothing_else() {
    let known: Vec<_> = method::ALL.iter().map(|method| method.id()).collect();
    // Neighbours of each, and what a table may be indexed by.
    let near = known.iter().flat_map(|id| (0..64).map(|bit| MethodId::from_wire(id.to_wire() ^ 1 << bit)));
    let few = (0..100).chain(u64::MAX - 100..=u64::MAX).map(MethodId::from_wire);
    let others: Vec<_> = near.chain(few).filter(|id| !known.contains(id)).collect();
    let one_in = others.len() / times_in(others.len() as u64, 500) as usize;
    let requests = others.into_iter().step_by(one_in).map(|id| undecodable(method::ECHO).head(|head| head.method = id));
    all_refused(requests, StatusCode::Unimplemented, Some("UNKNOWN_METHOD")).await;
}

#[tokio::test(start_paused = true)]
async fn arguments_of_another_method_are_invalid_for_every_one() {
    let texts = [method::ECHO, method::FAIL, method::ECHO_SPAWNED, method::FAIL_SPAWNED];
    let numbers = [method::SLEEP, method::GATE, method::SPIN, method::BLOCK, method::GATE_SPAWNED];
    let pairs = [method::NONCE, method::NONCE_SPAWNED, method::BUDGET];
    let nothing = [method::CONTEXT, method::HOLD, method::WATCHED, method::PANIC_LATER, method::HOLD_SPAWNED];
    let text = || Req::new(1, method::UNKNOWN, ("hi",)).body;
    let number = || Req::new(1, method::UNKNOWN, (7_u64,)).body;
    let pair = || Req::new(1, method::UNKNOWN, (7_u64, 8_u32)).body;
    let swapped = [
        (&texts[..], [number(), pair(), Vec::new()]),
        (&numbers, [text(), pair(), Vec::new()]),
        (&pairs, [text(), number(), Vec::new()]),
        (&nothing, [text(), number(), pair()]),
    ];
    let requests = swapped.into_iter().flat_map(|(methods, bodies)| {
        let each = move |&method| bodies.clone().map(|body| Req::new(1, method, ()).body(body));
        methods.iter().flat_map(each).collect::<Vec<_>>()
    });
    all_refused(requests, StatusCode::InvalidArgument, None).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_calls_with_other_types_is_told_so_by_whoever_finds_it() {
    let harness = Harness::new();
    let client = harness.client();
    // Too few arguments: the server finds it.
    let error = client.call::<_, String>(method::ECHO, ()).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::InvalidArgument, Executed::Never));
    // Another reply: the client finds it.
    let error = client.call::<_, u8>(method::ECHO, ("hi".to_owned(),)).await.unwrap_err();
    assert!(matches!(error, CallError::Decode { .. }), "{error:?}");
    assert_eq!((error.code(), error.executed()), (StatusCode::Internal, Executed::Finished));
    let error = client.call_bytes(method::ECHO, sluicegate::Bytes::new()).await.unwrap_err();
    assert_eq!(error.code(), StatusCode::Unimplemented);
    let error = client.call::<_, ()>(Method::new("No", "such"), ()).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unimplemented, Executed::Never));
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_longer_than_the_server_takes_is_not_even_sent() {
    let harness = Harness::with(|builder| builder.max_message(100_000));
    let client = harness.client();
    let fits: String = client.call(method::ECHO, ("x".repeat(90_000),)).await.unwrap();
    assert_eq!(fits.len(), 90_000);
    let error = client.call::<_, String>(method::ECHO, ("x".repeat(110_000),)).await.unwrap_err();
    let CallError::RequestTooLarge { len, max, ref peer } = error else { panic!("{error:?}") };
    assert_eq!((len, max, &**peer), (110_005, 100_000, "the test server"));
    assert_eq!((error.executed(), harness.probe.started()), (Executed::Never, 1));
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn metadata_that_breaks_a_rule_fails_its_call_before_it_is_sent() {
    let harness = Harness::new();
    let client = harness.client();
    let call = client.call::<_, String>(method::ECHO, ("hi".to_owned(),)).metadata("Not A Key", "x");
    let error = call.await.unwrap_err();
    assert!(matches!(error, CallError::Metadata(_)), "{error:?}");
    assert_eq!((error.executed(), harness.network.attempts()), (Executed::Never, 0));
    drop(client);
    harness.assert_idle().await;
}
