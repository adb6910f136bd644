//! What a rate limit is set to: as users say it, as the arithmetic wants it, as one atomic word.

use std::time::Duration;

use crate::limit::clock::Ticks;

/// How many tokens a [`RateLimit`](super::RateLimit) refills in a time, and how many it can hold.
///
/// A full limit lets `burst` calls pass at once and then one per refill, so a window of length `W`
/// sees at most `burst + rate * W` calls: "60 per minute" with a burst of 60 admits 119 in its first
/// minute. For a strict "at most n in any minute" use a burst of 1.
///
/// Without [`Rate::burst`] the burst is what refills in 10 ms, and at least 1. That lets a batch
/// of calls that arrive in one read pass, and adds no more than 1 % to what a second admits.
///
/// ```
/// # use std::time::Duration;
/// # use rpc_core::limit::Rate;
/// let steady = Rate::per_second(0.5);
/// let bursty = Rate::per(1_200, Duration::from_secs(60)).burst(50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    refill: Refill,
    burst: Option<u32>,
}

impl Rate {
    /// `tokens` per second, whole or fractional.
    pub const fn per_second(tokens: f64) -> Self {
        Self { refill: Refill::PerSecond(tokens), burst: None }
    }

    /// `tokens` in every `interval`, such as 1,200 per minute.
    pub const fn per(tokens: u64, interval: Duration) -> Self {
        Self { refill: Refill::Per(tokens, interval), burst: None }
    }

    /// How many tokens there are at most, and at the start.
    #[must_use]
    pub const fn burst(mut self, tokens: u32) -> Self {
        self.burst = Some(tokens);
        self
    }

    /// Checks the rate without making a limit of it, for configuration that is checked early.
    ///
    /// # Errors
    ///
    /// Those of [`RateLimit::new`](super::RateLimit::new).
    pub fn check(&self) -> Result<(), RateError> {
        self.setting().map(drop)
    }

    pub(super) fn setting(&self) -> Result<Setting, RateError> {
        let exact = match self.refill {
            Refill::PerSecond(tokens) => period_of_frequency(tokens)?,
            Refill::Per(tokens, interval) => period_of_count(tokens, interval)?,
        };
        let burst = match self.burst {
            Some(0) => return Err(RateError::ZeroBurst),
            Some(burst) => burst,
            None => u32::try_from(DEFAULT_BURST_SPAN / exact).unwrap_or(u32::MAX).max(1),
        };
        let setting = round_up(exact).map(|period| Setting { period, burst });
        setting.filter(Setting::is_within_time).ok_or(RateError::RefillTooLong { burst })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Refill {
    PerSecond(f64),
    Per(u64, Duration),
}

/// A rate that no limit can be made of.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RateError {
    /// Such a limit would refuse every call for ever.
    #[error("a rate of zero would refuse every call")]
    ZeroRate,
    /// Negative, infinite, or not a number.
    #[error("{per_second} per second is not a rate")]
    NotARate {
        /// The rate asked for.
        per_second: f64,
    },
    /// More than a billion per second is more than a clock of nanoseconds can tell apart.
    #[error("{per_second} per second is more than a billion; for no limit, leave the limit out")]
    TooFast {
        /// The rate asked for.
        per_second: f64,
    },
    /// Such a limit would refuse every call for ever.
    #[error("a burst of zero would refuse every call")]
    ZeroBurst,
    /// Filling the empty limit would outlast the clock, which spans 18 years.
    #[error("a burst of {burst} would take more than 18 years to refill")]
    RefillTooLong {
        /// The burst asked for.
        burst: u32,
    },
}

/// A checked [`Rate`]: one token per `period` ticks, at most `burst` of them.
///
/// It travels as one word, because a call that saw the period of one setting and the burst of
/// another would be held to a limit that nobody asked for, and no lock belongs on this path. 32 bits
/// hold the burst, 32 the period as a binary fraction of 26 digits and its exponent. Rounding up to
/// 26 digits makes a rate at most 0.000003 % slower, and never faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) period: u64,
    pub(super) burst: u32,
}

impl Setting {
    /// The debt at which the limit is empty.
    pub(super) const fn tolerance(self) -> u64 {
        self.burst as u64 * self.period
    }

