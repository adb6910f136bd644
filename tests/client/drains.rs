//! Servers that drain in peace: nobody has lost anything, and nobody is kept from the next one.

use std::time::Duration;

use futures::poll;
use rpc_codec::{GoAwayReason, encode_go_away};
use rpc_core::CallId;
use sluicegate::{CallError, StatusCode, client::LostCause};

use crate::support::{
    Got, method,
    raw::response,
    scripted::{first_call, scripted},
    until_client_idle, within,
};

#[tokio::test(start_paused = true)]
async fn a_drain_is_no_loss_even_if_an_answer_was_not_fetched_before_the_end() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 64).await;
    server.reply(id, 1_u64).await;
    within(first).await.unwrap().unwrap();
    let mut kept = client.call::<_, u64>(method::GATE, (2_u64,));
    assert!(poll!(&mut kept).is_pending());
    let (id, _) = server.request().await;
    let mut farewell = response(id, &2_u64);
    encode_go_away(&mut farewell, id, GoAwayReason::Drain, "closing for the night");
    server.peer.send(&farewell).await;
    server.peer.end().await;
    while client.snapshot().connected {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(client.snapshot().lost_connections, 0);
    assert_eq!(within(kept).await.unwrap(), 2);
    until_client_idle(&client).await;
}

/// First a drain, then another reason.
fn two_farewells(last: CallId) -> Vec<u8> {
    let mut out = Vec::new();
    encode_go_away(&mut out, last, GoAwayReason::Drain, "closing for the night");
    encode_go_away(&mut out, last, GoAwayReason::TooManyFrames, "too many frames");
    encode_go_away(&mut out, last, GoAwayReason::Drain, "closing for the night");
    out
}

#[tokio::test(start_paused = true)]
async fn a_server_that_breaks_off_while_it_drains_is_believed_when_it_says_why() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
    server.peer.send(&two_farewells(id)).await;
    server.peer.end().await;
    let error = within(call).await.unwrap().unwrap_err();
    let CallError::Lost { source: LostCause::GoneAway(why), .. } = error else { panic!("{error:?}") };
    assert_eq!(&*why, "too many frames");
    until_client_idle(&client).await;
    // With an answer that was not fetched, nobody is told, but it is no drain either.
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 64).await;
    server.reply(id, 1_u64).await;
    within(first).await.unwrap().unwrap();
    let mut kept = client.call::<_, u64>(method::GATE, (2_u64,));
    assert!(poll!(&mut kept).is_pending());
    let (id, _) = server.request().await;
    server.peer.send(&[response(id, &2_u64), two_farewells(id)].concat()).await;
    server.peer.end().await;
    while client.snapshot().connected {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(client.snapshot().lost_connections, 1);
    assert_eq!(within(kept).await.unwrap(), 2);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_that_drains_before_any_answer_lets_the_next_call_go_to_the_next_server() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 64).await;
    first.abort();
    let _ = first.await;
    assert!(matches!(server.peer.next().await, Got::Cancel(cancelled) if cancelled == id));
    server.go_away(id, GoAwayReason::Drain, "moving house").await;
    server.peer.rest().await;
    drop(server);
    while client.snapshot().connected {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(client.snapshot().lost_connections, 0);
    let (next, mut server, id) = within(first_call(&client, &mut servers, 64)).await;
    server.reply(id, 7_u64).await;
    assert_eq!(within(next).await.unwrap().unwrap(), 7);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_turns_away_for_another_reason_is_a_failed_attempt() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, _) = first_call(&client, &mut servers, 64).await;
    server.go_away(CallId::CONNECTION, GoAwayReason::TooManyConnections, "no room").await;
    assert_eq!(within(first).await.unwrap().unwrap_err().code(), StatusCode::Unavailable);
    server.peer.rest().await;
    drop(server);
    while client.snapshot().connected {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let error = within(client.call::<_, u64>(method::GATE, (2_u64,))).await.unwrap_err();
    assert!(error.retry_delay().is_some(), "{error:?}");
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_ping_behind_our_farewell_is_not_answered_and_the_end_stays_peaceful() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 64).await;
    server.reply(id, 1_u64).await;
    within(first).await.unwrap().unwrap();
    client.close();
    assert!(matches!(server.peer.next().await, Got::GoAway { .. }));
    assert!(matches!(server.peer.next().await, Got::End));
    let mut ping = Vec::new();
    rpc_codec::encode_ping(&mut ping, *b"are you?");
    server.peer.send(&ping).await;
    assert!(matches!(server.peer.next().await, Got::End));
    server.peer.end().await;
    until_client_idle(&client).await;
    assert_eq!(client.snapshot().lost_connections, 0);
}
