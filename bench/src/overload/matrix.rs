//! Every service under every load, protected in every way: goodput, latency, and what was done in vain.

use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{Load, Settings, Tally};
use serde::{Deserialize, Serialize};

use super::bench::{self, Attempt, Bench, Turn};
use super::results::Results;
use super::target::{Figure, Want};
use super::workload::{CONNECTIONS, W1, W2, Workload};
use crate::stats::Summary;

/// How a server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    None,
    Fixed,
    Adaptive,
    Tonic,
    Tarpc,
}

impl Control {
    pub(super) const ALL: [Self; 5] = [Self::Fixed, Self::Adaptive, Self::None, Self::Tonic, Self::Tarpc];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "no limiter",
            Self::Fixed => "fixed limit",
            Self::Adaptive => "adaptive limit",
            Self::Tonic => "tonic, limit and load_shed",
            Self::Tarpc => "tarpc, limit of requests",
        }
    }

    /// The package and the stack of a peer.
    pub(super) const fn peer(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Tonic => Some(("peer-tonic", "tonic")),
            Self::Tarpc => Some(("peer-tarpc", "tarpc")),
            Self::None | Self::Fixed | Self::Adaptive => None,
        }
    }

    fn settings(self, workload: &Workload) -> Settings {
        match self {
            Self::None => Settings::default(),
            Self::Fixed => workload.fixed(),
            Self::Adaptive => workload.adaptive(),
            Self::Tonic | Self::Tarpc => workload.of_peers(),
        }
    }

    /// The limit of a peer is that of a connection.
    fn connections(self) -> usize {
        if self.peer().is_some() { 1 } else { CONNECTIONS }
    }

    /// Multiples of the capacity, and how many calls come at a time.
    fn loads(self, quick: bool) -> &'static [(f64, f64)] {
        match (self, quick) {
            (_, true) => &[(CALM, 1.0), (2.0, 1.0)],
            (Self::Fixed, _) => {
                &[(CALM, 1.0), (0.8, 1.0), (1.0, 1.0), (1.5, 1.0), (2.0, 1.0), (5.0, 1.0), (10.0, 1.0), (2.0, 8.0)]
            }
            _ => &[(CALM, 1.0), (1.0, 1.0), (1.5, 1.0), (2.0, 1.0), (5.0, 1.0), (10.0, 1.0)],
        }
    }
}

/// One service under one load; a line of the JSON file, and a point of the charts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Point {
    pub(super) workload: String,
    pub(super) control: String,
    /// Calls offered, as a multiple of the capacity.
    pub(super) load: f64,
    /// Calls that are due at the same time, on average.
    pub(super) burst: f64,
    /// What was served in time, as a share of the capacity.
    pub(super) goodput: f64,
    pub(super) offered: u64,
    pub(super) ok: u64,
    pub(super) late: u64,
    pub(super) refused: u64,
    pub(super) expired: u64,
    pub(super) not_begun: u64,
    pub(super) held_back: u64,
    pub(super) failed: u64,
    /// Of the work that was done, what nobody had use for.
    pub(super) in_vain: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) refusal_p99_us: f64,
    pub(super) lateness_p99_us: f64,
    pub(super) generator_cpu: f64,
    /// Why it does not count.
    pub(super) void: Option<String>,
}

/// All of W1.
pub(super) fn of_w1(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    of(bench, &W1, results)
}

/// All of W2.
pub(super) fn of_w2(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    of(bench, &W2, results)
}

fn of(bench: &Bench, workload: &Workload, results: &mut Results) -> Result<(), BoxError> {
    let mut capacity = bench.capacity(workload)?;
    let mut points = Vec::new();
    for round in 0..bench.rounds {
        // What has moved makes the round void, but a round takes too long to be made again.
        let all = |capacity| Ok((points_of(bench, workload, capacity, round)?, None));
        let (of_round, void) = bench.before_and_after(workload, &mut capacity, all)?;
        for mut point in of_round {
            point.void = point.void.or_else(|| void.clone());
            results.point(&point)?;
            points.push(point);
        }
    }
    for figure in judge(workload, &points) {
        results.figure(figure)?;
    }
    let with_limit = bench.served_in_a_loop(workload, &workload.fixed())? / capacity;
    let condition = format!("{}, calls in a loop, fixed limit", workload.name);
    results.figure(Figure::new("capacity", condition, "of C", Want::Nothing, with_limit))
}

