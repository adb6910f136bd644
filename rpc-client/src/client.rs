//! The client: a cheap handle that connects when there is a call to send.

use std::{
    fmt,
    future::Future,
    io,
    marker::PhantomData,
    mem,
    pin::{Pin, pin},
    sync::{Arc, PoisonError, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::future::{Either, select};
use rpc_codec::CodecId;
use rpc_core::Metadata;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Handle,
    sync::{Notify, futures::OwnedNotified},
    time::{sleep, timeout},
};

use crate::{
    backoff::Backoff,
    call::{Call, InCodec, Method, Untouched},
    clock,
    config::Config,
    connection::Connection,
    driver::Driver,
    error::CallError,
    gauges::{ClientSnapshot, Gauge, Gauges, Token},
    intercept::Interceptor,
    sync::{Mutex, MutexGuard},
    trace::TraceCalls,
};

/// A handle to one server, over one multiplexed connection.
///
/// Cheap to clone; clones share the connection. It connects when there is a call to send, and again
/// after a loss, with backoff. When the last handle and the last call are gone, it says goodbye; an
/// attempt to connect that is still under way is given up.
///
/// What a server may do to it is bounded: how long it may be silent, how long it may take to greet, to
/// end a frame and to take what is written, how long its frames may be, and how many it may send that
/// end no call. A connection that breaks a bound is given up, and its calls fail with the cause.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// A client of the server at `address`, such as `127.0.0.1:7000` or `books.internal:7000`. The
    /// name is resolved at every attempt to connect.
    pub fn new(address: impl Into<String>) -> Self {
        Self::builder(address).build()
    }

    /// A client of the server at `address`, to be configured.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        let address = address.into();
        let peer = Arc::from(address.as_str());
        ClientBuilder::of(peer, Target::Tcp(address))
    }

    /// A client that gets each connection from `connect`: a socket of another kind, or a pipe in
    /// memory. `peer` names the other end in errors.
    pub fn with_connector<F, Fut, T>(peer: impl Into<String>, connect: F) -> ClientBuilder
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<T>> + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connect = move || -> Connecting {
            let connecting = connect();
            Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Transport>) })
        };
        ClientBuilder::of(peer.into().into(), Target::Custom(Box::new(connect)))
    }

    /// The generated client of a service, on this connection.
    pub fn service<S: ServiceClient>(&self) -> S {
        S::from_client(self.clone())
    }

    /// A call of `method` with the tuple `args`; it does nothing until it is awaited. Generated
    /// clients make these.
    pub fn call<A, R>(&self, method: Method, args: A) -> Call<A, R, InCodec> {
        Call::new(self.clone(), method, args)
    }

    /// A call of a method that takes and returns bytes; generated clients make these.
    pub fn call_bytes(&self, method: Method, body: bytes::Bytes) -> Call<bytes::Bytes, bytes::Bytes, Untouched> {
        Call::new(self.clone(), method, body)
    }

    /// Takes no more calls. Those that are out are waited for, then the connection is closed.
    pub fn close(&self) {
        let phase = mem::replace(&mut self.shared.lock().phase, Phase::Closed);
        if let Phase::Open(connection) = phase {
            connection.close();
        }
        self.shared.changed.notify_waiters();
        self.shared.abandoned.notify_waiters();
    }

    /// The client's figures at this moment.
    pub fn snapshot(&self) -> ClientSnapshot {
        let connected = matches!(self.shared.lock().phase, Phase::Open(_));
        self.shared.gauges.snapshot(connected)
    }

    #[cfg(feature = "tower")]
    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    #[cfg(feature = "tower")]
    pub(crate) fn layers(&self) -> Option<&crate::tower::Next> {
        self.shared.layers.as_ref()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    pub(crate) fn peer(&self) -> &Arc<str> {
        &self.shared.peer
    }

    /// The open connection, if there is one; the common case.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        match &self.shared.lock().phase {
            Phase::Open(connection) => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// The open connection, once there is one.
    ///
    /// # Errors
    ///
    /// Unless it waits for one, whatever it takes: the attempt that it waits for fails, or the last
    /// one did and the next is not due yet. The client is closed.
    ///
    /// # Cancel safety
    ///
    /// An attempt that was begun goes on for whoever else waits for it.
    pub(crate) async fn connected(&self, patience: Patience) -> Result<Arc<Connection>, CallError> {
        let _waiting = Token::new(&self.shared.gauges.waiting_for_connection);
        let mut began = None;
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            match self.shared.step(&mut began, patience)? {
                Some(connection) => return Ok(connection),
                None => changed.await,
            }
        }
    }

    /// Forgets a connection that takes no more calls, so that the next call gets a new one.
    pub(crate) fn forget(&self, gone: &Arc<Connection>) {
        if gone.has_failed() {
            // That is a failed attempt, and its task is about to say so.
            return;
        }
        {
            let mut manager = self.shared.lock();
            if !manager.is_open(gone) {
                return;
            }
            manager.phase = Phase::Idle;
        }
        // Who is not asked any more may leave: one that has used up its ids does not know yet.
        gone.close();
    }

    /// As [`Self::forget`], for one that took no call at all: the next attempt waits as after a
    /// failure.
    pub(crate) fn forget_unwilling(&self, gone: &Arc<Connection>) {
        if !gone.has_failed() {
            let mut manager = self.shared.lock();
            if manager.is_open(gone) {
                manager.delay_next();
            }
        }
        self.forget(gone);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("peer", &self.shared.peer).finish_non_exhaustive()
    }
}

