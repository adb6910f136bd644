//! Shutting down: what runs may finish, what comes is turned away, what stays is cut and named.

use std::time::Duration;

use rpc_codec::GoAwayReason;
use sluicegate::{CallError, Executed, StatusCode, server::Drained};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};

use crate::support::{Got, Harness, Req, assert_idle_soon, method, no_call_runs, raw::hello, shims::is_full};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn drain(harness: &Harness) -> JoinHandle<Drained> {
    let handle = harness.handle.clone();
    tokio::spawn(async move { handle.drain().await })
}

fn assert_clean(drained: &Drained) {
    assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
}

#[tokio::test(start_paused = true)]
async fn running_calls_finish_and_later_ones_are_turned_away_by_the_go_away() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    for (id, method) in [(1, method::GATE), (2, method::GATE_SPAWNED)] {
        peer.send(&Req::new(id, method, (id,)).bytes()).await;
    }
    harness.until_running(2).await;
    let drained = drain(&harness);
    assert_eq!(peer.go_away().await, (2, GoAwayReason::Drain, "the server is draining".to_owned()));
    peer.send(&Req::new(3, method::ECHO, ("late",)).bytes()).await;
    assert!(peer.peer.is_silent_for(1_000 * MS).await, "a call above the last gets no answer");
    harness.probe.open_gate();
    let mut rest = peer.peer.rest().await;
    rest.sort_by_key(|got| format!("{got:?}"));
    let good = |got: &Got, n| matches!(got, Got::Response { id, code: StatusCode::Ok, .. } if id.sequence() == n);
    assert!(rest.len() == 2 && good(&rest[0], 1) && good(&rest[1], 2), "{rest:?}");
    drop(peer);
    assert_clean(&drained.await.unwrap());
    assert_eq!(harness.probe.started(), 2);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_gets_its_answers_from_a_draining_server_and_then_goes_elsewhere() {
    let harness = Harness::new();
    let client = harness.client();
    let running = tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,)));
    harness.until_running(1).await;
    let drained = drain(&harness);
    sleep(MS).await;
    harness.network.set_down(true);
    let error = client.call::<_, u64>(method::GATE, (8_u64,)).await.unwrap_err();
    assert!(matches!(error, CallError::Connect { .. }), "it was to go by a new connection: {error:?}");
    assert_eq!(error.executed(), Executed::Never);
    harness.probe.open_gate();
    assert_eq!(running.await.unwrap().unwrap(), 7);
    assert_clean(&drained.await.unwrap());
    assert_eq!(harness.probe.started(), 1);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_told_and_closed_at_once() {
    let harness = Harness::new();
    let mut peers = Vec::new();
    for _ in 0..10 {
        peers.push(harness.peer().await);
    }
    let drained = drain(&harness);
    let began = Instant::now();
    for mut peer in peers {
        assert_eq!(peer.go_away().await.1, GoAwayReason::Drain);
        assert!(matches!(peer.next().await, Got::End));
    }
    assert_clean(&drained.await.unwrap());
    assert!(began.elapsed() < 10 * MS, "{:?}", began.elapsed());
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn who_has_not_said_hello_yet_is_told_that_the_server_drains() {
    let harness = Harness::new();
    let mut early = harness.silent_peer();
    yield_now().await;
    let drained = drain(&harness);
    // What it says now crosses the farewell: it must learn that its call was never executed.
    early.send(&[hello(), Req::new(1, method::ECHO, ("hi",)).bytes()].concat()).await;
    let mut late = harness.silent_peer();
    late.send(&hello()).await;
    for mut peer in [early, late] {
        let mut rest = peer.peer.rest().await;
        rest.retain(|got| !matches!(got, Got::Hello(_)));
        let [Got::GoAway { last, reason: GoAwayReason::Drain, .. }] = &rest[..] else { panic!("{rest:?}") };
        assert_eq!(last.sequence(), 0);
    }
    assert_clean(&drained.await.unwrap());
    assert_eq!(harness.probe.started(), 0);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_finish_within_the_grace_period_is_cut_told_and_named() {
    let harness = Harness::with(|builder| {
        builder.drain_grace(10_000 * MS).pipeline(|pipeline, _| {
            pipeline.add_last("waiting room", WaitForEver);
        })
    });
    let mut peer = harness.peer().await;
    let mut waiting = Req::new(3, method::ECHO, ("hi",));
    waiting.metadata.insert("wait", "").unwrap();
    let requests = [
        Req::new(1, method::GATE, (1_u64,)).bytes(),
        Req::new(2, method::GATE_SPAWNED, (2_u64,)).bytes(),
        waiting.bytes(),
    ];
    peer.send(&requests.concat()).await;
    harness.until_running(2).await;
    let began = Instant::now();
    let drained = drain(&harness);
    assert_eq!(peer.go_away().await.0, 3);
    let rest = peer.peer.rest().await;
    assert!(began.elapsed() >= 10_000 * MS && began.elapsed() < 10_050 * MS, "{:?}", began.elapsed());
    let mut told: Vec<_> = rest
        .iter()
        .map(|got| match got {
            Got::Response { id, code, executed, .. } => (id.sequence(), *code, *executed),
            other => panic!("{other:?}"),
        })
        .collect();
    told.sort_by_key(|(id, ..)| *id);
    let unavailable = StatusCode::Unavailable;
    let expected =
        [(1, unavailable, Executed::Maybe), (2, unavailable, Executed::Maybe), (3, unavailable, Executed::Never)];
    assert_eq!(told, expected);
    drop(peer);
    let mut drained = drained.await.unwrap();
    drained.cut.sort_by_key(|cut| cut.id);
    let cut: Vec<_> = drained.cut.iter().map(|cut| (cut.id.sequence(), &*cut.method, cut.started)).collect();
    assert_eq!(
        cut,
        [(1, "test.Probe/gate", true), (2, "test.Probe/gate_spawned", true), (3, "test.Probe/echo", false)]
    );
    assert_eq!((drained.stuck_connections, harness.probe.running(), harness.probe.finished()), (0, 0, 0));
    harness.assert_idle().await;
}

/// Lets calls with metadata `wait` wait for ever.
struct WaitForEver;

impl sluicegate::server::Handler for WaitForEver {
    fn inbound(&mut self, call: &mut sluicegate::server::Call<'_>) -> sluicegate::server::Decision {
        match call.metadata().get("wait") {
            Some(_) => sluicegate::server::Decision::Wait(Box::pin(std::future::pending())),
            None => sluicegate::server::Decision::Pass,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_does_not_keep_a_drain_beyond_its_grace() {
    let harness = Harness::with(|builder| builder.drain_grace(5_000 * MS).write_timeout(60_000 * MS));
    let mut peer = harness.peer_through(1024);
    peer.shake_hands().await;
    peer.send(&Req::new(1, method::LARGE, (200_000_u32,)).bytes()).await;
    peer.send(&Req::new(2, method::GATE, (2_u64,)).bytes()).await;
    harness.until_held(2).await;
    let began = Instant::now();
    let drained = drain(&harness).await.unwrap();
    assert!(began.elapsed() <= 6_500 * MS, "{:?}", began.elapsed());
    assert_eq!((drained.cut.len(), drained.stuck_connections), (1, 0));
    harness.assert_idle().await;
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_or_expires_during_a_drain_is_not_waited_for() {
    let harness = Harness::new();
    let client = harness.client();
    let given_up = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    let expiring = tokio::spawn(client.call::<_, u64>(method::GATE_SPAWNED, (2_u64,)).timeout(2_000 * MS));
    harness.until_running(2).await;
    let began = Instant::now();
    let drained = drain(&harness);
    sleep(1_000 * MS).await;
    given_up.abort();
    harness.until("the service of the call that was given up is gone", |harness| harness.probe.running() == 1).await;
    assert_eq!(expiring.await.unwrap().unwrap_err().code(), StatusCode::DeadlineExceeded);
    assert_clean(&drained.await.unwrap());
    assert!(began.elapsed() < 2_100 * MS, "{:?}", began.elapsed());
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn to_drain_twice_is_harmless() {
    let harness = Harness::with(|builder| builder.drain_grace(1_000 * MS));
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    harness.handle.shutdown();
    harness.handle.shutdown();
    let drains = [drain(&harness), drain(&harness)];
    assert_eq!(peer.go_away().await.1, GoAwayReason::Drain);
    let (status, _) = peer.answer(1).await;
    assert_eq!(status.code(), StatusCode::Unavailable);
    assert!(matches!(peer.next().await, Got::End), "one farewell is enough");
    drop(peer);
    let mut cut = 0;
    for drained in drains {
        cut += drained.await.unwrap().cut.len();
    }
    assert_eq!(cut, 1);
    assert_clean(&drain(&harness).await.unwrap());
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_the_server_drains_meets_no_obstacle() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    let drained = drain(&harness);
    peer.go_away().await;
    peer.leave().await;
    sleep(100 * MS).await;
    harness.probe.open_gate();
    assert_eq!(peer.reply::<u64>(1).await, 1);
    assert!(matches!(peer.next().await, Got::End));
    assert_clean(&drained.await.unwrap());
    harness.until_flushed(0).await;
    no_call_runs(&harness.handle);
    harness.assert_idle().await;
}

#[tokio::test]
async fn a_server_that_is_shut_down_leaves_its_port_at_once_and_answers_what_runs() {
    let harness = Harness::new();
    let sockets = harness.sockets().await;
    let (address, client) = (sockets.address, sockets.client());
    let running = tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,)));
    while harness.probe.running() == 0 {
        yield_now().await;
    }
    let (began, serving) = (std::time::Instant::now(), sockets.stop());
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        yield_now().await;
    }
    if is_full() {
        let took = began.elapsed();
        println!("nobody connects {took:?} after the shutdown has begun");
        assert!(took <= 50 * MS, "{took:?}");
    }
    let next = Harness::new();
    let next_sockets = next.sockets_at(address).await;
    // The next call goes to the next server, while the last one is still answered by the old.
    let echo: String = loop {
        match client.call(method::ECHO, ("hi".to_owned(),)).await {
            Ok(echo) => break echo,
            // It crossed the farewell of the old one.
            Err(CallError::GoingAway { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    };
    assert_eq!((&*echo, next.probe.started(), harness.probe.started()), ("hi", 1, 1));
    harness.probe.open_gate();
    assert_eq!(running.await.unwrap().unwrap(), 7);
    assert_clean(&serving.await.unwrap());
    assert_idle_soon(&harness.handle).await;
    drop(client);
    assert_clean(&next_sockets.shut_down().await);
    assert_idle_soon(&next.handle).await;
}

/// Nobody waits for its end: the connections keep the promise themselves.
#[tokio::test(start_paused = true)]
async fn the_grace_of_a_drain_holds_for_connections_that_have_a_longer_one_for_their_age() {
    let hour = Duration::from_secs(3_600);
    for before in [true, false] {
        let harness = Harness::with(|builder| {
            let builder = builder.max_connection_age(10 * SECOND).max_connection_age_grace(hour);
            builder.drain_grace(2 * SECOND).keepalive_interval(None)
        });
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method::SLEEP, (u64::from(u32::MAX),)).bytes()).await;
        harness.until_running(1).await;
        if before {
            assert_eq!(peer.go_away().await.1, GoAwayReason::Drain);
        }
        let began = Instant::now();
        harness.handle.shutdown();
        if !before {
            peer.go_away().await;
        }
        let (status, _) = peer.answer(1).await;
        assert_eq!((status.code(), status.executed()), (StatusCode::Unavailable, Executed::Maybe));
        let waited = began.elapsed();
        assert!(waited >= 2 * SECOND && waited <= 2 * SECOND + 20 * MS, "{waited:?}");
        drop(peer);
        harness.assert_idle().await;
    }
}

/// It has a second to close, and a shutdown without a grace gives it less.
#[tokio::test(start_paused = true)]
async fn a_connection_that_was_turned_away_just_now_is_not_stuck() {
    let harness = Harness::with(|builder| builder.max_connections(1).drain_grace(Duration::ZERO));
    let first = harness.peer().await;
    let mut second = harness.silent_peer();
    assert_eq!(second.go_away().await.1, GoAwayReason::TooManyConnections);
    let drained = harness.handle.drain().await;
    assert_eq!((drained.stuck_connections, drained.cut.len()), (0, 0));
    drop((first, second));
    harness.assert_idle().await;
}
