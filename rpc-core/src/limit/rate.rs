//! How often calls may start: GCRA, the leaky bucket as a clock, on one atomic word. Beside it, who waits in line.

mod line;
mod setting;

use std::time::Duration;

pub use line::{RateShare, RateWait};
pub use setting::{Rate, RateError};

use self::{line::Line, setting::Setting};
use super::{
    clock::Ticks,
    sync::{AtomicU64, Ordering},
};

/// Bounds how often calls start.
///
/// The limit refills at its [`Rate`] and holds at most its burst. All that it knows of tokens is one word, the
/// time at which it will be full again if nobody takes anything:
///
/// ```text
///             now                 next           now + burst * period
///  ------------|--------------------|----------------------|------------> time
///              |<----- debt ------->|<------ headroom ---->|
///              taken, not refilled         still free
/// ```
///
/// Taking a token moves `next` one period to the right of `max(next, now)`, and is refused if that
/// were beyond the right end. So any admissions, in the order in which they were made, cost no
/// more time than passed between the first and the last, plus `burst * period`. That holds for any
/// number of threads, and for each caller's own reading of the clock, however old: a stale `now` sees
/// a greater debt and never moves `next` back.
///
/// A new limit is full. A limit per connection is therefore reset by reconnecting; put a limit
/// that outlives connections beside it. A limit bounds one process, not a fleet.
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use rpc_core::limit::{Clock, Rate, RateLimit};
/// let clock = Clock::new(Instant::now());
/// let limit = RateLimit::new("logins", Rate::per_second(10.0).burst(1)).unwrap();
///
/// let now = clock.ticks(Instant::now());
/// assert!(limit.try_acquire(1, now).is_ok());
/// let refusal = limit.try_acquire(1, now).unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(100)));
/// ```
#[derive(Debug)]
pub struct RateLimit {
    name: &'static str,
    /// When the limit will be full again, in ticks.
    next: AtomicU64,
    /// A [`Setting`].
    setting: AtomicU64,
    healed: AtomicU64,
    /// Who waits for tokens, if anybody does.
    line: Line,
}

impl RateLimit {
    /// A full limit; `name` is what refusals call it.
    ///
    /// # Errors
    ///
    /// A rate that is zero, negative, not finite, above a billion per second, or so slow that its
    /// burst takes more than 18 years to refill; a burst of zero.
    pub fn new(name: &'static str, rate: Rate) -> Result<Self, RateError> {
        let setting = rate.setting()?;
        Ok(Self {
            name,
            next: AtomicU64::new(0),
            setting: AtomicU64::new(setting.to_word()),
            healed: AtomicU64::new(0),
            line: Line::new(),
        })
    }

    /// Takes `weight` tokens, or says why not. Weight 0 takes none, but needs the limit to be out of
    /// debt as much as any other.
    ///
    /// `now` may be a little old: one reading of the clock serves a batch of calls. How old is not known to
    /// whoever serves them, so see [`RateLimit::try_acquire_since`]. Every caller of one limit must read the
    /// same [`Clock`](super::Clock).
    ///
    /// # Errors
    ///
    /// A refusal takes nothing. It costs a few loads; it does not write, so refused callers do not
    /// slow down those that pass.
    #[inline]
    pub fn try_acquire(&self, weight: u32, now: Ticks) -> Result<RateToken, RateRefusal> {
        match self.attempt(weight, now) {
            Some(token) => Ok(token),
            None => self.acquire(weight, now, || ()),
        }
    }

