//! The rate limit against an exact model, and under threads; with `SLUICEGATE_SIEGE=full` as often as is promised.
#![cfg(not(loom))]

use std::{
    env,
    sync::{
        Barrier,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use proptest::prelude::*;
use rpc_core::limit::{Rate, RateLimit, RateRefusal, RateToken, Ticks};

const SECOND: u128 = Ticks::PER_SECOND as u128;
const LAST: u128 = Ticks::LAST.as_u64() as u128;

/// `promised` times in the long form.
fn often(usually: u32, promised: u32) -> u32 {
    if env::var("SLUICEGATE_SIEGE").is_ok_and(|size| size == "full") { promised } else { usually }
}

#[test]
fn every_rate_and_burst_decides_as_the_model_at_every_time_step() {
    let second = Duration::from_secs(1);
    let rates = [
        (Rate::per(1, 86_400 * second), period(1, 86_400 * second)),
        (Rate::per(1, 500_000_000 * second), period(1, 500_000_000 * second)),
        (Rate::per_second(0.1), period(1, 10 * second)),
        (Rate::per_second(1.0), period(1, second)),
        (Rate::per(1_200, 60 * second), period(1_200, 60 * second)),
        (Rate::per(7, 3 * second), period(7, 3 * second)),
        (Rate::per_second(999_999_999.0), period(999_999_999, second)),
        (Rate::per_second(1e9), period(1_000_000_000, second)),
    ];
    let mut checked = 0;
    for (rate, period) in rates {
        for burst in [1, 2, 5, 1_000, u32::MAX] {
            let rate = rate.burst(burst);
            if rate.check().is_err() {
                continue;
            }
            let mut random = Random(u64::from(burst) | 1);
            // Ten million steps in all.
            for _ in 0..often(20, 2_000) {
                let mut trace = Trace::new(rate, period, burst);
                for _ in 0..200 {
                    trace.run(random.step());
                }
                checked += 1;
            }
        }
    }
    assert!(checked >= often(500, 50_000));
}

#[test]
fn eight_threads_admit_the_configured_rate_and_no_more() {
    const ROUNDS: u64 = 500;
    let limit = RateLimit::new("test", Rate::per_second(1_000.0).burst(10)).unwrap();
    let (admitted, round_ends) = (AtomicU64::new(0), Barrier::new(8));
    thread::scope(|scope| {
        for thread in 0..8 {
            let (limit, admitted, round_ends) = (&limit, &admitted, &round_ends);
            scope.spawn(move || {
                // 10 s in rounds of 20 ms. Within a round the threads' clocks drift apart freely.
                for round in 0..ROUNDS {
                    for step in 0..200 {
                        let now = round * 20_000_000 + step * 100_000 + thread * 11_113;
                        let passed = limit.try_acquire(1, Ticks::new(now * 16)).is_ok();
                        admitted.fetch_add(u64::from(passed), Ordering::Relaxed);
                    }
                    round_ends.wait();
                }
            });
        }
    });
    let admitted = admitted.into_inner();
    assert!((9_990..=10_010).contains(&admitted), "{admitted}");
    assert_eq!(limit.healed(), 0);
}

#[test]
fn heavy_calls_from_many_threads_stay_within_the_quota() {
    const ROUNDS: u64 = 360;
    let limit = RateLimit::new("test", Rate::per(1_200, Duration::from_secs(60)).burst(40)).unwrap();
    let (admitted, round_ends) = (AtomicU32::new(0), Barrier::new(4));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (limit, admitted, round_ends) = (&limit, &admitted, &round_ends);
            scope.spawn(move || {
                // Three minutes in rounds of half a second: a thread that the kernel puts aside must
                // not return with a clock so old that the limit takes it for one that was set back.
                for round in 0..ROUNDS {
                    for step in 0..50 {
                        let ms = round * 500 + step * 10 + thread;
                        let passed = limit.try_acquire(10, Ticks::new(ms * 16_000_000)).is_ok();
                        admitted.fetch_add(if passed { 10 } else { 0 }, Ordering::Relaxed);
                    }
                    round_ends.wait();
                }
            });
        }
    });
    let admitted = admitted.into_inner();
    assert!((3_500..=3_640).contains(&admitted), "{admitted}");
    assert_eq!(limit.healed(), 0);
}

#[test]
fn the_fastest_rates_refuse_nobody_below_their_burst() {
    // Ten million checks of each rate by each number of threads.
    for (per_second, threads) in [(999_999_999.0, 2_u32), (999_999_999.0, 8), (1e9, 2), (1e9, 8)] {
        for _ in 0..often(1, 25) {
            let limit = RateLimit::new("test", Rate::per_second(per_second).burst(400_000)).unwrap();
            thread::scope(|scope| {
                for thread in 0..threads {
                    let limit = &limit;
                    scope.spawn(move || {
                        for call in 0..400_000 / threads {
                            // Clocks that are neither ordered nor equal across threads.
                            let now = Ticks::new(u64::from(call * 3 + thread * 1_001));
                            match limit.try_acquire(1, now) {
                                Ok(_) | Err(RateRefusal::Contended { .. }) => {}
                                Err(refusal) => panic!("{refusal}"),
                            }
                        }
                    });
                }
            });
        }
    }
}

