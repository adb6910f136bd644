//! What a service knows of its call, and what the calls it makes inherit.

use std::time::Duration;

use sluicegate::{Executed, StatusCode};
use tokio::time::{Instant, sleep};

use crate::support::{Harness, Req, method, probe::Seen};

const MS: Duration = Duration::from_millis(1);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test(start_paused = true)]
async fn a_service_sees_deadline_trace_and_metadata_of_its_call_inline_and_spawned() {
    let harness = Harness::new();
    let client = harness.client();
    for method in [method::CONTEXT, method::CONTEXT_SPAWNED] {
        let bare: Seen = client.call(method, ()).await.unwrap();
        assert_eq!(bare, (None, None, None, true));
        let call = client.call::<_, Seen>(method, ()).timeout(250 * MS);
        let seen = call.metadata("tenant", "acme").metadata("traceparent", TRACEPARENT).await.unwrap();
        assert_eq!(seen, (Some(250), Some(TRACE.to_owned()), Some("acme".to_owned()), true));
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_context_reused_by_the_next_call_shows_nothing_of_the_last() {
    let harness = Harness::new();
    let client = harness.client();
    for n in 0..50 {
        let tenant = format!("tenant {n}");
        let call = client.call::<_, Seen>(method::CONTEXT, ()).timeout(n * MS + MS);
        assert_eq!(call.metadata("tenant", &tenant).await.unwrap().2, Some(tenant));
        assert_eq!(client.call::<_, Seen>(method::CONTEXT, ()).await.unwrap(), (None, None, None, true));
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_made_by_a_service_inherits_what_is_left_of_the_time_and_the_trace_but_no_metadata() {
    let (outer, inner) = (Harness::new(), Harness::new());
    outer.probe.set_inner_client(inner.client());
    let client = outer.client();
    for method in [method::NESTED, method::NESTED_SPAWNED] {
        let call = client.call::<_, Seen>(method, ()).timeout(500 * MS).metadata("tenant", "acme");
        let (left, trace, tenant, current) = call.metadata("traceparent", TRACEPARENT).await.unwrap();
        let left = left.expect("the deadline is inherited");
        assert!((490..500).contains(&left), "{left} ms are left");
        assert_eq!((trace, tenant, current), (Some(TRACE.to_owned()), None, true));
        let bare: Seen = client.call(method, ()).await.unwrap();
        assert_eq!(bare, (None, None, None, true));
    }
    drop(client);
    outer.probe.drop_inner_client();
    outer.assert_idle().await;
    inner.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_ends_when_the_outer_caller_gives_up() {
    let (outer, inner) = (
        Harness::new(),
        Harness::with(|builder| {
            builder.pipeline(|pipeline, _| {
                pipeline.add_last("slow", Slow);
            })
        }),
    );
    outer.probe.set_inner_client(inner.client());
    let client = outer.client();
    for method in [method::NESTED, method::NESTED_SPAWNED] {
        let call = tokio::spawn(client.call::<_, Seen>(method, ()));
        inner.until_held(1).await;
        call.abort();
        outer.until_held(0).await;
        inner.until_held(0).await;
        let began = Instant::now();
        let error = client.call::<_, Seen>(method, ()).timeout(20 * MS).await.unwrap_err();
        assert_eq!(error.code(), StatusCode::DeadlineExceeded);
        assert!(began.elapsed() <= 22 * MS);
        outer.until_held(0).await;
        inner.until_held(0).await;
    }
    drop(client);
    outer.probe.drop_inner_client();
    outer.assert_idle().await;
    inner.assert_idle().await;
}

/// Lets every call wait for an hour.
struct Slow;

impl sluicegate::server::Handler for Slow {
    fn inbound(&mut self, _: &mut sluicegate::server::Call<'_>) -> sluicegate::server::Decision {
        sluicegate::server::Decision::Wait(Box::pin(async {
            sleep(Duration::from_secs(3_600)).await;
            sluicegate::server::Decision::Pass
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_through_the_same_full_limit_is_refused_and_does_not_wait() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(1));
    harness.probe.set_inner_client(harness.client());
    let client = harness.client();
    for method in [method::NESTED, method::NESTED_SPAWNED] {
        let error = client.call::<_, Seen>(method, ()).await.unwrap_err();
        assert_eq!(error.code(), StatusCode::ResourceExhausted);
        // The inner call was never executed; the outer one was.
        assert_eq!(error.executed(), Executed::Finished);
        harness.until_held(0).await;
    }
    assert_eq!(harness.refused("global"), 2);
    drop(client);
    harness.probe.drop_inner_client();
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn work_that_outlives_its_call_is_told_when_nobody_waits_any_more() {
    for method in [method::WATCHED, method::WATCHED_SPAWNED] {
        let harness = Harness::new();
        let client = harness.client();
        let given_up = tokio::spawn(client.call::<_, ()>(method, ()));
        harness.until_running(1).await;
        assert_eq!(harness.probe.cancellations_seen(), 0);
        given_up.abort();
        harness.until("it is told of a caller that gave up", |harness| harness.probe.cancellations_seen() == 1).await;
        client.call::<_, ()>(method, ()).timeout(10 * MS).await.unwrap_err();
        harness.until("it is told of a deadline", |harness| harness.probe.cancellations_seen() == 2).await;
        let mut lost = harness.peer().await;
        lost.send(&Req::new(1, method, ()).bytes()).await;
        harness.until_running(1).await;
        drop(lost);
        harness.until("it is told of a lost connection", |harness| harness.probe.cancellations_seen() == 3).await;
        harness.probe.open_gate();
        client.call::<_, ()>(method, ()).await.unwrap();
        sleep(1_000 * MS).await;
        assert_eq!(harness.probe.cancellations_seen(), 3, "an answered call is not cancelled");
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn work_is_told_when_the_future_that_serves_its_connection_is_dropped() {
    for method in [method::WATCHED, method::WATCHED_SPAWNED] {
        let harness = Harness::new();
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method, ()).bytes()).await;
        harness.until_running(1).await;
        harness.network.cut();
        harness.assert_idle().await;
        harness.until("it is told", |harness| harness.probe.cancellations_seen() == 1).await;
    }
}
