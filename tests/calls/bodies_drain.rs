//! Bodies on their way when one end says that it leaves: they are seen through, or ended and told so.

use std::time::Duration;

use rpc_codec::{GoAwayReason, PART_LEN, encode_go_away};
use rpc_core::CallId;
use sluicegate::{Executed, StatusCode};
use tokio::io::AsyncWriteExt;

use crate::support::{
    Req,
    bodies::{LEN, answer_of_begun, assert_refused, begun, budget, complete, serve, serve_budget, status_of},
    method,
    parts::{GO_AWAY, opening, part, untouched},
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn the_end_of_the_stream_behind_a_go_away_refuses_bodies_that_are_not_complete() {
    let harness = serve_budget();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    wire.send(&Req::new(2, method::SLEEP, (3_000_u64,)).bytes()).await;
    let mut farewell = Vec::new();
    encode_go_away(&mut farewell, CallId::CONNECTION, GoAwayReason::Drain, "bye");
    wire.send(&farewell).await;
    // GOAWAY alone ends nothing.
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    assert!(wire.is_silent_for(SECOND).await);
    wire.io.shutdown().await.unwrap();
    let status = status_of(&wire.piece().await);
    assert_refused(&status, StatusCode::InvalidArgument, "MALFORMED_REQUEST", &[]);
    let others = wire.rest().await;
    assert!(matches!(&others[..], [piece] if piece.id == CallId::new(2, 0)), "{others:?}");
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_long_call_is_finished_by_a_server_that_drains() {
    let harness = serve_budget();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    harness.handle.shutdown();
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    // One behind the GOAWAY is ignored with all its parts.
    wire.send(&opening(untouched(2, method::BYTES), LEN, &[7; 10])).await;
    wire.send(&part(2, &[7; PART_LEN], true)).await;
    complete(&mut wire).await;
    answer_of_begun(&mut wire).await;
    assert!(wire.next().await.is_none());
    drop(wire);
    harness.assert_idle().await;
    assert_eq!(harness.probe.started(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_complete_at_the_end_of_a_drain_is_cut_off_unexecuted() {
    let harness = serve(|builder| budget(builder).drain_grace(5 * SECOND));
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    let handle = harness.handle.clone();
    let draining = tokio::spawn(async move { handle.drain().await });
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    let status = status_of(&wire.piece().await);
    assert_eq!((status.code(), status.executed()), (StatusCode::Unavailable, Executed::Never));
    drop(wire);
    let cut = draining.await.unwrap();
    assert!(format!("{cut:?}").contains("started: false"), "{cut:?}");
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_in_the_middle_of_a_long_reply_gives_everything_back() {
    let harness = serve_budget();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    complete(&mut wire).await;
    assert!(wire.piece().await.more);
    harness.handle.stop();
    // The peer reads no more; a second for it to take the rest is all it gets.
    harness.assert_idle().await;
    drop(wire);
}
