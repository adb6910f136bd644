//! Servers and clients on hosts of a simulated network, and what outlives them.
//!
//! A run is one thread, virtual time and random numbers from one seed, so it can be repeated.

use std::{
    collections::HashMap,
    env, io,
    net::Ipv4Addr,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{stream, task::AtomicWaker};
use sluicegate::{
    CallError, Client, Executed, ItemSender, Server, Status, Streaming,
    client::ClientBuilder,
    server::{ServerBuilder, ServerHandle},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    task::spawn_local,
    time::{Instant, sleep, timeout},
};
use turmoil::{
    Sim,
    net::{TcpListener, TcpStream},
};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// What every run must come to in virtual time; it never takes as long.
const FOR_EVER: Duration = Duration::from_secs(30);
/// How long a call may take beyond its timeout.
const LATE_BY: Duration = Duration::from_millis(20);
const PORT: u16 = 7000;

/// Runs the scenario with so many seeds, or with those that the environment asks for:
/// `SLUICEGATE_SIMULATION_SEEDS` says how many, `SLUICEGATE_SIMULATION_SEED` names a single one.
pub(crate) fn over_seeds(seeds: u64, scenario: impl Fn(u64)) {
    let asked = |name| env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let seeds = match asked("SLUICEGATE_SIMULATION_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=asked("SLUICEGATE_SIMULATION_SEEDS").unwrap_or(seeds),
    };
    for seed in seeds {
        // The hosts draw from it, too: they all run on this thread.
        fastrand::seed(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            eprintln!("the run with seed {seed} failed; SLUICEGATE_SIMULATION_SEED={seed} repeats it");
            resume_unwind(panic);
        }
    }
}

/// A time between the two, in whole milliseconds.
pub(crate) fn between(least: u64, most: u64) -> Duration {
    Duration::from_millis(fastrand::u64(least..=most))
}

/// One call in so many.
pub(crate) fn one_in(n: u32) -> bool {
    fastrand::u32(..n) == 0
}

/// A network whose messages take up to `latency`.
pub(crate) fn network(seed: u64, latency: Duration) -> Sim<'static> {
    let mut builder = turmoil::Builder::new();
    builder.rng_seed(seed).enable_random_order().simulation_duration(2 * FOR_EVER);
    // An end of stream that arrives at a full buffer would be lost in it.
    builder.tcp_capacity(4096);
    builder.min_message_latency(Duration::ZERO).max_message_latency(latency).build()
}

/// Lets the simulation go on for so long. `true` when all clients have ended.
pub(crate) fn pass(sim: &mut Sim<'_>, time: Duration) -> bool {
    let until = sim.elapsed() + time;
    loop {
        match sim.step() {
            Ok(ended) if ended || sim.elapsed() >= until => return ended,
            Ok(_) => {}
            Err(error) => panic!("a host failed: {error}"),
        }
    }
}

/// Lets the simulation go on until all clients have ended.
pub(crate) fn finish(sim: &mut Sim<'_>) {
    assert!(pass(sim, FOR_EVER), "a client hangs");
}

/// What the servers do.
#[sluicegate::service]
pub(crate) trait Work {
    /// Notes the number, takes so many milliseconds, and answers what [`answer`] says.
    async fn work(&self, number: u64, ms: u64) -> u64;

    /// The same in a task of its own.
    #[rpc(spawn)]
    async fn work_spawned(&self, number: u64, ms: u64) -> u64;

    /// The same, with the answer in [`ITEMS`] that add up to it, and its time between them.
    async fn work_in_items(&self, number: u64, ms: u64, out: ItemSender<u64>) -> Result<(), Status>;

    /// The same, with the answer as the sum of what it is sent.
    async fn work_on_items(&self, number: u64, ms: u64, items: Streaming<u64>) -> Result<u64, Status>;
}

/// So many items has a stream.
const ITEMS: u64 = 5;

