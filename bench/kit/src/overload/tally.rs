//! What became of the calls: each is counted once, under one head.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::BoxError;

/// What a caller was told.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was served.
    Served,
    /// It was turned away, and why.
    Refused(String),
    /// The deadline passed, here or at the server.
    Expired,
    /// Anything else, in its own words.
    Failed(String),
}

/// The calls of a source in one phase, by when they were due.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Tally {
    /// All of them.
    pub offered: u64,
    /// Served in time.
    pub ok: u64,
    /// Served, and too late.
    pub late: u64,
    /// Turned away, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Given up at the deadline.
    pub expired: u64,
    /// Failed for any other reason.
    pub failed: BTreeMap<String, u64>,
    /// Nothing was heard of them.
    pub unanswered: u64,
    /// How long those took that were served in time, since they were due.
    pub p50_us: f64,
    /// The same, all but a hundredth.
    pub p99_us: f64,
    /// How long it took to be refused, all but a hundredth, since the call was due.
    pub refusal_p99_us: f64,
}

impl Tally {
    /// Of all reasons.
    #[must_use]
    pub fn refused_in_all(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Whether every call is under one head.
    ///
    /// # Errors
    ///
    /// Calls were lost, or counted twice; or calls failed, or were never heard of.
    pub fn check(&self) -> Result<(), BoxError> {
        let heads = [self.ok, self.late, self.refused_in_all(), self.expired, self.unanswered];
        let counted = heads.iter().sum::<u64>() + self.failed.values().sum::<u64>();
        if counted != self.offered {
            return Err(format!("{} calls were offered, and {counted} are accounted for", self.offered).into());
        }
        if self.unanswered > 0 {
            return Err(format!("{} calls were never heard of", self.unanswered).into());
        }
        Ok(())
    }

    /// Of all calls, those that failed for a reason that no overload explains.
    #[must_use]
    pub fn share_failed(&self) -> f64 {
        self.failed.values().sum::<u64>() as f64 / self.offered.max(1) as f64
    }
}

/// Counts while calls end.
#[derive(Debug)]
pub(super) struct Counting {
    tally: Tally,
    ended: u64,
    served: Histogram<u64>,
    refused: Histogram<u64>,
}

impl Counting {
    pub(super) fn new() -> Result<Self, BoxError> {
        let (served, refused) = (times()?, times()?);
        Ok(Self { tally: Tally::default(), ended: 0, served, refused })
    }

    pub(super) fn offer(&mut self) {
        self.tally.offered += 1;
    }

    /// `took` counts from when the call was due.
    pub(super) fn end(&mut self, outcome: Outcome, took: Duration, deadline: Duration) {
        self.ended += 1;
        match outcome {
            Outcome::Served if took <= deadline => {
                self.tally.ok += 1;
                self.served.saturating_record(took.as_nanos() as u64);
            }
            Outcome::Served => self.tally.late += 1,
            Outcome::Refused(reason) => {
                *self.tally.refused.entry(reason).or_default() += 1;
                self.refused.saturating_record(took.as_nanos() as u64);
            }
            Outcome::Expired => self.tally.expired += 1,
            Outcome::Failed(reason) => *self.tally.failed.entry(reason).or_default() += 1,
        }
    }

    pub(super) fn finish(&mut self) -> Tally {
        let at = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let mut tally = std::mem::take(&mut self.tally);
        tally.unanswered = tally.offered - self.ended;
        tally.p50_us = at(&self.served, 0.5);
        tally.p99_us = at(&self.served, 0.99);
        tally.refusal_p99_us = at(&self.refused, 0.99);
        tally
    }
}

/// Times in nanoseconds. Its end is fixed: one that grows puts what is beyond it, if asked to saturate, at its end.
pub(super) fn times() -> Result<Histogram<u64>, BoxError> {
    const LONGEST: Duration = Duration::from_secs(60);
    Ok(Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3)?)
}

/// What a generator did; it prints this as JSON.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Report {
    /// In the order of the plan.
    pub sources: Vec<SourceReport>,
    /// Of all sources, in slots of [`TIME_SLOT`] since the beginning.
    pub slots: Vec<Slot>,
    /// How late calls began, all but a hundredth.
    pub lateness_p99_us: f64,
    /// The part of the time that the generator was on a CPU.
    pub cpu: f64,
    /// Of a closed loop: calls served in each second.
    pub per_sec: f64,
}

/// What became of the calls of a source.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SourceReport {
    /// As in the plan.
    pub name: String,
    /// One for each phase.
    pub phases: Vec<Tally>,
}

/// A short stretch of time.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Slot {
    /// Calls that were due in it.
    pub due: u64,
    /// Those of them that were served in time, now or later.
    pub due_ok: u64,
    /// Calls that were served in it, and in time.
    pub served: u64,
}

/// The length of a [`Slot`].
pub const TIME_SLOT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn every_call_is_under_one_head() {
        let mut counting = Counting::new().expect("valid digits");
        let outcomes =
            [Outcome::Served, Outcome::Refused("LIMIT".into()), Outcome::Expired, Outcome::Failed("odd".into())];
        for outcome in outcomes {
            counting.offer();
            counting.end(outcome, MS, 2 * MS);
        }
        counting.offer();
        counting.end(Outcome::Served, 3 * MS, 2 * MS);
        let tally = counting.finish();
        assert_eq!((tally.offered, tally.ok, tally.late, tally.expired), (5, 1, 1, 1));
        assert_eq!((tally.refused_in_all(), tally.share_failed()), (1, 0.2));
        assert!((995.0..1_005.0).contains(&tally.p99_us) && tally.refusal_p99_us > 995.0, "{tally:?}");
        assert!(tally.check().is_ok());
    }

    #[test]
    fn a_call_that_is_never_heard_of_is_not_forgotten() {
        let mut counting = Counting::new().expect("valid digits");
        counting.offer();
        let tally = counting.finish();
        assert_eq!(tally.unanswered, 1);
        assert!(tally.check().is_err());
        assert!(Tally { offered: 2, ok: 1, ..Tally::default() }.check().is_err());
    }
}
