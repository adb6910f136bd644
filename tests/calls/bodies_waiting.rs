//! Bodies of calls that a handler in front of the limits lets wait: their parts arrive meanwhile, and the
//! rules hold.

use std::time::Duration;

use sluicegate::{Refusal, RefusalReason, StatusCode, server::Decision};
use tokio::{io::AsyncWriteExt, sync::watch, time::sleep};

use crate::support::{
    Harness,
    bodies::{answer_of_begun, assert_refused, begun, complete, is_alive, status_of, until_given_back},
    handlers::Deciding,
    method,
    parts::{GO_AWAY, part, untouched},
    raw::cancel,
    shims::Manner,
};

const SECOND: Duration = Duration::from_secs(1);

/// What a handler waits for, and what it then decides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    None,
    Pass,
    Refuse,
}

/// A server with a handler that makes calls of 'bytes' wait for a verdict.
fn serve_judged() -> (Harness, watch::Sender<Verdict>) {
    let (verdict, _) = watch::channel(Verdict::None);
    let sender = verdict.clone();
    let judging = move || {
        let verdict = verdict.clone();
        Deciding(move |call: &mut sluicegate::server::Call<'_>| {
            if call.method().path() != "test.Probe/bytes" {
                return Decision::Pass;
            }
            let mut verdict = verdict.subscribe();
            Decision::Wait(Box::pin(async move {
                match *verdict.wait_for(|verdict| *verdict != Verdict::None).await.expect("a judge") {
                    Verdict::Refuse => Decision::Refuse(Refusal::new(RefusalReason::Draining)),
                    _ => Decision::Pass,
                }
            }))
        })
    };
    let harness = Harness::with(|builder| {
        builder.pipeline(move |pipeline, _| {
            pipeline.add_before("concurrency", "judge", judging());
        })
    });
    (harness.unless(Manner::OneByte, "megabytes go by"), sender)
}

#[tokio::test(start_paused = true)]
async fn parts_arrive_while_a_handler_waits() {
    for complete_first in [false, true] {
        for verdict in [Verdict::Pass, Verdict::Refuse] {
            let (harness, judge) = serve_judged();
            let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
            if complete_first {
                complete(&mut wire).await;
            }
            is_alive(&mut wire, 2).await;
            assert!(wire.is_silent_for(SECOND).await);
            judge.send_replace(verdict);
            if verdict == Verdict::Refuse {
                let status = status_of(&wire.piece().await);
                assert_refused(&status, StatusCode::Unavailable, "DRAINING", &[]);
                until_given_back(&harness).await;
            }
            if !complete_first {
                assert!(wire.is_silent_for(SECOND).await);
                complete(&mut wire).await;
            }
            if verdict == Verdict::Pass {
                answer_of_begun(&mut wire).await;
            }
            until_given_back(&harness).await;
            is_alive(&mut wire, 3).await;
            drop(wire);
            harness.assert_idle().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_ends_with_its_call_while_a_handler_waits() {
    // Cancelled, malformed, lost, too slow.
    for how in 0..4 {
        let (harness, _judge) = serve_judged();
        let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
        match how {
            0 => wire.send(&cancel(1)).await,
            1 => {
                wire.send(&part(1, &vec![7; 100_000], false)).await;
                let status = status_of(&wire.piece().await);
                assert_refused(&status, StatusCode::InvalidArgument, "MALFORMED_REQUEST", &[]);
            }
            2 => wire.io.shutdown().await.unwrap(),
            _ => {
                let status = status_of(&wire.piece().await);
                assert_refused(&status, StatusCode::DeadlineExceeded, "BODY_TOO_SLOW", &[]);
            }
        }
        until_given_back(&harness).await;
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_complete_is_not_charged_for_the_time_in_which_its_handler_waits() {
    let (harness, judge) = serve_judged();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    complete(&mut wire).await;
    sleep(25 * SECOND).await;
    judge.send_replace(Verdict::Pass);
    answer_of_begun(&mut wire).await;
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_part_behind_the_last_while_a_handler_waits_breaks_the_connection() {
    let (harness, _judge) = serve_judged();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    complete(&mut wire).await;
    wire.send(&part(1, b"more", false)).await;
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    drop(wire);
    harness.assert_idle().await;
}