fn answer(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The items that add up to the answer.
fn items(number: u64) -> impl Iterator<Item = u64> {
    (0..ITEMS).map(move |n| if n == 0 { answer(number) } else { 0 })
}

/// What was asked, what was executed and what came of it. It stands outside of the hosts, so no crash
/// takes it along; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Entries>);

#[derive(Default)]
struct Entries {
    next: AtomicU64,
    running: AtomicUsize,
    high_water: AtomicUsize,
    executed: Mutex<HashMap<u64, u32>>,
    outcomes: Mutex<Vec<Outcome>>,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    number: u64,
    timeout: Option<Duration>,
    took: Duration,
    /// None if the caller left.
    pub(crate) result: Option<Result<u64, CallError>>,
}

impl Ledger {
    /// Makes a call of `ms` milliseconds' work, notes how it ended, and tells.
    pub(crate) async fn call(&self, client: &WorkClient, ms: u64, timeout: Option<Duration>) -> Result<u64, CallError> {
        let number = self.0.next.fetch_add(1, SeqCst);
        let mut noted = Noted { ledger: self, number, timeout, began: Instant::now(), result: None };
        let result = self::call(client, number, ms, timeout).await;
        noted.result = Some(result.clone());
        result
    }

    /// Calls that ended in this way.
    pub(crate) fn count(&self, how: impl Fn(&Outcome) -> bool) -> usize {
        lock(&self.0.outcomes).iter().filter(|outcome| how(outcome)).count()
    }

    /// Calls whose service was called.
    pub(crate) fn executed(&self) -> usize {
        lock(&self.0.executed).len()
    }

    /// The most futures of the service that ever lived at once.
    pub(crate) fn high_water(&self) -> usize {
        self.0.high_water.load(SeqCst)
    }

    /// Notes that the service was called, and that it runs.
    fn execute(&self, number: u64) -> Running<'_> {
        *lock(&self.0.executed).entry(number).or_default() += 1;
        Running::new(&self.0)
    }

    /// Every outcome, for comparing runs.
    pub(crate) fn outcomes(&self) -> Vec<String> {
        lock(&self.0.outcomes).iter().map(|outcome| format!("{outcome:?}")).collect()
    }

    /// Checks that every call ended once, in time, and as its caller was told. Only when nothing is on
    /// its way any more: a request may arrive after its caller has given up.
    pub(crate) fn check(&self) {
        let (executed, outcomes) = (lock(&self.0.executed), lock(&self.0.outcomes));
        assert_eq!(outcomes.len() as u64, self.0.next.load(SeqCst), "not every call has ended once");
        assert_eq!(self.0.running.load(SeqCst), 0, "a future of the service lives on");
        for outcome in outcomes.iter() {
            let times = executed.get(&outcome.number).copied().unwrap_or(0);
            match &outcome.result {
                Some(Ok(value)) => {
                    assert_eq!(*value, answer(outcome.number), "another call's reply: {outcome:?}");
                    assert_eq!(times, 1, "a call that succeeded was executed so many times: {outcome:?}");
                }
                Some(Err(error)) if error.executed() == Executed::Never => {
                    assert_eq!(times, 0, "it was executed: {outcome:?}");
                }
                _ => assert!(times <= 1, "executed {times} times: {outcome:?}"),
            }
            if let Some(timeout) = outcome.timeout {
                assert!(outcome.took <= timeout + LATE_BY, "late: {outcome:?}");
            }
        }
    }
}

/// Makes a call of one of the forms.
async fn call(client: &WorkClient, number: u64, ms: u64, timeout: Option<Duration>) -> Result<u64, CallError> {
    macro_rules! within {
        ($call:expr) => {
            match timeout {
                Some(timeout) => $call.timeout(timeout),
                None => $call,
            }
        };
    }
    match fastrand::u32(..6) {
        0 | 1 => within!(client.work_spawned(number, ms)).await,
        2 => {
            let mut came = within!(client.work_in_items(number, ms));
            for item in items(number) {
                // Half an answer is none.
                if came.message().await? != Some(item) {
                    return Ok(0);
                }
            }
            Ok(if came.message().await?.is_none() { answer(number) } else { 0 })
        }
        3 => within!(client.work_on_items(number, ms)).send_all(stream::iter(items(number))).await,
        _ => within!(client.work(number, ms)).await,
    }
}