/// A generated client of one service. It has no constructor of its own, so that none can have the
/// name of one of the service's methods; [`Client::service`] makes it.
pub trait ServiceClient {
    /// The client of the service, over `client`'s connection.
    fn from_client(client: Client) -> Self;
}

/// Settings of a client to be.
#[must_use = "a builder does nothing until it is built"]
pub struct ClientBuilder {
    config: Config,
    peer: Arc<str>,
    target: Target,
    #[cfg(feature = "tower")]
    pub(crate) layers: Option<crate::tower::Wrap>,
}

impl ClientBuilder {
    fn of(peer: Arc<str>, target: Target) -> Self {
        Self {
            config: Config::default(),
            peer,
            target,
            #[cfg(feature = "tower")]
            layers: None,
        }
    }
}

impl ClientBuilder {
    /// The timeout of calls that set neither a timeout nor a deadline. Default: none.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config.timeout = Some(timeout);
        self
    }

    /// What arguments are encoded with; the server answers in the same. Default: bincode.
    pub fn codec(mut self, codec: CodecId) -> Self {
        self.config.codec = codec;
        self
    }

    /// How long an attempt to connect may take, name resolution included; and then, how long the
    /// server may take to say HELLO. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// The delays between attempts to connect: doubling from `min` to `max`, each drawn from its upper
    /// half. The first attempt after a loss waits, too, for anything up to `min`. The delays begin
    /// anew when a connection has proved good by the answer to a call. Default: 2 s to 10 s, with
    /// which of a thousand clients that lost a server together less than a tenth come back within any
    /// tenth of a second. Where one server has few clients, a smaller `min` serves them better.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.config.min_backoff = min;
        self.config.max_backoff = max;
        self
    }

    /// The longest frame taken from the server in bytes, at least 64 KiB. Longer bodies come in parts.
    /// Default: 256 KiB.
    pub fn max_frame(mut self, bytes: u32) -> Self {
        self.config.max_frame = bytes.max(64 * 1024);
        self
    }

    /// The longest body of a response in bytes. Default: 4 MiB.
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.config.max_message = bytes;
        self
    }

    /// How many bytes of a stream the server may send before any of it is taken, at least 1; an item
    /// counts as 64 at least, and one item may go beyond it. What a stream holds here is bounded by it.
    /// A larger window lets a stream from far away go faster. Default: 128 KiB.
    pub fn stream_window(mut self, bytes: u32) -> Self {
        self.config.stream_window = bytes.max(1);
        self
    }

    /// For how long nothing may come from the server before it is sent a PING, also while calls are
    /// out. `None` for ever: a server that has vanished without a word is then found by nobody.
    /// At least 10 ms. Default: 30 s.
    pub fn keepalive_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.config.keepalive_interval = interval.into().map(|interval| interval.max(MIN_KEEPALIVE));
        self
    }

    /// For how long nothing may come behind such a PING before the connection is given up and its calls
    /// fail. At least 10 ms. Default: 10 s.
    pub fn keepalive_timeout(mut self, timeout: Duration) -> Self {
        self.config.keepalive_timeout = timeout.max(MIN_KEEPALIVE);
        self
    }

    /// How long the server may take for a frame from its first byte to its last. Over slow lines
    /// longer frames need more, or a smaller [`max_frame`](Self::max_frame). Default: 10 s.
    pub fn frame_timeout(mut self, timeout: Duration) -> Self {
        self.config.frame_timeout = timeout;
        self
    }

    /// How long the server may take nothing of what is to be written to it. Default: 30 s.
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.config.write_timeout = timeout;
        self
    }

    /// Whether calls wait for a server that cannot be reached, unless they say otherwise: see
    /// [`Call::wait_for_ready`]. Default: no, they fail fast.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.config.wait_for_ready = wait;
        self
    }

    /// Adds an interceptor behind those that are there: it sees every call of the client.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.config.interceptors.add(interceptor);
        self
    }

    /// Whether every call is told as an event of `tracing`, at level DEBUG, when it has ended: method,
    /// code, time taken, trace; and whether a call without a trace begins one, in the metadata
    /// `traceparent` of W3C. Calls within a call of a server carry that call's trace on either way.
    /// Default: false.
    pub fn trace_calls(mut self, trace: bool) -> Self {
        if trace {
            self.config.interceptors.add(TraceCalls);
        }
        self
    }

    /// So many ids count as used when a connection begins. For tests of what happens at the last id;
    /// no part of the public API.
    #[doc(hidden)]
    pub fn ids_used(mut self, sequence: u64) -> Self {
        self.config.ids_used = sequence;
        self
    }

    /// Makes the client. Nothing is connected yet.
    pub fn build(self) -> Client {
        let backoff = Backoff::new(self.config.min_backoff, self.config.max_backoff);
        let manager = Manager { phase: Phase::Idle, backoff, not_before: None, failure: None, failures: 0 };
        #[cfg(feature = "tower")]
        let layers = self.layers;
        let shared = Arc::new_cyclic(|shared| {
            #[cfg(not(feature = "tower"))]
            let _: &Weak<Shared> = shared;
            Shared {
                config: self.config,
                peer: self.peer,
                target: Arc::new(self.target),
                manager: Mutex::new(manager),
                changed: Notify::new(),
                abandoned: Arc::default(),
                gauges: Arc::default(),
                #[cfg(feature = "tower")]
                layers: layers.map(|layers| layers(crate::tower::Next::connection(Weak::clone(shared)))),
            }
        });
        Client { shared }
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("peer", &self.peer).field("config", &self.config).finish_non_exhaustive()
    }
}

