//! What a refusal costs, and the rate limiter by itself: T8, T9, T11 and T17, and the bound of T3.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use bench_kit::BoxError;
use bench_kit::overload::{Load, Settings, Source, Work};
use sluicegate::limit::{Clock, Rate, RateLimit, Ticks};

use super::bench::Bench;
use super::target::{Figure, Want};
use super::workload::{CONNECTIONS, W2, Workload};

const ECHO: Work = Work { spin_us: 0, wait_us: 0 };

/// As quick as one core can offer echoes without being late.
const ECHOES_PER_SEC: f64 = 60_000.0;

/// How long calls took whom nothing disturbed, all but a hundredth.
pub(super) fn unloaded_echo_p99_us(bench: &Bench) -> Result<(f64, Option<String>), BoxError> {
    let site = bench.start(None, &W2.fixed())?;
    let load = Load { per_sec: 500.0, burst: 1.0, work: ECHO };
    let plan = W2.plan(&[(bench.warm_up(), load), (2 * bench.window, load)], bench.seed(0));
    let (report, void) = bench.offer(&site, &plan)?;
    Ok((report.sources[0].phases[1].p99_us, void))
}

/// T8, and what follows from it for T3.
pub(super) fn cost_of_a_refusal(bench: &Bench) -> Result<Vec<Figure>, BoxError> {
    let (served, void) = echoes(bench, false)?;
    let (refused, void_too) = echoes(bench, true)?;
    let void = void.or(void_too);
    let ratio = refused / served;
    let note = format!("{refused:.2} us and {served:.2} us at {ECHOES_PER_SEC:.0} calls/s");
    let want = Want::AtMost { gate: 1.0, aim: 0.7 };
    let costs = Figure::new("T8", "W3, refused / served, CPU", "", want, ratio).note(note);
    // Of a server alone; see the documentation.
    let left = ((1.0 - 2.0 * ratio) / (1.0 - ratio)).clamp(0.0, 1.0);
    let left = if ratio < 1.0 { left } else { 0.0 };
    let bound = Figure::new("T3", "W3, 2x, server alone", "of C", Want::Nothing, left)
        .note("by the formula, from T8: one core cannot offer that many echoes");
    Ok(vec![costs.void_if(void.as_deref()), bound.void_if(void.as_deref())])
}

/// CPU of the server for each echo, in microseconds, all served or all refused.
fn echoes(bench: &Bench, refused: bool) -> Result<(f64, Option<String>), BoxError> {
    let limit = if refused { 1 } else { 100_000 };
    let site = bench.start(None, &Settings { limit: Some(limit), ..Settings::default() })?;
    let length = 2 * bench.window;
    let per_sec = if bench.quick { ECHOES_PER_SEC / 20.0 } else { ECHOES_PER_SEC };
    let echo = Load { per_sec, burst: 1.0, work: ECHO };
    let nothing = Load { per_sec: 0.0, ..echo };
    // One call that stays for longer than all others together has the only permit.
    let stays = Work { spin_us: 0, wait_us: (length + 2 * bench.warm_up()).as_micros() as u32 };
    let stay = Load { per_sec: 1_000.0, burst: 1.0, work: stays };
    let source = |name: &str, loads: [Load; 2], connections| Source {
        name: name.to_owned(),
        connections,
        priority: 0,
        loads: loads.into(),
    };
    let mut sources = vec![source("echoes", [nothing, echo], CONNECTIONS)];
    if refused {
        sources.push(source("one that stays", [stay, nothing], 1));
    }
    let workload = Workload { deadline: 4 * length, ..W2 };
    let plan = workload.plan_of(vec![bench.warm_up(), length], sources, bench.seed(0));
    let before = site.cpu_seconds()?;
    let (report, void) = bench.offer(&site, &plan)?;
    let cpu = site.cpu_seconds()? - before;
    let tally = &report.sources[0].phases[1];
    let as_wanted = if refused { tally.refused_in_all() } else { tally.ok };
    let others = tally.offered - as_wanted;
    let void = void.or_else(|| (others > tally.offered / 100).then(|| format!("{others} echoes ended in another way")));
    Ok((cpu / tally.offered as f64 * 1e6, void))
}