impl Work for Ledger {
    async fn work(&self, number: u64, ms: u64) -> u64 {
        let _running = self.execute(number);
        if ms > 0 {
            sleep(Duration::from_millis(ms)).await;
        }
        answer(number)
    }

    async fn work_spawned(&self, number: u64, ms: u64) -> u64 {
        self.work(number, ms).await
    }

    async fn work_in_items(&self, number: u64, ms: u64, mut out: ItemSender<u64>) -> Result<(), Status> {
        let _running = self.execute(number);
        for item in items(number) {
            out.send(item).await?;
            sleep(Duration::from_millis(ms / ITEMS)).await;
        }
        Ok(())
    }

    async fn work_on_items(&self, number: u64, ms: u64, mut items: Streaming<u64>) -> Result<u64, Status> {
        let (_running, mut sum) = (self.execute(number), 0_u64);
        while let Some(item) = items.message().await? {
            sum = sum.wrapping_add(item);
            sleep(Duration::from_millis(ms / ITEMS)).await;
        }
        Ok(sum)
    }
}

/// One running future of the service.
struct Running<'a>(&'a Entries);

impl<'a> Running<'a> {
    fn new(entries: &'a Entries) -> Self {
        let now = entries.running.fetch_add(1, SeqCst) + 1;
        entries.high_water.fetch_max(now, SeqCst);
        Self(entries)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

/// A call that is out. Its end is noted even if its caller leaves.
struct Noted<'a> {
    ledger: &'a Ledger,
    number: u64,
    timeout: Option<Duration>,
    began: Instant,
    result: Option<Result<u64, CallError>>,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let Self { number, timeout, .. } = *self;
        let outcome = Outcome { number, timeout, took: self.began.elapsed(), result: self.result.take() };
        lock(&self.ledger.0.outcomes).push(outcome);
    }
}

/// A host that serves, through all of its restarts.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) kernel: Kernel,
    configure: fn(ServerBuilder) -> ServerBuilder,
    ledger: Ledger,
    /// The servers that ever ran here; the last one may still.
    servers: Arc<Mutex<Vec<ServerHandle>>>,
    leave: Arc<Notify>,
}

