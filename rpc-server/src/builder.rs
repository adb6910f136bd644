//! From settings and services to a server.

use std::{fmt, sync::Arc, time::Duration};

use rpc_codec::CodecId;
use rpc_core::{ConnectionInfo, limit::Rate};

use crate::{
    config::Config,
    describe::{DescribeService, description},
    error::BuildError,
    health::{HealthService, HealthState},
    limits::{Adaptive, MethodLimits, Tenants, WaitQueue},
    method::{Methods, Service, ServiceMethods},
    pipeline::Pipeline,
    server::{Initializer, Server, ServerCore},
};

/// Settings and services of a server to be.
///
/// Every limit is per process: ten processes with a limit of 64 run up to 640 calls.
#[must_use = "a builder does nothing until it is built"]
#[derive(Default)]
pub struct ServerBuilder {
    pub(crate) config: Config,
    methods: Methods,
    initializer: Option<Initializer>,
    pub(crate) health: bool,
    pub(crate) describe: bool,
}

impl Server {
    /// A server to be configured.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }
}

impl ServerBuilder {
    /// Adds a service, usually `MyServiceServer::new(implementation)`.
    pub fn service(mut self, service: impl Service) -> Self {
        let name = service.name().to_owned();
        service.register(&mut ServiceMethods::new(name, &mut self.methods));
        self
    }

    /// Calls in flight in the whole server. A call is in flight from its admission until its
    /// response has been written or its connection is gone. Default: no limit.
    pub fn max_concurrent_calls(mut self, max: u64) -> Self {
        self.config.max_concurrent_calls = Some(max);
        self
    }

    /// Calls in flight on one connection. With many clients, a quarter of the limit of the whole
    /// server keeps one of them from taking all of it. Default: 1,024.
    pub fn max_concurrent_calls_per_connection(mut self, max: u64) -> Self {
        self.config.max_concurrent_calls_per_connection = max;
        self
    }

    /// Calls of blocking methods in flight in the whole server. Each has a thread of tokio's blocking
    /// pool while it runs, and counts until its work has ended and its response has been written, even
    /// if its caller or its connection is gone by then. Keep it below the runtime's
    /// `max_blocking_threads`, or calls wait for a thread. Default: 64.
    pub fn max_blocking_calls(mut self, max: u64) -> Self {
        self.config.max_blocking_calls = max;
        self
    }

    /// A limit of calls in flight that several methods share, such as all that write. Methods name it by
    /// `#[rpc(pool = "writes")]` or [`MethodLimits::pool`]. Default: there are none.
    pub fn pool(mut self, name: impl Into<String>, max: u64) -> Self {
        self.config.pools.push((name.into(), max));
        self
    }

    /// Limits of one method, `package.Service/Method`; whatever its attributes say. Said again, what is set
    /// replaces what was set before, and the rest stays. Default: its attributes'.
    pub fn method_limits(mut self, method: impl Into<String>, limits: MethodLimits) -> Self {
        self.config.method_limits.push((method.into(), limits));
        self
    }

    /// The default of each method of a service, `package.Service`, that has no limits of its own. Two
    /// methods with a maximum of 8 by default may have 16 calls in flight. Said again, as for
    /// [`Self::method_limits`]. Default: the attributes of the trait.
    pub fn service_limits(mut self, service: impl Into<String>, limits: MethodLimits) -> Self {
        self.config.service_limits.push((service.into(), limits));
        self
    }

    /// Bytes of requests in flight in the whole server, as they are encoded. A call takes the length of its
    /// body with its permit, so before it is decoded, and gives it back with that; one that finds too little
    /// left is refused. A body that comes in parts counts here when it is there, and in [`Self::body_budget`]
    /// before. At least [`Self::max_message`]. Default: no limit; but see
    /// [`Self::body_budget`].
    pub fn max_bytes_in_flight(mut self, bytes: u64) -> Self {
        self.config.max_bytes_in_flight = Some(bytes);
        self
    }

    /// Lets calls wait that a limit of calls in flight refuses. Calls of one connection pass in the order
    /// in which they came, and connections take turns; a connection with many waiting calls makes room for
    /// those of others. A call that waits is refused when it has waited for too long, and ends with its
    /// deadline, its caller or its connection. Default: off, it is refused at once.
    pub fn wait_queue(mut self, queue: WaitQueue) -> Self {
        self.config.wait_queue = Some(queue);
        self
    }

