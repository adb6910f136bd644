//! tonic under overload, with what its users have against it: tower's limit of calls on a connection, and
//! load shedding in front of that.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use bench_kit::harness;
use bench_kit::overload::{self, Caller, Outcome, Settings, Work};
use bench_kit::BoxError;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};

use crate::generated_desk::desk_client::DeskClient;
use crate::generated_desk::desk_server::{Desk, DeskServer};

pub(crate) const STACK: overload::Stack = overload::Stack {
    name: "tonic",
    serve: |addr, settings| Box::pin(serve(addr, settings)),
    offer: |addr, plan| Box::pin(overload::generate(addr, plan, connect)),
};

/// What `protoc` would make of the message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Call {
    #[prost(uint32, tag = "1")]
    pub spin_us: u32,
    #[prost(uint32, tag = "2")]
    pub wait_us: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
}

struct Working;

#[tonic::async_trait]
impl Desk for Working {
    async fn work(&self, request: Request<Call>) -> Result<Response<Call>, Status> {
        let call = request.into_inner();
        Work { spin_us: call.spin_us, wait_us: call.wait_us }.run().await;
        Ok(Response::new(call))
    }
}

async fn serve(addr: SocketAddr, settings: Settings) -> Result<(), BoxError> {
    let listener = TcpListener::bind(addr).await?;
    harness::announce(listener.local_addr()?)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    // Callers give up by the thousand under overload; by default HTTP/2 takes that for an attack, and ends connections.
    // And a connection has two hundred calls by default, for the rest of which its client would wait.
    let many = u32::try_from(MANY).ok();
    let mut server = Server::builder().http2_max_pending_accept_reset_streams(Some(MANY)).max_concurrent_streams(many);
    if let Some(limit) = settings.limit_per_connection {
        server = server.concurrency_limit_per_connection(limit as usize).load_shed(true);
    }
    server.add_service(DeskServer::new(Working)).serve_with_incoming(incoming).await?;
    Ok(())
}

const MANY: usize = 100_000;

async fn connect(addr: SocketAddr) -> Result<Calling, BoxError> {
    let channel = Endpoint::from_shared(format!("http://{addr}"))?.tcp_nodelay(true).connect().await?;
    Ok(Calling(DeskClient::new(channel)))
}

#[derive(Clone)]
struct Calling(DeskClient<Channel>);

impl Caller for Calling {
    async fn call(&self, work: Work, _priority: u8, left: Duration) -> Outcome {
        let Work { spin_us, wait_us } = work;
        let mut request = Request::new(Call { spin_us, wait_us, payload: vec![7; overload::PAYLOAD_LEN] });
        // It tells the server; the client itself goes by the other one.
        request.set_timeout(left);
        let mut client = self.0.clone();
        match tokio::time::timeout(left, client.work(request)).await {
            Err(_elapsed) => Outcome::Expired,
            Ok(Ok(_)) => Outcome::Served,
            Ok(Err(status)) => told(&status),
        }
    }
}

/// What the server said. What the transport made up has a source, and is neither a refusal nor a deadline, whatever its
/// code: HTTP/2 has a connection that "is to be calm" end with that of a refusal. But for the timeout, by which the client
/// goes as well.
fn told(status: &Status) -> Outcome {
    match status.code() {
        Code::Cancelled if status.message() == "Timeout expired" => Outcome::Expired,
        code if status.source().is_some() => Outcome::Failed(format!("{code:?}, the connection")),
        Code::ResourceExhausted => Outcome::Refused("RESOURCE_EXHAUSTED".into()),
        Code::DeadlineExceeded => Outcome::Expired,
        code => Outcome::Failed(format!("{code:?}")),
    }
}
