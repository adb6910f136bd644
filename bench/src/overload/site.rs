//! The two processes of a measurement, each on a CPU of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use bench_kit::overload::{PATIENCE, Plan, Report, Served, Settings};
use bench_kit::{BoxError, procfs};
use rustix::process::{Pid, Signal, kill_process};

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
    process: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
    addr: String,
    limited: bool,
}

impl Site {
    pub(super) fn start(program: &Program, settings: &Settings) -> Result<Self, BoxError> {
        let mut command = program.on(SERVER_CPU, "guard");
        command.args(["--stack", program.stack, "--settings", &serde_json::to_string(settings)?]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = process.stdin.take().expect("stdin is piped");
        let lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let (sender, answers) = mpsc::channel();
        // Only a thread can wait for so long and no longer. It ends with the process.
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut site = Self {
            program: program.clone(),
            process,
            questions,
            answers,
            addr: String::new(),
            limited: settings.limit.is_some(),
        };
        site.addr = site.line()?;
        Ok(site)
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

    /// Has it stand still, or go on.
    pub(super) fn stand_still(&self, still: bool) -> Result<(), BoxError> {
        let signal = if still { Signal::STOP } else { Signal::CONT };
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    /// Begins to offer what is planned, by the program's own client or by another.
    pub(super) fn begin(&self, plan: &Plan) -> Result<Offering, BoxError> {
        self.begin_by(self.program.stack, plan)
    }

    /// As [`begin`](Self::begin), by another client.
    pub(super) fn begin_by(&self, stack: &str, plan: &Plan) -> Result<Offering, BoxError> {
        let mut command = self.program.on(generator_cpu(), "offer");
        command.args(["--stack", stack, "--addr", &self.addr, "--plan", &serde_json::to_string(plan)?]);
        Offering::start(command, plan.len() + 4 * PATIENCE)
    }

    /// Clients that send and do not read, for at most so long.
    pub(super) fn deaf(&self, clients: usize, longest: Duration) -> Result<Offering, BoxError> {
        let mut command = self.program.on(generator_cpu(), "deaf");
        command.args(["--addr", &self.addr, "--clients", &clients.to_string()]);
        Offering::start(command, longest + 4 * PATIENCE)
    }

    fn line(&self) -> Result<String, BoxError> {
        self.answers.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => "the server does not answer".into(),
            RecvTimeoutError::Disconnected => "the server has ended".into(),
        })
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
    process: Child,
    output: Receiver<String>,
    longest: Duration,
}

impl Offering {
    fn start(mut command: Command, longest: Duration) -> Result<Self, BoxError> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut stdout = process.stdout.take().expect("stdout is piped");
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            // What cannot be read says by that that it is no report.
            let _cut_off = stdout.read_to_string(&mut text);
            sender.send(text)
        });
        Ok(Self { process, output, longest })
    }

    /// Waits for its report. Every call that it offered is accounted for.
    pub(super) fn finish(self) -> Result<Report, BoxError> {
        let report: Report = serde_json::from_str(&self.output()?)?;
        for source in &report.sources {
            source.phases.iter().try_for_each(|tally| {
                tally.check().map_err(|error| format!("the calls of {:?}: {error}", source.name))
            })?;
        }
        Ok(report)
    }

    /// Tells it that it is enough, and waits for what it says.
    pub(super) fn stop(mut self) -> Result<String, BoxError> {
        drop(self.process.stdin.take());
        self.output()
    }

    fn output(mut self) -> Result<String, BoxError> {
        let text = self.output.recv_timeout(self.longest);
        let text = text.map_err(|_late| format!("the generator has not ended after {:?}", self.longest))?;
        let status = self.process.wait()?;
        if status.success() { Ok(text) } else { Err(format!("the generator ended with {status}").into()) }
    }
}

impl Drop for Offering {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}
