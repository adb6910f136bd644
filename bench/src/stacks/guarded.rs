//! Sluicegate under overload: a service whose calls say what they cost, behind the limits it is told.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{self, Admitted, Caller, Outcome, Settings, Work};
use serde::{Deserialize, Serialize};
use sluicegate::limit::Rate;
use sluicegate::server::{Adaptive, Listener, WaitQueue};
use sluicegate::{CallError, Client, Executed, Server, Status, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use crate::raw;

/// As its users run it.
pub(crate) const STACK: overload::Stack = overload::Stack {
    name: "sluicegate",
    serve: |addr, settings| Box::pin(serve(addr, settings)),
    offer: |addr, plan| Box::pin(overload::generate(addr, plan, async |addr| Ok(connect(addr)))),
};

/// The same server, called by a client of frames that takes no advice.
pub(crate) const RAW: overload::Stack = overload::Stack {
    name: "sluicegate-raw",
    serve: |addr, settings| Box::pin(serve(addr, settings)),
    offer: |addr, plan| Box::pin(async move { raw::generator::generate(addr, &plan) }),
};

#[derive(Debug, Deserialize, Serialize)]
struct Payload(#[serde(with = "sluicegate::bytes")] Vec<u8>);

#[sluicegate::service]
trait Desk {
    async fn work(&self, spin_us: u32, wait_us: u32, payload: Payload) -> Payload;
}

struct Working;

impl Desk for Working {
    async fn work(&self, spin_us: u32, wait_us: u32, payload: Payload) -> Payload {
        Work { spin_us, wait_us }.run().await;
        payload
    }
}

async fn serve(addr: SocketAddr, settings: Settings) -> Result<(), BoxError> {
    let mut server = Server::builder().service(DeskServer::new(Working)).shed_by_priority(settings.shed_by_priority);
    if let Some(limit) = settings.limit {
        server = server.max_concurrent_calls(limit);
        if settings.adaptive {
            server = server.adaptive_limit(Adaptive::gradient2().floor(1).ceiling(limit));
        }
    }
    // What one connection has in flight is bounded unless it is said otherwise.
    server = server.max_concurrent_calls_per_connection(settings.limit_per_connection.unwrap_or(1_000_000));
    if settings.queue > 0 {
        let max_wait = Duration::from_micros(settings.max_wait_us);
        server = server.wait_queue(WaitQueue::of(settings.queue).max_wait(max_wait));
    }
    if let Some(rate) = settings.rate {
        server = server.rate(Rate::per_second(rate));
    }
    if settings.write_timeout_us > 0 {
        server = server.write_timeout(Duration::from_micros(settings.write_timeout_us));
    }
    let (server, listener) = (server.build()?, TcpListener::bind(addr).await?);
    let (handle, writes) = (server.handle(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&writes);
    overload::tell(move || {
        let snapshot = handle.snapshot();
        let refused = snapshot.refused.values().sum();
        Admitted { acquired: snapshot.calls.acquired, refused, writes: counted.load(Ordering::Relaxed) }
    });
    bench_kit::harness::announce(listener.local_addr()?)?;
    server.serve_with(Counting { listener, writes }).await;
    Ok(())
}

/// Counts how often its connections are written to: it has no other way to be seen from outside.
struct Counting {
    listener: TcpListener,
    writes: Arc<AtomicU64>,
}

impl Listener for Counting {
    type Transport = Counted;

    async fn accept(&mut self) -> io::Result<(Counted, Option<SocketAddr>)> {
        let (socket, peer) = Listener::accept(&mut self.listener).await?;
        Ok((Counted { socket, writes: Arc::clone(&self.writes) }, peer))
    }
}

struct Counted {
    socket: TcpStream,
    writes: Arc<AtomicU64>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

fn connect(addr: SocketAddr) -> Calling {
    Calling(Client::builder(addr).build().service())
}

#[derive(Clone)]
struct Calling(DeskClient);

impl Caller for Calling {
    async fn call(&self, work: Work, priority: u8, left: Duration) -> Outcome {
        let payload = Payload(vec![7; overload::PAYLOAD_LEN]);
        let call = self.0.work(work.spin_us, work.wait_us, payload);
        match call.priority(priority).timeout(left).await {
            Ok(_) => Outcome::Served,
            Err(CallError::Status(status)) => told(&status),
            Err(CallError::DeadlineExceeded { executed: Executed::Never, .. }) => Outcome::HeldBack,
            Err(CallError::DeadlineExceeded { .. }) => Outcome::Expired,
            Err(other) => Outcome::Failed(other.to_string()),
        }
    }
}

/// What the server says of a call that it did not serve. A refusal that is not sure to be one would be none.
fn told(status: &Status) -> Outcome {
    match (status.code(), status.executed(), status.error_info()) {
        (StatusCode::DeadlineExceeded, Executed::Never, _) => Outcome::NotBegun,
        (StatusCode::DeadlineExceeded, _, _) => Outcome::Expired,
        (_, Executed::Never, Some(info)) => Outcome::Refused(info.reason.clone()),
        _ => Outcome::Failed(status.to_string()),
    }
}
