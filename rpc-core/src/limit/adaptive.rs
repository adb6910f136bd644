//! Limits of calls in flight that find their maximum themselves.

use std::{
    fmt,
    sync::{Arc, TryLockError},
    time::Duration,
};

use super::{
    concurrency::{ConcurrencyError, ConcurrencyLimit},
    sync::Mutex,
};

/// What one call tells about how many should be in flight: one that was admitted, and has succeeded or was given up.
/// Refusals and errors are quick, and would make a server that fails look fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// From its admission to its answer, or until it was given up. That one would have taken longer, nobody knows how
    /// long; and its caller may just have been in a hurry.
    pub latency: Duration,
    /// Calls in flight at its end, itself included.
    pub in_flight: u64,
    /// Nobody waited for its answer any more: its deadline had passed, it was cancelled, or its client was gone. A server
    /// that is so far behind that all of its calls are given up has no others to learn from.
    pub given_up: bool,
}

/// Finds out how many calls should be in flight, from how long they take.
///
/// ```
/// use std::time::Duration;
/// use rpc_core::limit::{LimitAlgorithm, Sample};
///
/// /// As many as take ten milliseconds.
/// #[derive(Debug)]
/// struct Simple;
///
/// impl LimitAlgorithm for Simple {
///     fn update(&mut self, limit: f64, sample: Sample) -> f64 {
///         if sample.latency > Duration::from_millis(10) { limit - 1.0 } else { limit + 0.1 }
///     }
/// }
/// ```
pub trait LimitAlgorithm: fmt::Debug + Send {
    /// The new limit, from the present one and a sample. Fractions are kept; the bounds of the limit are
    /// seen to by [`AdaptiveLimit`].
    fn update(&mut self, limit: f64, sample: Sample) -> f64;
}

/// Always the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed;

impl LimitAlgorithm for Fixed {
    fn update(&mut self, limit: f64, _: Sample) -> f64 {
        limit
    }
}

/// Additive increase, multiplicative decrease: one more for a limit's worth of quick calls, and a tenth
/// less for each that took longer than a threshold, but only once in as many calls as are in flight.
///
/// From Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer
/// Networks" (1989). It needs to be told what is too long.
#[derive(Clone, Copy, Debug)]
pub struct Aimd {
    too_long: Duration,
    backoff: f64,
    /// So many samples were of calls let in before the last decrease.
    ignored: f64,
}

impl Aimd {
    /// Calls that take longer than `too_long` show that there are too many.
    pub const fn new(too_long: Duration) -> Self {
        Self { too_long, backoff: 0.9, ignored: 0.0 }
    }

    /// What is left of the limit after a decrease, from 0.5 to 1. Default: 0.9.
    #[must_use]
    pub const fn backoff(mut self, backoff: f64) -> Self {
        self.backoff = backoff.clamp(0.5, 1.0);
        self
    }
}

impl LimitAlgorithm for Aimd {
    fn update(&mut self, limit: f64, sample: Sample) -> f64 {
        let was_ignored = self.ignored > 0.0;
        self.ignored = (self.ignored - 1.0).max(0.0);
        if sample.latency > self.too_long {
            if was_ignored {
                return limit;
            }
            self.ignored = limit;
            return limit * self.backoff;
        }
        if is_used(limit, sample) && !sample.given_up { limit + 1.0 / limit } else { limit }
    }
}

