//! What all stacks share: the loop of a caller, the measured window, and the record of latencies.
//!
//! A stack with calls hands its callers to [`call_in_loops`] and pays exactly what every other one
//! pays: two clock readings and one entry in a histogram per call.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::workload::Workload;
use crate::{BoxError, procfs};

/// What a server is started with.
#[derive(Clone, Debug)]
pub(crate) struct ServeJob {
    /// Where to listen; the port is usually 0.
    pub(crate) addr: SocketAddr,
}

/// What a client is started with.
#[derive(Clone, Debug)]
pub(crate) struct LoadJob {
    pub(crate) addr: SocketAddr,
    pub(crate) workload: &'static Workload,
    /// Length of the measured window.
    pub(crate) window: Duration,
    pub(crate) server_pid: Option<u32>,
}

/// One of the independent callers: it makes one call at a time.
pub(crate) trait Caller: Send + 'static {
    /// Makes one call that carries `id`, and checks that the answer carries it too.
    fn call(&mut self, id: u64) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// What the client saw within the window; the client process prints it as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Measured {
    pub(crate) calls: u64,
    pub(crate) per_sec: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    pub(crate) client_cpu_us_per_call: f64,
    /// 0 if the server's process was not named.
    pub(crate) server_cpu_us_per_call: f64,
}

/// Runs before the window opens: connections, allocators and branch predictors settle.
const WARM_UP: Duration = Duration::from_millis(300);

/// How long the last answers may take after the window has closed.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Lets every caller call in a loop, and measures.
pub(crate) async fn call_in_loops<C: Caller>(job: &LoadJob, callers: Vec<C>) -> Result<Measured, BoxError> {
    let numbered = callers.into_iter().enumerate();
    measure(job, numbered, |(index, mut caller), meter| async move {
        // No two callers ever send the same id, so an answer given to the wrong one is found out.
        let mut id = (index as u64) << 32;
        loop {
            let sent = Instant::now();
            caller.call(id).await?;
            if meter.record(sent, Instant::now()) == Next::Stop {
                return Ok(());
            }
            id += 1;
        }
    })
    .await
}

/// Runs `work` as a task for each item, and measures what they record.
///
/// The work ends when its [`Meter`] says so. CPU time is read when the window opens and closes, on
/// the time that really passed in between, since a busy machine wakes this task late.
pub(crate) async fn measure<T, F>(
    job: &LoadJob,
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T, Meter) -> F,
) -> Result<Measured, BoxError>
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let open = Instant::now() + WARM_UP;
    let close = open + job.window;
    let latencies = Arc::new(Latencies::new()?);
    let mut tasks = JoinSet::new();
    for item in items {
        let latencies = Arc::clone(&latencies);
        tasks.spawn(work(item, Meter { open, close, latencies }));
    }

    tokio::time::sleep_until(open.into()).await;
    let before = CpuReading::take(job.server_pid)?;
    tokio::time::sleep_until(close.into()).await;
    let after = CpuReading::take(job.server_pid)?;

    let all_ended = async {
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok::<_, BoxError>(())
    };
    tokio::time::timeout(LAST_ANSWERS, all_ended)
        .await
        .map_err(|_| format!("calls without an answer {LAST_ANSWERS:?} after the end"))??;

    let merged = latencies.merged()?;
    if merged.is_empty() {
        return Err("no call was answered within the window".into());
    }
    let per_sec = merged.len() as f64 / job.window.as_secs_f64();
    let elapsed = after.at.duration_since(before.at).as_secs_f64();
    let cpu_us_per_call = |used: f64| used / elapsed / per_sec * 1e6;
    Ok(Measured {
        calls: merged.len(),
        per_sec,
        p50_us: merged.value_at_quantile(0.50) as f64 / 1e3,
        p99_us: merged.value_at_quantile(0.99) as f64 / 1e3,
        max_us: merged.max() as f64 / 1e3,
        client_cpu_us_per_call: cpu_us_per_call(after.client - before.client),
        server_cpu_us_per_call: cpu_us_per_call(after.server - before.server),
    })
}

