//! Benchmarks of Sluicegate beside a bare socket loop and beside its peers.
//!
//! `bench run` measures; for every figure it starts a program twice, as `serve` and as `load`, so that
//! client and server are processes of their own: itself, or that of a peer, which it builds first.
//! `README.md` says what is measured, how far to trust it, and how to add a stack or a workload.

#![forbid(unsafe_code)]

mod contender;
mod overload;
mod peers;
#[cfg(feature = "plot")]
mod plot;
mod program;
mod raw;
mod report;
mod run;
mod stacks;
mod stats;
mod svg;
mod wire;

use std::process::ExitCode;

use bench_kit::program::{self as kit, GuardArgs, LoadArgs, OfferArgs, ServeArgs};
use bench_kit::workload::WORKLOADS;
use clap::{Parser, Subcommand};

use crate::overload::{DrawArgs, OverloadArgs};
use crate::raw::deaf::DeafArgs;
use crate::run::RunArgs;
use crate::stacks::{OVERLOADED, STACKS};

fn main() -> ExitCode {
    kit::exit_code(match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        #[cfg(feature = "plot")]
        Command::Plot(args) => plot::plot(&args),
        Command::Overload(args) => overload::overload(&args),
        Command::DrawOverload(args) => overload::draw(&args),
        Command::Serve(args) => kit::serve(STACKS, &args),
        Command::Load(args) => kit::load(STACKS, &args),
        Command::Guard(args) => kit::guard(OVERLOADED, &args),
        Command::Offer(args) => kit::offer(OVERLOADED, args),
        Command::Deaf(args) => raw::deaf::deaf(&args),
        Command::List => {
            list();
            Ok(())
        }
    })
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
    /// Draw what `run --json` wrote, as SVG and PNG.
    #[cfg(feature = "plot")]
    Plot(plot::PlotArgs),
    /// Overload servers that are protected in several ways, and hold what comes of it against the targets.
    Overload(OverloadArgs),
    /// Draw what `overload --json` wrote, as SVG.
    DrawOverload(DrawArgs),
    /// Be the server of one stack; prints its address when it is ready.
    Serve(ServeArgs),
    /// Be the client of one stack for one measured window; prints one line of JSON.
    Load(LoadArgs),
    /// Be a server that is overloaded; prints its address, and for each line of input what it has done.
    Guard(GuardArgs),
    /// Offer calls to such a server, whatever becomes of them; prints one line of JSON.
    Offer(OfferArgs),
    /// Be clients that send calls to such a server and never read, until standard input ends.
    Deaf(DeafArgs),
    /// List the stacks and the workloads.
    List,
}

fn list() {
    println!("stacks");
    for own in contender::all().iter().filter(|contender| contender.package.is_none()) {
        println!("  {:<18} {}", own.name, own.about);
    }
    println!("peers, built when they are asked for");
    for peer in contender::all().iter().filter(|contender| contender.package.is_some()) {
        println!("  {:<18} {}", peer.name, peer.about);
    }
    println!("workloads");
    for workload in WORKLOADS {
        println!("  {:<18} {}", workload.name, workload.describe());
    }
}
