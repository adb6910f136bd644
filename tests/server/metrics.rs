//! The server's figures through the `metrics` facade.
#![cfg(feature = "metrics")]

use std::time::Duration;

use sluicegate::server::WaitQueue;

use crate::support::{
    Harness, Req, method,
    probe::path,
    recorder::{Kept, documented},
};

#[tokio::test(start_paused = true)]
async fn figures_of_limits_queues_refusals_and_times_are_handed_over_under_bounded_labels() {
    let kept = Kept::default();
    let _here = metrics::set_default_local_recorder(&kept);
    let harness =
        Harness::with(|builder| builder.max_concurrent_calls(1).wait_queue(WaitQueue::of(1)).measure_calls(true));
    let exporting = tokio::spawn(harness.handle.clone().export_metrics(Duration::from_secs(1)));
    let mut peer = harness.peer().await;
    for id in 1..=3 {
        peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
    }
    peer.answer(3).await;
    harness.handle.record_metrics();
    let gauges = ["in_flight{limit=global}", "max{limit=global}", "waiting{limit=global}", "calls_parked{}"];
    assert_eq!(gauges.map(|name| kept.get(name)), [1, 1, 1, 2]);
    assert_eq!(["services_running{}", "in_flight{limit=connections}"].map(|name| kept.get(name)), [1, 1]);
    let zero = ["handshakes{}", "streams{}", "stream_bytes{}", "inbound_bytes{}", "accept_errors_total{}"];
    assert_eq!(zero.map(|name| kept.get(name)), [0; 5]);
    assert_eq!(kept.get("refused_total{by=global}"), 1);
    assert_eq!(kept.get("refusals_total{reason=QUEUE_FULL}"), 1);
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.answer(2).await;
    harness.until_flushed(0).await;
    harness.handle.record_metrics();
    let counters = ["acquired_total{limit=global}", "released_total{limit=global}", "panics_total{}"];
    assert_eq!(counters.map(|name| kept.get(name)), [2, 2, 0]);
    harness.handle.limits().set_max("global", None).unwrap();
    harness.handle.record_metrics();
    assert_eq!(kept.get("max{limit=global}"), u64::MAX, "it is infinite, and not what it was");
    let gate = path("gate");
    let histograms = [format!("service_seconds{{method={gate}}}"), format!("wait_seconds{{method={gate}}}")];
    assert_eq!(histograms.map(|name| kept.get(&name)), [2, 1]);
    peer.part().await;
    harness.handle.shutdown();
    exporting.await.expect("it ends with the server");
    kept.has_only(&documented(include_str!("../../rpc-server/src/metrics.rs")));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn connections_that_are_too_many_are_handed_over_by_their_limit() {
    let kept = Kept::default();
    let _here = metrics::set_default_local_recorder(&kept);
    let harness = Harness::with(|builder| builder.max_connections(1));
    let first = harness.peer().await;
    for _ in 0..3 {
        harness.silent_peer().go_away().await;
    }
    harness.handle.record_metrics();
    assert_eq!(kept.get("connections_turned_away_total{limit=connections}"), 3);
    kept.has_only(&documented(include_str!("../../rpc-server/src/metrics.rs")));
    first.part().await;
    harness.assert_idle().await;
}
