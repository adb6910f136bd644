//! The generator: an open loop, which sends every call when it is due and never waits for an answer.
//!
//! A closed one would slow down with its server, and so leave out the very calls that suffer: what Gil
//! Tene calls coordinated omission. Here times count from when a call was *due*, and how late it was
//! sent is a figure of its own, by which a run is judged.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::pacer::Pacer;
use super::plan::Due;
use super::tally::{Counting, times};
use super::{Closed, Open, Outcome, Plan, Report, Slot, SourceReport, TIME_SLOT, Work};
use crate::harness::lock;
use crate::{BoxError, procfs};

/// A connection that calls can be made on, many at a time.
pub trait Caller: Clone + Send + 'static {
    /// Makes a call that has so much time left.
    fn call(&self, work: Work, priority: u8, left: Duration) -> impl Future<Output = Outcome> + Send;
}

/// Does what is planned; `connect` makes a connection.
///
/// # Errors
///
/// A connection could not be made, or in a closed loop nothing was served.
pub async fn generate<C: Caller>(
    addr: SocketAddr,
    plan: Plan,
    connect: impl AsyncFn(SocketAddr) -> Result<C, BoxError>,
) -> Result<Report, BoxError> {
    let connect = async || {
        let caller = connect(addr).await?;
        // Whatever is made with the first call is not to be waited for by one that counts.
        let first = caller.call(Work::default(), CRITICAL, PATIENCE).await;
        if first == Outcome::Served { Ok(caller) } else { Err(format!("the first call was answered {first:?}").into()) }
    };
    match plan {
        Plan::Open(open) => Box::pin(open_loop(open, connect)).await,
        Plan::Closed(closed) => Box::pin(closed_loop(closed, connect)).await,
    }
}

/// The class of calls that nobody sheds.
const CRITICAL: u8 = 1;

/// More than any call takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between the last connection and the first call that counts.
const BREATH: Duration = Duration::from_millis(50);

async fn open_loop<C: Caller>(open: Open, connect: impl AsyncFn() -> Result<C, BoxError>) -> Result<Report, BoxError> {
    let mut callers = Vec::new();
    for source in &open.sources {
        let mut connections = Vec::new();
        for _ in 0..source.connections {
            connections.push(connect().await?);
        }
        callers.push(Turns { connections, next: 0 });
    }

    let schedule = open.schedule();
    let books = Arc::new(Books::open(&open, Instant::now() + BREATH)?);
    let mut pacer = Pacer::new()?;
    pacer.wait(books.start).await?;
    let cpu = procfs::cpu_seconds(std::process::id())?;
    let mut rest = &schedule[..];
    while let Some(next) = rest.first() {
        pacer.wait(books.start + next.at).await?;
        let elapsed = books.start.elapsed();
        let due = rest.iter().take_while(|due| due.at <= elapsed).count();
        for &due in &rest[..due] {
            let caller = callers[due.source as usize].next().ok_or("a source without a connection")?.clone();
            let source = &open.sources[due.source as usize];
            let load = source.loads[due.phase as usize];
            tokio::spawn(one_call(Arc::clone(&books), caller, due, load.work, source.priority));
        }
        rest = &rest[due..];
    }
    let cpu = procfs::cpu_seconds(std::process::id())? - cpu;
    let cpu = cpu / books.start.elapsed().as_secs_f64();
    books.wait_for_the_last(schedule.len() as u64).await;
    Ok(books.report(&open, cpu))
}

/// Connections that take turns.
struct Turns<C> {
    connections: Vec<C>,
    next: usize,
}

impl<C> Turns<C> {
    fn next(&mut self) -> Option<&C> {
        self.next = (self.next + 1) % self.connections.len().max(1);
        self.connections.get(self.next)
    }
}

async fn one_call<C: Caller>(books: Arc<Books>, caller: C, due: Due, work: Work, priority: u8) {
    let began = books.begin(due);
    let left = books.deadline.saturating_sub(began.saturating_sub(due.at));
    // It was not sent in time for anything; the run is void if there are many of these.
    let outcome = if left.is_zero() { Outcome::Expired } else { caller.call(work, priority, left).await };
    books.end(due, outcome);
}

