//! tarpc over TCP with bincode, as its documentation sets it up: a task per call.

#![forbid(unsafe_code)]

mod overload;

use std::process::ExitCode;

use bench_kit::harness::{self, Caller, LoadJob, Measured, ServeJob};
use bench_kit::workload::wait_once;
use bench_kit::{BoxError, Stack, program};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context, serde_transport};
use tokio::net::TcpStream;

const STACKS: &[Stack] = &[
    Stack {
        name: "tarpc",
        about: "structs, payload as bytes",
        serve: |job| Box::pin(serve(job)),
        load: |job| {
            Box::pin(load(job, |client, job| Structs {
                client,
                message: Message { id: 0, name: job.workload.name_field(), payload: job.workload.payload_field() },
            }))
        },
    },
    Stack {
        name: "tarpc-vec",
        about: "structs, payload as a plain Vec<u8>",
        serve: |job| Box::pin(serve(job)),
        load: |job| {
            Box::pin(load(job, |client, job| Plain {
                client,
                message: PlainMessage { id: 0, name: job.workload.name_field(), payload: job.workload.payload_field() },
            }))
        },
    },
];

fn main() -> ExitCode {
    program::main_with(STACKS, &[overload::STACK])
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Message {
    id: u64,
    name: String,
    #[serde(with = "serde_bytes")]
    payload: Vec<u8>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct PlainMessage {
    id: u64,
    name: String,
    payload: Vec<u8>,
}

#[tarpc::service]
trait Echo {
    async fn structs(message: Message) -> Message;
    async fn plain(message: PlainMessage) -> PlainMessage;
}

#[derive(Clone)]
struct Echoing {
    waits: bool,
}

impl Echo for Echoing {
    async fn structs(self, _: context::Context, message: Message) -> Message {
        wait_once(self.waits).await;
        message
    }

    async fn plain(self, _: context::Context, message: PlainMessage) -> PlainMessage {
        wait_once(self.waits).await;
        message
    }
}

async fn serve(job: ServeJob) -> Result<(), BoxError> {
    let listener = harness::listen(&job).await?;
    let echoing = Echoing { waits: job.workload.waits_once() };
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let channel = BaseChannel::with_defaults(serde_transport::Transport::from((socket, Bincode::default())));
        let calls = channel.execute(echoing.clone().serve());
        tokio::spawn(calls.for_each(|call| async {
            tokio::spawn(call);
        }));
    }
}

async fn load<C: Caller>(job: LoadJob, caller: impl Fn(EchoClient, &LoadJob) -> C) -> Result<Measured, BoxError> {
    harness::drive(&job, async || {
        let socket: TcpStream = harness::connect(&job).await?;
        let transport = serde_transport::Transport::from((socket, Bincode::default()));
        let client = EchoClient::new(client::Config::default(), transport).spawn();
        Ok((0..job.workload.in_flight).map(|_| caller(client.clone(), &job)).collect())
    })
    .await
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
        self.message = self.client.structs(context::current(), message).await?;
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
        self.message = self.client.plain(context::current(), message).await?;
        check(self.message.id == id && self.message.payload.len() == payload_len)
    }
}

fn check(right: bool) -> Result<(), BoxError> {
    if right { Ok(()) } else { Err("the answer is not the request".into()) }
}
