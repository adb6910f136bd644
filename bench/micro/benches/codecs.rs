//! Payload codecs on the message of all benchmarks, with 64 B and 1 KiB of payload.

use std::hint::black_box;

use bench_micro::Message;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rpc_codec::CodecId;

fn codecs(criterion: &mut Criterion) {
    for (name, codec) in [("bincode", CodecId::BINCODE), ("json", CodecId::JSON)] {
        let mut group = criterion.benchmark_group(name);
        for payload_len in [64, 1024] {
            let message = Message::new(payload_len);
            let mut encoded = Vec::new();
            codec.encode(&message, &mut encoded).expect("plain data");
            group.throughput(Throughput::Bytes(encoded.len() as u64));
            group.bench_function(BenchmarkId::new("encode", payload_len), |bencher| {
                let mut out = Vec::with_capacity(encoded.len());
                bencher.iter(|| {
                    out.clear();
                    codec.encode(black_box(&message), &mut out).expect("plain data");
                });
            });
            group.bench_function(BenchmarkId::new("decode", payload_len), |bencher| {
                bencher.iter(|| codec.decode::<Message>(black_box(&encoded)).expect("it was encoded"));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