    fn is_within_time(&self) -> bool {
        u128::from(self.burst) * u128::from(self.period) <= u128::from(Ticks::LAST.as_u64())
    }

    pub(super) const fn to_word(self) -> u64 {
        let exponent = excess_digits(self.period);
        let digits = self.period >> exponent;
        (self.burst as u64) << 32 | digits << EXPONENT_BITS | exponent as u64
    }

    pub(super) const fn from_word(word: u64) -> Self {
        let exponent = word & ((1 << EXPONENT_BITS) - 1);
        let digits = (word & 0xffff_ffff) >> EXPONENT_BITS;
        Self { period: digits << exponent, burst: (word >> 32) as u32 }
    }
}

fn period_of_frequency(per_second: f64) -> Result<u64, RateError> {
    if per_second == 0.0 {
        return Err(RateError::ZeroRate);
    }
    if !per_second.is_finite() || per_second < 0.0 {
        return Err(RateError::NotARate { per_second });
    }
    if per_second > MAX_PER_SECOND as f64 {
        return Err(RateError::TooFast { per_second });
    }
    // The cast saturates, and what saturates is refused as too long.
    Ok((Ticks::PER_SECOND as f64 / per_second).ceil() as u64)
}

fn period_of_count(tokens: u64, interval: Duration) -> Result<u64, RateError> {
    if tokens == 0 {
        return Err(RateError::ZeroRate);
    }
    let nanoseconds = interval.as_nanos();
    if u128::from(tokens) > nanoseconds {
        return Err(RateError::TooFast { per_second: tokens as f64 / interval.as_secs_f64() });
    }
    let period = (nanoseconds * u128::from(Ticks::PER_NANOSECOND)).div_ceil(u128::from(tokens));
    Ok(u64::try_from(period).unwrap_or(u64::MAX))
}

/// The next number at or above `period` that has at most 26 significant binary digits.
const fn round_up(period: u64) -> Option<u64> {
    period.checked_next_multiple_of(1 << excess_digits(period))
}

const fn excess_digits(period: u64) -> u32 {
    (u64::BITS - period.leading_zeros()).saturating_sub(DIGITS)
}

