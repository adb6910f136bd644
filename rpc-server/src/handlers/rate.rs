//! Turns away calls that come faster than a rate allows.

use std::{sync::Arc, time::Duration};

use rpc_core::{
    CallId, Refusal, RefusalReason,
    limit::{RateLimit, RateRefusal, RateToken},
};

use crate::{
    Call,
    pipeline::{CallInfo, Decision, Handler, Interest, Outbound},
};

/// Spends a token of one bucket for each call: the connection's own bucket, or one that all
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

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        match self.limit.try_acquire(1, call.received_ticks()) {
            Ok(token) => {
                self.last = Some((call.id(), token));
                Decision::Pass
            }
            Err(refusal) => Decision::Refuse(self.explain(refusal)),
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

impl RateHandler {
    #[cold]
    fn explain(&self, refusal: RateRefusal) -> Refusal {
        let reason = match refusal {
            RateRefusal::Contended { .. } => RefusalReason::RateContended,
            RateRefusal::TooHeavy { .. } => RefusalReason::RateNeverPasses,
            _ => RefusalReason::RateLimit,
        };
        // The rate is for people; a fraction below one per second shows as 0.
        let per_second = self.limit.rate_per_second().round() as u64;
        let explained = Refusal::new(reason).with_limit(self.limit.name(), per_second, u64::from(self.limit.burst()));
        match refusal.retry_after() {
            Some(exact) => explained.with_retry_delay(exact + jitter(exact)),
            None => explained,
        }
    }
}

/// Up to an eighth of `delay`.
pub(super) fn jitter(delay: Duration) -> Duration {
    let most = u64::try_from(delay.as_nanos() / 8).unwrap_or(u64::MAX);
    Duration::from_nanos(fastrand::u64(0..=most))
}
