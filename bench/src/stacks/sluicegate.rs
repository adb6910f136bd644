//! Sluicegate as its users run it: structs in bincode, every limit configured and none hit.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluicegate::limit::Rate;
use sluicegate::{Bytes, Client, Server};

use crate::BoxError;
use crate::harness::{self, Caller, LoadJob, Measured, ServeJob};
use crate::stacks::Stack;

/// Structs, the payload as serde bytes.
pub(crate) const STRUCTS: Stack = Stack {
    name: "sluicegate",
    about: "structs through bincode, payload as bytes, all limits on",
    serve: |job| Box::pin(serve(job)),
    load: |job| {
        Box::pin(load(job, |client, job| Structs {
            client,
            message: Message { id: 0, name: job.workload.name_field(), payload: job.workload.payload_field() },
        }))
    },
};

/// Structs, the payload as a plain `Vec<u8>`, element by element.
pub(crate) const VEC: Stack = Stack {
    name: "sluicegate-vec",
    about: "the same with a plain Vec<u8> as payload",
    serve: |job| Box::pin(serve(job)),
    load: |job| {
        Box::pin(load(job, |client, job| Plain {
            client,
            message: PlainMessage { id: 0, name: job.workload.name_field(), payload: job.workload.payload_field() },
        }))
    },
};

/// A method that takes and returns bytes untouched.
pub(crate) const BYTES: Stack = Stack {
    name: "sluicegate-bytes",
    about: "the same message as bytes that no codec touches",
    serve: |job| Box::pin(serve(job)),
    load: |job| Box::pin(load(job, |client, job| Untouched { client, message: job.workload.plain_message() })),
};

#[derive(Debug, Default, Serialize, Deserialize)]
struct Message {
    id: u64,
    name: String,
    #[serde(with = "sluicegate::bytes")]
    payload: Vec<u8>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct PlainMessage {
    id: u64,
    name: String,
    payload: Vec<u8>,
}

#[sluicegate::service]
trait Echo {
    async fn structs(&self, message: Message) -> Message;
    async fn plain(&self, message: PlainMessage) -> PlainMessage;
    async fn bytes(&self, message: Bytes) -> Bytes;
}

struct Echoing;

impl Echo for Echoing {
    async fn structs(&self, message: Message) -> Message {
        message
    }

    async fn plain(&self, message: PlainMessage) -> PlainMessage {
        message
    }

    async fn bytes(&self, message: Bytes) -> Bytes {
        message
    }
}

/// Every limit is set, far above what is reached.
async fn serve(job: ServeJob) -> Result<(), BoxError> {
    let rate = Rate::per_second(100e6).burst(1_000_000);
    let server = Server::builder()
        .service(EchoServer::new(Echoing))
        .max_concurrent_calls(100_000)
        .max_concurrent_calls_per_connection(10_000)
        .rate(rate)
        .rate_per_connection(rate)
        .build()?;
    let bound = server.listen(harness::listen(&job).await?)?;
    bound.serve().await;
    Ok(())
}

async fn load<C: Caller>(job: LoadJob, caller: impl Fn(EchoClient, &LoadJob) -> C) -> Result<Measured, BoxError> {
    let mut callers = Vec::new();
    for _ in 0..job.workload.connections {
        let client = connect(job.addr);
        callers.extend((0..job.workload.in_flight).map(|_| caller(client.clone(), &job)));
    }
    harness::call_in_loops(&job, callers).await
}

fn connect(addr: SocketAddr) -> EchoClient {
    Client::builder(addr.to_string()).timeout(Duration::from_secs(10)).build().service()
}

struct Structs {
    client: EchoClient,
    message: Message,
}

impl Caller for Structs {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        let mut message = std::mem::take(&mut self.message);
        let payload_len = message.payload.len();
        message.id = id;
        // The answer is the next request: to build one is not the framework's work.
        self.message = self.client.structs(message).await?;
        check(self.message.id == id && self.message.payload.len() == payload_len)
    }
}

struct Plain {
    client: EchoClient,
    message: PlainMessage,
}

impl Caller for Plain {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        let mut message = std::mem::take(&mut self.message);
        let payload_len = message.payload.len();
        message.id = id;
        // The answer is the next request: to build one is not the framework's work.
        self.message = self.client.plain(message).await?;
        check(self.message.id == id && self.message.payload.len() == payload_len)
    }
}

struct Untouched {
    client: EchoClient,
    message: Vec<u8>,
}

impl Caller for Untouched {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        self.message[..8].copy_from_slice(&id.to_le_bytes());
        let answer = self.client.bytes(Bytes::copy_from_slice(&self.message)).await?;
        check(answer.len() == self.message.len() && answer[..8] == self.message[..8])
    }
}

fn check(right: bool) -> Result<(), BoxError> {
    if right { Ok(()) } else { Err("the answer is not the request".into()) }
}
