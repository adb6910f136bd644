//! The server's figures for the `metrics` facade, and so for whatever collects them.

use std::time::Duration;

use metrics::{Histogram, counter, gauge, histogram};
use tokio::time::{MissedTickBehavior, interval};

use crate::{Snapshot, live::LimitInfo, server::ServerHandle};

/// | name | kind | labels | meaning |
/// |---|---|---|---|
/// | `sluicegate_in_flight` | gauge | `limit` | what is in use of a limit: calls, or connections, or bytes |
/// | `sluicegate_max` | gauge | `limit` | its maximum; infinite, if it has none |
/// | `sluicegate_waiting` | gauge | `limit` | calls that wait for it, if they can |
/// | `sluicegate_acquired_total` | counter | `limit` | permits ever given out |
/// | `sluicegate_released_total` | counter | `limit` | permits ever given back |
/// | `sluicegate_refused_total` | counter | `by` | calls turned away, by the limit, or by the reason without one |
/// | `sluicegate_refusals_total` | counter | `reason` | the same calls by the reason: QUEUE_FULL and QUEUE_TIMEOUT are those of queues |
/// | `sluicegate_would_refuse_total` | counter | `by` | the same in a dry run, where they passed |
/// | `sluicegate_calls_parked` | gauge | | calls that wait in the pipeline or for their service |
/// | `sluicegate_services_running` | gauge | | of these, calls whose service was called |
/// | `sluicegate_handshakes` | gauge | | connections whose client has not said HELLO |
/// | `sluicegate_streams` | gauge | | calls with items |
/// | `sluicegate_stream_bytes` | gauge | | bytes of items that wait |
/// | `sluicegate_classes_shed` | gauge | | how many classes of calls are turned away |
/// | `sluicegate_tenants` | gauge | | tenants that have limits of their own |
/// | `sluicegate_tenants_forgotten_total` | counter | | tenants forgotten for others |
/// | `sluicegate_buffered_bytes` | gauge | | bytes of responses not taken yet |
/// | `sluicegate_inbound_bytes` | gauge | | bytes received whose frames are not whole, or wait their turn |
/// | `sluicegate_items_paced_total` | counter | | items of clients that had to wait for a rate |
/// | `sluicegate_connections_cut_total` | counter | `reason` | connections given up |
/// | `sluicegate_connections_turned_away_total` | counter | `limit` | connections that were too many, of the server or of their address |
/// | `sluicegate_panics_total` | counter | | panics that cost a call |
/// | `sluicegate_protocol_errors_total` | counter | | connections closed because of the peer |
/// | `sluicegate_accept_errors_total` | counter | | attempts to accept that failed |
/// | `sluicegate_service_seconds` | histogram | `method` | how long calls took that have succeeded |
/// | `sluicegate_wait_seconds` | histogram | `method` | how long calls waited that got their permit |
///
/// Every label has as many values as there are limits, methods or reasons: a client cannot add to them. The
/// histograms are there with [`crate::ServerBuilder::measure_calls`].
impl ServerHandle {
    /// Hands the figures of this moment to the recorder of `metrics`.
    pub fn record_metrics(&self) {
        let limits = self.limits();
        limits.list().iter().for_each(record_limit);
        record_snapshot(&limits.snapshot());
    }

    /// Does so in this interval until the server is shut down, and once more then. To be spawned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends it.
    pub async fn export_metrics(self, every: Duration) {
        let mut ticks = interval(every.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while self.is_serving_after(ticks.tick()).await {
            self.record_metrics();
        }
        self.record_metrics();
    }
}

fn record_limit(limit: &LimitInfo) {
    let name = limit.name;
    gauge!("sluicegate_in_flight", "limit" => name).set(limit.figures.held as f64);
    // Not left out if there is none: it would stay what it was before.
    gauge!("sluicegate_max", "limit" => name).set(limit.figures.max.map_or(f64::INFINITY, |max| max as f64));
    if limit.max_waiting.is_some() {
        gauge!("sluicegate_waiting", "limit" => name).set(limit.waiting as f64);
    }
    counter!("sluicegate_acquired_total", "limit" => name).absolute(limit.figures.acquired);
    counter!("sluicegate_released_total", "limit" => name).absolute(limit.figures.released);
}

fn record_snapshot(snapshot: &Snapshot) {
    for (by, count) in &snapshot.refused {
        counter!("sluicegate_refused_total", "by" => *by).absolute(*count);
    }
    for (reason, count) in &snapshot.refused_by_reason {
        counter!("sluicegate_refusals_total", "reason" => *reason).absolute(*count);
    }
    for (by, count) in &snapshot.would_refuse {
        counter!("sluicegate_would_refuse_total", "by" => *by).absolute(*count);
    }
    for (reason, count) in &snapshot.connections_cut {
        counter!("sluicegate_connections_cut_total", "reason" => *reason).absolute(*count);
    }
    for (limit, count) in &snapshot.connections_turned_away {
        counter!("sluicegate_connections_turned_away_total", "limit" => *limit).absolute(*count);
    }
    gauge!("sluicegate_calls_parked").set(snapshot.calls_parked as f64);
    gauge!("sluicegate_services_running").set(snapshot.services_running as f64);
    gauge!("sluicegate_handshakes").set(snapshot.handshakes as f64);
    gauge!("sluicegate_streams").set(snapshot.streams as f64);
    gauge!("sluicegate_stream_bytes").set(snapshot.stream_bytes as f64);
    gauge!("sluicegate_classes_shed").set(snapshot.classes_shed as f64);
    gauge!("sluicegate_tenants").set(snapshot.tenants.known as f64);
    counter!("sluicegate_tenants_forgotten_total").absolute(snapshot.tenants.forgotten);
    gauge!("sluicegate_buffered_bytes").set(snapshot.buffered_bytes as f64);
    gauge!("sluicegate_inbound_bytes").set(snapshot.inbound_bytes as f64);
    counter!("sluicegate_items_paced_total").absolute(snapshot.items_paced);
    counter!("sluicegate_panics_total").absolute(snapshot.panics);
    counter!("sluicegate_protocol_errors_total").absolute(snapshot.protocol_errors);
    counter!("sluicegate_accept_errors_total").absolute(snapshot.accept_errors);
}

/// The histograms of one method; found once, since to find them costs more than to record.
pub(crate) struct MethodHistograms {
    pub(crate) service: Histogram,
    pub(crate) wait: Histogram,
}

impl MethodHistograms {
    pub(crate) fn new(path: &str) -> Self {
        Self {
            service: histogram!("sluicegate_service_seconds", "method" => path.to_owned()),
            wait: histogram!("sluicegate_wait_seconds", "method" => path.to_owned()),
        }
    }
}

impl std::fmt::Debug for MethodHistograms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MethodHistograms").finish_non_exhaustive()
    }
}
