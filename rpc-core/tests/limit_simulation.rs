//! Algorithms of limits beside each other, against a queue in virtual time: without sockets, threads or a
//! clock, and the same in every run.
#![cfg(not(any(loom, shuttle)))]

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use rpc_core::limit::{AdaptiveLimit, Aimd, ConcurrencyLimit, ConcurrencyPermit, Fixed, Gradient2, LimitAlgorithm};

const MS: f64 = 0.001;

/// A server with so many workers. Calls that find none free queue in it, unseen.
struct Server {
    workers: usize,
    queue: VecDeque<Call>,
    busy: BinaryHeap<Reverse<Ended>>,
}

struct Call {
    arrived: f64,
    service: f64,
    kind: usize,
    permit: ConcurrencyPermit,
}

struct Ended {
    at: f64,
    call: Call,
}

impl PartialEq for Ended {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Ended {}

impl PartialOrd for Ended {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ended {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.total_cmp(&other.at)
    }
}

/// What happens over time: how many calls come in a second, how long one takes, and of which kind it is.
struct Load {
    until: f64,
    rate: fn(f64) -> f64,
    service: fn(f64, usize) -> f64,
    kinds: usize,
}

/// What came of it, in each span of a second.
#[derive(Clone, Debug, Default)]
struct Second {
    offered: u32,
    good: u32,
    refused: u32,
    latencies: Vec<f64>,
    max: u64,
}

impl Second {
    fn p99(&self) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get((sorted.len() * 99 / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }
}

/// Numbers that look random and are the same in every run: splitmix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The time until the next of so many events in a second, if they are independent.
    fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.uniform()).ln() / rate
    }
}

/// What callers do when their deadline has passed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Callers {
    /// They wait on, for nothing.
    Wait,
    /// They give up: a call that waits for a worker is gone, and the answer of one that has one goes nowhere.
    GiveUp,
}

/// Runs a load against a server of so many workers, behind limits that the calls of each kind have. A call
/// that takes longer than `deadline` was for nothing.
fn run(load: &Load, workers: usize, limits: &[Arc<AdaptiveLimit>], deadline: f64) -> Vec<Second> {
    run_with(load, workers, limits, deadline, Callers::Wait)
}

/// As [`run`], with callers who do that.
fn run_with(
    load: &Load,
    workers: usize,
    limits: &[Arc<AdaptiveLimit>],
    deadline: f64,
    callers: Callers,
) -> Vec<Second> {
    let give_up = |queue: &mut VecDeque<Call>, now: f64| {
        while queue.front().is_some_and(|call| callers == Callers::GiveUp && call.arrived + deadline <= now)
            && let Some(call) = queue.pop_front()
        {
            limits[call.kind].given_up(Duration::from_secs_f64(deadline));
        }
    };
    let mut server = Server { workers, queue: VecDeque::new(), busy: BinaryHeap::new() };
    let mut seconds = vec![Second::default(); load.until.ceil() as usize];
    let mut random = Random(7);
    let mut next = 0.0;
    while next < load.until {
        // What has ended by then makes room, and lets others begin.
        while server.busy.peek().is_some_and(|Reverse(ended)| ended.at <= next) {
            let Some(Reverse(Ended { at, call })) = server.busy.pop() else { break };
            let latency = at - call.arrived;
            let second = &mut seconds[(at as usize).min(load.until as usize - 1)];
            second.good += u32::from(latency <= deadline);
            second.latencies.push(latency);
            if callers == Callers::GiveUp && latency > deadline {
                limits[call.kind].given_up(Duration::from_secs_f64(deadline));
            } else {
                limits[call.kind].succeeded(Duration::from_secs_f64(latency));
            }
            drop(call.permit);
            give_up(&mut server.queue, at);
            if let Some(call) = server.queue.pop_front() {
                server.busy.push(Reverse(Ended { at: at + call.service, call }));
            }
        }
        give_up(&mut server.queue, next);
        let kind = (random.uniform() * load.kinds as f64) as usize;
        let service = (load.service)(next, kind) * (0.5 + random.uniform());
        let second = &mut seconds[next as usize];
        second.offered += 1;
        second.max = limits[0].limit().max().unwrap();
        match limits[kind].limit().try_acquire() {
            Err(_) => second.refused += 1,
            Ok(permit) => {
                let call = Call { arrived: next, service, kind, permit };
                if server.busy.len() < server.workers {
                    server.busy.push(Reverse(Ended { at: next + service, call }));
                } else {
                    server.queue.push_back(call);
                }
            }
        }
        next += random.exponential((load.rate)(next));
    }
    drop(server);
    for limit in limits {
        assert_eq!(limit.limit().snapshot().held, 0);
    }
    seconds
}

fn limit(algorithm: impl LimitAlgorithm + 'static, start: u64) -> Arc<AdaptiveLimit> {
    let limit = ConcurrencyLimit::new("simulated", None).unwrap();
    Arc::new(AdaptiveLimit::new(limit, Box::new(algorithm), start, 2, 1_000).unwrap())
}

fn good(seconds: &[Second]) -> f64 {
    seconds.iter().map(|second| f64::from(second.good)).sum::<f64>() / seconds.len() as f64
}

fn worst(seconds: &[Second]) -> f64 {
    seconds.iter().map(Second::p99).fold(0.0, f64::max)
}

/// Ten workers and calls of 10 ms: a thousand in a second is what it can do.
const STEP: Load =
    Load { until: 20.0, rate: |now| if now < 5.0 { 500.0 } else { 3_000.0 }, service: |_, _| 10.0 * MS, kinds: 1 };

