//! volo-thrift: Thrift binary in TTHeader frames, many calls on one connection.

// Not forbidden: the generator writes some itself.
#![deny(unsafe_code)]

use std::process::ExitCode;

use bench_kit::harness::{self, Caller, LoadJob, Measured, ServeJob};
use bench_kit::workload::wait_once;
use bench_kit::{BoxError, Stack, program};
use pilota::{Bytes, FastStr};
use volo::net::incoming::DefaultIncoming;

use crate::generated::volo_gen::echo::{Echo, EchoClient, EchoClientBuilder, EchoServer, Message};

const STACKS: &[Stack] = &[Stack {
    name: "volo-thrift",
    about: "Thrift over TTHeader, multiplexed",
    serve: |job| Box::pin(serve(job)),
    load: |job| Box::pin(load(job)),
}];

fn main() -> ExitCode {
    program::main(STACKS)
}

#[expect(unsafe_code, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/volo_gen.rs"));
}

struct Echoing {
    waits: bool,
}

impl Echo for Echoing {
    async fn echo(&self, message: Message) -> Result<Message, volo_thrift::ServerError> {
        wait_once(self.waits).await;
        Ok(message)
    }
}

async fn serve(job: ServeJob) -> Result<(), BoxError> {
    let incoming = DefaultIncoming::from(harness::listen(&job).await?);
    let echoing = Echoing { waits: job.workload.waits_once() };
    EchoServer::new(echoing).multiplex(true).run(incoming).await
}

async fn load(job: LoadJob) -> Result<Measured, BoxError> {
    harness::drive(&job, async || {
        // A client has one connection to each address.
        let client = EchoClientBuilder::new("echo").address(job.addr).multiplex(true).build();
        let name = FastStr::from(job.workload.name_field());
        let payload = Bytes::from(job.workload.payload_field());
        let caller = || Calling { client: client.clone(), name: name.clone(), payload: payload.clone() };
        Ok((0..job.workload.in_flight).map(|_| caller()).collect())
    })
    .await
}

struct Calling {
    client: EchoClient,
    name: FastStr,
    payload: Bytes,
}

impl Caller for Calling {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        let id = id.cast_signed();
        let message = Message { id, name: self.name.clone(), payload: self.payload.clone() };
        let answer = self.client.echo(message).await?;
        if answer.id == id && answer.payload.len() == self.payload.len() {
            Ok(())
        } else {
            Err("the answer is not the request".into())
        }
    }
}
