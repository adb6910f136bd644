//! A client finds out that its server is gone, asks it no more often than it must, and is never cut
//! for asking.

use std::time::Duration;

use sluicegate::{CallError, Client, Executed, StatusCode, client::LostCause};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep},
};

use crate::support::{
    self, Got, Harness, RawServer, method,
    scripted::{first_call, scripted, scripted_with},
    shims::Manner,
    until_client_idle,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A client with 5 s and 2 s, and the server that it has called once and been answered by.
async fn acquainted() -> (Client, UnboundedReceiver<RawServer>, RawServer) {
    // A farewell is written only as far as it can be without waiting.
    let (builder, mut servers) = scripted_with(Manner::Plain, 64 * 1024);
    let client = builder.keepalive_interval(5 * SECOND).keepalive_timeout(2 * SECOND).build();
    let server = call_once(&client, &mut servers).await;
    (client, servers, server)
}

async fn call_once(client: &Client, servers: &mut UnboundedReceiver<RawServer>) -> RawServer {
    let (call, mut server, id) = first_call(client, servers, 64).await;
    server.reply(id, 1_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 1);
    server
}

#[tokio::test(start_paused = true)]
async fn calls_to_a_server_that_vanished_fail_within_interval_and_timeout_and_the_next_connects_anew() {
    let (client, mut servers, mut server) = acquainted().await;
    for round in 1..5 {
        let began = Instant::now();
        let calls: Vec<_> = (0..10_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            let CallError::Lost { executed, source: LostCause::KeepaliveTimeout { silent }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(silent >= 6_500 * MS && silent <= 7_500 * MS, "{silent:?}");
            assert_eq!(executed, Executed::Maybe);
        }
        assert!(began.elapsed() >= 6_500 * MS && began.elapsed() <= 7_500 * MS, "{:?}", began.elapsed());
        let snapshot = client.snapshot();
        assert_eq!(
            (snapshot.keepalive_timeouts, snapshot.lost_connections, snapshot.protocol_errors),
            (round, round, 0)
        );
        assert!(snapshot.is_idle() && !snapshot.connected, "{snapshot:?}");
        // Keepalive goes on after each reconnect.
        server = call_once(&client, &mut servers).await;
    }
    drop(server);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_vanished_while_nobody_called_is_found_out_too() {
    let (client, mut servers, mut server) = acquainted().await;
    let began = Instant::now();
    assert!(matches!(server.peer.next().await, Got::Ping(_)));
    let asked = began.elapsed();
    assert!(asked >= 4_900 * MS && asked <= 5_400 * MS, "{asked:?}");
    let Got::GoAway { message, .. } = server.peer.next().await else { panic!("it left without a word") };
    assert!(message.contains("ping"), "{message}");
    assert!(matches!(server.peer.next().await, Got::End));
    assert!(!client.snapshot().connected);
    drop(call_once(&client, &mut servers).await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_pings_is_waited_for_as_long_as_it_takes() {
    let (client, _servers, mut server) = acquainted().await;
    let call = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    let (id, _) = server.request().await;
    let began = Instant::now();
    let mut pings = 0;
    while began.elapsed() < 3_600 * SECOND {
        let Got::Ping(opaque) = server.peer.next().await else { panic!("something else came") };
        pings += 1;
        sleep(1_500 * MS).await;
        server.peer.send(&support::raw::frame(10, 0, 0, &opaque, &[])).await;
    }
    // One for every interval and the time that the answer takes.
    assert!((500..=560).contains(&pings), "{pings} pings in an hour");
    server.reply(id, 2_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 2);
    assert_eq!(client.snapshot().lost_connections, 0);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn whatever_comes_is_a_sign_of_life() {
    let (client, _servers, mut server) = acquainted().await;
    let call = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    let (id, _) = server.request().await;
    for _ in 0..100 {
        sleep(4 * SECOND).await;
        server.peer.send(&support::raw::frame(0x85, 0, 0, &[], &[])).await;
    }
    assert!(server.peer.is_silent_for(SECOND).await, "it asked");
    server.reply(id, 2_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 2);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_without_keepalive_waits_and_asks_nothing() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.keepalive_interval(None).build();
    let mut server = call_once(&client, &mut servers).await;
    let call = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    let (id, _) = server.request().await;
    sleep(24 * 3_600 * SECOND).await;
    assert!(!call.is_finished());
    server.reply(id, 2_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 2);
    assert!(server.peer.is_silent_for(SECOND).await);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_default_client_and_a_default_server_stay_together_and_handles_do_not_multiply_pings() {
    let harness = Harness::new();
    let client = harness.client();
    let handles: Vec<_> = (0..10).map(|_| client.clone()).collect();
    for handle in &handles {
        handle.call::<_, String>(method::ECHO, ("hi".to_owned(),)).await.unwrap();
    }
    let waiting = tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,)));
    sleep(3_600 * SECOND).await;
    harness.probe.open_gate();
    assert_eq!(waiting.await.unwrap().unwrap(), 7);
    let snapshot = client.snapshot();
    assert_eq!((snapshot.connects, snapshot.lost_connections), (1, 0));
    assert_eq!(harness.snapshot().protocol_errors, 0);
    until_client_idle(&client).await;
    drop((client, handles));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn handles_that_share_a_connection_share_its_pings() {
    let (client, _servers, mut server) = acquainted().await;
    let _handles: Vec<_> = (0..10).map(|_| client.clone()).collect();
    let mut pings = 0;
    let began = Instant::now();
    while began.elapsed() < 100 * SECOND {
        let Got::Ping(opaque) = server.peer.next().await else { panic!("something else came") };
        pings += 1;
        server.peer.send(&support::raw::frame(10, 0, 0, &opaque, &[])).await;
    }
    assert!((19..=21).contains(&pings), "{pings} pings in 100 s");
}

#[tokio::test(start_paused = true)]
async fn keepalive_does_not_turn_a_drain_into_an_error_and_finds_a_server_that_vanished_in_one() {
    for answers in [true, false] {
        let (client, _servers, mut server) = acquainted().await;
        let call = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
        let (id, _) = server.request().await;
        server.go_away(id, rpc_codec::GoAwayReason::Drain, "moving house").await;
        if answers {
            for _ in 0..5 {
                let Got::Ping(opaque) = server.peer.next().await else { panic!("something else came") };
                server.peer.send(&support::raw::frame(10, 0, 0, &opaque, &[])).await;
            }
            server.reply(id, 2_u64).await;
            assert_eq!(call.await.unwrap().unwrap(), 2);
            assert!(matches!(server.peer.next().await, Got::GoAway { .. }));
            assert!(matches!(server.peer.next().await, Got::End));
            assert_eq!(client.snapshot().lost_connections, 0);
        } else {
            let error = call.await.unwrap().unwrap_err();
            assert_eq!(error.code(), StatusCode::Unavailable);
            assert_eq!(client.snapshot().keepalive_timeouts, 1);
        }
        until_client_idle(&client).await;
    }
}
