//! tarpc under overload, with what it has against it: a limit of requests on a connection.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bench_kit::overload::{self, Caller, Outcome, Settings, Work};
use bench_kit::{BoxError, harness};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tarpc::client::RpcError;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context, serde_transport};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const STACK: overload::Stack = overload::Stack {
    name: "tarpc",
    serve: |addr, settings| Box::pin(serve(addr, settings)),
    offer: |addr, plan| Box::pin(overload::generate(addr, plan, connect)),
};

#[derive(Debug, Deserialize, Serialize)]
struct Payload(#[serde(with = "serde_bytes")] Vec<u8>);

#[tarpc::service]
trait Desk {
    async fn work(spin_us: u32, wait_us: u32, payload: Payload) -> Payload;
}

#[derive(Clone)]
struct Working;

impl Desk for Working {
    async fn work(self, _: context::Context, spin_us: u32, wait_us: u32, payload: Payload) -> Payload {
        Work { spin_us, wait_us }.run().await;
        payload
    }
}

async fn serve(addr: SocketAddr, settings: Settings) -> Result<(), BoxError> {
    let listener = TcpListener::bind(addr).await?;
    harness::announce(listener.local_addr()?)?;
    let limit = settings.limit_per_connection.map_or(usize::MAX, |limit| limit as usize);
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let channel = BaseChannel::with_defaults(serde_transport::Transport::from((socket, Bincode::default())));
        let calls = channel.max_concurrent_requests(limit).execute(Working.serve());
        tokio::spawn(calls.for_each(|call| async {
            tokio::spawn(call);
        }));
    }
}

async fn connect(addr: SocketAddr) -> Result<Calling, BoxError> {
    let socket = TcpStream::connect(addr).await?;
    socket.set_nodelay(true)?;
    let transport = serde_transport::Transport::from((socket, Bincode::default()));
    // As many as the others may have under way; by default a caller would have to wait.
    let mut config = client::Config::default();
    config.max_in_flight_requests = 100_000;
    config.pending_request_buffer = 100_000;
    Ok(Calling(DeskClient::new(config, transport).spawn()))
}

#[derive(Clone)]
struct Calling(DeskClient);

impl Caller for Calling {
    async fn call(&self, work: Work, _priority: u8, left: Duration) -> Outcome {
        let mut context = context::current();
        context.deadline = Instant::now() + left;
        let payload = Payload(vec![7; overload::PAYLOAD_LEN]);
        match self.0.work(context, work.spin_us, work.wait_us, payload).await {
            Ok(_) => Outcome::Served,
            Err(RpcError::DeadlineExceeded) => Outcome::Expired,
            // It has no code of its own for this.
            Err(RpcError::Server(error)) if error.detail.contains("throttled") => {
                Outcome::Refused("THROTTLED".into())
            }
            Err(RpcError::Server(error)) => Outcome::Failed(error.to_string()),
            Err(other) => Outcome::Failed(other.to_string()),
        }
    }
}
