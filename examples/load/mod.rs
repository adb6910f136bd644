//! Many calls at once: how long they took, and what became of them.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal},
    num::{NonZeroU32, NonZeroU64},
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use sluicegate::{CallError, Client, Executed, Status, StatusCode};
use tokio::{task::JoinSet, time::MissedTickBehavior};

use crate::library::{Book, LibraryClient, Shelf};

/// What to ask for, and how hard.
#[derive(Debug, clap::Args)]
pub(crate) struct Load {
    /// Calls in all.
    #[arg(long, default_value = "100000")]
    calls: NonZeroU64,
    /// Connections to make them on.
    #[arg(long, default_value = "4")]
    connections: NonZeroU32,
    /// Calls in flight on each connection.
    #[arg(long, default_value = "64")]
    in_flight: NonZeroU32,
}

impl Load {
    /// Makes the calls and prints what became of them; whether none failed. To be refused is not to
    /// fail, and a refused call is not made again.
    pub(crate) async fn run(&self, connect: impl Fn() -> Client, json: bool) -> bool {
        let shelf = Shelf::load().expect("the data file is right");
        let work = Arc::new(Work {
            isbns: shelf.isbns().map(str::to_owned).collect(),
            calls: self.calls.get(),
            begun: AtomicU64::new(0),
        });
        // One tally per connection: callers of one connection run at the same time rarely enough.
        let tallies: Vec<_> = (0..self.connections.get()).map(|_| Arc::new(Mutex::new(Tally::new()))).collect();
        let mut callers = JoinSet::new();
        let begun = Instant::now();
        for tally in &tallies {
            let library: LibraryClient = connect().service();
            for _ in 0..self.in_flight.get() {
                callers.spawn(call_in_turn(library.clone(), Arc::clone(&work), Arc::clone(tally)));
            }
        }
        show_progress(&work, callers).await;
        let elapsed = begun.elapsed();
        let mut total = Tally::new();
        tallies.iter().for_each(|tally| total.add(&lock(tally)));
        let summary = total.summary(elapsed);
        if json {
            println!("{}", serde_json::to_string(&summary).expect("a summary is plain data"));
        } else {
            total.print(&summary, elapsed);
        }
        summary.failed == 0
    }
}

/// What the callers share.
struct Work {
    isbns: Vec<String>,
    calls: u64,
    begun: AtomicU64,
}

impl Work {
    /// The ISBN that the next call asks for, while there are calls to make.
    fn next(&self) -> Option<&String> {
        let call = self.begun.fetch_add(1, Ordering::Relaxed);
        (call < self.calls).then(|| &self.isbns[call as usize % self.isbns.len()])
    }
}

/// One caller: each call begins when the one before has ended.
async fn call_in_turn(library: LibraryClient, work: Arc<Work>, tally: Arc<Mutex<Tally>>) {
    let mut begun = Instant::now();
    while let Some(isbn) = work.next() {
        let outcome = library.get_book(isbn.clone()).await;
        // The end of a call is the beginning of the next: one look at the clock for each.
        let now = Instant::now();
        lock(&tally).note(isbn, &outcome, now - begun);
        begun = now;
    }
}

/// Waits for the callers, and shows how far they are if anybody looks.
async fn show_progress(work: &Work, mut callers: JoinSet<()>) {
    let target = if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{wide_bar} {human_pos} of {human_len} calls, {eta} left");
    let bar = ProgressBar::with_draw_target(Some(work.calls), target).with_style(style.expect("the template is right"));
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            joined = callers.join_next() => match joined {
                Some(joined) => joined.expect("callers do not panic"),
                None => break,
            },
            _ = tick.tick() => bar.set_position(work.begun.load(Ordering::Relaxed).min(work.calls)),
        }
    }
    bar.finish_and_clear();
}

/// What became of calls.
struct Tally {
    /// Latencies in nanoseconds.
    served: Histogram<u64>,
    refused: Histogram<u64>,
    refusals: Vec<Refusals>,
    failures: BTreeMap<String, u64>,
}

/// Refusals for one reason by one limit.
struct Refusals {
    reason: String,
    limit: String,
    count: u64,
    /// From the shortest to the longest delay after which to come back.
    delays: RangeInclusive<Duration>,
}

impl Tally {
    fn new() -> Self {
        // Three digits of whatever the latency is; a call that takes more than a minute took a minute.
        let histogram = || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are right");
        Self { served: histogram(), refused: histogram(), refusals: Vec::new(), failures: BTreeMap::new() }
    }

    fn note(&mut self, isbn: &str, outcome: &Result<Book, CallError>, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        match outcome {
            // A mix-up of answers would be the worst of failures.
            Ok(book) if book.isbn == isbn => self.served.saturating_record(nanoseconds),
            Ok(_) => self.fail("the answer to another call"),
            Err(error) => match refusal(error) {
                Some((reason, limit)) => {
                    self.refused.saturating_record(nanoseconds);
                    let delay = error.retry_delay().unwrap_or_default();
                    self.refuse(reason, limit, 1, delay..=delay);
                }
                None => {
                    let causes = std::iter::successors(std::error::Error::source(error), |&cause| cause.source());
                    self.fail(&causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}")));
                }
            },
        }
    }

