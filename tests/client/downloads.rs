//! Long replies as a client sees them: given up, too long, malformed, or in parts that nobody can
//! place.

use rpc_codec::PART_LEN;
use rpc_core::CallId;
use sluicegate::{CallError, Client, Executed, StatusCode, client::LostCause};
use tokio::task::{JoinHandle, yield_now};

use crate::support::{
    bodies::{KIB, MIB, connected, next_call_is_fine, serve_huge, until_given_back},
    method,
    parts::{CANCEL, GO_AWAY, Pieces, response_opening, response_part},
    raw::response,
    within,
};

#[tokio::test(start_paused = true)]
async fn what_comes_of_a_reply_behind_its_cancel_is_dropped() {
    let (client, _servers, mut wire) = connected(64 * KIB, |builder| builder).await;
    let call = tokio::spawn(client.call::<_, String>(method::LARGE, (200_000_u32,)));
    let id = wire.piece().await.id;
    wire.send(&response_opening(id, 200_005, &[7; 100])).await;
    wire.send(&response_part(id, &[7; PART_LEN], true)).await;
    yield_now().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    let (cancel, _) = wire.up_to(|piece| piece.kind == CANCEL).await;
    assert_eq!(cancel.id, id);
    wire.send(&response_part(id, &[7; PART_LEN], true)).await;
    let next = next_call_is_fine(&client, &mut wire, id, 0).await;
    assert_eq!(next.slot(), id.slot());
    wire.send(&response_part(id, &[7; 10], false)).await;
    next_call_is_fine(&client, &mut wire, id, 0).await;
    assert!(client.snapshot().connected);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_given_up_is_given_up_by_the_server_as_well() {
    let harness = serve_huge().plain("it counts bytes");
    let client = harness.client_builder().max_message(65 * MIB as u32).build();
    assert_eq!(client.call::<_, u64>(method::NONCE, (1_u64, 0_u32)).await.unwrap(), 1);
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let call = tokio::spawn(client.call::<_, String>(method, (64 * MIB as u32,)));
        harness.until("it is under way", |harness| harness.snapshot().buffered_bytes > MIB as u64).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        until_given_back(&harness).await;
        harness.until("nothing is left to be sent", |harness| harness.snapshot().buffered_bytes == 0).await;
        assert_eq!(client.call::<_, u64>(method::NONCE, (2_u64, 0_u32)).await.unwrap(), 2);
    }
    assert_eq!(harness.network.attempts(), 1);
    drop(client);
    harness.assert_idle().await;
}

