//! A call fails fast or waits for a server, as it was told.

use std::{io, time::Duration};

use futures::poll;
use rpc_codec::GoAwayReason;
use rpc_core::CallId;
use sluicegate::{CallError, Client, Executed, StatusCode};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::support::{
    self, Got, Harness, method,
    scripted::{first_call, scripted, scripted_with},
    shims::Manner,
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_outlasts_failed_attempts_and_one_that_does_not_fails_beside_it() {
    let harness = Harness::new();
    harness.network.set_down(true);
    let client = harness.client_builder().backoff(100 * MS, 1_000 * MS).build();
    let waiting: Vec<_> = (0..100_u64)
        .map(|n| tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 0_u32)).wait_for_ready(true)))
        .collect();
    sleep(20_000 * MS).await;
    let attempts = harness.network.attempts();
    assert!((20..=45).contains(&attempts), "{attempts} attempts in 20 s, whoever waits");
    assert_eq!(client.snapshot().waiting_for_connection, 100);
    for _ in 0..100 {
        let began = Instant::now();
        let error = client.call::<_, u64>(method::NONCE, (7_u64, 0_u32)).await.unwrap_err();
        assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
        assert!(began.elapsed() <= 2 * MS, "it waited with the others: {:?}", began.elapsed());
        sleep(10 * MS).await;
    }
    harness.network.set_down(false);
    for (n, call) in (0..).zip(waiting) {
        assert_eq!(within(call).await.unwrap().unwrap(), n);
    }
    assert_eq!((client.snapshot().connects, harness.probe.finished()), (1, 100));
    until_client_idle(&client).await;
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_can_wait_by_default_and_a_call_can_choose_otherwise() {
    let harness = Harness::new();
    harness.network.set_down(true);
    let client = harness.client_builder().wait_for_ready(true).build();
    let error = client.call::<_, u64>(method::NONCE, (1_u64, 0_u32)).wait_for_ready(false).await.unwrap_err();
    assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
    let began = Instant::now();
    let error = client.call::<_, u64>(method::NONCE, (1_u64, 0_u32)).timeout(30_000 * MS).await.unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { executed: Executed::Never, .. }), "{error:?}");
    assert!(began.elapsed() >= 30_000 * MS && began.elapsed() <= 30_002 * MS, "{:?}", began.elapsed());
    until_client_idle_or_connecting(&client).await;
}

