//! Limits that change while calls run.

use std::time::Duration;

use sluicegate::{
    Client, StatusCode,
    limit::Rate,
    server::{BuildError, SetRateError},
};
use tokio::time::advance;

use crate::support::{Harness, Probe, method, shims::times};

async fn is_served(client: &Client) -> bool {
    client.call::<_, String>(method::ECHO, ("hi".to_owned(),)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_limit_set_below_what_is_in_flight_holds_once_enough_has_ended() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(10));
    let client = harness.client();
    let calls: Vec<_> =
        (0..10_u64).map(|ms| tokio::spawn(client.call::<_, u64>(method::SLEEP, (100 + 10 * ms,)))).collect();
    harness.until_running(10).await;
    harness.handle.set_max_concurrent_calls(Some(4)).unwrap();
    assert_eq!((harness.snapshot().calls.held, harness.snapshot().calls.max), (10, Some(4)));
    // One call ends every ten milliseconds; six must, before another is let in.
    let mut served = Vec::new();
    for (call, held) in calls.into_iter().zip((0..10).rev()) {
        call.await.unwrap().unwrap();
        harness.until_flushed(held).await;
        served.push(is_served(&client).await);
    }
    assert_eq!(served, [vec![false; 6], vec![true; 4]].concat());
    assert_eq!(harness.snapshot().calls.high_water, 10);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_raised_lets_more_in_at_once_and_none_at_all_is_no_limit() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(1));
    let client = harness.client();
    let mut calls = Vec::new();
    for limit in [1, 3, 7] {
        harness.handle.set_max_concurrent_calls(Some(limit)).unwrap();
        while calls.len() < limit as usize {
            calls.push(tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,))));
        }
        harness.until_running(limit as usize).await;
        assert!(!is_served(&client).await);
    }
    harness.handle.set_max_concurrent_calls(None).unwrap();
    assert!(is_served(&client).await);
    assert_eq!(harness.snapshot().calls.max, None);
    harness.probe.open_gate();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_turned_on_while_calls_run_counts_those_that_do() {
    let harness = Harness::new();
    let client = harness.client();
    for n in 0..times(1_000) {
        assert!(is_served(&client).await);
        let failed = client.call::<_, ()>(method::FAIL, (n.to_string(),)).await.unwrap_err();
        assert_eq!(failed.code(), StatusCode::NotFound);
        harness.until_flushed(0).await;
        assert_eq!(harness.snapshot().calls.held, 0);
    }
    // Two that run before there is a limit count in it, and exactly two more are let in.
    let gate = || tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    let mut calls = vec![gate(), gate()];
    harness.until_running(2).await;
    harness.handle.set_max_concurrent_calls(Some(4)).unwrap();
    calls.extend([gate(), gate()]);
    harness.until_running(4).await;
    for _ in 0..times(100) {
        assert!(!is_served(&client).await);
    }
    assert_eq!((harness.snapshot().calls.held, harness.probe.running()), (4, 4));
    harness.probe.open_gate();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    harness.until_flushed(0).await;
    assert!(is_served(&client).await);
    assert!(harness.handle.set_max_concurrent_calls(Some(0)).is_err());
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_changed_while_calls_come_holds_from_then_on_and_keeps_what_is_owed() {
    let harness = Harness::with(|builder| builder.rate(Rate::per_second(10.0).burst(1)));
    let client = harness.client();
    assert!(is_served(&client).await && !is_served(&client).await);
    harness.handle.set_rate(Rate::per_second(1_000.0).burst(5)).unwrap();
    // The debt is kept as time, but no longer than the new rate can owe.
    assert!(!is_served(&client).await);
    advance(Duration::from_millis(5)).await;
    for _ in 0..5 {
        assert!(is_served(&client).await);
    }
    assert!(!is_served(&client).await);
    harness.handle.set_rate(Rate::per_second(1.0).burst(1)).unwrap();
    advance(Duration::from_millis(1_005)).await;
    assert!(is_served(&client).await && !is_served(&client).await);
    assert!(matches!(harness.handle.set_rate(Rate::per_second(0.0)), Err(SetRateError::Rate(_))));
    advance(Duration::from_millis(1_000)).await;
    assert!(is_served(&client).await, "the old rate stays");
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_rate_limit_cannot_be_given_one_later() {
    let harness = Harness::new();
    assert!(matches!(harness.handle.set_rate(Rate::per_second(1.0)), Err(SetRateError::NoRateLimit)));
    harness.assert_idle().await;
}

#[test]
fn settings_that_cannot_be_are_refused_when_the_server_is_built() {
    let builder = || sluicegate::Server::builder().service(Probe::default());
    let error = |built: Result<sluicegate::Server, BuildError>| built.unwrap_err().to_string();
    assert!(matches!(builder().max_concurrent_calls(0).build(), Err(BuildError::Concurrency { limit: "global", .. })));
    assert!(matches!(
        builder().rate(Rate::per_second(0.0)).build(),
        Err(BuildError::Rate { limit: "global rate", .. })
    ));
    let burstless = builder().rate_per_connection(Rate::per_second(1.0).burst(0)).build();
    assert!(matches!(burstless, Err(BuildError::Rate { limit: "connection rate", .. })));
    assert!(matches!(builder().max_concurrent_calls_per_connection(0).build(), Err(BuildError::Zero { .. })));
    assert!(matches!(builder().max_connections(0).build(), Err(BuildError::Zero { .. })));
    for (setting, builder) in [
        ("handshake_timeout", builder().handshake_timeout(Duration::ZERO)),
        ("write_timeout", builder().write_timeout(Duration::ZERO)),
        ("min_write_rate", builder().min_write_rate(0)),
        ("first_byte_timeout", builder().first_byte_timeout(Duration::ZERO)),
    ] {
        assert_eq!(error(builder.build()), format!("{setting} must not be zero"));
    }
    assert!(error(builder().max_frame(1_000).build()).contains("65536"));
    assert!(error(builder().service(Probe::default()).build()).contains("test.Probe/echo"));
}