/// What is known of all calls so far.
#[derive(Debug)]
struct Books {
    start: Instant,
    deadline: Duration,
    ended: AtomicU64,
    pages: Mutex<Pages>,
}

#[derive(Debug)]
struct Pages {
    /// Of each source, of each phase.
    counting: Vec<Vec<Counting>>,
    slots: Vec<Slot>,
    lateness: Histogram<u64>,
}

impl Books {
    fn open(open: &Open, start: Instant) -> Result<Self, BoxError> {
        let of_phases = || open.phases.iter().map(|_| Counting::new()).collect::<Result<_, _>>();
        let counting = open.sources.iter().map(|_| of_phases()).collect::<Result<_, BoxError>>()?;
        let slots = vec![Slot::default(); slot_of(open.len() + open.deadline) + 1];
        let pages = Pages { counting, slots, lateness: times()? };
        Ok(Self { start, deadline: open.deadline, ended: AtomicU64::new(0), pages: Mutex::new(pages) })
    }

    /// Returns when it began, since the start.
    fn begin(&self, due: Due) -> Duration {
        let now = self.start.elapsed();
        let mut pages = lock(&self.pages);
        pages.lateness.saturating_record(now.saturating_sub(due.at).as_nanos() as u64);
        pages.counting[due.source as usize][due.phase as usize].offer();
        pages.slots[slot_of(due.at)].due += 1;
        now
    }

    fn end(&self, due: Due, outcome: Outcome) {
        let now = self.start.elapsed();
        let took = now.saturating_sub(due.at);
        let mut pages = lock(&self.pages);
        if outcome == Outcome::Served && took <= self.deadline {
            pages.slots[slot_of(due.at)].due_ok += 1;
            pages.slots[slot_of(now)].served += 1;
        }
        pages.counting[due.source as usize][due.phase as usize].end(outcome, took, self.deadline);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Or until patience ends; what has not ended then is unanswered.
    async fn wait_for_the_last(&self, calls: u64) {
        let until = Instant::now() + PATIENCE;
        while self.ended.load(Ordering::Relaxed) < calls && Instant::now() < until {
            tokio::time::sleep(TIME_SLOT).await;
        }
    }

    fn report(&self, open: &Open, cpu: f64) -> Report {
        let mut pages = lock(&self.pages);
        let lateness_p99_us = pages.lateness.value_at_quantile(0.99) as f64 / 1e3;
        let sources = open.sources.iter().zip(&mut pages.counting).map(|(source, phases)| SourceReport {
            name: source.name.clone(),
            phases: phases.iter_mut().map(Counting::finish).collect(),
        });
        Report {
            sources: sources.collect(),
            lateness_p99_us,
            cpu,
            slots: std::mem::take(&mut pages.slots),
            per_sec: 0.0,
        }
    }
}

fn slot_of(at: Duration) -> usize {
    (at.as_nanos() / TIME_SLOT.as_nanos()) as usize
}

/// Callers that call again at once, whatever they were told; counts what was served.
async fn closed_loop<C: Caller>(
    closed: Closed,
    connect: impl AsyncFn() -> Result<C, BoxError>,
) -> Result<Report, BoxError> {
    let mut connections = Vec::new();
    for _ in 0..closed.connections {
        connections.push(connect().await?);
    }
    let (served, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut callers = JoinSet::new();
    for caller in connections.iter().cycle().take(closed.callers) {
        let caller = caller.clone();
        let (served, over) = (Arc::clone(&served), Arc::clone(&over));
        callers.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                if caller.call(closed.work, 0, PATIENCE).await == Outcome::Served {
                    served.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    // What is found is a rate in the steady state.
    tokio::time::sleep(closed.window / 4).await;
    let (before, began) = (served.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(closed.window).await;
    let (after, elapsed) = (served.load(Ordering::Relaxed), began.elapsed());
    over.store(true, Ordering::Relaxed);
    tokio::time::timeout(PATIENCE, callers.join_all()).await?;
    if after == before {
        return Err("nothing was served".into());
    }
    Ok(Report { per_sec: (after - before) as f64 / elapsed.as_secs_f64(), ..Report::default() })
}
