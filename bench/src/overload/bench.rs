//! What all measurements share: sizes, programs, capacities, and when a run is void.

use std::collections::BTreeMap;
use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{Plan, Report, Settings};

use super::matrix;
use super::site::{Program, Site};
use super::workload::Workload;
use crate::peers;

/// A run is void if calls began later than this.
const MOST_LATENESS_US: f64 = 200.0;

/// A generator that is busier than this part of the time may be what is measured.
const MOST_GENERATOR_CPU: f64 = 0.85;

/// How to measure.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) quick: bool,
    pub(super) rounds: usize,
    /// Each measured phase.
    pub(super) window: Duration,
    /// Multiples of the capacity, and how many calls come at a time.
    pub(super) loads: &'static [(f64, f64)],
    /// A run that is void is made again, so often in all.
    pub(super) attempts: u64,
    own: Program,
    peers: BTreeMap<&'static str, Program>,
    capacities: BTreeMap<&'static str, f64>,
}

impl Bench {
    pub(super) fn new(quick: bool, rounds: usize, window: Duration) -> Result<Self, BoxError> {
        let own = Program { path: std::env::current_exe()?, stack: "sluicegate" };
        let loads: &[_] = if quick {
            &[(matrix::CALM, 1.0), (2.0, 1.0)]
        } else {
            &[(matrix::CALM, 1.0), (0.8, 1.0), (1.0, 1.0), (1.5, 1.0), (2.0, 1.0), (5.0, 1.0), (10.0, 1.0), (2.0, 8.0)]
        };
        let attempts = if quick { 1 } else { 3 };
        let (peers, capacities) = Default::default();
        Ok(Self { quick, rounds, window, loads, attempts, own, peers, capacities })
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

    /// Offers what is planned, and says why that is void, if it is.
    pub(super) fn offer(&self, site: &Site, plan: &Plan) -> Result<(Report, Option<String>), BoxError> {
        let report = site.offer(plan)?;
        let void = void(&report);
        Ok((report, void))
    }

    /// Calls a second that a server with a fixed limit serves when it is never out of work. It is measured
    /// each time that somebody asks.
    pub(super) fn capacity(&mut self, workload: &Workload) -> Result<f64, BoxError> {
        let site = self.start(None, &workload.fixed())?;
        let found = site.offer(&workload.saturate(self.window))?.per_sec;
        eprintln!("{}: C is {found:.0} calls/s ({})", workload.name, workload.about);
        self.capacities.insert(workload.name, found);
        Ok(found)
    }

    /// The capacity that was found last; finds it if none was.
    pub(super) fn known_capacity(&mut self, workload: &Workload) -> Result<f64, BoxError> {
        match self.capacities.get(workload.name) {
            Some(&known) => Ok(known),
            None => self.capacity(workload),
        }
    }

    pub(super) fn warm_up(&self) -> Duration {
        matrix::WARM_UP.min(self.window)
    }

    /// Another draw of times for each attempt.
    pub(super) fn seed(&self, attempt: u64) -> u64 {
        0x5eed + attempt
    }
}

/// Why a run says nothing.
pub(super) fn void(report: &Report) -> Option<String> {
    let Report { lateness_p99_us: lateness, cpu, .. } = report;
    if *lateness > MOST_LATENESS_US {
        return Some(format!("calls were sent up to {lateness:.0} us late (p99)"));
    }
    (*cpu > MOST_GENERATOR_CPU).then(|| format!("the generator was busy {:.0} % of the time", cpu * 100.0))
}