/// One round. A control that cannot be measured is left out of it: the others can.
fn points_of(bench: &Bench, workload: &Workload, capacity: f64, round: usize) -> Result<Vec<Point>, BoxError> {
    let mut points = Vec::new();
    for &control in &bench.controls {
        for &load in control.loads(bench.quick) {
            let again = |attempt| {
                let turn = Turn { capacity, seed: bench::seed(round, attempt) };
                point(bench, workload, control, load, turn)
            };
            let (point, void) = bench.again_while_void(again)?;
            let point = Point { void, ..point };
            eprintln!(
                "round {round}  {}  {:>4}x  {:<27} goodput {:.3} of C, p99 {:.0} us{}{}",
                workload.name,
                load.0,
                control.name(),
                point.goodput,
                point.p99_us,
                if point.failed > 0 { format!(", {} failed", point.failed) } else { String::new() },
                point.void.as_ref().map_or_else(String::new, |reason| format!("  VOID: {reason}"))
            );
            points.push(point);
        }
    }
    Ok(points)
}

fn point(
    bench: &Bench,
    workload: &Workload,
    control: Control,
    (load, burst): (f64, f64),
    turn: Turn,
) -> Result<Attempt<Point>, BoxError> {
    let mut site = bench.start(control.peer().map(|(_, stack)| stack), &control.settings(workload))?;
    let offered = Load { per_sec: load * turn.capacity, burst, work: workload.work };
    let phases = [(bench.warm_up(), offered), (bench.window, offered)];
    let plan = workload.plan_on(control.connections(), &phases, turn.seed);
    let (report, did, void) = bench.offer(&mut site, &plan)?;
    let tally = &report.sources[0].phases[1];
    let point = Point {
        workload: workload.name.to_owned(),
        control: control.name().to_owned(),
        load,
        burst,
        goodput: tally.goodput(bench.window) / turn.capacity,
        in_vain: did.in_vain(report.ok()),
        lateness_p99_us: report.lateness_p99_us,
        generator_cpu: report.cpu,
        void: None,
        ..Point::from(tally)
    };
    // One that fails in another way than by overload says that something is wrong with ours; of a peer, that is what
    // there is to be seen.
    let failed = control.peer().is_none() && tally.share(tally.failed_in_all()) > 0.001;
    Ok((point, void.or_else(|| failed.then(|| format!("calls failed: {:?}", tally.failed)))))
}

impl From<&Tally> for Point {
    fn from(tally: &Tally) -> Self {
        Self {
            workload: String::new(),
            control: String::new(),
            load: 0.0,
            burst: 1.0,
            goodput: 0.0,
            offered: tally.offered,
            ok: tally.ok,
            late: tally.late,
            refused: tally.refused_in_all(),
            expired: tally.expired,
            not_begun: tally.not_begun,
            held_back: tally.held_back,
            failed: tally.failed_in_all(),
            in_vain: 0.0,
            p50_us: tally.p50_us,
            p99_us: tally.p99_us,
            refusal_p99_us: tally.refusal_p99_us,
            lateness_p99_us: 0.0,
            generator_cpu: 0.0,
            void: None,
        }
    }
}

/// What the points of the fixed limit say: T1 or T2, T5, T6 and T7.
pub(super) fn judge(workload: &Workload, points: &[Point]) -> Vec<Figure> {
    let fixed: Vec<_> = points
        .iter()
        .filter(|point| point.control == Control::Fixed.name() && point.workload == workload.name)
        .collect();
    let mut figures = Vec::new();
    for (load, burst) in loads_of(&fixed) {
        let here = || fixed.iter().copied().filter(|point| (point.load, point.burst) == (load, burst));
        let bursts = if burst > 1.0 { ", in bursts" } else { "" };
        let condition = format!("{}, {load}x{bursts}", workload.name);
        if let Some((target, want)) = wanted_goodput(workload, load) {
            // A burst for which there are not enough places loses calls, however empty the server was.
            let fits = burst <= (workload.limit + workload.queue) as f64;
            let want = if fits { want } else { Want::Nothing };
            figures.push(median_figure(target, &condition, "of C", want, here(), |point| point.goodput));
        }
        if load > CALM {
            let calm = median(fixed.iter().copied().filter(|point| point.load == CALM), |point| point.p99_us);
            let against = calm.and_then(|calm| Ok(median(here(), |point| point.p99_us)?.over(calm.median)));
            let want = Want::AtMost { gate: 2.0, aim: 1.5 };
            figures.push(Figure::of_rounds("T6", &condition, "x p99 at 0.5x", want, against));
            let want = Want::AtMost { gate: 0.005, aim: 0.0 };
            figures.push(median_figure("T7", &condition, "of the work", want, here(), |point| point.in_vain));
        }
    }
    figures
}

