//! A client's figures for the `metrics` facade.

use std::{sync::Arc, time::Duration};

use metrics::{counter, gauge, histogram};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    client::Client,
    gauges::ClientSnapshot,
    intercept::{Finished, Interceptor, Outcome},
};

/// | name | kind | labels | meaning |
/// |---|---|---|---|
/// | `sluicegate_client_calls` | gauge | `client` | calls that are out |
/// | `sluicegate_client_waiting_for_connection` | gauge | `client` | calls that wait for a connection |
/// | `sluicegate_client_waiting_for_room` | gauge | `client` | calls that wait on a connection |
/// | `sluicegate_client_outbound_bytes` | gauge | `client` | bytes that the transport has not taken |
/// | `sluicegate_client_inbound_bytes` | gauge | `client` | bytes that callers have not fetched |
/// | `sluicegate_client_connected` | gauge | `client` | 1 with an open connection, otherwise 0 |
/// | `sluicegate_client_connects_total` | counter | `client` | connections made |
/// | `sluicegate_client_failed_connects_total` | counter | `client` | attempts that failed |
/// | `sluicegate_client_lost_connections_total` | counter | `client` | connections that ended without a farewell |
/// | `sluicegate_client_keepalive_timeouts_total` | counter | `client` | of these, those of servers that had vanished |
/// | `sluicegate_client_protocol_errors_total` | counter | `client` | of these, those of servers that broke the protocol |
/// | `sluicegate_client_late_answers_total` | counter | `client` | answers that nobody waited for |
/// | `sluicegate_client_call_seconds` | histogram | `method`, `code` | how long calls took, see [`MeasureCalls`] |
///
/// The label `client` is what the program calls the client, `code` one of the codes of a status, or OK, or DROPPED. A
/// server cannot add to any label.
impl Client {
    /// Hands the figures of this moment to the recorder of `metrics`, with the label `client`. Two clients of one
    /// program need two names, or each takes the other's figures for its own.
    pub fn record_metrics(&self, client: &'static str) {
        record(client, &self.snapshot());
    }

    /// Does so in this interval until the client is closed or the last of its handles and calls is gone, and once more
    /// then. To be spawned; it keeps no client alive.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends it.
    pub fn export_metrics(&self, client: &'static str, every: Duration) -> impl Future<Output = ()> + Send + use<> {
        let (shared, gauges) = (Arc::downgrade(self.shared()), Arc::clone(&self.shared().gauges));
        async move {
            let mut ticks = interval(every.max(Duration::from_millis(1)));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                match shared.upgrade().map(Self::from_shared) {
                    Some(living) if !living.is_closed() => living.record_metrics(client),
                    _ => break,
                }
            }
            record(client, &gauges.snapshot(false));
        }
    }
}

fn record(client: &'static str, snapshot: &ClientSnapshot) {
    for (name, value) in [
        ("sluicegate_client_calls", snapshot.calls),
        ("sluicegate_client_waiting_for_connection", snapshot.waiting_for_connection),
        ("sluicegate_client_waiting_for_room", snapshot.waiting_for_room),
        ("sluicegate_client_outbound_bytes", snapshot.outbound_bytes),
        ("sluicegate_client_inbound_bytes", snapshot.inbound_bytes),
        ("sluicegate_client_connected", snapshot.connected.into()),
    ] {
        gauge!(name, "client" => client).set(value as f64);
    }
    for (name, count) in [
        ("sluicegate_client_connects_total", snapshot.connects),
        ("sluicegate_client_failed_connects_total", snapshot.failed_connects),
        ("sluicegate_client_lost_connections_total", snapshot.lost_connections),
        ("sluicegate_client_keepalive_timeouts_total", snapshot.keepalive_timeouts),
        ("sluicegate_client_protocol_errors_total", snapshot.protocol_errors),
        ("sluicegate_client_late_answers_total", snapshot.late_answers),
    ] {
        counter!(name, "client" => client).absolute(count);
    }
}

/// Hands to `metrics` how long each call took and how it ended: the histogram `sluicegate_client_call_seconds`, whose
/// `code` is OK, the code of the error, or DROPPED of a call that its caller gave up. It costs each call an allocation and
/// what the recorder costs.
///
/// ```
/// use rpc_client::{Client, MeasureCalls};
///
/// let client = Client::builder("127.0.0.1:7000").interceptor(MeasureCalls).build();
/// # drop(client);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MeasureCalls;

impl Interceptor for MeasureCalls {
    fn after(&self, call: &Finished<'_>) {
        let code = match call.outcome {
            Outcome::Reply => "OK",
            Outcome::Error(error) => error.code().name(),
            Outcome::Dropped => "DROPPED",
        };
        histogram!("sluicegate_client_call_seconds", "method" => call.method.to_string(), "code" => code)
            .record(call.elapsed);
    }
}
