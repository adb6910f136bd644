//! What all measurements share: sizes, programs, capacities, and when a run is void.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{Plan, Report, Served, Settings};

use super::matrix::{self, Control};
use super::site::{Program, Site};
use super::target::{Figure, Want};
use super::workload::Workload;
use crate::peers;
use crate::stats::{self, Summary};

/// A run is void if calls began later than this.
const MOST_LATENESS_US: f64 = 200.0;

/// A generator that is busier than this part of the time may be what is measured.
const MOST_GENERATOR_CPU: f64 = 0.85;

/// A run is void if so many calls were not sent, since their client kept them: they did not overload anything.
const MOST_HELD_BACK: f64 = 0.001;

/// By how much the capacity may differ before and after.
const MOST_MOVED: f64 = 0.03;

/// The client of frames, which takes no advice.
pub(super) const RAW: &str = "sluicegate-raw";

/// How to measure.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) quick: bool,
    pub(super) rounds: usize,
    /// Each measured phase.
    pub(super) window: Duration,
    /// Ways to protect a server that are compared.
    pub(super) controls: Vec<Control>,
    /// How many runs may still be made again: on a machine that is never quiet the end is to come all the same.
    repeats: Cell<u32>,
    own: Program,
    peers: BTreeMap<&'static str, Program>,
}

/// What one attempt came to, or why it says nothing.
pub(super) type Attempt<T> = (T, Option<String>);

/// One turn of a measurement that is made several times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Calls a second that the service can do.
    pub(super) capacity: f64,
    /// Each turn has another draw of times, and those who are compared within it have the same.
    pub(super) seed: u64,
}

impl Bench {
    pub(super) fn new(quick: bool, rounds: usize, window: Duration) -> Result<Self, BoxError> {
        let own = Program { path: std::env::current_exe()?, stack: "sluicegate" };
        Ok(Self {
            quick,
            rounds,
            window,
            controls: vec![Control::Fixed],
            repeats: Cell::new(if quick { 0 } else { REPEATS }),
            own,
            peers: BTreeMap::new(),
        })
    }

    /// Builds the program of a peer.
    pub(super) fn build(&mut self, package: &str, stack: &'static str) -> Result<(), BoxError> {
        let path = peers::build(package)?;
        self.peers.insert(stack, Program { path, stack });
        Ok(())
    }

    /// Starts a server: that of a peer, or our own.
    pub(super) fn start(&self, peer: Option<&'static str>, settings: &Settings) -> Result<Site, BoxError> {
        let program = match peer {
            None => &self.own,
            Some(stack) => self.peers.get(stack).ok_or("the peer was not built")?,
        };
        Site::start(program, settings)
    }

    /// Offers what is planned, holds what its callers say against what the server did, and says why that is void, if
    /// it is.
    ///
    /// # Errors
    ///
    /// Calls were lost, here or there.
    pub(super) fn offer(&self, site: &mut Site, plan: &Plan) -> Result<(Report, Served, Option<String>), BoxError> {
        let before = site.served()?;
        let report = site.begin(plan)?.finish()?;
        let did = site.served()?.since(&before)?.without(first_calls(plan))?;
        did.check(report.tallies())?;
        // Of a server without a limit, sockets are full in the end, and what finds no room in them is what overload is.
        let void = void([&report]).or_else(|| if site.is_limited() { held_back([&report]) } else { None });
        Ok((report, did, void))
    }

    /// Calls a second that a service does when it is never out of work, protected by nothing: what a limiter costs, or
    /// gives away, is not to be a part of what it is judged by. Measured each time that somebody asks.
    pub(super) fn capacity(&self, workload: &Workload) -> Result<f64, BoxError> {
        let found = self.served_in_a_loop(workload, &Settings::default())?;
        eprintln!("{}: C is {found:.0} calls/s ({})", workload.name, workload.about);
        Ok(found)
    }

    /// The same of a server with these settings.
    pub(super) fn served_in_a_loop(&self, workload: &Workload, settings: &Settings) -> Result<f64, BoxError> {
        let mut site = self.start(None, settings)?;
        if workload.is_echo() {
            site = site.offered_by(RAW);
        }
        let report = site.begin(&workload.saturate(self.window / 2))?.finish()?;
        // Otherwise it is what the generator can do.
        if report.cpu > MOST_GENERATOR_CPU {
            return Err(format!("the generator was busy {:.0} % of the time", report.cpu * 100.0).into());
        }
        Ok(report.per_sec)
    }

