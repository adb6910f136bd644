//! Turns away calls of lower classes while those of higher ones find no room.

use std::sync::Arc;

use rpc_core::{
    CallId, Refusal, RefusalReason,
    limit::{PriorityGate, Ticks},
};

use super::rate::jitter;
use crate::{
    Call,
    gauges::PRIORITY,
    pipeline::{Answer, CallInfo, Decision, Handler, Interest, Outbound},
};

/// Lets calls pass by their class, and learns from what later handlers refuse whether there is room.
///
/// Only refusals of calls in flight count: a call above its rate says nothing about the server.
#[derive(Debug)]
pub(crate) struct PriorityHandler {
    gate: Arc<PriorityGate>,
    /// The last call that passed here.
    last: Option<(CallId, u8, Ticks)>,
}

impl PriorityHandler {
    pub(crate) fn new(gate: Arc<PriorityGate>) -> Self {
        Self { gate, last: None }
    }
}

impl Handler for PriorityHandler {
    fn interest() -> Interest {
        Interest::REFUSALS
    }

    fn limits_load() -> bool {
        true
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let (class, now) = (call.priority(), call.received_ticks());
        match self.gate.admit(class, now) {
            Ok(()) => {
                self.last = Some((call.id(), class, now));
                Decision::Pass
            }
            Err(refusal) => {
                let refused = Refusal::new(RefusalReason::PriorityShed)
                    .with_limit(PRIORITY, refusal.classes_shed, class.into())
                    .with_retry_delay(refusal.retry_after + jitter(refusal.retry_after));
                Decision::Refuse(refused)
            }
        }
    }

    fn outbound(&mut self, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
        let Some((_, class, now)) = self.last.take_if(|(id, ..)| *id == call.id) else { return };
        if let Answer::Refusal(refusal) = response.answer()
            && matches!(refusal.reason(), RefusalReason::ConcurrencyLimit | RefusalReason::QueueFull)
        {
            self.gate.refused(class, now);
        }
    }
}