/// Connects as often as the workload says, with `TCP_NODELAY`.
pub(crate) async fn connect_all(job: &LoadJob) -> io::Result<Vec<TcpStream>> {
    let mut sockets = Vec::with_capacity(job.workload.connections);
    for _ in 0..job.workload.connections {
        let socket = TcpStream::connect(job.addr).await?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Listens, and tells the runner so.
pub(crate) async fn listen(job: &ServeJob) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(job.addr).await?;
    announce(listener.local_addr()?)?;
    Ok(listener)
}

/// Tells the runner that the server takes connections at this address.
pub(crate) fn announce(addr: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{addr}")?;
    out.flush()
}

/// Ends this process when the one that holds the other end of standard input has ended.
pub(crate) fn exit_when_stdin_ends() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(io::stdin().read(&mut byte), Ok(1)) {}
        std::process::exit(0);
    });
}

/// A length of the window that makes sense.
pub(crate) fn window_len(seconds: f64) -> Result<Duration, BoxError> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(window) if !window.is_zero() => Ok(window),
        _ => Err(format!("{seconds} is not a number of seconds to measure").into()),
    }
}

/// Knows the window, and takes down what falls into it.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    open: Instant,
    close: Instant,
    latencies: Arc<Latencies>,
}

/// Whether to make another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Call,
    Stop,
}

impl Meter {
    /// Records a call; it counts if its answer came within the window.
    pub(crate) fn record(&self, sent: Instant, answered: Instant) -> Next {
        if answered >= self.close {
            return Next::Stop;
        }
        if answered >= self.open {
            let nanos = answered.duration_since(sent).as_nanos();
            self.latencies.of_this_thread().saturating_record(nanos as u64);
        }
        Next::Call
    }
}

/// Latencies in nanoseconds, in a histogram per worker thread so that threads do not contend.
#[derive(Debug)]
struct Latencies {
    shards: Vec<Shard>,
}

/// The histogram's own fields change at every record: no two shards share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Histogram<u64>>);

/// Threads beyond this many share shards, which is correct but slower.
const SHARDS: usize = 16;

/// Two digits: the histogram is 1 % coarse, and the part of it in use stays in the first cache.
const DIGITS: u8 = 2;
const HIGHEST_NANOS: u64 = 60_000_000_000;

impl Latencies {
    fn new() -> Result<Self, BoxError> {
        let shards = (0..SHARDS).map(|_| Ok(Shard(Mutex::new(empty_histogram()?)))).collect::<Result<_, BoxError>>()?;
        Ok(Self { shards })
    }

    fn of_this_thread(&self) -> MutexGuard<'_, Histogram<u64>> {
        let index = THREAD_INDEX.with(|own| match own.get() {
            usize::MAX => {
                let index = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
                own.set(index);
                index
            }
            index => index,
        });
        lock(&self.shards[index % SHARDS].0)
    }

    fn merged(&self) -> Result<Histogram<u64>, BoxError> {
        let mut all = empty_histogram()?;
        for Shard(histogram) in &self.shards {
            all.add(&*lock(histogram))?;
        }
        Ok(all)
    }
}

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD_INDEX: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Locks; a caller that panicked fails the run by itself, so poison tells nothing new.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn empty_histogram() -> Result<Histogram<u64>, BoxError> {
    Ok(Histogram::new_with_bounds(1, HIGHEST_NANOS, DIGITS)?)
}

/// CPU seconds used so far by both processes.
#[derive(Clone, Copy, Debug)]
struct CpuReading {
    at: Instant,
    client: f64,
    server: f64,
}

impl CpuReading {
    fn take(server_pid: Option<u32>) -> Result<Self, BoxError> {
        Ok(Self {
            at: Instant::now(),
            client: procfs::cpu_seconds(std::process::id())?,
            server: server_pid.map_or(Ok(0.0), procfs::cpu_seconds)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_within_the_window_count() {
        let open = Instant::now();
        let close = open + Duration::from_secs(1);
        let latencies = Arc::new(Latencies::new().expect("bounds are valid"));
        let meter = Meter { open, close, latencies };
        let early = open - Duration::from_millis(2);

        assert_eq!(meter.record(early, open - Duration::from_millis(1)), Next::Call);
        assert_eq!(meter.record(early, open), Next::Call);
        assert_eq!(meter.record(open, close), Next::Stop);
        assert_eq!(meter.latencies.merged().expect("same bounds").len(), 1);
    }

    #[test]
    fn windows_of_no_length_are_turned_away() {
        assert!(window_len(0.0).is_err());
        assert!(window_len(f64::NAN).is_err());
        assert!(window_len(-1.0).is_err());
        assert!(window_len(0.5).is_ok());
    }
}
