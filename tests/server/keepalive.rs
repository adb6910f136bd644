//! Peers that vanish without a word are found, whatever runs; those that live are left alone.

use std::time::Duration;

use rpc_codec::{CallKind, GoAwayReason, encode_pong};
use sluicegate::{Executed, StatusCode, server::ServerBuilder};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    Got, Harness, RawClient, Req,
    feed::{FeedServer, named},
    method, no_call_runs,
    shims::Manner,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Asks after 5 s, and waits 2 s for the answer.
fn keepalive(builder: ServerBuilder) -> ServerBuilder {
    builder.keepalive_interval(5 * SECOND).keepalive_timeout(2 * SECOND)
}

fn cuts(harness: &Harness, name: &str) -> u64 {
    harness.snapshot().connections_cut.get(name).copied().unwrap_or(0)
}

fn pong(opaque: [u8; 8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_pong(&mut out, opaque);
    out
}

/// The next frame, which must be a PING.
async fn asked(peer: &mut RawClient) -> [u8; 8] {
    match peer.next().await {
        Got::Ping(opaque) => opaque,
        other => panic!("instead of a PING came {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanished_is_found_in_time_whatever_runs_and_its_permits_are_back() {
    for calls in [0, 1, 20] {
        let harness = Harness::with(keepalive);
        let mut peer = harness.peer().await;
        for id in 1..=calls {
            let method = if id % 2 == 0 { method::GATE } else { method::GATE_SPAWNED };
            peer.send(&Req::new(id, method, (id,)).bytes()).await;
        }
        harness.until_running(calls as usize).await;
        let began = Instant::now();
        sleep(6_900 * MS).await;
        assert_eq!((harness.snapshot().connections, harness.snapshot().calls.held), (1, calls));
        sleep(200 * MS).await;
        assert_eq!(harness.snapshot().connections, 0, "it is not found");
        assert!(began.elapsed() <= 7_500 * MS, "{:?}", began.elapsed());
        no_call_runs(&harness.handle);
        harness.assert_idle().await;
        // Had it only been slow, it would find out why, where that could be written at once.
        asked(&mut peer).await;
        if Manner::of_this_run() == Manner::Plain {
            assert_eq!(peer.go_away().await.1, GoAwayReason::Timeout);
            assert!(matches!(peer.next().await, Got::End));
        }
        assert_eq!(cuts(&harness, "keepalive"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn streams_of_a_peer_that_vanished_end_in_time_and_their_permits_are_back() {
    let server = FeedServer::with(keepalive);
    let mut peer = server.harness.peer().await;
    let open = [
        Req::new(1, named("stall"), (3_u64,)).takes(),
        // A window of items, which the pipe takes.
        Req::new(2, named("count_sent"), (100_000_u64,)).takes(),
        Req::new(3, named("sum"), (0_u64,)).sends(),
        Req::new(4, named("echo"), ()).of_kind(CallKind::BothWays),
    ];
    peer.send(&open.iter().flat_map(Req::bytes).collect::<Vec<_>>()).await;
    server.until_running(4).await;
    sleep(6_900 * MS).await;
    assert_eq!((server.snapshot().connections, server.snapshot().calls.held), (1, 4));
    sleep(200 * MS).await;
    let snapshot = server.snapshot();
    assert_eq!((snapshot.connections, snapshot.streams, snapshot.stream_bytes), (0, 0, 0), "{snapshot:#?}");
    assert_eq!((server.feeder.running(), cuts(&server.harness, "keepalive")), (0, 1));
    no_call_runs(&server.harness.handle);
    server.assert_idle().await;
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn any_byte_is_a_sign_of_life() {
    let harness = Harness::with(|builder| keepalive(builder).frame_timeout(60 * SECOND));
    let mut peer = harness.peer().await;
    let frame = Req::new(1, method::ECHO, ("hello",)).bytes();
    let answer = pong(asked(&mut peer).await);
    // In the last moment, and not the answer.
    sleep(1_900 * MS).await;
    for byte in &frame[..5] {
        peer.send(&[*byte]).await;
        assert!(peer.peer.is_silent_for(4_900 * MS).await);
    }
    peer.send(&frame[5..]).await;
    assert_eq!(peer.reply::<String>(1).await, "hello");
    peer.send(&answer).await;
    sleep(MS).await;
    assert_eq!(harness.snapshot().frames_ignored, 0, "late, but it was asked for");
    for _ in 0..3 {
        let opaque = asked(&mut peer).await;
        sleep(1_900 * MS).await;
        peer.send(&pong(*b"nonsense")).await;
        peer.send(&pong(opaque)).await;
    }
    sleep(MS).await;
    assert_eq!((harness.snapshot().frames_ignored, harness.snapshot().connections), (3, 1));
    peer.part().await;
    harness.assert_idle().await;
    assert!(harness.snapshot().connections_cut.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_default_client_is_never_cut_by_a_default_server_and_is_asked_by_one_schedule() {
    let harness = Harness::new();
    let client = harness.client();
    let handles: Vec<_> = (0..10).map(|_| client.clone()).collect();
    for handle in &handles {
        let echo: String = handle.call(method::ECHO, ("hi".to_owned(),)).await.unwrap();
        assert_eq!(echo, "hi");
    }
    let long = tokio::spawn(client.call::<_, u64>(method::SLEEP, (3_600_000_u64,)));
    sleep(3_600 * SECOND).await;
    assert_eq!(long.await.unwrap().unwrap(), 3_600_000);
    assert_eq!(harness.network.attempts(), 1, "it had to connect anew");
    assert!(harness.snapshot().connections_cut.is_empty());
    drop((client, handles));
    harness.assert_idle().await;
    // As a peer sees it: one PING in 30 s.
    let mut peer = harness.peer().await;
    let began = Instant::now();
    for n in 1..=20 {
        let opaque = asked(&mut peer).await;
        assert!(began.elapsed() >= n * 30 * SECOND, "{n}: {:?}", began.elapsed());
        peer.send(&pong(opaque)).await;
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn who_asks_never_finds_nobody_dead() {
    let harness = Harness::with(|builder| builder.keepalive_interval(None));
    let mut peer = harness.peer().await;
    assert!(peer.peer.is_silent_for(100_000 * SECOND).await);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_moves_to_another_task_takes_its_timer_along() {
    let harness = Harness::with(keepalive);
    let (ours, theirs) = tokio::io::duplex(1_024);
    let server = harness.server.clone();
    let mut serving = Box::pin(async move { server.serve_connection(theirs, None).await });
    let mut peer = RawClient::new(ours);
    tokio::select! {
        _ = peer.shake_hands() => {}
        () = &mut serving => panic!("it serves no more"),
    }
    let serving = tokio::spawn(serving);
    asked(&mut peer).await;
    assert_eq!(peer.go_away().await.1, GoAwayReason::Timeout);
    serving.await.unwrap();
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn silence_does_not_count_while_the_server_does_not_read() {
    let harness = Harness::with(|builder| keepalive(builder).write_high_water(1_000).write_timeout(600 * SECOND));
    let mut peer = harness.peer_through(1_024);
    peer.shake_hands().await;
    peer.send(&Req::new(1, method::LARGE, (20_000_u32,)).bytes()).await;
    harness.until("it is above the mark", |harness| harness.snapshot().buffered_bytes > 1_000).await;
    sleep(500 * SECOND).await;
    assert_eq!(harness.snapshot().connections, 1);
    assert_eq!(peer.reply::<String>(1).await.len(), 20_000);
    let began = Instant::now();
    asked(&mut peer).await;
    assert!(began.elapsed() >= 4_900 * MS, "{:?}", began.elapsed());
    sleep(2_100 * MS).await;
    assert_eq!(harness.snapshot().connections, 0);
    assert!(began.elapsed() <= 7_500 * MS, "{:?}", began.elapsed());
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_with_little_to_read_is_not_taken_for_dead() {
    let harness = Harness::with(|builder| keepalive(builder).write_timeout(10 * SECOND).min_write_rate(None));
    let harness = harness.unless(Manner::Withholding, "what a transport passes on of what it holds shows nowhere");
    let mut peer = harness.peer_through(256);
    peer.shake_hands().await;
    peer.send(&Req::new(1, method::LARGE, (10_000_u32,)).bytes()).await;
    harness.until("something waits", |harness| harness.snapshot().buffered_bytes > 0).await;
    let mut part = [0; 256];
    while harness.snapshot().buffered_bytes > 0 {
        sleep(8 * SECOND).await;
        tokio::io::AsyncReadExt::read(&mut peer.peer.io, &mut part).await.unwrap();
        sleep(MS).await;
        assert_eq!(harness.snapshot().connections, 1, "{:?}", harness.snapshot().connections_cut);
    }
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_ended_its_stream_gets_its_answers_however_late() {
    let harness = Harness::with(keepalive);
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::SLEEP, (121_000_u64,)).bytes()).await;
    peer.leave().await;
    loop {
        match peer.next().await {
            Got::Ping(_) => {}
            Got::Response { code: StatusCode::Ok, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(peer.next().await, Got::End));
    harness.assert_idle().await;
    // One that is gone besides is noticed, because it is written to.
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    peer.leave().await;
    sleep(MS).await;
    drop(peer);
    sleep(5_100 * MS).await;
    harness.until_running(0).await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn keepalive_goes_on_during_a_drain_and_does_not_disturb_it() {
    let harness = Harness::with(|builder| {
        builder.keepalive_interval(200 * MS).keepalive_timeout(100 * MS).drain_grace(30 * SECOND)
    });
    let client = harness.client();
    let running = tokio::spawn(client.call::<_, u64>(method::SLEEP, (5_000_u64,)));
    let mut dead = harness.peer().await;
    dead.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(2).await;
    let began = Instant::now();
    let drained = harness.handle.drain().await;
    assert!(began.elapsed() < 6 * SECOND, "it waited for the dead one: {:?}", began.elapsed());
    assert_eq!(running.await.unwrap().unwrap(), 5_000);
    assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_connection_says_goodbye_and_its_calls_finish() {
    let harness = Harness::with(|builder| builder.max_connection_age(100 * SECOND));
    let (mut least, mut most) = (Duration::MAX, Duration::ZERO);
    for _ in 0..40 {
        let client = harness.client();
        let connected = Instant::now();
        let running = tokio::spawn(client.call::<_, u64>(method::SLEEP, (105_000_u64,)));
        sleep(89 * SECOND).await;
        let before = cuts(&harness, "age");
        let aged = timeout(30 * SECOND, async {
            while cuts(&harness, "age") == before {
                sleep(100 * MS).await;
            }
        });
        aged.await.expect("it does not age");
        (least, most) = (least.min(connected.elapsed()), most.max(connected.elapsed()));
        assert_eq!(running.await.unwrap().unwrap(), 105_000);
        let attempts = harness.network.attempts();
        let echo: String = client.call(method::ECHO, ("hi".to_owned(),)).await.unwrap();
        assert_eq!((&*echo, harness.network.attempts()), ("hi", attempts + 1));
        drop(client);
        harness.assert_idle().await;
    }
    assert!(least >= 90 * SECOND && most <= 111 * SECOND, "{least:?} to {most:?}");
    assert!(most - least > 5 * SECOND, "nothing is spread: {least:?} to {most:?}");
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_old_connection_are_cut_after_the_grace_and_told() {
    let harness = Harness::with(|builder| {
        builder.max_connection_age(100 * SECOND).max_connection_age_grace(7 * SECOND).keepalive_interval(None)
    });
    let mut peer = harness.peer().await;
    for (id, method) in [(1, method::GATE), (2, method::GATE_SPAWNED)] {
        peer.send(&Req::new(id, method, (id,)).bytes()).await;
    }
    sleep(80 * SECOND).await;
    let (last, reason, _) = peer.go_away().await;
    assert_eq!((last, reason), (2, GoAwayReason::Drain));
    let began = Instant::now();
    for _ in 0..2 {
        let Got::Response { code, executed, .. } = peer.next().await else { panic!("no answer") };
        assert_eq!((code, executed), (StatusCode::Unavailable, Executed::Maybe));
    }
    assert!(began.elapsed() >= 7 * SECOND && began.elapsed() <= 7_050 * MS, "{:?}", began.elapsed());
    assert!(matches!(peer.next().await, Got::End));
    drop(peer);
    harness.assert_idle().await;
    assert_eq!(cuts(&harness, "age"), 1);
    let drained = harness.handle.drain().await;
    assert!(drained.cut.is_empty(), "the shutdown has cut nothing: {drained:?}");
}
