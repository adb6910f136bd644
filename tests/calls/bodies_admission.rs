//! A call whose body comes in parts has no permit of calls in flight before its body is there. With its first
//! part it is refused if it would be, so that nobody sends megabytes to hear it then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use rpc_codec::PART_LEN;
use rpc_core::CallId;
use sluicegate::{
    Context, Executed, Status, StatusCode,
    client::Method,
    server::{Decision, HolderState, MethodLimits, MethodOptions, ServerBuilder, Service, ServiceMethods, WaitQueue},
};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::support::{
    Harness, Req, assert_idle_soon,
    bodies::{
        LEN, LEN64, NARROW, answer_of_begun, assert_refused, begun, complete, is_alive, serve, status_of,
        until_given_back, wire,
    },
    handlers::{Deciding, Log},
    method,
    parts::{GO_AWAY, Piece, Pieces, RESPONSE, frames, opening, part, untouched},
    probe::path,
    raw::{Got, cancel, hello},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Sends the first bytes of a long body.
async fn begin(wire: &mut Pieces, id: u64) {
    wire.send(&opening(untouched(id, method::BYTES), LEN, &[7; 10])).await;
}

/// Sends what [`begin`] has left.
async fn finish(wire: &mut Pieces, id: u64) {
    for (len, more) in [(200_000, true), (200_000, true), (LEN - 400_010, false)] {
        wire.send(&part(id, &vec![7; len], more)).await;
    }
}

/// The one call that may run, does.
async fn occupy(harness: &Harness, wire: &mut Pieces, id: u64) {
    let running = harness.probe.running();
    wire.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
    harness.until_running(running + 1).await;
}

/// An answer that says OK, of whichever length.
async fn ok(wire: &mut Pieces, id: u64) {
    let piece = wire.piece().await;
    assert_eq!((piece.kind, piece.id), (RESPONSE, CallId::new(id, 0)), "{piece:?}");
    assert_eq!(piece.head[0], 0, "{piece:?}");
    wire.whole(piece).await;
}

fn refused(piece: &Piece, id: u64, reason: &str, limit: &str) -> Status {
    assert_eq!(piece.id, CallId::new(id, 0));
    let status = status_of(piece);
    assert_refused(&status, StatusCode::ResourceExhausted, reason, &[("limit", limit.to_owned())]);
    status
}

/// Limits as they are by default, and as they are when there are many.
fn plain_and_grouped(max: u64) -> [Harness; 2] {
    let plain = move |builder: ServerBuilder| builder.max_concurrent_calls(max).max_concurrent_calls_per_connection(99);
    let own = MethodLimits::new().max_concurrent_calls(1_000);
    [serve(plain), serve(|builder| plain(builder).method_limits(path("echo"), own))]
}

#[tokio::test(start_paused = true)]
async fn bodies_that_dribble_leave_the_limit_to_others() {
    for harness in plain_and_grouped(2) {
        let (mut slow, mut quick) = (wire(&harness, NARROW).await, wire(&harness, NARROW).await);
        for id in 1..=24 {
            begin(&mut slow, id).await;
        }
        harness.until("all have begun", |harness| harness.snapshot().calls_parked == 24).await;
        for id in 1..=100 {
            is_alive(&mut quick, id).await;
            harness.until_flushed(0).await;
        }
        is_alive(&mut slow, 25).await;
        harness.until_flushed(0).await;
        let snapshot = harness.snapshot();
        assert_eq!((snapshot.calls.held, snapshot.calls.acquired, snapshot.calls.high_water), (0, 101, 1));
        assert_eq!(snapshot.body_bytes, 24 * LEN64);
        let holders = harness.handle.limits().holders().await;
        assert!(holders.len() == 24 && holders.iter().all(|holder| holder.state == HolderState::Receiving));
        for _ in 1..=24 {
            let status = status_of(&slow.piece().await);
            assert_refused(&status, StatusCode::DeadlineExceeded, "BODY_TOO_SLOW", &[]);
        }
        until_given_back(&harness).await;
        assert_eq!(harness.probe.started(), 101);
        drop((slow, quick));
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_refused_with_its_first_part_while_the_limit_is_full() {
    for harness in plain_and_grouped(1) {
        let mut wire = wire(&harness, NARROW).await;
        occupy(&harness, &mut wire, 1).await;
        begin(&mut wire, 2).await;
        let status = refused(&wire.piece().await, 2, "CONCURRENCY_LIMIT", "global");
        assert!(status.retry_delay().is_some());
        // Never admitted, not for a moment.
        let snapshot = harness.snapshot();
        assert_eq!((snapshot.calls.acquired, snapshot.body_bytes, harness.refused("global")), (1, 0, 1));
        harness.probe.open_gate();
        ok(&mut wire, 1).await;
        drop(wire);
        harness.assert_idle().await;
        assert_eq!(harness.probe.started(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_whose_limit_was_filled_meanwhile_is_refused_when_it_is_there() {
    for harness in plain_and_grouped(1) {
        let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
        occupy(&harness, &mut wire, 2).await;
        complete(&mut wire).await;
        refused(&wire.piece().await, 1, "CONCURRENCY_LIMIT", "global");
        assert_eq!((harness.probe.started(), harness.snapshot().body_bytes), (1, 0));
        harness.probe.open_gate();
        ok(&mut wire, 2).await;
        // A call of that id was answered: what is still sent of it is late, and no error.
        wire.send(&part(1, &[7; PART_LEN], false)).await;
        is_alive(&mut wire, 3).await;
        drop(wire);
        harness.assert_idle().await;
        let calls = harness.snapshot().calls;
        assert_eq!((calls.acquired, calls.released), (2, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_written_make_room_for_a_body_that_is_there() {
    let harness = serve(|builder| builder.max_concurrent_calls(1)).plain("it sends all at once");
    let mut wire = wire(&harness, 2_000_000).await;
    // In one read: each finds the permit of the last one's answer in the buffer, and writes that.
    let mut bytes = Vec::new();
    for id in 1..=8 {
        bytes.extend(Req::new(2 * id - 1, method::ECHO, ("first",)).bytes());
        bytes.extend(frames(|| untouched(2 * id, method::BYTES), 2 * id, &[7; 3_000], 10, 5_000).concat());
    }
    wire.send(&bytes).await;
    for id in 1..=16 {
        ok(&mut wire, id).await;
    }
    drop(wire);
    harness.assert_idle().await;
}

fn queued(max_waiting: u64) -> Harness {
    serve(|builder| {
        let queue = WaitQueue::of(max_waiting).max_wait(500 * MS);
        builder.max_concurrent_calls(1).wait_queue(queue)
    })
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_there_waits_for_its_turn_however_long_it_took() {
    let harness = queued(8);
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    // Far longer than a call may wait.
    sleep(5 * SECOND).await;
    occupy(&harness, &mut wire, 2).await;
    complete(&mut wire).await;
    harness.until("it waits", |harness| harness.snapshot().calls_waiting == 1).await;
    assert!(wire.is_silent_for(400 * MS).await);
    harness.probe.open_gate();
    ok(&mut wire, 2).await;
    answer_of_begun(&mut wire).await;
    drop(wire);
    harness.assert_idle().await;
    assert!(harness.snapshot().refused.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_there_waits_no_longer_than_others() {
    let harness = queued(8);
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    occupy(&harness, &mut wire, 2).await;
    sleep(3 * SECOND).await;
    complete(&mut wire).await;
    harness.until("it waits", |harness| harness.snapshot().calls_waiting == 1).await;
    let began = Instant::now();
    refused(&wire.piece().await, 1, "QUEUE_TIMEOUT", "global");
    let waited = began.elapsed();
    assert!(waited >= 490 * MS && waited <= 510 * MS, "{waited:?}");
    harness.probe.open_gate();
    ok(&mut wire, 2).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_would_have_to_wait_is_sent_meanwhile_and_has_no_place_in_the_queue() {
    let harness = queued(1);
    let mut wire = wire(&harness, NARROW).await;
    occupy(&harness, &mut wire, 1).await;
    begin(&mut wire, 2).await;
    begin(&mut wire, 3).await;
    harness.until("both have begun", |harness| harness.snapshot().calls_parked == 3).await;
    assert_eq!(harness.snapshot().calls_waiting, 0);
    // The one place is another's. From now on a body is refused with its first part.
    wire.send(&Req::new(4, method::ECHO, ("waits",)).bytes()).await;
    harness.until("one waits", |harness| harness.snapshot().calls_waiting == 1).await;
    begin(&mut wire, 5).await;
    refused(&wire.piece().await, 5, "QUEUE_FULL", "global");
    harness.probe.open_gate();
    ok(&mut wire, 1).await;
    ok(&mut wire, 4).await;
    wire.send(&cancel(2)).await;
    finish(&mut wire, 3).await;
    ok(&mut wire, 3).await;
    until_given_back(&harness).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_first_part_also_for_a_body_that_waits_for_its_turn() {
    let harness = queued(8);
    let began = Instant::now();
    let mut wire = begun(&harness, untouched(1, method::BYTES).timeout(2 * SECOND)).await;
    occupy(&harness, &mut wire, 2).await;
    sleep(1_800 * MS).await;
    complete(&mut wire).await;
    harness.until("it waits", |harness| harness.snapshot().calls_waiting == 1).await;
    let piece = wire.piece().await;
    assert_eq!(piece.id, CallId::new(1, 0));
    let status = status_of(&piece);
    assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Never));
    let waited = began.elapsed();
    assert!(waited >= 2 * SECOND && waited <= 2 * SECOND + 20 * MS, "{waited:?}");
    harness.probe.open_gate();
    ok(&mut wire, 2).await;
    until_given_back(&harness).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn every_limit_of_calls_in_flight_counts_a_body_when_it_is_there() {
    let limits = || MethodLimits::new().max_concurrent_calls(1).pool("pool").weight(3);
    let harness = serve(|builder| {
        let builder = builder.pool("pool", 3).max_concurrent_calls(10).max_bytes_in_flight(8 * LEN64);
        builder.method_limits(path("bytes"), limits())
    })
    .plain("it counts bytes");
    let mut first = begun(&harness, untouched(1, method::BYTES)).await;
    let mut second = wire(&harness, NARROW).await;
    begin(&mut second, 1).await;
    harness.until("both have begun", |harness| harness.snapshot().calls_parked == 2).await;
    assert!(harness.snapshot().limits.values().all(|limit| limit.acquired == 0));
    complete(&mut first).await;
    // Its answer is not read yet.
    harness.until("it has its permit", |harness| harness.snapshot().calls.held == 3).await;
    let held = harness.snapshot().limits;
    assert_eq!((held["bytes"].held, held["pool"].held, held["test.Probe/bytes"].held), (LEN64, 3, 1));
    begin(&mut second, 2).await;
    refused(&second.piece().await, 2, "CONCURRENCY_LIMIT", "test.Probe/bytes");
    finish(&mut second, 1).await;
    refused(&second.piece().await, 1, "CONCURRENCY_LIMIT", "test.Probe/bytes");
    answer_of_begun(&mut first).await;
    until_given_back(&harness).await;
    drop((first, second));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_only_tried_out_counts_a_body_once() {
    for harness in plain_and_grouped(1) {
        harness.handle.limits().set_dry_run(true);
        let mut wire = wire(&harness, NARROW).await;
        occupy(&harness, &mut wire, 1).await;
        wire.send(&frames(|| untouched(2, method::BYTES), 2, &[7; LEN], 10, 200_000).concat()).await;
        ok(&mut wire, 2).await;
        let snapshot = harness.snapshot();
        assert_eq!((snapshot.would_refuse["global"], snapshot.calls.acquired), (1, 1));
        harness.probe.open_gate();
        ok(&mut wire, 1).await;
        drop(wire);
        // Of one that could pass with its first part, what it finds later counts.
        let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
        harness.probe.close_gate();
        occupy(&harness, &mut wire, 3).await;
        complete(&mut wire).await;
        answer_of_begun(&mut wire).await;
        assert_eq!(harness.snapshot().would_refuse["global"], 2);
        harness.probe.open_gate();
        ok(&mut wire, 3).await;
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_bodies_are_under_way_on_a_connection_than_calls_may_be_pending() {
    let harness = serve(|builder| builder.max_concurrent_calls_per_connection(4));
    let mut wire = wire(&harness, NARROW).await;
    for id in 1..=4 {
        begin(&mut wire, id).await;
    }
    begin(&mut wire, 5).await;
    refused(&wire.piece().await, 5, "CONCURRENCY_LIMIT", "connection");
    wire.send(&cancel(1)).await;
    is_alive(&mut wire, 6).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_body_in_parts_counts_for_what_its_call_costs() {
    let harness = serve(|builder| builder.body_budget_per_connection(64 * 1024).max_message(64 * 1024));
    let mut wire = wire(&harness, NARROW).await;
    for id in 1..=15 {
        let mut request = untouched(id, method::BYTES);
        request.metadata.insert("k", "v".repeat(200)).unwrap();
        wire.send(&opening(request, 20, &[7; 10])).await;
    }
    harness.until("fifteen have begun", |harness| harness.snapshot().calls_parked == 15).await;
    let kept = harness.snapshot().body_bytes;
    assert!(kept > 15 * (4_096 + 200) && kept <= 64 * 1024, "{kept}");
    wire.send(&opening(untouched(16, method::BYTES), 20, &[7; 10])).await;
    refused(&wire.piece().await, 16, "BODY_BUDGET", "connection bodies");
    wire.send(&part(1, &[7; 10], false)).await;
    ok(&mut wire, 1).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn how_long_a_body_took_is_no_time_of_the_service() {
    let harness = serve(|builder| builder.refuse_late_calls(true));
    let mut slow = wire(&harness, NARROW).await;
    let at = |id: u64| untouched(id, method::BYTES).head(|head| head.sent_at_us = 5_000_000 * (id as u32 - 1));
    for id in 1..=40 {
        slow.send(&opening(at(id), 20, &[7; 10])).await;
        sleep(5 * SECOND).await;
        slow.send(&part(id, &[7; 10], false)).await;
        ok(&mut slow, id).await;
    }
    slow.send(&at(41).body(vec![7; 10]).timeout(SECOND).bytes()).await;
    ok(&mut slow, 41).await;
    drop(slow);
    harness.assert_idle().await;
    assert!(harness.snapshot().refused.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_a_body_once_in_front_of_the_limits_when_it_begins_and_behind_them_when_it_is_there() {
    let log = Log::default();
    let noting = move |name: &'static str, log: &Log| {
        let log = log.clone();
        Deciding(move |call: &mut sluicegate::server::Call<'_>| {
            log.note(format!("{name} {} {}", call.id().sequence(), call.is_whole()));
            // Of a call that is whole it is no reason to wait.
            if name == "last" { Decision::AwaitBody } else { Decision::Pass }
        })
    };
    let seen = log.clone();
    let harness = serve(|builder| {
        builder.pipeline(move |pipeline, _| {
            pipeline.add_first("first", noting("first", &seen));
            pipeline.add_last("last", noting("last", &seen));
        })
    });
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    assert_eq!(log.take(), ["first 1 false"]);
    is_alive(&mut wire, 2).await;
    assert_eq!(log.take(), ["first 2 true", "last 2 true"]);
    complete(&mut wire).await;
    answer_of_begun(&mut wire).await;
    assert_eq!(log.take(), ["last 1 true"]);
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_ones_own_awaits_a_body_and_is_asked_again() {
    let log = Log::default();
    let seen = log.clone();
    let harness = serve(|builder| {
        builder.pipeline(move |pipeline, _| {
            let seen = seen.clone();
            let awaiting = Deciding(move |call: &mut sluicegate::server::Call<'_>| {
                seen.note(format!("{} {}", call.id().sequence(), call.is_whole()));
                if call.is_whole() { Decision::Pass } else { Decision::AwaitBody }
            });
            pipeline.add_first("own", awaiting);
        })
    });
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    assert_eq!(log.take(), ["1 false"]);
    complete(&mut wire).await;
    answer_of_begun(&mut wire).await;
    assert_eq!(log.take(), ["1 true"]);
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_waits_its_turn_in_a_server_that_drains() {
    let harness = queued(8);
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    occupy(&harness, &mut wire, 2).await;
    harness.handle.shutdown();
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    complete(&mut wire).await;
    harness.until("it waits", |harness| harness.snapshot().calls_waiting == 1).await;
    harness.probe.open_gate();
    ok(&mut wire, 2).await;
    answer_of_begun(&mut wire).await;
    assert!(wire.next().await.is_none());
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_arguments_were_refused_when_they_were_there_may_have_items_under_way() {
    use crate::support::feed::{FeedServer, named};
    let server = FeedServer::with(|builder| builder.max_concurrent_calls(1).keepalive_interval(None));
    let mut peer = server.harness.peer().await;
    let stall = Req::new(1, named("stall"), (1_u64,)).takes();
    peer.send(&stall.bytes()).await;
    server.until_running(1).await;
    while !matches!(peer.next().await, Got::Item { .. }) {}
    server.harness.handle.set_max_concurrent_calls(Some(2)).unwrap();
    peer.send(&opening(Req::new(2, named("measure"), ()).sends(), 6_000, &[7; 10])).await;
    server.until("it has begun", |server| server.snapshot().calls_parked == 2).await;
    server.harness.handle.set_max_concurrent_calls(Some(1)).unwrap();
    peer.send(&part(2, &[7; 5_990], false)).await;
    let (status, _) = peer.answer(2).await;
    assert_refused(&status, StatusCode::ResourceExhausted, "CONCURRENCY_LIMIT", &[("limit", "global".to_owned())]);
    // Sent before the client knew.
    for _ in 0..1_000 {
        peer.send(&crate::support::raw::frame(5, 0, 2, &[], &[7; 60])).await;
    }
    server.feeder.open_gate();
    peer.answer(1).await;
    drop(peer);
    server.assert_idle().await;
}

/// Has one method that blocks until it may go on.
#[derive(Clone)]
struct Press(Arc<AtomicBool>);

impl Service for Press {
    fn name(&self) -> &str {
        "Press"
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        methods.blocking("press", MethodOptions::new(), move |_: &Context, (_,): (String,)| {
            while !self.0.load(SeqCst) {
                std::thread::yield_now();
            }
            Ok(())
        });
    }
}

const PRESS: Method = Method::new("Press", "press");

#[tokio::test]
async fn a_body_of_a_blocking_method_is_refused_with_its_first_part_while_all_threads_are_taken() {
    let gate = Arc::new(AtomicBool::new(false));
    let press = Press(Arc::clone(&gate));
    let harness = serve(|builder| builder.max_blocking_calls(1).service(press));
    let mut wire = wire(&harness, NARROW).await;
    wire.send(&Req::new(1, PRESS, ("",)).bytes()).await;
    harness.until("it blocks", |harness| harness.snapshot().blocking.held == 1).await;
    wire.send(&opening(Req::new(2, PRESS, ()), LEN, &[7; 10])).await;
    refused(&wire.piece().await, 2, "CONCURRENCY_LIMIT", "blocking");
    // Others may be long.
    wire.send(&frames(|| untouched(3, method::BYTES), 3, &[7; LEN], 10, 200_000).concat()).await;
    ok(&mut wire, 3).await;
    gate.store(true, SeqCst);
    ok(&mut wire, 1).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test]
async fn bodies_that_dribble_through_sockets_cost_a_polite_client_no_call() {
    let harness = serve(|builder| builder.max_concurrent_calls(2));
    let sockets = harness.sockets().await;
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut socket = TcpStream::connect(sockets.address).await.unwrap();
        socket.write_all(&hello()).await.unwrap();
        for id in 1..=24 {
            socket.write_all(&opening(untouched(id, method::BYTES), LEN, &[7; 10])).await.unwrap();
        }
        slow.push(socket);
    }
    harness.until("all have begun", |harness| harness.snapshot().calls_parked == 8 * 24).await;
    let client = sockets.client();
    for round in 0..200_u64 {
        let pair = [2 * round, 2 * round + 1].map(|nonce| client.call::<_, u64>(method::NONCE, (nonce, 1_u32)));
        for answer in join_all(pair).await {
            answer.expect("there are two permits, and nobody else has one");
        }
        harness.until_flushed(0).await;
        // A part each, now and then.
        let socket = &mut slow[round as usize % 8];
        socket.write_all(&part(1 + round / 8 % 24, &[7; 4_096], true)).await.unwrap();
    }
    let body = sluicegate::Bytes::from(vec![7; LEN]);
    assert!(client.call_bytes(method::BYTES, body.clone()).await.unwrap() == body, "an honest upload passes, too");
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls.acquired, snapshot.calls_parked), (401, 8 * 24));
    assert!(snapshot.refused.is_empty());
    drop((slow, client));
    assert_idle_soon(&harness.handle).await;
    sockets.shut_down().await;
}
