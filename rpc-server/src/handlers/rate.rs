//! Turns away calls that come faster than a rate allows.

use std::{sync::Arc, time::Duration};

use rpc_core::{
    CallId, Refusal, RefusalReason,
    limit::{RateLimit, RateRefusal, RateToken},
};

use crate::{
    Call,
    clock::Reading,
    pipeline::{CallInfo, Decision, Handler, Interest, Outbound},
};

/// Spends tokens of one bucket for each call, as many as the call weighs: the connection's own bucket, or one that all
/// connections share.
///
/// A refused call is told exactly when it would pass, plus up to an eighth of that, so that those
/// who were refused together do not come back together.
#[derive(Debug)]
pub struct RateHandler {
    limit: Arc<RateLimit>,
    /// The token of the last call that passed here.
    last: Option<(CallId, RateToken)>,
}

impl RateHandler {
    /// A handler that spends tokens of `limit`.
    pub fn new(limit: Arc<RateLimit>) -> Self {
        Self { limit, last: None }
    }
}

impl Handler for RateHandler {
    fn interest() -> Interest {
        Interest::REFUSALS
    }

    fn limits_load() -> bool {
        true
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        match acquire(&self.limit, call) {
            Ok(token) => {
                self.last = Some((call.id(), token));
                Decision::Pass
            }
            Err(refusal) => Decision::Refuse(explain(&self.limit, refusal)),
        }
    }

    /// A later handler refused the call: its token goes back if nobody took another since. Giving
    /// back in any other case would break the bound of the rate.
    fn outbound(&mut self, call: &CallInfo<'_>, _: &mut Outbound<'_>) {
        if let Some((_, token)) = self.last.take_if(|(id, _)| *id == call.id) {
            self.limit.restore(token);
        }
    }
}

/// Takes as many tokens as the call weighs. The call's reading is of its batch, and may be older than what other
/// connections have done to the bucket since: that may cost a second look, but never a refusal.
#[inline]
pub(super) fn acquire(limit: &RateLimit, call: &Call<'_>) -> Result<RateToken, RateRefusal> {
    limit.try_acquire_since(call.method().weight(), call.received_ticks(), || Reading::now().ticks)
}

#[cold]
pub(super) fn explain(limit: &RateLimit, refusal: RateRefusal) -> Refusal {
    let reason = match refusal {
        RateRefusal::Contended { .. } => RefusalReason::RateContended,
        RateRefusal::TooHeavy { .. } => RefusalReason::RateNeverPasses,
        _ => RefusalReason::RateLimit,
    };
    // The rate is for people; a fraction below one per second shows as 0.
    let per_second = limit.rate_per_second().round() as u64;
    let explained = Refusal::new(reason).with_limit(limit.name(), per_second, u64::from(limit.burst()));
    match refusal.retry_after() {
        Some(exact) => explained.with_retry_delay(with_jitter(exact)),
        None => explained,
    }
}

/// `delay` and up to an eighth of it, so that those who were refused together do not come back together.
pub(crate) fn with_jitter(delay: Duration) -> Duration {
    let most = u64::try_from(delay.as_nanos() / 8).unwrap_or(u64::MAX);
    delay.saturating_add(Duration::from_nanos(fastrand::u64(0..=most)))
}

#[cfg(test)]
mod tests {
    use rpc_core::limit::Rate;

    use super::*;
    use crate::{call::testing::CallParts, pipeline::Answer};

    fn handler(per_second: f64, burst: u32) -> RateHandler {
        RateHandler::new(Arc::new(RateLimit::new("test rate", Rate::per_second(per_second).burst(burst)).unwrap()))
    }

    fn inbound(handler: &mut RateHandler, sequence: u64, after: Duration) -> Option<Refusal> {
        match handler.inbound(&mut CallParts::received(sequence, after).call()) {
            Decision::Pass => None,
            Decision::Refuse(refusal) => Some(refusal),
            other => panic!("{other:?}"),
        }
    }

    fn refused_later(handler: &mut RateHandler, sequence: u64) {
        let refusal = Refusal::new(RefusalReason::ConcurrencyLimit);
        let info = CallInfo { id: CallId::new(sequence, 0), method: None };
        handler.outbound(&info, &mut Outbound::new(Answer::Refusal(&refusal)));
    }

    #[test]
    fn a_refusal_names_the_rate_and_coming_back_after_its_delay_passes() {
        let mut handler = handler(10.0, 1);
        assert_eq!(inbound(&mut handler, 1, Duration::ZERO), None);
        let refusal = inbound(&mut handler, 2, Duration::ZERO).unwrap();
        assert_eq!((refusal.reason(), refusal.limit()), (RefusalReason::RateLimit, "test rate"));
        let delay = refusal.retry_delay().unwrap();
        assert!(Duration::from_millis(100) <= delay && delay <= Duration::from_micros(112_500), "{delay:?}");
        assert_eq!(inbound(&mut handler, 3, delay), None);
    }

    #[test]
    fn a_reading_older_than_the_bucket_is_looked_at_again() {
        let mut handler = handler(100.0, 1);
        let now = Reading::now().ticks;
        let received = |sequence, ticks| {
            let mut parts = CallParts::received(sequence, Duration::ZERO);
            parts.opening.received.ticks = ticks;
            parts
        };
        // Another connection passed a little while ago, but after this one read its clock.
        let other = now.saturating_sub(Duration::from_millis(20));
        assert!(matches!(handler.inbound(&mut received(1, other).call()), Decision::Pass));
        let stale = now.saturating_sub(Duration::from_millis(50));
        assert!(matches!(handler.inbound(&mut received(2, stale).call()), Decision::Pass));
    }

    #[test]
    fn however_old_a_reading_is_it_refills_no_bucket_that_others_have_emptied() {
        let mut handler = handler(1.0, 5);
        let now = Reading::now().ticks;
        let mut pass = |sequence, ticks| {
            let mut parts = CallParts::received(sequence, Duration::ZERO);
            parts.opening.received.ticks = ticks;
            matches!(handler.inbound(&mut parts.call()), Decision::Pass)
        };
        assert_eq!((1..20).filter(|&n| pass(n, now)).count(), 5);
        // By this reading the bucket owes more than it can: it looks as if a clock had gone back.
        let stale = now.saturating_sub(Duration::from_secs(60));
        assert_eq!((20..40).filter(|&n| pass(n, stale)).count(), 0);
        assert_eq!((40..60).filter(|&n| pass(n, now)).count(), 0);
        assert_eq!(handler.limit.healed(), 0);
    }

    #[test]
    fn the_longest_delay_is_not_made_longer() {
        assert_eq!(with_jitter(Duration::MAX), Duration::MAX);
        assert_eq!(with_jitter(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_token_comes_back_when_a_later_handler_refuses_the_call() {
        let mut handler = handler(1.0, 1);
        assert_eq!(inbound(&mut handler, 1, Duration::ZERO), None);
        refused_later(&mut handler, 1);
        assert_eq!(inbound(&mut handler, 2, Duration::ZERO), None, "the token is there again");
        refused_later(&mut handler, 1);
        assert!(inbound(&mut handler, 3, Duration::ZERO).is_some(), "it comes back once");
    }

    #[test]
    fn a_token_is_forfeited_when_another_call_has_passed_since() {
        let mut handler = handler(1.0, 2);
        assert_eq!(inbound(&mut handler, 1, Duration::ZERO), None);
        assert_eq!(inbound(&mut handler, 2, Duration::ZERO), None);
        refused_later(&mut handler, 1);
        assert!(inbound(&mut handler, 3, Duration::ZERO).is_some());
    }
}
