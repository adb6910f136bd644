//! The server: binds, accepts, hands each socket to a connection, and drains.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use futures::future::{Either, select};
use rpc_codec::{GoAwayReason, Hello, builtin::Health};
use rpc_core::{
    CallId, ConnectionId, ConnectionInfo, Extensions,
    limit::{ConcurrencyError, ConcurrencyLimit, ConcurrencyPermit, Rate, RateError, RateLimit},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, ToSocketAddrs},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    accept::{Listener, accept_all},
    addresses::{Addresses, Place},
    bind::bind,
    clock::Reading,
    config::Config,
    connection::Connection,
    error::{BindError, BuildError},
    feedback::{Feedback, SharedFeedback},
    gauges::{
        CONNECTION_ITEM_RATE, CONNECTION_RATE, CONNECTIONS, GLOBAL_BODIES, GLOBAL_FRAMES, GLOBAL_ITEM_RATE,
        GLOBAL_RATE, Gauges, Share, Snapshot,
    },
    handlers::{
        BlockingHandler, ConcurrencyHandler, DeadlineHandler, GroupHandler, ItemRateHandler, PriorityHandler,
        RateHandler, TenantRateHandler, TraceHandler,
    },
    health::HealthState,
    limits::Limits,
    live::LiveLimits,
    method::Methods,
    peer::{ConnectionSnapshot, Peer},
    pipeline::Pipeline,
    turned_away::TooMany,
};

/// A server: services, limits, and the pipeline that each connection gets.
///
/// It has no socket of its own. [`Server::bind`] and [`Server::listen`] give it one, and
/// [`Server::serve_connection`] serves any transport. Clones are the same server.
#[derive(Clone, Debug)]
pub struct Server {
    core: Arc<ServerCore>,
}

impl Server {
    pub(crate) fn new(core: ServerCore) -> Self {
        Self { core: Arc::new(core) }
    }

    /// Listens on `address`.
    ///
    /// Up to 1,024 peers wait in the system's queue until they are accepted, or as many as the system allows (on
    /// Linux `net.core.somaxconn`). With [`Self::listen`] they are as many as the listener has.
    ///
    /// # Errors
    ///
    /// The address cannot be resolved or bound.
    pub async fn bind(&self, address: impl ToSocketAddrs + fmt::Display) -> Result<BoundServer, BindError> {
        let text = address.to_string();
        let error = |source| BindError { address: text.clone(), source };
        let listener = bind(address).await.map_err(error)?;
        self.listen(listener).map_err(error)
    }

    /// Serves on a listener that exists already.
    ///
    /// # Errors
    ///
    /// The listener does not know its address.
    pub fn listen(&self, listener: TcpListener) -> io::Result<BoundServer> {
        let local_addr = listener.local_addr()?;
        Ok(BoundServer { server: self.clone(), listener, local_addr })
    }

    /// Accepts from any listener and serves until [`ServerHandle::shutdown`], then closes the listener
    /// and drains; as [`BoundServer::serve`] does for a socket.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the listener. Connections go on until the runtime ends.
    pub async fn serve_with<L: Listener>(&self, mut listener: L) -> Drained {
        let core = &self.core;
        let mut serve = |transport, peer, known| {
            let serving = Arc::clone(core);
            core.tracker.spawn(async move { serving.serve(transport, peer, known).await });
        };
        let errors = &core.gauges.accept_errors;
        core.leaving.run_until_cancelled(accept_all(&mut listener, errors, &mut serve)).await;
        // Who connected a moment ago may have sent calls. Accepted, it is told that none was executed;
        // reset together with the listener, it could not know.
        let _ = timeout(BACKLOG_TIME, accept_all(&mut listener, errors, &mut serve)).await;
        // Closed before anything is waited for: whoever connects from now on shall go elsewhere.
        drop(listener);
        core.drain().await
    }

    /// Serves one connection until it is gone and all of its calls have ended.
    ///
    /// The transport may be anything: a socket, a TLS stream, a pipe in memory. It counts as a
    /// connection of this server, and ends with it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the transport and cancels its calls.
    pub async fn serve_connection<T>(&self, transport: T, peer: Option<SocketAddr>)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        self.serve_connection_with(transport, peer, Extensions::new()).await;
    }

    /// As [`Server::serve_connection`], with what is known of the connection already, such as whom TLS
    /// found at the other end: handlers and services find it with [`ConnectionInfo::get`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Server::serve_connection`].
    pub async fn serve_connection_with<T>(&self, transport: T, peer: Option<SocketAddr>, known: Extensions)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let _token = self.core.tracker.token();
        self.core.serve(transport, peer, known).await;
    }

    /// A handle to watch and to stop the server.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { core: Arc::clone(&self.core) }
    }
}

