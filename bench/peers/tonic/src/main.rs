//! tonic with prost, over HTTP/2 without TLS.
//!
//! Windows are those that its users set for large messages; with the defaults of 64 KiB (e) would wait
//! for window updates, and all else is the same.

#![forbid(unsafe_code)]

mod overload;

use std::pin::Pin;
use std::process::ExitCode;

use bench_kit::harness::{self, Caller, Items, LoadJob, Measured, ServeJob};
use bench_kit::workload::{Kind, wait_once};
use bench_kit::{BoxError, Stack, program};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::generated::echo_client::EchoClient;
use crate::generated::echo_server::{Echo, EchoServer};

const STACKS: &[Stack] = &[Stack {
    name: "tonic",
    about: "gRPC, protobuf by prost",
    serve: |job| Box::pin(serve(job)),
    load: |job| Box::pin(load(job)),
}];

const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

fn main() -> ExitCode {
    program::main_with(STACKS, &[overload::STACK])
}

mod generated {
    include!(concat!(env!("OUT_DIR"), "/bench.Echo.rs"));
}

mod generated_desk {
    include!(concat!(env!("OUT_DIR"), "/bench.Desk.rs"));
}

/// What `protoc` would make of the message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
}

/// An item of a stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Item {
    #[prost(bytes = "vec", tag = "1")]
    pub payload: Vec<u8>,
}

struct Echoing {
    waits: bool,
}

#[tonic::async_trait]
impl Echo for Echoing {
    async fn echo(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        wait_once(self.waits).await;
        Ok(Response::new(request.into_inner()))
    }

    type ItemsStream = Pin<Box<dyn Stream<Item = Result<Item, Status>> + Send>>;

    /// Without end; each begins with its id.
    async fn items(&self, request: Request<Message>) -> Result<Response<Self::ItemsStream>, Status> {
        let mut item = request.into_inner().payload;
        Ok(Response::new(Box::pin(tokio_stream::iter(0_u64..).map(move |id| {
            item[..8].copy_from_slice(&id.to_le_bytes());
            Ok(Item { payload: item.clone() })
        }))))
    }
}

async fn serve(job: ServeJob) -> Result<(), BoxError> {
    let incoming = TcpIncoming::from(harness::listen(&job).await?).with_nodelay(Some(true));
    let echoing = Echoing { waits: job.workload.waits_once() };
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(EchoServer::new(echoing))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

async fn load(job: LoadJob) -> Result<Measured, BoxError> {
    if job.workload.kind == Kind::Stream {
        let endpoint = Endpoint::from_shared(format!("http://{}", job.addr))?
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let mut client = EchoClient::new(endpoint.connect().await?);
        let request = Message { id: 0, name: String::new(), payload: job.workload.payload_field() };
        return harness::take_items(&job, Taking(client.items(request).await?.into_inner())).await;
    }
    harness::drive(&job, async || {
        let channel = Endpoint::from_shared(format!("http://{}", job.addr))?
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect()
            .await?;
        let client = EchoClient::new(channel);
        let caller = || Calling {
            client: client.clone(),
            message: Message { id: 0, name: job.workload.name_field(), payload: job.workload.payload_field() },
        };
        Ok((0..job.workload.in_flight).map(|_| caller()).collect())
    })
    .await
}

struct Taking(tonic::Streaming<Item>);

impl Items for Taking {
    async fn next(&mut self) -> Result<u64, BoxError> {
        let item = self.0.message().await?.ok_or("the stream has ended")?;
        let id = item.payload.first_chunk().ok_or("an item without an id")?;
        Ok(u64::from_le_bytes(*id))
    }
}

struct Calling {
    client: EchoClient<Channel>,
    message: Message,
}

impl Caller for Calling {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        let mut message = std::mem::take(&mut self.message);
        let payload_len = message.payload.len();
        message.id = id;
        self.message = self.client.echo(message).await?.into_inner();
        if self.message.id == id && self.message.payload.len() == payload_len {
            Ok(())
        } else {
            Err("the answer is not the request".into())
        }
    }
}
