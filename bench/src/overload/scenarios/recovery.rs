//! Five times the capacity out of the blue, for a second: how soon the server is at its best, and how soon
//! after that it is as if nothing had been.

use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::TIME_SLOT;

use super::{TOGETHER, first_ms};
use crate::overload::bench::Bench;
use crate::overload::target::{Figure, Want};
use crate::overload::workload::{W1, W2, Workload};

const CALM: f64 = 0.5;
const PEAK: f64 = 5.0;

/// Onset is over when so much of the capacity is goodput.
const AT_ITS_BEST: f64 = 0.9;
/// It has recovered when of the calls that are due so many are served.
const AS_BEFORE: f64 = 0.99;

pub(super) fn run(bench: &mut Bench) -> Result<Vec<Figure>, BoxError> {
    let mut figures = of(bench, &W1)?;
    figures.extend(of(bench, &W2)?);
    Ok(figures)
}

fn of(bench: &mut Bench, workload: &Workload) -> Result<Vec<Figure>, BoxError> {
    let capacity = bench.known_capacity(workload)?;
    let site = bench.start(None, &workload.fixed())?;
    // A whole number of slots, so that no slot is in two phases.
    let phase = Duration::from_secs(1).min(bench.window);
    let phase = TIME_SLOT * (phase.as_nanos() / TIME_SLOT.as_nanos()) as u32;
    let loads = [CALM, PEAK, CALM].map(|load| (phase, workload.at(load * capacity)));
    let (report, void) = bench.offer(&site, &workload.plan(&loads, bench.seed(0)))?;

    let per_phase = (phase.as_nanos() / TIME_SLOT.as_nanos()) as usize;
    let phase_of = |nth: usize| &report.slots[nth * per_phase..(nth + 1) * per_phase];
    let best = capacity * TIME_SLOT.as_secs_f64() * TOGETHER as f64;
    let onset = first_ms(phase_of(1), |slot| slot.served as f64 >= AT_ITS_BEST * best);
    let recovery = first_ms(phase_of(2), |slot| slot.due > 0 && slot.due_ok as f64 >= AS_BEFORE * slot.due as f64);
    let figure = |what: &str, gate, aim, found: Option<f64>| {
        let condition = format!("{}, 0.5x, 5x, 0.5x: {what}", workload.name);
        // What has not come by the end of its phase takes at least that long.
        let found = found.unwrap_or(phase.as_secs_f64() * 1e3);
        Figure::new("T14", condition, "ms", Want::AtMost { gate, aim }, found).void_if(void.as_deref())
    };
    Ok(vec![figure("onset", 100.0, 20.0, onset), figure("recovery", 250.0, 50.0, recovery)])
}
