//! The service behind becomes four times slower, and quick again: what is left of the goodput, and whether it
//! comes back.

use bench_kit::BoxError;
use bench_kit::overload::{Load, Settings, Work};

use crate::overload::bench::Bench;
use crate::overload::target::{Figure, Want};
use crate::overload::workload::W2;

const LOAD: f64 = 0.8;
const SLOWER: u32 = 4;

pub(super) fn run(bench: &mut Bench) -> Result<Vec<Figure>, BoxError> {
    let adaptive = Settings { adaptive: true, limit: Some(4 * W2.limit), ..Settings::default() };
    let mut figures = Vec::new();
    for (name, settings) in
        [("fixed limit", W2.fixed()), ("adaptive limit", adaptive), ("no limiter", Settings::default())]
    {
        figures.extend(of(bench, name, &settings)?);
    }
    Ok(figures)
}

fn of(bench: &mut Bench, name: &str, settings: &Settings) -> Result<Vec<Figure>, BoxError> {
    let capacity = bench.known_capacity(&W2)?;
    let site = bench.start(None, settings)?;
    let quick = W2.at(LOAD * capacity);
    let slow = Load { work: Work { wait_us: SLOWER * W2.work.wait_us, ..W2.work }, ..quick };
    let phases = [(bench.warm_up(), quick), (bench.window, slow), (bench.window, quick)];
    let (report, void) = bench.offer(&site, &W2.plan(&phases, bench.seed(0)))?;
    let goodput = |phase: usize| report.sources[0].phases[phase].ok as f64 / bench.window.as_secs_f64() / capacity;
    let condition = |what: &str| format!("W2, 0.8x, {name}: {what}");
    let figures = [
        // A quarter of the capacity is left.
        Figure::new("downstream", condition("while 4 times slower"), "of C/4", Want::Nothing, 4.0 * goodput(1)),
        Figure::new("downstream", condition("quick again"), "of what is offered", Want::Nothing, goodput(2) / LOAD),
    ];
    Ok(figures.map(|figure| figure.void_if(void.as_deref())).into())
}
