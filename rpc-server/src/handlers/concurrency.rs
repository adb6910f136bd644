//! Turns away calls when as many are in flight as allowed.

use std::{sync::Arc, time::Duration};

use rpc_core::{
    Refusal, RefusalReason,
    limit::{ConcurrencyLimit, ConcurrencyRefusal},
};

use super::rate::jitter;
use crate::{
    Call,
    pipeline::{Decision, Handler, Interest},
};

/// Takes a permit of a limit and of those it lies within, narrow to wide, all or nothing.
///
/// The permit travels with the call until its response has been written or the connection is gone. A call
/// whose body comes in parts is refused with the first of them if there is no room, and otherwise takes its
/// permit when the body is there.
#[derive(Debug)]
pub struct ConcurrencyHandler {
    narrowest: Arc<ConcurrencyLimit>,
    retry_delay: Duration,
    /// What a handler behind this one will ask of blocking calls.
    blocking: Option<Arc<ConcurrencyLimit>>,
}

impl ConcurrencyHandler {
    /// A handler of `narrowest` and its wider limits, that tells refused calls to come back after
    /// about `retry_delay`. Nobody knows when a call in flight will end, so unlike a rate's it is a
    /// guess; about the time a call takes is a good one.
    pub fn new(narrowest: Arc<ConcurrencyLimit>, retry_delay: Duration) -> Self {
        Self { narrowest, retry_delay, blocking: None }
    }

    /// As a [`BlockingHandler`](super::BlockingHandler) of `limit` stands behind it, a call that would be
    /// refused there is so before it sends its body.
    pub(crate) fn in_front_of(self, limit: &Arc<ConcurrencyLimit>) -> Self {
        Self { blocking: Some(Arc::clone(limit)), ..self }
    }

    /// What is said of a call whose body has only begun.
    #[cold]
    fn begun(&self, call: &Call<'_>) -> Decision {
        let blocking = self.blocking.iter().filter(|_| call.method().is_blocking());
        match [&self.narrowest].into_iter().chain(blocking).try_for_each(|limit| limit.check()) {
            Ok(()) => Decision::AwaitBody,
            Err(refusal) => self.refuse(&refusal),
        }
    }

    fn refuse(&self, refusal: &ConcurrencyRefusal) -> Decision {
        Decision::Refuse(
            Refusal::new(RefusalReason::ConcurrencyLimit)
                .with_limit(refusal.limit, refusal.max, refusal.in_flight)
                .with_retry_delay(self.retry_delay.saturating_add(jitter(self.retry_delay))),
        )
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
        if !call.is_whole() {
            return self.begun(call);
        }
        match self.narrowest.try_acquire() {
            Ok(permit) => {
                call.carry(permit);
                Decision::Pass
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::testing::CallParts;

    #[test]
    fn a_call_whose_body_has_only_begun_is_refused_or_awaited_and_takes_nothing() {
        let global = ConcurrencyLimit::new("global", Some(1)).unwrap();
        let mut handler = ConcurrencyHandler::new(Arc::clone(&global), Duration::from_millis(8));
        let (mut first, mut second) = (CallParts::default(), CallParts::default());
        for _ in 0..2 {
            assert!(matches!(handler.inbound(&mut first.begun()), Decision::AwaitBody));
        }
        assert_eq!(global.snapshot().acquired, 0);
        assert!(matches!(handler.inbound(&mut first.call()), Decision::Pass));
        let Decision::Refuse(refusal) = handler.inbound(&mut second.begun()) else { panic!("two of one") };
        assert!(refusal.figures().eq([("max_in_flight", 1), ("in_flight", 1)]));
        assert!(second.opening.permit.is_empty());
        drop(first);
        assert_eq!((global.snapshot().acquired, global.snapshot().held), (1, 0));
    }

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