    /// Limits for each tenant, on all of its connections. Default: there are no tenants.
    pub fn tenants(mut self, tenants: Tenants) -> Self {
        self.config.tenants = Some(tenants);
        self
    }

    /// Finds the limit of calls in flight in the whole server from how long calls take. It is right where all
    /// calls are alike; quick and slow methods want one each, see [`Self::adaptive_method_limit`].
    /// Default: it is as it was set.
    pub fn adaptive_limit(mut self, adaptive: Adaptive) -> Self {
        self.config.adaptive = Some(adaptive);
        self
    }

    /// Finds the limit of calls of one method, `package.Service/Method`, from how long they take. All floors
    /// together must fit into [`Self::max_concurrent_calls`], and each into the maximum that is set for its method,
    /// which it does not exceed. Default: it is as it was set.
    pub fn adaptive_method_limit(mut self, method: impl Into<String>, adaptive: Adaptive) -> Self {
        let method = method.into();
        self.config.adaptive_methods.retain(|(known, _)| *known != method);
        self.config.adaptive_methods.push((method, adaptive));
        self
    }

    /// Refuses a call at once that has less time left than calls of its method usually take, and if it would
    /// have to wait for a permit, than it would wait besides: it could only be late. What is usual is
    /// the median of late of those that succeeded. Without data, after a change of load at first, and for one
    /// in sixteen of such calls, it lets them pass. Default: false.
    pub fn refuse_late_calls(mut self, refuse: bool) -> Self {
        self.config.refuse_late_calls = refuse;
        self
    }

    /// Measures how long calls take that succeed, and how long they wait for a permit, for the histograms of
    /// [`crate::ServerHandle::record_metrics`]. The recorder of `metrics` must be installed before the server
    /// is built. Default: false.
    #[cfg(feature = "metrics")]
    pub fn measure_calls(mut self, measure: bool) -> Self {
        self.config.measure_calls = measure;
        self
    }

    /// Turns away calls of lower classes while a limit of calls in flight refuses those of higher ones, unless it is
    /// that of one connection or tenant: first background (3), then low (2), then normal (0), and never critical
    /// calls (1); see [`rpc_core::limit::PriorityGate`]. Clients set the class of a call, so trust them, or correct
    /// it in front.
    /// Default: false.
    pub fn shed_by_priority(mut self, shed: bool) -> Self {
        self.config.shed_by_priority = shed;
        self
    }

    /// Sets what a file has, over what was set before.
    #[cfg(feature = "config")]
    pub fn settings(self, settings: crate::ServerSettings) -> Self {
        settings.apply(self)
    }

