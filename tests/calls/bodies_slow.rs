//! Bodies that come too slowly are refused in time, and charged for no pause of the server's own.

use std::time::Duration;

use rpc_codec::PART_LEN;
use rpc_core::CallId;
use sluicegate::{Status, StatusCode};
use tokio::time::{Instant, sleep, sleep_until};

use crate::support::{
    Req,
    bodies::{
        KIB, LEN, LEN64, MIB, NARROW, answer_of_begun, assert_refused, begun, bytes, complete, is_alive, serve,
        status_of, until_given_back, wire,
    },
    method,
    parts::{frames, opening, part, untouched},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn assert_too_slow(status: &Status, received: usize) {
    let figures = [("min_bytes_per_second", "16384".to_owned()), ("bytes", received.to_string())];
    assert_refused(status, StatusCode::DeadlineExceeded, "BODY_TOO_SLOW", &figures);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_falls_behind_its_rate_is_refused_when_the_grace_is_over_and_not_before() {
    // What has come when, in bytes and milliseconds; and when it is too late.
    let cases: [(&[(u64, usize)], u64); 4] = [
        (&[], 10_000),
        (&[(5_000, 16_384)], 11_000),
        (&[(9_999, 32_768)], 12_000),
        (&[(0, 8_192), (1_000, 8_192), (10_500, 4_096)], 11_250),
    ];
    for (parts, due) in cases {
        let harness = serve(|builder| builder);
        let mut wire = wire(&harness, 64 * KIB).await;
        let began = Instant::now();
        wire.send(&opening(untouched(1, method::BYTES), LEN, &[7; 1_000])).await;
        for &(at, len) in parts {
            sleep_until(began + Duration::from_millis(at)).await;
            wire.send(&part(1, &vec![7; len], true)).await;
        }
        let status = status_of(&wire.piece().await);
        let (waited, due) = (began.elapsed(), Duration::from_millis(due));
        assert!(waited >= due && waited <= due + 5 * MS, "{parts:?}: {waited:?}");
        assert_too_slow(&status, 1_000 + parts.iter().map(|(_, len)| len).sum::<usize>());
        until_given_back(&harness).await;
        wire.send(&part(1, &[7; PART_LEN], false)).await;
        is_alive(&mut wire, 2).await;
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_at_its_rate_arrives_however_long_it_takes() {
    let harness = serve(|builder| builder);
    let mut wire = wire(&harness, 64 * KIB).await;
    let body = bytes(MIB);
    for frame in frames(|| untouched(1, method::BYTES), 1, &body, 0, 4_096) {
        wire.send(&frame).await;
        sleep(250 * MS).await;
    }
    let piece = wire.piece().await;
    assert!(wire.whole(piece).await == body);
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_rate_a_body_may_take_for_ever() {
    let harness = serve(|builder| builder.min_body_rate(None));
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    for _ in 0..100 {
        assert!(wire.is_silent_for(100 * SECOND).await);
    }
    complete(&mut wire).await;
    answer_of_begun(&mut wire).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_is_not_charged_for_the_time_in_which_the_server_does_not_read() {
    let harness = serve(|builder| builder.write_high_water(1).write_timeout(1_000 * SECOND)).plain("it times");
    let mut wire = wire(&harness, NARROW).await;
    wire.send(&opening(untouched(1, method::BYTES), LEN, &[7; 1_000])).await;
    sleep(9 * SECOND).await;
    wire.send(&Req::new(2, method::LARGE, (200_000_u32,)).bytes()).await;
    sleep(100 * SECOND).await;
    assert_eq!(harness.snapshot().body_bytes, LEN64);
    let piece = wire.piece().await;
    assert_eq!(piece.id, CallId::new(2, 0));
    wire.whole(piece).await;
    // The server reads again from now on, and nine of its ten seconds are over.
    let began = Instant::now();
    assert_too_slow(&status_of(&wire.piece().await), 1_000);
    let waited = began.elapsed();
    assert!(waited >= SECOND && waited <= SECOND + 5 * MS, "{waited:?}");
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_has_arrived_while_the_server_was_busy_counts() {
    let harness = serve(|builder| builder).plain("it counts on one turn to read all");
    let mut wire = wire(&harness, 256 * KIB).await;
    wire.send(&opening(untouched(1, method::BYTES), LEN, &[7; 1_000])).await;
    // It blocks for longer than the grace, and the next parts come with it.
    let mut bytes = Req::new(2, method::BLOCK, (12_000_u64,)).bytes();
    for _ in 0..4 {
        bytes.extend(part(1, &[7; PART_LEN], true));
    }
    wire.send(&bytes).await;
    assert_eq!(wire.piece().await.id, CallId::new(2, 0));
    is_alive(&mut wire, 3).await;
    let mut left = LEN - 1_000 - 4 * PART_LEN;
    while left > 0 {
        let len = left.min(PART_LEN);
        left -= len;
        wire.send(&part(1, &[7; PART_LEN][..len], left > 0)).await;
    }
    answer_of_begun(&mut wire).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_busy_does_not_charge_a_body_for_it() {
    let harness = serve(|builder| builder);
    let mut wire = wire(&harness, 64 * KIB).await;
    wire.send(&opening(untouched(1, method::BYTES), LEN, &[7; 1_000])).await;
    sleep(SECOND).await;
    wire.send(&Req::new(2, method::BLOCK, (30_000_u64,)).bytes()).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    assert_eq!(wire.piece().await.id, CallId::new(2, 0));
    is_alive(&mut wire, 3).await;
    drop(wire);
    harness.assert_idle().await;
}
