//! The service behind becomes four times slower for a while, and nobody tells the server: what its limits make
//! of that.

use bench_kit::BoxError;
use bench_kit::overload::{Load, Settings, Work};

use crate::overload::bench::{Bench, Turn};
use crate::overload::results::Results;
use crate::overload::target::Want;
use crate::overload::workload::W2;

const LOAD: f64 = 0.8;
const SLOWER: u32 = 4;

pub(in crate::overload) fn run(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    let limits = [("fixed limit", W2.fixed()), ("adaptive limit", W2.adaptive()), ("no limiter", Settings::default())];
    limits.iter().try_for_each(|(name, settings)| of(bench, name, settings, results))
}

fn of(bench: &Bench, name: &str, settings: &Settings, results: &mut Results) -> Result<(), BoxError> {
    let found = bench.medians(&W2, |Turn { capacity, seed }| {
        let mut site = bench.start(None, settings)?;
        let quick = W2.at(LOAD * capacity);
        let slow = Load { work: Work { wait_us: SLOWER * W2.work.wait_us, ..W2.work }, ..quick };
        let phases = [(bench.warm_up(), quick), (bench.window, slow), (bench.window, quick)];
        let (report, _, void) = bench.offer(&mut site, &W2.plan(&phases, seed))?;
        let goodput = |phase: usize| report.sources[0].phases[phase].goodput(bench.window) / capacity;
        // Of the capacity a quarter is left.
        Ok(([f64::from(SLOWER) * goodput(1), goodput(2) / LOAD], void))
    })?;
    let condition = |what: &str| format!("W2, 0.8x, {name}: {what}");
    let slow = found.figure(0, "downstream", &condition("while 4 times slower"), "of C/4", Want::Nothing);
    results.figure(slow)?;
    results.figure(found.figure(1, "downstream", &condition("quick again"), "of what is offered", Want::Nothing))
}
