//! Tells of every call, and gives it a span.

use rpc_core::TraceParent;
use tracing::{Span, field};

use crate::{
    Call,
    pipeline::{Answer, CallInfo, Decision, Handler, Interest, Outbound},
};

/// Opens a span of `tracing` for each call, at level INFO, and tells of refusals as events, at DEBUG.
///
/// The span is named `call` and has the fields `method`, `peer`, `call_id`, `remaining_ms` (if there is a
/// deadline), `trace_id` and `parent_id` (if the request has a W3C `traceparent`), and when the service
/// has ended `code`. The service runs within it, whichever task or thread that is in, so that its own
/// events belong to it. It closes when the call has ended.
///
/// Put first, it sees what every other handler refuses. Where nobody wants such spans, it costs a look.
#[derive(Debug, Default)]
pub struct TraceHandler(());

impl TraceHandler {
    /// A handler that tells of the calls of one connection.
    pub fn new() -> Self {
        Self(())
    }
}

/// The span of a call, put beside it.
#[derive(Clone, Debug)]
pub(crate) struct CallSpan(pub(crate) Span);

impl CallSpan {
    /// Notes how the service ended.
    pub(crate) fn end(&self, code: rpc_core::StatusCode) {
        self.0.record("code", code.name());
    }
}

impl Handler for TraceHandler {
    fn interest() -> Interest {
        Interest::REFUSALS
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let span = tracing::info_span!(
            "call",
            method = call.method().path(),
            peer = field::Empty,
            call_id = %call.id(),
            remaining_ms = field::Empty,
            trace_id = field::Empty,
            parent_id = field::Empty,
            code = field::Empty,
        );
        if span.is_disabled() {
            return Decision::Pass;
        }
        if let Some(peer) = call.connection().peer {
            span.record("peer", field::display(peer));
        }
        if let Some(left) = call.deadline().remaining(call.received()) {
            span.record("remaining_ms", u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        }
        let traceparent = call.metadata().get_str(TraceParent::KEY).and_then(|text| text.parse::<TraceParent>().ok());
        if let Some(parent) = traceparent {
            span.record("trace_id", format_args!("{:032x}", parent.trace_id()));
            span.record("parent_id", format_args!("{:016x}", parent.parent_id()));
        }
        call.extensions_mut().insert(CallSpan(span));
        Decision::Pass
    }

    fn outbound(&mut self, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
        if let Answer::Refusal(refusal) = response.answer() {
            let (method, reason) = (call.method.map_or("unknown", |method| method.path()), refusal.reason().name());
            tracing::debug!(method, call_id = %call.id, reason, limit = refusal.limit(), "call refused");
        }
    }
}
