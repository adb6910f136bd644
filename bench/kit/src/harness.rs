//! What all stacks share: the loop of a caller, the measured window, and the record of latencies.
//!
//! A stack with calls hands a way to connect to [`drive`] and pays exactly what every other one pays:
//! two clock readings and one entry in a histogram per call.

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

use crate::workload::{ITEMS_PER_READING, Kind, Workload};
use crate::{BoxError, procfs};

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServeJob {
    /// Where to listen; the port is usually 0.
    pub addr: SocketAddr,
    /// What it will be asked: some workloads want another server.
    pub workload: &'static Workload,
}

/// What a client is started with.
#[derive(Clone, Debug)]
pub struct LoadJob {
    /// Where the server listens.
    pub addr: SocketAddr,
    /// What to ask of it.
    pub workload: &'static Workload,
    /// Length of the measured window.
    pub window: Duration,
    /// The server's process, to read its CPU time and memory.
    pub server_pid: Option<u32>,
}

/// One of the independent callers: it makes one call at a time.
pub trait Caller: Send + 'static {
    /// Makes one call that carries `id`, and checks that the answer carries it too.
    fn call(&mut self, id: u64) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// A [`Caller`] that cannot leave its thread.
#[expect(async_fn_in_trait, reason = "it is for futures that are not Send")]
pub trait LocalCaller: 'static {
    /// As [`Caller::call`].
    async fn call(&mut self, id: u64) -> Result<(), BoxError>;
}

impl<C: Caller> LocalCaller for C {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        Caller::call(self, id).await
    }
}

/// What the client saw within the window; the client process prints it as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measured {
    /// Calls whose answer came within the window.
    pub calls: u64,
    /// The same, for each second of it.
    pub per_sec: f64,
    /// Half of the calls took no longer.
    pub p50_us: f64,
    /// All but a hundredth of them took no longer.
    pub p99_us: f64,
    /// The longest of them.
    pub max_us: f64,
    /// Of this process.
    pub client_cpu_us_per_call: f64,
    /// 0 if the server's process was not named.
    pub server_cpu_us_per_call: f64,
    /// What the server's resident memory grew by for each connection; of workloads that measure it.
    #[serde(default)]
    pub server_bytes_per_connection: Option<f64>,
}

/// Runs before the window opens: connections, allocators and branch predictors settle.
const WARM_UP: Duration = Duration::from_millis(300);

/// How long the last answers may take after the window has closed.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// How long processes rest before their memory is read.
const REST: Duration = Duration::from_millis(300);

/// Measures the workload: `connect` makes a new connection, and the callers that share it.
///
/// # Errors
///
/// A connection or a call failed.
pub async fn drive<C: Caller>(
    job: &LoadJob,
    connect: impl AsyncFn() -> Result<Vec<C>, BoxError>,
) -> Result<Measured, BoxError> {
    let callers = match begin(job, connect).await? {
        Begun::Callers(callers) => callers,
        Begun::Measured(measured) => return Ok(measured),
    };
    measure(job, callers.into_iter().enumerate(), |(index, mut caller), meter| async move {
        let mut id = first_id(index);
        loop {
            let sent = Instant::now();
            Caller::call(&mut caller, id).await?;
            if meter.record(sent, Instant::now()) == Next::Stop {
                return Ok(());
            }
            id += 1;
        }
    })
    .await
}

/// [`drive`] for callers that stay on this thread, which must be in a [`tokio::task::LocalSet`].
///
/// # Errors
///
/// A connection or a call failed.
pub async fn drive_local<C: LocalCaller>(
    job: &LoadJob,
    connect: impl AsyncFn() -> Result<Vec<C>, BoxError>,
) -> Result<Measured, BoxError> {
    let callers = match begin(job, connect).await? {
        Begun::Callers(callers) => callers,
        Begun::Measured(measured) => return Ok(measured),
    };
    let window = Window::new(job)?;
    let mut tasks = JoinSet::new();
    for (index, mut caller) in callers.into_iter().enumerate() {
        let meter = window.meter.clone();
        tasks.spawn_local(async move {
            let mut id = first_id(index);
            loop {
                let sent = Instant::now();
                LocalCaller::call(&mut caller, id).await?;
                if meter.record(sent, Instant::now()) == Next::Stop {
                    return Ok(());
                }
                id += 1;
            }
        });
    }
    window.measure(tasks).await
}