/// The classic bug: `max(now + period, next)` stops charging exactly when the bucket is in debt.
#[test]
fn max_of_now_plus_period_and_next_admits_beyond_the_bound_and_ours_does_not() {
    const PERIOD: u64 = Ticks::PER_SECOND / 10;
    const BURST: u64 = 3;
    fn misplaced_bracket(next: &mut u64, now: u64) -> bool {
        let new = (now + PERIOD).max(*next);
        let admitted = new - now <= BURST * PERIOD;
        if admitted {
            *next = new;
        }
        admitted
    }

    let limit = RateLimit::new("test", Rate::per_second(10.0).burst(BURST as u32)).unwrap();
    let start = Ticks::PER_SECOND;
    let (mut next, mut theirs, mut ours) = (0, 0, 0);
    for millisecond in 0..1_000 {
        let now = start + millisecond * Ticks::PER_SECOND / 1_000;
        theirs += u64::from(misplaced_bracket(&mut next, now));
        ours += u64::from(limit.try_acquire(1, Ticks::new(now)).is_ok());
    }
    let bound = (999 * Ticks::PER_SECOND / 1_000 + BURST * PERIOD) / PERIOD;
    assert_eq!((theirs, bound), (1_000, 12));
    assert_eq!(ours, bound);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_trace_decides_as_the_model_and_keeps_the_bound(
        tokens in 1_u64..5_000,
        interval in 1_u64..10_000_000_000,
        burst in 1_u32..8,
        seed in 1_u64..,
        len in 0_usize..300,
    ) {
        let interval = Duration::from_nanos(interval.max(tokens));
        let mut trace = Trace::new(Rate::per(tokens, interval).burst(burst), period(tokens, interval), burst);
        let mut random = Random(seed);
        for _ in 0..len {
            trace.run(random.step());
        }
    }

    /// Steps about as long as a period, where refunds and boundaries matter most.
    #[test]
    fn any_tight_trace_decides_as_the_model_and_keeps_the_bound(burst in 1_u32..4, seed in 1_u64.., len in 0_usize..300) {
        let mut trace = Trace::new(Rate::per(1, Duration::from_nanos(10)).burst(burst), 160, burst);
        let mut random = Random(seed);
        for _ in 0..len {
            let step = random.step();
            let delta = random.below(400) as i128 - 100;
            trace.run(Step { delta, ..step });
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(often(400, 100_000)))]

    #[test]
    fn calls_at_least_a_period_apart_always_pass(
        period in 1_u64..1_000_000,
        burst in 1_u32..5,
        start in 0_u64..1 << 40,
        gaps in prop::collection::vec(0_u64..1_000_000, 1..100),
        // Up to an hour more.
        idle in 0_u64..3_600_000_000_000,
    ) {
        let limit = RateLimit::new("test", Rate::per(1, Duration::from_nanos(period)).burst(burst)).unwrap();
        let mut now = start;
        for gap in gaps {
            prop_assert!(limit.try_acquire(1, Ticks::new(now)).is_ok());
            now += period * 16 + gap;
        }
        // Idle for as long as the burst takes to refill: it is full, and not fuller.
        let now = Ticks::new(now + u64::from(burst) * period * 16 + idle * 16);
        prop_assert_eq!((0..).take_while(|_| limit.try_acquire(1, now).is_ok()).count(), burst as usize);
    }

    #[test]
    fn the_hint_is_true_to_the_tick(period in 1_u64..5_000_000, burst in 1_u32..5, weight in 1_u32..5, offset in 0_u64..64) {
        let weight = weight.min(burst);
        let rate = Rate::per(1, Duration::from_nanos(period)).burst(burst);
        let drained = |now| {
            let limit = RateLimit::new("test", rate).unwrap();
            limit.try_acquire(burst, Ticks::new(1 << 50)).unwrap();
            (limit.try_acquire(weight, Ticks::new(now)).map(drop), limit)
        };
        let now = (1 << 50) + offset;
        let (refusal, limit) = drained(now);
        if let Err(refusal) = refusal {
            let wait = u64::from(weight) * period * 16 - offset;
            let hint = refusal.retry_after().unwrap();
            prop_assert_eq!(hint.as_nanos(), u128::from(wait.div_ceil(16)));
            prop_assert!(drained(now + wait - 1).0.is_err());
            prop_assert!(drained(now + wait).0.is_ok());
            prop_assert!(limit.try_acquire(weight, Ticks::new(now).saturating_add(hint)).is_ok());
        }
    }
}

/// A limit, its model, and everything admitted so far.
struct Trace {
    limit: RateLimit,
    model: Model,
    now: i128,
    tokens: Vec<(RateToken, Charge)>,
    admitted: Vec<Charge>,
    healed: u64,
}

impl Trace {
    fn new(rate: Rate, period: u128, burst: u32) -> Self {
        let limit = RateLimit::new("model", rate).unwrap();
        let model = Model { period, burst: u128::from(burst), next: 0, healed: 0 };
        Self { limit, model, now: 1 << 58, tokens: Vec::new(), admitted: Vec::new(), healed: 0 }
    }

