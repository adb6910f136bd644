//! How slowly what comes in parts may come: the body of a request, or an item of a stream.

use std::time::{Duration, Instant};

/// How slowly a body or an item may come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeastRate {
    pub(crate) bytes_per_second: u32,
    /// It may come late by this much in all.
    pub(crate) grace: Duration,
}

/// How fast something has come so far of which more is to come.
#[derive(Debug)]
pub(crate) struct Pace {
    /// From when on its rate counts, and what had arrived by then.
    since: Instant,
    had: usize,
    arrived: usize,
    /// It was found too slow once.
    warned: bool,
}

impl Pace {
    /// Begins at `now` with a first part.
    pub(crate) fn begin(first: usize, now: Instant) -> Self {
        Self { since: now, had: first, arrived: first, warned: false }
    }

    /// Notes that so many bytes more have come.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.arrived += bytes;
    }

    /// Bytes that have come in all.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived
    }

    /// When it will have come too slowly if nothing more comes, and be warned or refused.
    pub(crate) fn too_slow_at(&self, rate: LeastRate) -> Option<Instant> {
        let paid = Duration::from_secs_f64((self.arrived - self.had) as f64 / f64::from(rate.bytes_per_second));
        let grace = if self.warned { LAST_CHANCE } else { rate.grace.saturating_sub(LAST_CHANCE) };
        self.since.checked_add(grace.saturating_add(paid))
    }

    /// Whether it is too slow at `now` though it was warned. The first time it is given a last chance instead of
    /// being refused: it may have been us who did not read, busy with something else, and then nothing more
    /// could be sent until now.
    pub(crate) fn is_too_slow(&mut self, rate: LeastRate, now: Instant) -> bool {
        if self.too_slow_at(rate).is_none_or(|due| due > now) {
            return false;
        }
        if self.warned {
            return true;
        }
        self.warned = true;
        self.since = now;
        self.had = self.arrived;
        false
    }

    /// Does not count a `pause` up to `now` in which we did not read.
    pub(crate) fn skip(&mut self, pause: Duration, now: Instant) {
        self.since = (self.since + pause).min(now);
    }
}

/// The part of the grace in which something must move again that seemed to have stopped.
const LAST_CHANCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_may_come_as_slowly_as_its_rate_after_the_grace() {
        let now = Instant::now();
        let rate = LeastRate { bytes_per_second: 1_000, grace: Duration::from_secs(10) };
        let mut pace = Pace::begin(500, now);
        assert_eq!(pace.too_slow_at(rate), Some(now + Duration::from_secs(9)));
        pace.came(5_000);
        assert_eq!(pace.too_slow_at(rate), Some(now + Duration::from_secs(14)), "the first part is no merit");
        pace.skip(Duration::from_secs(100), now + Duration::from_secs(200));
        let due = now + Duration::from_secs(114);
        assert_eq!(pace.too_slow_at(rate), Some(due));
        assert!(!pace.is_too_slow(rate, due - Duration::from_nanos(1)) && !pace.is_too_slow(rate, due), "warned");
        assert_eq!(pace.too_slow_at(rate), Some(due + Duration::from_secs(1)));
        assert!(pace.is_too_slow(rate, due + Duration::from_secs(1)));
        assert_eq!(pace.arrived(), 5_500);
    }
}
