//! Sluicegate under overload: a service whose calls say what they cost, behind the limits it is told.

use std::net::SocketAddr;
use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{self, Caller, Outcome, Settings, Work};
use serde::{Deserialize, Serialize};
use sluicegate::server::{Adaptive, WaitQueue};
use sluicegate::{CallError, Client, Server, StatusCode};
use tokio::net::TcpListener;

/// As its users run it.
pub(crate) const STACK: overload::Stack = overload::Stack {
    name: "sluicegate",
    serve: |addr, settings| Box::pin(serve(addr, settings)),
    offer: |addr, plan| Box::pin(overload::generate(addr, plan, async |addr| Ok(connect(addr)))),
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
            server = server.adaptive_limit(Adaptive::gradient2().ceiling(limit));
        }
    }
    // What one connection has in flight is bounded unless it is said otherwise.
    server = server.max_concurrent_calls_per_connection(settings.limit_per_connection.unwrap_or(1_000_000));
    if settings.queue > 0 {
        let max_wait = Duration::from_micros(settings.max_wait_us);
        server = server.wait_queue(WaitQueue::of(settings.queue).max_wait(max_wait));
    }
    let listener = TcpListener::bind(addr).await?;
    bench_kit::harness::announce(listener.local_addr()?)?;
    server.build()?.listen(listener)?.serve().await;
    Ok(())
}

fn connect(addr: SocketAddr) -> Calling {
    Calling(Client::builder(addr.to_string()).build().service())
}

#[derive(Clone)]
struct Calling(DeskClient);

impl Caller for Calling {
    async fn call(&self, work: Work, priority: u8, left: Duration) -> Outcome {
        let payload = Payload(vec![7; overload::PAYLOAD_LEN]);
        let call = self.0.work(work.spin_us, work.wait_us, payload);
        match call.priority(priority).timeout(left).await {
            Ok(_) => Outcome::Served,
            Err(CallError::Status(status)) => match status.error_info() {
                _ if status.code() == StatusCode::DeadlineExceeded => Outcome::Expired,
                Some(info) => Outcome::Refused(info.reason.to_string()),
                None => Outcome::Failed(status.to_string()),
            },
            Err(CallError::DeadlineExceeded { .. }) => Outcome::Expired,
            Err(other) => Outcome::Failed(other.to_string()),
        }
    }
}
