//! How a client gets to its connection: one attempt at a time, for all who wait for it.

use std::{
    future::Future,
    io, mem,
    pin::{Pin, pin},
    sync::{Arc, PoisonError, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::{
    FutureExt,
    future::{Either, select},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Handle,
    sync::{Notify, futures::OwnedNotified},
    task::coop,
    time::{sleep, timeout},
};

use crate::{
    backoff::Backoff,
    client::Patience,
    clock,
    config::Config,
    connection::Connection,
    driver::Driver,
    error::CallError,
    gauges::{Gauge, Gauges, Token},
    parting::Parting,
    sync::{Mutex, MutexGuard},
};

/// What a connection is made of.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

pub(crate) type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Transport>>> + Send>>;

/// Where connections come from.
pub(crate) enum Target {
    Tcp(String),
    Custom(Box<dyn Fn() -> Connecting + Send + Sync>),
}

/// What the handles of a client share. Neither connections nor attempts to make one hold it, so it ends
/// with the last handle and the last call.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) peer: Arc<str>,
    pub(crate) target: Arc<Target>,
    pub(crate) manager: Mutex<Manager>,
    pub(crate) changed: Notify,
    /// Tells an attempt that nobody wants its connection any more.
    pub(crate) abandoned: Arc<Notify>,
    pub(crate) gauges: Arc<Gauges>,
    /// The layers around the connection. They do not keep us, or nobody would ever be gone.
    #[cfg(feature = "tower")]
    pub(crate) layers: Option<crate::tower::Next>,
}

/// Whether there is a connection, or when there may be one.
pub(crate) struct Manager {
    pub(crate) phase: Phase,
    backoff: Backoff,
    /// The next attempt waits until then.
    not_before: Option<Instant>,
    /// Why the last attempt failed, until one succeeds.
    failure: Option<Arc<io::Error>>,
    /// How many attempts have failed, so that who waits for one knows when it has.
    failures: u64,
    /// Since a server has answered a call, one was parted with that drained before it did.
    in_vain: bool,
}

impl Manager {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self { phase: Phase::Idle, backoff, not_before: None, failure: None, failures: 0, in_vain: false }
    }

    pub(crate) fn is_open(&self, connection: &Arc<Connection>) -> bool {
        matches!(&self.phase, Phase::Open(open) if Arc::ptr_eq(open, connection))
    }

    fn failed(&mut self, failure: io::Error) {
        self.failure = Some(Arc::new(failure));
        self.failures += 1;
        self.delay_next();
    }

    /// The client parts with its open connection: what that means for the next attempt is decided here alone.
    pub(crate) fn part(&mut self, parting: Parting) {
        self.phase = Phase::Idle;
        match parting {
            Parting::Left => {
                self.in_vain = false;
                self.not_before = None;
                self.backoff.reset();
            }
            // The first attempt after a loss is delayed, too: all clients of a server lose it together.
            Parting::Lost => {
                self.in_vain = false;
                let delay = self.backoff.after_loss();
                self.wait(delay);
            }
            // A server that is replaced may take the connection and have to leave it: the next one is tried at once, and
            // counts as if it had been waited for. If that leaves as well, there is none that serves.
            Parting::InVain(_) if !mem::replace(&mut self.in_vain, true) => {
                self.backoff.next_delay();
            }
            Parting::InVain(cause) | Parting::Failed(cause) => self.failed(io::Error::other(cause)),
            // Behind one that served nothing this may be another. Nobody fails for that, but it is not tried at once.
            Parting::Undecided if self.in_vain => self.delay_next(),
            Parting::Undecided | Parting::OwnDoing => {}
        }
    }

    /// A connection has ended that the client parted with before it was known what it was worth. By now there may be
    /// another, so this changes only what becomes of those that are parted with from now on.
    fn decide(&mut self, parting: Parting) {
        match parting {
            Parting::Left | Parting::Lost => {
                self.in_vain = false;
                // It says nothing about a server that could not be reached since.
                if self.failure.is_none() {
                    self.backoff.reset();
                }
            }
            Parting::InVain(_) | Parting::Failed(_) => {
                if !mem::replace(&mut self.in_vain, true) {
                    self.backoff.next_delay();
                }
            }
            Parting::Undecided | Parting::OwnDoing => {}
        }
    }

    fn delay_next(&mut self) {
        let delay = self.backoff.next_delay();
        self.wait(delay);
    }

    /// The next attempt is due after `delay`, and never at once because that is too long for a clock.
    fn wait(&mut self, delay: Duration) {
        self.not_before = Some(clock::now() + delay.min(FOREVER));
    }
}

