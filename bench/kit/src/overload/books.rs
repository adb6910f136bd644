//! What a generator writes down of its calls, and of itself.

use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::plan::Due;
use super::tally::{Counting, times};
use super::{Open, Outcome, Report, Slot, SourceReport, TIME_SLOT};
use crate::BoxError;

/// The calls of an open loop, from the schedule to their ends. All times count from its beginning.
#[derive(Debug)]
pub struct Books {
    deadline: Duration,
    /// Of each source, of each phase.
    counting: Vec<Vec<Counting>>,
    slots: Vec<Slot>,
    lateness: Histogram<u64>,
    to_come: usize,
}

impl Books {
    /// Everything that is in the schedule counts as offered, whether or not anybody gets to it.
    ///
    /// # Errors
    ///
    /// A histogram could not be made.
    pub fn open(open: &Open, schedule: &[Due]) -> Result<Self, BoxError> {
        let of_phases = || open.phases.iter().map(|_| Counting::new()).collect::<Result<_, _>>();
        let counting = open.sources.iter().map(|_| of_phases()).collect::<Result<Vec<Vec<_>>, BoxError>>()?;
        let slots = vec![Slot::default(); slot_of(open.len() + open.deadline) + 1];
        let to_come = schedule.len();
        let mut books = Self { deadline: open.deadline, counting, slots, lateness: times()?, to_come };
        for due in schedule {
            books.of(*due).offer();
            books.slots[slot_of(due.at)].due += 1;
        }
        Ok(books)
    }

    /// A call is made now.
    pub fn begin(&mut self, due: Due, now: Duration) {
        self.lateness.saturating_record(now.saturating_sub(due.at).as_nanos() as u64);
    }

    /// What became of a call. How long that took counts from when it was due, however late it was made.
    pub fn end(&mut self, due: Due, now: Duration, outcome: Outcome) {
        let took = now.saturating_sub(due.at);
        if outcome == Outcome::Served && took <= self.deadline {
            self.slots[slot_of(due.at)].due_ok += 1;
            self.slots[slot_of(now)].served += 1;
        }
        let deadline = self.deadline;
        self.of(due).end(outcome, took, deadline);
        self.to_come = self.to_come.saturating_sub(1);
    }

    /// Whether every call has ended.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.to_come == 0
    }

    /// Closes them.
    pub fn report(&mut self, open: &Open, cpu: f64) -> Report {
        let sources = open.sources.iter().zip(&mut self.counting).map(|(source, phases)| SourceReport {
            name: source.name.clone(),
            phases: phases.iter_mut().map(Counting::finish).collect(),
        });
        Report {
            sources: sources.collect(),
            lateness_p99_us: self.lateness.value_at_quantile(0.99) as f64 / 1e3,
            cpu,
            slots: std::mem::take(&mut self.slots),
            ..Report::default()
        }
    }

    fn of(&mut self, due: Due) -> &mut Counting {
        &mut self.counting[due.source as usize][due.phase as usize]
    }
}

fn slot_of(at: Duration) -> usize {
    (at.as_nanos() / TIME_SLOT.as_nanos()) as usize
}

/// How busy this process is, in the phase in which it is busiest: idle phases are not to make up for others.
#[derive(Debug)]
pub struct Busy {
    phase: u32,
    since: Duration,
    cpu: Duration,
    most: f64,
}

/// In less there is nothing to be said.
const SHORTEST: Duration = Duration::from_millis(20);

impl Busy {
    /// From the beginning of the first phase.
    #[must_use]
    pub fn begin() -> Self {
        Self { phase: 0, since: Duration::ZERO, cpu: cpu_time(), most: 0.0 }
    }

    /// A call of that phase is due.
    pub fn phase(&mut self, phase: u32, now: Duration) {
        if phase != self.phase {
            self.close(now);
            self.phase = phase;
        }
    }

    /// The part of the time that it was on a CPU.
    #[must_use]
    pub fn most(mut self, now: Duration) -> f64 {
        self.close(now);
        self.most
    }

    fn close(&mut self, now: Duration) {
        let (cpu, elapsed) = (cpu_time(), now.saturating_sub(self.since));
        if elapsed >= SHORTEST {
            self.most = self.most.max((cpu - self.cpu).as_secs_f64() / elapsed.as_secs_f64());
        }
        (self.since, self.cpu) = (now, cpu);
    }
}

/// Of all threads of this process; exact, where `/proc` has ticks of 10 ms.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::hint;
    use std::time::Instant;

    use super::super::{Load, Source, Work};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn open() -> Open {
        let load = Load { per_sec: 1_000.0, burst: 1.0, work: Work::default() };
        let source = Source { name: "one".into(), connections: 1, priority: 0, loads: vec![load] };
        Open { phases: vec![100 * MS], sources: vec![source], deadline: 10 * MS, seed: 3 }
    }

    #[test]
    fn a_call_that_nobody_got_to_is_offered_and_unanswered() {
        let (open, schedule) = (open(), open().schedule());
        let mut books = Books::open(&open, &schedule).expect("valid");
        for due in &schedule[1..] {
            books.begin(*due, due.at);
            books.end(*due, due.at + MS, Outcome::Served);
        }
        assert!(!books.are_complete());
        let report = books.report(&open, 0.0);
        let tally = &report.sources[0].phases[0];
        assert_eq!((tally.offered, tally.unanswered), (schedule.len() as u64, 1));
        assert!(tally.check().is_err());
    }

    #[test]
    fn who_is_served_and_who_is_refused_count_from_when_they_were_due() {
        let (open, schedule) = (open(), open().schedule());
        let mut books = Books::open(&open, &schedule).expect("valid");
        for (nth, due) in schedule.iter().enumerate() {
            let began = due.at + 2 * MS;
            books.begin(*due, began);
            let outcome = if nth % 2 == 0 { Outcome::Served } else { Outcome::Refused("LIMIT".into()) };
            books.end(*due, began + MS, outcome);
        }
        let report = books.report(&open, 0.0);
        let tally = &report.sources[0].phases[0];
        assert!((2_990.0..3_010.0).contains(&tally.p99_us), "{tally:?}");
        assert!((2_990.0..3_010.0).contains(&tally.refusal_p99_us), "{tally:?}");
        assert!((1_990.0..2_010.0).contains(&report.lateness_p99_us));
        let due: u64 = report.slots.iter().map(|slot| slot.due).sum();
        assert_eq!(due, tally.offered);
    }

    #[test]
    fn an_idle_phase_does_not_hide_a_busy_one() {
        let mut busy = Busy::begin();
        let began = Instant::now();
        while began.elapsed() < 30 * MS {
            hint::spin_loop();
        }
        // The CPU is made up of none in the phase that follows.
        let spent = cpu_time() - busy.cpu;
        busy.phase(1, 30 * MS);
        let most = busy.most(10_000 * MS);
        assert!(most >= spent.as_secs_f64() / 0.030 * 0.99, "{most}");
    }
}
