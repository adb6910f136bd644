//! The client: a cheap handle that connects when there is a call to send.

use std::{
    fmt,
    future::Future,
    io,
    marker::PhantomData,
    mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rpc_codec::CodecId;
use rpc_core::Metadata;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Handle,
    sync::Notify,
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
};

/// A handle to one server, over one multiplexed connection.
///
/// Cheap to clone; clones share the connection. It connects when there is a call to send, and again
/// after a loss, with backoff. When the last handle and the last call are gone, it says goodbye.
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
        ClientBuilder { config: Config::default(), peer, target: Target::Tcp(address) }
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
        ClientBuilder { config: Config::default(), peer: peer.into().into(), target: Target::Custom(Box::new(connect)) }
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
    }

    /// The client's figures at this moment.
    pub fn snapshot(&self) -> ClientSnapshot {
        let (calls, connected) = match &self.shared.lock().phase {
            Phase::Open(connection) => (connection.calls() as u64, true),
            _ => (0, false),
        };
        let counters = &self.shared.counters;
        ClientSnapshot {
            calls,
            connected,
            late_answers: counters.late_answers.load(Ordering::Relaxed),
            connects: counters.connects.load(Ordering::Relaxed),
            failed_connects: counters.failed_connects.load(Ordering::Relaxed),
        }
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
    /// The attempt that it waits for fails, or the last one did and the next is not due yet.
    ///
    /// # Cancel safety
    ///
    /// An attempt that was begun goes on for whoever else waits for it.
    pub(crate) async fn connected(&self) -> Result<Arc<Connection>, CallError> {
        let mut began = false;
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            match self.shared.step(&mut began)? {
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
        let mut manager = self.shared.lock();
        if matches!(&manager.phase, Phase::Open(connection) if Arc::ptr_eq(connection, gone)) {
            manager.phase = Phase::Idle;
        }
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

/// The figures of a client at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientSnapshot {
    /// Calls that are out on the open connection.
    pub calls: u64,
    /// Whether there is an open connection.
    pub connected: bool,
    /// Answers that came when their caller had gone.
    pub late_answers: u64,
    /// Connections made.
    pub connects: u64,
    /// Attempts that failed.
    pub failed_connects: u64,
}

/// Settings of a client to be.
#[must_use = "a builder does nothing until it is built"]
pub struct ClientBuilder {
    config: Config,
    peer: Arc<str>,
    target: Target,
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

    /// How long an attempt to connect may take, name resolution included. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// The delays between attempts to connect: doubling from `min` to `max`, each with jitter. The
    /// first attempt after a loss waits, too. Default: 50 ms to 10 s.
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

    /// Makes the client. Nothing is connected yet.
    pub fn build(self) -> Client {
        let backoff = Backoff::new(self.config.min_backoff, self.config.max_backoff);
        Client {
            shared: Arc::new(Shared {
                config: self.config,
                peer: self.peer,
                target: self.target,
                manager: Mutex::new(Manager { phase: Phase::Idle, backoff, not_before: None, failure: None }),
                changed: Notify::new(),
                counters: Arc::default(),
            }),
        }
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("peer", &self.peer).field("config", &self.config).finish_non_exhaustive()
    }
}

/// What a connection's task counts for its client.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) late_answers: AtomicU64,
    connects: AtomicU64,
    failed_connects: AtomicU64,
}

trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Transport>>> + Send>>;

enum Target {
    Tcp(String),
    Custom(Box<dyn Fn() -> Connecting + Send + Sync>),
}

/// What the handles of a client share. Connections do not hold it, so it ends with the last handle.
struct Shared {
    config: Config,
    peer: Arc<str>,
    target: Target,
    manager: Mutex<Manager>,
    changed: Notify,
    counters: Arc<Counters>,
}

struct Manager {
    phase: Phase,
    backoff: Backoff,
    /// The next attempt waits until then.
    not_before: Option<Instant>,
    /// Why the last attempt failed, until one succeeds.
    failure: Option<Arc<io::Error>>,
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
    /// there is none. `began` is whether this caller has waited for an attempt.
    fn step(self: &Arc<Self>, began: &mut bool) -> Result<Option<Arc<Connection>>, CallError> {
        let mut manager = self.lock();
        match &manager.phase {
            Phase::Open(connection) if !connection.has_failed() => return Ok(Some(Arc::clone(connection))),
            Phase::Open(_) | Phase::Connecting => {
                *began = true;
                return Ok(None);
            }
            Phase::Closed => return Err(CallError::Closed),
            Phase::Idle => {}
        }
        let now = clock::now();
        let wait = manager.not_before.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        // The attempt that this call waited for has failed, or one has failed so recently that the
        // next is not due: fail fast. After the loss of a good connection there is no failure.
        if let Some(failure) = manager.failure.as_ref().filter(|_| *began || !wait.is_zero()) {
            return Err(CallError::Connect {
                peer: Arc::clone(&self.peer),
                retry_after: wait,
                source: Arc::clone(failure),
            });
        }
        let runtime = Handle::try_current().map_err(|_| CallError::NoRuntime)?;
        manager.phase = Phase::Connecting;
        *began = true;
        let attempt = Attempt { shared: Arc::clone(self), done: false };
        runtime.spawn(attempt.run(wait));
        Ok(None)
    }

    async fn connect(&self) -> io::Result<Box<dyn Transport>> {
        match &self.target {
            Target::Custom(connect) => connect().await,
            Target::Tcp(address) => {
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
    }
}

/// One attempt to connect. If it is dropped with its runtime, the next call begins another.
struct Attempt {
    shared: Arc<Shared>,
    done: bool,
}

impl Attempt {
    async fn run(mut self, wait: Duration) {
        sleep(wait).await;
        let limit = self.shared.config.connect_timeout;
        let connected = match timeout(limit, self.shared.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}"))),
        };
        self.done = true;
        match connected {
            Ok(transport) => self.drive(transport).await,
            Err(error) => {
                tracing::debug!(peer = %self.shared.peer, %error, "cannot connect");
                self.shared.counters.failed_connects.fetch_add(1, Ordering::Relaxed);
                self.failed(error);
            }
        }
    }

    async fn drive(self, transport: Box<dyn Transport>) {
        let shared = &self.shared;
        shared.counters.connects.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(Arc::clone(&shared.peer));
        {
            let mut manager = shared.lock();
            if matches!(manager.phase, Phase::Closed) {
                return;
            }
            manager.phase = Phase::Open(Arc::clone(&connection));
            manager.failure = None;
        }
        shared.changed.notify_waiters();
        let driver = Driver::new(transport, Arc::clone(&connection), Arc::clone(&shared.counters), &shared.config);
        // Only callers keep the client: its connection alone must not.
        let weak = Arc::downgrade(shared);
        drop(self);
        let failure = driver.run().await;
        let Some(shared) = weak.upgrade() else { return };
        {
            let mut manager = shared.lock();
            if failure.is_none() {
                manager.backoff.reset();
            }
            // One that has been replaced says nothing about the next attempt.
            if matches!(&manager.phase, Phase::Open(open) if Arc::ptr_eq(open, &connection)) {
                // The first attempt after a loss is delayed, too: all clients of a server lose it
                // together.
                let delay = manager.backoff.next_delay();
                manager.not_before = clock::now().checked_add(delay);
                manager.failure = failure.map(|cause| Arc::new(io::Error::other(cause)));
                manager.phase = Phase::Idle;
            }
        }
        shared.changed.notify_waiters();
    }

    fn failed(&self, error: io::Error) {
        {
            let mut manager = self.shared.lock();
            let delay = manager.backoff.next_delay();
            manager.not_before = clock::now().checked_add(delay);
            manager.failure = Some(Arc::new(error));
            if matches!(manager.phase, Phase::Connecting) {
                manager.phase = Phase::Idle;
            }
        }
        self.shared.changed.notify_waiters();
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.done {
            self.failed(io::Error::other("the attempt was given up: its runtime ended, or the connector panicked"));
        }
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