impl Site {
    /// Starts a host called `name` with a server that is configured so.
    pub(crate) fn start(
        sim: &mut Sim<'_>,
        name: &'static str,
        ledger: &Ledger,
        configure: fn(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let (kernel, ledger) = (Kernel::default(), ledger.clone());
        let site = Self { name, kernel, configure, ledger, servers: Arc::default(), leave: Arc::default() };
        let software = site.clone();
        sim.host(name, move || software.clone().serve());
        // It listens before there is anybody to call.
        pass(sim, MS);
        site
    }

    async fn serve(self) -> turmoil::Result {
        let server = (self.configure)(Server::builder().service(WorkServer::new(self.ledger.clone()))).build()?;
        let handle = server.handle();
        lock(&self.servers).push(server.handle());
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
        loop {
            let (stream, peer) = tokio::select! {
                biased;
                () = self.leave.notified() => break,
                accepted = listener.accept() => accepted?,
            };
            let (server, socket) = (server.clone(), self.kernel.adopt(stream));
            // A crash drops local tasks in a fixed order, others in one that hangs on the tests beside it.
            spawn_local(async move { server.serve_connection(socket, Some(peer)).await });
        }
        drop(listener);
        let drained = handle.drain().await;
        assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
        Ok(())
    }

    /// Shuts the server down with grace, and waits until its process has ended.
    pub(crate) fn shut_down(&self, sim: &mut Sim<'_>) {
        let began = sim.elapsed();
        self.leave.notify_one();
        while sim.is_host_running(self.name) {
            pass(sim, MS);
            assert!(sim.elapsed() - began < FOR_EVER, "the drain does not end");
        }
        self.assert_idle();
    }

    /// The figures of the server that was started last.
    pub(crate) fn snapshot(&self) -> sluicegate::server::Snapshot {
        lock(&self.servers).last().expect("a server was started").snapshot()
    }

    /// Checks that no server that ever ran here has anything left.
    pub(crate) fn assert_idle(&self) {
        for server in lock(&self.servers).iter() {
            let figures = server.snapshot();
            let calls = &figures.calls;
            assert_eq!((calls.held, calls.acquired), (0, calls.released), "{}: {figures:#?}", self.name);
            let left = (figures.calls_parked, figures.connections, figures.buffered_bytes);
            assert_eq!(left, (0, 0, 0), "{}: {figures:#?}", self.name);
            let left = (figures.streams, figures.stream_bytes, figures.body_bytes);
            assert_eq!(left, (0, 0, 0), "{}: {figures:#?}", self.name);
            assert_eq!((figures.panics, figures.protocol_errors), (0, 0), "{}: {figures:#?}", self.name);
        }
        assert_eq!(self.kernel.open(), 0, "{} has a socket left", self.name);
    }
}

/// A client of the host called `site`, on the host with this kernel.
pub(crate) fn client(site: &'static str, kernel: &Kernel) -> ClientBuilder {
    let kernel = kernel.clone();
    let connect = move || {
        let kernel = kernel.clone();
        async move { Ok(kernel.adopt(TcpStream::connect((site, PORT)).await?)) }
    };
    Client::with_connector(site, connect).connect_timeout(300 * MS).backoff(5 * MS, 50 * MS)
}

/// Drops the clients of a host, which must have no call and soon no socket left.
pub(crate) async fn leave(clients: impl IntoIterator<Item = Client>, kernel: &Kernel) {
    for client in clients {
        assert_eq!(client.snapshot().calls, 0, "a call of the client has not ended");
    }
    let closed = async {
        while kernel.open() > 0 {
            sleep(MS).await;
        }
    };
    timeout(Duration::from_secs(5), closed).await.expect("a client has a socket left");
}

/// The part of a host's kernel that the simulated network lacks: segments of any length, and giving up
/// on connections whose segments are not acknowledged.
///
/// What a partition swallows is never sent again, so a connection that was cut is silent for ever.
/// A kernel sends again, and in the end reports a timeout; when is up to the test.
#[derive(Clone, Default)]
pub(crate) struct Kernel(Arc<Mutex<Vec<Weak<Line>>>>);

/// What a kernel knows of one connection.
#[derive(Default)]
pub(crate) struct Line {
    timed_out: AtomicBool,
    task: AtomicWaker,
}

impl Line {
    /// Reports a timeout to whoever uses the connection.
    pub(crate) fn time_out(&self) {
        self.timed_out.store(true, SeqCst);
        self.task.wake();
    }
}

impl Kernel {
    fn adopt(&self, stream: TcpStream) -> Socket {
        let line = Arc::new(Line::default());
        let mut lines = lock(&self.0);
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Arc::downgrade(&line));
        let max_segment = [7, 100, 1400, 64 * 1024][fastrand::usize(..4)];
        Socket { stream, line, max_segment }
    }

    /// The connections that are open now.
    pub(crate) fn lines(&self) -> Vec<Arc<Line>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    /// How many connections are open now.
    pub(crate) fn open(&self) -> usize {
        self.lines().len()
    }
}

/// A connection of a [`Kernel`].
struct Socket {
    stream: TcpStream,
    line: Arc<Line>,
    max_segment: usize,
}

impl Socket {
    fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        self.line.task.register(cx.waker());
        if self.line.timed_out.load(SeqCst) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let segment = &buf[..buf.len().min(self.max_segment)];
        Pin::new(&mut self.stream).poll_write(cx, segment)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
