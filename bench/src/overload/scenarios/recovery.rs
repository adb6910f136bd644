//! Five times the capacity out of the blue, for a second: how soon the server is at its best, and how soon
//! after that it is as if nothing had been.

use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::TIME_SLOT;

use super::settled_ms;
use crate::overload::bench::{Bench, Turn};
use crate::overload::matrix::CALM;
use crate::overload::results::Results;
use crate::overload::target::Want;
use crate::overload::workload::{W1, W2, Workload};

const PEAK: f64 = 5.0;

/// Onset is over when so much of the capacity is goodput.
const AT_ITS_BEST: f64 = 0.9;
/// It has recovered when of the calls that are due so many are served.
const AS_BEFORE: f64 = 0.99;

pub(in crate::overload) fn run(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    [&W1, &W2].into_iter().try_for_each(|workload| of(bench, workload, results))
}

fn of(bench: &Bench, workload: &Workload, results: &mut Results) -> Result<(), BoxError> {
    // A whole number of slots, so that no slot is in two phases.
    let phase = Duration::from_secs(1).min(bench.window);
    let slots = (phase.as_nanos() / TIME_SLOT.as_nanos()) as usize;
    let phase = TIME_SLOT * slots as u32;
    let found = bench.medians(workload, |Turn { capacity, seed }| {
        let mut site = bench.start(None, &workload.fixed())?;
        let loads = [CALM, PEAK, CALM].map(|load| (phase, workload.at(load * capacity)));
        let (report, _, void) = bench.offer(&mut site, &workload.plan(&loads, seed))?;
        let phase_of = |nth: usize| &report.slots[nth * slots..(nth + 1) * slots];
        let best = AT_ITS_BEST * capacity * TIME_SLOT.as_secs_f64();
        let onset = settled_ms(phase_of(1), |sum, slots| sum.served as f64 >= best * slots as f64);
        let recovery = settled_ms(phase_of(2), |sum, _| sum.due > 0 && sum.due_ok as f64 >= AS_BEFORE * sum.due as f64);
        // What has not come by the end of its phase takes at least that long.
        Ok(([onset, recovery].map(|found| found.unwrap_or(super::ms(slots))), void))
    })?;
    let condition = |what: &str| format!("{}, 0.5x, 5x, 0.5x: {what}", workload.name);
    let (onset, recovery) = (Want::AtMost { gate: 100.0, aim: 20.0 }, Want::AtMost { gate: 250.0, aim: 50.0 });
    results.figure(found.figure(0, "T14", &condition("onset"), "ms", onset))?;
    results.figure(found.figure(1, "T14", &condition("recovery"), "ms", recovery))
}