#[test]
fn under_three_times_its_load_every_algorithm_keeps_what_the_server_can_do_and_no_limit_keeps_nothing() {
    let deadline = 50.0 * MS;
    let none = run(&STEP, 10, &[limit(Fixed, 1_000)], deadline);
    assert!(good(&none[10..]) < 50.0, "with no limit to speak of, each is served too late: {}", good(&none[10..]));
    for (name, limit) in [
        ("fixed", limit(Fixed, 16)),
        ("aimd", limit(Aimd::new(Duration::from_millis(25)), 16)),
        ("gradient2", limit(Gradient2::new(), 16)),
    ] {
        let seconds = run(&STEP, 10, &[limit], deadline);
        // The first second behind the step is for finding out.
        let (goodput, p99) = (good(&seconds[7..]), worst(&seconds[7..]));
        assert!(goodput > 930.0 && p99 < 1.5 * deadline, "{name}: {goodput} good, p99 {p99}");
        assert!(seconds[..5].iter().all(|second| second.refused * 50 < second.offered), "{name} refused without need");
    }
}

#[test]
fn when_a_downstream_gets_slow_adaptive_limits_shrink_and_come_back_when_it_recovers() {
    let load = Load {
        until: 30.0,
        rate: |_| 900.0,
        service: |now, _| if (8.0..16.0).contains(&now) { 80.0 * MS } else { 10.0 * MS },
        kinds: 1,
    };
    for (name, limit) in
        [("aimd", limit(Aimd::new(Duration::from_millis(30)), 60)), ("gradient2", limit(Gradient2::new(), 60))]
    {
        let seconds = run(&load, 10, &[limit], 50.0 * MS);
        let (before, during, after) = (seconds[7].max, seconds[11].max, seconds[29].max);
        assert!(during * 2 <= before, "{name}: {before} before, {during} while it was slow");
        assert!(after > during, "{name}: {during} while it was slow, {after} when it was not");
        assert!(good(&seconds[25..]) > 800.0, "{name} recovers to {}", good(&seconds[25..]));
    }
    // A limit that is fixed for quick calls lets a queue of slow ones stand for as long as it lasts.
    let fixed = run(&load, 10, &[limit(Fixed, 60)], 50.0 * MS);
    let gradient = run(&load, 10, &[self::limit(Gradient2::new(), 60)], 50.0 * MS);
    assert!(worst(&gradient[10..15]) < worst(&fixed[10..15]), "the queue is shorter with a limit that shrinks");
}

/// A limit that is worth more than callers wait makes nearly all of them wait in vain, and those few that are served in time
/// have waited for just as long: only the others can tell.
#[test]
fn a_limit_that_is_worth_more_than_callers_wait_shrinks_though_nearly_all_of_them_give_up() {
    // A worker whose calls take 0.2 ms, and ten whose calls take 10 ms: at 1.5, 2 and 10 times what they can do.
    let one = |rate| Load { until: 5.0, rate, service: |_, _| 0.2 * MS, kinds: 1 };
    let ten = |rate| Load { until: 5.0, rate, service: |_, _| 10.0 * MS, kinds: 1 };
    let loads = [one(|_| 7_500.0), one(|_| 10_000.0), one(|_| 50_000.0)].map(|load| (load, 1, 5_000.0, 4.0 * MS));
    let more = [ten(|_| 1_500.0), ten(|_| 2_000.0), ten(|_| 10_000.0)].map(|load| (load, 10, 1_000.0, 50.0 * MS));
    for (load, workers, can_do, deadline) in loads.into_iter().chain(more) {
        let share = |limit| {
            let seconds = run_with(&load, workers, &[limit], deadline, Callers::GiveUp);
            good(&seconds[1..]) / can_do
        };
        let too_long = Duration::from_secs_f64(deadline / 2.0);
        let (fixed, aimd) = (share(limit(Fixed, 100)), share(limit(Aimd::new(too_long), 100)));
        let gradient = share(limit(Gradient2::new(), 100));
        assert!(fixed < 0.5, "{} of {can_do}: fixed and too high, {fixed}", (load.rate)(0.0));
        assert!(aimd > 0.9 && gradient > 0.9, "{} of {can_do}: aimd {aimd}, gradient2 {gradient}", (load.rate)(0.0));
    }
}

/// Latencies of two kinds in one stream say nothing about load: each kind wants a limit of its own.
#[test]
fn quick_and_slow_methods_want_a_limit_each() {
    let load = Load {
        until: 20.0,
        rate: |_| 400.0,
        service: |_, kind| if kind == 0 { 1.0 * MS } else { 40.0 * MS },
        kinds: 2,
    };
    // Twenty workers have 20 s of work a second, of which 8.2 come: nothing need be refused.
    let refused = |limits: &[Arc<AdaptiveLimit>]| {
        let seconds = run(&load, 20, limits, 100.0 * MS);
        let sum = |of: fn(&Second) -> u32| seconds[3..].iter().map(of).sum::<u32>();
        f64::from(sum(|second| second.refused)) / f64::from(sum(|second| second.offered))
    };
    let shared = limit(Gradient2::new(), 20);
    let together = refused(&[Arc::clone(&shared), shared]);
    let apart = refused(&[limit(Gradient2::new(), 20), limit(Gradient2::new(), 20)]);
    assert!(apart < 0.01, "a limit each refuses {apart}");
    assert!(apart <= together, "{apart} apart, {together} together");
}

#[test]
fn a_simulation_repeats_itself() {
    let once = || {
        let seconds = run(&STEP, 10, &[limit(Gradient2::new(), 16)], 50.0 * MS);
        seconds.iter().map(|second| (second.offered, second.good, second.max)).collect::<Vec<_>>()
    };
    assert_eq!(once(), once());
}
