//! The concurrency limiter beside tokio's semaphore: take a permit, and give it back.

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use rpc_core::limit::ConcurrencyLimit;
use tokio::sync::Semaphore;

fn permits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("permit");
    let limit = ConcurrencyLimit::new("bench", Some(1_000)).expect("not zero");
    group.bench_function("sluicegate", |bencher| bencher.iter(|| drop(limit.try_acquire())));

    let wide = ConcurrencyLimit::new("server", Some(10_000)).expect("not zero");
    let narrow = ConcurrencyLimit::within(wide, "connection", Some(1_000)).expect("not zero");
    group.bench_function("sluicegate, of a connection and the server", |bencher| {
        bencher.iter(|| drop(narrow.try_acquire()));
    });

    let full = ConcurrencyLimit::new("bench", Some(1)).expect("not zero");
    let _taken = full.try_acquire().expect("it was free");
    group.bench_function("sluicegate, refused", |bencher| bencher.iter(|| drop(full.try_acquire())));

    let semaphore = Arc::new(Semaphore::new(1_000));
    group.bench_function("tokio Semaphore", |bencher| bencher.iter(|| drop(semaphore.try_acquire())));
    group.bench_function("tokio Semaphore, owned", |bencher| {
        bencher.iter(|| drop(Arc::clone(&semaphore).try_acquire_owned()));
    });
    group.finish();
}

criterion_group!(benches, permits);
criterion_main!(benches);
