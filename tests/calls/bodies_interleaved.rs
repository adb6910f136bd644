//! Long bodies let others pass: short calls wait for little of them, and they take turns.

use std::time::Duration;

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use hdrhistogram::Histogram;
use rpc_codec::PART_LEN;
use rpc_core::CallId;
use sluicegate::{Bytes, Client};
use tokio::{task::yield_now, time::Instant};

use crate::support::{
    Harness, Req, assert_idle_soon,
    bodies::{KIB, MAX_AHEAD, MIB, NARROW, connected, huge, is_alive, serve, serve_huge, wire},
    feed::{FeedClient, FeedServer, named},
    method,
    parts::{CONT, REQUEST, RESPONSE, frames, response_opening, response_part, untouched},
    raw::response,
    shims::times_in,
    within,
};

const ITEM: u8 = 5;

#[tokio::test(start_paused = true)]
async fn a_short_answer_waits_for_little_of_a_long_reply() {
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let harness = serve_huge().plain("it counts bytes");
        let mut wire = wire(&harness, NARROW).await;
        let len = 64 * MIB;
        wire.send(&Req::new(1, method, (len as u32,)).bytes()).await;
        let first = wire.piece().await;
        let (mut left, mut most) = (first.body_len() - first.body.len(), 0);
        for id in 2..300 {
            wire.send(&Req::new(id, method::ECHO, ("short",)).bytes()).await;
            let (answer, before) = wire.up_to(|piece| piece.kind == RESPONSE).await;
            assert_eq!(answer.id, CallId::new(id, 0));
            most = most.max(before);
            left -= before - before.div_ceil(PART_LEN + 16) * 16;
        }
        assert!(most <= MAX_AHEAD, "{most} bytes of the long reply came first");
        assert!(left > 0, "the long reply is still under way");
        while left > 0 {
            let piece = wire.piece().await;
            left -= piece.body.len();
            assert_eq!(piece.more, left > 0);
        }
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn long_replies_take_turns() {
    let harness = serve_huge().plain("it counts bytes");
    let mut wire = wire(&harness, NARROW).await;
    for id in 1..=3 {
        wire.send(&Req::new(id, method::LARGE, (4 * MIB as u32,)).bytes()).await;
    }
    let mut got = [0_usize; 4];
    loop {
        let piece = wire.piece().await;
        got[piece.id.sequence() as usize] += piece.body.len();
        if piece.kind == CONT && !piece.more {
            break;
        }
    }
    assert!(got[1..].iter().all(|&got| got + 4 * PART_LEN >= 4 * MIB), "{got:?}");
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_request_waits_for_little_of_a_long_one() {
    let (client, _servers, mut wire) = connected(NARROW, |builder| builder).await;
    let body = Bytes::from(vec![7; 64 * MIB]);
    let long = tokio::spawn(client.call_bytes(method::BYTES, body));
    let first = wire.piece().await;
    assert!(first.kind == REQUEST && first.body_len() == 64 * MIB);
    let mut most = 0;
    for n in 0..200_u64 {
        let short = tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 0_u32)));
        yield_now().await;
        let (request, before) = wire.up_to(|piece| piece.kind == REQUEST).await;
        most = most.max(before);
        wire.send(&response(request.id, &n)).await;
        assert_eq!(short.await.unwrap().unwrap(), n);
    }
    assert!(most <= MAX_AHEAD, "{most} bytes of the long request came first");
    wire.up_to(|piece| piece.kind == CONT && !piece.more).await;
    wire.send(&response_opening(first.id, 3, b"al")).await;
    wire.send(&response_part(first.id, b"l", false)).await;
    assert_eq!(long.await.unwrap().unwrap(), "all");
}