/// A server with a listening socket; [`BoundServer::serve`] runs it.
#[derive(Debug)]
pub struct BoundServer {
    server: Server,
    listener: TcpListener,
    local_addr: SocketAddr,
}

impl BoundServer {
    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// A handle to watch and to stop the server.
    pub fn handle(&self) -> ServerHandle {
        self.server.handle()
    }

    /// Accepts and serves connections until [`ServerHandle::shutdown`], then drains: no connection
    /// is accepted any more, calls that run may finish within the grace period, the rest is cut off.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the listener. Connections go on until the runtime ends.
    pub async fn serve(self) -> Drained {
        self.server.serve_with(self.listener).await
    }

    /// As [`BoundServer::serve`], but shuts down when `signal` is ready, too, after the notice that
    /// [`shutdown_notice`](crate::ServerBuilder::shutdown_notice) gives.
    pub async fn serve_until(self, signal: impl Future<Output = ()>) -> Drained {
        let handle = self.handle();
        serve_until(&handle, self.serve(), signal).await
    }
}

/// Serves until `signal` is ready, and then for the time of the notice.
pub(crate) async fn serve_until(
    handle: &ServerHandle,
    serve: impl Future<Output = Drained>,
    signal: impl Future<Output = ()>,
) -> Drained {
    let signal = async {
        signal.await;
        let notice = handle.core.config.shutdown_notice;
        if !notice.is_zero() {
            handle.announce_shutdown();
            sleep(notice).await;
        }
    };
    let serve = std::pin::pin!(serve);
    match select(serve, std::pin::pin!(signal)).await {
        Either::Left((drained, _)) => drained,
        Either::Right(((), serve)) => {
            handle.shutdown();
            serve.await
        }
    }
}

/// Watches, changes and stops a server. Clones are handles to the same server.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    core: Arc<ServerCore>,
}

impl ServerHandle {
    /// Begins to shut down, and returns at once: new calls are turned away, running ones may finish. To say it
    /// again is harmless.
    ///
    /// There is nothing to await here. [`Self::drain`] shuts down and waits: `handle.drain().await`; and
    /// [`BoundServer::serve`] returns when it is done, whoever began it.
    pub fn shutdown(&self) {
        self.core.begin_drain();
    }

    /// From now on the health says [`Health::Draining`], and all goes on as before. It comes some time
    /// before [`Self::shutdown`], so that nobody finds the server gone who could have known.
    pub fn announce_shutdown(&self) {
        self.core.health.leave();
    }

    /// How the service of this name is, and the server, if it is empty: the worst that is known of either.
    /// `None`, if there is no such service. A server that is shut down is draining.
    pub fn health(&self, service: &str) -> Option<Health> {
        self.core.health.of(service)
    }

    /// Sets how the service of this name is, or the whole server, if it is empty; `false`, if there is no
    /// such service. It is only told: calls are served or refused as before.
    pub fn set_health(&self, service: &str, health: Health) -> bool {
        self.core.health.set(service, health)
    }

    /// Shuts down without a grace period: what runs is cut off now. Whoever waits for the shutdown is
    /// told which calls that were.
    pub fn stop(&self) {
        self.core.begin_drain();
        self.core.enter_phase(Phase::Stopping);
    }

    /// Shuts down and waits until every connection is gone: for the grace period, and for a second behind it at
    /// most, whatever peers and services do. Of several who wait, the first to be ready is told which calls were
    /// cut off.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the server draining: each connection still ends with the grace period.
    #[doc(alias = "graceful")]
    pub async fn drain(&self) -> Drained {
        self.core.drain().await
    }

    /// The server's figures at this moment.
    pub fn snapshot(&self) -> Snapshot {
        self.core.gauges.snapshot()
    }

    /// What each open connection has in buffers, in the order in which they came: for who looks for the peer that does
    /// not read.
    pub fn connections(&self) -> Vec<ConnectionSnapshot> {
        let connections = self.core.connections.iter();
        let mut snapshots: Vec<_> = connections.map(|entry| entry.snapshot(*entry.key())).collect();
        snapshots.sort_unstable_by_key(|snapshot| snapshot.id);
        snapshots
    }

