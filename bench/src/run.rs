//! The runner: rounds over workloads over stacks, each a server and a client process.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::{Args, ValueEnum};

use crate::harness::Measured;
use crate::report::{self, Row};
use crate::stacks::{self, Stack};
use crate::workload::{self, Workload};
use crate::{BoxError, harness, procfs};

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Short windows and few rounds: shows that everything works, proves nothing.
    #[arg(long)]
    quick: bool,
    /// Stacks, separated by commas; all if not given.
    #[arg(long, value_delimiter = ',', value_parser = stacks::find)]
    stacks: Vec<&'static Stack>,
    /// Workloads, separated by commas; all if not given.
    #[arg(long, value_delimiter = ',', value_parser = workload::find)]
    workloads: Vec<&'static Workload>,
    /// Rounds; 5 if not given, 2 with --quick.
    #[arg(long)]
    rounds: Option<usize>,
    /// Length of each measured window; 2 if not given, 0.4 with --quick.
    #[arg(long)]
    seconds: Option<f64>,
    /// Where the two processes may run.
    #[arg(long, value_enum, default_value = "free")]
    pin: Pin,
    /// Worker threads of each runtime; 0 is a current-thread runtime.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Write every result to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The stack that ratios are to.
    #[arg(long, value_name = "STACK", value_parser = stacks::find, default_value = "raw-mux")]
    relative_to: &'static Stack,
}

/// Placement of the server's and the client's process.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pin {
    /// Both on CPU 0: by far the most repeatable.
    Same,
    /// The server on CPU 0, the client on CPU 1.
    Split,
    /// Wherever the scheduler puts them.
    Free,
}

/// Measures all that was asked for; fails at the end if any part of it could not be measured.
pub(crate) fn run(args: &RunArgs) -> Result<(), BoxError> {
    let plan = Plan::new(args)?;
    let mut json = args.json.as_ref().map(File::create).transpose()?;
    println!("{}", procfs::machine());
    println!("{}", plan.describe());
    warn_about_noise();

    let mut rows: Vec<Row> = Vec::new();
    let mut failures = 0;
    for round in 0..plan.rounds {
        for workload in &plan.workloads {
            for stack in plan.stacks_of(round) {
                match plan.measure(stack, workload, round) {
                    Ok(row) => {
                        if let Some(json) = &mut json {
                            writeln!(json, "{}", serde_json::to_string(&row)?)?;
                        }
                        eprintln!(
                            "round {round}  {}  {:<18} {:>11.0} calls/s, p50 {:.1} us",
                            row.workload, row.stack, row.per_sec, row.p50_us
                        );
                        rows.push(row);
                    }
                    Err(error) => {
                        eprintln!("round {round}  {}  {:<18} failed: {error}", workload.name, stack.name);
                        failures += 1;
                    }
                }
            }
        }
    }

    let names: Vec<_> = plan.stacks.iter().map(|stack| stack.name).collect();
    for workload in &plan.workloads {
        println!("\n{}: {}", workload.name, workload.describe());
        let reference = args.relative_to.name;
        println!("{}", report::table(&rows, workload.name, &names, reference));
    }
    println!(
        "\nmedian of {} rounds (its ratio to {}, median of the ratios within rounds), min..max",
        plan.rounds, args.relative_to.name
    );
    if failures > 0 {
        return Err(format!("{failures} measurements failed and are not in the tables").into());
    }
    Ok(())
}

/// The arguments with their defaults filled in.
struct Plan {
    stacks: Vec<&'static Stack>,
    workloads: Vec<&'static Workload>,
    rounds: usize,
    seconds: f64,
    pin: Pin,
    workers: usize,
    program: PathBuf,
}

impl Plan {
    fn new(args: &RunArgs) -> Result<Self, BoxError> {
        let (rounds, seconds) = if args.quick { (2, 0.4) } else { (5, 2.0) };
        let seconds = args.seconds.unwrap_or(seconds);
        harness::window_len(seconds)?;
        Ok(Self {
            stacks: or_all(&args.stacks, stacks::STACKS),
            workloads: or_all(&args.workloads, workload::WORKLOADS),
            rounds: args.rounds.unwrap_or(rounds).max(1),
            seconds,
            pin: args.pin,
            workers: args.workers,
            program: std::env::current_exe()?,
        })
    }

