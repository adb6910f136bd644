//! The runner: rounds over workloads over stacks, each a server and a client process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bench_kit::harness::{self, Measured};
use bench_kit::workload::{self, Workload};
use bench_kit::{BoxError, procfs};
use clap::{Args, ValueEnum};

use crate::contender::{self, Contender};
use crate::peers;
use crate::program::Running;
use crate::report::{self, Row};

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Short windows and few rounds: shows that everything works, proves nothing.
    #[arg(long)]
    quick: bool,
    /// Stacks and peers, separated by commas; all stacks if not given, and no peer.
    #[arg(long, value_delimiter = ',', value_parser = contender::find)]
    stacks: Vec<&'static Contender>,
    /// All peers, too; the first time they take minutes to build.
    #[arg(long)]
    peers: bool,
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
    #[arg(long, value_name = "STACK", value_parser = contender::find, default_value = "raw-mux")]
    relative_to: &'static Contender,
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
            for program in plan.programs_of(round).filter(|program| program.contender.takes(workload)) {
                let stack = program.contender.name;
                match plan.measure(program, workload, round) {
                    Ok(row) => {
                        if let Some(json) = &mut json {
                            writeln!(json, "{}", serde_json::to_string(&row)?)?;
                        }
                        eprintln!(
                            "round {round}  {}  {stack:<18} {:>11.0} calls/s, p50 {:.1} us",
                            row.workload, row.per_sec, row.p50_us
                        );
                        rows.push(row);
                    }
                    Err(error) => {
                        eprintln!("round {round}  {}  {stack:<18} failed: {error}", workload.name);
                        failures += 1;
                    }
                }
            }
        }
    }

    for workload in &plan.workloads {
        let contenders = plan.programs.iter().map(|program| program.contender);
        let names: Vec<_> = contenders.filter(|one| one.takes(workload)).map(|one| one.name).collect();
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
    programs: Vec<Program>,
    workloads: Vec<&'static Workload>,
    rounds: usize,
    seconds: f64,
    pin: Pin,
    workers: usize,
}

/// A contender and the program that it is.
struct Program {
    contender: &'static Contender,
    path: PathBuf,
}

impl Plan {
    /// Builds the peers that take part.
    fn new(args: &RunArgs) -> Result<Self, BoxError> {
        let (rounds, seconds) = if args.quick { (2, 0.4) } else { (5, 2.0) };
        let seconds = args.seconds.unwrap_or(seconds);
        harness::window_len(seconds)?;
        Ok(Self {
            programs: programs(args)?,
            workloads: if args.workloads.is_empty() {
                workload::WORKLOADS.iter().collect()
            } else {
                args.workloads.clone()
            },
            rounds: args.rounds.unwrap_or(rounds).max(1),
            seconds,
            pin: args.pin,
            workers: args.workers,
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
    fn programs_of(&self, round: usize) -> impl Iterator<Item = &Program> {
        let first = round % self.programs.len();
        let (later, sooner) = self.programs.split_at(first);
        sooner.iter().chain(later)
    }

    fn measure(&self, program: &Program, workload: &Workload, round: usize) -> Result<Row, BoxError> {
        let workers = program.contender.workers.unwrap_or(self.workers);
        let add_common_args = |command: &mut Command| {
            command.args(["--stack", program.contender.stack]);
            command.args(["--workload", workload.name]);
            command.args(["--workers", &workers.to_string()]);
        };
        let mut server = program.command(self.pin.server_cpu());
        server.args(["serve", "--until-stdin-ends"]);
        add_common_args(&mut server);
        let server = Running::start(server)?;
        let (addr, pid) = (server.line(PATIENCE)?, server.process().id());
        let mut client = program.command(self.pin.client_cpu());
        client.args(["load", "--until-stdin-ends", "--addr", &addr, "--server-pid", &pid.to_string()]);
        client.args(["--seconds", &self.seconds.to_string()]);
        add_common_args(&mut client);
        let longest = PATIENCE + harness::window_len(self.seconds)?;
        let measured: Measured = serde_json::from_str(&Running::start(client)?.finish(longest)?)?;
        Ok(Row {
            stack: program.contender.name.to_owned(),
            workload: workload.name.to_owned(),
            round,
            per_sec: measured.per_sec,
            p50_us: measured.p50_us,
            p99_us: measured.p99_us,
            server_cpu_us_per_call: measured.server_cpu_us_per_call,
            client_cpu_us_per_call: measured.client_cpu_us_per_call,
            server_peak_rss_kib: procfs::peak_rss_kib(pid)?,
            server_bytes_per_connection: measured.server_bytes_per_connection,
            max_us: measured.max_us,
            calls: measured.calls,
            pin: self.pin.name().to_owned(),
            workers,
        })
    }
}

impl Program {
    /// `taskset` becomes the program, so the process id is the one that was spawned.
    fn command(&self, cpu: Option<&str>) -> Command {
        match cpu {
            None => Command::new(&self.path),
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", cpu]).arg(&self.path);
                command
            }
        }
    }
}

/// Those that were asked for, each peer's program built once.
fn programs(args: &RunArgs) -> Result<Vec<Program>, BoxError> {
    let mut chosen = args.stacks.clone();
    if chosen.is_empty() {
        chosen.extend(contender::all().iter().filter(|contender| contender.package.is_none()));
    }
    if args.peers {
        let missing = |peer: &&Contender| !args.stacks.iter().any(|chosen| chosen.name == peer.name);
        chosen.extend(contender::all().iter().filter(|contender| contender.package.is_some()).filter(missing));
    }
    let mut built = BTreeMap::new();
    for package in chosen.iter().filter_map(|contender| contender.package) {
        if !built.contains_key(package) {
            built.insert(package, peers::build(package)?);
        }
    }
    let own = std::env::current_exe()?;
    let path = |contender: &Contender| contender.package.map_or(&own, |package| &built[package]).clone();
    Ok(chosen.into_iter().map(|contender| Program { contender, path: path(contender) }).collect())
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

/// Longer than anything takes beside the window, with a margin: thousands of connections, and the slowest of peers.
const PATIENCE: Duration = Duration::from_secs(60);

/// What spoils every figure.
pub(crate) fn warn_about_noise() {
    if cfg!(debug_assertions) {
        println!("WARNING: built without --release, the figures mean nothing");
    }
    if let Some(load) = procfs::load_average().filter(|&load| load > 0.5) {
        println!("WARNING: load average {load}, other programs are running");
    }
}
