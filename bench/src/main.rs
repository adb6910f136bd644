//! Benchmarks of Sluicegate beside a bare socket loop.
//!
//! `bench run` measures; for every figure it starts itself twice more, as `bench serve` and as
//! `bench load`, so that client and server are processes of their own. `README.md` says what is
//! measured, how far to trust it, and how to add a stack or a workload.

#![forbid(unsafe_code)]

mod harness;
mod procfs;
mod report;
mod run;
mod stacks;
mod stats;
mod wire;
mod workload;

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::harness::{LoadJob, ServeJob};
use crate::run::RunArgs;
use crate::stacks::Stack;
use crate::workload::Workload;

/// What stops a benchmark; the programs only ever print it.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve(args),
        Command::Load(args) => load(args),
        Command::List => {
            list();
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Benchmarks of Sluicegate beside a bare socket loop.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure stacks under workloads, interleaved in rounds, and print a table.
    Run(RunArgs),
    /// Be the server of one stack; prints its address when it is ready.
    Serve(ServeArgs),
    /// Be the client of one stack for one measured window; prints one line of JSON.
    Load(LoadArgs),
    /// List the stacks and the workloads.
    List,
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[arg(long, value_parser = stacks::find)]
    stack: &'static Stack,
    #[arg(long, default_value = "127.0.0.1:0")]
    addr: SocketAddr,
    /// Worker threads of the runtime; 0 is a current-thread runtime.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Exit when standard input ends, so that no server outlives its runner.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

#[derive(Debug, Args)]
struct LoadArgs {
    #[arg(long, value_parser = stacks::find)]
    stack: &'static Stack,
    #[arg(long, value_parser = workload::find)]
    workload: &'static Workload,
    #[arg(long)]
    addr: SocketAddr,
    /// Length of the measured window.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Worker threads of the runtime; 0 is a current-thread runtime.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// The server's process, to have its CPU time read at the two ends of the window.
    #[arg(long)]
    server_pid: Option<u32>,
}

fn serve(args: ServeArgs) -> Result<(), BoxError> {
    if args.until_stdin_ends {
        harness::exit_when_stdin_ends();
    }
    let job = ServeJob { addr: args.addr };
    block_on(args.workers, (args.stack.serve)(job))
}

fn load(args: LoadArgs) -> Result<(), BoxError> {
    let job = LoadJob {
        addr: args.addr,
        workload: args.workload,
        window: harness::window_len(args.seconds)?,
        server_pid: args.server_pid,
    };
    let measured = block_on(args.workers, (args.stack.load)(job))?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

fn list() {
    println!("stacks");
    for stack in stacks::STACKS {
        println!("  {:<18} {}", stack.name, stack.about);
    }
    println!("workloads");
    for workload in workload::WORKLOADS {
        println!("  {:<18} {}", workload.name, workload.describe());
    }
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
