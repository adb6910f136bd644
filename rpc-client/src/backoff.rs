//! How long to wait before the next attempt to connect.

use std::time::Duration;

/// Exponential delays with jitter, the first included, so that clients that lost their server
/// together do not come back together.
///
/// The delay after the loss of a good connection is drawn evenly from all of `min`: somebody comes
/// back at once, and all are spread as widely as they can be. The delay before attempt `n` after a
/// failure is drawn evenly from the upper half of `min * 2^n`, at most `max` ("full" and "equal
/// jitter", M. Brooker, Exponential Backoff And Jitter, 2015).
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), failures: 0 }
    }

    /// A connection has proved good, and is not lost: the next delay is the first.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay before the first attempt after the loss of a connection that proved good.
    pub(crate) fn after_loss(&mut self) -> Duration {
        // As one failure: the attempts that follow do not fall among the first ones of others.
        self.failures = 1;
        self.min.mul_f64(fastrand::f64())
    }

    /// The delay before the next attempt, which is taken to fail until one has proved good.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let ceiling = self.min.saturating_mul(factor).min(self.max);
        self.failures = self.failures.saturating_add(1);
        let half = ceiling / 2;
        half + half.mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(5);

    #[test]
    fn delays_double_up_to_the_maximum_and_spread_over_half_of_it() {
        let mut backoff = Backoff::new(MIN, MAX);
        for attempt in 0..40 {
            let ceiling = MIN.saturating_mul(1 << attempt.min(20)).min(MAX);
            let delay = backoff.next_delay();
            assert!(ceiling / 2 <= delay && delay <= ceiling, "attempt {attempt}: {delay:?}");
        }
        assert!(backoff.after_loss() <= MIN && backoff.next_delay() >= MIN);
    }

    #[test]
    fn behind_a_good_connection_the_delays_begin_anew() {
        let mut backoff = Backoff::new(MIN, MAX);
        for _ in 0..10 {
            backoff.next_delay();
        }
        backoff.reset();
        assert!(backoff.next_delay() <= MIN);
    }

    #[test]
    fn a_thousand_clients_do_not_come_back_together() {
        let first: Vec<_> = (0..1000).map(|_| Backoff::new(Duration::from_secs(2), MAX).after_loss()).collect();
        for tenth in 0..20 {
            let from = Duration::from_millis(tenth * 100);
            let together = first.iter().filter(|&&d| d >= from && d < from + Duration::from_millis(100)).count();
            assert!(together <= 100, "{together} of 1000 within 100 ms");
        }
    }
}
