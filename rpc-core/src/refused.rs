//! A refusal as its caller reads it.

use std::{fmt, time::Duration};

use crate::{ErrorInfo, Executed, RefusalReason, Status};

/// That a server turned a call away for a reason of the framework's, and what it said about it; see
/// [`Status::refused`].
///
/// The call was never executed, so to make it again is safe, and of use after
/// [`retry_delay`](Self::retry_delay) if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    reason: RefusalReason,
    info: &'a ErrorInfo,
    retry_delay: Option<Duration>,
}

impl<'a> Refused<'a> {
    /// Why.
    pub fn reason(&self) -> RefusalReason {
        self.reason
    }

    /// The name of the limit that refused, if one did: `global`, `connection`, and so on.
    pub fn limit(&self) -> Option<&'a str> {
        self.info.metadata.get_str("limit")
    }

    /// A figure by its name, such as `max_in_flight`; see `docs/errors.md` for those of each reason.
    pub fn figure(&self, name: &str) -> Option<u64> {
        self.info.metadata.get_str(name)?.parse().ok()
    }

    /// How long to wait before trying again. Without it, trying the same again here is no use.
    pub fn retry_delay(&self) -> Option<Duration> {
        self.retry_delay
    }

    /// Whether a limit of load refused, so that the same call may pass when there is less of it.
    pub fn is_overload(&self) -> bool {
        self.retry_delay.is_some()
    }
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.message())
    }
}

impl Status {
    /// What a server said that turned the call away for a reason of the framework's; `None` if that is
    /// not what happened, or for a reason that this version does not know. That is also so where such a reason ended a
    /// stream while its service ran, which is no refusal: [`Status::has_reason`] finds the name of that.
    ///
    /// ```
    /// # use rpc_core::{Refusal, RefusalReason, Status};
    /// # let status = Status::from(&Refusal::new(RefusalReason::ConcurrencyLimit).with_limit("global", 64, 64));
    /// let refused = status.refused().expect("the server had too much to do");
    /// assert_eq!(refused.reason(), RefusalReason::ConcurrencyLimit);
    /// assert_eq!((refused.limit(), refused.figure("max_in_flight")), (Some("global"), Some(64)));
    /// ```
    pub fn refused(&self) -> Option<Refused<'_>> {
        let info = self.error_info().filter(|info| info.domain == ErrorInfo::DOMAIN)?;
        let reason = RefusalReason::from_name(&info.reason).filter(|_| self.executed() == Executed::Never)?;
        Some(Refused { reason, info, retry_delay: self.retry_delay() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Refusal, StatusCode};

    #[test]
    fn every_refusal_is_recognised_with_all_it_says() {
        for &reason in RefusalReason::ALL {
            let refusal = Refusal::new(reason).with_limit("global", 64, 63).with_retry_delay(Duration::from_millis(5));
            let status = Status::from(&refusal);
            if reason == RefusalReason::StreamIdle {
                assert!(status.refused().is_none(), "its service has been called");
                continue;
            }
            let refused = status.refused().expect("a refusal");
            assert_eq!((refused.reason(), refused.limit()), (reason, Some("global")));
            assert!(refusal.figures().all(|(name, figure)| refused.figure(name) == Some(figure)));
            assert_eq!(refused.retry_delay(), Some(Duration::from_millis(5)));
            assert_eq!(refused.to_string(), status.message());
        }
    }

    #[test]
    fn what_a_service_says_is_no_refusal() {
        let refusal = Status::from(&Refusal::new(RefusalReason::RateLimit));
        // As of a service that passes on what a call of its own met.
        assert!(refusal.clone().with_executed(Executed::Finished).refused().is_none());
        let mut info = refusal.error_info().unwrap().clone();
        info.domain = "library.example".into();
        assert!(refusal.clone().with_error_info(info.clone()).refused().is_none());
        (info.domain, info.reason) = (ErrorInfo::DOMAIN.into(), "OF_A_LATER_VERSION".into());
        assert!(refusal.with_error_info(info).refused().is_none());
        assert!(Status::new(StatusCode::ResourceExhausted, "").refused().is_none());
    }
}