/// The load that others are compared with.
pub(super) const CALM: f64 = 0.5;

fn wanted_goodput(workload: &Workload, load: f64) -> Option<(&'static str, Want)> {
    if load == 1.0 {
        return Some(("T5", Want::AtLeast { gate: 0.93, aim: 0.965 }));
    }
    let want = |gate, aim| Want::AtLeast { gate, aim };
    match (workload.name, load) {
        ("W2", 2.0..=10.0) => Some(("T2", want(0.97, 0.99))),
        ("W1", 2.0) => Some(("T1", want(0.98, 0.99))),
        ("W1", 5.0) => Some(("T1", want(0.93, 0.975))),
        ("W1", 10.0) => Some(("T1", want(0.85, 0.95))),
        _ => None,
    }
}

fn loads_of(points: &[&Point]) -> Vec<(f64, f64)> {
    let mut loads = Vec::new();
    for point in points {
        if !loads.contains(&(point.load, point.burst)) {
            loads.push((point.load, point.burst));
        }
    }
    loads
}

/// The median of the rounds that count, and their range; or why there are none.
pub(super) fn median<'a>(
    points: impl Iterator<Item = &'a Point>,
    figure: impl Fn(&Point) -> f64,
) -> Result<Summary, String> {
    let (void, valid): (Vec<_>, Vec<_>) = points.partition(|point| point.void.is_some());
    let reason = void.iter().find_map(|point| point.void.as_deref());
    bench::summary_of(valid.into_iter().map(figure).collect(), reason)
}

fn median_figure<'a>(
    target: &str,
    condition: &str,
    unit: &str,
    want: Want,
    points: impl Iterator<Item = &'a Point>,
    figure: impl Fn(&Point) -> f64,
) -> Figure {
    Figure::of_rounds(target, condition, unit, want, median(points, figure))
}

/// How long each phase before the measured one takes.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn point(load: f64, goodput: f64, p99_us: f64, void: Option<&str>) -> Point {
        Point {
            workload: "W1".to_owned(),
            control: Control::Fixed.name().to_owned(),
            load,
            goodput,
            p99_us,
            void: void.map(str::to_owned),
            ..Point::from(&Tally::default())
        }
    }

    #[test]
    fn rounds_that_are_void_do_not_count() {
        let points = [
            point(CALM, 0.5, 1_000.0, None),
            point(2.0, 0.99, 1_500.0, None),
            point(2.0, 0.99, 1_500.0, None),
            point(2.0, 0.2, 9_000.0, Some("the generator was late")),
            point(10.0, 0.9, 1_000.0, Some("the generator was late")),
        ];
        let figures = judge(&W1, &points);
        let of = |target: &str, load: &str| {
            figures.iter().find(|f| f.target == target && f.condition.contains(load)).expect("judged").clone()
        };
        assert_eq!((of("T1", "2x").measured, of("T1", "2x").aim_met), (Some(0.99), Some(true)));
        assert_eq!((of("T6", "2x").measured, of("T6", "2x").gate_met), (Some(1.5), Some(true)));
        assert_eq!((of("T1", "10x").measured, of("T1", "10x").gate_met), (None, None));
        assert!(of("T1", "10x").note.contains("late"));
        // Without a calm to compare with, there is a row that says so.
        let figures = judge(&W1, &points[1..2]);
        assert!(figures.iter().any(|figure| figure.target == "T6" && figure.note.contains("not measured")));
    }
}
