//! What became of the calls: each is counted once, under one head.

use std::borrow::Cow;
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
    Refused(Cow<'static, str>),
    /// The deadline passed, and it may have been executed.
    Expired,
    /// The server said that the deadline had passed, or would, and that it did not begin.
    NotBegun,
    /// The deadline passed before anything of it was sent, as its own client held it back.
    HeldBack,
    /// The socket was full for so long that it was not sent.
    Blocked,
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
    /// Given up at the deadline, and perhaps executed.
    pub expired: u64,
    /// Not begun by a server that saw that the deadline had passed, or would.
    pub not_begun: u64,
    /// Never sent, as the client itself held them back: what the server would have done with them nobody knows.
    pub held_back: u64,
    /// Never sent, as the socket was full.
    pub blocked: u64,
    /// Failed for any other reason.
    pub failed: BTreeMap<String, u64>,
    /// Nothing was heard of them.
    pub unanswered: u64,
    /// How long those took that the server let in, as far as a caller can know: served in time or late, or given up
    /// without an answer. Since they were due.
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
    /// Calls were lost, or counted twice, or never heard of.
    pub fn check(&self) -> Result<(), BoxError> {
        let Self { ok, late, expired, not_begun, held_back, blocked, unanswered, .. } = *self;
        let heads = [ok, late, self.refused_in_all(), expired, not_begun, held_back, blocked, unanswered];
        let counted = heads.iter().sum::<u64>() + self.failed_in_all();
        if counted != self.offered {
            return Err(format!("{} calls were offered, and {counted} are accounted for", self.offered).into());
        }
        if self.unanswered > 0 {
            return Err(format!("{} calls were never heard of", self.unanswered).into());
        }
        Ok(())
    }

    /// Of all reasons.
    #[must_use]
    pub fn failed_in_all(&self) -> u64 {
        self.failed.values().sum()
    }

    /// What `calls` are of all that were offered.
    #[must_use]
    pub fn share(&self, calls: u64) -> f64 {
        calls as f64 / self.offered.max(1) as f64
    }

    /// Calls a second that were served in time.
    #[must_use]
    pub fn goodput(&self, phase: Duration) -> f64 {
        self.ok as f64 / phase.as_secs_f64()
    }
}

/// Counts while calls end.
#[derive(Debug)]
pub(super) struct Counting {
    tally: Tally,
    ended: u64,
    admitted: Histogram<u64>,
    refused: Histogram<u64>,
}

impl Counting {
    pub(super) fn new() -> Result<Self, BoxError> {
        let (admitted, refused) = (times()?, times()?);
        Ok(Self { tally: Tally::default(), ended: 0, admitted, refused })
    }

    pub(super) fn offer(&mut self) {
        self.tally.offered += 1;
    }

    /// `took` counts from when the call was due.
    pub(super) fn end(&mut self, outcome: Outcome, took: Duration, deadline: Duration) {
        self.ended += 1;
        let Self { tally, admitted, refused, .. } = self;
        let (head, let_in) = match outcome {
            Outcome::Served if took <= deadline => (&mut tally.ok, true),
            Outcome::Served => (&mut tally.late, true),
            Outcome::Expired => (&mut tally.expired, true),
            Outcome::NotBegun => (&mut tally.not_begun, false),
            Outcome::HeldBack => (&mut tally.held_back, false),
            Outcome::Blocked => (&mut tally.blocked, false),
            Outcome::Failed(reason) => return add(&mut tally.failed, &reason),
            Outcome::Refused(reason) => {
                refused.saturating_record(took.as_nanos() as u64);
                return add(&mut tally.refused, &reason);
            }
        };
        *head += 1;
        if let_in {
            admitted.saturating_record(took.as_nanos() as u64);
        }
    }

    pub(super) fn finish(&mut self) -> Tally {
        let at = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let mut tally = std::mem::take(&mut self.tally);
        tally.unanswered = tally.offered - self.ended;
        tally.p50_us = at(&self.admitted, 0.5);
        tally.p99_us = at(&self.admitted, 0.99);
        tally.refusal_p99_us = at(&self.refused, 0.99);
        tally
    }
}

/// Under a name that is there already, as nearly always, nothing is allocated.
fn add(to: &mut BTreeMap<String, u64>, name: &str) {
    match to.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            to.insert(name.to_owned(), 1);
        }
    }
}

/// Times in nanoseconds. Its end is fixed: one that grows puts what is beyond it, if asked to saturate, at its end.
pub fn times() -> Result<Histogram<u64>, BoxError> {
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
    /// The part of the time that the generator was on a CPU, in the phase in which it was busiest.
    pub cpu: f64,
    /// Of a closed loop: calls served in each second.
    pub per_sec: f64,
    /// Of a closed loop: how long they took, all but a hundredth.
    pub p99_us: f64,
}

impl Report {
    /// Of every source and phase.
    pub fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.sources.iter().flat_map(|source| &source.phases)
    }

    /// Calls that were served in time.
    #[must_use]
    pub fn ok(&self) -> u64 {
        self.tallies().map(|tally| tally.ok).sum()
    }
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
        let outcomes = [
            Outcome::Served,
            Outcome::Refused("LIMIT".into()),
            Outcome::Expired,
            Outcome::NotBegun,
            Outcome::HeldBack,
            Outcome::Blocked,
            Outcome::Failed("odd".into()),
        ];
        for outcome in outcomes {
            counting.offer();
            counting.end(outcome, MS, 2 * MS);
        }
        counting.offer();
        counting.end(Outcome::Served, 3 * MS, 2 * MS);
        let tally = counting.finish();
        assert_eq!((tally.offered, tally.ok, tally.late, tally.expired), (8, 1, 1, 1));
        assert_eq!((tally.not_begun, tally.held_back, tally.blocked), (1, 1, 1));
        assert_eq!((tally.refused_in_all(), tally.failed_in_all(), tally.share(tally.ok)), (1, 1, 0.125));
        assert!(tally.check().is_ok());
    }

    #[test]
    fn who_was_let_in_and_came_too_late_is_among_the_slowest() {
        let mut counting = Counting::new().expect("valid digits");
        for nth in 0..100 {
            counting.offer();
            let (outcome, took) = if nth < 97 { (Outcome::Served, 1) } else { (Outcome::Expired, 50) };
            counting.end(outcome, took * MS, 50 * MS);
        }
        let tally = counting.finish();
        assert!((995.0..1_005.0).contains(&tally.p50_us) && tally.p99_us > 49_000.0, "{tally:?}");
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
