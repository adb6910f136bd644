//! What costs next to nothing to be served, and what a refusal costs beside it: T3, T8, T9 and T10, offered by the
//! client of frames.

use bench_kit::BoxError;
use bench_kit::overload::{Admitted, Load, Settings, Source, Work};

use super::bench::{Attempt, Bench, RAW, Turn};
use super::results::Results;
use super::site::Site;
use super::target::{Figure, Want};
use super::workload::{CONNECTIONS, W2, W3, Workload};

/// T3: an echo server alone with half as many calls again as it can do. Twice as many keep a generator, to which a call
/// costs half of what it costs the server, busy all the time.
pub(super) fn overload(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    const LOAD: f64 = 1.5;
    for (name, rate) in [("a limit of calls", None), ("and a rate of 0.9 C", Some(0.9))] {
        let found = bench.medians(&W3, |Turn { capacity, seed }| {
            let settings = Settings { rate: rate.map(|share: f64| share * capacity), ..W3.fixed() };
            let mut site = raw(bench, &settings)?;
            let load = Load { burst: BATCH, ..W3.at(LOAD * capacity) };
            let plan = W3.plan(&[(bench.warm_up(), load), (bench.window, load)], seed);
            let (report, _, void) = bench.offer(&mut site, &plan)?;
            let tally = &report.sources[0].phases[1];
            let goodput = tally.goodput(bench.window) / capacity;
            Ok(([goodput, tally.share(tally.refused_in_all()), tally.share(tally.blocked)], void))
        })?;
        let condition = |what: &str| format!("W3, {LOAD}x, server alone, {name}{what}");
        results.figure(found.figure(0, "T3", &condition(""), "of C", Want::Nothing))?;
        results.figure(found.figure(1, "T3", &condition(": refused"), "of the calls", Want::Nothing))?;
        results.figure(found.figure(2, "T3", &condition(": found the socket full"), "of the calls", Want::Nothing))?;
    }
    Ok(())
}

/// Calls that come together where it is said that they do.
const BATCH: f64 = 64.0;

/// As many as leave the server some time, whether it serves or refuses.
const ECHOES_PER_SEC: f64 = 60_000.0;

fn raw(bench: &Bench, settings: &Settings) -> Result<Site, BoxError> {
    Ok(bench.start(None, settings)?.offered_by(RAW))
}

/// How echoes come.
struct Arrivals {
    about: &'static str,
    connections: usize,
    burst: f64,
}

const ONE_BY_ONE: Arrivals = Arrivals { about: "one by one on 4 connections", connections: CONNECTIONS, burst: 1.0 };
const TOGETHER: Arrivals = Arrivals { about: "64 at a time on one connection", connections: 1, burst: BATCH };

/// T8 and T9: what a refusal costs the server, beside an echo.
pub(super) fn cost_of_a_refusal(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    let cost = Want::AtMost { gate: 1.0, aim: 0.7 };
    for arrivals in [ONE_BY_ONE, TOGETHER] {
        let found = bench.plain_medians(|seed| {
            let ([served, _], void) = echoes(bench, &arrivals, false, seed)?;
            let ([refused, writes], void_too) = echoes(bench, &arrivals, true, seed)?;
            Ok(([refused / served, refused, served, writes], void.or(void_too)))
        })?;
        let condition = |what: &str| format!("W3, {}: {what}", arrivals.about);
        let ratio = found.figure(0, "T8", &condition("refused / served"), "x server CPU", cost);
        results.figure(ratio)?;
        results.figure(found.figure(1, "T8", &condition("a refusal"), "us of CPU", Want::Nothing))?;
        results.figure(found.figure(2, "T8", &condition("a served echo"), "us of CPU", Want::Nothing))?;
        let left = found.of(0).map(|rho| formula(2.0, rho.median));
        let bound = Figure::of("T3", condition("by the formula, 2x"), "of C", Want::Nothing, left);
        results.figure(bound.note("from T8, beside the measured one"))?;
        // Calls that come one by one are answered one by one.
        let sixteenth = Want::AtMost { gate: 1.0 / 16.0, aim: 1.0 / 16.0 };
        let writes = if arrivals.burst > 1.0 { sixteenth } else { Want::Nothing };
        results.figure(found.figure(3, "T9", &condition("writes"), "for each refusal", writes))?;
    }
    for figure in held_elsewhere() {
        results.figure(figure)?;
    }
    Ok(())
}

/// What a server that fails fast keeps of its capacity at `load` times of it, if a refusal costs `rho` of a served call.
fn formula(load: f64, rho: f64) -> f64 {
    if rho < 1.0 { ((1.0 - load * rho) / (1.0 - rho)).clamp(0.0, 1.0) } else { 0.0 }
}