/// T9, as far as other programs hold to it.
pub(super) fn held_elsewhere() -> Vec<Figure> {
    let instructions = Want::AtMost { gate: 3_000.0, aim: 1_200.0 };
    let nothing = Want::AtMost { gate: 0.0, aim: 0.0 };
    let gate = "bench/gate.sh counts them, and fails above";
    vec![
        Figure::new("T9", "instructions of a refusal", "", instructions, kept_instructions()).note(gate),
        Figure::new("T9", "allocations of a refusal", "", nothing, 0.0)
            .note("tests/memory counts them, and fails above"),
    ]
}

/// The number to which `bench/gate.sh` holds refusals.
fn kept_instructions() -> f64 {
    let benchmark = include_str!("../../micro/benches/instructions.rs");
    let number = benchmark.lines().find_map(|line| line.strip_prefix("const REFUSED: u64 = ")?.strip_suffix(';'));
    number.and_then(|number| number.replace('_', "").parse().ok()).expect("the benchmark keeps such a number")
}

/// T11: nanoseconds that one check takes, with reading the clock.
pub(super) fn rate_checks(bench: &Bench) -> Result<Vec<Figure>, BoxError> {
    let limit = RateLimit::new("bench", Rate::per_second(1e9).burst(1_000_000_000))?;
    let clock = Clock::new(Instant::now());
    let check = || {
        let _passed = black_box(limit.try_acquire(1, clock.ticks(Instant::now())));
    };
    let checks = if bench.quick { 10_000 } else { 5_000_000 };
    let nanos = || {
        let began = Instant::now();
        (0..checks).for_each(|_| check());
        began.elapsed().as_nanos() as f64 / f64::from(checks)
    };
    // The least of some: what else runs only ever adds.
    let least = || (0..5).map(|_| nanos()).fold(f64::INFINITY, f64::min);
    let alone = least();
    let stop = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                check();
            }
        });
        let found = least();
        stop.store(true, Ordering::Relaxed);
        found
    });
    Ok(vec![
        Figure::new("T11", "rate check, one thread", "ns", Want::AtMost { gate: 40.0, aim: 30.0 }, alone),
        Figure::new("T11", "rate check, two on one bucket", "ns", Want::AtMost { gate: 120.0, aim: 80.0 }, beside),
    ])
}

/// T17: by how much what passes in the long run differs from the rate, at worst, in time that is made up.
pub(super) fn rate_errors() -> Result<Vec<Figure>, BoxError> {
    let (mut worst, mut above) = (0.0_f64, 0.0_f64);
    for exponent in 0..=7 {
        for digit in [1.0, 3.0, 7.0] {
            let per_sec = digit * 10_f64.powi(exponent);
            if per_sec <= 10e6 {
                let error = long_run(per_sec)? / per_sec - 1.0;
                worst = worst.max(error.abs());
                above = above.max(error);
            }
        }
    }
    let percent = |value: f64| value * 100.0;
    Ok(vec![
        Figure::new("T17", "rate error, 1/s to 10 M/s", "%", Want::AtMost { gate: 0.1, aim: 0.02 }, percent(worst)),
        Figure::new("T17", "the same, above the rate", "%", Want::AtMost { gate: 0.0, aim: 0.0 }, percent(above)),
    ])
}

/// What passes in a second of an empty bucket when somebody asks again as soon as they are told to.
fn long_run(per_sec: f64) -> Result<f64, BoxError> {
    const PASSES: u32 = 100_000;
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
    fn the_number_of_the_gate_is_found() {
        assert!((500.0..10_000.0).contains(&kept_instructions()));
    }

    #[test]
    fn a_rate_is_never_exceeded() {
        let rate = long_run(1_000.0).expect("a valid rate");
        assert!(rate <= 1_000.0 && rate > 999.0, "{rate}");
    }
}
