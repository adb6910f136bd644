//! What limits say while the server drains: whoever is refused shall go elsewhere, not come back later.

use std::time::Duration;

use sluicegate::{
    Executed, StatusCode,
    limit::Rate,
    server::{Decision, MethodLimits, ServerBuilder, WaitQueue},
};
use tokio::sync::watch;

use crate::support::{Harness, Req, handlers::Deciding, method, probe::path};

type Configure = fn(ServerBuilder) -> ServerBuilder;

/// A server on which calls of `echo` stand in front of all limits until they are let go.
fn held_back(limit: Configure) -> (Harness, watch::Sender<bool>) {
    let (go, _) = watch::channel(false);
    let sender = go.clone();
    let harness = Harness::with(|builder| {
        limit(builder).pipeline(move |pipeline, _| {
            let go = go.clone();
            let hold_back = Deciding(move |call: &mut sluicegate::server::Call<'_>| {
                if call.method().path() != path("echo") {
                    return Decision::Pass;
                }
                let mut go = go.subscribe();
                Decision::Wait(Box::pin(async move {
                    go.wait_for(|go| *go).await.expect("a sender");
                    Decision::Pass
                }))
            });
            pipeline.add_first("hold back", hold_back);
        })
    });
    (harness, sender)
}

#[tokio::test(start_paused = true)]
async fn whatever_limit_refuses_a_call_while_the_server_drains_it_says_to_go_elsewhere() {
    const ONE: Rate = Rate::per_second(1.0).burst(1);
    let limits: [(&str, Configure); 6] = [
        ("RATE_LIMIT", |builder| builder.rate(ONE)),
        ("RATE_LIMIT", |builder| builder.rate_per_connection(ONE)),
        ("CONCURRENCY_LIMIT", |builder| builder.max_concurrent_calls(1)),
        ("CONCURRENCY_LIMIT", |builder| {
            let pooled = || MethodLimits::new().pool("all");
            builder.pool("all", 1).method_limits(path("echo"), pooled()).method_limits(path("gate"), pooled())
        }),
        ("QUEUE_FULL", |builder| builder.max_concurrent_calls(1).wait_queue(WaitQueue::of(0))),
        ("QUEUE_TIMEOUT", |builder| {
            builder.max_concurrent_calls(1).wait_queue(WaitQueue::of(9).max_wait(Duration::from_millis(10)))
        }),
    ];
    for (reason, limit) in limits {
        for drains in [false, true] {
            let (harness, go) = held_back(limit);
            let mut peer = harness.peer().await;
            peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
            peer.send(&Req::new(2, method::ECHO, ("hi",)).bytes()).await;
            harness.until_running(1).await;
            if drains {
                harness.handle.shutdown();
                assert_eq!(peer.go_away().await.0, 2);
            }
            go.send_replace(true);
            let (status, _) = peer.answer(2).await;
            let expected = if drains { ("DRAINING", StatusCode::Unavailable) } else { (reason, status.code()) };
            assert_eq!((&*status.error_info().unwrap().reason, status.code()), expected, "{reason}");
            assert_eq!((status.executed(), drains && status.retry_delay().is_some()), (Executed::Never, false));
            assert_eq!(harness.snapshot().refused_by_reason[expected.0], 1, "{reason}");
            harness.probe.open_gate();
            peer.answer(1).await;
            drop(peer);
            harness.assert_idle().await;
        }
    }
}
