//! Sluicegate as its users run it: structs in bincode, every limit configured and none hit.

use std::net::SocketAddr;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use sluicegate::limit::Rate;
use sluicegate::{Bytes, CallError, Client, Server, Status, StatusCode, Stream};

use bench_kit::harness::{self, Caller, Items, LoadJob, Measured, ServeJob};
use bench_kit::workload::{Kind, wait_once};
use bench_kit::{BoxError, Stack};

/// Structs, the payload as serde bytes.
pub(crate) const STRUCTS: Stack = Stack {
    name: "sluicegate",
    about: "structs through bincode, payload as bytes, all limits on",
    serve: |job| Box::pin(serve(job, Limits::On)),
    load: |job| {
        match job.workload.kind {
            Kind::Refused => return Box::pin(load_refused(job)),
            Kind::Stream => return Box::pin(load_items(job)),
            _ => {}
        }
        Box::pin(load(job, Structs::new))
    },
};

/// The same without any limit: what limits cost is the difference.
pub(crate) const OPEN: Stack = Stack {
    name: "sluicegate-open",
    about: "the same with all limits off",
    serve: |job| Box::pin(serve(job, Limits::Off)),
    load: |job| Box::pin(load(job, Structs::new)),
};

/// Structs, the payload as a plain `Vec<u8>`, element by element.
pub(crate) const VEC: Stack = Stack {
    name: "sluicegate-vec",
    about: "the same with a plain Vec<u8> as payload",
    serve: |job| Box::pin(serve(job, Limits::On)),
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
    serve: |job| Box::pin(serve(job, Limits::On)),
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
    async fn stay(&self);
    async fn items(&self, len: u32) -> Result<impl Stream<Item = Result<Bytes, Status>> + Send, Status>;
}

struct Echoing {
    waits: bool,
}

impl Echo for Echoing {
    async fn structs(&self, message: Message) -> Message {
        wait_once(self.waits).await;
        message
    }

    async fn plain(&self, message: PlainMessage) -> PlainMessage {
        wait_once(self.waits).await;
        message
    }

    async fn bytes(&self, message: Bytes) -> Bytes {
        wait_once(self.waits).await;
        message
    }

    /// Without end; each begins with its id.
    async fn items(&self, len: u32) -> Result<impl Stream<Item = Result<Bytes, Status>> + Send, Status> {
        let mut item = vec![7; len as usize];
        Ok(stream::iter(0_u64..).map(move |id| {
            item[..8].copy_from_slice(&id.to_le_bytes());
            Ok(Bytes::copy_from_slice(&item))
        }))
    }

    /// Holds its permit for as long as its caller wants.
    async fn stay(&self) {
        std::future::pending().await
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limits {
    /// Every limit is set, far above what is reached, or to one where calls are to be refused.
    On,
    Off,
}

async fn serve(job: ServeJob, limits: Limits) -> Result<(), BoxError> {
    let server = Server::builder().service(EchoServer::new(Echoing { waits: job.workload.waits_once() }));
    let server = match limits {
        Limits::On => {
            let rate = Rate::per_second(100e6).burst(1_000_000);
            let max_calls = if job.workload.kind == Kind::Refused { 1 } else { 100_000 };
            server
                .max_concurrent_calls(max_calls)
                .max_concurrent_calls_per_connection(10_000)
                .rate(rate)
                .rate_per_connection(rate)
        }
        // What one connection has in flight is always bounded, unless the handler is taken out.
        Limits::Off => server.pipeline(|pipeline, _| {
            pipeline.remove("concurrency");
        }),
    };
    server.build()?.listen(harness::listen(&job).await?)?.serve().await;
    Ok(())
}

async fn load<C: Caller>(job: LoadJob, caller: impl Fn(EchoClient, &LoadJob) -> C) -> Result<Measured, BoxError> {
    harness::drive(&job, async || {
        let client = connect(job.addr);
        Ok((0..job.workload.in_flight).map(|_| caller(client.clone(), &job)).collect())
    })
    .await
}

/// Takes the only permit of the server and keeps it, and has all other calls refused.
async fn load_refused(job: LoadJob) -> Result<Measured, BoxError> {
    let (holder, mut probe) = (connect(job.addr), Refused::new(connect(job.addr), &job));
    let stay = async {
        loop {
            // The permit may be out with a probe, but not for long.
            let ended = holder.stay().timeout(Duration::from_secs(3_600)).await;
            if !ended.as_ref().is_err_and(is_refusal) {
                return Err(format!("the call that was to stay ended with {ended:?}").into());
            }
            tokio::task::yield_now().await;
        }
    };
    let load = async {
        while probe.call(0).await.is_err() {
            tokio::task::yield_now().await;
        }
        load(job.clone(), Refused::new).await
    };
    tokio::select! {
        ended = stay => ended,
        measured = load => measured,
    }
}

async fn load_items(job: LoadJob) -> Result<Measured, BoxError> {
    let client: EchoClient = Client::new(job.addr).service();
    harness::take_items(&job, Taking(client.items(job.workload.payload_len as u32))).await
}

struct Taking(sluicegate::client::ServerStream<(u32,), Bytes, sluicegate::client::Plain>);

impl Items for Taking {
    async fn next(&mut self) -> Result<u64, BoxError> {
        let item = self.0.message().await?.ok_or("the stream has ended")?;
        let id = item.first_chunk().ok_or("an item without an id")?;
        Ok(u64::from_le_bytes(*id))
    }
}

fn is_refusal(error: &CallError) -> bool {
    matches!(error, CallError::Status(status) if status.code() == StatusCode::ResourceExhausted)
}

fn connect(addr: SocketAddr) -> EchoClient {
    Client::builder(addr).timeout(Duration::from_secs(10)).build().service()
}

fn message(job: &LoadJob) -> Message {
    Message { id: 0, name: job.workload.name_field(), payload: job.workload.payload_field() }
}

struct Structs {
    client: EchoClient,
    message: Message,
}

impl Structs {
    fn new(client: EchoClient, job: &LoadJob) -> Self {
        Self { client, message: message(job) }
    }
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

/// Counts a refusal as the answer, and nothing else.
struct Refused {
    client: EchoClient,
    message: Message,
}

impl Refused {
    fn new(client: EchoClient, job: &LoadJob) -> Self {
        Self { client, message: message(job) }
    }
}

impl Caller for Refused {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        // A call that is refused does not give its message back: its caller makes another one.
        let (name, payload) = (self.message.name.clone(), self.message.payload.clone());
        match self.client.structs(Message { id, name, payload }).await {
            Err(error) if is_refusal(&error) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Err("a call that was to be refused was served".into()),
        }
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
