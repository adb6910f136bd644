//! A program of a measurement: it ends with whoever started it, and nobody waits for it without a bound.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use bench_kit::BoxError;

/// A program whose input ends when this is dropped, and which then is ended, too.
#[derive(Debug)]
pub(crate) struct Running {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Result<Self, BoxError> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let (sender, lines) = mpsc::channel();
        // Only a thread can wait for so long and no longer. It ends with the process.
        thread::spawn(move || output.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Ok(Self { process, input, lines })
    }

    pub(crate) fn process(&self) -> &Child {
        &self.process
    }

    /// The next line that it prints, for which to wait for so long at most.
    pub(crate) fn line(&self, patience: Duration) -> Result<String, BoxError> {
        self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("a program says nothing for {patience:?}").into(),
            RecvTimeoutError::Disconnected => "a program has ended too early".into(),
        })
    }

    /// Writes a line, and waits for the next one that it prints.
    pub(crate) fn ask(&mut self, question: &str, patience: Duration) -> Result<String, BoxError> {
        writeln!(self.input.as_mut().ok_or("it was told the end")?, "{question}")?;
        self.line(patience)
    }

    /// Tells it that it is enough.
    pub(crate) fn end_input(&mut self) {
        self.input = None;
    }

    /// All that it has still to print, if it ends well and within so long.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<String, BoxError> {
        let until = Instant::now() + patience;
        let mut text = String::new();
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => text.extend([line.as_str(), "\n"]),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("a program has not ended after {patience:?}").into());
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // It has closed its output, and may have something to do still.
        let status = loop {
            match self.process.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > until => return Err("a program does not end".into()),
                None => thread::yield_now(),
            }
        };
        if status.success() { Ok(text) } else { Err(format!("a program ended with {status}").into()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing left to do.
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command).expect("there is a shell")
    }

    #[test]
    fn a_program_is_asked_and_says_the_rest_when_it_ends() {
        let mut program = shell("read question; echo to $question; cat > /dev/null; echo one; echo two");
        assert_eq!(program.ask("what", PATIENCE).expect("it answers"), "to what");
        program.end_input();
        assert_eq!(program.finish(PATIENCE).expect("it ends well"), "one\ntwo\n");
    }

    #[test]
    fn nobody_waits_for_a_program_that_says_nothing_or_does_not_end_or_fails() {
        let short = Duration::from_millis(20);
        assert!(shell("sleep 60").line(short).is_err());
        assert!(shell("sleep 60").finish(short).is_err());
        assert!(shell("exec > /dev/null; sleep 60").finish(short).is_err());
        assert!(shell("true").line(PATIENCE).is_err());
        assert!(shell("exit 3").finish(PATIENCE).is_err_and(|error| error.to_string().contains('3')));
    }
}
