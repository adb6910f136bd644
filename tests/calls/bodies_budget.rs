//! A body takes its bytes of the budget with its first part, and gives them back however its call
//! ends.

use std::time::Duration;

use rpc_codec::PART_LEN;
use rpc_core::CallId;
use sluicegate::{Executed, Status, StatusCode, client::Method, server::ServerBuilder};
use tokio::{
    io::AsyncWriteExt,
    task::yield_now,
    time::{Instant, sleep},
};

use crate::support::{
    Req,
    bodies::{
        LEN, LEN64, MAX_AHEAD, MIB, NARROW, answer_of_begun, assert_refused, begun, budget, complete, is_alive, serve,
        serve_budget, status_of, text, until_given_back, wire,
    },
    method,
    parts::{PING, PONG, encoded, frames, opening, part, untouched},
    raw::{cancel, frame},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

type Configure = fn(ServerBuilder) -> ServerBuilder;

#[tokio::test(start_paused = true)]
async fn a_body_takes_its_budget_with_the_first_part_and_a_second_that_finds_too_little_is_refused() {
    let cases: [(&str, Configure, bool); 2] = [
        ("connection bodies", budget, false),
        ("global bodies", |builder| budget(builder).body_budget(MIB as u64), true),
    ];
    for (limit, configure, elsewhere) in cases {
        let harness = serve(|builder| configure(builder).concurrency_retry_delay(70 * MS));
        let mut first = begun(&harness, untouched(1, method::BYTES)).await;
        let mut other = if elsewhere { Some(wire(&harness, NARROW).await) } else { None };
        let second = other.as_mut().unwrap_or(&mut first);
        second.send(&opening(untouched(2, method::BYTES), LEN, &[7; 10])).await;
        let status = status_of(&second.piece().await);
        let figures = [("limit", limit.to_owned()), ("max_bytes", MIB.to_string()), ("bytes", LEN.to_string())];
        assert_refused(&status, StatusCode::ResourceExhausted, "BODY_BUDGET", &figures);
        let delay = status.retry_delay().unwrap();
        assert!(delay >= 35 * MS && delay <= 140 * MS, "{delay:?}");
        assert_eq!((harness.refused(limit), harness.snapshot().body_bytes), (1, LEN64));
        // What was under way is not an error; calls without parts need no budget, and what is left
        // serves a shorter body.
        for more in [true, true, false] {
            second.send(&part(2, &[7; PART_LEN], more)).await;
        }
        is_alive(second, 3).await;
        assert_eq!(harness.snapshot().frames_ignored, 3);
        let short = vec![8; MIB - LEN];
        second.send(&frames(|| untouched(4, method::BYTES), 4, &short, 0, PART_LEN).concat()).await;
        let piece = second.piece().await;
        assert!(second.whole(piece).await == short);
        complete(&mut first).await;
        answer_of_begun(&mut first).await;
        until_given_back(&harness).await;
        assert_eq!(harness.probe.started(), 3);
        drop((first, other));
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_given_back_when_the_last_part_of_the_response_is_written() {
    for method in [method::BYTES, method::BYTES_SPAWNED] {
        let harness = serve_budget().plain("it counts bytes");
        let mut wire = begun(&harness, untouched(1, method)).await;
        complete(&mut wire).await;
        let piece = wire.piece().await;
        let mut left = piece.body_len() - piece.body.len();
        while left > NARROW {
            sleep(MS).await;
            let snapshot = harness.snapshot();
            assert_eq!((snapshot.body_bytes, snapshot.calls.held), (LEN64, 1), "{left} bytes are left");
            left -= wire.piece().await.body.len();
        }
        until_given_back(&harness).await;
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_in_the_middle_of_its_request_gives_everything_back() {
    let harness = serve_budget();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    wire.send(&cancel(1)).await;
    until_given_back(&harness).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    wire.send(&part(1, &[7; 10], false)).await;
    is_alive(&mut wire, 2).await;
    assert_eq!((harness.snapshot().frames_ignored, harness.probe.started()), (2, 1));
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_reply_is_not_sent_to_a_caller_who_has_cancelled() {
    for method in [method::BYTES, method::BYTES_SPAWNED] {
        let harness = serve_budget().plain("it counts bytes");
        let mut wire = begun(&harness, untouched(1, method)).await;
        complete(&mut wire).await;
        assert!(wire.piece().await.more);
        wire.send(&cancel(1)).await;
        until_given_back(&harness).await;
        wire.send(&frame(PING, 0, 0, &[1; 8], &[])).await;
        let (_, before) = wire.up_to(|piece| piece.kind == PONG).await;
        assert!(before <= MAX_AHEAD, "{before} bytes came after the CANCEL");
        assert!(wire.is_silent_for(100 * SECOND).await);
        is_alive(&mut wire, 2).await;
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_in_the_middle_of_the_request_ends_the_call_unexecuted() {
    let harness = serve_budget();
    let began = Instant::now();
    let mut wire = begun(&harness, untouched(1, method::BYTES).timeout(2 * SECOND)).await;
    let status = status_of(&wire.piece().await);
    assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Never));
    let waited = began.elapsed();
    assert!(waited >= 2 * SECOND && waited <= 2 * SECOND + 20 * MS, "{waited:?}");
    until_given_back(&harness).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    is_alive(&mut wire, 2).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_in_the_middle_of_a_request_gives_everything_back() {
    for ended in [false, true] {
        let harness = serve_budget();
        let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
        if ended {
            wire.io.shutdown().await.unwrap();
            assert!(wire.next().await.is_none());
        }
        drop(wire);
        harness.assert_idle().await;
        assert_eq!(harness.probe.started(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_call_that_another_limit_refuses_gives_its_budget_back() {
    let harness = serve(|builder| builder.max_concurrent_calls(1));
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    wire.send(&Req::new(2, method::GATE, (2_u64,)).bytes()).await;
    harness.until_running(1).await;
    for id in 3..100 {
        wire.send(&opening(untouched(id, method::BYTES), LEN, &[7; 10])).await;
        wire.send(&part(id, &[7; 5_000], true)).await;
        assert_refused(&status_of(&wire.piece().await), StatusCode::ResourceExhausted, "CONCURRENCY_LIMIT", &[]);
        assert_eq!(harness.snapshot().body_bytes, LEN64);
    }
    harness.probe.open_gate();
    assert_eq!(wire.piece().await.id, CallId::new(2, 0));
    complete(&mut wire).await;
    answer_of_begun(&mut wire).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn arguments_of_many_parts_that_cannot_be_decoded_give_everything_back() {
    let harness = serve_budget();
    let mut wire = wire(&harness, NARROW).await;
    for (id, method) in (1..).zip([method::ECHO, method::ECHO_SPAWNED]) {
        wire.send(&frames(|| Req::new(id, method, ()), id, &[0xff; LEN], 0, PART_LEN).concat()).await;
        let status = status_of(&wire.piece().await);
        assert_eq!((status.code(), status.executed()), (StatusCode::InvalidArgument, Executed::Never));
        until_given_back(&harness).await;
    }
    drop(wire);
    harness.assert_idle().await;
}

#[sluicegate::service]
trait Odd {
    async fn explode(&self, text: String) -> Result<usize, Status>;
    async fn explode_later(&self, text: String) -> Result<usize, Status>;
}

struct OddOne;

impl Odd for OddOne {
    async fn explode(&self, text: String) -> Result<usize, Status> {
        assert!(text.is_empty(), "too long for it");
        Ok(0)
    }

    async fn explode_later(&self, text: String) -> Result<usize, Status> {
        yield_now().await;
        assert!(text.is_empty(), "too long for it");
        Ok(0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_panics_on_a_long_body_gives_everything_back() {
    let harness = serve(|builder| budget(builder).service(OddServer::new(OddOne)));
    let mut wire = wire(&harness, NARROW).await;
    let body = encoded((text(LEN),));
    for (id, name) in (1..).zip(["explode", "explode_later"]) {
        let request = || Req::new(id, Method::new("Odd", name), ());
        wire.send(&frames(request, id, &body, 10, PART_LEN).concat()).await;
        let status = status_of(&wire.piece().await);
        assert_eq!((status.code(), status.executed()), (StatusCode::Internal, Executed::Maybe));
        until_given_back(&harness).await;
    }
    assert_eq!(harness.snapshot().panics, 2);
    is_alive(&mut wire, 3).await;
    drop(wire);
    harness.assert_idle().await;
}
