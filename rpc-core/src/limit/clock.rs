//! Time as rate limits count it: one `u64` of sixteenths of a nanosecond.

use std::time::{Duration, Instant};

/// A point in time, in sixteenths of a nanosecond since the epoch of a [`Clock`].
///
/// Whole nanoseconds are too coarse for fast rates: at 700 million per second they round the
/// interval so far that the rate is 43 % off. Sixteenths still span 18 years from the epoch to
/// [`Ticks::LAST`], where time stands still. The span stops at half of `u64`, so adding the longest
/// interval a limit accepts to any point in time cannot overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(u64);

impl Ticks {
    /// The end of time. A clock that has reached it stays there, and limits then refill no more.
    pub const LAST: Self = Self(u64::MAX / 2);

    /// Ticks in one nanosecond.
    pub const PER_NANOSECOND: u64 = 16;

    /// Ticks in one second.
    pub const PER_SECOND: u64 = Self::PER_NANOSECOND * 1_000_000_000;

    /// The point in time `raw` ticks after the epoch, at most [`Ticks::LAST`].
    pub const fn new(raw: u64) -> Self {
        Self(if raw < Self::LAST.0 { raw } else { Self::LAST.0 })
    }

    /// Ticks since the epoch.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The point in time `duration` later, at most [`Ticks::LAST`].
    #[must_use]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        Self::new(self.0.saturating_add(ticks_in(duration)))
    }

    /// The point in time `duration` earlier, at least the epoch.
    #[must_use]
    pub const fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(ticks_in(duration)))
    }
}

/// Turns an [`Instant`] into [`Ticks`].
///
/// Points in time can be compared only if they come from the same clock, so a process makes one
/// and hands out copies. Any instant is welcome: what lies before the epoch counts as the epoch,
/// what lies after the end of time as the end.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock whose epoch lies over a year before `origin`, usually the start of the process.
    ///
    /// The distance is for instants older than the clock itself: they stay ordered, and 0 needs no
    /// meaning of its own.
    pub const fn new(origin: Instant) -> Self {
        Self { origin }
    }

    /// `instant` in ticks.
    pub fn ticks(&self, instant: Instant) -> Ticks {
        let origin = Ticks(ORIGIN);
        match instant.checked_duration_since(self.origin) {
            Some(after) => origin.saturating_add(after),
            None => origin.saturating_sub(self.origin.saturating_duration_since(instant)),
        }
    }
}

const fn ticks_in(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(Ticks::PER_SECOND);
    seconds.saturating_add(duration.subsec_nanos() as u64 * Ticks::PER_NANOSECOND)
}

/// Where the clock's origin lies: 1.14 years after the epoch.
const ORIGIN: u64 = 1 << 59;

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    #[test]
    fn one_nanosecond_is_sixteen_ticks() {
        let origin = Instant::now();
        let clock = Clock::new(origin);
        let ticks = |instant| clock.ticks(instant).as_u64();
        assert_eq!(ticks(origin + Duration::from_nanos(1)) - ticks(origin), 16);
        assert_eq!(ticks(origin + Duration::new(3, 7)) - ticks(origin), 16 * 3_000_000_007);
    }

    #[test]
    fn instants_before_the_clock_stay_ordered() {
        let origin = Instant::now();
        // Made late rather than asked early: the monotonic clock of a fresh machine has no year to go back.
        let clock = Clock::new(origin + YEAR);
        assert_eq!(clock.ticks(origin).as_u64(), ORIGIN - ticks_in(YEAR));
        assert!(clock.ticks(origin) < clock.ticks(origin + Duration::from_nanos(1)));
    }

    #[test]
    fn time_far_away_saturates_in_both_directions() {
        let origin = Instant::now();
        for years in [100, 584, 585, 600, 1_000_000_000] {
            let Some(late) = origin.checked_add(YEAR * years) else { continue };
            assert_eq!(Clock::new(origin).ticks(late), Ticks::LAST);
            assert_eq!(Clock::new(late).ticks(origin), Ticks::new(0));
        }
        assert_eq!(Ticks::new(u64::MAX), Ticks::LAST);
        assert_eq!(Ticks::LAST.saturating_add(Duration::MAX), Ticks::LAST);
        assert_eq!(Ticks::new(5).saturating_add(Duration::MAX), Ticks::LAST);
        assert_eq!(Ticks::LAST.saturating_sub(Duration::MAX), Ticks::new(0));
    }
}
