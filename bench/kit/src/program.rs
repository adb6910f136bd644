//! The two commands of every program that is measured, and the program that has nothing else.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::harness::{self, LoadJob, ServeJob};
use crate::workload::{self, Workload};
use crate::{BoxError, Stack};

/// How to be the server of one stack.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The stack's name.
    #[arg(long)]
    stack: String,
    /// Some workloads want another server.
    #[arg(long, value_parser = workload::find, default_value = "a")]
    workload: &'static Workload,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    addr: SocketAddr,
    /// Worker threads of the runtime; 0 is a current-thread runtime.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Exit when standard input ends, so that no server outlives its runner.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

/// How to be the client of one stack.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The stack's name.
    #[arg(long)]
    stack: String,
    /// What to ask of it.
    #[arg(long, value_parser = workload::find)]
    workload: &'static Workload,
    /// Where the server listens.
    #[arg(long)]
    addr: SocketAddr,
    /// Length of the measured window.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Worker threads of the runtime; 0 is a current-thread runtime.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// The server's process, to have its CPU time and memory read.
    #[arg(long)]
    server_pid: Option<u32>,
}

/// Be the server of one of `stacks`; prints its address when it is ready.
///
/// # Errors
///
/// There is no such stack, or the server ended.
pub fn serve(stacks: &[Stack], args: &ServeArgs) -> Result<(), BoxError> {
    if args.until_stdin_ends {
        harness::exit_when_stdin_ends();
    }
    rlimit::increase_nofile_limit(DESCRIPTORS)?;
    let job = ServeJob { addr: args.addr, workload: args.workload };
    block_on(args.workers, (find(stacks, &args.stack)?.serve)(job))
}

/// Be the client of one of `stacks` for one measured window; prints one line of JSON.
///
/// # Errors
///
/// There is no such stack, or a call failed.
pub fn load(stacks: &[Stack], args: &LoadArgs) -> Result<(), BoxError> {
    rlimit::increase_nofile_limit(DESCRIPTORS)?;
    let job = LoadJob {
        addr: args.addr,
        workload: args.workload,
        window: harness::window_len(args.seconds)?,
        server_pid: args.server_pid,
    };
    let measured = block_on(args.workers, (find(stacks, &args.stack)?.load)(job))?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// The `main` of a program that only serves and loads: that of a peer.
#[must_use]
pub fn main(stacks: &[Stack]) -> ExitCode {
    exit_code(match Cli::parse().command {
        Command::Serve(args) => serve(stacks, &args),
        Command::Load(args) => load(stacks, &args),
    })
}

/// Says on standard error what went wrong, if it did.
#[must_use]
pub fn exit_code(outcome: Result<(), BoxError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A peer of Sluicegate, to be measured by `bench run`.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Be the server of one stack; prints its address when it is ready.
    Serve(ServeArgs),
    /// Be the client of one stack for one measured window; prints one line of JSON.
    Load(LoadArgs),
}

/// Enough for the largest workload, where the hard limit of the system allows it.
const DESCRIPTORS: u64 = 16_384;

fn find<'a>(stacks: &'a [Stack], name: &str) -> Result<&'a Stack, BoxError> {
    stacks.iter().find(|stack| stack.name == name).ok_or_else(|| {
        let known: Vec<_> = stacks.iter().map(|stack| stack.name).collect();
        format!("this program has {}", known.join(", ")).into()
    })
}

fn block_on<T>(workers: usize, work: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    let mut builder = if workers == 0 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(workers);
        builder
    };
    builder.enable_all().build()?.block_on(work)
}