    /// As [`RateLimit::try_acquire`], for a reading of the clock that may be old by any time. If the call does
    /// not pass by it, the clock is read again: what others have taken since must neither refuse the call, nor
    /// look like a clock that went back, for which the limit would be set to empty.
    ///
    /// # Errors
    ///
    /// As for [`RateLimit::try_acquire`], by what `read` says.
    #[inline]
    pub fn try_acquire_since(
        &self,
        weight: u32,
        then: Ticks,
        read: impl FnOnce() -> Ticks,
    ) -> Result<RateToken, RateRefusal> {
        match self.attempt(weight, then) {
            Some(token) => Ok(token),
            None => self.look_again(weight, then, read),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_again(&self, weight: u32, then: Ticks, read: impl FnOnce() -> Ticks) -> Result<RateToken, RateRefusal> {
        self.acquire(weight, read().max(then), || ())
    }

    /// One attempt, which is in place where it is called; all that is rare is elsewhere. It refuses and heals nothing.
    #[inline]
    fn attempt(&self, weight: u32, now: Ticks) -> Option<RateToken> {
        let (setting, next) = (self.setting(), self.next.load(Ordering::Relaxed));
        if weight <= setting.burst {
            let cost = u64::from(weight) * setting.period;
            let debt = next.saturating_sub(now.as_u64());
            if debt <= setting.tolerance() - cost {
                let after = next.max(now.as_u64()) + cost;
                let swapped = self.next.compare_exchange_weak(next, after, Ordering::Relaxed, Ordering::Relaxed);
                return swapped.is_ok().then_some(RateToken { before: next, after });
            }
        }
        None
    }

    /// Gives a token back if nobody took one since, and says whether it could.
    ///
    /// For a call that a later limit refused. Otherwise the token is forfeited: once others have
    /// built on it, taking a period off `next` would admit more than the rate allows, because that
    /// period may have been refilled by the mere passing of time already.
    pub fn restore(&self, token: RateToken) -> bool {
        // As a stack: whatever was put on top of this token has been taken off again.
        self.next.compare_exchange(token.after, token.before, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Changes the rate while calls run.
    ///
    /// The debt is kept as time: who was to wait a second still does, unless the new rate could
    /// never owe that much. A call that is decided at this moment may still go by the old rate.
    ///
    /// # Errors
    ///
    /// Those of [`RateLimit::new`]; the old rate then stays.
    pub fn reconfigure(&self, rate: Rate, now: Ticks) -> Result<(), RateError> {
        let setting = rate.setting()?;
        self.setting.store(setting.to_word(), Ordering::Relaxed);
        let most = now.as_u64() + setting.tolerance();
        // Not `fetch_min`: a limit out of debt, by far the usual case, is not written to.
        let clamp = |next| (next > most).then_some(most);
        let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, clamp);
        Ok(())
    }

    /// How many tokens are there at `now`.
    pub fn tokens_available(&self, now: Ticks) -> u32 {
        let debt = self.next.load(Ordering::Relaxed).saturating_sub(now.as_u64());
        available(self.setting(), debt)
    }

    /// How long until `tokens` are there, unless they are, or the limit is to be healed.
    fn refills_in(&self, tokens: u32, now: Ticks) -> Option<Duration> {
        let setting = self.setting();
        let debt = self.next.load(Ordering::Relaxed).saturating_sub(now.as_u64());
        // For more than there can be, the product can overflow; so many were right before the limit was changed.
        let most = setting.tolerance().saturating_sub(u64::from(tokens).saturating_mul(setting.period));
        let waits = debt > most && debt.saturating_sub(setting.tolerance()) <= HEAL_ABOVE;
        waits.then(|| round_up_to_nanoseconds(debt - most))
    }

    /// The name it was given.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// How many tokens there are at most.
    pub fn burst(&self) -> u32 {
        self.setting().burst
    }

    /// How many tokens refill in a second: the rate asked for, or very little less, because the time
    /// between two tokens is rounded up.
    pub fn rate_per_second(&self) -> f64 {
        Ticks::PER_SECOND as f64 / self.setting().period as f64
    }

    /// How often the limit was found owing more than it can, by over a second, and set to empty.
    ///
    /// The clock went back, or the rate was lowered while a call was being decided. Anything but a
    /// handful means that callers do not read the same clock.
    pub fn healed(&self) -> u64 {
        self.healed.load(Ordering::Relaxed)
    }

    fn setting(&self) -> Setting {
        Setting::from_word(self.setting.load(Ordering::Relaxed))
    }

    /// `before_swap` runs where other threads may interfere, so that tests can.
    #[cold]
    fn acquire(&self, weight: u32, now: Ticks, mut before_swap: impl FnMut()) -> Result<RateToken, RateRefusal> {
        let setting = self.setting();
        if weight > setting.burst {
            let available = self.tokens_available(now);
            return Err(RateRefusal::TooHeavy { weight, burst: setting.burst, available });
        }
        let now = now.as_u64();
        let cost = u64::from(weight) * setting.period;
        let tolerance = setting.tolerance();

        // Relaxed throughout: the word guards no other memory, and one word has one order of changes.
        let mut next = self.next.load(Ordering::Relaxed);
        for _ in 0..MAX_ATTEMPTS {
            let debt = next.saturating_sub(now);
            // Compared this way round because `debt + cost` can overflow. From here on neither sum
            // can: each is at most `now + tolerance`, and both are at most half of `u64`.
            let (desired, passes) = if debt <= tolerance - cost {
                (next.max(now) + cost, true)
            } else if debt.saturating_sub(tolerance) > HEAL_ABOVE {
                (now + tolerance, false)
            } else {
                let retry_after = round_up_to_nanoseconds(debt - (tolerance - cost));
                return Err(RateRefusal::Exhausted { retry_after, available: available(setting, debt) });
            };
            before_swap();
            match self.next.compare_exchange_weak(next, desired, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if passes => return Ok(RateToken { before: next, after: desired }),
                Ok(_) => {
                    self.healed.fetch_add(1, Ordering::Relaxed);
                    next = desired;
                }
                Err(current) => next = current,
            }
        }
        let debt = next.saturating_sub(now);
        Err(RateRefusal::Contended { retry_after: CONTENDED_DELAY, available: available(setting, debt) })
    }
}

/// Tokens taken from a [`RateLimit`].
///
/// They are spent: dropping this gives nothing back. [`RateLimit::restore`] can, if it comes soon.
#[derive(Debug, PartialEq, Eq)]
pub struct RateToken {
    before: u64,
    after: u64,
}

/// Why a [`RateLimit`] turned a call away. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RateRefusal {
    /// Calls come faster than the rate allows.
    #[error("{available} tokens are left, too few; come back in {retry_after:?}")]
    Exhausted {
        /// When the same call passes if no other takes the tokens. It would not pass 1 ns earlier.
        retry_after: Duration,
        /// Tokens there were.
        available: u32,
    },
    /// So many threads took tokens at once that this call did not get its turn.
    #[error("too many threads take tokens at once; come back in {retry_after:?}")]
    Contended {
        /// A short delay; the limit may have tokens left.
        retry_after: Duration,
        /// Tokens there were.
        available: u32,
    },
    /// The call weighs more than the limit can ever hold.
    #[error("a weight of {weight} can never pass a burst of {burst}")]
    TooHeavy {
        /// The weight of the call.
        weight: u32,
        /// The most the limit can hold.
        burst: u32,
        /// Tokens there were.
        available: u32,
    },
}

impl RateRefusal {
    /// When to come back; `None` if that is no use. Add jitter, or refused callers come back together.
    pub const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Exhausted { retry_after, .. } | Self::Contended { retry_after, .. } => Some(retry_after),
            Self::TooHeavy { .. } => None,
        }
    }

