//! The generator: an open loop, which sends every call when it is due and never waits for an answer.
//!
//! A closed one would slow down with its server, and so leave out the very calls that suffer: what Gil
//! Tene calls coordinated omission. Here times count from when a call was *due*, and how late it was
//! sent is a figure of its own, by which a run is judged.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, yield_now};

use super::books::{Books, Busy};
use super::pacer::Pacer;
use super::plan::Due;
use super::{Closed, Open, Outcome, Plan, Report, TIME_SLOT, Work};
use crate::BoxError;
use crate::harness::lock;

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
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Between the last connection and the first call that counts.
pub const BREATH: Duration = Duration::from_millis(50);

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
    let book = Arc::new(Book {
        start: Instant::now() + BREATH,
        deadline: open.deadline,
        books: Mutex::new(Books::open(&open, &schedule)?),
    });
    let mut pacer = Pacer::new()?;
    pacer.wait(book.start).await?;
    let mut busy = Busy::begin();
    let mut rest = &schedule[..];
    while let Some(next) = rest.first() {
        pacer.wait(book.start + next.at).await?;
        let elapsed = book.start.elapsed();
        busy.phase(next.phase, elapsed);
        let due = rest.iter().take_while(|due| due.at <= elapsed).count();
        for &due in &rest[..due] {
            let caller = callers[due.source as usize].next().ok_or("a source without a connection")?.clone();
            let source = &open.sources[due.source as usize];
            let load = source.loads[due.phase as usize];
            tokio::spawn(one_call(Arc::clone(&book), caller, due, load.work, source.priority));
        }
        rest = &rest[due..];
    }
    let cpu = busy.most(book.start.elapsed());
    book.wait_for_the_last().await;
    Ok(lock(&book.books).report(&open, cpu))
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

async fn one_call<C: Caller>(book: Arc<Book>, caller: C, due: Due, work: Work, priority: u8) {
    let began = book.start.elapsed();
    lock(&book.books).begin(due, began);
    let left = book.deadline.saturating_sub(began.saturating_sub(due.at));
    // It was not sent in time for anything; the run is void if there are many of these.
    let outcome = if left.is_zero() { Outcome::HeldBack } else { caller.call(work, priority, left).await };
    let now = book.start.elapsed();
    lock(&book.books).end(due, now, outcome);
}

/// The books, and the beginning of time in them.
#[derive(Debug)]
struct Book {
    start: Instant,
    deadline: Duration,
    books: Mutex<Books>,
}

impl Book {
    /// Or until patience ends; what has not ended then is unanswered.
    async fn wait_for_the_last(&self) {
        let until = Instant::now() + PATIENCE;
        while !lock(&self.books).are_complete() && Instant::now() < until {
            tokio::time::sleep(TIME_SLOT).await;
        }
    }
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
    let looping = Arc::new(Looping::default());
    let mut callers = JoinSet::new();
    for caller in connections.iter().cycle().take(closed.callers) {
        callers.spawn(one_caller(Arc::clone(&looping), caller.clone(), closed.work));
    }
    let report = tokio::select! {
        report = looping.measure(closed.window) => report?,
        // None returns before it is over, but for a reason.
        Some(ended) = callers.join_next() => {
            ended??;
            return Err("a caller gave up".into());
        }
    };
    looping.over.store(true, Ordering::Relaxed);
    let all = async {
        while let Some(ended) = callers.join_next().await {
            ended??;
        }
        Ok(report)
    };
    tokio::time::timeout(PATIENCE, all).await?
}

/// What the callers of a closed loop share.
#[derive(Debug, Default)]
struct Looping {
    served: AtomicU64,
    over: AtomicBool,
}

impl Looping {
    async fn measure(&self, window: Duration) -> Result<Report, BoxError> {
        let served = || self.served.load(Ordering::Relaxed);
        // What is found is a rate in the steady state.
        tokio::time::sleep(window / 4).await;
        let (before, began) = (served(), Instant::now());
        tokio::time::sleep(window).await;
        // On a machine with other things to do, the server may not have run yet.
        while served() == before && began.elapsed() < PATIENCE {
            tokio::time::sleep(TIME_SLOT).await;
        }
        let (calls, elapsed) = (served() - before, began.elapsed());
        if calls == 0 {
            return Err("nothing was served".into());
        }
        Ok(Report { per_sec: calls as f64 / elapsed.as_secs_f64(), ..Report::default() })
    }
}

