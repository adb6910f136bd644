//! Instructions per call, as a gate: more than 3 % above the numbers below is a failure.
//!
//! Valgrind counts what the server, the script that calls it, and the pipe between them execute, in one
//! thread and in time that stands still; 96 % of it is the server.
//! Run it by `bench/gate.sh`. Put its numbers here after a change that is worth its price, after one
//! that saved something, and after a new compiler.

#![expect(missing_docs, reason = "what the macros make of a benchmark is public")]

use bench_micro::{BATCH, Calls, InProcess};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};

/// Instructions per call: what `bench/gate.sh` printed, divided by [`CALLS`]. Of rustc 1.95 on x86-64.
const STRUCTS: u64 = 2_821;
const BYTES: u64 = 2_273;
const PENDING_ONCE: u64 = 3_720;
const REFUSED: u64 = 2_058;
/// Of an item of a server stream, with its share of the call: one for 64.
const STREAMED: u64 = 356;

const BATCHES: usize = 100;
const CALLS: u64 = (BATCHES * BATCH) as u64;

/// Growth in per cent that is let pass.
const LEEWAY: u64 = 3;

fn at_most(per_call: u64) -> LibraryBenchmarkConfig {
    let most = per_call * CALLS * (100 + LEEWAY) / 100;
    LibraryBenchmarkConfig::default().tool(Callgrind::default().hard_limits([(EventKind::Ir, most)])).clone()
}

/// Past the first calls, which fill pools and grow buffers.
fn warmed_up(calls: Calls) -> InProcess {
    let mut server = InProcess::new(calls, 0);
    for _ in 0..3 {
        server.batch();
    }
    server
}

/// The server is handed back, so that to take it down is not counted.
fn all_batches(mut server: InProcess) -> InProcess {
    for _ in 0..BATCHES {
        server.batch();
    }
    server
}

#[library_benchmark(config = at_most(STRUCTS))]
#[bench::served(args = (Calls::Structs), setup = warmed_up)]
fn structs(server: InProcess) -> InProcess {
    all_batches(server)
}

#[library_benchmark(config = at_most(BYTES))]
#[bench::served(args = (Calls::Bytes), setup = warmed_up)]
fn bytes(server: InProcess) -> InProcess {
    all_batches(server)
}

#[library_benchmark(config = at_most(PENDING_ONCE))]
#[bench::pending_once(args = (Calls::PendingOnce), setup = warmed_up)]
fn structs_pending(server: InProcess) -> InProcess {
    all_batches(server)
}

#[library_benchmark(config = at_most(REFUSED))]
#[bench::refused(args = (Calls::Refused), setup = warmed_up)]
fn structs_refused(server: InProcess) -> InProcess {
    all_batches(server)
}

#[library_benchmark(config = at_most(STREAMED))]
#[bench::items(args = (Calls::Streamed), setup = warmed_up)]
fn streamed(server: InProcess) -> InProcess {
    all_batches(server)
}

library_benchmark_group!(name = calls, benchmarks = [structs, bytes, structs_pending, structs_refused, streamed]);
main!(library_benchmark_groups = calls);
