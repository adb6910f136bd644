//! Ten times the capacity for a minute, and beside it clients that send all they can and read nothing: what the
//! server's memory grows by, and what is left for those who read.

use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::Settings;

use crate::overload::bench::{self, Bench};
use crate::overload::results::Results;
use crate::overload::target::{Figure, Want};
use crate::overload::workload::W2;

const LOAD: f64 = 10.0;
const DEAF: usize = 50;
const MIB: f64 = 1024.0 * 1024.0;

pub(in crate::overload) fn run(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    of(bench, "no limit for a connection", &W2.fixed(), results)?;
    // As is recommended against those who do not read: each keeps the permits of answers that it does not take.
    let quarter = Some(W2.limit / 4);
    let advised = Settings { limit_per_connection: quarter, write_timeout_us: 1_000_000, ..W2.fixed() };
    of(bench, "a quarter for a connection, 1 s to write", &advised, results)
}

fn of(bench: &Bench, name: &str, settings: &Settings, results: &mut Results) -> Result<(), BoxError> {
    let capacity = bench.capacity(&W2)?;
    let mut site = bench.start(None, settings)?;
    let asleep = site.rss_bytes()?;
    let load = W2.at(LOAD * capacity);
    let (calm, _, _) = bench.offer(&mut site, &W2.plan(&[(bench.warm_up(), load)], bench::seed(0, 0)))?;
    let overloaded = site.rss_bytes()?;

    let length = if bench.quick { bench.window } else { Duration::from_secs(60) };
    let deaf = site.deaf(DEAF, length)?;
    let report = site.begin(&W2.plan(&[(length, load)], bench::seed(0, 1)))?.finish()?;
    // They are on the same CPU as the generator.
    let deaf_cpu = deaf.cpu_seconds()? / length.as_secs_f64();
    let taken: f64 = deaf.stop()?.trim().parse()?;
    let peak = site.peak_rss_bytes()?;
    // What is left of theirs in the sockets is served meanwhile, so that the server's count is not that of these.
    let after = site.begin(&W2.plan(&[(bench.warm_up(), load)], bench::seed(0, 2)))?.finish()?;

    let condition = |what: &str| format!("W2, 10x for {} s, {DEAF} do not read, {name}: {what}", length.as_secs());
    let growth = |from: u64| peak.saturating_sub(from) as f64 / MIB;
    let want = Want::AtMost { gate: 64.0, aim: 16.0 };
    let void = bench::void_beside([&report], deaf_cpu);
    let offered = void.clone().map_or(Ok(growth(asleep)), Err);
    let memory = Figure::of("T15", condition("memory"), "MiB", want, offered);
    results.figure(memory.note(&format!("those that do not read sent {:.0} MiB", taken / MIB)))?;
    let since =
        Figure::new("slow-readers", condition("since half a second of 10x"), "MiB", Want::Nothing, growth(overloaded));
    results.figure(since)?;
    for (what, report, over) in
        [("before", &calm, bench.warm_up()), ("beside them", &report, length), ("after", &after, bench.warm_up())]
    {
        let goodput = report.sources[0].phases[0].goodput(over) / capacity;
        let condition = condition(&format!("goodput {what}"));
        let void = if what == "beside them" { void.clone() } else { bench::void([report]) };
        let found = void.map_or(Ok(goodput), Err);
        results.figure(Figure::of("slow-readers", condition, "of C", Want::Nothing, found))?;
    }
    Ok(())
}