    /// Waits for `event`, and says whether the server was not shut down before.
    #[cfg(feature = "metrics")]
    pub(crate) async fn is_serving_after<T>(&self, event: impl Future<Output = T>) -> bool {
        self.core.leaving.run_until_cancelled(event).await.is_some()
    }

    /// The limits of the server, to be read, changed and tried out while calls run.
    pub fn limits(&self) -> LiveLimits {
        LiveLimits::new(&self.core)
    }

    /// Sets the limit of calls in flight in the whole server. It may lie below what is in flight;
    /// it then holds as soon as enough calls have ended. `None` is no limit.
    ///
    /// # Errors
    ///
    /// The limit is zero.
    pub fn set_max_concurrent_calls(&self, max: Option<u64>) -> Result<(), ConcurrencyError> {
        self.core.limits.global.set_max(max)
    }

    /// Sets the limit of blocking calls in flight in the whole server. It may lie below what is in
    /// flight; it then holds as soon as enough calls have ended.
    ///
    /// # Errors
    ///
    /// The limit is zero.
    pub fn set_max_blocking_calls(&self, max: u64) -> Result<(), ConcurrencyError> {
        self.core.limits.blocking.set_max(Some(max))
    }

    /// Sets the rate of the whole server. What the bucket owes stays owed.
    ///
    /// # Errors
    ///
    /// The rate cannot be; or the server was built without a rate limit.
    pub fn set_rate(&self, rate: Rate) -> Result<(), SetRateError> {
        let limit = self.core.global_rate.as_ref().ok_or(SetRateError::NoRateLimit)?;
        Ok(limit.reconfigure(rate, Reading::now().ticks)?)
    }
}

/// The server's rate cannot be changed like that.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetRateError {
    /// The rate cannot be.
    #[error("the rate cannot be")]
    Rate(#[from] RateError),
    /// The pipelines of open connections have no handler for it.
    #[error("the server was built without a rate limit")]
    NoRateLimit,
}

/// How a shutdown went.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Drained {
    /// Calls that did not finish within the grace period.
    pub cut: Vec<CutCall>,
    /// Connections that did not even end after that, such as one whose service blocks its thread. A
    /// connection ends when its blocking calls have ended.
    pub stuck_connections: u64,
}

/// A call that the shutdown cut off.
#[derive(Clone, Debug)]
pub struct CutCall {
    /// The call.
    pub id: CallId,
    /// The path of its method.
    pub method: String,
    /// The connection it came by.
    pub connection: ConnectionInfo,
    /// Whether its service had been called.
    pub started: bool,
}

/// What a server is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Serving = 0,
    /// Finishing what was accepted.
    Draining = 1,
    /// Cutting off what is left.
    Stopping = 2,
}

/// What the user changes about the pipeline of each new connection.
pub(crate) type Initializer = Box<dyn Fn(&mut Pipeline, &ConnectionInfo) + Send + Sync>;

/// What the connections of a server share.
pub(crate) struct ServerCore {
    pub(crate) config: Config,
    pub(crate) methods: Methods,
    pub(crate) limits: Arc<Limits>,
    pub(crate) feedback: SharedFeedback,
    pub(crate) gauges: Gauges,
    health: Arc<HealthState>,
    global_rate: Option<Arc<RateLimit>>,
    global_item_rate: Option<Arc<RateLimit>>,
    /// Of connections to come.
    connection_rate: Mutex<Option<Rate>>,
    connection_item_rate: Mutex<Option<Rate>>,
    initializer: Option<Initializer>,
    phase: AtomicU8,
    leaving: CancellationToken,
    tracker: TaskTracker,
    /// For waking every connection when the phase changes.
    connections: DashMap<ConnectionId, Arc<Peer>>,
    next_connection: AtomicU64,
    /// Connections that are being told that there are too many.
    told_too_many: Arc<ConcurrencyLimit>,
    addresses: Option<Arc<Addresses>>,
    cut: Mutex<Vec<CutCall>>,
}

