//! Ten times what there is room for, in four classes: what is critical is the last to suffer.

use bench_kit::BoxError;
use bench_kit::overload::{Settings, Source};

use crate::overload::bench::Bench;
use crate::overload::target::{Figure, Want};
use crate::overload::workload::{CONNECTIONS, W2};

/// Name, class on the wire, and what is offered of the capacity: 10 times of it in all.
const CLASSES: [(&str, u8, f64); 4] =
    [("critical", 1, 0.3), ("normal", 0, 3.2), ("low", 2, 3.2), ("background", 3, 3.3)];

pub(super) fn run(bench: &mut Bench) -> Result<Vec<Figure>, BoxError> {
    let capacity = bench.known_capacity(&W2)?;
    let site = bench.start(None, &Settings { shed_by_priority: true, ..W2.fixed() })?;
    let sources = CLASSES.map(|(name, priority, load)| {
        let load = W2.at(load * capacity);
        Source { name: name.to_owned(), connections: CONNECTIONS, priority, loads: vec![load, load] }
    });
    // The classes that are shed settle in the first phase.
    let plan = W2.plan_of(vec![2 * bench.warm_up(), bench.window], sources.into(), bench.seed(0));
    let (report, void) = bench.offer(&site, &plan)?;
    let served = |class: usize| {
        let tally = &report.sources[class].phases[1];
        tally.ok as f64 / tally.offered.max(1) as f64
    };
    let goodput: u64 = report.sources.iter().map(|source| source.phases[1].ok).sum();
    let goodput = goodput as f64 / bench.window.as_secs_f64() / capacity;
    let wanted = Want::AtLeast { gate: 0.99, aim: 0.999 };
    let figures = [
        Figure::new("T13", "W2, 10x, critical calls served", "of them", wanted, served(0)),
        Figure::new("priority", "W2, 10x, normal calls served", "of them", Want::Nothing, served(1)),
        Figure::new("priority", "W2, 10x, background calls served", "of them", Want::Nothing, served(3)),
        Figure::new("priority", "W2, 10x, goodput of all", "of C", Want::Nothing, goodput),
    ];
    Ok(figures.map(|figure| figure.void_if(void.as_deref())).into())
}