    /// Measures with the capacity that was found last, and finds it anew behind that: if it has moved by too much, the
    /// machine has become another one meanwhile, and what was measured is void.
    pub(super) fn before_and_after<T>(
        &self,
        workload: &Workload,
        capacity: &mut f64,
        measure: impl FnOnce(f64) -> Result<Attempt<T>, BoxError>,
    ) -> Result<Attempt<T>, BoxError> {
        let before = *capacity;
        let (found, void) = measure(before)?;
        if self.quick {
            return Ok((found, void));
        }
        *capacity = self.capacity(workload)?;
        let moved = (*capacity / before - 1.0).abs() > MOST_MOVED;
        let moved = moved.then(|| format!("C moved from {before:.0} to {capacity:.0} calls/s"));
        Ok((found, void.or(moved)))
    }

    /// A few numbers that are measured together, in rounds, each between two capacities. A round that is void is made
    /// again, up to twice.
    pub(super) fn medians<const N: usize>(
        &self,
        workload: &Workload,
        mut measure: impl FnMut(Turn) -> Result<Attempt<[f64; N]>, BoxError>,
    ) -> Result<Medians<N>, BoxError> {
        let mut capacity = self.capacity(workload)?;
        self.plain_medians(|seed| {
            self.before_and_after(workload, &mut capacity, |capacity| measure(Turn { capacity, seed }))
        })
    }

    /// The same for what has nothing to do with a capacity.
    pub(super) fn plain_medians<const N: usize>(
        &self,
        mut measure: impl FnMut(u64) -> Result<Attempt<[f64; N]>, BoxError>,
    ) -> Result<Medians<N>, BoxError> {
        let mut medians = Medians::default();
        for round in 0..self.rounds {
            medians.add(self.again_while_void(|attempt| measure(seed(round, attempt)))?);
        }
        Ok(medians)
    }

    /// Until it is not void, or has been made three times, or too much has been made again already.
    pub(super) fn again_while_void<T>(
        &self,
        mut attempt: impl FnMut(u64) -> Result<Attempt<T>, BoxError>,
    ) -> Result<Attempt<T>, BoxError> {
        let mut nth = 1;
        loop {
            let (found, void) = attempt(nth)?;
            let left = self.repeats.get();
            match void {
                Some(reason) if nth < ATTEMPTS && left > 0 => eprintln!("void, once more: {reason}"),
                void => return Ok((found, void)),
            }
            self.repeats.set(left - 1);
            nth += 1;
        }
    }

    pub(super) fn warm_up(&self) -> Duration {
        matrix::WARM_UP.min(self.window)
    }
}

const ATTEMPTS: u64 = 3;

/// Some minutes in all.
const REPEATS: u32 = 60;

/// Rounds are to be different draws: otherwise their median says how the machine varies, and nothing of the load.
pub(super) fn seed(round: usize, attempt: u64) -> u64 {
    0x5eed + 0x100 * round as u64 + attempt
}

/// Of the rounds that count, of which one alone says nothing where others were void; or why there is none.
pub(super) fn summary_of(valid: Vec<f64>, void: Option<&str>) -> Result<Summary, String> {
    match (stats::summary(&valid), void) {
        (Some(_), Some(reason)) if valid.len() == 1 => Err(format!("but for one round: {reason}")),
        (Some(summary), _) => Ok(summary),
        (None, reason) => Err(reason.unwrap_or("not measured").to_owned()),
    }
}

/// Numbers that were measured together, over the rounds that count.
#[derive(Debug)]
pub(super) struct Medians<const N: usize> {
    rounds: Vec<[f64; N]>,
    void: Option<String>,
}

impl<const N: usize> Default for Medians<N> {
    fn default() -> Self {
        Self { rounds: Vec::new(), void: None }
    }
}

impl<const N: usize> Medians<N> {
    fn add(&mut self, (numbers, void): Attempt<[f64; N]>) {
        match void {
            None => self.rounds.push(numbers),
            Some(reason) => self.void = Some(reason),
        }
    }

    /// The median of one of them, and their range; or why there is none.
    pub(super) fn of(&self, nth: usize) -> Result<Summary, String> {
        summary_of(self.rounds.iter().map(|numbers| numbers[nth]).collect(), self.void.as_deref())
    }

