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

    fn limits_load() -> bool {
        true
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
                    .with_retry_delay(self.retry_delay.saturating_add(jitter(self.retry_delay))),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::testing::CallParts;

    #[test]
    fn a_call_carries_its_permit_and_a_refused_one_none() {
        let global = ConcurrencyLimit::new("global", Some(1)).unwrap();
        let connection = ConcurrencyLimit::within(Arc::clone(&global), "connection", Some(5)).unwrap();
        let mut handler = ConcurrencyHandler::new(connection, Duration::from_millis(8));
        let (mut first, mut second) = (CallParts::default(), CallParts::default());
        assert!(matches!(handler.inbound(&mut first.call()), Decision::Pass));
        let Decision::Refuse(refusal) = handler.inbound(&mut second.call()) else { panic!("two of one") };
        assert_eq!((refusal.limit(), refusal.reason()), ("global", RefusalReason::ConcurrencyLimit));
        assert!(refusal.figures().eq([("max_in_flight", 1), ("in_flight", 1)]));
        let delay = refusal.retry_delay().unwrap();
        assert!(Duration::from_millis(8) <= delay && delay <= Duration::from_millis(9));
        assert!(second.opening.permit.is_empty());
        drop(first);
        assert!(matches!(handler.inbound(&mut second.call()), Decision::Pass));
        drop(second);
        assert_eq!(global.snapshot().held, 0);
    }
}