/// ```text
///   Idle --call--> Connecting --> Open --lost or left--> Idle
///                       \--failed--> Idle
/// ```
pub(crate) enum Phase {
    Idle,
    Connecting,
    Open(Arc<Connection>),
    Closed,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Manager> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step towards a connection: the open one, `None` while an attempt is under way, or why
    /// there is none. `began` is how many attempts had failed when this caller began to wait for one.
    pub(crate) fn step(
        self: &Arc<Self>,
        began: &mut Option<u64>,
        patience: Patience,
    ) -> Result<Option<Arc<Connection>>, CallError> {
        let mut manager = self.lock();
        match &manager.phase {
            Phase::Open(connection) if !connection.is_about_to_part() => return Ok(Some(Arc::clone(connection))),
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
        began.get_or_insert(manager.failures);
        if matches!(manager.phase, Phase::Idle) {
            let runtime = Handle::try_current().map_err(|_| CallError::NoRuntime)?;
            manager.phase = Phase::Connecting;
            drop(manager);
            // Outside of the lock: a runtime that shuts down drops what it is given then and there. To wait for
            // that attempt would be to begin one after the other.
            let attempt = runtime.spawn(Attempt::new(self).run(wait));
            if matches!(coop::unconstrained(attempt).now_or_never(), Some(Err(refused)) if refused.is_cancelled()) {
                return Err(CallError::NoRuntime);
            }
        }
        Ok(None)
    }
}

impl Target {
    async fn connect(&self) -> io::Result<Box<dyn Transport>> {
        match self {
            Self::Custom(connect) => connect().await,
            Self::Tcp(address) => {
                let socket = TcpStream::connect(address.as_str()).await?;
                rpc_core::socket::prepare(&socket)?;
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

/// One attempt to connect. If it is dropped with its runtime, whoever waits for it or comes next begins another. It
/// does not keep the client: when nobody has that any more, it ends.
pub(crate) struct Attempt {
    shared: Weak<Shared>,
    target: Arc<Target>,
    /// Ready when nobody wants the connection any more. Made before the attempt is begun, so that it
    /// misses nothing.
    abandoned: Pin<Box<OwnedNotified>>,
    limit: Duration,
    _connecting: Token<Arc<Gauge>>,
    begun: bool,
    done: bool,
}

impl Attempt {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            target: Arc::clone(&shared.target),
            abandoned: Box::pin(Arc::clone(&shared.abandoned).notified_owned()),
            limit: shared.config.connect_timeout,
            _connecting: Token::new(Arc::clone(&shared.gauges.connecting)),
            begun: false,
            done: false,
        }
    }

    async fn run(mut self, wait: Duration) {
        self.begun = true;
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
                self.ends(Some(error));
            }
        }
    }

    pub(crate) async fn drive(shared: Arc<Shared>, transport: Box<dyn Transport>) {
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
        let mut reign = Reign { shared: Arc::downgrade(&shared), connection, parting: None };
        drop(shared);
        reign.parting = Some(driver.run().await);
    }

    /// It has come to nothing, and failed unless it never began.
    pub(crate) fn ends(&self, failure: Option<io::Error>) {
        let Some(shared) = self.shared.upgrade() else { return };
        {
            let mut manager = shared.lock();
            if let Some(failure) = failure {
                manager.failed(failure);
            }
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
            let why = "the attempt was given up: its runtime ended, or the connector panicked";
            self.ends(self.begun.then(|| io::Error::other(why)));
        }
    }
}

/// Thirty years: longer than anybody waits, and within the range of every clock.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The time of an open connection. Its drop makes way for the next one: also where the connection is dropped with its
/// runtime, or its transport panics.
struct Reign {
    shared: Weak<Shared>,
    connection: Arc<Connection>,
    /// What it was worth, if it came to its end.
    parting: Option<Parting>,
}

impl Drop for Reign {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        {
            let mut manager = shared.lock();
            let (is_open, parting) = (manager.is_open(&self.connection), self.parting.take());
            let parting = parting.unwrap_or_else(|| self.connection.dropped());
            if is_open {
                manager.part(parting);
            } else if self.connection.was_left_undecided() {
                manager.decide(parting);
            }
            // Otherwise it has been replaced, and was judged then.
        }
        shared.changed.notify_waiters();
    }
}