    /// Tokens there were when the call was refused.
    pub const fn available(self) -> u32 {
        match self {
            Self::Exhausted { available, .. }
            | Self::Contended { available, .. }
            | Self::TooHeavy { available, .. } => available,
        }
    }
}

/// At most the burst, so it fits.
fn available(setting: Setting, debt: u64) -> u32 {
    (setting.tolerance().saturating_sub(debt) / setting.period) as u32
}

fn round_up_to_nanoseconds(ticks: u64) -> Duration {
    Duration::from_nanos(ticks.div_ceil(Ticks::PER_NANOSECOND))
}

/// A swap fails only because another call passed, so a thread that loses this often in a row, and once before, is
/// one of very many. It is refused: unbounded spinning would be worse, admitting it unsound.
const MAX_ATTEMPTS: u32 = 64;

const CONTENDED_DELAY: Duration = Duration::from_micros(100);

/// A debt greater than the tolerance by more than this is an error of clocks, not a stale reading.
///
/// It must be longer than any thread is likely to be stopped between reading the clock and asking.
/// With one period instead of a second, a caller whose reading is older than a period would heal
/// a sound limit that others have filled up in the meantime, and they could fill it again, for ever.
const HEAL_ABOVE: u64 = Ticks::PER_SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Ticks = Ticks::new(1 << 60);

    fn limit(per_second: f64, burst: u32) -> RateLimit {
        RateLimit::new("test", Rate::per_second(per_second).burst(burst)).unwrap()
    }

    fn after(nanoseconds: u64) -> Ticks {
        NOW.saturating_add(Duration::from_nanos(nanoseconds))
    }

    /// How many calls of weight 1 pass in a row.
    fn drain(limit: &RateLimit, now: Ticks) -> u32 {
        (0..).take_while(|_| limit.try_acquire(1, now).is_ok()).count() as u32
    }

    #[test]
    fn the_first_call_passes_whatever_the_time() {
        for now in [Ticks::new(0), NOW, Ticks::LAST] {
            for burst in [1, 2, 1_000] {
                assert_eq!(drain(&limit(10.0, burst), now), burst);
            }
        }
    }

    #[test]
    fn a_bucket_idle_for_an_hour_holds_exactly_its_burst() {
        let limit = limit(10.0, 7);
        assert_eq!(drain(&limit, NOW), 7);
        let later = NOW.saturating_add(3_600 * SECOND);
        assert_eq!(limit.tokens_available(later), 7);
        assert_eq!(drain(&limit, later), 7);
    }

    #[test]
    fn calls_a_period_apart_always_pass_even_with_a_burst_of_one() {
        let limit = limit(1_000.0, 1);
        for call in 0..10_000 {
            assert!(limit.try_acquire(1, after(call * 1_000_000)).is_ok());
            assert!(limit.try_acquire(1, after(call * 1_000_000 + 999_999)).is_err());
        }
    }

    #[test]
    fn a_minute_of_a_full_bucket_admits_burst_and_refill_and_a_burst_of_one_is_strict() {
        for (burst, expected) in [(60, 119), (1, 60)] {
            let limit = RateLimit::new("test", Rate::per(60, 60 * SECOND).burst(burst)).unwrap();
            let admitted = (0..60_000).filter(|ms| limit.try_acquire(1, after(ms * 1_000_000)).is_ok()).count();
            assert_eq!(admitted, expected);
        }
    }

    #[test]
    fn coming_back_at_the_hint_passes_and_one_nanosecond_earlier_does_not() {
        let limit = limit(3.0, 2);
        for weight in [1, 2] {
            let now = NOW.saturating_add(weight * 10 * SECOND);
            drain(&limit, now);
            let hint = limit.try_acquire(weight, now).unwrap_err().retry_after().unwrap();
            assert!(limit.try_acquire(weight, now.saturating_add(hint - Duration::from_nanos(1))).is_err());
            assert!(limit.try_acquire(weight, now.saturating_add(hint)).is_ok());
        }
    }

    #[test]
    fn the_hint_is_at_least_a_nanosecond() {
        let limit = limit(1e9, 1);
        limit.try_acquire(1, NOW).unwrap();
        let almost = Ticks::new(NOW.as_u64() + 15);
        let refusal = RateRefusal::Exhausted { retry_after: Duration::from_nanos(1), available: 0 };
        assert_eq!(limit.try_acquire(1, almost), Err(refusal));
    }

    #[test]
    fn what_weighs_more_than_the_burst_never_passes_and_is_not_told_to_come_back() {
        let limit = limit(10.0, 5);
        limit.try_acquire(2, NOW).unwrap();
        let refusal = limit.try_acquire(6, NOW).unwrap_err();
        assert_eq!(refusal, RateRefusal::TooHeavy { weight: 6, burst: 5, available: 3 });
        assert_eq!((refusal.retry_after(), refusal.available()), (None, 3));
        assert!(limit.try_acquire(3, NOW).is_ok());
    }

    #[test]
    fn who_waits_for_more_than_a_changed_limit_can_hold_waits_until_it_is_full() {
        let limit = limit(10.0, u32::MAX);
        limit.reconfigure(Rate::per(1, 3_650 * 24 * 3_600 * SECOND).burst(1), NOW).unwrap();
        limit.try_acquire(1, NOW).unwrap();
        let full = limit.refills_in(1, NOW);
        assert!(full >= Some(3_650 * 24 * 3_600 * SECOND), "{full:?}");
        assert_eq!(limit.refills_in(u32::MAX, NOW), full);
    }

    #[test]
    fn weight_zero_takes_nothing() {
        let limit = limit(10.0, 1);
        limit.try_acquire(1, NOW).unwrap();
        assert!(limit.try_acquire(0, NOW).is_ok());
        assert_eq!(limit.tokens_available(NOW), 0);
        assert!(limit.try_acquire(1, after(100_000_000)).is_ok());
    }

    #[test]
    fn refusing_writes_nothing() {
        let limit = limit(10.0, 2);
        drain(&limit, NOW);
        let before = limit.next.load(Ordering::Relaxed);
        for earlier in [0, 1, 999_999_999] {
            let now = NOW.saturating_sub(Duration::from_nanos(earlier));
            assert!(limit.acquire(1, now, || panic!("a refusal needs no swap")).is_err());
            assert!(limit.try_acquire(3, now).is_err());
        }
        assert_eq!(limit.next.load(Ordering::Relaxed), before);
    }

    #[test]
    fn a_stale_now_never_moves_the_bucket_back() {
        let limit = limit(1_000.0, 10);
        assert_eq!(drain(&limit, after(5_000_000)), 10);
        assert_eq!(drain(&limit, NOW), 0);
        assert_eq!(drain(&limit, after(5_000_000)), 0);
        assert_eq!(drain(&limit, after(6_000_000)), 1);
    }

    /// Healing as soon as the debt exceeds the tolerance by one period would admit ten per round.
    #[test]
    fn callers_whose_clocks_differ_by_many_periods_do_not_refill_the_bucket_between_them() {
        let limit = limit(1_000_000.0, 10);
        let (fresh, stale) = (after(50_000_000), NOW);
        let admitted: u32 = (0..1_000).map(|_| drain(&limit, fresh) + drain(&limit, stale)).sum();
        assert_eq!((admitted, limit.healed()), (10, 0));
    }

    #[test]
    fn a_clock_that_went_back_locks_nobody_out_for_longer_than_the_hint() {
        for back in [1, 11_000_000_000, 8 * 3_600_000_000_000] {
            let limit = limit(10.0, 3);
            drain(&limit, NOW);
            let now = NOW.saturating_sub(Duration::from_nanos(back));
            let hint = limit.try_acquire(1, now).unwrap_err().retry_after().unwrap();
            assert_eq!(limit.healed(), u64::from(back > 1));
            assert_eq!(hint, Duration::from_nanos(100_000_000 + u64::from(back == 1)));
            assert!(limit.try_acquire(1, now.saturating_add(hint)).is_ok());
        }
    }

    #[test]
    fn at_the_end_of_time_an_empty_bucket_still_refuses() {
        for start in [NOW, Ticks::LAST] {
            let limit = limit(1e9, 3);
            drain(&limit, start);
            for years in [584, 585, 1_000_000_000] {
                let now = NOW.saturating_add(Duration::from_secs(31_536_000) * years);
                assert_eq!(now, Ticks::LAST);
                assert_eq!(drain(&limit, now), if years == 584 && start == NOW { 3 } else { 0 });
            }
        }
        let slowest = RateLimit::new("test", Rate::per(1, 17 * 31_536_000 * SECOND)).unwrap();
        assert_eq!((drain(&slowest, Ticks::LAST), drain(&slowest, Ticks::LAST)), (1, 0));
    }

    #[test]
    fn a_token_is_restored_if_nothing_was_built_on_it_and_forfeited_otherwise() {
        let limit = limit(10.0, 3);
        let [first, second] = [(); 2].map(|()| limit.try_acquire(1, NOW).unwrap());
        assert!(limit.restore(second));
        assert!(limit.restore(first));
        assert_eq!(limit.tokens_available(NOW), 3);

        let [first, _second] = [(); 2].map(|()| limit.try_acquire(1, NOW).unwrap());
        assert!(!limit.restore(first));
        assert_eq!(limit.tokens_available(NOW), 1);
    }

    /// Taking a period off whatever the bucket holds by now admits two at once with a burst of one.
    #[test]
    fn a_late_refund_does_not_buy_a_second_burst() {
        let limit = limit(10.0, 1);
        let first = limit.try_acquire(1, NOW).unwrap();
        let now = after(100_000_000);
        limit.try_acquire(1, now).unwrap();
        let taken_off = limit.next.load(Ordering::Relaxed) - limit.setting().period;
        assert_eq!(taken_off, now.as_u64(), "so the bucket would be full again");
        assert!(!limit.restore(first));
        assert!(limit.try_acquire(1, now).is_err());
    }

    #[test]
    fn sixty_four_lost_swaps_refuse_as_contended_and_one_less_passes() {
        for (rivals, passes) in [(63, true), (64, false)] {
            let limit = limit(10.0, 100);
            let mut left = rivals;
            let outcome = limit.acquire(1, NOW, || {
                if left > 0 {
                    left -= 1;
                    limit.try_acquire(1, NOW).unwrap();
                }
            });
            assert_eq!(outcome.is_ok(), passes);
            if let Err(refusal) = outcome {
                assert_eq!(refusal, RateRefusal::Contended { retry_after: CONTENDED_DELAY, available: 36 });
            }
            assert_eq!(limit.tokens_available(NOW), 36);
        }
    }

    #[test]
    fn reconfiguring_keeps_the_debt_as_time_but_no_more_than_the_new_rate_can_owe() {
        let limit = limit(10.0, 10);
        drain(&limit, NOW);
        limit.reconfigure(Rate::per_second(1.0).burst(5), NOW).unwrap();
        assert_eq!((limit.tokens_available(NOW), limit.burst(), limit.rate_per_second()), (4, 5, 1.0));
        drain(&limit, NOW);
        limit.reconfigure(Rate::per_second(1_000.0).burst(2), NOW).unwrap();
        assert_eq!(limit.try_acquire(1, NOW).unwrap_err().retry_after(), Some(Duration::from_millis(1)));
        assert_eq!(limit.healed(), 0);

        assert_eq!(limit.reconfigure(Rate::per_second(0.0), NOW), Err(RateError::ZeroRate));
        assert_eq!((limit.burst(), limit.rate_per_second()), (2, 1_000.0));
    }

    #[test]
    fn a_call_decided_by_the_old_rate_locks_the_new_one_out_for_a_second_at_most() {
        let limit = limit(0.001, 1);
        let outcome = limit.acquire(1, NOW, || limit.reconfigure(Rate::per_second(10.0).burst(1), NOW).unwrap());
        assert!(outcome.is_ok());
        let hint = limit.try_acquire(1, NOW).unwrap_err().retry_after().unwrap();
        assert_eq!((hint, limit.healed()), (Duration::from_millis(100), 1));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let limit = limit(2.0, 1);
        limit.try_acquire(1, NOW).unwrap();
        let text = |weight| limit.try_acquire(weight, NOW).unwrap_err().to_string();
        assert_eq!(text(1), "0 tokens are left, too few; come back in 500ms");
        assert_eq!(text(2), "a weight of 2 can never pass a burst of 1");
        assert_eq!(limit.name(), "test");
    }
}