/// Compares how long calls take now with how long they took over a long time, and lets a few of them queue.
///
/// Of Netflix's concurrency-limits, `Gradient2Limit`: the limit is multiplied by the ratio of the long
/// average to the short one, with a tolerance of 1.5 and at least one half, plus a queue of 4; and moves
/// there by a fifth. When the service became faster the long average is let go sooner. It needs to be told
/// nothing, but takes whatever lasts for normal in the end.
///
/// Unlike that one it hears of calls that were given up: one that had lasted for longer than normal takes a tenth of the
/// limit and a fifth of what is normal, but only once in as many calls as are in flight. Otherwise a limit that is worth more
/// than callers wait would stay so, as those few calls that are in time have waited for just as long.
#[derive(Clone, Copy, Debug)]
pub struct Gradient2 {
    long: f64,
    /// Of the long average, which is a plain mean at first.
    samples: f64,
    tolerance: f64,
    queue: f64,
    smoothing: f64,
    /// So many samples were of calls let in before the last one that was given up.
    ignored: f64,
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self { long: 0.0, samples: 0.0, tolerance: 1.5, queue: 4.0, smoothing: 0.2, ignored: 0.0 }
    }
}

impl Gradient2 {
    /// With the values of its inventors.
    pub fn new() -> Self {
        Self::default()
    }

    /// How much longer than usual calls may take before the limit shrinks, at least 1. Default: 1.5.
    #[must_use]
    pub const fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance.max(1.0);
        self
    }

    /// How many calls may queue. Default: 4.
    #[must_use]
    pub const fn queue(mut self, calls: f64) -> Self {
        self.queue = calls.max(0.0);
        self
    }
}

impl LimitAlgorithm for Gradient2 {
    fn update(&mut self, limit: f64, sample: Sample) -> f64 {
        let short = sample.latency.as_secs_f64().max(1e-9);
        let was_ignored = self.ignored > 0.0;
        self.ignored = (self.ignored - 1.0).max(0.0);
        if sample.given_up {
            if was_ignored || short < self.long || !is_used(limit, sample) {
                return limit;
            }
            self.ignored = limit;
            self.long *= 0.8;
            return limit * 0.9;
        }
        self.samples = (self.samples + 1.0).min(LONG_SAMPLES);
        self.long += (short - self.long) / self.samples;
        if self.long > 2.0 * short {
            self.long *= 0.95;
        }
        if !is_used(limit, sample) {
            return limit;
        }
        let gradient = (self.tolerance * self.long / short).clamp(0.5, 1.0);
        let target = limit * gradient + self.queue;
        limit + (target - limit) * self.smoothing
    }
}

/// Whether a limit matters: one that is not half used says nothing about whether more would be good.
fn is_used(limit: f64, sample: Sample) -> bool {
    sample.in_flight as f64 * 2.0 >= limit
}

/// How many samples the long average is about.
const LONG_SAMPLES: f64 = 600.0;

/// A [`ConcurrencyLimit`] whose maximum an algorithm finds, between a floor and a ceiling.
#[derive(Debug)]
pub struct AdaptiveLimit {
    limit: Arc<ConcurrencyLimit>,
    floor: u64,
    ceiling: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    algorithm: Box<dyn LimitAlgorithm>,
    exact: f64,
}

impl AdaptiveLimit {
    /// Sets the maximum of `limit` from now on, at first to `start`.
    ///
    /// # Errors
    ///
    /// The floor is zero. A ceiling below the floor counts as the floor.
    pub fn new(
        limit: Arc<ConcurrencyLimit>,
        algorithm: Box<dyn LimitAlgorithm>,
        start: u64,
        floor: u64,
        ceiling: u64,
    ) -> Result<Self, ConcurrencyError> {
        if floor == 0 {
            return Err(ConcurrencyError::ZeroMax);
        }
        let ceiling = ceiling.max(floor);
        let start = start.clamp(floor, ceiling);
        limit.set_max(Some(start))?;
        Ok(Self { limit, floor, ceiling, state: Mutex::new(State { algorithm, exact: start as f64 }) })
    }

    /// Takes a call into account that was admitted, and has succeeded after so long.
    ///
    /// If another thread does so at this very moment, the sample is lost: there are others, and no call
    /// should wait for it.
    ///
    /// # Panics
    ///
    /// If the algorithm does. The limit then stays as it was, and the next sample is taken into account again.
    pub fn succeeded(&self, latency: Duration) {
        self.note(latency, false);
    }