impl ServerCore {
    pub(crate) fn new(
        config: Config,
        mut methods: Methods,
        initializer: Option<Initializer>,
        health: Arc<HealthState>,
    ) -> Result<Self, BuildError> {
        config.check()?;
        methods.check()?;
        let concurrency =
            |limit, max| ConcurrencyLimit::new(limit, max).map_err(|source| BuildError::Concurrency { limit, source });
        let rate = |limit, rate: Option<Rate>| {
            rate.map(|rate| RateLimit::new(limit, rate))
                .transpose()
                .map_err(|source| BuildError::Rate { limit, source })
        };
        // Connections make theirs of the same settings; they must not fail then.
        rate(CONNECTION_RATE, config.rate_per_connection)?;
        rate(CONNECTION_ITEM_RATE, config.item_rate_per_connection)?;
        rate("control frames", config.control_frame_rate)?;
        let limits = Arc::new(Limits::new(&config, &mut methods)?);
        let feedback = Feedback::new(&config, &limits, &methods)?.map(Arc::new);
        let connections = concurrency(CONNECTIONS, Some(config.max_connections))?;
        let bodies = concurrency(GLOBAL_BODIES, Some(config.body_budget))?;
        // Each connection waits for one frame at most, and they are bounded.
        let frames = ConcurrencyLimit::with_queue(GLOBAL_FRAMES, Some(config.frame_budget), u64::MAX)
            .map_err(|source| BuildError::Concurrency { limit: GLOBAL_FRAMES, source })?;
        Ok(Self {
            connection_rate: Mutex::new(config.rate_per_connection),
            connection_item_rate: Mutex::new(config.item_rate_per_connection),
            global_rate: rate(GLOBAL_RATE, config.rate)?.map(Arc::new),
            global_item_rate: rate(GLOBAL_ITEM_RATE, config.item_rate)?.map(Arc::new),
            gauges: Gauges::new(Arc::clone(&limits), connections, bodies, frames),
            health,
            limits,
            feedback,
            methods,
            initializer,
            phase: AtomicU8::new(Phase::Serving as u8),
            leaving: CancellationToken::new(),
            tracker: TaskTracker::new(),
            connections: DashMap::new(),
            next_connection: AtomicU64::new(1),
            told_too_many: concurrency("told too many", Some(MAX_TURNED_AWAY))?,
            addresses: config.max_connections_per_address.map(Addresses::new),
            cut: Mutex::new(Vec::new()),
            config,
        })
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Serving,
            1 => Phase::Draining,
            _ => Phase::Stopping,
        }
    }

    pub(crate) fn note_cut(&self, call: CutCall) {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// The default pipeline: cheapest first, narrow to wide. Then the user's changes to it.
    pub(crate) fn build_pipeline(&self, pipeline: &mut Pipeline, connection: &ConnectionInfo, peer: &Peer) {
        if self.config.trace_calls {
            pipeline.add_last("trace", TraceHandler::new());
        }
        pipeline.add_last("deadline", DeadlineHandler::with(self.refusing_feedback()));
        if let Some(gate) = self.limits.priority() {
            pipeline.add_last("priority", PriorityHandler::new(Arc::clone(gate)));
        }
        if let Some(limit) = self.rate_of_connection(CONNECTION_RATE, peer) {
            pipeline.add_last("connection rate", RateHandler::new(limit));
        }
        if let Some(tenants) = self.limits.tenants().filter(|tenants| tenants.have_rates()) {
            pipeline.add_last("tenant rate", TenantRateHandler::new(tenants));
        }
        if let Some(limit) = &self.global_rate {
            pipeline.add_last("global rate", RateHandler::new(Arc::clone(limit)));
        }
        self.add_concurrency(pipeline, connection, peer);
        if let Some(limit) = self.rate_of_connection(CONNECTION_ITEM_RATE, peer) {
            pipeline.add_last("connection item rate", ItemRateHandler::new(limit));
        }
        if let Some(limit) = &self.global_item_rate {
            pipeline.add_last("global item rate", ItemRateHandler::new(Arc::clone(limit)));
        }
        if let Some(initializer) = &self.initializer {
            initializer(pipeline, connection);
        }
    }

    /// Makes a new connection's own rate of this name, if connections have one.
    fn rate_of_connection(&self, name: &'static str, peer: &Peer) -> Option<Arc<RateLimit>> {
        let rate = (*self.connection_rate(name))?;
        let limit = Arc::new(RateLimit::new(name, rate).expect("checked when it was set"));
        peer.has_rate(&limit);
        // It may have been changed for those who are known, just before this one was.
        if let Some(rate) = *self.connection_rate(name) {
            limit.reconfigure(rate, Reading::now().ticks).expect("checked when it was set");
        }
        Some(limit)
    }

    /// The handlers of calls in flight: those of few limits if there are no more, which cost less.
    fn add_concurrency(&self, pipeline: &mut Pipeline, connection: &ConnectionInfo, peer: &Peer) {
        let (limits, retry_delay) = (&self.limits, self.limits.retry_delay());
        if limits.are_many() {
            let waiting = Share::of(&self.gauges.waiting);
            let line = connection.id.as_u64();
            let of_connection = limits.of_connection();
            self.has_limit(peer, &of_connection);
            let feedback = self.refusing_feedback();
            let handler = GroupHandler::new(Arc::clone(limits), of_connection, line, waiting, feedback);
            pipeline.add_last("concurrency", handler);
            return;
        }
        let of_connection = limits.of_plain_connection();
        self.has_limit(peer, &of_connection);
        let handler = ConcurrencyHandler::new(of_connection, retry_delay);
        pipeline.add_last("concurrency", handler.in_front_of(&limits.blocking));
        if self.methods.any_blocking() {
            pipeline.add_last("blocking", BlockingHandler::new(Arc::clone(&limits.blocking), retry_delay));
        }
    }

    /// For handlers that refuse what would be late.
    fn refusing_feedback(&self) -> SharedFeedback {
        self.feedback.as_ref()?.if_it_refuses()
    }

    /// Makes the limit of a connection known to those who change it.
    fn has_limit(&self, peer: &Peer, limit: &Arc<ConcurrencyLimit>) {
        let _changing = self.limits.changing();
        peer.has_limit(limit);
        // They may have been changed for those who are known, since this one was made.
        limit.set_max(Some(self.limits.max_per_connection())).expect("it is never zero");
        if let Some(max_waiting) = self.limits.max_waiting() {
            limit.set_max_waiting(max_waiting);
        }
    }

    pub(crate) fn hello(&self, config: &Config) -> Hello {
        let mut hello = Hello::default();
        hello.max_frame = config.max_frame;
        hello.max_message = config.max_message;
        hello.advised_calls = u32::try_from(self.limits.max_pending()).unwrap_or(u32::MAX);
        hello.stream_window = config.stream_window;
        hello.codecs = config.codecs;
        hello
    }

    /// Serves a transport as one of our connections, or tells it that there are too many.
    async fn serve<T>(self: &Arc<Self>, transport: T, peer: Option<SocketAddr>, known: Extensions)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        match self.admit(peer) {
            Ok(places) => self.run(transport, peer, known, places).await,
            Err(too_many) => {
                self.gauges.turned_away.count(too_many);
                self.turn_away(transport, peer, too_many).await;
            }
        }
    }

    /// The places of a connection that is taken, or why it is not.
    fn admit(&self, peer: Option<SocketAddr>) -> Result<(ConcurrencyPermit, Option<Place>), TooMany> {
        let permit = self.gauges.connections.try_acquire().map_err(|_| TooMany::Connections)?;
        let place = match (&self.addresses, peer) {
            (Some(addresses), Some(peer)) => Some(addresses.enter(peer.ip()).ok_or(TooMany::OfAddress)?),
            _ => None,
        };
        Ok((permit, place))
    }

    async fn run<T>(
        self: &Arc<Self>,
        transport: T,
        peer: Option<SocketAddr>,
        extensions: Extensions,
        places: (ConcurrencyPermit, Option<Place>),
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let id = ConnectionId::new(self.next_connection.fetch_add(1, Ordering::Relaxed));
        let known = Arc::new(Peer::default());
        let registered = Registered::new(self, id, &known);
        let info = ConnectionInfo::new(id, peer);
        info.set_extensions(extensions);
        Connection::new(transport, Arc::clone(self), info, known).run().await;
        drop(registered);
        drop(places);
    }

    /// Tells a peer that there are too many connections; not even that, if there are far too many.
    async fn turn_away<T>(self: &Arc<Self>, transport: T, peer: Option<SocketAddr>, too_many: TooMany)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let Ok(_permit) = self.told_too_many.try_acquire() else { return };
        let id = ConnectionId::new(self.next_connection.fetch_add(1, Ordering::Relaxed));
        let known = Arc::default();
        // A shutdown waits for it as for any other, so it has to be told of it.
        let registered = Registered::new(self, id, &known);
        let mut connection = Connection::new(transport, Arc::clone(self), ConnectionInfo::new(id, peer), known);
        connection.turn_away(GoAwayReason::TooManyConnections, too_many.message());
        connection.run().await;
        drop(registered);
    }

    fn enter_phase(&self, phase: Phase) {
        self.health.leave();
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        let mut connections: Vec<_> = self.connections.iter().map(|entry| (*entry.key(), Arc::clone(&entry))).collect();
        // In an order that does not depend on a hash, so that a simulation repeats itself.
        connections.sort_unstable_by_key(|(id, _)| *id);
        connections.iter().for_each(|(_, peer)| peer.ready.wake_connection());
    }

    /// The connections that are open.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        self.connections.iter().map(|entry| Arc::clone(&entry)).collect()
    }

    /// The rate of calls of the whole server, or that of items.
    pub(crate) fn global_rate(&self, name: &str) -> Option<&Arc<RateLimit>> {
        if name == GLOBAL_ITEM_RATE { self.global_item_rate.as_ref() } else { self.global_rate.as_ref() }
    }

    /// The rate of calls of connections to come, or that of items.
    pub(crate) fn connection_rate(&self, name: &str) -> MutexGuard<'_, Option<Rate>> {
        let rate = if name == CONNECTION_ITEM_RATE { &self.connection_item_rate } else { &self.connection_rate };
        rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_drain(&self) {
        self.enter_phase(Phase::Draining);
        self.leaving.cancel();
        self.tracker.close();
    }

    async fn drain(self: &Arc<Self>) -> Drained {
        self.begin_drain();
        if timeout(self.config.drain_grace, self.tracker.wait()).await.is_err() {
            self.enter_phase(Phase::Stopping);
            let _ = timeout(STOP_TIME, self.tracker.wait()).await;
        }
        let cut = std::mem::take(&mut *self.cut.lock().unwrap_or_else(PoisonError::into_inner));
        Drained { cut, stuck_connections: self.tracker.len() as u64 }
    }
}

