//! Turns away calls when as many are in flight as allowed.

use std::{sync::Arc, time::Duration};

use rpc_core::{Refusal, RefusalReason, limit::ConcurrencyLimit};

use super::rate::jitter;
use crate::{
    Call,
    pipeline::{Decision, Handler, Interest},
};

/// Takes a permit of a limit and of those it lies within, narrow to wide, all or nothing.
///
/// The permit travels with the call until its response has been written or the connection is gone.
#[derive(Debug)]
pub struct ConcurrencyHandler {
    narrowest: Arc<ConcurrencyLimit>,
    retry_delay: Duration,
}

impl ConcurrencyHandler {
    /// A handler of `narrowest` and its wider limits, that tells refused calls to come back after
    /// about `retry_delay`. Nobody knows when a call in flight will end, so unlike a rate's it is a
    /// guess; about the time a call takes is a good one.
    pub fn new(narrowest: Arc<ConcurrencyLimit>, retry_delay: Duration) -> Self {
        Self { narrowest, retry_delay }
    }
}

impl Handler for ConcurrencyHandler {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        match self.narrowest.try_acquire() {
            Ok(permit) => {
                call.carry(permit);
                Decision::Pass
            }
            Err(refusal) => Decision::Refuse(
                Refusal::new(RefusalReason::ConcurrencyLimit)
                    .with_limit(refusal.limit, refusal.max, refusal.in_flight)
                    .with_retry_delay(self.retry_delay + jitter(self.retry_delay)),
            ),
        }
    }
}