/// What a call does about a server that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It fails.
    FailFast,
    /// It waits.
    WaitForReady,
}

impl Patience {
    pub(crate) fn of(wait: bool) -> Self {
        if wait { Self::WaitForReady } else { Self::FailFast }
    }
}

trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Transport>>> + Send>>;

enum Target {
    Tcp(String),
    Custom(Box<dyn Fn() -> Connecting + Send + Sync>),
}

/// What the handles of a client share. Neither connections nor attempts to make one hold it, so it ends
/// with the last handle and the last call.
pub(crate) struct Shared {
    config: Config,
    peer: Arc<str>,
    target: Arc<Target>,
    manager: Mutex<Manager>,
    changed: Notify,
    /// Tells an attempt that nobody wants its connection any more.
    abandoned: Arc<Notify>,
    gauges: Arc<Gauges>,
    /// The layers around the connection. They do not keep us, or nobody would ever be gone.
    #[cfg(feature = "tower")]
    layers: Option<crate::tower::Next>,
}

struct Manager {
    phase: Phase,
    backoff: Backoff,
    /// The next attempt waits until then.
    not_before: Option<Instant>,
    /// Why the last attempt failed, until one succeeds.
    failure: Option<Arc<io::Error>>,
    /// How many attempts have failed, so that who waits for one knows when it has.
    failures: u64,
}

