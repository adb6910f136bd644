//! A panic in a service costs its call and nothing else.

use std::time::Duration;

use sluicegate::{Executed, StatusCode, client::Method};

use crate::support::{self, Got, Harness, Req, method, no_call_runs, probe::PANIC_TEXT};

const PANICS: [Method; 10] = [
    method::PANIC_AT_ONCE,
    method::PANIC_AT_ONCE_SPAWNED,
    method::PANIC_INLINE,
    method::PANIC_INLINE_SPAWNED,
    method::PANIC_LATER,
    method::PANIC_LATER_SPAWNED,
    method::PANIC_IN_DROP,
    method::PANIC_IN_DROP_SPAWNED,
    method::PANIC_IN_SERIALIZE,
    method::PANIC_IN_SERIALIZE_SPAWNED,
];

#[tokio::test(start_paused = true)]
async fn a_panic_is_told_as_internal_without_its_text_and_siblings_live() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(4));
    let client = harness.client();
    let siblings = [method::GATE, method::GATE_SPAWNED].map(|gate| tokio::spawn(client.call::<_, u64>(gate, (7_u64,))));
    harness.until_running(2).await;
    for (before, method) in PANICS.into_iter().enumerate() {
        assert_eq!(harness.snapshot().panics, before as u64);
        let error = client.call::<_, String>(method, ()).await.unwrap_err();
        let status = error.status().unwrap_or_else(|| panic!("{method}: {error:?}"));
        assert_eq!((status.code(), status.executed()), (StatusCode::Internal, Executed::Maybe), "{method}");
        assert!(!format!("{status:?}").contains(PANIC_TEXT), "{method} told its text");
        assert_eq!(harness.snapshot().panics, before as u64 + 1, "{method}");
        harness.until_flushed(2).await;
        let calls = harness.snapshot().calls;
        assert_eq!((calls.held, calls.acquired - calls.released), (2, 2), "{method}");
    }
    harness.probe.open_gate();
    for sibling in siblings {
        assert_eq!(sibling.await.unwrap().unwrap(), 7);
    }
    assert_eq!(harness.network.attempts(), 1);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn panics_mixed_with_good_calls_in_one_write_spoil_no_frame() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let mut bytes = Vec::new();
    for id in 1..=1_000_u64 {
        let request = match id % 3 {
            0 => Req::new(id, PANICS[id as usize / 3 % PANICS.len()], ()),
            1 => Req::new(id, method::ECHO, (id.to_string(),)),
            _ => Req::new(id, method::ECHO_SPAWNED, (id.to_string(),)),
        };
        bytes.extend(request.bytes());
    }
    for part in bytes.chunks(5_000) {
        peer.send(part).await;
    }
    let mut good = 0;
    for _ in 1..=1_000 {
        let Got::Response { id, code, body, .. } = peer.next().await else { panic!("an answer is missing") };
        match id.sequence() % 3 {
            0 => assert_eq!(code, StatusCode::Internal),
            _ => {
                good += 1;
                let text: String = rpc_codec::CodecId::BINCODE.decode(&body).unwrap();
                assert_eq!(text, id.sequence().to_string());
            }
        }
    }
    assert_eq!((good, harness.snapshot().panics), (667, 333));
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_drop_of_a_cancelled_or_expired_call_harms_nobody() {
    for method in [method::PANIC_WHEN_CANCELLED, method::PANIC_WHEN_CANCELLED_SPAWNED] {
        let harness = Harness::new();
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method, ()).bytes()).await;
        peer.send(&Req::new(2, method, ()).timeout(Duration::from_millis(10)).bytes()).await;
        peer.send(&Req::new(3, method::GATE, (3_u64,)).bytes()).await;
        harness.until_running(3).await;
        peer.send(&support::raw::cancel(1)).await;
        let (status, _) = peer.answer(2).await;
        assert_eq!(status.code(), StatusCode::DeadlineExceeded);
        harness.until_held(1).await;
        harness.probe.open_gate();
        assert_eq!(peer.reply::<u64>(3).await, 3);
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_drop_when_the_connection_is_lost_leaks_nothing() {
    for method in [method::PANIC_WHEN_CANCELLED, method::PANIC_WHEN_CANCELLED_SPAWNED] {
        let harness = Harness::new();
        let mut peer = harness.peer().await;
        peer.send(&[Req::new(1, method, ()).bytes(), Req::new(2, method, ()).bytes()].concat()).await;
        harness.until_running(2).await;
        drop(peer);
        harness.assert_idle().await;
    }
}
