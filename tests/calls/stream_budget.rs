//! What clients' streams take of the budgets of bytes: a promise when they open, and what is in them when it has come.

use std::time::Duration;

use futures::stream;
use rpc_codec::{CallKind, MIN_PART_LEN, encode_ping};
use sluicegate::{Bytes, CallError, Executed, Status, StatusCode};
use tokio::time::{Instant, sleep, sleep_until};

use crate::support::{
    Got, Req,
    bodies::{KIB, MIB, is_alive, status_of, wire},
    feed::{FeedClient, FeedServer, named},
    method,
    parts::{CONT, Pieces, RESPONSE, encoded, part},
    raw::{frame, hello_with},
};

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: usize = 64 * KIB;
const ITEM: u8 = 5;

/// What the server has taken of its budget.
fn taken(server: &FeedServer) -> usize {
    server.snapshot().body_bytes as usize
}

/// The status of a call that was ended, by a limit of this name if it is one.
fn assert_ended(status: &Status, executed: Executed, code: StatusCode, reason: &str, limit: &str) {
    assert_eq!((status.code(), status.executed()), (code, executed), "{status:?}");
    let info = status.error_info().unwrap_or_else(|| panic!("{status:?}"));
    assert_eq!((&*info.reason, info.metadata.get_str("limit").unwrap_or("")), (reason, limit));
}

