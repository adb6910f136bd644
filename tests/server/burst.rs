//! Many calls that arrive together: finished work is not load, and nobody is starved.

use std::time::Duration;

use rpc_core::limit::Rate;
use sluicegate::{Executed, StatusCode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::{Got, Harness, RawClient, Req, assert_idle_soon, method, no_call_runs, raw::hello};

/// Why a test stays on plain transports.
const A_BURST: &str = "a burst is what comes in one read, and answers that are not flushed at once are load";

/// Sends so many calls in one write, and counts the good answers and the refusals.
async fn burst(peer: &mut RawClient, calls: u64, request: impl Fn(u64) -> Req) -> (u64, u64) {
    let bytes: Vec<_> = (1..=calls).map(|id| request(id).bytes()).collect();
    peer.send(&bytes.concat()).await;
    let (mut good, mut refused) = (0, 0);
    for _ in 0..calls {
        match peer.next().await {
            Got::Response { code: StatusCode::Ok, .. } => good += 1,
            Got::Response { code: StatusCode::ResourceExhausted, executed: Executed::Never, .. } => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    (good, refused)
}

#[tokio::test(start_paused = true)]
async fn sixty_four_quick_calls_in_one_write_fit_a_limit_of_eight() {
    for calls in [64, 1_000] {
        let globally = Harness::with(|builder| builder.max_concurrent_calls(8));
        let per_connection = Harness::with(|builder| builder.max_concurrent_calls_per_connection(8));
        let one = Harness::with(|builder| builder.max_concurrent_calls(1));
        for harness in [globally, per_connection, one].map(|harness| harness.plain(A_BURST)) {
            let mut peer = harness.peer().await;
            let outcome = burst(&mut peer, calls, |id| Req::new(id, method::ECHO, ("hi",))).await;
            assert_eq!(outcome, (calls, 0));
            harness.until_flushed(0).await;
            no_call_runs(&harness.handle);
            peer.part().await;
            harness.assert_idle().await;
        }
    }
}

#[tokio::test]
async fn sixty_four_quick_calls_in_one_write_fit_a_limit_of_eight_over_a_socket() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(8)).plain(A_BURST);
    let sockets = harness.sockets().await;
    let requests: Vec<_> = (1..=64_u64).map(|id| Req::new(id, method::SPIN, (1_u64,)).bytes()).collect();
    let mut socket = TcpStream::connect(sockets.address).await.unwrap();
    socket.write_all(&[hello(), requests.concat()].concat()).await.unwrap();
    let mut answers = vec![0; 256 * 1024];
    let mut len = 0;
    // HELLO and 64 answers, of which each is at least as long as an empty one.
    while harness.snapshot().calls.released < 64 || len < 64 * rpc_codec::EMPTY_RESPONSE_LEN {
        let read = timeout(Duration::from_secs(10), socket.read(&mut answers[len..])).await.unwrap().unwrap();
        assert!(read > 0, "the server has closed");
        len += read;
    }
    assert_eq!((harness.probe.finished(), harness.snapshot().refused.len()), (64, 0));
    drop(socket);
    sockets.shut_down().await;
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_pending_once_are_run_up_to_the_limit_and_the_others_refused() {
    for method in [method::NONCE, method::NONCE_SPAWNED] {
        let harness = Harness::with(|builder| builder.max_concurrent_calls(8));
        let mut peer = harness.peer().await;
        let (good, refused) = burst(&mut peer, 64, |id| Req::new(id, method, (id, 1_u32))).await;
        assert!(good >= 8, "{good} of 64 calls were served");
        assert_eq!((good + refused, harness.refused("global")), (64, refused));
        assert!(harness.probe.high_water() <= 8);
        assert_eq!(harness.probe.started() as u64, good, "what was refused was not executed");
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_used_up_cooperative_budget_is_not_taken_for_calls_in_flight() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(8)).plain(A_BURST);
    let mut peer = harness.peer().await;
    let outcome = burst(&mut peer, 64, |id| Req::new(id, method::BUDGET, (id, 10_u32))).await;
    assert_eq!(outcome, (64, 0));
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn answers_that_the_peer_does_not_take_are_load() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(8)).plain(A_BURST);
    let mut peer = harness.peer_through(4 * 1024);
    peer.shake_hands().await;
    let requests: Vec<_> = (1..=64_u64).map(|id| Req::new(id, method::LARGE, (10_000_u32,)).bytes()).collect();
    peer.send(&requests.concat()).await;
    harness.until_held(8).await;
    assert_eq!(harness.refused("global"), 56);
    let (mut good, mut refused) = (0, 0);
    for _ in 0..64 {
        match peer.next().await {
            Got::Response { code: StatusCode::Ok, .. } => good += 1,
            _ => refused += 1,
        }
    }
    assert_eq!((good, refused), (8, 56));
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_a_long_batch_lets_others_have_their_turn() {
    let harness = Harness::new().plain("it counts turns, by what is read in them");
    let (mut greedy, mut modest) = (harness.peer_through(1024 * 1024), harness.peer().await);
    greedy.shake_hands().await;
    let probe = harness.probe.clone();
    let requests: Vec<_> = (1..=5_000_u64).map(|id| Req::new(id, method::ECHO, ("hi",)).bytes()).collect();
    greedy.send(&requests.concat()).await;
    // In a task, since a runtime of one thread looks at tasks 61 times before it looks at the test.
    let first = tokio::spawn(async move {
        modest.send(&Req::new(1, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(modest.reply::<String>(1).await, "hi");
        (modest, probe.started())
    });
    let (modest, came_first) = first.await.unwrap();
    assert!(came_first < 1_000, "{came_first} calls came first");
    for id in 1..=5_000 {
        greedy.answer(id).await;
    }
    greedy.part().await;
    modest.part().await;
    harness.assert_idle().await;
}

#[tokio::test]
async fn a_method_whose_polls_are_slow_is_moved_into_tasks_and_counted() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let outcome = burst(&mut peer, 64, |id| Req::new(id, method::SPIN, (200_u64,))).await;
    assert_eq!(outcome, (64, 0));
    assert_eq!(harness.snapshot().methods_demoted, 1);
    peer.part().await;
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test(start_paused = true)]
async fn every_call_runs_in_a_task_of_its_own_if_the_server_is_told_so() {
    let harness = Harness::with(|builder| builder.spawn_calls(true).max_concurrent_calls(1_000));
    let mut peer = harness.peer().await;
    let outcome = burst(&mut peer, 500, |id| Req::new(id, method::NONCE, (id, 2_u32))).await;
    assert_eq!(outcome, (500, 0));
    assert!(harness.probe.high_water() > 1);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_burst_is_answered_in_order_and_reaches_nobody() {
    let harness = Harness::with(|builder| builder.rate(Rate::per_second(1.0).burst(1)));
    let mut peer = harness.peer().await;
    let outcome = burst(&mut peer, 1_000, |id| Req::new(id, method::ECHO, ("hi",))).await;
    assert_eq!((outcome, harness.probe.started()), ((1, 999), 1));
    peer.part().await;
    harness.assert_idle().await;
}
