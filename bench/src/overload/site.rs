//! The two processes of a measurement, each on a CPU of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use bench_kit::overload::{Plan, Report, Served, Settings};
use bench_kit::{BoxError, procfs};

/// A program that serves and offers.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// What it calls the stack.
    pub(super) stack: &'static str,
}

impl Program {
    /// `taskset` becomes the program, so the process id is the one that was spawned.
    fn on(&self, cpu: &str, command: &str) -> Command {
        let mut pinned = Command::new("taskset");
        pinned.args(["--cpu-list", cpu]).arg(&self.path).args([command, "--stack", self.stack]);
        pinned
    }
}

const SERVER_CPU: &str = "0";

/// Another one, if there is one.
fn generator_cpu() -> &'static str {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) { "1" } else { SERVER_CPU }
}

/// A server process that takes connections; dropping it ends the process.
#[derive(Debug)]
pub(super) struct Site {
    program: Program,
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    addr: String,
}

impl Site {
    pub(super) fn start(program: &Program, settings: &Settings) -> Result<Self, BoxError> {
        let mut command = program.on(SERVER_CPU, "guard");
        command.args(["--settings", &serde_json::to_string(settings)?]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = process.stdin.take().expect("stdin is piped");
        let answers = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let mut site = Self { program: program.clone(), process, questions, answers, addr: String::new() };
        site.addr = site.line()?;
        Ok(site)
    }

    pub(super) fn addr(&self) -> &str {
        &self.addr
    }

    /// What its handlers did so far.
    pub(super) fn served(&mut self) -> Result<Served, BoxError> {
        writeln!(self.questions, "served")?;
        Ok(serde_json::from_str(&self.line()?)?)
    }

    /// CPU time of the server so far.
    pub(super) fn cpu_seconds(&self) -> Result<f64, BoxError> {
        procfs::cpu_seconds(self.process.id())
    }

    /// Memory of the server now.
    pub(super) fn rss_bytes(&self) -> Result<u64, BoxError> {
        procfs::rss_bytes(self.process.id())
    }

    /// The most that it had so far.
    pub(super) fn peak_rss_bytes(&self) -> Result<u64, BoxError> {
        Ok(procfs::peak_rss_kib(self.process.id())? * 1024)
    }

    /// Sends it a signal, `STOP` or `CONT`.
    pub(super) fn signal(&self, name: &str) -> Result<(), BoxError> {
        let status = Command::new("kill").args(["-s", name, &self.process.id().to_string()]).status()?;
        if status.success() { Ok(()) } else { Err(format!("kill -s {name} ended with {status}").into()) }
    }

    /// Offers what is planned, and waits until that is done.
    pub(super) fn offer(&self, plan: &Plan) -> Result<Report, BoxError> {
        self.begin(plan)?.finish()
    }

    /// Begins to offer what is planned.
    pub(super) fn begin(&self, plan: &Plan) -> Result<Offering, BoxError> {
        let mut command = self.program.on(generator_cpu(), "offer");
        command.args(["--addr", &self.addr, "--plan", &serde_json::to_string(plan)?]);
        let process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        Ok(Offering { process: Some(process) })
    }

    fn line(&mut self) -> Result<String, BoxError> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            return Err("the server has ended".into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing left to do.
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

/// A generator at work; dropping it ends the process.
#[derive(Debug)]
pub(super) struct Offering {
    process: Option<Child>,
}

impl Offering {
    /// Waits for its report. Every call that it offered is accounted for.
    pub(super) fn finish(mut self) -> Result<Report, BoxError> {
        let finished = self.process.take().expect("it finishes once").wait_with_output()?;
        if !finished.status.success() {
            return Err(format!("the generator ended with {}", finished.status).into());
        }
        let report: Report = serde_json::from_slice(&finished.stdout)?;
        for source in &report.sources {
            source.phases.iter().try_for_each(|tally| {
                tally.check().map_err(|error| format!("the calls of {:?}: {error}", source.name))
            })?;
        }
        Ok(report)
    }
}

impl Drop for Offering {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ended = process.kill();
            let _status = process.wait();
        }
    }
}
