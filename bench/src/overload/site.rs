//! The two processes of a measurement, each on a CPU of its own.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bench_kit::overload::{PATIENCE, Plan, Report, Served, Settings};
use bench_kit::{BoxError, procfs};
use rustix::process::{Pid, Signal, kill_process};

use crate::program::Running;

/// A program that serves and offers.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// What it calls the stack.
    pub(super) stack: &'static str,
}

impl Program {
    /// The same program with another client.
    pub(super) fn with_stack(&self, stack: &'static str) -> Self {
        Self { path: self.path.clone(), stack }
    }

    /// `taskset` becomes the program, so the process id is the one that was spawned.
    fn on(&self, cpu: &str, command: &str) -> Command {
        let mut pinned = Command::new("taskset");
        pinned.args(["--cpu-list", cpu]).arg(&self.path).arg(command);
        pinned
    }
}

pub(super) const SERVER_CPU: &str = "0";

/// Another one, if there is one.
pub(super) fn generator_cpu() -> &'static str {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) { "1" } else { SERVER_CPU }
}

/// A server process that takes connections; dropping it ends the process.
#[derive(Debug)]
pub(super) struct Site {
    program: Program,
    server: Running,
    addr: String,
    limited: bool,
}

impl Site {
    pub(super) fn start(program: &Program, settings: &Settings) -> Result<Self, BoxError> {
        let mut command = program.on(SERVER_CPU, "guard");
        command.args(["--stack", program.stack, "--settings", &serde_json::to_string(settings)?]);
        let server = Running::start(command)?;
        let addr = server.line(PATIENCE)?;
        Ok(Self { program: program.clone(), server, addr, limited: settings.limit.is_some() })
    }

    /// Offered to by another client.
    pub(super) fn offered_by(mut self, stack: &'static str) -> Self {
        self.program = self.program.with_stack(stack);
        self
    }

    /// Whether it has a limit of its own of calls in flight.
    pub(super) fn is_limited(&self) -> bool {
        self.limited
    }

    /// What its handlers did so far.
    pub(super) fn served(&mut self) -> Result<Served, BoxError> {
        Ok(serde_json::from_str(&self.server.ask("served", PATIENCE)?)?)
    }

    /// CPU time of the server so far.
    pub(super) fn cpu_seconds(&self) -> Result<f64, BoxError> {
        procfs::cpu_seconds(self.server.process().id())
    }

    /// Memory of the server now.
    pub(super) fn rss_bytes(&self) -> Result<u64, BoxError> {
        procfs::rss_bytes(self.server.process().id())
    }

    /// The most that it had so far.
    pub(super) fn peak_rss_bytes(&self) -> Result<u64, BoxError> {
        Ok(procfs::peak_rss_kib(self.server.process().id())? * 1024)
    }

    /// Has it stand still, or go on.
    pub(super) fn stand_still(&self, still: bool) -> Result<(), BoxError> {
        let signal = if still { Signal::STOP } else { Signal::CONT };
        Ok(kill_process(Pid::from_child(self.server.process()), signal)?)
    }

    /// Begins to offer what is planned, by the program's own client or by another.
    pub(super) fn begin(&self, plan: &Plan) -> Result<Offering, BoxError> {
        self.begin_by(self.program.stack, plan)
    }

    /// As [`begin`](Self::begin), by another client.
    pub(super) fn begin_by(&self, stack: &str, plan: &Plan) -> Result<Offering, BoxError> {
        let mut command = self.program.on(generator_cpu(), "offer");
        command.args(["--until-stdin-ends", "--stack", stack, "--addr", &self.addr]);
        command.args(["--plan", &serde_json::to_string(plan)?]);
        Ok(Offering { client: Running::start(command)?, longest: plan.len() + 4 * PATIENCE })
    }

    /// Clients that send and do not read, for at most so long.
    pub(super) fn deaf(&self, clients: usize, longest: Duration) -> Result<Offering, BoxError> {
        let mut command = self.program.on(generator_cpu(), "deaf");
        command.args(["--addr", &self.addr, "--clients", &clients.to_string()]);
        Ok(Offering { client: Running::start(command)?, longest: longest + 4 * PATIENCE })
    }
}

/// A generator at work; dropping it ends the process.
#[derive(Debug)]
pub(super) struct Offering {
    client: Running,
    longest: Duration,
}

impl Offering {
    /// Waits for its report. Every call that it offered is accounted for.
    pub(super) fn finish(self) -> Result<Report, BoxError> {
        let report: Report = serde_json::from_str(&self.client.finish(self.longest)?)?;
        for source in &report.sources {
            source.phases.iter().try_for_each(|tally| {
                tally.check().map_err(|error| format!("the calls of {:?}: {error}", source.name))
            })?;
        }
        Ok(report)
    }

    /// CPU time of it so far.
    pub(super) fn cpu_seconds(&self) -> Result<f64, BoxError> {
        procfs::cpu_seconds(self.client.process().id())
    }

    /// Tells it that it is enough, and waits for what it says.
    pub(super) fn stop(mut self) -> Result<String, BoxError> {
        self.client.end_input();
        self.client.finish(self.longest)
    }
}
