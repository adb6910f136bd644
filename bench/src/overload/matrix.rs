//! Every service under every load, protected in every way: goodput, latency, and what was done in vain.

use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{Load, Settings, Tally};
use serde::{Deserialize, Serialize};

use super::bench::Bench;
use super::target::{Figure, Want};
use super::workload::Workload;

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
            // It is to find out by itself, from below 4 times what would be right.
            Self::Adaptive => Settings { adaptive: true, limit: Some(4 * workload.limit), ..Settings::default() },
            Self::Tonic | Self::Tarpc => {
                Settings { limit_per_connection: Some(workload.limit_of_peers), ..Settings::default() }
            }
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

/// All points of a service, each with the capacity that its own server has.
pub(super) fn measure(bench: &mut Bench, workload: &Workload, controls: &[Control]) -> Result<Vec<Point>, BoxError> {
    let capacity = bench.capacity(workload)?;
    let mut points = Vec::new();
    for round in 0..bench.rounds {
        for &control in controls {
            for &(load, burst) in bench.loads {
                let offered = Load { per_sec: load * capacity, burst, work: workload.work };
                let point = point(bench, workload, control, (load, burst), offered, capacity)?;
                eprintln!(
                    "round {round}  {}  {load:>4}x  {:<27} goodput {:.3} of C, p99 {:.0} us{}",
                    workload.name,
                    control.name(),
                    point.goodput,
                    point.p99_us,
                    point.void.as_ref().map_or_else(String::new, |reason| format!("  VOID: {reason}"))
                );
                points.push(point);
            }
        }
    }
    // If the machine has become another one meanwhile, nothing of it can be compared.
    let after = bench.capacity(workload)?;
    if (after / capacity - 1.0).abs() > MOST_MOVED {
        let reason = format!("C moved from {capacity:.0} to {after:.0} calls/s");
        eprintln!("{}: all void: {reason}", workload.name);
        points.iter_mut().for_each(|point| point.void = Some(reason.clone()));
    }
    Ok(points)
}

/// By how much the capacity may differ before and after.
const MOST_MOVED: f64 = 0.03;

fn point(
    bench: &Bench,
    workload: &Workload,
    control: Control,
    (load, burst): (f64, f64),
    offered: Load,
    capacity: f64,
) -> Result<Point, BoxError> {
    let mut last = None;
    for attempt in 0..bench.attempts {
        let mut site = bench.start(control.peer().map(|(_, stack)| stack), &control.settings(workload))?;
        let phases = [(bench.warm_up(), offered), (bench.window, offered)];
        let before = site.served()?;
        let (report, void) = bench.offer(&site, &workload.plan(&phases, bench.seed(attempt)))?;
        let done = site.served()?.finished - before.finished - super::workload::CONNECTIONS as u64;
        let of_all: u64 = report.sources[0].phases.iter().map(|tally| tally.ok).sum();
        let tally = &report.sources[0].phases[1];
        let point = Point {
            workload: workload.name.to_owned(),
            control: control.name().to_owned(),
            load,
            burst,
            goodput: tally.ok as f64 / bench.window.as_secs_f64() / capacity,
            in_vain: done.saturating_sub(of_all) as f64 / done.max(1) as f64,
            lateness_p99_us: report.lateness_p99_us,
            generator_cpu: report.cpu,
            void: void.or_else(|| too_many_failed(tally)),
            ..Point::from(tally)
        };
        if point.void.is_none() {
            return Ok(point);
        }
        last = Some(point);
    }
    last.ok_or_else(|| "no attempt was made".into())
}

/// A call that failed in another way than by overload says that something else is wrong.
fn too_many_failed(tally: &Tally) -> Option<String> {
    (tally.share_failed() > 0.001).then(|| format!("calls failed: {:?}", tally.failed))
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
            failed: tally.failed.values().sum(),
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
            figures.push(median_figure(target, &condition, "of C", want, here(), |point| point.goodput));
        }
        if load >= 1.0 {
            let calm = median(fixed.iter().copied().filter(|point| point.load == CALM), |point| point.p99_us);
            if let Ok(calm) = calm {
                let want = Want::AtMost { gate: 2.0, aim: 1.5 };
                figures.push(median_figure("T6", &condition, "x p99 at 0.5x", want, here(), |p| p.p99_us / calm));
            }
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

/// The median of the rounds that count; or why there are none.
pub(super) fn median<'a>(
    points: impl Iterator<Item = &'a Point>,
    figure: impl Fn(&Point) -> f64,
) -> Result<f64, String> {
    let (void, valid): (Vec<_>, Vec<_>) = points.partition(|point| point.void.is_some());
    let values: Vec<_> = valid.into_iter().map(figure).collect();
    let reason = || void.iter().find_map(|point| point.void.clone()).unwrap_or_else(|| "not measured".to_owned());
    crate::stats::summary(&values).map(|summary| summary.median).ok_or_else(reason)
}

fn median_figure<'a>(
    target: &str,
    condition: &str,
    unit: &str,
    want: Want,
    points: impl Iterator<Item = &'a Point>,
    figure: impl Fn(&Point) -> f64,
) -> Figure {
    match median(points, figure) {
        Ok(value) => Figure::new(target, condition, unit, want, value),
        Err(reason) => Figure::new(target, condition, unit, want, 0.0).void_if(Some(&reason)),
    }
}

/// T10: a refusal beside an echo that nobody disturbs.
pub(super) fn judge_refusals(points: &[Point], echo_p99_us: f64) -> Vec<Figure> {
    let refused = |load: f64| {
        let of = points.iter().filter(move |point| point.load == load && point.burst == 1.0);
        of.filter(|point| point.workload == "W2" && point.control == Control::Fixed.name() && point.refused > 0)
    };
    let want = Want::AtMost { gate: 2.0, aim: 1.2 };
    let loads = [2.0, 5.0, 10.0].into_iter().filter(|&load| refused(load).next().is_some());
    let figure = |load| {
        let condition = format!("W2, {load}x");
        median_figure("T10", &condition, "x p99 of an echo", want, refused(load), |p| p.refusal_p99_us / echo_p99_us)
    };
    loads.map(figure).collect()
}

/// How long each phase before the measured one takes.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::super::workload::W1;
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
    }
}
