//! What handlers of users cost: 64 calls through a server in memory with 0, 4 and 8 of them, besides
//! those of the limits. Divide by 64 for a call; the difference between two rows is that of handlers.

use bench_micro::{BATCH, Calls, InProcess};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn pipeline(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("64 calls");
    group.throughput(Throughput::Elements(BATCH as u64));
    for handlers in [0, 4, 8] {
        group.bench_function(BenchmarkId::new("handlers", handlers), |bencher| {
            let mut server = InProcess::new(Calls::Structs, handlers);
            bencher.iter(|| server.batch());
        });
    }
    group.bench_function("refused", |bencher| {
        let mut server = InProcess::new(Calls::Refused, 0);
        bencher.iter(|| server.batch());
    });
    group.finish();
}

criterion_group!(benches, pipeline);
criterion_main!(benches);
