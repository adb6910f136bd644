//! Offers what is planned as frames: one thread, one `write` for all that is due on a connection, no waiting for
//! answers.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use bench_kit::BoxError;
use bench_kit::overload::{
    BREATH, Books, Busy, Closed, Due, GRAIN, Open, Outcome, PATIENCE, Plan, Report, Work, times,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sluicegate::{Executed, StatusCode};

use super::{Answer, Template, Wire};

/// A connection may be behind by so much before calls find no room.
const MAX_UNSENT: usize = 1 << 20;

/// Between looks at whether it is over, if nothing happens.
const IDLE: Duration = Duration::from_millis(1);

/// Does what is planned.
///
/// # Errors
///
/// The server could not be reached, or parted.
pub(crate) fn generate(addr: SocketAddr, plan: &Plan) -> Result<Report, BoxError> {
    // The kernel is free to wake us 50 us later than asked, otherwise.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    match plan {
        Plan::Open(open) => open_loop(addr, open),
        Plan::Closed(closed) => closed_loop(addr, closed),
    }
}

/// A connection whose first call, whose making is to be waited for by none that counts, was answered.
fn connect(addr: SocketAddr) -> Result<Wire, BoxError> {
    const CRITICAL: u8 = 1;
    let mut wire = Wire::connect(addr)?;
    wire.greet(PATIENCE)?;
    wire.call(&Template::new(Work::default(), CRITICAL)?, Duration::ZERO, Instant::now());
    let (until, mut answered) = (Instant::now() + PATIENCE, None);
    while answered.is_none() && Instant::now() < until {
        wire.send()?;
        wait([&wire], GRAIN)?;
        wire.receive(|answer| answered = Some(answer.code))?;
    }
    match answered {
        Some(StatusCode::Ok) => Ok(wire),
        other => Err(format!("the first call was answered {other:?}").into()),
    }
}

/// Waits for an answer, or for room where calls wait for it; for so long at most. Says which have something to be read.
fn wait<'a>(wires: impl IntoIterator<Item = &'a Wire>, time: Duration) -> Result<Vec<bool>, BoxError> {
    let interest = |wire: &Wire| if wire.unsent() > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut sockets: Vec<_> = wires.into_iter().map(|wire| PollFd::new(wire.socket(), interest(wire))).collect();
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    match poll(&mut sockets, Some(&time)) {
        // An error is found by reading.
        Ok(_) => Ok(sockets.iter().map(|socket| !(socket.revents() - PollFlags::OUT).is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; sockets.len()]),
        Err(error) => Err(error.into()),
    }
}

/// A connection of a source, and its calls in the order of their ids.
struct Line {
    wire: Wire,
    made: Vec<Due>,
}

fn open_loop(addr: SocketAddr, open: &Open) -> Result<Report, BoxError> {
    let schedule = open.schedule();
    let mut sources = Vec::new();
    for source in &open.sources {
        let lines = (0..source.connections).map(|_| Ok(Line { wire: connect(addr)?, made: Vec::new() }));
        let lines = lines.collect::<Result<Vec<_>, BoxError>>()?;
        let templates = source.loads.iter().map(|load| Template::new(load.work, source.priority));
        let templates = templates.collect::<Result<_, _>>()?;
        sources.push(Turns { lines, next: 0, last_due: None, templates });
    }
    let mut books = Books::open(open, &schedule)?;
    let start = Instant::now() + BREATH;
    while Instant::now() < start {
        wait([], start.saturating_duration_since(Instant::now()))?;
    }

    let mut busy = Some(Busy::begin());
    let mut cpu = 0.0;
    let mut rest = &schedule[..];
    let end = open.len() + open.deadline + PATIENCE;
    while !books.are_complete() && start.elapsed() < end {
        let now = start.elapsed();
        let due = rest.iter().take_while(|due| due.at <= now).count();
        for &due in &rest[..due] {
            if let Some(busy) = &mut busy {
                busy.phase(due.phase, now);
            }
            books.begin(due, now);
            let left = open.deadline.saturating_sub(now.saturating_sub(due.at));
            if let Some(ended) = sources[due.source as usize].call(due, left, (start, now)) {
                books.end(due, now, ended);
            }
        }
        rest = &rest[due..];
        if rest.is_empty() {
            cpu = busy.take().map_or(cpu, |busy| busy.most(now));
        }
        for line in sources.iter_mut().flat_map(|source| &mut source.lines) {
            line.wire.send()?;
        }
        let next = rest.first().map_or(now + IDLE, |due| due.at.max(now + GRAIN));
        let lines = || sources.iter().flat_map(|source| &source.lines);
        let readable = wait(lines().map(|line| &line.wire), next.saturating_sub(start.elapsed()))?;
        for (line, is_readable) in sources.iter_mut().flat_map(|source| &mut source.lines).zip(readable) {
            if is_readable {
                line.receive(start, &mut books)?;
            }
        }
    }
    Ok(books.report(open, cpu))
}

