//! Calls that a limit turns away: who refused and why, when to come back, and that nothing ran.

use std::time::Duration;

use sluicegate::{CallError, Client, Executed, Status, StatusCode, limit::Rate, server::ServerBuilder};
use tokio::time::{advance, sleep};

use crate::support::{Harness, Req, method, no_call_runs};

const MS: Duration = Duration::from_millis(1);

async fn echo(client: &Client) -> Result<String, CallError> {
    client.call(method::ECHO, ("hi".to_owned(),)).await
}

fn status(error: CallError) -> Status {
    match error {
        CallError::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Checks a refusal: its limit, reason and figures, and that it was not executed.
fn assert_refused(status: &Status, limit: &str, reason: &str, figures: &[(&str, &str)]) {
    assert_eq!((status.code(), status.executed()), (StatusCode::ResourceExhausted, Executed::Never));
    let info = status.error_info().unwrap();
    assert_eq!((&*info.reason, &*info.domain), (reason, "sluicegate"));
    assert_eq!(info.metadata.get_str("limit"), Some(limit));
    for (key, value) in figures {
        assert_eq!(info.metadata.get_str(key), Some(*value), "{key}");
    }
    assert!(!status.message().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_on_concurrency_names_the_limit_and_what_is_in_flight() {
    let global = |builder: ServerBuilder| builder.max_concurrent_calls(3);
    let connection = |builder: ServerBuilder| builder.max_concurrent_calls_per_connection(3);
    let both = |builder: ServerBuilder| builder.max_concurrent_calls(5).max_concurrent_calls_per_connection(3);
    let cases = [
        ("global", Harness::with(|builder| global(builder).concurrency_retry_delay(80 * MS))),
        ("connection", Harness::with(|builder| connection(builder).concurrency_retry_delay(80 * MS))),
        ("connection", Harness::with(|builder| both(builder).concurrency_retry_delay(80 * MS))),
    ];
    for (limit, harness) in cases {
        // Not through a client of ours, which keeps to what the server advises.
        let mut peer = harness.peer().await;
        for id in 1..=3_u64 {
            peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
        }
        harness.until_held(3).await;
        for id in 4..=20 {
            peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
            let (status, _) = peer.answer(id).await;
            assert_refused(&status, limit, "CONCURRENCY_LIMIT", &[("max_in_flight", "3"), ("in_flight", "3")]);
            let delay = status.retry_delay().unwrap();
            assert!(delay >= 80 * MS && delay <= 90 * MS, "{delay:?}");
        }
        assert_eq!((harness.refused(limit), harness.probe.started()), (17, 3));
        assert_eq!(harness.snapshot().calls.acquired, 3, "a refused call never held a permit");
        harness.probe.open_gate();
        for _ in 1..=3 {
            peer.next().await;
        }
        harness.until_flushed(0).await;
        peer.send(&Req::new(21, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(peer.reply::<String>(21).await, "hi");
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_the_server_is_one_for_all_connections_and_that_of_a_connection_is_its_own() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(5).max_concurrent_calls_per_connection(2));
    let mut peers = Vec::new();
    for held in [2, 4, 5] {
        let mut peer = harness.peer().await;
        for id in 1..=2_u64 {
            peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
        }
        harness.until_held(held).await;
        peers.push(peer);
    }
    let (status, _) = peers[2].answer(2).await;
    assert_refused(&status, "global", "CONCURRENCY_LIMIT", &[("max_in_flight", "5"), ("in_flight", "5")]);
    peers[0].send(&Req::new(3, method::ECHO, ("hi",)).bytes()).await;
    let (status, _) = peers[0].answer(3).await;
    assert_refused(&status, "connection", "CONCURRENCY_LIMIT", &[("max_in_flight", "2"), ("in_flight", "2")]);
    // What the connection had taken narrowly it gave back when the wide limit refused.
    drop(peers.remove(0));
    harness.until_held(3).await;
    peers[1].send(&Req::new(3, method::GATE, (3_u64,)).bytes()).await;
    harness.until_held(4).await;
    drop(peers);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn with_a_limit_of_one_of_two_calls_at_once_exactly_one_passes_every_time() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(1));
    let harness = harness.plain("a call whose answer is still being flushed is in flight");
    let (first, second) = (harness.client(), harness.client());
    for _ in 0..100 {
        harness.probe.close_gate();
        let calls = [&first, &second].map(|client| tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,))));
        harness
            .until("one was refused", |harness| {
                calls.iter().any(|call| call.is_finished()) && harness.probe.running() == 1
            })
            .await;
        harness.probe.open_gate();
        let mut good = 0;
        for call in calls {
            good += u32::from(call.await.unwrap().is_ok());
        }
        assert_eq!(good, 1);
    }
    assert_eq!((harness.refused("global"), harness.probe.high_water()), (100, 1));
    drop((first, second));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn coming_back_when_a_rate_says_passes_and_earlier_does_not() {
    let per_connection = |builder: ServerBuilder| builder.rate_per_connection(Rate::per_second(10.0).burst(2));
    let global = |builder: ServerBuilder| builder.rate(Rate::per_second(10.0).burst(2));
    let cases = [("connection rate", Harness::with(per_connection)), ("global rate", Harness::with(global))];
    for (limit, harness) in cases {
        let client = harness.client();
        echo(&client).await.unwrap();
        echo(&client).await.unwrap();
        for round in 0..20 {
            let refusal = status(echo(&client).await.unwrap_err());
            assert_refused(&refusal, limit, "RATE_LIMIT", &[("max_per_second", "10"), ("burst", "2")]);
            let delay = refusal.retry_delay().unwrap();
            assert!(delay > Duration::ZERO && delay <= 113 * MS, "{delay:?}");
            // Up to an eighth is jitter.
            let early = delay.mul_f64(0.88);
            advance(early).await;
            assert!(echo(&client).await.is_err(), "round {round}: {delay:?} was more than had to be");
            advance(delay - early).await;
            echo(&client).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        assert_eq!(harness.refused(limit), 40);
        assert_eq!(harness.probe.started(), 22);
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_a_connection_is_its_own_and_that_of_the_server_everybodys() {
    let harness = Harness::with(|builder| {
        let narrow = Rate::per_second(1.0).burst(3);
        builder.rate_per_connection(narrow).rate(Rate::per_second(1.0).burst(5))
    });
    let (first, second) = (harness.client(), harness.client());
    for _ in 0..3 {
        echo(&first).await.unwrap();
    }
    assert_refused(&status(echo(&first).await.unwrap_err()), "connection rate", "RATE_LIMIT", &[("burst", "3")]);
    for _ in 0..2 {
        echo(&second).await.unwrap();
    }
    assert_refused(&status(echo(&second).await.unwrap_err()), "global rate", "RATE_LIMIT", &[("burst", "5")]);
    drop((first, second));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_token_is_restored_when_a_later_limit_refuses() {
    let harness = Harness::with(|builder| {
        let rate = Rate::per_second(0.001).burst(3);
        builder.rate(rate).rate_per_connection(rate).max_concurrent_calls(1)
    });
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    // Two tokens are left in each bucket, and stay there however often concurrency refuses.
    for id in 2..=50 {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        let (status, _) = peer.answer(id).await;
        assert_refused(&status, "global", "CONCURRENCY_LIMIT", &[]);
    }
    harness.probe.open_gate();
    peer.answer(1).await;
    harness.until_flushed(0).await;
    for id in [51, 52] {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(peer.reply::<String>(id).await, "hi");
        harness.until_flushed(0).await;
    }
    peer.send(&Req::new(53, method::ECHO, ("hi",)).bytes()).await;
    let (status, _) = peer.answer(53).await;
    assert_refused(&status, "connection rate", "RATE_LIMIT", &[]);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_a_burst_that_concurrency_refuses_in_one_read_are_restored() {
    let harness = Harness::with(|builder| builder.rate(Rate::per_second(0.001).burst(40)).max_concurrent_calls(1));
    let mut peer = harness.peer().await;
    let requests: Vec<_> = (1..=40_u64).map(|id| Req::new(id, method::GATE, (id,)).bytes()).collect();
    peer.send(&requests.concat()).await;
    for id in 2..=40 {
        assert_refused(&peer.answer(id).await.0, "global", "CONCURRENCY_LIMIT", &[]);
    }
    harness.probe.open_gate();
    peer.answer(1).await;
    harness.until_flushed(0).await;
    for id in 41..=79 {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(peer.reply::<String>(id).await, "hi");
        harness.until_flushed(0).await;
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_call_costs_no_token_and_no_permit() {
    let harness = Harness::with(|builder| builder.rate(Rate::per_second(0.001).burst(2)).max_concurrent_calls(1));
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::ECHO, ("hi",)).head(|head| head.sent_at_us = 2_000_000).bytes()).await;
    peer.answer(1).await;
    for id in 2..=20 {
        let request = Req::new(id, method::ECHO, ("hi",)).head(|head| head.sent_at_us = 1_000_000);
        peer.send(&request.timeout(10 * MS).bytes()).await;
        assert_eq!(peer.answer(id).await.0.code(), StatusCode::DeadlineExceeded);
    }
    peer.send(&Req::new(21, method::ECHO, ("hi",)).head(|head| head.sent_at_us = 2_000_000).bytes()).await;
    assert_eq!(peer.reply::<String>(21).await, "hi");
    assert_eq!(harness.snapshot().calls.acquired, 2);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_behind_the_limits_gives_its_permit_back() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(1));
    let mut peer = harness.peer().await;
    for id in 1..=500 {
        // Admitted, then found to have a bad body.
        peer.send(&Req::new(id, method::ECHO, ()).bytes()).await;
        assert_eq!(peer.answer(id).await.0.code(), StatusCode::InvalidArgument);
        harness.until_flushed(0).await;
    }
    no_call_runs(&harness.handle);
    assert_eq!(harness.snapshot().calls.acquired, 500);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_saturated_for_a_while_is_as_good_as_new_when_it_is_over() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(8));
    let mut peers = Vec::new();
    for _ in 0..5 {
        let mut peer = harness.peer().await;
        for id in 1..=200_u64 {
            peer.send(&Req::new(id, method::SLEEP, (5_u64,)).bytes()).await;
        }
        peers.push(peer);
    }
    sleep(2 * MS).await;
    assert!(harness.snapshot().calls.held <= 8 && harness.refused("global") > 900);
    // All are killed in the middle of it.
    drop(peers);
    harness.assert_idle().await;
    let client = harness.client();
    echo(&client).await.unwrap();
    assert!(harness.probe.high_water() <= 8);
    drop(client);
    harness.assert_idle().await;
}
