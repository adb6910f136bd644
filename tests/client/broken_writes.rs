//! Connections that cannot be written to any more, and what the server had sent before.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use rpc_codec::GoAwayReason;
use rpc_core::CallId;
use sluicegate::{
    CallError, Client, Executed,
    client::{ClientBuilder, LostCause},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    sync::mpsc::{self, UnboundedReceiver},
    time::{Instant, Sleep, sleep},
};

use crate::support::{
    RawServer, method,
    raw::response,
    scripted::{Calling, first_call},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);

/// What a transport does, a write to which has failed, when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It finds what has come a moment later, as a socket whose readiness is stale.
    FindsItLater,
    /// It finds nothing, and no end either.
    FindsNothing,
}

/// A transport that is asked for what it has a moment too early.
struct Stale {
    io: DuplexStream,
    then: Then,
    broken: bool,
    later: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Stale {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.broken && self.then == Then::FindsNothing {
            return Poll::Pending;
        }
        if let Some(later) = &mut self.later {
            std::task::ready!(later.as_mut().poll(cx));
            self.later = None;
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stale {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        if matches!(written, Poll::Ready(Err(_))) {
            self.broken = true;
            self.later = Some(Box::pin(sleep(5 * MS)));
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

fn stale(then: Then) -> (ClientBuilder, UnboundedReceiver<RawServer>) {
    let (send, servers) = mpsc::unbounded_channel();
    let builder = Client::with_connector("a server that leaves", move || {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let _ = send.send(RawServer::new(theirs));
        async move { Ok(Stale { io: ours, then, broken: false, later: None }) }
    });
    (builder, servers)
}

/// Two calls are out, to a server that has sent `farewell` and gone; a third breaks the connection when it is written.
async fn broken(
    then: Then,
    farewell: impl FnOnce([CallId; 2]) -> Vec<u8>,
) -> (Client, UnboundedReceiver<RawServer>, [Calling; 3]) {
    let (builder, mut servers) = stale(then);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 64).await;
    let second = tokio::spawn(client.call(method::GATE, (2_u64,)));
    let farewell = farewell([id, server.request().await.0]);
    sleep(MS).await;
    server.peer.send(&farewell).await;
    drop(server);
    // It is in the queue before the task has read the farewell, and so leaves, or tries to, before that.
    let mut third = client.call::<_, u64>(method::GATE, (3_u64,));
    assert!(futures::poll!(&mut third).is_pending());
    (client, servers, [first, second, tokio::spawn(third)])
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_found_a_moment_after_a_write_has_failed_reach_their_callers() {
    let (client, _servers, [first, second, third]) =
        broken(Then::FindsItLater, |[first, second]| [response(first, &7_u64), response(second, &8_u64)].concat())
            .await;
    assert_eq!(within(first).await.unwrap().unwrap(), 7);
    assert_eq!(within(second).await.unwrap().unwrap(), 8);
    let error = within(third).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Lost { executed: Executed::Never, .. }), "{error:?}");
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_farewell_that_is_found_a_moment_after_a_write_has_failed_is_believed() {
    let (client, _servers, [first, second, third]) = broken(Then::FindsItLater, |[first, _]| {
        let mut out = response(first, &7_u64);
        rpc_codec::encode_go_away(&mut out, first, GoAwayReason::Drain, "moving house");
        out
    })
    .await;
    assert_eq!(within(first).await.unwrap().unwrap(), 7);
    for above in [second, third] {
        let error = within(above).await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::GoingAway { .. }), "{error:?}");
        assert_eq!(error.executed(), Executed::Never);
    }
    assert_eq!(client.snapshot().lost_connections, 0, "it had said that it drains");
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_can_neither_be_written_nor_has_an_end_lasts_for_a_second_and_takes_no_more_calls() {
    let began = Instant::now();
    let (client, mut servers, [first, second, third]) = broken(Then::FindsNothing, |_| Vec::new()).await;
    let hurried = tokio::spawn(client.call::<_, u64>(method::GATE, (4_u64,)).timeout(500 * MS));
    sleep(100 * MS).await;
    // Who comes now waits for the next connection.
    let next = tokio::spawn(client.call::<_, u64>(method::GATE, (5_u64,)).wait_for_ready(true));
    let error = within(hurried).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { .. }), "{error:?}");
    for (call, executed) in [(first, Executed::Maybe), (second, Executed::Maybe), (third, Executed::Never)] {
        let error = within(call).await.unwrap().unwrap_err();
        let CallError::Lost { executed: told, source: LostCause::Io(_), .. } = error else { panic!("{error:?}") };
        assert_eq!(told, executed);
    }
    assert!(began.elapsed() < 1_100 * MS, "{:?}", began.elapsed());
    let mut server = within(servers.recv()).await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    server.reply(id, 9_u64).await;
    assert_eq!(within(next).await.unwrap().unwrap(), 9);
    drop(server);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_deadline_passes_while_the_end_is_waited_for_is_told_then() {
    let (builder, mut servers) = stale(Then::FindsNothing);
    let client = builder.build();
    let calling = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)).timeout(300 * MS));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    server.request().await;
    drop(server);
    let mut breaking = client.call::<_, u64>(method::GATE, (2_u64,));
    assert!(futures::poll!(&mut breaking).is_pending());
    let began = Instant::now();
    let error = within(calling).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { executed: Executed::Maybe, .. }), "{error:?}");
    assert!(began.elapsed() <= 301 * MS, "{:?}", began.elapsed());
    assert!(within(breaking).await.is_err());
    until_client_idle(&client).await;
}