impl Manager {
    fn is_open(&self, connection: &Arc<Connection>) -> bool {
        matches!(&self.phase, Phase::Open(open) if Arc::ptr_eq(open, connection))
    }

    fn failed(&mut self, failure: io::Error) {
        self.failure = Some(Arc::new(failure));
        self.failures += 1;
        self.delay_next();
    }

    fn delay_next(&mut self) {
        let delay = self.backoff.next_delay();
        self.not_before = clock::now().checked_add(delay);
    }
}

/// ```text
///   Idle --call--> Connecting --> Open --lost or left--> Idle
///                       \--failed--> Idle
/// ```
enum Phase {
    Idle,
    Connecting,
    Open(Arc<Connection>),
    Closed,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Manager> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step towards a connection: the open one, `None` while an attempt is under way, or why
    /// there is none. `began` is how many attempts had failed when this caller began to wait for one.
    fn step(
        self: &Arc<Self>,
        began: &mut Option<u64>,
        patience: Patience,
    ) -> Result<Option<Arc<Connection>>, CallError> {
        let mut manager = self.lock();
        match &manager.phase {
            Phase::Open(connection) if !connection.has_failed() => return Ok(Some(Arc::clone(connection))),
            Phase::Closed => return Err(CallError::Closed),
            _ => {}
        }
        let now = clock::now();
        let wait = manager.not_before.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        // The attempt that this call waited for has failed, or one has failed so recently that the
        // next is not due: fail fast. After the loss of a good connection there is no failure.
        let failed = began.is_some_and(|failures| failures != manager.failures) || !wait.is_zero();
        if let Some(failure) = manager.failure.as_ref().filter(|_| failed && patience == Patience::FailFast) {
            return Err(CallError::Connect {
                peer: Arc::clone(&self.peer),
                retry_after: wait,
                source: Arc::clone(failure),
            });
        }
        if matches!(manager.phase, Phase::Idle) {
            let runtime = Handle::try_current().map_err(|_| CallError::NoRuntime)?;
            manager.phase = Phase::Connecting;
            runtime.spawn(Attempt::new(self).run(wait));
        }
        began.get_or_insert(manager.failures);
        Ok(None)
    }
}

impl Target {
    async fn connect(&self) -> io::Result<Box<dyn Transport>> {
        match self {
            Self::Custom(connect) => connect().await,
            Self::Tcp(address) => {
                let socket = TcpStream::connect(address.as_str()).await?;
                // Requests are gathered here; the kernel must not hold them back once more.
                socket.set_nodelay(true)?;
                Ok(Box::new(socket))
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let manager = self.manager.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Phase::Open(connection) = &manager.phase {
            connection.close();
        }
        self.abandoned.notify_waiters();
    }
}

/// One attempt to connect. If it is dropped with its runtime, the next call begins another. It does
/// not keep the client: when nobody has that any more, it ends.
struct Attempt {
    shared: Weak<Shared>,
    target: Arc<Target>,
    /// Ready when nobody wants the connection any more. Made before the attempt is begun, so that it
    /// misses nothing.
    abandoned: Pin<Box<OwnedNotified>>,
    limit: Duration,
    _connecting: Token<Arc<Gauge>>,
    done: bool,
}

impl Attempt {
    fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            target: Arc::clone(&shared.target),
            abandoned: Box::pin(Arc::clone(&shared.abandoned).notified_owned()),
            limit: shared.config.connect_timeout,
            _connecting: Token::new(Arc::clone(&shared.gauges.connecting)),
            done: false,
        }
    }