#[tokio::test(start_paused = true)]
async fn a_short_answer_waits_for_little_of_a_long_item() {
    // Behind one its service has returned, and behind the first of two it waits for credit.
    for items in 1..=2_u64 {
        let server = FeedServer::with(huge).plain("it counts bytes");
        let mut wire = wire(&server.harness, NARROW).await;
        let len = 64 * MIB;
        wire.send(&Req::new(1, named("bytes"), (items, len as u32)).takes().bytes()).await;
        let first = wire.piece().await;
        assert!(first.kind == ITEM && first.more, "{}", first.kind);
        let (mut left, mut most) = (len - first.body.len(), 0);
        for id in 2..300 {
            wire.send(&Req::new(id, method::ECHO, ("short",)).bytes()).await;
            let mut before = 0;
            let answer = loop {
                let piece = wire.piece().await;
                if piece.kind == RESPONSE {
                    break piece;
                }
                (before, left) = (before + piece.wire_len(), left - piece.body.len());
            };
            assert_eq!(answer.id, CallId::new(id, 0));
            most = most.max(before);
        }
        assert!(most <= MAX_AHEAD, "{most} bytes of the long item came first");
        assert!(left > 0, "the long item is still under way");
        assert_eq!(server.feeder.running() as u64, items - 1);
        while left > 0 {
            let piece = wire.piece().await;
            left -= piece.body.len();
            assert_eq!((piece.kind, piece.more), (CONT, left > 0));
        }
        if items == 1 {
            assert_eq!(wire.piece().await.kind, RESPONSE);
        }
        drop(wire);
        server.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_request_waits_for_little_of_a_long_item() {
    let (client, _servers, mut wire) = connected(NARROW, |builder| builder).await;
    let feed: FeedClient = client.service();
    let (mut blocks, measured) = feed.measure().open().await.unwrap();
    blocks.send(Bytes::from(vec![7; 64 * MIB])).await.unwrap();
    let (first, _) = wire.up_to(|piece| piece.kind == ITEM).await;
    let mut most = 0;
    for n in 0..200_u64 {
        let short = tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 0_u32)));
        yield_now().await;
        let (request, before) = wire.up_to(|piece| piece.kind == REQUEST).await;
        most = most.max(before);
        wire.send(&response(request.id, &n)).await;
        assert_eq!(short.await.unwrap().unwrap(), n);
    }
    assert!(most <= MAX_AHEAD, "{most} bytes of the long item came first");
    wire.up_to(|piece| piece.kind == CONT && !piece.more).await;
    wire.send(&response(first.id, &7_u64)).await;
    assert_eq!(within(measured).await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn short_calls_are_answered_while_a_long_request_is_under_way() {
    let harness = serve_huge();
    let mut wire = wire(&harness, 64 * KIB).await;
    let body = vec![7; 64 * MIB];
    for (n, frame) in frames(|| untouched(1, method::BYTES), 1, &body, 0, PART_LEN).iter().enumerate() {
        if n % 64 == 1 {
            is_alive(&mut wire, n as u64 + 1).await;
        }
        wire.send(frame).await;
    }
    let piece = wire.piece().await;
    assert!(wire.whole(piece).await == body);
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_calls_over_a_socket_hardly_feel_a_long_body_beside_them() {
    let harness = Harness::with(huge).plain("it measures");
    let sockets = harness.sockets().await;
    let client = sockets.client_builder().max_message(65 * MIB as u32).build();
    short_calls(&client, 200, || false).await;
    let solo = short_calls(&client, 2_000, || false).await;
    let reply = client.call::<_, String>(method::LARGE, (64 * MIB as u32,));
    let beside_reply = beside(&client, async move { reply.await.unwrap().len() }).await;
    let request = client.call_bytes(method::BYTES, Bytes::from(vec![7; 64 * MIB]));
    let beside_request = beside(&client, async move { request.await.unwrap().len() }).await;
    // As loose as a machine with other work needs.
    let most = 20 * solo.max(1_000);
    assert!(beside_reply < most && beside_request < most, "{solo}, {beside_reply}, {beside_request} us");
    drop(client);
    sockets.shut_down().await;
    assert_idle_soon(&harness.handle).await;
}

/// The p99 of short calls while `long` goes on, in microseconds.
async fn beside(client: &Client, long: impl Future<Output = usize> + Send + 'static) -> u64 {
    let long = tokio::spawn(long);
    let p99 = short_calls(client, 1_000_000, || long.is_finished()).await;
    assert!(within(long).await.unwrap() >= 64 * MIB);
    p99
}

async fn short_calls(client: &Client, calls: usize, enough: impl Fn() -> bool) -> u64 {
    let mut times = Histogram::<u64>::new(3).unwrap();
    for _ in 0..calls {
        let began = std::time::Instant::now();
        let reply = client.call::<_, String>(method::ECHO, ("x".repeat(KIB),)).await;
        assert_eq!(reply.unwrap().len(), KIB);
        times.saturating_record(began.elapsed().as_micros() as u64);
        if enough() {
            break;
        }
    }
    times.value_at_quantile(0.99)
}

#[tokio::test(start_paused = true)]
async fn long_calls_both_ways_through_a_narrow_pipe_end() {
    // Both ends want to write more than the pipe takes, and the server is above its mark.
    for pipe in [100, 1_000, 16 * KIB] {
        let harness = serve(|builder| builder.write_high_water(1_000)).plain("megabytes go by");
        let client = harness.client_through(pipe).build();
        let calls = (0..20_usize).map(|n| {
            let body = Bytes::from(vec![n as u8; 150_000]);
            let call = client.call_bytes(if n % 2 == 0 { method::BYTES } else { method::BYTES_SPAWNED }, body.clone());
            async move { (call.await, body) }
        });
        for (reply, body) in within(join_all(calls)).await {
            assert!(reply.unwrap() == body);
        }
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn long_calls_that_begin_at_once_on_one_connection_all_end_and_none_waits_for_the_clock() {
    let calls = times_in(5_000, 100);
    let harness = serve(|builder| {
        let builder = builder.body_budget(u64::MAX / 2).body_budget_per_connection(u64::MAX / 2);
        builder.max_concurrent_calls_per_connection(64).write_high_water(64 * KIB)
    });
    let harness = harness.plain("megabytes go by");
    let client = harness.client_through(4 * KIB).build();
    let calls = (0..calls).map(|n| {
        let body = Bytes::from(vec![n as u8; 100 * KIB]);
        let call = client.call_bytes(if n % 2 == 0 { method::BYTES } else { method::BYTES_SPAWNED }, body.clone());
        async move { call.await.unwrap() == body }
    });
    // Whoever waits for something else than the other end would let the time go on.
    let began = Instant::now();
    let mut last = began;
    let mut ending: FuturesUnordered<_> = calls.collect();
    while let Some(whole) = ending.next().await {
        let gap = last.elapsed();
        assert!(whole && gap <= Duration::from_millis(100), "nothing came for {gap:?}");
        last = Instant::now();
    }
    drop(ending);
    drop(client);
    harness.assert_idle().await;
}
