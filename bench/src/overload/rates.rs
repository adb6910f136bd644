//! The rate limiter by itself: T11 and T17.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench_kit::BoxError;
use rustix::thread::{CpuSet, sched_setaffinity};
use sluicegate::limit::{Clock, Rate, RateLimit, Ticks};

use super::bench::Bench;
use super::results::Results;
use super::site;
use super::target::{Figure, Want};
use crate::stats;

/// T11: nanoseconds that one check takes, with reading the clock.
pub(super) fn checks(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    let quick = bench.quick;
    let alone = thread::scope(|scope| scope.spawn(move || alone(quick)).join().expect("it does not panic"))?;
    let want = Want::AtMost { gate: 40.0, aim: 30.0 };
    results.figure(Figure::new("T11", "rate check, one thread", "ns", want, alone))?;
    let want = Want::AtMost { gate: 120.0, aim: 80.0 };
    results.figure(Figure::of("T11", "rate check, two on one bucket", "ns", want, beside_another(quick)))
}

/// A bucket that nobody empties, and the clock beside it.
struct Checked {
    limit: RateLimit,
    clock: Clock,
}

impl Checked {
    fn new() -> Result<Self, BoxError> {
        let limit = RateLimit::new("bench", Rate::per_second(1e9).burst(1_000_000_000))?;
        Ok(Self { limit, clock: Clock::new(Instant::now()) })
    }

    fn check(&self) {
        let _passed = black_box(self.limit.try_acquire(1, self.clock.ticks(Instant::now())));
    }

    fn nanos(&self, checks: u64) -> f64 {
        let began = Instant::now();
        (0..checks).for_each(|_| self.check());
        began.elapsed().as_nanos() as f64 / checks as f64
    }
}

fn alone(quick: bool) -> Result<f64, BoxError> {
    run_on(site::generator_cpu())?;
    let checked = Checked::new()?;
    let checks = if quick { 10_000 } else { 5_000_000 };
    // The least of some: with one thread, what else runs only ever adds.
    Ok((0..5).map(|_| checked.nanos(checks)).fold(f64::INFINITY, f64::min))
}

/// With a rival on the other CPU. A run counts if the rival was about as quick: one that was not on its CPU disputes
/// nothing, and one that was alone there for a while had the bucket for itself.
fn beside_another(quick: bool) -> Result<f64, String> {
    if site::generator_cpu() == site::SERVER_CPU {
        return Err("there is one CPU".to_owned());
    }
    let (runs, checks) = if quick { (5, 10_000) } else { (60, 200_000) };
    let checked = Checked::new().map_err(|error| error.to_string())?;
    let (stop, of_rival) = (AtomicBool::new(false), Counter::default());
    let found = thread::scope(|scope| {
        scope.spawn(|| {
            let pinned = run_on(site::SERVER_CPU);
            while pinned.is_ok() && !stop.load(Ordering::Relaxed) {
                (0..STRIDE).for_each(|_| checked.check());
                of_rival.0.fetch_add(STRIDE, Ordering::Relaxed);
            }
        });
        let measured = scope.spawn(|| {
            let found = run_on(site::generator_cpu()).and_then(|()| {
                wait_for(&of_rival)?;
                Ok((0..runs).filter_map(|_| disputed(&checked, &of_rival, checks)).collect::<Vec<_>>())
            });
            stop.store(true, Ordering::Relaxed);
            found.map_err(|error| error.to_string())
        });
        measured.join().expect("it does not panic")
    })?;
    let few = || format!("in {} of {runs} runs did both threads have a CPU", found.len());
    // What a few runs say is what they happened to meet with.
    if found.len() * 4 < runs && !quick {
        return Err(few());
    }
    stats::summary(&found).map(|summary| summary.median).ok_or_else(few)
}

/// Nanoseconds of a check, if the other thread made between half and twice as many meanwhile.
fn disputed(checked: &Checked, of_rival: &Counter, checks: u64) -> Option<f64> {
    let before = of_rival.0.load(Ordering::Relaxed);
    let nanos = checked.nanos(checks);
    let made = of_rival.0.load(Ordering::Relaxed) - before;
    (checks / 2..=checks * 2).contains(&made).then_some(nanos)
}