/// What there is when all are connected.
enum Begun<C> {
    Callers(Vec<C>),
    /// The workload wants no more than connections.
    Measured(Measured),
}

async fn begin<C: LocalCaller>(
    job: &LoadJob,
    connect: impl AsyncFn() -> Result<Vec<C>, BoxError>,
) -> Result<Begun<C>, BoxError> {
    if job.workload.kind == Kind::Idle {
        let one = async |id| {
            let mut callers = connect().await?;
            callers.first_mut().ok_or(NO_CALLER)?.call(id).await?;
            Ok(callers)
        };
        return have_idle(job, one).await.map(Begun::Measured);
    }
    let mut callers = Vec::new();
    for _ in 0..job.workload.connections {
        callers.extend(connect().await?);
    }
    Ok(Begun::Callers(callers))
}

const NO_CALLER: &str = "a connection without a caller";

/// No two callers ever send the same id, so an answer given to the wrong one is found out.
fn first_id(caller: usize) -> u64 {
    (caller as u64) << 32
}

/// The items of one stream, as its client takes them.
pub trait Items: Send + 'static {
    /// The id of the next item. They go up by one, from 0.
    fn next(&mut self) -> impl Future<Output = Result<u64, BoxError>> + Send;
}

/// Counts the items of a stream.
///
/// # Errors
///
/// The stream failed or ended, or an item was lost.
pub async fn take_items<I: Items>(job: &LoadJob, items: I) -> Result<Measured, BoxError> {
    measure(job, [items], |mut items, meter| async move {
        let (mut expected, mut since) = (0, Instant::now());
        loop {
            for _ in 0..ITEMS_PER_READING {
                if items.next().await? != expected {
                    return Err("an item was lost".into());
                }
                expected += 1;
            }
            let now = Instant::now();
            if meter.record_items(ITEMS_PER_READING, since, now) == Next::Stop {
                return Ok(());
            }
            since = now;
        }
    })
    .await
}

/// Runs `work` as a task for each item, and measures what they record.
///
/// The work ends when its [`Meter`] says so.
///
/// # Errors
///
/// Any work failed, or did not end.
pub async fn measure<T, F>(
    job: &LoadJob,
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T, Meter) -> F,
) -> Result<Measured, BoxError>
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let window = Window::new(job)?;
    let mut tasks = JoinSet::new();
    for item in items {
        tasks.spawn(work(item, window.meter.clone()));
    }
    window.measure(tasks).await
}

/// A stretch of time, and the calls that fell into it.
#[derive(Debug)]
struct Window<'a> {
    job: &'a LoadJob,
    meter: Meter,
}

impl<'a> Window<'a> {
    fn new(job: &'a LoadJob) -> Result<Self, BoxError> {
        let open = Instant::now() + WARM_UP;
        let close = open + job.window;
        Ok(Self { job, meter: Meter { open, close, latencies: Arc::new(Latencies::new()?) } })
    }

    /// CPU time is read when the window opens and closes, on the time that really passed in between,
    /// since a busy machine wakes this task late.
    async fn measure(self, mut tasks: JoinSet<Result<(), BoxError>>) -> Result<Measured, BoxError> {
        let Self { job, meter } = self;
        tokio::time::sleep_until(meter.open.into()).await;
        let before = CpuReading::take(job.server_pid)?;
        tokio::time::sleep_until(meter.close.into()).await;
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
        measured(&meter.latencies, job.window, before, after)
    }
}