    async fn run(mut self, wait: Duration) {
        let (target, limit) = (Arc::clone(&self.target), self.limit);
        let connect = async {
            sleep(wait).await;
            match timeout(limit, target.connect()).await {
                Ok(connected) => connected,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}"))),
            }
        };
        let connected = match select(self.abandoned.as_mut(), pin!(connect)).await {
            Either::Left(_) => None,
            Either::Right((connected, _)) => Some(connected),
        };
        self.done = true;
        // Without an upgrade the last handle has gone in this very moment.
        let (Some(connected), Some(shared)) = (connected, self.shared.upgrade()) else { return };
        match connected {
            Ok(transport) => {
                drop(self);
                Self::drive(shared, transport).await;
            }
            Err(error) => {
                tracing::debug!(peer = %shared.peer, %error, "cannot connect");
                shared.gauges.failed_connects.fetch_add(1, Ordering::Relaxed);
                self.failed(error);
            }
        }
    }

    async fn drive(shared: Arc<Shared>, transport: Box<dyn Transport>) {
        let connection = Connection::new(Arc::clone(&shared.peer), shared.config.ids_used, shared.config.stream_window);
        shared.gauges.connected(&connection);
        {
            let mut manager = shared.lock();
            if matches!(manager.phase, Phase::Closed) {
                return;
            }
            manager.phase = Phase::Open(Arc::clone(&connection));
            manager.failure = None;
        }
        shared.changed.notify_waiters();
        let driver = Driver::new(transport, Arc::clone(&connection), Arc::clone(&shared.gauges), &shared.config);
        // Only callers keep the client: its connection alone must not.
        let weak = Arc::downgrade(&shared);
        drop(shared);
        let failure = driver.run().await;
        let Some(shared) = weak.upgrade() else { return };
        {
            let mut manager = shared.lock();
            // One that has been replaced says nothing about the next attempt.
            if manager.is_open(&connection) {
                manager.phase = Phase::Idle;
                match failure {
                    Some(cause) => manager.failed(io::Error::other(cause)),
                    // The first attempt after a loss is delayed, too: all clients of a server lose it
                    // together.
                    None => {
                        let delay = manager.backoff.after_loss();
                        manager.not_before = clock::now().checked_add(delay);
                    }
                }
            }
        }
        shared.changed.notify_waiters();
    }

    fn failed(&self, error: io::Error) {
        let Some(shared) = self.shared.upgrade() else { return };
        {
            let mut manager = shared.lock();
            manager.failed(error);
            if matches!(manager.phase, Phase::Connecting) {
                manager.phase = Phase::Idle;
            }
        }
        shared.changed.notify_waiters();
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.done {
            self.failed(io::Error::other("the attempt was given up: its runtime ended, or the connector panicked"));
        }
    }
}

#[cfg(all(test, shuttle))]
impl Client {
    /// Makes an attempt to connect look under way, which a test of schedules plays.
    pub(crate) fn begin_attempt(&self) {
        self.shared.lock().phase = Phase::Connecting;
    }

    /// The attempt succeeds with `transport`; drives the connection to its end.
    pub(crate) fn drive<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        transport: T,
    ) -> impl Future<Output = ()> + use<T> {
        Attempt::drive(Arc::clone(&self.shared), Box::new(transport))
    }

    /// The attempt fails.
    pub(crate) fn fail_attempt(&self) {
        drop(Attempt::new(&self.shared));
    }
}

/// What a call brought besides its value.
#[derive(Debug)]
pub struct Response<R> {
    /// The value.
    pub value: R,
    /// The metadata that handlers of the server put beside it.
    pub metadata: Metadata,
    pub(crate) _private: PhantomData<()>,
}

/// A PING more often than this is a flood of our own.
const MIN_KEEPALIVE: Duration = Duration::from_millis(10);