    fn refuse(&mut self, reason: &str, limit: &str, count: u64, delays: RangeInclusive<Duration>) {
        let known = self.refusals.iter_mut().find(|known| known.reason == reason && known.limit == limit);
        match known {
            Some(known) => {
                known.count += count;
                let (shortest, longest) = known.delays.clone().into_inner();
                known.delays = shortest.min(*delays.start())..=longest.max(*delays.end());
            }
            None => self.refusals.push(Refusals { reason: reason.to_owned(), limit: limit.to_owned(), count, delays }),
        }
    }

    fn fail(&mut self, text: &str) {
        match self.failures.get_mut(text) {
            Some(count) => *count += 1,
            None => drop(self.failures.insert(text.to_owned(), 1)),
        }
    }

    fn add(&mut self, other: &Self) {
        self.served.add(&other.served).expect("the bounds are the same");
        self.refused.add(&other.refused).expect("the bounds are the same");
        for more in &other.refusals {
            self.refuse(&more.reason, &more.limit, more.count, more.delays.clone());
        }
        for (text, count) in &other.failures {
            *self.failures.entry(text.clone()).or_default() += count;
        }
    }

    fn summary(&self, elapsed: Duration) -> Summary {
        let (ok, refused, failed) = (self.served.len(), self.refused.len(), self.failures.values().sum());
        let calls = ok + refused + failed;
        let mut refused_by = BTreeMap::new();
        for refusals in &self.refusals {
            // As the server names them.
            let by = if refusals.limit.is_empty() { &refusals.reason } else { &refusals.limit };
            *refused_by.entry(by.clone()).or_default() += refusals.count;
        }
        Summary {
            calls,
            ok,
            refused,
            failed,
            per_sec: (calls as f64 / elapsed.as_secs_f64()).round() as u64,
            p50_us: self.served.value_at_quantile(0.5) / 1_000,
            p99_us: self.served.value_at_quantile(0.99) / 1_000,
            refused_p50_us: self.refused.value_at_quantile(0.5) / 1_000,
            refused_p99_us: self.refused.value_at_quantile(0.99) / 1_000,
            refused_by,
            failures: self.failures.clone(),
        }
    }

    fn print(&self, summary: &Summary, elapsed: Duration) {
        println!("{} calls in {elapsed:.1?}: {} per second", summary.calls, summary.per_sec);
        let mut latencies = table(["", "calls", "p50", "p90", "p99", "p99.9", "max"]);
        for (name, histogram) in [("served", &self.served), ("refused", &self.refused)] {
            let mut row = vec![name.to_owned(), histogram.len().to_string()];
            if !histogram.is_empty() {
                let at = |quantile| format!("{:.1?}", Duration::from_nanos(histogram.value_at_quantile(quantile)));
                row.extend([0.5, 0.9, 0.99, 0.999, 1.0].map(at));
            }
            latencies.add_row(row);
        }
        latencies.add_row(["failed", &*summary.failed.to_string()]);
        println!("{latencies}");
        if !self.refusals.is_empty() {
            let mut refusals = table(["refused for", "by the limit", "calls", "told to come back in"]);
            for known in &self.refusals {
                let delays = format!("{:.1?} to {:.1?}", known.delays.start(), known.delays.end());
                refusals.add_row([&known.reason, &known.limit, &known.count.to_string(), &delays]);
            }
            println!("{refusals}");
        }
        for (text, count) in &self.failures {
            println!("{count} calls failed: {text}");
        }
    }
}

/// What became of all calls; `calls` is `ok`, `refused` and `failed` together.
#[derive(Debug, Serialize)]
struct Summary {
    calls: u64,
    ok: u64,
    refused: u64,
    failed: u64,
    per_sec: u64,
    /// Latencies of what was served; zero if nothing was.
    p50_us: u64,
    p99_us: u64,
    refused_p50_us: u64,
    refused_p99_us: u64,
    refused_by: BTreeMap<String, u64>,
    failures: BTreeMap<String, u64>,
}

/// The reason and the limit, if a server turned the call away for now: it was never executed, and
/// may pass later or elsewhere. A server that has no such method, say, is a failure instead.
fn refusal(error: &CallError) -> Option<(&str, &str)> {
    match error {
        CallError::Status(status) if status.executed() == Executed::Never && is_for_now(status) => {
            let info = status.error_info();
            let reason = info.map_or(status.code().name(), |info| &info.reason);
            Some((reason, info.and_then(|info| info.metadata.get_str("limit")).unwrap_or_default()))
        }
        CallError::GoingAway { .. } => Some(("GOING_AWAY", "")),
        _ => None,
    }
}

fn is_for_now(status: &Status) -> bool {
    status.retry_delay().is_some() || status.code() == StatusCode::Unavailable
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    table
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}