const EXPONENT_BITS: u32 = 6;
const DIGITS: u32 = 32 - EXPONENT_BITS;
const MAX_PER_SECOND: u64 = 1_000_000_000;
const DEFAULT_BURST_SPAN: u64 = Ticks::PER_SECOND / 100;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = Ticks::PER_SECOND;

    #[test]
    fn what_is_no_rate_is_refused() {
        let error = |rate: Rate| rate.check().unwrap_err();
        assert_eq!(error(Rate::per_second(0.0)), RateError::ZeroRate);
        assert_eq!(error(Rate::per_second(-0.0)), RateError::ZeroRate);
        assert_eq!(error(Rate::per(0, Duration::ZERO)), RateError::ZeroRate);
        assert_eq!(error(Rate::per_second(-1.0)), RateError::NotARate { per_second: -1.0 });
        assert!(matches!(error(Rate::per_second(f64::NAN)), RateError::NotARate { .. }));
        assert!(matches!(error(Rate::per_second(f64::INFINITY)), RateError::NotARate { .. }));
        assert_eq!(error(Rate::per_second(1.0).burst(0)), RateError::ZeroBurst);
    }

    #[test]
    fn a_billion_per_second_is_the_fastest() {
        assert_eq!(Rate::per_second(1e9).setting().unwrap().period, 16);
        assert_eq!(Rate::per(1_000_000_000, Duration::from_secs(1)).setting().unwrap().period, 16);
        for rate in [
            Rate::per_second(1e9 + 1.0),
            Rate::per_second(f64::MAX),
            Rate::per(1_000_000_001, Duration::from_secs(1)),
            Rate::per(u64::MAX, Duration::from_secs(1)),
            Rate::per(1, Duration::ZERO),
        ] {
            assert!(matches!(rate.check(), Err(RateError::TooFast { .. })), "{rate:?}");
        }
    }

    #[test]
    fn what_outlasts_the_clock_is_refused() {
        for rate in [
            Rate::per(1, Duration::from_secs(1_000_000_000)),
            Rate::per(1, Duration::MAX),
            Rate::per(1, Duration::from_secs(86_400)).burst(u32::MAX),
            Rate::per_second(f64::MIN_POSITIVE),
            Rate::per_second(1e-320),
            Rate::per_second(1.0).burst(u32::MAX),
        ] {
            assert!(matches!(rate.check(), Err(RateError::RefillTooLong { .. })), "{rate:?}");
        }
        let longest = Rate::per(1, Duration::from_secs(18 * 365 * 86_400));
        assert_eq!(longest.setting().unwrap().burst, 1);
    }

    #[test]
    fn the_default_burst_is_ten_milliseconds_and_at_least_one() {
        let burst = |per_second| Rate::per_second(per_second).setting().unwrap().burst;
        assert_eq!([0.001, 1.0, 150.0, 1_000.0, 1e9].map(burst), [1, 1, 1, 10, 10_000_000]);
    }

    #[test]
    fn usual_rates_lose_nothing_to_rounding() {
        let period = |tokens, seconds| Rate::per(tokens, Duration::from_secs(seconds)).setting().unwrap().period;
        assert_eq!(period(1, 1), SECOND);
        assert_eq!(period(1, 60), 60 * SECOND);
        assert_eq!(period(1_200, 60), SECOND / 20);
        assert_eq!(period(10_000_000, 1), 1_600);
    }

    /// Every rate that loses less than a thousandth; faster ones are rounded to whole ticks.
    #[test]
    fn a_rate_is_never_faster_than_asked_and_hardly_slower() {
        let whole = (0..=7).flat_map(|power| (1..100).map(move |n| n * 10_u64.pow(power)));
        for tokens in whole.filter(|tokens| *tokens <= 10_000_000) {
            for rate in [Rate::per_second(tokens as f64), Rate::per(tokens, Duration::from_secs(1))] {
                check_rounding(rate, tokens, SECOND, SECOND / 1_000);
            }
        }
    }

    /// What counts in whole milliseconds refuses 60,000 in a minute, and lets 705 pass for 700.
    #[test]
    fn every_rate_per_minute_is_what_it_says() {
        let step = if std::env::var("SLUICEGATE_SIEGE").is_ok_and(|size| size == "full") { 1 } else { 23 };
        for tokens in (1..=1_000_000).step_by(step) {
            check_rounding(Rate::per(tokens, Duration::from_secs(60)), tokens, 60 * SECOND, 60 * SECOND / 1_000);
        }
    }

    #[test]
    fn a_rate_of_any_magnitude_is_kept_or_refused_and_never_off() {
        for power in 0..64 {
            for tokens in [(1_u64 << power) - 1, 1 << power, (1 << power) + 1] {
                for rate in [Rate::per_second(tokens as f64), Rate::per(tokens, Duration::from_secs(1))] {
                    match rate.check() {
                        // Up to one tick for each.
                        Ok(()) => check_rounding(rate, tokens, SECOND, tokens + SECOND / 1_000),
                        Err(RateError::ZeroRate) => assert_eq!(tokens, 0),
                        Err(RateError::TooFast { .. }) => assert!(tokens > 1_000_000_000, "{rate:?}"),
                        Err(error) => panic!("{rate:?}: {error}"),
                    }
                }
            }
        }
    }

    /// `tokens` of this rate take `exact` ticks, and at most `slack` more.
    fn check_rounding(rate: Rate, tokens: u64, exact: u64, slack: u64) {
        let took = u128::from(rate.setting().unwrap().period) * u128::from(tokens);
        assert!((u128::from(exact)..=u128::from(exact + slack)).contains(&took), "{rate:?}: {took} for {exact}");
    }

    proptest! {
        #[test]
        fn a_setting_survives_its_word(tokens: u64, nanoseconds: u64, burst: u32) {
            let rate = Rate::per(tokens, Duration::from_nanos(nanoseconds)).burst(burst);
            if let Ok(setting) = rate.setting() {
                prop_assert_eq!(Setting::from_word(setting.to_word()), setting);
                let exact = u128::from(nanoseconds) * 16;
                let product = u128::from(setting.period) * u128::from(tokens);
                prop_assert!(product >= exact);
                prop_assert!(product - exact <= 2 * u128::from(tokens) + exact / (1 << 25));
            }
        }
    }
}
