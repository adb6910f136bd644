//! How long calls took, and what of it can be compared with what it was.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

/// A machine that stands still for some milliseconds once a second does that to one call in a hundred, so that a p99
/// over all of the time says whether it was a little more or a little less. Most spans as short as this have none of it.
const SPAN: Duration = Duration::from_millis(250);

/// Notes how long each call takes of those that are made one after the other at a pace.
#[derive(Debug)]
pub(crate) struct Stopwatch(Mutex<Times>);

#[derive(Debug)]
struct Times {
    all: Histogram<u64>,
    span: Histogram<u64>,
    span_began: Instant,
    /// Of each span that is over.
    p99s: Vec<u64>,
}

impl Stopwatch {
    pub(crate) fn new() -> Self {
        let histogram = || Histogram::new(3).expect("three digits can be had");
        let (all, span, span_began) = (histogram(), histogram(), Instant::now());
        Self(Mutex::new(Times { all, span, span_began, p99s: Vec::new() }))
    }

    /// Counts the calls, too, that would have been made at that pace meanwhile.
    pub(crate) fn note(&self, began: Instant, pace: Duration) {
        let now = Instant::now();
        let [took, pace] = [now - began, pace].map(|time| time.as_micros() as u64);
        let times = &mut *self.lock();
        for histogram in [&mut times.all, &mut times.span] {
            histogram.record_correct(took, pace).expect("it has no upper end");
        }
        if now - times.span_began >= SPAN {
            let p99 = times.span.value_at_quantile(0.99);
            times.p99s.push(p99);
            times.span.reset();
            times.span_began = now;
        }
    }

    pub(crate) fn begin_anew(&self) {
        let mut times = self.lock();
        times.all.reset();
        times.span.reset();
        times.span_began = Instant::now();
        times.p99s.clear();
    }

    pub(crate) fn read(&self) -> Latency {
        let times = self.lock();
        let at = |quantile| Duration::from_micros(times.all.value_at_quantile(quantile));
        let mut p99s = times.p99s.clone();
        p99s.sort_unstable();
        let median = p99s.get(p99s.len() / 2).map_or(at(0.99), |&p99| Duration::from_micros(p99));
        Latency { calls: times.all.len(), p50: at(0.5), p98: at(0.98), p99: at(0.99), max: at(1.0), median }
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long calls took.
#[derive(Debug)]
pub(crate) struct Latency {
    calls: u64,
    p50: Duration,
    pub(crate) p98: Duration,
    pub(crate) p99: Duration,
    max: Duration,
    /// Of the p99s of all [spans](SPAN).
    pub(crate) median: Duration,
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, p50, p98, p99, max, median } = self;
        write!(f, "{calls} calls, p50 {p50:?}, p98 {p98:?}, p99 {p99:?} (usually {median:?}), max {max:?}")
    }
}
