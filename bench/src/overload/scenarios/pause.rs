//! The hidden queue: a server that stands still for 200 ms, as for a snapshot of its machine, finds all
//! that came meanwhile in its sockets, and everybody gone who sent it.

use std::thread;
use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{Settings, TIME_SLOT};

use super::first_ms;
use crate::overload::bench::Bench;
use crate::overload::target::{Figure, Want};
use crate::overload::workload::{CONNECTIONS, W1};

/// Below the capacity: all that goes wrong comes from the pause.
const LOAD: f64 = 0.8;
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn run(bench: &mut Bench) -> Result<Vec<Figure>, BoxError> {
    let mut figures = of(bench, "fixed limit", &W1.fixed(), Want::AtMost { gate: 0.005, aim: 0.0 })?;
    figures.extend(of(bench, "no limiter", &Settings::default(), Want::Nothing)?);
    Ok(figures)
}

#[expect(clippy::disallowed_methods, reason = "there is no runtime, and what is to pass is time")]
fn of(bench: &mut Bench, name: &str, settings: &Settings, want: Want) -> Result<Vec<Figure>, BoxError> {
    let capacity = bench.known_capacity(&W1)?;
    let mut site = bench.start(None, settings)?;
    let before = site.served()?;
    let phase = bench.window + PAUSE;
    let offering = site.begin(&W1.plan(&[(phase, W1.at(LOAD * capacity))], bench.seed(0)))?;
    // It stands still somewhere in the midst of it, and where does not matter.
    thread::sleep(bench.window / 2);
    site.signal("STOP")?;
    thread::sleep(PAUSE);
    site.signal("CONT")?;
    let report = offering.finish()?;
    let void = super::super::bench::void(&report);
    let done = site.served()?.finished - before.finished - CONNECTIONS as u64;
    let in_vain = done.saturating_sub(report.sources[0].phases[0].ok) as f64 / done.max(1) as f64;

    // From the last moment at which nothing was served on.
    let silent = report.slots.windows(4).rposition(|slots| slots.iter().all(|slot| slot.due > 0 && slot.served == 0));
    let back = &report.slots[silent.map_or(0, |at| at + 4)..];
    let recovered = first_ms(back, |slot| slot.due > 0 && slot.due_ok as f64 >= 0.99 * slot.due as f64);
    let condition = |what: &str| format!("W1, 0.8x, paused for 200 ms, {name}: {what}");
    let target = if matches!(want, Want::Nothing) { "pause" } else { "T7" };
    let recovered = recovered.unwrap_or(back.len() as f64 * TIME_SLOT.as_secs_f64() * 1e3);
    let figures = [
        Figure::new(target, condition("done in vain"), "of the work", want, in_vain),
        Figure::new("pause", condition("recovery"), "ms", Want::Nothing, recovered),
    ];
    Ok(figures.map(|figure| figure.void_if(void.as_deref())).into())
}