/// A client with two calls that want a text, and the server that has read them.
async fn two_calls() -> (Client, Pieces, [JoinHandle<Result<String, CallError>>; 2], [CallId; 2]) {
    let (client, _servers, mut wire) = connected(64 * KIB, |builder| builder).await;
    let calls = [1_u32, 2].map(|n| tokio::spawn(client.call::<_, String>(method::LARGE, (n,))));
    let ids = [wire.piece().await.id, wire.piece().await.id];
    (client, wire, calls, ids)
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_parts_nobody_can_place_fails_the_calls_that_wait() {
    let never = CallId::new(99, 0);
    let begun = |id| response_opening(id, 100_000, &[7; 10]);
    type Break = Box<dyn Fn(CallId) -> Vec<u8>>;
    let cases: [(&str, Break, &str); 8] = [
        (
            "a part too short",
            Box::new(move |id| [begun(id), response_part(id, &[7; 4_095], true)].concat()),
            "too short",
        ),
        ("a part without an answer", Box::new(|id| response_part(id, b"part", false)), "without an answer"),
        ("a long one", Box::new(|id| response_part(id, &[7; 5_000], true)), "without an answer"),
        ("two answers in parts", Box::new(move |id| [begun(id), begun(id)].concat()), "twice"),
        ("an answer behind a part", Box::new(move |id| [begun(id), response(id, &"x")].concat()), "twice"),
        ("a part for what never was", Box::new(move |_| response_part(never, b"part", false)), "never was"),
        ("a part for the connection", Box::new(|_| response_part(CallId::CONNECTION, b"part", false)), "never was"),
        ("parts of what never was", Box::new(move |_| begun(never)), "never was"),
    ];
    for (what, broken, names) in cases {
        let (client, mut wire, calls, ids) = two_calls().await;
        wire.send(&broken(ids[0])).await;
        for call in calls {
            let error = within(call).await.unwrap().unwrap_err();
            let CallError::Lost { source: LostCause::Protocol(message), executed, .. } = error else {
                panic!("{what}: {error:?}")
            };
            assert!(message.contains(names), "{what}: {message}");
            assert_eq!(executed, Executed::Maybe, "{what}");
        }
        assert_eq!(client.snapshot().calls, 0);
        assert_eq!(wire.piece().await.kind, GO_AWAY, "{what}");
        assert!(wire.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_whose_parts_do_not_add_up_costs_its_call() {
    let parts = |id: CallId, parts: &[(usize, bool)]| {
        let mut bytes = response_opening(id, 10_000, &[7; 100]);
        parts.iter().for_each(|&(len, more)| bytes.extend(response_part(id, &vec![7; len], more)));
        bytes
    };
    let cases: [(&str, &[(usize, bool)]); 4] = [
        ("one byte too much", &[(5_000, true), (4_901, false)]),
        ("one byte too little", &[(5_000, true), (4_899, false)]),
        ("complete, and more announced", &[(5_000, true), (4_900, true), (4_096, true), (4_096, false)]),
        ("too much, and more announced", &[(20_000, true), (4_096, false)]),
    ];
    for (what, lens) in cases {
        let (client, mut wire, [bad, good], ids) = two_calls().await;
        wire.send(&parts(ids[0], lens)).await;
        let error = within(bad).await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::MalformedResponse { .. }), "{what}: {error:?}");
        assert_ne!(error.executed(), Executed::Never);
        wire.send(&response(ids[1], &"good")).await;
        assert_eq!(within(good).await.unwrap().unwrap(), "good", "{what}");
        assert_eq!(client.snapshot().calls, 0);
    }
    // MORE on a body that is complete, or empty.
    for (len, first) in [(4, &b"four"[..]), (3, b"four"), (0, b"")] {
        let (client, mut wire, [bad, good], ids) = two_calls().await;
        wire.send(&response_opening(ids[0], len, first)).await;
        wire.send(&response_part(ids[0], &[7; 5_000], true)).await;
        let error = within(bad).await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::MalformedResponse { .. }), "{error:?}");
        wire.send(&response(ids[1], &"good")).await;
        assert_eq!(within(good).await.unwrap().unwrap(), "good");
        assert_eq!(client.snapshot().calls, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_says_it_is_too_long_costs_its_call_at_once() {
    for len in [4 * MIB + 1, u32::MAX as usize] {
        let (client, mut wire, [bad, good], ids) = two_calls().await;
        wire.send(&response_opening(ids[0], len, &[7; 10])).await;
        let error = within(bad).await.unwrap().unwrap_err();
        let CallError::ResponseTooLarge { len: said, max, .. } = error else { panic!("{error:?}") };
        assert_eq!((said, max, error.executed()), (len as u64, 4 * MIB as u64, Executed::Finished));
        for _ in 0..10 {
            wire.send(&response_part(ids[0], &[7; PART_LEN], true)).await;
        }
        wire.send(&response(ids[1], &"good")).await;
        assert_eq!(within(good).await.unwrap().unwrap(), "good");
        assert!(client.snapshot().connected && client.snapshot().calls == 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_goes_on_in_parts_is_an_error() {
    let (client, mut wire, [bad, good], ids) = two_calls().await;
    let mut bytes = response_opening(ids[0], 10_000, &[7; 10]);
    bytes[16] = 5;
    wire.send(&bytes).await;
    assert_eq!(within(bad).await.unwrap().unwrap_err().code(), StatusCode::NotFound);
    wire.send(&response_part(ids[0], &[7; 9_990], false)).await;
    wire.send(&response(ids[1], &"good")).await;
    assert_eq!(within(good).await.unwrap().unwrap(), "good");
    assert!(client.snapshot().connected);
}
