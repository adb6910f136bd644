//! What is usual, from a stream of durations, in two words.

use std::time::Duration;

use super::sync::{AtomicU64, Ordering};

/// The running median of durations, approximately, in two words and without a lock.
///
/// Each duration moves the estimate a twentieth up or down, depending on which side of it it is; so it
/// settles where as many are above it as below, follows a change within some dozens of samples, and no single
/// one moves it far. Of samples that come at the same moment from different threads some may be lost, which
/// does not matter.
///
/// It is the frugal estimator of Ma, Muthukrishnan and Sandler ("Frugal Streaming for Estimating Quantiles:
/// One (or two) memory suffices", 2013), with steps that are a share of the estimate.
#[derive(Debug)]
pub struct RunningMedian {
    nanoseconds: AtomicU64,
    samples: AtomicU64,
}

impl Default for RunningMedian {
    fn default() -> Self {
        Self { nanoseconds: AtomicU64::new(0), samples: AtomicU64::new(0) }
    }
}

impl RunningMedian {
    /// Without data.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one more duration into account.
    pub fn add(&self, duration: Duration) {
        let sample = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).clamp(1, MOST);
        let samples = self.samples.load(Ordering::Relaxed);
        let estimate = self.nanoseconds.load(Ordering::Relaxed);
        let step = (estimate / STEPS).max(1);
        let moved = match sample.cmp(&estimate) {
            _ if samples == 0 => sample,
            // Not beyond the sample.
            std::cmp::Ordering::Greater => (estimate + step).min(sample),
            std::cmp::Ordering::Less => (estimate - step).max(sample),
            std::cmp::Ordering::Equal => estimate,
        };
        self.nanoseconds.store(moved, Ordering::Relaxed);
        if samples < ENOUGH {
            self.samples.store(samples + 1, Ordering::Relaxed);
        }
    }

    /// The median of late; `None` before there have been 32 samples.
    pub fn get(&self) -> Option<Duration> {
        let enough = self.samples.load(Ordering::Relaxed) >= ENOUGH;
        enough.then(|| Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)))
    }
}

const STEPS: u64 = 20;
const ENOUGH: u64 = 32;
/// Half of all nanoseconds, so that a step does not overflow.
const MOST: u64 = u64::MAX / 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn without_data_there_is_no_median() {
        let median = RunningMedian::new();
        for _ in 0..31 {
            assert_eq!(median.get(), None);
            median.add(MS);
        }
        median.add(MS);
        assert_eq!(median.get(), Some(MS));
    }

    #[test]
    fn it_settles_at_the_median_and_not_at_the_mean() {
        let median = RunningMedian::new();
        // One in ten is very slow.
        for n in 0..10_000_u64 {
            let us = if n % 10 == 0 { 1_000_000 } else { 900 + n * 7_919 % 200 };
            median.add(Duration::from_micros(us));
        }
        let settled = median.get().unwrap();
        assert!(settled > MS.mul_f64(0.85) && settled < MS.mul_f64(1.2), "{settled:?}");
    }

    #[test]
    fn it_follows_a_change_in_both_directions_within_dozens_of_samples() {
        let median = RunningMedian::new();
        (0..100).for_each(|_| median.add(MS));
        (0..60).for_each(|_| median.add(10 * MS));
        assert_eq!(median.get(), Some(10 * MS));
        (0..60).for_each(|_| median.add(MS));
        assert_eq!(median.get(), Some(MS));
    }

    proptest! {
        #[test]
        fn it_stays_within_what_was_seen(samples in prop::collection::vec(any::<u64>(), 32..100)) {
            let median = RunningMedian::new();
            samples.iter().for_each(|&ns| median.add(Duration::from_nanos(ns)));
            let (least, most) = (*samples.iter().min().unwrap(), *samples.iter().max().unwrap());
            let nanoseconds = median.get().unwrap().as_nanos() as u64;
            prop_assert!(nanoseconds >= least.clamp(1, MOST) && nanoseconds <= most.clamp(1, MOST));
        }
    }
}
