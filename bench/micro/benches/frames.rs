//! Frames: decoding a read full of requests, and encoding requests and answers.

use std::hint::black_box;

use bench_micro::Message;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rpc_codec::{CodecId, Decoded, FrameDecoder, OpenMessage, RequestHead, SendBounds};
use rpc_core::{CallId, Metadata, MethodId};

const FRAMES: u64 = 64;
const BOUNDS: SendBounds = SendBounds { max_frame: 256 << 10, max_message: 4 << 20 };

fn head() -> RequestHead {
    RequestHead {
        method: MethodId::of("Echo", "structs"),
        timeout_us: 10_000_000,
        sent_at_us: 7,
        codec: CodecId::BINCODE,
        compression: 0,
        priority: 0,
        attempt: 0,
    }
}

fn put_request(out: &mut Vec<u8>, id: u64, body: &[u8]) {
    let open = OpenMessage::request(out, &head(), &Metadata::new());
    out.extend_from_slice(body);
    open.finish(out, CallId::new(id, 0), BOUNDS).expect("it is short");
}

fn put_response(out: &mut Vec<u8>, id: u64, body: &[u8]) {
    let open = OpenMessage::response(out);
    out.extend_from_slice(body);
    open.finish(out, CallId::new(id, 0), BOUNDS).expect("it is short");
}

fn frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("64 frames");
    group.throughput(Throughput::Elements(FRAMES));
    let mut body = Vec::new();
    CodecId::BINCODE.encode(&(Message::new(64),), &mut body).expect("plain data");

    let mut requests = Vec::new();
    (1..=FRAMES).for_each(|id| put_request(&mut requests, id, &body));
    group.bench_function("decode requests", |bencher| {
        let decoder = FrameDecoder::new(BOUNDS.max_frame);
        bencher.iter(|| {
            let mut rest = black_box(&requests[..]);
            while let Ok(Decoded::Frame { frame, len }) = decoder.decode(rest) {
                black_box(frame);
                rest = &rest[len..];
            }
            assert!(rest.is_empty());
        });
    });
    for (name, put) in
        [("encode requests", put_request as fn(&mut Vec<u8>, u64, &[u8])), ("encode responses", put_response)]
    {
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || Vec::with_capacity(64 << 10),
                |out| (1..=FRAMES).for_each(|id| put(out, id, black_box(&body))),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, frames);
criterion_main!(benches);