#[tokio::test(start_paused = true)]
async fn sixteen_connections_full_of_idle_streams_leave_the_servers_budget_to_others() {
    // All defaults: so many windows are what one connection may promise, and together all of the server's budget.
    let server = FeedServer::new().large();
    let mut idle = Vec::new();
    for _ in 0..16 {
        let mut peer = server.harness.peer().await;
        let open: Vec<u8> = (1..=256).flat_map(|id| Req::new(id, named("sum"), (0_u64,)).sends().bytes()).collect();
        peer.send(&open).await;
        peer.send(&Req::new(257, named("sum"), (0_u64,)).sends().bytes()).await;
        let (status, _) = peer.answer(257).await;
        assert_ended(&status, Executed::Never, StatusCode::ResourceExhausted, "BODY_BUDGET", "connection bodies");
        idle.push(peer);
    }
    assert_eq!((server.snapshot().streams, taken(&server)), (16 * 256, 0));
    let client = server.client();
    let feed: FeedClient = client.service();
    let long = Bytes::from(vec![7; 3 * MIB]);
    let echo: Bytes = client.call_bytes(method::BYTES, long.clone()).await.unwrap();
    assert!(echo == long);
    let blocks = (0..100).map(|_| Bytes::from(vec![7; 100_000]));
    assert_eq!(feed.measure().send_all(stream::iter(blocks)).await.unwrap(), 10_000_000);
    server.until("all is back", |server| taken(server) == 0).await;
    drop((feed, client, idle));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn full_queues_are_charged_and_refuse_others_and_drained_ones_give_back() {
    let budget = 4 * WINDOW as u64;
    let server = FeedServer::with(|builder| {
        builder.body_budget(budget).body_budget_per_connection(budget).max_message(2 * WINDOW as u32)
    })
    .large();
    // What it is sent back it does not take: the services wait with all that is behind.
    let (stuck, other) = (server.client_builder().stream_window(1).build(), server.client());
    let feed: FeedClient = stuck.service();
    let mut full = Vec::new();
    for n in 1..=4 {
        let (mut up, down) = feed.echo().open().await.unwrap();
        server.until_running(n).await;
        assert_eq!(taken(&server), (n - 1) * WINDOW, "an empty stream takes nothing");
        for _ in 0..WINDOW / KIB {
            up.send(Bytes::from(vec![n as u8; KIB])).await.unwrap();
        }
        server.until("the window is full", |server| taken(server) == n * WINDOW).await;
        full.push((up, down));
    }
    let others: FeedClient = other.service();
    let (mut up, measured) = others.measure().open().await.unwrap();
    up.send(Bytes::from_static(b"one too many")).await.unwrap();
    let error = measured.await.unwrap_err();
    assert_ended(
        error.status().unwrap(),
        Executed::Maybe,
        StatusCode::ResourceExhausted,
        "BODY_BUDGET",
        "global bodies",
    );
    assert!(matches!(up.send(Bytes::new()).await, Err(CallError::Ended { .. })));
    let refused = other.call_bytes(method::BYTES, Bytes::from(vec![7; 100_000])).await.unwrap_err();
    assert_eq!(&*refused.status().unwrap().error_info().unwrap().reason, "BODY_BUDGET");
    assert_eq!(server.harness.refused("global bodies"), 2);
    assert_eq!(others.hello("you".to_owned()).await.unwrap(), "hello, you", "it costs the call and not the connection");
    // One is taken, and there is room again.
    let (mut up, mut down) = full.pop().unwrap();
    for _ in 0..WINDOW / KIB {
        assert_eq!(down.message().await.unwrap().unwrap()[..2], [4, 4]);
    }
    server.until("it has given back", |server| taken(server) == 3 * WINDOW).await;
    assert_eq!(others.measure().send_all(stream::iter([Bytes::from(vec![7; 50_000])])).await.unwrap(), 50_000);
    // And the one that was drained fills anew.
    for _ in 0..20 {
        up.send(Bytes::from(vec![4; KIB])).await.unwrap();
    }
    server.until("it takes again", |server| taken(server) >= 3 * WINDOW + 19 * KIB).await;
    drop((up, down));
    server.until("its call has ended", |server| taken(server) == 3 * WINDOW).await;
    drop((full, feed, stuck));
    server.until("all have gone", |server| taken(server) == 0).await;
    assert_eq!((other.snapshot().connects, server.snapshot().protocol_errors), (1, 0));
    drop((others, other));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_item_that_nobody_takes_is_charged_until_its_service_has_gone() {
    let server = FeedServer::new();
    let mut peer = server.harness.peer().await;
    peer.send(&Req::new(1, named("sum_slowly"), (5_000_u64,)).sends().bytes()).await;
    peer.send(&frame(ITEM, 0, 1, &[], &[7])).await;
    server.until("it has been taken", |server| server.feeder.consumed() == 1).await;
    assert_eq!(taken(&server), KIB, "the service is at it");
    sleep(6 * SECOND).await;
    assert_eq!(taken(&server), 0, "it asked for the next one");
    peer.send(&frame(ITEM, 0, 1, &[], &[7]).repeat(100)).await;
    server.until("all have come", |server| taken(server) == 8 * KIB).await;
    peer.send(&crate::support::raw::cancel(1)).await;
    server.until("it is cancelled", |server| taken(server) == 0).await;
    drop(peer);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_wants_no_more_gives_back_what_has_come_and_keeps_nothing_of_what_comes() {
    let server = FeedServer::new();
    let mut peer = server.harness.peer().await;
    let mut bytes = Req::new(1, named("one_and_work"), ()).sends().bytes();
    // One that it takes, 64 that nobody does, and more when nobody can.
    for (round, items) in [(1, 65), (2, 500)] {
        bytes.extend(frame(ITEM, 0, 1, &[], &[7]).repeat(items));
        encode_ping(&mut bytes, [round; 8]);
        peer.send(&bytes).await;
        bytes.clear();
        assert!(matches!(peer.next().await, Got::Pong(opaque) if opaque == [round; 8]), "all have come");
        // And its call goes on.
        server.until("nothing is kept", |server| taken(server) == 0 && server.snapshot().stream_bytes == 0).await;
        assert_eq!((server.feeder.running(), server.snapshot().calls.held), (1, 1));
    }
    assert!(peer.peer.is_silent_for(SECOND).await, "nobody asks for more");
    server.feeder.open_gate();
    assert_eq!(peer.reply::<u64>(1).await, 7);
    peer.part().await;
    server.assert_idle().await;
    assert_eq!(server.snapshot().protocol_errors, 0);
}

/// The first part of an item in parts.
fn begun(id: u64, len: usize, first: &[u8]) -> Vec<u8> {
    frame(ITEM, 1, id, &(len as u32).to_be_bytes(), first)
}

#[tokio::test(start_paused = true)]
async fn items_in_parts_that_stop_are_ended_in_time_and_their_connection_goes_on() {
    let server = FeedServer::with(|builder| builder.keepalive_interval(None)).large();
    let mut wire = wire(&server.harness, MIB).await;
    let began = Instant::now();
    for id in 1..=4 {
        wire.send(&Req::new(id, named("measure"), ()).sends().bytes()).await;
        wire.send(&begun(id, 3 * MIB, &[7; 1_000])).await;
    }
    server.until("they are charged", |server| taken(server) == 4 * 3 * MIB).await;
    // Those that go on at their rate have longer.
    sleep_until(began + 5 * SECOND).await;
    wire.send(&part(4, &[7; 4 * MIN_PART_LEN], true)).await;
    for (ended, due) in [(1, 10), (2, 10), (3, 10), (4, 11)] {
        let piece = wire.piece().await;
        let late = began.elapsed().saturating_sub(due * SECOND);
        assert!(began.elapsed() >= due * SECOND && late < SECOND / 100, "{ended}: {late:?}");
        assert_eq!(piece.id.sequence(), ended);
        assert_ended(&status_of(&piece), Executed::Maybe, StatusCode::DeadlineExceeded, "BODY_TOO_SLOW", "");
    }
    assert_eq!(taken(&server), 0);
    assert_eq!(server.harness.refused("BODY_TOO_SLOW"), 4);
    // What comes of them is late, and no error.
    wire.send(&part(1, &[7; 8 * KIB], true)).await;
    wire.send(&part(4, &[7; 10], false)).await;
    is_alive(&mut wire, 5).await;
    assert_eq!(server.snapshot().frames_ignored, 2);
    drop(wire);
    server.assert_idle().await;
}

/// The service takes what came before the item in parts, and asks for more while that grows.
#[tokio::test(start_paused = true)]
async fn an_item_that_grows_stays_charged_whatever_the_service_takes_meanwhile() {
    let long = 4 * MIB;
    for how in ["complete", "cancel", "answer"] {
        let server = FeedServer::new().large();
        let mut wire = wire(&server.harness, MIB).await;
        let method = if how == "answer" { "sum_first" } else { "sum" };
        let open = Req::new(1, named(method), (1_u64,)).sends().bytes();
        wire.send(&[open, frame(ITEM, 0, 1, &[], &[7]), begun(1, long, &[7; 1_000])].concat()).await;
        if how == "answer" {
            let piece = wire.up_to(|piece| piece.kind == RESPONSE).await.0;
            assert_eq!(piece.id.sequence(), 1);
        } else {
            server.until("it has been taken", |server| server.feeder.consumed() == 1).await;
            for _ in 0..127 {
                wire.send(&part(1, &[7; 32 * KIB], true)).await;
            }
            is_alive(&mut wire, 2).await;
            assert!(taken(&server) >= long, "{} is kept, and {} of it is charged", long - 31 * KIB, taken(&server));
        }
        match how {
            "complete" => {
                wire.send(&part(1, &[7; 32 * KIB - 1_000], false)).await;
                let piece = wire.up_to(|piece| piece.kind == RESPONSE).await.0;
                assert_ne!(status_of(&piece).code(), StatusCode::Ok, "it is no number");
            }
            "cancel" => wire.send(&crate::support::raw::cancel(1)).await,
            _ => {}
        }
        server.until("all is back", |server| taken(server) == 0 && server.snapshot().stream_bytes == 0).await;
        drop(wire);
        server.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_at_its_rate_arrives_however_long_it_takes_and_without_a_rate_at_any() {
    for (rate, pause) in [(Some(16 * 1024), SECOND / 4), (None, 100 * SECOND)] {
        let server = FeedServer::with(|builder| builder.keepalive_interval(None).min_body_rate(rate)).large();
        let mut wire = wire(&server.harness, MIB).await;
        wire.send(&Req::new(1, named("measure"), ()).sends().bytes()).await;
        let item = vec![7; 300_000];
        let (first, rest) = item.split_at(1_000);
        wire.send(&begun(1, item.len(), first)).await;
        let mut parts = rest.chunks(MIN_PART_LEN).peekable();
        while let Some(bytes) = parts.next() {
            sleep(pause).await;
            wire.send(&part(1, bytes, parts.peek().is_some())).await;
        }
        wire.send(&frame(6, 0, 1, &[], &[])).await;
        let (piece, _) = wire.up_to(|piece| piece.kind == RESPONSE || piece.kind == CONT).await;
        assert_eq!(status_of(&piece).code(), StatusCode::Ok);
        assert_eq!(piece.body, encoded(300_000_u64));
        assert_eq!(taken(&server), 0);
        drop(wire);
        server.assert_idle().await;
    }
}

/// Clients of this library cut items of more than a part, and others are free to: those take the same.
#[tokio::test(start_paused = true)]
async fn items_in_one_frame_take_no_more_of_a_connection_than_it_has() {
    const STREAMS: u64 = 8;
    let server = FeedServer::with(|builder| {
        builder.max_message(MIB as u32).body_budget_per_connection(MIB as u64).keepalive_interval(None)
    })
    .large();
    // It gives no credit, so the services wait with the first that they send back.
    let mut wire = Pieces::from(server.harness.peer_through(MIB));
    wire.send(&hello_with(|hello| hello.stream_window = 1)).await;
    wire.piece().await;
    for id in 1..=STREAMS {
        let few = frame(ITEM, 0, id, &[], &[7; 32 * KIB - 32]).repeat(2);
        wire.send(&[Req::new(id, named("echo"), ()).of_kind(CallKind::BothWays).bytes(), few].concat()).await;
    }
    server.until_running(STREAMS as usize).await;
    server.until("they have items", |server| taken(server) >= STREAMS as usize * WINDOW / 2).await;
    // Their windows are half of what the connection has, and the rest takes two of these, or three when the windows
    // of calls that have ended are back.
    for id in 1..=STREAMS {
        wire.send(&frame(ITEM, 0, id, &[], &vec![7; 256 * KIB - 12])).await;
    }
    wire.send(&Req::new(STREAMS + 1, method::ECHO, ("alive",)).bytes()).await;
    let mut ended = 0;
    loop {
        let (piece, _) = wire.up_to(|piece| piece.kind == RESPONSE).await;
        let status = status_of(&piece);
        if piece.id.sequence() == STREAMS + 1 {
            break assert_eq!(status.code(), StatusCode::Ok);
        }
        let (executed, code) = (Executed::Maybe, StatusCode::ResourceExhausted);
        assert_ended(&status, executed, code, "BODY_BUDGET", "connection bodies");
        ended += 1;
    }
    assert!(ended == STREAMS - 2 || ended == STREAMS - 3, "{ended}");
    assert!(taken(&server) > 550 * KIB && taken(&server) <= MIB, "{}", taken(&server));
    drop(wire);
    server.assert_idle().await;
}