    /// Takes a call into account that was admitted, and was given up after so long without an answer; otherwise as
    /// [`Self::succeeded`].
    pub fn given_up(&self, latency: Duration) {
        self.note(latency, true);
    }

    fn note(&self, latency: Duration, given_up: bool) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            // An algorithm has panicked. The limit is as it was before; what the algorithm makes of the next sample
            // is its own affair.
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let sample = Sample { latency, in_flight: self.limit.snapshot().held, given_up };
        let before = state.exact;
        let found = state.algorithm.update(before, sample);
        // An algorithm of a user's may not be a number.
        let found = if found.is_finite() { found } else { before };
        state.exact = found.clamp(self.floor as f64, self.ceiling as f64);
        if state.exact as u64 != before as u64 {
            self.limit.set_max(Some(state.exact as u64)).expect("the floor is not zero");
        }
    }

    /// The limit whose maximum it sets.
    pub fn limit(&self) -> &Arc<ConcurrencyLimit> {
        &self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn adaptive(algorithm: impl LimitAlgorithm + 'static, start: u64, floor: u64, ceiling: u64) -> AdaptiveLimit {
        let limit = ConcurrencyLimit::new("test", None).unwrap();
        AdaptiveLimit::new(limit, Box::new(algorithm), start, floor, ceiling).unwrap()
    }

    /// The limit after so many calls, with as many in flight as may be.
    fn after(adaptive: &AdaptiveLimit, calls: u32, latency: Duration) -> u64 {
        for _ in 0..calls {
            let permits: Vec<_> = std::iter::from_fn(|| adaptive.limit().try_acquire().ok()).collect();
            adaptive.succeeded(latency);
            drop(permits);
        }
        adaptive.limit().max().unwrap()
    }

    #[test]
    fn a_fixed_limit_stays() {
        let fixed = adaptive(Fixed, 10, 1, 100);
        assert_eq!([after(&fixed, 100, MS), after(&fixed, 100, 1_000 * MS)], [10, 10]);
    }

    #[test]
    fn aimd_grows_by_one_for_a_round_of_quick_calls_and_shrinks_by_a_tenth_for_a_round_with_slow_ones() {
        let aimd = adaptive(Aimd::new(10 * MS), 20, 1, 100);
        assert_eq!(after(&aimd, 21, MS), 21);
        // A round of slow calls was let in before the limit could be lowered once.
        assert_eq!(after(&aimd, 15, 11 * MS), 18);
        assert!(after(&aimd, 100, 11 * MS) < 14);
    }

    #[test]
    fn gradient2_shrinks_while_calls_take_longer_than_they_used_to_and_grows_again() {
        let gradient = adaptive(Gradient2::new(), 50, 1, 200);
        let normal = after(&gradient, 200, 10 * MS);
        assert!(normal > 50);
        let slow = after(&gradient, 20, 100 * MS);
        assert!(slow < normal / 2, "{slow} of {normal}");
        assert!(after(&gradient, 300, 10 * MS) >= normal);
    }

    #[test]
    fn calls_that_are_given_up_lower_a_limit_once_in_a_round_unless_their_callers_were_in_a_hurry() {
        for knows_too_long in [true, false] {
            let adaptive = match knows_too_long {
                true => adaptive(Aimd::new(10 * MS), 100, 1, 1_000),
                false => adaptive(Gradient2::new(), 100, 1, 1_000),
            };
            after(&adaptive, 30, 10 * MS);
            let max = adaptive.limit().max().unwrap();
            let give_up = |calls: u32, latency, held: u64| {
                let _permits: Vec<_> = (0..held).map(|_| adaptive.limit().try_acquire().unwrap()).collect();
                (0..calls).for_each(|_| adaptive.given_up(latency));
                adaptive.limit().max().unwrap()
            };
            assert_eq!(give_up(500, 9 * MS, max), max, "they were in a hurry, and say nothing");
            if !knows_too_long {
                assert_eq!(give_up(500, 11 * MS, max / 2 - 1), max, "there was room, and they took long nevertheless");
            }
            let lower = give_up(50, 11 * MS, max);
            let tenth_less = max * 9 / 10;
            assert!((tenth_less..=tenth_less + 1).contains(&lower), "all of them were let in before it shrank");
            let low = give_up(2_000, 11 * MS, lower);
            assert!(low < lower / 2 && after(&adaptive, 500, MS) > low, "it comes back with those that succeed");
        }
    }

    #[test]
    fn no_limit_leaves_its_floor_or_its_ceiling() {
        for algorithm in [true, false] {
            let boxed: Box<dyn LimitAlgorithm> =
                if algorithm { Box::new(Gradient2::new()) } else { Box::new(Aimd::new(10 * MS)) };
            let limit = ConcurrencyLimit::new("test", None).unwrap();
            let adaptive = AdaptiveLimit::new(limit, boxed, 1_000, 5, 30).unwrap();
            assert_eq!(adaptive.limit().max(), Some(30));
            for latency in [MS, MS * 2, MS * 4_000, MS * 1_000_000, MS] {
                let max = after(&adaptive, 500, latency);
                assert!((5..=30).contains(&max), "{max}");
            }
        }
        let limit = ConcurrencyLimit::new("test", None).unwrap();
        assert!(AdaptiveLimit::new(limit, Box::new(Fixed), 1, 0, 1).is_err());
    }

    #[test]
    fn a_limit_that_is_not_half_used_does_not_grow() {
        for algorithm in [true, false] {
            let boxed: Box<dyn LimitAlgorithm> =
                if algorithm { Box::new(Gradient2::new()) } else { Box::new(Aimd::new(10 * MS)) };
            let limit = ConcurrencyLimit::new("test", None).unwrap();
            let adaptive = AdaptiveLimit::new(limit, boxed, 20, 1, 100).unwrap();
            let _permits: Vec<_> = (0..9).map(|_| adaptive.limit().try_acquire().unwrap()).collect();
            (0..1_000).for_each(|_| adaptive.succeeded(MS));
            assert_eq!(adaptive.limit().max(), Some(20));
        }
    }

    /// What a user's algorithm may say.
    #[derive(Debug)]
    struct Nonsense(f64);

    impl LimitAlgorithm for Nonsense {
        fn update(&mut self, _: f64, _: Sample) -> f64 {
            self.0
        }
    }

    #[test]
    fn what_is_no_number_changes_nothing() {
        for nonsense in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(after(&adaptive(Nonsense(nonsense), 10, 1, 20), 3, MS), 10);
        }
        assert_eq!(after(&adaptive(Nonsense(-5.0), 10, 2, 20), 3, MS), 2);
    }

    #[test]
    fn an_algorithm_that_panicked_is_asked_again_and_the_limit_has_stayed() {
        #[derive(Debug)]
        struct Panics(u32);

        impl LimitAlgorithm for Panics {
            fn update(&mut self, limit: f64, _: Sample) -> f64 {
                self.0 += 1;
                assert!(self.0 > 1, "the first time");
                limit + 1.0
            }
        }

        let adaptive = adaptive(Panics(0), 10, 1, 20);
        let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| adaptive.succeeded(MS)));
        assert_eq!((first.is_err(), adaptive.limit().max()), (true, Some(10)));
        assert_eq!(after(&adaptive, 2, MS), 12);
    }

    #[test]
    fn changing_the_maximum_leaves_what_is_in_flight_alone() {
        let adaptive = adaptive(Nonsense(5.0), 10, 1, 20);
        let permits: Vec<_> = (0..10).map(|_| adaptive.limit().try_acquire().unwrap()).collect();
        adaptive.succeeded(MS);
        let snapshot = adaptive.limit().snapshot();
        assert_eq!((snapshot.max, snapshot.held), (Some(5), 10));
        drop(permits);
        assert_eq!(adaptive.limit().snapshot().held, 0);
    }
}