    fn describe(&self) -> String {
        format!(
            "{} rounds x {} s, {}, pin {}",
            self.rounds,
            self.seconds,
            match self.workers {
                0 => "current-thread runtimes".to_owned(),
                workers => format!("{workers} tokio workers each"),
            },
            self.pin.name(),
        )
    }

    /// Every round starts with another stack, so that none always follows the same neighbour.
    fn stacks_of(&self, round: usize) -> impl Iterator<Item = &'static Stack> {
        let first = round % self.stacks.len();
        let (later, sooner) = self.stacks.split_at(first);
        sooner.iter().chain(later).copied()
    }

    fn measure(&self, stack: &Stack, workload: &Workload, round: usize) -> Result<Row, BoxError> {
        let server = Server::start(self.command(self.pin.server_cpu()), |command| {
            command.args(["serve", "--until-stdin-ends"]);
            self.add_common_args(command, stack);
        })?;
        let mut client = self.command(self.pin.client_cpu());
        client.args(["load", "--addr", &server.addr]);
        client.args(["--server-pid", &server.process.id().to_string()]);
        client.args(["--seconds", &self.seconds.to_string()]);
        client.args(["--workload", workload.name]);
        self.add_common_args(&mut client, stack);
        let finished = client.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !finished.status.success() {
            return Err(format!("the client ended with {}", finished.status).into());
        }
        let measured: Measured = serde_json::from_slice(&finished.stdout)?;
        Ok(Row {
            stack: stack.name.to_owned(),
            workload: workload.name.to_owned(),
            round,
            per_sec: measured.per_sec,
            p50_us: measured.p50_us,
            p99_us: measured.p99_us,
            server_cpu_us_per_call: measured.server_cpu_us_per_call,
            client_cpu_us_per_call: measured.client_cpu_us_per_call,
            server_peak_rss_kib: procfs::peak_rss_kib(server.process.id())?,
            max_us: measured.max_us,
            calls: measured.calls,
            pin: self.pin.name().to_owned(),
            workers: self.workers,
        })
    }

    /// This program; `taskset` becomes it, so the process id is the one that was spawned.
    fn command(&self, cpu: Option<&str>) -> Command {
        match cpu {
            None => Command::new(&self.program),
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", cpu]).arg(&self.program);
                command
            }
        }
    }

    fn add_common_args(&self, command: &mut Command, stack: &Stack) {
        command.args(["--stack", stack.name]);
        command.args(["--workers", &self.workers.to_string()]);
    }
}

impl Pin {
    fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Split => "split",
            Self::Free => "free",
        }
    }

    fn server_cpu(self) -> Option<&'static str> {
        match self {
            Self::Same | Self::Split => Some("0"),
            Self::Free => None,
        }
    }

    fn client_cpu(self) -> Option<&'static str> {
        match self {
            Self::Same => Some("0"),
            Self::Split => Some("1"),
            Self::Free => None,
        }
    }
}

/// A server process that takes connections; dropping it ends the process.
struct Server {
    process: Child,
    addr: String,
}

impl Server {
    fn start(mut command: Command, add_args: impl FnOnce(&mut Command)) -> Result<Self, BoxError> {
        add_args(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Self { process: command.spawn()?, addr: String::new() };
        let stdout = server.process.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut server.addr)?;
        server.addr.truncate(server.addr.trim_end().len());
        if server.addr.is_empty() {
            return Err("the server ended before it was ready".into());
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing left to do.
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

fn or_all<T>(chosen: &[&'static T], all: &'static [T]) -> Vec<&'static T> {
    if chosen.is_empty() { all.iter().collect() } else { chosen.to_vec() }
}

fn warn_about_noise() {
    if cfg!(debug_assertions) {
        println!("WARNING: built without --release, the figures mean nothing");
    }
    if let Some(load) = procfs::load_average().filter(|&load| load > 0.5) {
        println!("WARNING: load average {load}, other programs are running");
    }
}
