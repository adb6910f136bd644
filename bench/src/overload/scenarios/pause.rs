//! The hidden queue: a server that stands still for 200 ms, as for a snapshot of its machine, finds all
//! that came meanwhile in its sockets, and everybody gone who sent it.

use std::thread;
use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{Settings, Slot};

use super::{TOGETHER, ms, settled_ms};
use crate::overload::bench::{self, Bench, Turn};
use crate::overload::results::Results;
use crate::overload::target::Want;
use crate::overload::workload::W1;

/// Below the capacity: all that goes wrong comes from the pause.
const LOAD: f64 = 0.8;
const PAUSE: Duration = Duration::from_millis(200);

pub(in crate::overload) fn run(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    of(bench, "fixed limit", &W1.fixed(), ("T7", Want::AtMost { gate: 0.005, aim: 0.0 }), results)?;
    of(bench, "no limiter", &Settings::default(), ("pause", Want::Nothing), results)
}

fn of(
    bench: &Bench,
    name: &str,
    settings: &Settings,
    (target, want): (&str, Want),
    results: &mut Results,
) -> Result<(), BoxError> {
    let found = bench.medians(&W1, |turn| paused(bench, settings, turn))?;
    let condition = |what: &str| format!("W1, 0.8x, paused for 200 ms, {name}: {what}");
    results.figure(found.figure(0, target, &condition("done in vain"), "of the work", want))?;
    let recovery = found.figure(1, "pause", &condition("recovery"), "ms", Want::Nothing);
    let all = recovery.measured.is_some_and(|found| found >= ms(slots_behind(bench)));
    results.figure(if all { recovery.note("not within the phase: the rest of it") } else { recovery })
}

/// What was done in vain, and how long it took to recover.
#[expect(clippy::disallowed_methods, reason = "there is no runtime, and what is to pass is time")]
fn paused(
    bench: &Bench,
    settings: &Settings,
    Turn { capacity, seed }: Turn,
) -> Result<bench::Attempt<[f64; 2]>, BoxError> {
    let mut site = bench.start(None, settings)?;
    let before = site.served()?;
    let plan = W1.plan(&[(bench.window + PAUSE, W1.at(LOAD * capacity))], seed);
    let offering = site.begin(&plan)?;
    // It stands still somewhere in the midst of it, and where does not matter.
    thread::sleep(bench.window / 2);
    site.stand_still(true)?;
    thread::sleep(PAUSE);
    site.stand_still(false)?;
    let report = offering.finish()?;
    let did = site.served()?.since(&before)?.without(bench::first_calls(&plan))?;
    did.check(report.tallies())?;
    let Some(recovered) = recovery_ms(&report.slots) else {
        return Ok(([0.0; 2], Some("the server did not stand still".to_owned())));
    };
    let recovered = recovered.min(ms(slots_behind(bench)));
    Ok(([did.in_vain(report.ok()), recovered], bench::void([&report])))
}

/// Of the phase, what is behind the pause, if that is in its midst.
fn slots_behind(bench: &Bench) -> usize {
    (bench.window / 2).as_millis() as usize / 5
}

/// From the end of the pause to where nearly all that is due is served again, or to the end; `None` if there was no
/// pause.
///
/// From the first silence on, not from the last: a server that does nothing but what is in vain is as silent as one that
/// stands still.
fn recovery_ms(slots: &[Slot]) -> Option<f64> {
    let is_silent = |slots: &[Slot]| slots.iter().all(|slot| slot.due > 0 && slot.served == 0);
    let silent = slots.windows(TOGETHER).position(is_silent)?;
    let from = &slots[silent..];
    let good = settled_ms(from, |sum, _| sum.due > 0 && sum.due_ok as f64 >= 0.99 * sum.due as f64);
    Some((good.unwrap_or(ms(from.len())) - PAUSE.as_secs_f64() * 1e3).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots in which ten are due, and so many of them are served.
    fn slots(parts: &[(usize, u64)]) -> Vec<Slot> {
        let slot = |served| Slot { due: 10, due_ok: served, served };
        parts.iter().flat_map(|&(count, served)| std::iter::repeat_n(slot(served), count)).collect()
    }

    #[test]
    fn recovery_counts_from_the_end_of_the_pause_and_has_the_silence_behind_it() {
        // 200 ms of pause are 40 slots; the window that is good ends 20 ms later.
        assert_eq!(recovery_ms(&slots(&[(20, 10), (40, 0), (60, 10)])), Some(20.0));
        assert_eq!(recovery_ms(&slots(&[(20, 10), (40 + 100, 0), (60, 10)])), Some(520.0));
        // Something comes between, and does not last.
        assert_eq!(recovery_ms(&slots(&[(20, 10), (40, 0), (4, 10), (96, 0), (60, 10)])), Some(520.0));
    }

    #[test]
    fn who_never_comes_back_takes_all_the_rest() {
        assert_eq!(recovery_ms(&slots(&[(20, 10), (40 + 60, 0)])), Some(300.0));
        assert_eq!(recovery_ms(&slots(&[(100, 10)])), None);
    }
}
