//! The trace of calls: what each carries along, and what is told of it.

use rpc_core::{Context, Metadata, Status, TraceParent};

use crate::intercept::{Finished, Interceptor, Outcome, Outgoing};

/// Gives a call the trace of the call within which it is made, one step further, unless it has one.
pub(crate) fn inherit(metadata: &mut Metadata, outer: &Context) {
    if metadata.get(TraceParent::KEY).is_some() {
        return;
    }
    let of_outer = outer.metadata();
    // What is no trace is not passed on: so W3C has it.
    let Some(parent) = of_outer.get_str(TraceParent::KEY).and_then(|text| text.parse::<TraceParent>().ok()) else {
        return;
    };
    // There may be no room for it; the trace is then lost, not the call.
    if metadata.insert(TraceParent::KEY, parent.child(fastrand::u64(..)).to_string()).is_ok()
        && let Some(state) = of_outer.get(TraceParent::STATE_KEY)
    {
        let _ = metadata.insert(TraceParent::STATE_KEY, state);
    }
}

/// Begins a trace where there is none, and tells how each call ended.
#[derive(Debug)]
pub(crate) struct TraceCalls;

impl Interceptor for TraceCalls {
    fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status> {
        if call.metadata().get(TraceParent::KEY).is_none() {
            let begun = TraceParent::new(fastrand::u128(..), fastrand::u64(..), true);
            let _ = call.insert(TraceParent::KEY, begun.to_string());
        }
        Ok(())
    }

    fn after(&self, call: &Finished<'_>) {
        let method = call.method;
        let elapsed_us = u64::try_from(call.elapsed.as_micros()).unwrap_or(u64::MAX);
        let traceparent = call.metadata.get_str(TraceParent::KEY).unwrap_or_default();
        match call.outcome {
            Outcome::Reply => tracing::debug!(%method, elapsed_us, traceparent, code = "OK", "call"),
            Outcome::Error(error) => {
                let (code, executed) = (error.code().name(), error.executed());
                tracing::debug!(%method, elapsed_us, traceparent, code, ?executed, %error, "call failed");
            }
            Outcome::Dropped => tracing::debug!(%method, elapsed_us, traceparent, "call given up"),
        }
    }
}