impl fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCore")
            .field("config", &self.config)
            .field("methods", &self.methods)
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

/// A connection in the list of those to wake; leaves it when dropped.
struct Registered<'a> {
    core: &'a ServerCore,
    id: ConnectionId,
}

impl<'a> Registered<'a> {
    fn new(core: &'a ServerCore, id: ConnectionId, peer: &Arc<Peer>) -> Self {
        core.connections.insert(id, Arc::clone(peer));
        Self { core, id }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.core.connections.remove(&self.id);
    }
}

/// How long a server that is leaving goes on accepting, so that what waits in its listener is told so.
const BACKLOG_TIME: Duration = Duration::from_millis(5);
/// How long connections get to say goodbye when the grace period is over: a little more than they take.
const STOP_TIME: Duration = Duration::from_secs(1);
/// Peers that are being told that there are too many of them.
const MAX_TURNED_AWAY: u64 = 64;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    /// Of two rates that are set at once.
    #[test]
    fn all_connections_have_the_same_rate_and_it_is_that_of_those_to_come() {
        let server = Server::builder().rate_per_connection(Rate::per_second(1.0).burst(1)).build().unwrap();
        let core = &server.core;
        let open: Vec<_> = (1..=500)
            .map(|id| {
                let (id, peer) = (ConnectionId::new(id), Arc::new(Peer::default()));
                let registered = Registered::new(core, id, &peer);
                core.build_pipeline(&mut Pipeline::new(), &ConnectionInfo::new(id, None), &peer);
                (registered, peer)
            })
            .collect();
        let bursts = || {
            let open = open.iter().map(|(_, peer)| peer.rate(CONNECTION_RATE).unwrap().burst());
            open.chain(
                core.connection_rate(CONNECTION_RATE)
                    .map(|rate| RateLimit::new(CONNECTION_RATE, rate).unwrap().burst()),
            )
        };
        let (limits, together) = (server.handle().limits(), Barrier::new(2));
        for _ in 0..200 {
            thread::scope(|scope| {
                for burst in [10, 20] {
                    let (limits, together) = (&limits, &together);
                    scope.spawn(move || {
                        together.wait();
                        limits.set_rate(CONNECTION_RATE, Rate::per_second(1_000.0).burst(burst)).unwrap();
                    });
                }
            });
            let of_those_to_come = bursts().last();
            assert_eq!(bursts().find(|&burst| Some(burst) != of_those_to_come), None);
        }
    }
}
