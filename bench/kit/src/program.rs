//! The two commands of every program that is measured, and the program that has nothing else.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::harness::{self, LoadJob, ServeJob};
use crate::workload::{self, Workload};
use crate::{BoxError, Stack, overload};

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
    /// Exit when standard input ends, so that no client outlives its runner.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

/// How to be a server under overload.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// The stack's name.
    #[arg(long)]
    stack: String,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    addr: SocketAddr,
    /// Its limits, as JSON.
    #[arg(long, default_value = "{}", value_parser = json::<overload::Settings>)]
    settings: overload::Settings,
}

/// How to overload a server.
#[derive(Debug, Args)]
pub struct OfferArgs {
    /// The stack's name.
    #[arg(long)]
    stack: String,
    /// Where the server listens.
    #[arg(long)]
    addr: SocketAddr,
    /// What to do, as JSON.
    #[arg(long, value_parser = json::<overload::Plan>)]
    plan: overload::Plan,
    /// Exit when standard input ends, so that no client outlives its runner.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

/// Be the server of one of `stacks` with its limits, on this thread alone; prints its address, and for each
/// line of input what it has done.
///
/// # Errors
///
/// There is no such stack, or the server ended.
pub fn guard(stacks: &[overload::Stack], args: &GuardArgs) -> Result<(), BoxError> {
    overload::answer_questions();
    rlimit::increase_nofile_limit(DESCRIPTORS)?;
    block_on(0, (find(stacks, &args.stack, |stack| stack.name)?.serve)(args.addr, args.settings))
}

/// Offer calls to the server of one of `stacks`, whatever becomes of them; prints one line of JSON.
///
/// # Errors
///
/// There is no such stack, or it cannot be reached.
pub fn offer(stacks: &[overload::Stack], args: OfferArgs) -> Result<(), BoxError> {
    if args.until_stdin_ends {
        harness::exit_when_stdin_ends();
    }
    let report = block_on(0, (find(stacks, &args.stack, |stack| stack.name)?.offer)(args.addr, args.plan))?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
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
    block_on(args.workers, (find(stacks, &args.stack, |stack| stack.name)?.serve)(job))
}

/// Be the client of one of `stacks` for one measured window; prints one line of JSON.
///
/// # Errors
///
/// There is no such stack, or a call failed.
pub fn load(stacks: &[Stack], args: &LoadArgs) -> Result<(), BoxError> {
    if args.until_stdin_ends {
        harness::exit_when_stdin_ends();
    }
    rlimit::increase_nofile_limit(DESCRIPTORS)?;
    let job = LoadJob {
        addr: args.addr,
        workload: args.workload,
        window: harness::window_len(args.seconds)?,
        server_pid: args.server_pid,
    };
    let measured = block_on(args.workers, (find(stacks, &args.stack, |stack| stack.name)?.load)(job))?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// The `main` of a program that only serves and loads: that of a peer.
#[must_use]
pub fn main(stacks: &[Stack]) -> ExitCode {
    main_with(stacks, &[])
}

/// As [`main`], of a peer that is overloaded, too.
#[must_use]
pub fn main_with(stacks: &[Stack], overloaded: &[overload::Stack]) -> ExitCode {
    exit_code(match Cli::parse().command {
        Command::Serve(args) => serve(stacks, &args),
        Command::Load(args) => load(stacks, &args),
        Command::Guard(args) => guard(overloaded, &args),
        Command::Offer(args) => offer(overloaded, args),
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
    /// Be a server that is overloaded.
    Guard(GuardArgs),
    /// Overload a server; prints one line of JSON.
    Offer(OfferArgs),
}

/// Enough for the largest workload, where the hard limit of the system allows it.
const DESCRIPTORS: u64 = 16_384;

fn find<'a, T>(stacks: &'a [T], name: &str, name_of: impl Fn(&T) -> &'static str) -> Result<&'a T, BoxError> {
    stacks.iter().find(|stack| name_of(stack) == name).ok_or_else(|| {
        let known: Vec<_> = stacks.iter().map(name_of).collect();
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