/// A cache line of its own, so that counting disputes nothing.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// Checks between two looks at anything else.
const STRIDE: u64 = 256;

fn wait_for(rival: &Counter) -> Result<(), BoxError> {
    let began = Instant::now();
    while rival.0.load(Ordering::Relaxed) == 0 {
        if began.elapsed() > Duration::from_secs(10) {
            return Err("the other thread does not run".into());
        }
        thread::yield_now();
    }
    Ok(())
}

/// Has this thread on a CPU by its number.
fn run_on(cpu: &str) -> Result<(), BoxError> {
    let mut only = CpuSet::new();
    only.set(cpu.parse()?);
    Ok(sched_setaffinity(None, &only)?)
}

/// T17: by how much what passes in the long run differs from the rate, at worst, in time that is made up.
pub(super) fn errors(_: &Bench, results: &mut Results) -> Result<(), BoxError> {
    let (mut worst, mut above, mut at) = (0.0_f64, 0.0_f64, 0.0);
    for per_sec in rates() {
        let error = long_run(per_sec)? / per_sec - 1.0;
        if error.abs() > worst {
            (worst, at) = (error.abs(), per_sec);
        }
        above = above.max(error);
    }
    let percent = |value: f64| value * 100.0;
    let want = Want::AtMost { gate: 0.1, aim: 0.02 };
    let figure = Figure::new("T17", "rate error, 1/s to 10 M/s", "%", want, percent(worst));
    results.figure(figure.note(&format!("at {at:.0}/s, the worst of {}", rates().count())))?;
    let never = Want::AtMost { gate: 0.0, aim: 0.0 };
    results.figure(Figure::new("T17", "the same, above the rate", "%", never, percent(above)))
}

/// Round ones, some evenly between those, and where the tick of the clock tells most: just below the greatest.
fn rates() -> impl Iterator<Item = f64> {
    const STEPS: i32 = 280;
    let round = (0..7).flat_map(|exponent| [1.0, 3.0, 7.0].map(|digit| digit * 10_f64.powi(exponent)));
    let between = (0..=STEPS).map(|step| 10_f64.powf(7.0 * f64::from(step) / f64::from(STEPS)));
    let greatest = (0..20).map(|step| 10e6 - 1.0 - 5_000.0 * f64::from(step));
    round.chain(between).chain(greatest)
}

/// What passes in a second of an empty bucket when somebody asks again as soon as they are told to.
fn long_run(per_sec: f64) -> Result<f64, BoxError> {
    const PASSES: u32 = 5_000;
    // Whoever comes a nanosecond late is to lose nothing by that, so there is room for more than one call.
    let limit = RateLimit::new("bench", Rate::per_second(per_sec).burst(10))?;
    let start = Ticks::new(Ticks::PER_SECOND);
    while limit.try_acquire(1, start).is_ok() {}
    let mut now = start;
    for _ in 0..PASSES {
        while let Err(refusal) = limit.try_acquire(1, now) {
            now = now.saturating_add(refusal.retry_after().ok_or("a weight of one can pass")?);
        }
    }
    let elapsed = (now.as_u64() - start.as_u64()) as f64 / Ticks::PER_SECOND as f64;
    Ok(f64::from(PASSES) / elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_never_exceeded_also_where_its_period_is_no_whole_number_of_ticks() {
        for per_sec in [1_000.0, 3_000_000.0, 9_999_999.0] {
            let rate = long_run(per_sec).expect("a valid rate");
            assert!(rate <= per_sec && rate > 0.999 * per_sec, "{rate} of {per_sec}");
        }
    }

    #[test]
    fn the_rates_that_are_tried_are_those_that_the_target_speaks_of() {
        assert!(rates().all(|per_sec| (1.0..=10_000_001.0).contains(&per_sec)));
        assert!(rates().filter(|per_sec| *per_sec > 9.8e6).count() > 10);
    }
}