    fn run(&mut self, step: Step) {
        self.now = (self.now + step.delta).clamp(0, LAST as i128);
        let now = self.now as u128;
        let ticks = Ticks::new(now as u64);
        if step.refund && !self.tokens.is_empty() {
            let (token, charge) = self.tokens.swap_remove(step.pick % self.tokens.len());
            let restored = self.limit.restore(token);
            assert_eq!(restored, self.model.next == charge.after);
            if restored {
                self.model.next = charge.before;
                self.admitted.retain(|other| *other != charge);
            }
        } else {
            let before = self.model.next;
            match (self.limit.try_acquire(step.weight, ticks), self.model.try_acquire(step.weight, now)) {
                (Ok(token), Ok(())) => {
                    let charge = Charge {
                        serial: self.admitted.last().map_or(0, |last| last.serial + 1),
                        now: self.now,
                        cost: u128::from(step.weight) * self.model.period,
                        before,
                        after: self.model.next,
                    };
                    self.admitted.push(charge);
                    self.tokens.push((token, charge));
                }
                (Err(RateRefusal::Exhausted { retry_after, available }), Err(Some(wait))) => {
                    assert_eq!(retry_after.as_nanos(), wait.div_ceil(16));
                    assert_eq!(u128::from(available), self.model.available(now));
                }
                (Err(RateRefusal::TooHeavy { .. }), Err(None)) => {}
                (real, model) => panic!("{real:?}, but the model says {model:?}"),
            }
        }
        assert_eq!(u128::from(self.limit.tokens_available(ticks)), self.model.available(now));
        assert_eq!(self.limit.healed(), self.model.healed);
        if self.healed != self.model.healed {
            // The clock was wrong, so what was admitted by it says nothing about what comes.
            self.healed = self.model.healed;
            self.admitted.clear();
            self.tokens.clear();
        }
        self.check_bound();
    }

    /// Any admissions in a row cost at most the time between the first and the last, plus the
    /// tolerance; exactly, in the order they were made, whatever each caller's clock said.
    fn check_bound(&self) {
        let tolerance = (self.model.burst * self.model.period) as i128;
        let (mut cost, mut earliest) = (0, i128::MAX);
        // What cost nothing bounds nothing: it leaves no trace for those that come after a refund.
        for charge in self.admitted.iter().filter(|charge| charge.cost > 0) {
            earliest = earliest.min(cost - charge.now);
            cost += charge.cost as i128;
            assert!(cost - charge.now - earliest <= tolerance);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Charge {
    serial: u64,
    now: i128,
    cost: u128,
    before: u128,
    after: u128,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    delta: i128,
    weight: u32,
    refund: bool,
    pick: usize,
}

/// GCRA as the textbook has it, in numbers that cannot overflow.
struct Model {
    period: u128,
    burst: u128,
    next: u128,
    healed: u64,
}

impl Model {
    /// `Err(None)` is never, `Err(Some(wait))` is in `wait` ticks.
    fn try_acquire(&mut self, weight: u32, now: u128) -> Result<(), Option<u128>> {
        let tolerance = self.burst * self.period;
        if u128::from(weight) > self.burst {
            return Err(None);
        }
        let next = now.max(self.next) + u128::from(weight) * self.period;
        if next <= now + tolerance {
            self.next = next;
            return Ok(());
        }
        if self.next > now + tolerance + SECOND {
            self.next = now + tolerance;
            self.healed += 1;
            return if weight == 0 { Ok(()) } else { Err(Some(u128::from(weight) * self.period)) };
        }
        Err(Some(next - tolerance - now))
    }

    fn available(&self, now: u128) -> u128 {
        (self.burst * self.period).saturating_sub(self.next.saturating_sub(now)) / self.period
    }
}

/// The time between two tokens, rounded up to a tick and then to 26 binary digits.
fn period(tokens: u64, interval: Duration) -> u128 {
    let ticks = (interval.as_nanos() * 16).div_ceil(u128::from(tokens));
    let unit = (0..).map(|digits| 1 << digits).find(|unit| ticks < unit << 26).unwrap();
    ticks.div_ceil(unit) * unit
}

/// Xorshift: enough for traces, and the seed is all there is to a failing one.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn step(&mut self) -> Step {
        const DAY: i128 = 86_400 * SECOND as i128;
        let deltas =
            [0, 0, 16, 16 * 1_000_000, SECOND as i128, DAY, 36_500 * DAY, 219_000 * DAY, -16, -3_600 * SECOND as i128];
        // Long steps are rare, or time would end at once.
        let kind = if self.below(50) == 0 { self.below(10) } else { [0, 1, 2, 3, 8][self.below(5) as usize] };
        Step {
            delta: deltas[kind as usize],
            weight: [1, 1, 1, 1, 1, 0, 2, 3][self.below(8) as usize],
            refund: self.below(6) == 0,
            pick: self.below(1 << 20) as usize,
        }
    }
}
