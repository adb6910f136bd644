//! Deadlines: an instant in memory, the remaining duration on the wire.

use std::time::{Duration, Instant};

/// The point in time by which a call must have ended; none means that it may take for ever.
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use rpc_core::Deadline;
/// let now = Instant::now();
/// let deadline = Deadline::after(now, Duration::from_millis(250));
/// assert_eq!(deadline.to_wire(now), Some(250_000));
/// assert_eq!(Deadline::after(now, Duration::MAX), Deadline::NONE);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline.
    pub const NONE: Self = Self(None);

    /// The deadline `timeout` after `now`; none if that lies beyond what the clock can express.
    pub fn after(now: Instant, timeout: Duration) -> Self {
        Self(now.checked_add(timeout))
    }

    /// The deadline at `instant`.
    pub const fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    /// The point in time, if there is one.
    pub const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Whether there is a deadline at all.
    pub const fn is_some(self) -> bool {
        self.0.is_some()
    }

    /// Whether the deadline has passed at `now`.
    pub fn is_expired(self, now: Instant) -> bool {
        self.0.is_some_and(|instant| instant <= now)
    }

    /// The time left at `now`, zero if the deadline has passed, `None` without one.
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        self.0.map(|instant| instant.saturating_duration_since(now))
    }

    /// The earlier of two deadlines.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }

    /// The deadline earlier by `margin`, at the earliest at `now`.
    #[must_use]
    pub fn minus(self, margin: Duration, now: Instant) -> Self {
        Self(self.0.map(|instant| instant.checked_sub(margin).unwrap_or(now).max(now)))
    }

    /// `timeout_us` on the wire: 0 is none, less than a microsecond is sent as 1, and `None` says
    /// that the call has expired and must not be sent.
    pub fn to_wire(self, now: Instant) -> Option<u64> {
        let Some(instant) = self.0 else { return Some(0) };
        match instant.checked_duration_since(now) {
            None | Some(Duration::ZERO) => None,
            Some(left) => {
                let us = left.as_secs().saturating_mul(1_000_000);
                Some(us.saturating_add(u64::from(left.subsec_micros())).max(1))
            }
        }
    }

    /// The deadline of a request received at `now` with `timeout_us`, of which `age` is spent.
    ///
    /// A request that has no time left gets the deadline `now`, which [`Deadline::is_expired`].
    pub fn from_wire(timeout_us: u64, age: Duration, now: Instant) -> Self {
        match timeout_us {
            0 => Self::NONE,
            us => Self::after(now, Duration::from_micros(us).saturating_sub(age)),
        }
    }
}

/// How long calls have waited in socket buffers, told without a synchronised clock.
///
/// Every request carries its sender's monotonic clock. The difference to ours is an unknown offset
/// plus the time on the way; its minimum over a window is the quickest way seen, and what a call
/// took above that is its age. The minimum is kept over two half windows, so that it forgets a clock
/// that drifts within one to two of them. All arithmetic wraps at 32 bits (71 minutes), as the
/// field does.
#[derive(Debug, Default)]
pub struct AgeEstimator {
    halves: Option<[u32; 2]>,
    turned_us: u64,
}

impl AgeEstimator {
    /// How long an observed minimum counts: between one and two times this.
    pub const WINDOW: Duration = Duration::from_secs(30);

    /// The age of a call sent at `sent_at_us` of the sender's clock and received at `now_us` of ours.
    pub fn observe(&mut self, sent_at_us: u32, now_us: u64) -> Duration {
        let offset = (now_us as u32).wrapping_sub(sent_at_us);
        let window = Self::WINDOW.as_micros() as u64;
        let halves = match &mut self.halves {
            Some(halves) => halves,
            none => {
                self.turned_us = now_us;
                none.insert([offset, offset])
            }
        };
        if now_us.saturating_sub(self.turned_us) >= window {
            self.turned_us = now_us;
            *halves = [halves[1], offset];
        }
        if later_by(halves[1], offset) > 0 {
            halves[1] = offset;
        }
        let least = if later_by(halves[0], halves[1]) > 0 { halves[1] } else { halves[0] };
        Duration::from_micros(u64::try_from(later_by(offset, least)).unwrap_or(0))
    }
}

/// `a - b` on the circle of 32 bits.
fn later_by(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_knows_none_expired_and_at_least_a_microsecond() {
        let now = Instant::now();
        assert_eq!(Deadline::NONE.to_wire(now), Some(0));
        assert_eq!(Deadline::at(now).to_wire(now), None);
        assert_eq!(Deadline::after(now, Duration::from_nanos(1)).to_wire(now), Some(1));
        assert_eq!(Deadline::from_wire(0, Duration::from_secs(9), now), Deadline::NONE);
        assert!(Deadline::from_wire(5, Duration::from_micros(5), now).is_expired(now));
        assert!(!Deadline::from_wire(5, Duration::from_micros(4), now).is_expired(now));
        assert!(!Deadline::from_wire(u64::MAX, Duration::ZERO, now).is_expired(now));
    }

    #[test]
    fn the_earlier_deadline_wins_and_none_loses() {
        let now = Instant::now();
        let (soon, late) = (Deadline::after(now, Duration::from_secs(1)), Deadline::after(now, Duration::from_secs(2)));
        assert_eq!(late.min(soon), soon);
        assert_eq!(Deadline::NONE.min(soon), soon);
        assert_eq!(soon.min(Deadline::NONE), soon);
        assert_eq!(soon.minus(Duration::from_secs(5), now), Deadline::at(now));
    }

    #[test]
    fn age_is_what_a_call_took_above_the_quickest() {
        let mut age = AgeEstimator::default();
        // The sender's clock runs 1,000 s ahead, so that the offset is negative.
        let sent = |us: u64| (us + 1_000_000_000) as u32;
        assert_eq!(age.observe(sent(0), 50), Duration::ZERO);
        assert_eq!(age.observe(sent(100), 130), Duration::ZERO);
        assert_eq!(age.observe(sent(200), 5_230), Duration::from_millis(5));
        assert_eq!(age.observe(sent(9_000), 9_030), Duration::ZERO);
    }

    #[test]
    fn age_survives_the_wrap_of_the_senders_clock() {
        let mut age = AgeEstimator::default();
        let now = u64::from(u32::MAX) - 5;
        assert_eq!(age.observe(u32::MAX - 15, now), Duration::ZERO);
        assert_eq!(age.observe(4, now + 20), Duration::ZERO);
        assert_eq!(age.observe(4, now + 27), Duration::from_micros(7));
    }

    #[test]
    fn a_slower_way_becomes_the_normal_one_after_two_windows() {
        let mut age = AgeEstimator::default();
        let window = AgeEstimator::WINDOW.as_micros() as u64;
        age.observe(0, 0);
        assert_eq!(age.observe(0, 1_000), Duration::from_millis(1));
        let mut last = Duration::MAX;
        for step in 1..=8 {
            let sent = step * window / 2;
            last = age.observe(sent as u32, sent + 1_000);
        }
        assert_eq!(last, Duration::ZERO);
    }
}
