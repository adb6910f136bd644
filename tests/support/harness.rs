//! A server on pipes in memory, and the check that it has nothing left.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use sluicegate::{
    Client, Server,
    client::ClientBuilder,
    server::{ServerBuilder, ServerHandle, Snapshot},
};
use tokio::{
    io::DuplexStream,
    runtime::{Handle, RuntimeFlavor},
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

use super::{
    Probe,
    raw::RawClient,
    shims::{Manner, Transport},
    sockets::Sockets,
};

/// A pipe in memory takes so many bytes that nobody has read.
pub(crate) const PIPE: usize = 64 * 1024;

/// A server that serves a [`Probe`] on pipes in memory. When it is dropped, the server has to be idle: a test ends with
/// [`Harness::assert_idle`], or says why it does not.
#[derive(Clone)]
pub(crate) struct Harness {
    pub(crate) server: Server,
    pub(crate) handle: ServerHandle,
    pub(crate) probe: Probe,
    pub(crate) network: Network,
    end: Arc<End>,
}

/// What is looked at when the last clone of a harness goes.
struct End {
    handle: ServerHandle,
    excused: AtomicBool,
}

/// Makes connections to one server, counts them, and can be down.
#[derive(Clone)]
pub(crate) struct Network {
    server: Server,
    manner: Manner,
    connections: Arc<AtomicUsize>,
    down: Arc<AtomicBool>,
    /// The servers' ends of the connections made.
    tasks: Arc<std::sync::Mutex<Vec<JoinHandle<()>>>>,
}

impl Harness {
    /// A server without limits.
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// A server as `configure` has it.
    pub(crate) fn with(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        let probe = Probe::default();
        let server = configure(Server::builder().service(probe.clone())).build().expect("the settings are good");
        let handle = server.handle();
        let network = Network {
            server: server.clone(),
            manner: Manner::of_this_run(),
            connections: Arc::default(),
            down: Arc::default(),
            tasks: Arc::default(),
        };
        let end = Arc::new(End { handle: handle.clone(), excused: AtomicBool::new(false) });
        Self { server, handle, probe, network, end }
    }

    /// The server may have something left at the end, because of `reason`.
    pub(crate) fn ends_busy(&self, reason: &str) {
        assert!(!reason.is_empty(), "a reason has to be given");
        self.end.excused.store(true, SeqCst);
    }

    /// With plain transports in every run, because of `reason`.
    pub(crate) fn plain(mut self, reason: &str) -> Self {
        self.network.manner = Manner::plain(reason);
        self
    }

    /// With plain transports in runs that ask for `not_this`, because of `reason`.
    pub(crate) fn unless(mut self, not_this: Manner, reason: &str) -> Self {
        self.network.manner = Manner::unless(not_this, reason);
        self
    }

    /// The server on a socket.
    pub(crate) async fn sockets(&self) -> Sockets {
        self.sockets_at((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// The server on a socket of this address.
    pub(crate) async fn sockets_at(&self, address: SocketAddr) -> Sockets {
        Sockets::open(&self.server, self.network.manner, address).await
    }

    /// A client of the server.
    pub(crate) fn client(&self) -> Client {
        self.client_builder().build()
    }

    /// A client of the server, to be configured.
    pub(crate) fn client_builder(&self) -> ClientBuilder {
        self.client_through(PIPE)
    }

    /// A client of the server through pipes that take so many bytes.
    pub(crate) fn client_through(&self, pipe: usize) -> ClientBuilder {
        let network = self.network.clone();
        Client::with_connector("the test server", move || {
            let network = network.clone();
            async move { network.connect(pipe).map(|io| network.manner.wrap(io)) }
        })
    }

    /// A raw peer that has said nothing yet.
    pub(crate) fn silent_peer(&self) -> RawClient {
        self.peer_through(PIPE)
    }

    /// A raw peer behind a pipe that takes so many bytes, and that has said nothing yet.
    pub(crate) fn peer_through(&self, pipe: usize) -> RawClient {
        RawClient::new(self.network.connect(pipe).expect("the network is up"))
    }

    /// A raw peer that has shaken hands.
    pub(crate) async fn peer(&self) -> RawClient {
        let mut peer = self.silent_peer();
        peer.shake_hands().await;
        peer
    }

    /// The server's figures.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.handle.snapshot()
    }

    /// How often the server refused for this limit or reason.
    pub(crate) fn refused(&self, name: &str) -> u64 {
        self.snapshot().refused.get(name).copied().unwrap_or(0)
    }

    /// Waits until so many futures of the service live.
    pub(crate) async fn until_running(&self, calls: usize) {
        self.until("the calls run", |harness| harness.probe.running() == calls).await;
    }

    /// Waits until so many permits are out.
    pub(crate) async fn until_held(&self, permits: u64) {
        self.until("the permits are out", |harness| harness.snapshot().calls.held == permits).await;
    }

    /// Waits until the server knows that the answers its peer has read were flushed. On a plain
    /// transport it knows before the peer does.
    pub(crate) async fn until_flushed(&self, held: u64) {
        if self.network.manner != Manner::Plain {
            self.until_held(held).await;
        }
    }

    /// Waits, in virtual time, until `condition` holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..1_000 {
            for _ in 0..10 {
                if condition(self) {
                    return;
                }
                yield_now().await;
            }
            sleep(Duration::from_micros(100)).await;
        }
        panic!("it did not come to it that {what}: {:#?}", self.snapshot());
    }

    /// Everything is back: see [`assert_idle`].
    pub(crate) async fn assert_idle(&self) {
        assert_idle(&self.handle).await;
        assert_eq!(self.probe.running(), 0, "a future of the service lives on");
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if thread::panicking() || self.excused.load(SeqCst) {
            return;
        }
        // Other threads may be about to end what the test has seen the end of.
        let others = Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        let until = Instant::now() + Duration::from_secs(10);
        while others && !is_idle(&self.handle.snapshot()) && Instant::now() < until {
            thread::yield_now();
        }
        let snapshot = self.handle.snapshot();
        assert!(is_idle(&snapshot), "the test ends, and the server is not idle: {snapshot:#?}");
    }
}

impl Network {
    /// A transport on one of whose ends the server is.
    fn connect(&self, pipe: usize) -> io::Result<DuplexStream> {
        let manner = self.manner;
        self.connect_as(pipe, |io| manner.wrap(io))
    }

    /// As [`Self::connect`], with what `wrap` makes of the server's end.
    pub(crate) fn connect_as(
        &self,
        pipe: usize,
        wrap: impl FnOnce(DuplexStream) -> Box<dyn Transport>,
    ) -> io::Result<DuplexStream> {
        self.connections.fetch_add(1, SeqCst);
        if self.down.load(SeqCst) {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the network is down"));
        }
        let (ours, theirs) = tokio::io::duplex(pipe);
        let (server, theirs) = (self.server.clone(), wrap(theirs));
        let task = tokio::spawn(async move { server.serve_connection(theirs, None).await });
        self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(task);
        Ok(ours)
    }

    /// How often somebody tried to connect.
    pub(crate) fn attempts(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Lets attempts to connect fail, or succeed again.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, SeqCst);
    }

    /// Cuts every connection, as a crash of the server's machine does.
    pub(crate) fn cut(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        tasks.drain(..).for_each(|task| task.abort());
    }
}

