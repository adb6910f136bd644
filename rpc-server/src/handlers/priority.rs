//! Turns away calls of lower classes while those of higher ones find no room.

use std::sync::Arc;

use rpc_core::{Refusal, RefusalReason, limit::PriorityGate};

use super::rate::with_jitter;
use crate::{
    Call,
    gauges::PRIORITY,
    pipeline::{Decision, Handler, Interest},
};

/// Lets calls pass by their class. Whether there is room for others is learned where calls are refused, at once or
/// when they have waited, by [`Connection::refuse_call`](crate::connection::Connection::refuse_call).
#[derive(Debug)]
pub(crate) struct PriorityHandler {
    gate: Arc<PriorityGate>,
}

impl PriorityHandler {
    pub(crate) fn new(gate: Arc<PriorityGate>) -> Self {
        Self { gate }
    }
}

impl Handler for PriorityHandler {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn limits_load() -> bool {
        true
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let class = call.priority();
        match self.gate.admit(class, call.received_ticks()) {
            Ok(()) => Decision::Pass,
            Err(refusal) => {
                let refused = Refusal::new(RefusalReason::PriorityShed)
                    .with_limit(PRIORITY, refusal.classes_shed, class.into())
                    .with_retry_delay(with_jitter(refusal.retry_after));
                Decision::Refuse(refused)
            }
        }
    }
}