    /// That median as a figure.
    pub(super) fn figure(&self, nth: usize, target: &str, condition: &str, unit: &str, want: Want) -> Figure {
        Figure::of_rounds(target, condition, unit, want, self.of(nth))
    }
}

/// Why runs that were made at the same time say nothing.
pub(super) fn void<'a>(reports: impl IntoIterator<Item = &'a Report> + Clone) -> Option<String> {
    void_beside(reports, 0.0)
}

/// The same beside others who were on the generators' CPU for that part of the time.
pub(super) fn void_beside<'a>(
    reports: impl IntoIterator<Item = &'a Report> + Clone,
    others_cpu: f64,
) -> Option<String> {
    let lateness = reports.clone().into_iter().map(|report| report.lateness_p99_us).fold(0.0, f64::max);
    if lateness > MOST_LATENESS_US {
        return Some(format!("calls were sent up to {lateness:.0} us late (p99)"));
    }
    // They share a CPU.
    let cpu = others_cpu + reports.into_iter().map(|report| report.cpu).sum::<f64>();
    (cpu > MOST_GENERATOR_CPU).then(|| format!("the generator was busy {:.0} % of the time", cpu * 100.0))
}

/// Whether so many calls were never sent that the server was not offered what it is said to have been.
pub(super) fn held_back<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Option<String> {
    let tallies = reports.into_iter().flat_map(Report::tallies);
    let (kept, offered) =
        tallies.fold((0, 0), |(kept, offered), tally| (kept + tally.held_back, offered + tally.offered));
    let share = kept as f64 / f64::max(offered as f64, 1.0);
    (share > MOST_HELD_BACK).then(|| format!("{:.1} % of the calls were held back by their client", share * 100.0))
}

/// Each connection has one that does not count.
pub(super) fn first_calls(plan: &Plan) -> u64 {
    match plan {
        Plan::Open(open) => open.sources.iter().map(|source| source.connections as u64).sum(),
        Plan::Closed(closed) => closed.connections as u64,
    }
}

#[cfg(test)]
mod tests {
    use bench_kit::overload::{SourceReport, Tally};

    use super::*;

    fn report(lateness_p99_us: f64, cpu: f64, held_back: u64) -> Report {
        let tally = Tally { offered: 1_000, ok: 1_000 - held_back, held_back, ..Tally::default() };
        let source = SourceReport { name: "one".to_owned(), phases: vec![tally] };
        Report { sources: vec![source], lateness_p99_us, cpu, ..Report::default() }
    }

    #[test]
    fn a_run_is_void_if_its_generators_were_late_or_busy_or_kept_calls() {
        let good = report(200.0, 0.85, 1);
        assert_eq!((void([&good]), held_back([&good])), (None, None));
        assert!(void([&report(201.0, 0.1, 0)]).is_some_and(|why| why.contains("late")));
        assert!(void([&report(1.0, 0.9, 0)]).is_some_and(|why| why.contains("busy")));
        assert!(void_beside([&report(1.0, 0.5, 0)], 0.4).is_some());
        assert!(held_back([&report(1.0, 0.1, 2)]).is_some_and(|why| why.contains("0.2 %")));
        assert!(void([&report(1.0, 0.5, 0), &report(1.0, 0.5, 0)]).is_some(), "two generators share one CPU");
    }

    #[test]
    fn no_two_rounds_or_attempts_draw_the_same() {
        let seeds: std::collections::BTreeSet<_> =
            (0..3).flat_map(|round| (1..4).map(move |nth| seed(round, nth))).collect();
        assert_eq!(seeds.len(), 9);
    }

    #[test]
    fn what_is_void_does_not_enter_a_median() {
        let mut medians = Medians::default();
        for (value, void) in [(1.0, None), (900.0, Some("late")), (3.0, None)] {
            medians.add(([value], void.map(str::to_owned)));
        }
        assert_eq!(medians.of(0), Ok(Summary { median: 2.0, min: 1.0, max: 3.0 }));
        let mut nothing = Medians::default();
        nothing.add(([1.0], Some("late".to_owned())));
        assert_eq!(nothing.of(0), Err("late".to_owned()));
        nothing.add(([1.0], None));
        assert_eq!(nothing.of(0), Err("but for one round: late".to_owned()));
    }
}