    /// Calls per second in the whole server. Default: no limit.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.config.rate = Some(rate);
        self
    }

    /// Calls per second on each connection. A new connection starts with a full bucket, so whoever
    /// reconnects escapes it; put a rate of the whole server beside it. Default: no limit.
    pub fn rate_per_connection(mut self, rate: Rate) -> Self {
        self.config.rate_per_connection = Some(rate);
        self
    }

    /// Items per second that the clients of the whole server send in streams. An item above the rate waits in the
    /// window of its stream until the service may be handed it, and the client is given no credit meanwhile: it is
    /// slowed down, and nothing is refused or lost. Rates of calls count the opening of a stream; what a server
    /// sends is not limited. Streams that want more than there is get the same. It costs a reading of the clock and
    /// a short lock for each item, which the streams of the whole server share. See
    /// [`Call::pace_items`](crate::Call::pace_items) for what to think of with bursts. Default: no limit.
    pub fn item_rate(mut self, rate: Rate) -> Self {
        self.config.item_rate = Some(rate);
        self
    }

    /// As [`Self::item_rate`], of the items on each connection; a new connection starts with a full bucket. Default:
    /// no limit.
    pub fn item_rate_per_connection(mut self, rate: Rate) -> Self {
        self.config.item_rate_per_connection = Some(rate);
        self
    }

    /// How long a stream may be idle: no item of it comes from the client, is worked on by the service, or goes to
    /// the client. One that was idle for so long, and up to an eighth longer, is ended with DEADLINE_EXCEEDED and
    /// the reason STREAM_IDLE, executed maybe. A service that has items to take, or has taken some and not asked for
    /// more, is at work, unless it waits for the client to take what it sends; and so is one of a client stream whose
    /// client has sent all, or which wants no more and has dropped its end. One that waits before it sends is not, whatever it waits
    /// for, nor is a client that takes longer than that for what its window holds. Methods may have a time of
    /// their own, see [`MethodLimits::stream_idle_timeout`]. Default: `None`, it may be idle until its deadline.
    pub fn stream_idle_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.config.stream_idle_timeout = timeout.into();
        self
    }

    /// How long a call may take, from when it was read to its answer: waiting for its turn, for its body and for items
    /// included. One with a later deadline, or with none, has this one, which its service and the calls it makes see as
    /// their own; its caller is told DEADLINE_EXCEEDED, and that it was the server's. Default: `None`, as long as the
    /// caller says.
    pub fn max_call_time(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.config.max_call_time = time.into();
        self
    }

    /// About how long a call that is refused on concurrency is told to wait. A good value is the
    /// time that a call usually takes. Default: 10 ms.
    pub fn concurrency_retry_delay(mut self, delay: Duration) -> Self {
        self.config.concurrency_retry_delay = delay;
        self
    }

    /// Open connections. One more is told so and closed. Default: 10,000.
    pub fn max_connections(mut self, max: u64) -> Self {
        self.config.max_connections = max;
        self
    }

    /// Open connections of one address; addresses of IPv6 that share their first 64 bits count as one. One more is told
    /// so and closed, and its calls were never executed. Nobody is hindered whose address is not known: a socket of
    /// Unix, a pipe in memory. Behind a proxy all have the address of that. Default: `None`, no limit.
    pub fn max_connections_per_address(mut self, max: impl Into<Option<u64>>) -> Self {
        self.config.max_connections_per_address = max.into();
        self
    }

    /// The longest frame taken from a client in bytes, at least 64 KiB. Longer bodies come in parts.
    /// Default: 256 KiB.
    pub fn max_frame(mut self, bytes: u32) -> Self {
        self.config.max_frame = bytes;
        self
    }

    /// Bytes that frames which have begun may keep in the whole server, beyond the 64 KiB that each connection
    /// may keep in any case. A longer frame takes what it has beyond them when 64 KiB of it have come, and
    /// gives it back when it is whole; if too little is left, its connection is not read until there is, and is
    /// closed if that takes longer than [`Self::frame_timeout`]. Clients of this library send no such frames. At
    /// least [`Self::max_frame`]. Default: 256 MiB.
    pub fn frame_budget(mut self, bytes: u64) -> Self {
        self.config.frame_budget = bytes;
        self
    }

    /// The longest body of a request in bytes. Default: 4 MiB.
    pub fn max_message(mut self, bytes: u32) -> Self {
        self.config.max_message = bytes;
        self
    }

    /// Bytes of request bodies that arrive in parts, in the whole server. A call takes the length that
    /// its first part claims before any memory is spent, and gives it back when its response has been
    /// written; one that finds too little left is refused. A short body counts for 4 KiB and its metadata: its
    /// call waits for it without a permit. At least [`Self::max_message`].
    ///
    /// Items of streams that clients send take their length, and 64 bytes at least, from when they come, or the
    /// first part of them, until the service has asked for the next ones; a stream takes at least 1 KiB while it
    /// has any, and one in which nothing waits takes nothing. An item that finds too little left ends its call
    /// with RESOURCE_EXHAUSTED, executed maybe. Default: 256 MiB.
    pub fn body_budget(mut self, bytes: u64) -> Self {
        self.config.body_budget = bytes;
        self
    }

    /// As [`Self::body_budget`], on each connection; but of a stream that the client sends, its whole window is
    /// taken while it is open, and of an item above 32 KiB what is beyond that; one that is shorter may be beyond it
    /// without. A call that finds too little left for its window is refused. Default: 16 MiB.
    pub fn body_budget_per_connection(mut self, bytes: u64) -> Self {
        self.config.body_budget_per_connection = bytes;
        self
    }

    /// How many bytes of a stream a client may send before the service takes any, at least 64 KiB; an
    /// item counts as 64 at least. While such a stream is open, its window is taken out of
    /// [`Self::body_budget_per_connection`]: with the defaults, 256 may be open on each connection. Out of
    /// [`Self::body_budget`] only what has been sent is taken. A larger window lets a stream from far away go
    /// faster. Default: 64 KiB.
    pub fn stream_window(mut self, bytes: u32) -> Self {
        self.config.stream_window = bytes;
        self
    }

    /// How many bytes per second of a body in parts must arrive, on the average and after ten seconds
    /// of grace, and of an item in parts. A call whose body comes more slowly is refused, one whose item does is
    /// ended. `None` takes any rate.
    /// Default: 16 KiB.
    pub fn min_body_rate(mut self, bytes_per_second: impl Into<Option<u32>>) -> Self {
        self.config.min_body_rate = bytes_per_second.into();
        self
    }

    /// How long a client that has connected may say nothing at all. Default: 5 s.
    pub fn first_byte_timeout(mut self, timeout: Duration) -> Self {
        self.config.first_byte_timeout = timeout;
        self
    }

    /// How long a client may take to say HELLO. Default: 5 s.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.config.handshake_timeout = timeout;
        self
    }

    /// How long a frame may take from its first byte to its last, however steadily they come. The time
    /// does not count in which the connection is not read because its client does not; but a frame that has room in
    /// [`Self::frame_budget`] is given up if it has had that for so long and is not read then. Default: 10 s.
    pub fn frame_timeout(mut self, timeout: Duration) -> Self {
        self.config.frame_timeout = timeout;
        self
    }

    /// A connection on which there is no call for this long is told so and closed. Default: `None`, it
    /// stays.
    pub fn idle_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.config.idle_timeout = timeout.into();
        self
    }

    /// A client of which nothing was heard for this long is sent a PING, also while calls run. The time
    /// does not count in which the connection is not read because its client does not. `None` never
    /// asks; then a client that vanished is found only when something is written to it.
    /// Default: 30 s.
    pub fn keepalive_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.config.keepalive_interval = interval.into();
        self
    }

    /// How long a client may stay silent after a PING until its connection is given up, with all of its
    /// calls. Default: 10 s.
    pub fn keepalive_timeout(mut self, timeout: Duration) -> Self {
        self.config.keepalive_timeout = timeout;
        self
    }

    /// A connection of this age, and up to a tenth of it more or less, says GOAWAY: its calls may
    /// finish, and the client goes on by a new one, perhaps at another server. Default: `None`, for
    /// ever.
    pub fn max_connection_age(mut self, age: impl Into<Option<Duration>>) -> Self {
        self.config.max_connection_age = age.into();
        self
    }

    /// How long the calls of a connection that reached its age may go on. Default: `None`, as long as
    /// in a shutdown, see [`Self::drain_grace`].
    pub fn max_connection_age_grace(mut self, grace: impl Into<Option<Duration>>) -> Self {
        self.config.max_connection_age_grace = grace.into();
        self
    }

    /// Frames per second on each connection that open no call: PING, PONG that nobody asked for, CANCEL
    /// of calls that have ended beyond one for each call, requests that are malformed, and what the
    /// protocol asks to ignore. A client that sends more is told so and closed. What an honest client may have
    /// under way when a call ends, such as items for which a stream had credit, is not among them; of that one may
    /// send 1,000,000 frames a second, with a burst of as many. `None` takes any number of either.
    /// Default: 1,000 with a burst of 10,000.
    pub fn control_frame_rate(mut self, rate: impl Into<Option<Rate>>) -> Self {
        self.config.control_frame_rate = rate.into();
        self
    }

    /// A connection whose client takes no byte of what is written for this long is closed, and one whose client takes
    /// less of it than [`Self::min_write_rate`] has it.
    /// Default: 30 s.
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.config.write_timeout = timeout;
        self
    }

    /// How many bytes per second a client must take of what waits for it, on the average of each
    /// [`Self::write_timeout`]: at the defaults 30 KiB in 30 s, or all there is. What the system buffers for the client
    /// counts as taken. With `None` a byte in each timeout is enough.
    /// Default: 1 KiB.
    pub fn min_write_rate(mut self, bytes_per_second: impl Into<Option<u32>>) -> Self {
        self.config.min_write_rate = bytes_per_second.into();
        self
    }

    /// So many unwritten bytes a connection may have: where one response more, as long as the last but 32 KiB at most,
    /// would make more of them, it is not read any more until its client has taken some. One response is always taken
    /// on, and of a longer one hardly more than 64 KiB count. Default: 256 KiB.
    pub fn write_high_water(mut self, bytes: usize) -> Self {
        self.config.write_high_water = bytes;
        self
    }

    /// How long running calls may go on when the server is shut down. Whatever they and their peers do, the shutdown
    /// ends a second later at the latest. Default: 30 s.
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.config.drain_grace = grace;
        self
    }

    /// How long [`crate::BoundServer::serve_until`] goes on as before when its signal has come, while the
    /// health says that it is draining: long enough for whoever watches the health, a balancer, to have
    /// looked and to send new calls elsewhere. Default: none.
    pub fn shutdown_notice(mut self, notice: Duration) -> Self {
        self.config.shutdown_notice = notice;
        self
    }

    /// Whether the server has the service `sluicegate.Health`, which tells how the server and each of its
    /// services are; `HealthClient` asks it. Limits do not count its calls and do not turn them away: a
    /// server that is full is not ill. Handlers of yours see them as they see others. Default: false.
    pub fn health(mut self, health: bool) -> Self {
        self.health = health;
        self
    }

    /// Whether the server has the service `sluicegate.Describe`, which tells everybody who can call it its
    /// services, methods, types and limits; `DescribeClient` asks it. Default: false, for it tells
    /// attackers too.
    pub fn describe(mut self, describe: bool) -> Self {
        self.describe = describe;
        self
    }

    /// Runs every call in a task of its own. By default a call is polled in its connection's task,
    /// which is several times cheaper, and only methods that prove slow are moved. Default: false.
    pub fn spawn_calls(mut self, spawn: bool) -> Self {
        self.config.spawn_calls = spawn;
        self
    }

    /// Whether each call runs in a span of `tracing`, and refusals are told as events: the handler `trace`,
    /// a [`TraceHandler`](crate::handlers::TraceHandler), stands in front of all others. Default: false.
    pub fn trace_calls(mut self, trace: bool) -> Self {
        self.config.trace_calls = trace;
        self
    }

    /// The codecs that clients may use, besides the bytes of methods that no codec touches.
    /// A call in another one is refused before its body is looked at. One that this build does not have
    /// makes [`Self::build`] fail. Default: all that this build has, which its features decide.
    pub fn codecs(mut self, codecs: impl IntoIterator<Item = CodecId>) -> Self {
        let codecs: Vec<_> = codecs.into_iter().chain([CodecId::BYTES]).collect();
        let known = |codec: &&CodecId| **codec == CodecId::BYTES || codec.is_supported();
        self.config.unsupported_codec = codecs.iter().find(|codec| !known(codec)).copied();
        self.config.codecs = codecs.into_iter().collect();
        self
    }

    /// Changes the pipeline of each new connection, which has the default handlers already:
    /// `trace`, `deadline`, `priority`, `connection rate`, `tenant rate`, `global rate`, `concurrency` and `blocking`,
    /// those that are configured; the last if there are blocking methods and `concurrency` does not know of them,
    /// which it does as soon as there are limits of methods, pools, tenants or bytes, or a queue. Then come
    /// `connection item rate` and `global item rate`.
    pub fn pipeline(mut self, initializer: impl Fn(&mut Pipeline, &ConnectionInfo) + Send + Sync + 'static) -> Self {
        self.initializer = Some(Box::new(initializer));
        self
    }

    /// Checks the settings and makes the server.
    ///
    /// # Errors
    ///
    /// A setting cannot be, two do not go together, or two methods have one id.
    pub fn build(mut self) -> Result<Server, BuildError> {
        let health = Arc::new(HealthState::new(self.methods.services()));
        let description = self.describe.then(|| description(&self.config, &self.methods));
        if self.health {
            self = self.service(HealthService(Arc::clone(&health)));
        }
        if let Some(description) = description {
            self = self.service(DescribeService(description));
        }
        Ok(Server::new(ServerCore::new(self.config, self.methods, self.initializer, health)?))
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("config", &self.config)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}