/// The connections of a source, which take turns, and what it calls in each phase. Calls that are due together are made on the
/// same one, as by one caller.
struct Turns {
    lines: Vec<Line>,
    next: usize,
    last_due: Option<Duration>,
    templates: Vec<Template>,
}

impl Turns {
    /// Has a call sent with the next lot; or says how it ended at once.
    fn call(&mut self, due: Due, left: Duration, (start, now): (Instant, Duration)) -> Option<Outcome> {
        if left.is_zero() {
            return Some(Outcome::HeldBack);
        }
        if self.last_due.replace(due.at) != Some(due.at) {
            self.next = (self.next + 1) % self.lines.len();
        }
        let line = &mut self.lines[self.next];
        if line.wire.unsent() > MAX_UNSENT {
            return Some(Outcome::Blocked);
        }
        line.wire.call(&self.templates[due.phase as usize], left, start + now);
        line.made.push(due);
        None
    }
}

impl Line {
    fn receive(&mut self, start: Instant, books: &mut Books) -> Result<(), BoxError> {
        let Self { wire, made } = self;
        let now = start.elapsed();
        wire.receive(|answer| {
            if let Some(&due) = nth(made, answer) {
                books.end(due, now, outcome(answer));
            }
        })
    }
}

/// The first call of a connection is none that counts.
fn nth(made: &[Due], answer: Answer) -> Option<&Due> {
    made.get(usize::try_from(answer.sequence).ok()?.checked_sub(2)?)
}

fn outcome(answer: Answer) -> Outcome {
    match answer.code {
        StatusCode::Ok => Outcome::Served,
        StatusCode::DeadlineExceeded if answer.executed == Executed::Never => Outcome::NotBegun,
        StatusCode::DeadlineExceeded => Outcome::Expired,
        _ if answer.executed != Executed::Never => Outcome::Failed(format!("{:?}", answer.code)),
        StatusCode::ResourceExhausted => Outcome::Refused("RESOURCE_EXHAUSTED".into()),
        StatusCode::Unavailable => Outcome::Refused("UNAVAILABLE".into()),
        other => Outcome::Failed(format!("{other:?}")),
    }
}

/// Calls that are replaced as soon as they are answered.
fn closed_loop(addr: SocketAddr, closed: &Closed) -> Result<Report, BoxError> {
    let template = Template::new(closed.work, 0)?;
    let mut wires = (0..closed.connections.max(1)).map(|_| connect(addr)).collect::<Result<Vec<_>, _>>()?;
    let each = closed.callers.div_ceil(wires.len());
    let start = Instant::now();
    // By the sequence; the first one is that of `connect`.
    let mut began = vec![vec![Duration::ZERO; 2]; wires.len()];
    for (wire, began) in wires.iter_mut().zip(&mut began) {
        for _ in 0..each {
            wire.call(&template, Duration::ZERO, start);
            began.push(start.elapsed());
        }
    }
    // What is found is a rate in the steady state.
    let (from, until) = (closed.window / 4, closed.window / 4 + closed.window);
    let (mut took, mut served, mut failed) = (times()?, 0_u64, None);
    let busy = Busy::begin();
    let mut readable = vec![true; wires.len()];
    loop {
        let now = start.elapsed();
        if now >= until && (served > 0 || now >= until + PATIENCE) {
            break;
        }
        for ((wire, began), is_readable) in wires.iter_mut().zip(&mut began).zip(readable) {
            if !is_readable {
                wire.send()?;
                continue;
            }
            let mut again = 0;
            wire.receive(|answer| {
                again += 1;
                match outcome(answer) {
                    Outcome::Served if now >= from => {
                        served += 1;
                        let began = began.get(answer.sequence as usize).copied().unwrap_or(now);
                        took.saturating_record(now.saturating_sub(began).as_nanos() as u64);
                    }
                    Outcome::Served | Outcome::Refused(_) => {}
                    other => failed = Some(other),
                }
            })?;
            for _ in 0..again {
                wire.call(&template, Duration::ZERO, start + now);
                began.push(now);
            }
            wire.send()?;
        }
        if let Some(ended) = failed {
            return Err(format!("a call in a loop ended as {ended:?}").into());
        }
        readable = wait(&wires, IDLE)?;
    }
    if served == 0 {
        return Err("nothing was served".into());
    }
    let elapsed = start.elapsed();
    Ok(Report {
        per_sec: served as f64 / (elapsed - from).as_secs_f64(),
        p99_us: took.value_at_quantile(0.99) as f64 / 1e3,
        cpu: busy.most(elapsed),
        ..Report::default()
    })
}