fn measured(
    latencies: &Latencies,
    window: Duration,
    before: CpuReading,
    after: CpuReading,
) -> Result<Measured, BoxError> {
    let merged = latencies.merged()?;
    if merged.is_empty() {
        return Err("no call was answered within the window".into());
    }
    let per_sec = merged.len() as f64 / window.as_secs_f64();
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
        server_bytes_per_connection: None,
    })
}

/// Makes connections that stay open, with one call on each, and reads what the server's memory grew
/// by. What is recorded of a call includes connecting.
///
/// `connect_and_call` returns what keeps the connection open.
async fn have_idle<C>(
    job: &LoadJob,
    connect_and_call: impl AsyncFn(u64) -> Result<C, BoxError>,
) -> Result<Measured, BoxError> {
    let connections = job.workload.connections;
    // What a server builds with its first connections is not the price of one more.
    let mut open = Vec::with_capacity(connections + WARM_CONNECTIONS);
    for index in 0..WARM_CONNECTIONS {
        open.push(connect_and_call(first_id(connections + index)).await?);
    }
    tokio::time::sleep(REST).await;

    let rss = || job.server_pid.map(procfs::rss_bytes).transpose();
    let (rss_before, before) = (rss()?, CpuReading::take(job.server_pid)?);
    let latencies = Latencies::new()?;
    for index in 0..connections {
        let started = Instant::now();
        open.push(connect_and_call(first_id(index)).await?);
        latencies.record(Instant::now() - started);
    }
    let after = CpuReading::take(job.server_pid)?;
    tokio::time::sleep(REST).await;
    let grown = rss()?.zip(rss_before).map(|(after, before)| after as f64 - before as f64);

    let mut measured = measured(&latencies, after.at - before.at, before, after)?;
    measured.server_bytes_per_connection = grown.map(|bytes| bytes / connections as f64);
    Ok(measured)
}

const WARM_CONNECTIONS: usize = 10;

/// Connects with `TCP_NODELAY`.
///
/// # Errors
///
/// As of the socket.
pub async fn connect(job: &LoadJob) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(job.addr).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Listens, and tells the runner so.
///
/// # Errors
///
/// As of the socket, or of standard output.
pub async fn listen(job: &ServeJob) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(job.addr).await?;
    announce(listener.local_addr()?)?;
    Ok(listener)
}

/// Tells the runner that the server takes connections at this address.
///
/// # Errors
///
/// As of standard output.
pub fn announce(addr: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{addr}")?;
    out.flush()
}

/// Ends this process when the one that holds the other end of standard input has ended.
pub fn exit_when_stdin_ends() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(io::stdin().read(&mut byte), Ok(1)) {}
        std::process::exit(0);
    });
}

/// A length of the window that makes sense.
///
/// # Errors
///
/// This one does not.
pub fn window_len(seconds: f64) -> Result<Duration, BoxError> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(window) if !window.is_zero() => Ok(window),
        _ => Err(format!("{seconds} is not a number of seconds to measure").into()),
    }
}

/// Knows the window, and takes down what falls into it.
#[derive(Clone, Debug)]
pub struct Meter {
    open: Instant,
    close: Instant,
    latencies: Arc<Latencies>,
}

/// Whether to make another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The window is open, or will be.
    Call,
    /// It has closed.
    Stop,
}

impl Meter {
    /// Records a call; it counts if its answer came within the window.
    pub fn record(&self, sent: Instant, answered: Instant) -> Next {
        if answered >= self.close {
            return Next::Stop;
        }
        if answered >= self.open {
            self.latencies.record(answered.duration_since(sent));
        }
        Next::Call
    }

    /// Records items of a stream that came since the last time.
    pub fn record_items(&self, items: u64, since: Instant, now: Instant) -> Next {
        if now >= self.close {
            return Next::Stop;
        }
        if now >= self.open {
            self.latencies.record_many(now.duration_since(since), items);
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

    fn record(&self, latency: Duration) {
        self.of_this_thread().saturating_record(latency.as_nanos() as u64);
    }

    fn record_many(&self, latency: Duration, count: u64) {
        self.of_this_thread().saturating_record_n(latency.as_nanos() as u64, count);
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
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