/// Waits until no call is in flight and nobody is connected, and checks that every figure is back.
///
/// In virtual time: it takes as long as a connection may take to close, and no real time.
pub(crate) async fn assert_idle(handle: &ServerHandle) {
    sluicegate::testing::assert_idle(handle).await;
}

/// As [`assert_idle`], in real time: for tests over sockets.
pub(crate) async fn assert_idle_soon(handle: &ServerHandle) {
    let began = Instant::now();
    while !is_idle(&handle.snapshot()) {
        assert!(began.elapsed() < Duration::from_secs(10), "the server is not idle: {:#?}", handle.snapshot());
        yield_now().await;
    }
}

/// Checks that no call is in flight right now, whoever is still connected.
pub(crate) fn no_call_runs(handle: &ServerHandle) {
    let snapshot = handle.snapshot();
    assert!(has_no_call(&snapshot), "a call is still in flight: {snapshot:#?}");
}

fn has_no_call(snapshot: &Snapshot) -> bool {
    let permits = [&snapshot.calls, &snapshot.blocking];
    permits.iter().all(|of| of.held == 0 && of.acquired == of.released) && snapshot.calls_parked == 0
}

fn is_idle(snapshot: &Snapshot) -> bool {
    has_no_call(snapshot) && snapshot.is_idle()
}

/// Awaits `future`, which must not take longer than a minute; virtual where time is.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future).await.expect("it takes for ever")
}
