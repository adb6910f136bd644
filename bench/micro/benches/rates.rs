//! The rate limiter beside governor: alone, and with another thread on the same bucket.
//!
//! Rates are so high that every call passes: a refusal writes nothing and would flatter both.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use governor::{Quota, RateLimiter};
use rpc_core::limit::{Clock, Rate, RateLimit};

const PER_SECOND: u32 = 1_000_000_000;

fn rates(criterion: &mut Criterion) {
    let clock = Clock::new(Instant::now());
    let rate = Rate::per_second(f64::from(PER_SECOND)).burst(PER_SECOND);
    let limit = RateLimit::new("bench", rate).expect("a valid rate");
    let ours = || {
        let _passed = black_box(limit.try_acquire(1, clock.ticks(Instant::now())));
    };
    let most = NonZeroU32::new(PER_SECOND).expect("not zero");
    let governor = RateLimiter::direct(Quota::per_second(most).allow_burst(most));
    let theirs = || {
        let _passed = black_box(governor.check());
    };

    let mut group = criterion.benchmark_group("rate");
    group.bench_function("sluicegate, time given", |bencher| {
        let mut now = clock.ticks(Instant::now());
        bencher.iter(|| {
            now = now.saturating_add(std::time::Duration::from_nanos(2));
            limit.try_acquire(1, now)
        });
    });
    group.bench_function("sluicegate, with clock", |bencher| bencher.iter(ours));
    group.bench_function("governor, with clock", |bencher| bencher.iter(theirs));
    group.bench_function("sluicegate, two threads", |bencher| beside_another(ours, || bencher.iter(ours)));
    group.bench_function("governor, two threads", |bencher| beside_another(theirs, || bencher.iter(theirs)));
    group.finish();
}

/// Runs `measure` while another thread does `work` without a pause.
fn beside_another(work: impl Fn() + Sync, measure: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        });
        measure();
        stop.store(true, Ordering::Relaxed);
    });
}

criterion_group!(benches, rates);
criterion_main!(benches);
