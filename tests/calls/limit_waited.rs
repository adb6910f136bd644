//! What limits say of calls that waited before they came to them: for a handler, or for the rest of a body.

use std::time::Duration;

use sluicegate::{
    Executed, StatusCode,
    limit::Rate,
    server::{Call, Decision, ServerBuilder, WaitQueue},
};
use tokio::time::{Instant, sleep};

use crate::support::{
    Got, Harness, Req,
    bodies::{LEN64, NARROW, assert_refused, is_alive, status_of, wire},
    handlers::Deciding,
    method,
    parts::{opening, untouched},
    raw::cancel,
};

const MS: Duration = Duration::from_millis(1);

/// A handler in front of all others lets each call wait so long.
fn behind_a_wait(builder: ServerBuilder, time: Duration) -> ServerBuilder {
    builder.pipeline(move |pipeline, _| {
        let wait = move |_: &mut Call<'_>| {
            Decision::Wait(Box::pin(async move {
                sleep(time).await;
                Decision::Pass
            }))
        };
        pipeline.add_first("wait", Deciding(wait));
    })
}

#[tokio::test(start_paused = true)]
async fn however_long_calls_waited_a_rate_lets_as_many_pass_as_its_bucket_has_then() {
    for (seconds, of_connection) in [(1, false), (3, false), (20, false), (3, true)] {
        let rate = Rate::per_second(1.0).burst(5);
        let harness = Harness::with(|builder| {
            let builder = behind_a_wait(builder, Duration::from_secs(seconds));
            if of_connection { builder.rate_per_connection(rate) } else { builder.rate(rate) }
        });
        let mut peer = harness.peer().await;
        for id in 1..=40 {
            peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        }
        let mut passed = 0;
        for _ in 1..=40 {
            match peer.next().await {
                Got::Response { code: StatusCode::Ok, .. } => passed += 1,
                Got::Response { status, executed: Executed::Never, .. } => {
                    assert!(status.retry_delay().unwrap() > 900 * MS, "{status:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(passed, 5, "after {seconds} s");
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_in_a_queue_counts_from_when_a_call_came_to_it() {
    let harness = Harness::with(|builder| {
        let queue = WaitQueue::of(8).max_wait(100 * MS);
        behind_a_wait(builder, 400 * MS).wait_queue(queue).max_concurrent_calls(1)
    });
    let mut peer = harness.peer().await;
    let began = Instant::now();
    for id in 1..=2 {
        peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
    }
    let (status, _) = peer.answer(2).await;
    assert_eq!(&*status.error_info().unwrap().reason, "QUEUE_TIMEOUT");
    assert_eq!(began.elapsed().as_millis(), 500);
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_in_vain_is_told_of_the_limit_that_it_waited_for_at_last() {
    let harness = Harness::with(|builder| {
        let queue = WaitQueue::of(8).max_wait(100 * MS);
        builder.wait_queue(queue).max_concurrent_calls(2).max_concurrent_calls_per_connection(1)
    });
    let (mut peer, mut second, mut third) = (harness.peer().await, harness.peer().await, harness.peer().await);
    let gate = |id: u64| Req::new(id, method::GATE, (id,)).bytes();
    let began = Instant::now();
    for id in 1..=2 {
        peer.send(&gate(id)).await;
    }
    harness.until("it waits", |harness| harness.snapshot().calls_waiting == 1).await;
    second.send(&gate(1)).await;
    harness.until_running(2).await;
    third.send(&gate(1)).await;
    harness.until("both wait", |harness| harness.snapshot().calls_waiting == 2).await;
    // Its connection has room then, and the server has given that to the other that waits.
    peer.send(&cancel(1)).await;
    harness.until("one waits", |harness| harness.snapshot().calls_waiting == 1).await;
    let (status, _) = peer.answer(2).await;
    let info = status.error_info().unwrap();
    assert_eq!((&*info.reason, info.metadata.get_str("limit")), ("QUEUE_TIMEOUT", Some("global")));
    assert!((100..102).contains(&began.elapsed().as_millis()), "since it came, wherever it was: {began:?}");
    harness.probe.open_gate();
    for mut peer in [second, third] {
        peer.answer(1).await;
        peer.part().await;
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_no_longer_fits_its_budget_is_told_that_it_is_no_use_to_come_back() {
    let harness = crate::support::bodies::serve(|builder| builder);
    let limits = harness.handle.limits();
    for name in ["connection bodies", "global bodies"] {
        limits.set_max(name, Some(100_000)).unwrap();
        let mut wire = wire(&harness, NARROW).await;
        wire.send(&opening(untouched(1, method::BYTES), LEN64 as usize, &[7; 10])).await;
        let status = status_of(&wire.piece().await);
        let figures = [("limit", name), ("max_in_flight", "100000"), ("weight", "600000")];
        let figures = figures.map(|(key, value)| (key, value.to_owned()));
        assert_refused(&status, StatusCode::FailedPrecondition, "CONCURRENCY_NEVER_PASSES", &figures);
        assert_eq!(status.retry_delay(), None);
        is_alive(&mut wire, 2).await;
        drop(wire);
        limits.set_max(name, Some(1 << 24)).unwrap();
    }
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_longest_delay_is_told_like_any_other() {
    let never_again = |builder: ServerBuilder| {
        builder.max_concurrent_calls(1).max_concurrent_calls_per_connection(2).concurrency_retry_delay(Duration::MAX)
    };
    for harness in [
        Harness::with(never_again),
        Harness::with(|builder| never_again(builder).wait_queue(WaitQueue::of(0))),
        Harness::with(|builder| never_again(builder).max_bytes_in_flight(8 << 20)),
    ] {
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
        harness.until_running(1).await;
        peer.send(&Req::new(2, method::ECHO, ("hi",)).bytes()).await;
        let (status, _) = peer.answer(2).await;
        assert!(status.retry_delay().unwrap() > Duration::from_secs(1 << 40), "{status:?}");
        harness.probe.open_gate();
        peer.answer(1).await;
        peer.part().await;
        harness.assert_idle().await;
    }
}