/// CPU of the server for each echo in microseconds, and writes; all echoes are served, or all refused.
fn echoes(bench: &Bench, arrivals: &Arrivals, refused: bool, seed: u64) -> Result<Attempt<[f64; 2]>, BoxError> {
    let limit = if refused { 1 } else { 100_000 };
    let mut site = raw(bench, &Settings { limit: Some(limit), ..Settings::default() })?;
    let length = 2 * bench.window;
    let per_sec = if bench.quick { ECHOES_PER_SEC / 20.0 } else { ECHOES_PER_SEC };
    let echo = Load { burst: arrivals.burst, ..W3.at(per_sec) };
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
    let mut sources = vec![source("echoes", [nothing, echo], arrivals.connections)];
    if refused {
        sources.push(source("one that stays", [stay, nothing], 1));
    }
    let patient = Workload { deadline: 4 * length, ..W3 };
    let plan = patient.plan_of(vec![bench.warm_up(), length], sources, seed);
    let before = site.cpu_seconds()?;
    let (report, did, void) = bench.offer(&mut site, &plan)?;
    let cpu = site.cpu_seconds()? - before;
    let tally = &report.sources[0].phases[1];
    let as_wanted = if refused { tally.refused_in_all() } else { tally.ok };
    let others = tally.offered - as_wanted;
    let void = void.or_else(|| (others > tally.offered / 100).then(|| format!("{others} echoes ended in another way")));
    let calls = tally.offered.max(1) as f64;
    let writes = did.admitted.map_or(0, |Admitted { writes, .. }| writes) as f64;
    Ok(([cpu / calls * 1e6, writes / calls], void))
}

/// T9, as far as other programs hold to it.
fn held_elsewhere() -> [Figure; 2] {
    let instructions = Want::AtMost { gate: 3_000.0, aim: 1_200.0 };
    let nothing = Want::AtMost { gate: 0.0, aim: 0.0 };
    let kept = format!("bench/gate.sh counts them, and fails above {} and 3 %", kept_instructions());
    [
        Figure::new("T9", "instructions of a refusal", "", instructions, 0.0).elsewhere(&kept),
        Figure::new("T9", "allocations of a refusal", "", nothing, 0.0)
            .elsewhere("tests/memory counts them, and fails above"),
    ]
}

/// The number to which `bench/gate.sh` holds refusals.
fn kept_instructions() -> f64 {
    let benchmark = include_str!("../../micro/benches/instructions.rs");
    let number = benchmark.lines().find_map(|line| line.strip_prefix("const REFUSED: u64 = ")?.strip_suffix(';'));
    number.and_then(|number| number.replace('_', "").parse().ok()).expect("the benchmark keeps such a number")
}

/// T10: how long a refusal takes, beside an echo of a server that has nothing else to do.
///
/// Of as many echoes a second as W2 serves at best, by the same generator, one by one: a machine that stands still for a
/// while, and a generator that is late, delay one in a hundred of whatever is offered at its time. A caller in a loop
/// would hardly meet that.
pub(super) fn time_of_a_refusal(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    for load in [2.0, 5.0, 10.0] {
        let found = bench.medians(&W2, |Turn { capacity, seed }| {
            let offer = |load: Load| {
                let plan = W2.plan(&[(bench.warm_up(), load), (bench.window, load)], seed);
                let (report, _, void) = bench.offer(&mut raw(bench, &W2.fixed())?, &plan)?;
                let tally = &report.sources[0].phases[1];
                Ok::<_, BoxError>(([tally.p99_us, tally.refusal_p99_us], void))
            };
            let ([echo, _], void) = offer(W3.at(capacity))?;
            let ([_, refusal], void_too) = offer(W2.at(load * capacity))?;
            Ok(([refusal / echo, refusal, echo], void.or(void_too)))
        })?;
        let condition = |what: &str| format!("W2, {load}x{what}");
        let want = Want::AtMost { gate: 2.0, aim: 1.2 };
        results.figure(found.figure(0, "T10", &condition(": refusal / echo"), "x p99", want))?;
        results.figure(found.figure(1, "T10", &condition(": p99 of a refusal"), "us", Want::Nothing))?;
        results.figure(found.figure(2, "T10", &condition(": p99 of an echo"), "us", Want::Nothing))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_gate_is_found() {
        assert!((500.0..10_000.0).contains(&kept_instructions()));
    }

    #[test]
    fn who_refuses_for_nothing_keeps_everything_and_who_pays_as_for_a_call_nothing() {
        assert_eq!((formula(10.0, 0.0), formula(2.0, 1.0), formula(2.0, 0.9)), (1.0, 0.0, 0.0));
        assert!((formula(5.0, 1.0 / 81.0) - 0.95).abs() < 0.001);
    }
}
