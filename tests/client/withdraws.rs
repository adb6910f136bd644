//! Calls given up before any of them has left: they take back what they queued, and never arrive.

use std::time::Duration;

use futures::poll;
use sluicegate::{CallError, Client, Executed, StatusCode};
use tokio::{sync::mpsc::UnboundedReceiver, task::yield_now, time::sleep};

use crate::support::{
    Got, RawServer, method,
    parts::{CANCEL, CONT, Pieces, REQUEST},
    raw::hello_with,
    scripted::{scripted, scripted_with},
    shims::{Manner, Random},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
const IT_TAKES_ALL: &str = "it takes everything, so nothing has not begun to leave";

/// Who wants to see what has not left needs a transport that does not take it all the same.
fn narrow() -> Manner {
    Manner::unless(Manner::Withholding, IT_TAKES_ALL)
}

/// A client whose server has greeted it, and now reads nothing any more from a pipe of so many bytes.
async fn greeted(pipe: usize) -> (Client, RawServer, UnboundedReceiver<RawServer>) {
    let (builder, mut servers) = scripted_with(narrow(), pipe);
    let client = builder.build();
    let first = tokio::spawn(client.call::<_, u64>(method::GATE, (0_u64,)));
    let mut server = servers.recv().await.unwrap();
    assert!(matches!(server.peer.next().await, Got::Hello(_)));
    let hello = hello_with(|hello| (hello.advised_calls, hello.max_message) = (10_000, 1024 * 1024));
    server.peer.send(&hello).await;
    let (id, _) = server.request().await;
    server.reply(id, 0_u64).await;
    first.await.unwrap().unwrap();
    (client, server, servers)
}

/// A call of `echo` with so many bytes, which has been polled, and whose task has had its turns.
async fn echo(client: &Client, len: usize) -> sluicegate::client::Call<(String,), String> {
    let mut call = client.call::<_, String>(method::ECHO, ("x".repeat(len),));
    assert!(poll!(&mut call).is_pending());
    sleep(MS).await;
    call
}

#[tokio::test(start_paused = true)]
async fn of_calls_that_are_dropped_before_they_leave_nothing_arrives_and_the_one_that_left_in_part_is_cancelled() {
    let (client, mut server, _servers) = greeted(256).await;
    let begun = echo(&client, 1_000).await;
    let unwritten = client.snapshot().outbound_bytes;
    let mut calls = Vec::new();
    for _ in 0..30 {
        calls.push(echo(&client, 100).await);
    }
    // Every third stays. The others are gone at once, also while the server takes nothing.
    let mut n = 0;
    calls.retain(|_| {
        n += 1;
        n % 3 == 0
    });
    drop(begun);
    sleep(MS).await;
    let snapshot = client.snapshot();
    assert_eq!(snapshot.calls, 10);
    assert!(snapshot.outbound_bytes < unwritten + 10 * 200 + 16, "{snapshot:?}");
    let (first, _) = server.request().await;
    let mut last = first;
    let mut cancelled = 0;
    for _ in 0..11 {
        match server.peer.next().await {
            Got::Request { id, .. } => {
                assert!(id > last);
                last = id;
                server.reply(id, "an answer".to_owned()).await;
            }
            Got::Cancel(id) => {
                assert_eq!(id, first);
                cancelled += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(cancelled, 1);
    for call in calls {
        assert_eq!(within(call).await.unwrap(), "an answer");
    }
    assert!(server.peer.is_silent_for(1_000 * MS).await);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_in_the_turn_in_which_it_was_queued_is_not_heard_of() {
    let (builder, mut servers) = scripted(16 * 1024);
    let client = builder.build();
    let first = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (first_id, _) = server.request().await;
    for n in 0..10_000_u64 {
        let mut call = client.call::<_, u64>(method::GATE, (n,));
        assert!(poll!(&mut call).is_pending());
    }
    let last = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    let (last_id, _) = server.request().await;
    assert_eq!(last_id.sequence(), first_id.sequence() + 10_001, "the ids of the others are not used again");
    server.reply(first_id, 1_u64).await;
    server.reply(last_id, 2_u64).await;
    assert_eq!((first.await.unwrap().unwrap(), last.await.unwrap().unwrap()), (1, 2));
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_deadline_passes_before_it_leaves_was_never_executed_and_does_not_arrive() {
    let (client, mut server, _servers) = greeted(256).await;
    let expiring = |len: usize, after: Duration| {
        tokio::spawn(client.call::<_, String>(method::ECHO, ("x".repeat(len),)).timeout(after))
    };
    let begun = expiring(1_000, 100 * MS);
    sleep(MS).await;
    let queued = expiring(10, 100 * MS);
    for (call, executed) in [(begun, Executed::Maybe), (queued, Executed::Never)] {
        let error = within(call).await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (StatusCode::DeadlineExceeded, executed), "{error:?}");
    }
    let (id, _) = server.request().await;
    assert!(matches!(server.peer.next().await, Got::Cancel(cancelled) if cancelled == id));
    assert!(server.peer.is_silent_for(1_000 * MS).await);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_in_parts_takes_back_those_that_have_not_begun_to_leave() {
    const LEN: usize = 300_000;
    let (client, server, _servers) = greeted(256).await;
    let mut server = Pieces::from(server);
    // Its first part begins to leave, the others are never sent.
    let expiring = client.call::<_, String>(method::ECHO, ("x".repeat(LEN),)).timeout(100 * MS);
    let expiring = tokio::spawn(expiring);
    sleep(MS).await;
    // No part of it leaves.
    let dropped = echo(&client, LEN).await;
    assert!(client.snapshot().outbound_bytes > 2 * LEN as u64 - 1_000);
    drop(dropped);
    let error = within(expiring).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { executed: Executed::Never, .. }), "{error:?}");
    let snapshot = client.snapshot();
    assert!(snapshot.outbound_bytes < 2 * 32 * 1024, "{snapshot:?}");
    let first = server.piece().await;
    assert!(first.kind == REQUEST && first.more && first.body_len() > LEN);
    let (cancel, _) = server.up_to(|piece| piece.kind != CONT).await;
    assert_eq!((cancel.kind, cancel.id), (CANCEL, first.id));
    assert!(server.is_silent_for(1_000 * MS).await);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_full_of_calls_that_were_dropped_has_room_for_others() {
    let (client, mut server, _servers) = greeted(256).await;
    let mut calls = Vec::new();
    while client.snapshot().waiting_for_room == 0 {
        calls.push(echo(&client, 20_000).await);
        assert!(calls.len() < 200, "nobody waits for room");
    }
    let full = client.snapshot().outbound_bytes;
    assert!(full > 1024 * 1024, "{full} bytes are queued");
    let waiting = calls.pop().unwrap();
    let begun = calls.remove(0);
    drop(calls);
    sleep(MS).await;
    let waiting = tokio::spawn(waiting);
    sleep(MS).await;
    let snapshot = client.snapshot();
    assert_eq!((snapshot.calls, snapshot.waiting_for_room), (2, 0));
    assert!(snapshot.outbound_bytes < 50_000, "{snapshot:?}");
    let (first, _) = server.request().await;
    let (second, _) = server.request().await;
    server.reply(first, "one".to_owned()).await;
    server.reply(second, "two".to_owned()).await;
    assert_eq!((within(begun).await.unwrap(), within(waiting).await.unwrap().unwrap()), ("one".into(), "two".into()));
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn when_the_connection_is_lost_a_call_that_has_left_completely_may_be_executed_whatever_was_taken_back() {
    let (client, mut server, _servers) = greeted(256).await;
    let begun = echo(&client, 1_000).await;
    let dropped = echo(&client, 5_000).await;
    let left = echo(&client, 1_000).await;
    let torn = echo(&client, 1_000).await;
    let stays = echo(&client, 10).await;
    drop(dropped);
    sleep(MS).await;
    let calls = [begun, left, torn, stays].map(tokio::spawn);
    // So much that the third call is on its way.
    assert!(server.request().await.0 < server.request().await.0);
    sleep(MS).await;
    drop(server);
    let mut told = Vec::new();
    for call in calls {
        let error = within(call).await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Lost { .. }), "{error:?}");
        told.push(error.executed());
    }
    assert_eq!(told, [Executed::Maybe, Executed::Maybe, Executed::Never, Executed::Never]);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn calls_dropped_one_by_one_behind_a_peer_that_does_not_read_leave_nothing_of_theirs_behind() {
    let (client, mut server, _servers) = greeted(256).await;
    let begun = tokio::spawn(client.call::<_, String>(method::ECHO, ("x".repeat(1_000),)));
    sleep(MS).await;
    let mut calls = Vec::new();
    for _ in 0..5_000 {
        let mut call = client.call::<_, String>(method::ECHO, ("x".repeat(20),));
        assert!(poll!(&mut call).is_pending());
        calls.push(call);
    }
    let mut random = Random::seeded(17);
    while !calls.is_empty() {
        drop(calls.swap_remove(random.below(calls.len() as u64) as usize));
        yield_now().await;
    }
    sleep(MS).await;
    assert!(client.snapshot().outbound_bytes < 1_100);
    let (id, _) = server.request().await;
    server.reply(id, "an answer".to_owned()).await;
    assert_eq!(within(begun).await.unwrap().unwrap(), "an answer");
    assert!(server.peer.is_silent_for(1_000 * MS).await);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn the_farewell_of_a_client_is_the_last_that_it_sends() {
    let (client, mut server, _servers) = greeted(256).await;
    // It leaves in part, so the server is told that nobody waits for it any more.
    let begun = echo(&client, 1_000).await;
    drop(begun);
    client.close();
    sleep(MS).await;
    let (first, _) = server.request().await;
    let rest = within(server.peer.rest()).await;
    let [Got::Cancel(id), Got::GoAway { .. }] = rest[..] else { panic!("{rest:?}") };
    assert_eq!(id, first);
    drop(server);
    until_client_idle(&client).await;
}