/// Fails for any end that is neither served nor refused: a server that is gone would be called for ever.
async fn one_caller<C: Caller>(looping: Arc<Looping>, caller: C, work: Work) -> Result<(), BoxError> {
    while !looping.over.load(Ordering::Relaxed) {
        match caller.call(work, 0, PATIENCE).await {
            Outcome::Served => {
                looping.served.fetch_add(1, Ordering::Relaxed);
            }
            // Others are to have their turn even if nothing of this waits.
            Outcome::Refused(_) => yield_now().await,
            other => return Err(format!("a call in a loop ended as {other:?}").into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Load, Source};
    use super::*;

    const ADDR: ([u8; 4], u16) = ([127, 0, 0, 1], 9);

    /// Does with each call, but for the first that it is asked for, what it is told to.
    #[derive(Clone)]
    struct Scripted {
        asked: Arc<AtomicU64>,
        answer: Option<Outcome>,
    }

    impl Caller for Scripted {
        async fn call(&self, _: Work, _: u8, _: Duration) -> Outcome {
            match (self.asked.fetch_add(1, Ordering::Relaxed), &self.answer) {
                (0, _) => Outcome::Served,
                (_, Some(answer)) => answer.clone(),
                (_, None) => std::future::pending().await,
            }
        }
    }

    fn connecting(answer: Option<Outcome>) -> impl AsyncFn(SocketAddr) -> Result<Scripted, BoxError> {
        async move |_| Ok(Scripted { asked: Arc::default(), answer: answer.clone() })
    }

    fn open(deadline: Duration) -> Plan {
        let load = Load { per_sec: 1_000.0, burst: 1.0, work: Work::default() };
        let source = Source { name: "one".into(), connections: 1, priority: 0, loads: vec![load] };
        Plan::Open(Open { phases: vec![Duration::from_millis(100)], sources: vec![source], deadline, seed: 3 })
    }

    // Virtual time stands where there is a timer of the kernel, so these take their hundred milliseconds.
    #[tokio::test]
    async fn calls_are_offered_though_no_answer_comes() {
        let silent = Scripted { asked: Arc::default(), answer: None };
        let asked = Arc::clone(&silent.asked);
        let plan = open(Duration::from_secs(1));
        let offered = async {
            while asked.load(Ordering::Relaxed) < 50 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            ended = generate(ADDR.into(), plan, async move |_| Ok(silent.clone())) => panic!("it waits for all: {ended:?}"),
            () = offered => {}
        }

        let answer = Some(Outcome::Refused("LIMIT".into()));
        let report = generate(ADDR.into(), open(Duration::from_secs(1)), connecting(answer)).await.expect("offered");
        let tally = &report.sources[0].phases[0];
        assert_eq!(tally.refused_in_all(), tally.offered);
        assert!(tally.offered > 50 && tally.check().is_ok());
    }

    #[tokio::test]
    async fn a_call_whose_deadline_passes_before_it_is_made_is_held_back_here() {
        let report =
            generate(ADDR.into(), open(Duration::ZERO), connecting(Some(Outcome::Served))).await.expect("offered");
        let tally = &report.sources[0].phases[0];
        assert_eq!(tally.held_back, tally.offered);
    }

    #[tokio::test]
    async fn a_loop_ends_with_the_error_of_a_server_that_is_gone() {
        let closed = Closed { callers: 2, connections: 1, work: Work::default(), window: Duration::from_secs(60) };
        let gone = Some(Outcome::Failed("gone".into()));
        let error = generate(ADDR.into(), Plan::Closed(closed), connecting(gone)).await.expect_err("gone");
        assert!(error.to_string().contains("gone"), "{error}");
    }
}
