//! A long reply holds its permit until its last byte has been written, and no longer than its reader
//! takes bytes.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::yield_now,
    time::{Instant, sleep},
};

use crate::support::{
    Harness, Req, assert_idle_soon,
    bodies::{MIB, NARROW, REPLY, huge, serve_huge, until_given_back, wire},
    method,
    parts::CONT,
    raw::hello_with,
    shims::{is_full, times_in},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn the_permit_of_a_long_reply_is_held_until_its_last_byte_is_written() {
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let harness = serve_huge().plain("it counts bytes");
        let mut wire = wire(&harness, NARROW).await;
        wire.send(&Req::new(1, method, (REPLY as u32,)).bytes()).await;
        let piece = wire.piece().await;
        let mut left = piece.body_len() - piece.body.len();
        while left > 0 {
            sleep(SECOND).await;
            assert_eq!(harness.snapshot().calls.held, u64::from(left > NARROW), "{left} bytes are left to be read");
            let (piece, _) = wire.up_to(|piece| piece.kind == CONT).await;
            left -= piece.body.len();
        }
        sleep(10 * MS).await;
        until_given_back(&harness).await;
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_read_a_long_reply_is_cut_at_the_write_timeout() {
    for read in [0, 1, 50_000, 3_000_000] {
        let harness = serve_huge();
        let mut wire = wire(&harness, NARROW).await;
        wire.send(&Req::new(1, method::LARGE, (REPLY as u32,)).bytes()).await;
        let mut buffer = vec![0; read];
        sleep(SECOND).await;
        wire.io.read_exact(&mut buffer).await.unwrap();
        yield_now().await;
        let began = Instant::now();
        // What is read too slowly renews no time.
        let least = if read < 30 * 1024 { 29 * SECOND } else { 30 * SECOND };
        sleep(least - 10 * MS).await;
        let still = harness.snapshot();
        assert_eq!((still.connections, still.calls.held), (1, 1), "{read} bytes were read");
        harness.until("it is cut", |harness| harness.snapshot().connections == 0).await;
        let waited = began.elapsed();
        assert!(waited >= least - 10 * MS && waited <= least + 10 * MS, "{read} bytes were read, then {waited:?}");
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_takes_a_few_bytes_now_and_then_is_not_cut_where_any_rate_will_do() {
    for step in [1_usize, 10, 17] {
        let harness = Harness::with(|builder| huge(builder).min_write_rate(None)).plain("it counts bytes");
        let mut wire = wire(&harness, 1_000).await;
        wire.send(&Req::new(1, method::LARGE, (REPLY as u32,)).bytes()).await;
        sleep(MS).await;
        wire.io.read_exact(&mut vec![0; 1_000 * 90]).await.unwrap();
        let mut buffer = vec![0; step];
        for n in 0..(8_000 / step) {
            sleep(20 * SECOND).await;
            assert!(wire.io.read_exact(&mut buffer).await.is_ok(), "cut after {n} steps of {step}");
            assert_eq!(harness.snapshot().connections, 1, "cut after {n} steps of {step}");
        }
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_goes_in_the_middle_of_a_long_reply_leaves_nothing() {
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let harness = serve_huge();
        let mut wire = wire(&harness, NARROW).await;
        wire.send(&Req::new(1, method, (REPLY as u32,)).bytes()).await;
        wire.up_to(|piece| piece.kind == CONT).await;
        assert_eq!(harness.snapshot().calls.held, 1);
        let began = Instant::now();
        drop(wire);
        harness.assert_idle().await;
        assert!(began.elapsed() <= 100 * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_32_mib_gives_its_permit_back_once_and_in_time_whatever_its_reader_does() {
    const STALL: Duration = Duration::from_secs(5);
    let harness = Harness::with(|builder| huge(builder).write_timeout(STALL)).plain("gigabytes go by");
    let mut buffer = vec![0; 256 * 1024];
    let rounds = times_in(1_000, 2);
    for _ in 0..rounds {
        let asks = Req::new(1, method::LARGE, (32 * MIB as u32,)).bytes();
        let stalled = async || {
            let mut wire = wire(&harness, 1 << 20).await;
            wire.send(&asks).await;
            harness.until_held(1).await;
            sleep(STALL / 2).await;
            assert_eq!(harness.snapshot().calls.held, 1, "it waits for its reader");
            wire
        };
        // Reads all of it. What is behind the body shows that it was the last byte.
        let mut reads = stalled().await;
        let piece = reads.piece().await;
        let mut left = piece.body_len() - piece.body.len();
        while left > 0 {
            left -= reads.piece().await.body.len();
        }
        let last = Instant::now();
        until_given_back(&harness).await;
        assert!(last.elapsed() <= 10 * MS, "{:?}", last.elapsed());
        drop(reads);
        harness.assert_idle().await;
        // Never reads.
        let began = Instant::now();
        let never = stalled().await;
        sleep(STALL / 2 - 20 * MS).await;
        harness.until("it is cut", |harness| harness.snapshot().connections == 0).await;
        let cut = began.elapsed();
        assert!(cut >= STALL * 4 / 5 && cut <= STALL * 6 / 5, "{cut:?}");
        assert_eq!(harness.snapshot().calls.held, 0);
        drop(never);
        // Is gone, in the middle of what it read.
        let mut gone = stalled().await;
        gone.io.read_exact(&mut buffer).await.unwrap();
        let left = Instant::now();
        drop(gone);
        until_given_back(&harness).await;
        assert!(left.elapsed() <= 100 * MS, "{:?}", left.elapsed());
        harness.assert_idle().await;
    }
    let calls = harness.snapshot().calls;
    assert_eq!((calls.acquired, calls.released, calls.high_water), (3 * rounds, 3 * rounds, 1));
}

#[tokio::test]
async fn a_socket_that_is_reset_in_the_middle_of_a_long_reply_leaves_nothing() {
    let harness = serve_huge().plain("it is the kernel that resets");
    let sockets = harness.sockets().await;
    for _ in 0..times_in(1_000, 5) {
        let mut socket = TcpStream::connect(sockets.address).await.unwrap();
        let mut bytes = hello_with(|hello| hello.max_message = u32::MAX);
        bytes.extend(Req::new(1, method::LARGE, (32 * MIB as u32,)).bytes());
        socket.write_all(&bytes).await.unwrap();
        socket.read_exact(&mut vec![0; 100_000]).await.unwrap();
        assert_eq!(harness.snapshot().calls.held, 1);
        // With bytes that were not read, the kernel resets.
        let reset = std::time::Instant::now();
        drop(socket);
        assert_idle_soon(&harness.handle).await;
        assert!(!is_full() || reset.elapsed() <= 100 * MS, "{:?}", reset.elapsed());
    }
    sockets.shut_down().await;
}

/// The kernel wants to be full or to have room in steps: those must be small against what a slow reader takes
/// within the timeout.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn who_reads_steadily_from_a_socket_is_not_cut_however_slowly() {
    let harness = Harness::with(|builder| huge(builder).write_timeout(SECOND)).plain("it is the kernel that buffers");
    let sockets = harness.sockets().await;
    let mut socket = TcpStream::connect(sockets.address).await.unwrap();
    let mut bytes = hello_with(|hello| hello.max_message = u32::MAX);
    bytes.extend(Req::new(1, method::LARGE, (64 * MIB as u32,)).bytes());
    socket.write_all(&bytes).await.unwrap();
    let mut taken = vec![0; 128 * 1024];
    for n in 0..16 {
        sleep(250 * MS).await;
        assert!(socket.read_exact(&mut taken).await.is_ok(), "cut after {n} pieces");
    }
    assert_eq!(harness.snapshot().calls.held, 1);
    drop(socket);
    assert_idle_soon(&harness.handle).await;
    sockets.shut_down().await;
}
