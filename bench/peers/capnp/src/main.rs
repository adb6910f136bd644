//! Cap'n Proto RPC: one thread a side by its design, promises pipelined on one connection.
//!
//! `echo_capnp.rs` is what `capnp compile -orust:src --src-prefix=schema schema/echo.capnp` makes with
//! `capnpc` of the version in `Cargo.toml`; it is kept, so that nobody needs that compiler.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use bench_kit::harness::{self, LoadJob, LocalCaller, Measured, ServeJob};
use bench_kit::workload::wait_once;
use bench_kit::{BoxError, Stack, program};
use capnp::capability::Rc;
use capnp::message::ReaderOptions;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use crate::echo_capnp::echo;

const STACKS: &[Stack] = &[Stack {
    name: "capnp",
    about: "Cap'n Proto RPC; one thread a side by its design",
    serve: |job| Box::pin(serve(job)),
    load: |job| Box::pin(load(job)),
}];

fn main() -> ExitCode {
    program::main(STACKS)
}

#[expect(warnings, reason = "generated")]
mod echo_capnp;

struct Echoing {
    waits: bool,
}

impl echo::Server for Echoing {
    async fn echo(self: Rc<Self>, call: echo::EchoParams, mut answer: echo::EchoResults) -> Result<(), capnp::Error> {
        wait_once(self.waits).await;
        answer.get().set_message(call.get()?.get_message()?)
    }
}

async fn serve(job: ServeJob) -> Result<(), BoxError> {
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let listener = harness::listen(&job).await?;
            let client: echo::Client = capnp_rpc::new_client(Echoing { waits: job.workload.waits_once() });
            loop {
                let (socket, _) = listener.accept().await?;
                socket.set_nodelay(true)?;
                let system = RpcSystem::new(Box::new(network(socket, Side::Server)), Some(client.clone().client));
                tokio::task::spawn_local(system);
            }
        })
        .await
}

async fn load(job: LoadJob) -> Result<Measured, BoxError> {
    let tasks = LocalSet::new();
    tasks
        .run_until(harness::drive_local(&job, async || {
            let network = network(harness::connect(&job).await?, Side::Client);
            let mut system = RpcSystem::new(Box::new(network), None);
            let client: echo::Client = system.bootstrap(Side::Server);
            tokio::task::spawn_local(system);
            let caller = || Calling {
                client: client.clone(),
                name: job.workload.name_field(),
                payload: job.workload.payload_field(),
            };
            Ok((0..job.workload.in_flight).map(|_| caller()).collect())
        }))
        .await
}

fn network(socket: TcpStream, side: Side) -> twoparty::VatNetwork<impl futures::AsyncRead + Unpin> {
    let (read_half, write_half) = socket.into_split();
    twoparty::VatNetwork::new(
        futures::io::BufReader::new(read_half.compat()),
        write_half.compat_write(),
        side,
        ReaderOptions::new(),
    )
}

struct Calling {
    client: echo::Client,
    name: String,
    payload: Vec<u8>,
}

impl LocalCaller for Calling {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        let mut request = self.client.echo_request();
        let mut message = request.get().init_message();
        message.set_id(id);
        message.set_name(self.name.as_str());
        message.set_payload(&self.payload);
        let response = request.send().promise.await?;
        let answer = response.get()?.get_message()?;
        if answer.get_id() == id && answer.get_payload()?.len() == self.payload.len() {
            Ok(())
        } else {
            Err("the answer is not the request".into())
        }
    }
}
