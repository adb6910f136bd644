//! Ten times what there is room for, in four classes: what is critical is the last to suffer.

use bench_kit::BoxError;
use bench_kit::overload::{Settings, Source};

use crate::overload::bench::{Bench, Turn};
use crate::overload::results::Results;
use crate::overload::target::Want;
use crate::overload::workload::{CONNECTIONS, W2};

/// Name, class on the wire, and what is offered of the capacity: 10 times of it in all.
const CLASSES: [(&str, u8, f64); 4] =
    [("critical", 1, 0.3), ("normal", 0, 3.2), ("low", 2, 3.2), ("background", 3, 3.3)];

pub(in crate::overload) fn run(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    let found = bench.medians(&W2, |Turn { capacity, seed }| {
        let mut site = bench.start(None, &Settings { shed_by_priority: true, ..W2.fixed() })?;
        let sources = CLASSES.map(|(name, priority, load)| {
            let load = W2.at(load * capacity);
            Source { name: name.to_owned(), connections: CONNECTIONS, priority, loads: vec![load, load] }
        });
        // The classes that are shed settle in the first phase.
        let plan = W2.plan_of(vec![2 * bench.warm_up(), bench.window], sources.into(), seed);
        let (report, _, void) = bench.offer(&mut site, &plan)?;
        let of = |class: usize, phase: usize| &report.sources[class].phases[phase];
        let served = |class, phase| of(class, phase).share(of(class, phase).ok);
        let goodput: f64 = (0..CLASSES.len()).map(|class| of(class, 1).goodput(bench.window)).sum();
        Ok(([served(0, 1), served(0, 0), served(1, 1), served(3, 1), goodput / capacity], void))
    })?;
    let wanted = Want::AtLeast { gate: 0.99, aim: 0.999 };
    results.figure(found.figure(0, "T13", "W2, 10x, critical calls served", "of them", wanted))?;
    for (nth, what, unit) in [
        (1, "critical calls served in the first second", "of them"),
        (2, "normal calls served", "of them"),
        (3, "background calls served", "of them"),
        (4, "goodput of all", "of C"),
    ] {
        results.figure(found.figure(nth, "priority", &format!("W2, 10x, {what}"), unit, Want::Nothing))?;
    }
    Ok(())
}