/// Nobody waits any more; an attempt that was begun may still be due.
async fn until_client_idle_or_connecting(client: &Client) {
    sleep(11_000 * MS).await;
    until_client_idle(client).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_can_be_dropped_at_any_time_and_takes_nothing_with_it() {
    let harness = Harness::new();
    harness.network.set_down(true);
    let client = harness.client_builder().backoff(10 * MS, 50 * MS).build();
    for n in 0..200_u64 {
        let mut dropped = client.call::<_, u64>(method::NONCE, (n, 0_u32)).wait_for_ready(true);
        let kept = tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 0_u32)).wait_for_ready(true));
        assert!(poll!(&mut dropped).is_pending());
        sleep((n % 60) as u32 * MS).await;
        harness.network.set_down(n % 2 == 0);
        drop(dropped);
        harness.network.set_down(false);
        assert_eq!(within(kept).await.unwrap().unwrap(), n);
        harness.network.cut();
        harness.network.set_down(true);
        sleep(MS).await;
    }
    until_client_idle(&client).await;
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_is_not_sent_to_a_server_that_turns_it_away_and_does_not_hurry() {
    let harness = Harness::with(|builder| builder.max_connections(1));
    let first = harness.client();
    first.call::<_, String>(method::ECHO, ("hi".to_owned(),)).await.unwrap();
    let second = harness.client_builder().wait_for_ready(true).build();
    let waiting = tokio::spawn(second.call::<_, u64>(method::NONCE, (7_u64, 0_u32)));
    sleep(60_000 * MS).await;
    assert!(!waiting.is_finished());
    let attempts = harness.network.attempts();
    assert!(attempts <= 14, "{attempts} attempts in a minute");
    drop(first);
    assert_eq!(within(waiting).await.unwrap().unwrap(), 7);
    assert_eq!(harness.probe.finished(), 2, "it was executed once");
    until_client_idle(&second).await;
    drop(second);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_greets_and_leaves_is_not_called_in_a_loop() {
    // Both come in one read: between them the call would be sent, and would fail as any other.
    let (builder, mut servers) = scripted_with(Manner::Plain, 64 * 1024);
    let client = builder.backoff(100 * MS, 1_000 * MS).wait_for_ready(true).build();
    let waiting = tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,)));
    let began = Instant::now();
    let mut connections = 0;
    while began.elapsed() < 20_000 * MS {
        let mut server = servers.recv().await.unwrap();
        connections += 1;
        let mut out = support::raw::hello();
        rpc_codec::encode_go_away(&mut out, CallId::CONNECTION, GoAwayReason::Drain, "not now");
        server.peer.send(&out).await;
        let frames = server.peer.rest().await;
        assert!(!frames.iter().any(|frame| matches!(frame, Got::Request { .. })), "{frames:?}");
    }
    assert!((15..=50).contains(&connections), "{connections} connections in 20 s");
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    server.reply(id, 7_u64).await;
    assert_eq!(waiting.await.unwrap().unwrap(), 7);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_ends_with_its_client_and_lives_through_the_loss_of_a_connection_it_was_not_sent_on() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.backoff(10 * MS, 10 * MS).wait_for_ready(true).build();
    let (out, server, _) = first_call(&client, &mut servers, 1).await;
    let waiting = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    sleep(MS).await;
    assert_eq!(client.snapshot().waiting_for_room, 1);
    drop(server);
    assert_eq!(out.await.unwrap().unwrap_err().code(), StatusCode::Unavailable, "it may have been executed");
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(1).await;
    let (id, _) = server.request().await;
    server.reply(id, 2_u64).await;
    assert_eq!(waiting.await.unwrap().unwrap(), 2);
    drop(server);
    sleep(MS).await;
    let waiting = tokio::spawn(client.call::<_, u64>(method::GATE, (3_u64,)));
    sleep(MS).await;
    client.close();
    assert!(matches!(within(waiting).await.unwrap(), Err(CallError::Closed)));
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_nobody_wants_any_more_ends_with_the_client() {
    for close in [true, false] {
        let (send, mut ends) = tokio::sync::mpsc::unbounded_channel::<()>();
        let client = Client::with_connector("a black hole", move || {
            let send = send.clone();
            async move {
                let _alive = send;
                std::future::pending::<io::Result<tokio::io::DuplexStream>>().await
            }
        });
        let client = client.build();
        let calls: Vec<_> = (0..10_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
        sleep(MS).await;
        assert_eq!((client.snapshot().connecting, client.snapshot().waiting_for_connection), (1, 10));
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        sleep(MS).await;
        assert_eq!((client.snapshot().connecting, client.snapshot().waiting_for_connection), (1, 0));
        if close {
            client.close();
            sleep(MS).await;
            assert!(client.snapshot().is_idle(), "{:?}", client.snapshot());
        }
        drop(client);
        let began = Instant::now();
        assert!(ends.recv().await.is_none());
        assert!(began.elapsed() <= 100 * MS, "the task lived on for {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_connects_any_more_for_a_client_that_was_closed_or_dropped_while_its_server_is_down() {
    for closed in [true, false] {
        let harness = Harness::new();
        harness.network.set_down(true);
        let client = harness.client_builder().wait_for_ready(true).backoff(10 * MS, 20 * MS).build();
        let waits = tokio::spawn(client.call::<_, String>(method::ECHO, ("hi",)).into_future());
        harness.until("it has tried again and again", |harness| harness.network.attempts() > 5).await;
        if closed {
            client.close();
            assert!(matches!(within(waits).await.unwrap(), Err(CallError::Closed)));
        } else {
            waits.abort();
            assert!(waits.await.unwrap_err().is_cancelled());
        }
        let client = closed.then_some(client);
        let attempts = harness.network.attempts();
        sleep(60_000 * MS).await;
        assert_eq!(harness.network.attempts(), attempts, "closed: {closed}");
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "closed: {closed}");
        drop(client);
        harness.assert_idle().await;
    }
}
