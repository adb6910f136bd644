//! What a connection was worth, and how soon the client tries the next one.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use rpc_codec::GoAwayReason;
use rpc_core::CallId;
use sluicegate::{
    CallError, Client, Executed,
    client::{Call, LostCause},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep},
};

use crate::support::{
    RawServer, method,
    scripted::{Calling, first_call, scripted},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
/// So long that nobody who waits for a part of it comes back in a test.
const FOR_EVER: Duration = Duration::from_secs(10_000 * 3_600);

fn call(client: &Client) -> Call<(u64,), u64> {
    client.call(method::GATE, (1_u64,))
}

/// Calls again when it is woken, then and there.
struct Again {
    call: Mutex<Call<(u64,), u64>>,
}

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        let mut call = self.call.lock().unwrap();
        assert!(Pin::new(&mut *call).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}

#[tokio::test(start_paused = true)]
async fn who_calls_again_while_the_connection_ends_waits_as_everybody_else_does() {
    for proved in [true, false] {
        let (builder, mut servers) = scripted(64 * 1024);
        let client = builder.backoff(FOR_EVER, FOR_EVER).build();
        let (first, mut server, id) = first_call(&client, &mut servers, 64).await;
        if proved {
            server.reply(id, 1_u64).await;
            within(first).await.unwrap().unwrap();
        } else {
            first.abort();
        }
        let again = Arc::new(Again { call: Mutex::new(call(&client)) });
        let mut out = call(&client);
        assert!(Pin::new(&mut out).poll(&mut Context::from_waker(&Arc::clone(&again).into())).is_pending());
        sleep(MS).await;
        drop(server);
        sleep(1_000 * MS).await;
        let error = within(out).await.unwrap_err();
        assert!(matches!(error, CallError::Lost { source: LostCause::ServerClosed, .. }), "{error:?}");
        assert!(servers.try_recv().is_err(), "it connected at once");
        let mut again = Arc::into_inner(again).unwrap().call.into_inner().unwrap();
        if proved {
            // It waits for the next attempt.
            assert!(futures::poll!(&mut again).is_pending());
            drop(again);
        } else {
            let error = within(again).await.unwrap_err();
            assert!(matches!(error, CallError::Connect { .. }) && error.retry_delay().is_some(), "{error:?}");
        }
        client.close();
        until_client_idle(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_on_many_threads_that_try_again_at_once_bring_nobody_back_sooner() {
    const CALLERS: usize = 200;
    for _ in 0..5 {
        let (builder, mut servers) = scripted(64 * 1024);
        let client = builder.backoff(FOR_EVER, FOR_EVER).build();
        let (first, mut server, id) = first_call(&client, &mut servers, 1_000).await;
        server.reply(id, 1_u64).await;
        within(first).await.unwrap().unwrap();
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move {
                    loop {
                        match call(&client).await {
                            Err(CallError::Lost { .. }) => {}
                            ended => break ended,
                        }
                    }
                })
            })
            .collect();
        for _ in 0..CALLERS {
            server.request().await;
        }
        drop(server);
        within(async {
            while client.snapshot().waiting_for_connection < CALLERS as u64 {
                sleep(MS).await;
            }
        })
        .await;
        assert!(servers.try_recv().is_err(), "somebody connected at once");
        client.close();
        for caller in callers {
            assert!(matches!(within(caller).await.unwrap(), Err(CallError::Closed)));
        }
        until_client_idle(&client).await;
    }
}

/// Serves each connection to its end: it greets, takes a request, and goes away for `reason`. `stays` if it leaves it to
/// the client to close.
async fn go_away_from_all(
    mut servers: UnboundedReceiver<RawServer>,
    reason: GoAwayReason,
    stays: bool,
) -> (UnboundedReceiver<RawServer>, usize) {
    let (mut connections, mut kept) = (0, Vec::new());
    let over = Instant::now() + 30_000 * MS;
    while let Ok(Some(mut server)) = tokio::time::timeout_at(over, servers.recv()).await {
        connections += 1;
        server.shake_hands(64).await;
        server.request().await;
        server.go_away(CallId::CONNECTION, reason, "not here").await;
        if stays {
            kept.push(server);
        }
    }
    (servers, connections)
}

#[tokio::test(start_paused = true)]
async fn servers_that_greet_and_go_away_are_not_called_in_a_tight_loop() {
    for reason in [GoAwayReason::Drain, GoAwayReason::Other(77)] {
        for (waits, stays) in [(false, true), (false, false), (true, true)] {
            let (builder, servers) = scripted(64 * 1024);
            let client = builder.wait_for_ready(waits).build();
            let began = Instant::now();
            let going_away = tokio::spawn(go_away_from_all(servers, reason, stays));
            let mut told_when = 0;
            while began.elapsed() < 30_000 * MS {
                let asked = Instant::now();
                let called = call(&client).timeout(began + 30_000 * MS - asked);
                let error = called.await.unwrap_err();
                assert_eq!(error.executed(), Executed::Never, "{error:?}");
                if let CallError::Connect { ref source, .. } = error {
                    assert!(source.to_string().contains("not here"), "{error:?}");
                    assert!(error.retry_delay().is_some_and(|delay| !delay.is_zero()), "{error:?}");
                    assert_eq!(asked.elapsed(), Duration::ZERO, "it failed slowly");
                    told_when += 1;
                }
                sleep(5 * MS).await;
            }
            let (mut servers, connections) = going_away.await.unwrap();
            assert!((4..=8).contains(&connections), "{connections} connections, {reason:?}, {waits}, {stays}");
            assert!(waits || told_when > 1_000, "{told_when} calls failed fast");
            // A server that answers is found.
            let answered = tokio::spawn(call(&client).wait_for_ready(true));
            let mut server = servers.recv().await.unwrap();
            server.shake_hands(64).await;
            let (id, _) = server.request().await;
            server.reply(id, 7_u64).await;
            assert_eq!(within(answered).await.unwrap().unwrap(), 7);
            drop(server);
            until_client_idle(&client).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_third_call_behind_two_servers_that_drained_fails_at_once() {
    let (builder, servers) = scripted(64 * 1024);
    let client = builder.build();
    let draining = tokio::spawn(go_away_from_all(servers, GoAwayReason::Drain, false));
    for _ in 0..2 {
        let error = within(call(&client)).await.unwrap_err();
        assert!(matches!(error, CallError::GoingAway { .. }), "{error:?}");
        sleep(900 * MS).await;
    }
    let asked = Instant::now();
    let error = within(call(&client)).await.unwrap_err();
    assert!(matches!(error, CallError::Connect { .. }) && error.retry_delay().is_some(), "{error:?}");
    assert_eq!(asked.elapsed(), Duration::ZERO);
    draining.abort();
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_makes_good_for_a_server_that_drained_before_it_answered() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.backoff(FOR_EVER, FOR_EVER).build();
    let mut kept = Vec::new();
    // Whoever drains without an answer is the first in a row.
    for answers in [false, true, false, true, false, true] {
        let (calling, mut server, id) = within(first_call(&client, &mut servers, 64)).await;
        let last = if answers { id } else { CallId::CONNECTION };
        server.go_away(last, GoAwayReason::Drain, "moving house").await;
        if answers {
            server.reply(id, 7_u64).await;
        }
        assert_eq!(within(calling).await.unwrap().is_ok(), answers);
        kept.push(server);
    }
    until_client_idle(&client).await;
}

/// Servers that drain when they have accepted one call, and answer it when they have been left.
#[tokio::test(start_paused = true)]
async fn servers_that_answer_after_they_were_left_are_no_reason_to_wait() {
    for answers_soon in [true, false] {
        let (builder, mut servers) = scripted(64 * 1024);
        let client = builder.backoff(FOR_EVER, FOR_EVER).build();
        let mut out: VecDeque<(Calling, RawServer, CallId)> = VecDeque::new();
        for _ in 0..6 {
            let (calling, mut server, id) = within(first_call(&client, &mut servers, 64)).await;
            server.go_away(id, GoAwayReason::Drain, "growing old").await;
            sleep(MS).await;
            if answers_soon && let Some((calling, mut server, id)) = out.pop_front() {
                server.reply(id, 7_u64).await;
                assert_eq!(within(calling).await.unwrap().unwrap(), 7);
                drop(server);
            }
            out.push_back((calling, server, id));
        }
        while let Some((calling, mut server, id)) = out.pop_front() {
            server.reply(id, 7_u64).await;
            assert_eq!(within(calling).await.unwrap().unwrap(), 7);
        }
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_after_it_was_left_makes_good_for_one_that_served_nothing() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.backoff(FOR_EVER, FOR_EVER).build();
    let (calling, mut slow, id) = within(first_call(&client, &mut servers, 64)).await;
    slow.go_away(id, GoAwayReason::Drain, "growing old").await;
    sleep(MS).await;
    let drains = async |servers: &mut UnboundedReceiver<RawServer>| {
        let (refused, mut server, _) = within(first_call(&client, servers, 64)).await;
        server.go_away(CallId::CONNECTION, GoAwayReason::Drain, "moving house").await;
        assert!(matches!(within(refused).await.unwrap(), Err(CallError::GoingAway { .. })));
    };
    drains(&mut servers).await;
    slow.reply(id, 7_u64).await;
    assert_eq!(within(calling).await.unwrap().unwrap(), 7);
    drop(slow);
    sleep(MS).await;
    // This is the first in a row again.
    drains(&mut servers).await;
    let (calling, mut server, id) = within(first_call(&client, &mut servers, 64)).await;
    server.reply(id, 7_u64).await;
    assert_eq!(within(calling).await.unwrap().unwrap(), 7);
    drop(server);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn servers_that_accept_a_call_and_leave_without_an_answer_are_not_called_in_a_tight_loop() {
    const CALLERS: usize = 4;
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let over = Instant::now() + 30_000 * MS;
    let leaving = tokio::spawn(async move {
        let mut connections = 0;
        while let Ok(Some(mut server)) = tokio::time::timeout_at(over, servers.recv()).await {
            connections += 1;
            tokio::spawn(async move {
                server.shake_hands(64).await;
                let (id, _) = server.request().await;
                server.go_away(id, GoAwayReason::Drain, "not for long").await;
                // Meanwhile it is left.
                sleep(20 * MS).await;
            });
        }
        connections
    });
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                while Instant::now() < over {
                    call(&client).timeout(over - Instant::now()).await.unwrap_err();
                    sleep(5 * MS).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let connections = leaving.await.unwrap();
    // Each caller may have one that holds its call, and whose worth is not known yet.
    assert!((4..=CALLERS + 8).contains(&connections), "{connections} connections");
    client.close();
    until_client_idle(&client).await;
}

/// A transport that panics when it reads for the second time.
struct Fragile {
    io: DuplexStream,
    has_read: bool,
}

impl AsyncRead for Fragile {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if polled.is_ready() && std::mem::replace(&mut self.has_read, true) {
            panic!("this transport is broken");
        }
        polled
    }
}

impl AsyncWrite for Fragile {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_panics_behind_the_greeting_is_not_connected_to_in_a_tight_loop() {
    let (send, mut servers) = tokio::sync::mpsc::unbounded_channel();
    let client = Client::with_connector("a broken library", move || {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let _ = send.send(RawServer::new(theirs));
        async { Ok(Fragile { io: ours, has_read: false }) }
    });
    let client = client.build();
    let serving = tokio::spawn(async move {
        let mut connections = 0;
        while let Some(mut server) = servers.recv().await {
            connections += 1;
            server.shake_hands(64).await;
            let (id, _) = server.request().await;
            server.reply(id, 7_u64).await;
        }
        connections
    });
    let mut told_when = 0;
    for _ in 0..100 {
        let error = within(call(&client)).await.unwrap_err();
        told_when += usize::from(error.retry_delay().is_some());
    }
    until_client_idle(&client).await;
    drop(client);
    assert_eq!((serving.await.unwrap(), told_when), (1, 99));
}
