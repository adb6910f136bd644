//! The settings of a server, each with its reason.

use std::time::Duration;

use rpc_codec::{CodecId, CodecSet, Hello};
use rpc_core::limit::Rate;

use crate::{
    error::BuildError,
    limits::{Adaptive, MethodLimits, Tenants, WaitQueue},
    pace::LeastRate,
};

/// The settings of a server. [`crate::ServerBuilder`] sets them.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Calls in flight in the whole process. None is the default: only the user knows the capacity.
    pub(crate) max_concurrent_calls: Option<u64>,
    /// Calls in flight on one connection: parked calls cost memory, so there is always a bound.
    pub(crate) max_concurrent_calls_per_connection: u64,
    /// Blocking calls have a thread each. Far below the 512 of tokio's pool, so that what else blocks,
    /// such as files and names, finds a thread.
    pub(crate) max_blocking_calls: u64,
    /// Limits that methods share, by name.
    pub(crate) pools: Vec<(String, u64)>,
    pub(crate) method_limits: Vec<(String, MethodLimits)>,
    pub(crate) service_limits: Vec<(String, MethodLimits)>,
    /// None: bodies in frames are bounded by frames and calls, those in parts by the body budget.
    pub(crate) max_bytes_in_flight: Option<u64>,
    /// None: to wait costs memory and time, and whether that is better than being refused, only the user
    /// knows.
    pub(crate) wait_queue: Option<WaitQueue>,
    /// None: who is a tenant, only the user knows.
    pub(crate) tenants: Option<Tenants>,
    /// None: a maximum that is found is right for one kind of calls, and says so only when it is too late.
    pub(crate) adaptive: Option<Adaptive>,
    pub(crate) adaptive_methods: Vec<(String, Adaptive)>,
    /// Off: it costs a reading of the clock for each call.
    pub(crate) refuse_late_calls: bool,
    /// Off: it costs a reading of the clock for each call.
    #[cfg(feature = "metrics")]
    pub(crate) measure_calls: bool,
    /// Off: what a class is worth, only the user knows, and any client can claim one.
    pub(crate) shed_by_priority: bool,
    pub(crate) rate: Option<Rate>,
    pub(crate) rate_per_connection: Option<Rate>,
    /// None: items are paced by whoever takes them. Likewise for the other.
    pub(crate) item_rate: Option<Rate>,
    pub(crate) item_rate_per_connection: Option<Rate>,
    /// None: a stream may wait for days for what it is to tell.
    pub(crate) stream_idle_timeout: Option<Duration>,
    pub(crate) max_call_time: Option<Duration>,
    /// What a call refused on concurrency is told to wait, about.
    pub(crate) concurrency_retry_delay: Duration,
    /// Open sockets cost descriptors, which run out somewhere above.
    pub(crate) max_connections: u64,
    pub(crate) max_connections_per_address: Option<u64>,
    /// Bounds what one peer may make us buffer.
    pub(crate) max_frame: u32,
    /// Each connection may have one frame that has begun. What they keep beyond 64 KiB is bounded for all
    /// together.
    pub(crate) frame_budget: u64,
    pub(crate) max_message: u32,
    /// Bytes of bodies in parts, from their first part until the response has been written, and of items until
    /// services have consumed them: what waits there is memory that a peer fills.
    pub(crate) body_budget: u64,
    /// So that one connection cannot take all of it.
    pub(crate) body_budget_per_connection: u64,
    /// What a client may send of a stream before the service takes any; kept out of the budget of its connection
    /// while the stream is open. Two parts: one is consumed while the other is under way.
    pub(crate) stream_window: u32,
    /// A body, or an item, that comes more slowly holds its budget for too long. None takes any rate.
    pub(crate) min_body_rate: Option<u32>,
    /// Who connects and says nothing at all wants nothing, and is not waited for any longer than it
    /// takes to say something.
    pub(crate) first_byte_timeout: Duration,
    /// Long enough for a slow network, short enough that silent peers do not pile up.
    pub(crate) handshake_timeout: Duration,
    /// A frame is sent in one go: at the default this is 26 KB a second for the longest one. Half a
    /// frame costs its memory for as long as it stays half.
    pub(crate) frame_timeout: Duration,
    /// None: a connection without calls costs little, and a client that calls seldom should not have
    /// to connect anew.
    pub(crate) idle_timeout: Option<Duration>,
    /// Shorter than middleboxes forget a silent connection, long enough to cost nothing.
    pub(crate) keepalive_interval: Option<Duration>,
    /// Far longer than any way there and back, so that only the dead are found dead.
    pub(crate) keepalive_timeout: Duration,
    /// None: who balances by connections sets it, so that clients find new servers.
    pub(crate) max_connection_age: Option<Duration>,
    /// What runs on a connection that grew too old gets as long as in a shutdown, unless this is set.
    pub(crate) max_connection_age_grace: Option<Duration>,
    /// Frames that open no call pass no limit of calls. A client sends a handful of them a minute; the
    /// burst is for what meets us after a pause.
    pub(crate) control_frame_rate: Option<Rate>,
    /// A peer that takes no byte for this long, or too few, is stuck, and holds permits.
    pub(crate) write_timeout: Duration,
    /// So that a byte now and then is not enough. Far below what anybody reads at who wants an answer.
    pub(crate) min_write_rate: Option<u32>,
    /// Above this many unwritten bytes a connection is no longer read.
    pub(crate) write_high_water: usize,
    /// Running calls get this long to finish when the server is shut down.
    pub(crate) drain_grace: Duration,
    /// None: only where somebody looks at the health does anybody need the time.
    pub(crate) shutdown_notice: Duration,
    pub(crate) spawn_calls: bool,
    pub(crate) trace_calls: bool,
    pub(crate) codecs: CodecSet,
    /// One that was asked for and that this build does not have.
    pub(crate) unsupported_codec: Option<CodecId>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_concurrent_calls: None,
            max_concurrent_calls_per_connection: 1024,
            max_blocking_calls: 64,
            pools: Vec::new(),
            method_limits: Vec::new(),
            service_limits: Vec::new(),
            max_bytes_in_flight: None,
            wait_queue: None,
            tenants: None,
            adaptive: None,
            adaptive_methods: Vec::new(),
            refuse_late_calls: false,
            #[cfg(feature = "metrics")]
            measure_calls: false,
            shed_by_priority: false,
            rate: None,
            rate_per_connection: None,
            item_rate: None,
            item_rate_per_connection: None,
            stream_idle_timeout: None,
            max_call_time: None,
            concurrency_retry_delay: Duration::from_millis(10),
            max_connections: 10_000,
            max_connections_per_address: None,
            max_frame: 256 * 1024,
            frame_budget: 256 * 1024 * 1024,
            max_message: 4 * 1024 * 1024,
            body_budget: 256 * 1024 * 1024,
            body_budget_per_connection: 16 * 1024 * 1024,
            stream_window: 64 * 1024,
            min_body_rate: Some(16 * 1024),
            first_byte_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            frame_timeout: Duration::from_secs(10),
            idle_timeout: None,
            keepalive_interval: Some(Duration::from_secs(30)),
            keepalive_timeout: Duration::from_secs(10),
            max_connection_age: None,
            max_connection_age_grace: None,
            control_frame_rate: Some(Rate::per_second(1_000.0).burst(10_000)),
            write_timeout: Duration::from_secs(30),
            min_write_rate: Some(1024),
            write_high_water: 256 * 1024,
            drain_grace: Duration::from_secs(30),
            shutdown_notice: Duration::ZERO,
            spawn_calls: false,
            trace_calls: false,
            codecs: CodecId::supported().iter().copied().chain([CodecId::BYTES]).collect(),
            unsupported_codec: None,
        }
    }
}

impl Config {
    /// The relations between settings, checked once.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        for (setting, value) in [
            ("max_concurrent_calls_per_connection", self.max_concurrent_calls_per_connection),
            ("max_connections", self.max_connections),
            ("max_connections_per_address", self.max_connections_per_address.unwrap_or(1)),
            ("max_message", u64::from(self.max_message)),
            ("min_body_rate", self.min_body_rate.map_or(1, u64::from)),
            ("min_write_rate", self.min_write_rate.map_or(1, u64::from)),
            ("write_high_water", self.write_high_water as u64),
        ] {
            if value == 0 {
                return Err(BuildError::Zero { setting });
            }
        }
        for (setting, value) in [
            ("first_byte_timeout", Some(self.first_byte_timeout)),
            ("handshake_timeout", Some(self.handshake_timeout)),
            ("frame_timeout", Some(self.frame_timeout)),
            ("write_timeout", Some(self.write_timeout)),
            ("idle_timeout", self.idle_timeout),
            ("keepalive_interval", self.keepalive_interval),
            ("keepalive_timeout", Some(self.keepalive_timeout)),
            ("max_connection_age", self.max_connection_age),
            ("stream_idle_timeout", self.stream_idle_timeout),
            ("max_call_time", self.max_call_time),
            ("max_wait", self.wait_queue.map(|queue| queue.max_wait)),
        ] {
            if value == Some(Duration::ZERO) {
                return Err(BuildError::Zero { setting });
            }
        }
        if let Some(codec) = self.unsupported_codec {
            return Err(BuildError::UnsupportedCodec { codec });
        }
        let least_frame = u64::from(MIN_MAX_FRAME);
        if u64::from(self.max_frame) < least_frame {
            return Err(BuildError::Relation {
                setting: "the least max_frame",
                value: least_frame,
                other: "max_frame",
                other_value: u64::from(self.max_frame),
            });
        }
        // What a client may rely on before it has our HELLO.
        let least_window = Hello::default().stream_window;
        if self.stream_window < least_window {
            return Err(BuildError::Relation {
                setting: "the least stream_window",
                value: least_window.into(),
                other: "stream_window",
                other_value: self.stream_window.into(),
            });
        }
        // Otherwise a frame, a body or a stream that may be sent could never pass.
        for (setting, value, other, other_value) in [
            ("max_frame", self.max_frame.into(), "frame_budget", self.frame_budget),
            ("max_message", self.max_message.into(), "body_budget_per_connection", self.body_budget_per_connection),
            ("max_message", self.max_message.into(), "body_budget", self.body_budget),
            ("stream_window", self.stream_window.into(), "body_budget_per_connection", self.body_budget_per_connection),
            ("stream_window", self.stream_window.into(), "body_budget", self.body_budget),
            (
                "max_message",
                self.max_message.into(),
                "max_bytes_in_flight",
                self.max_bytes_in_flight.unwrap_or(u64::MAX),
            ),
        ] {
            if value > other_value {
                return Err(BuildError::Relation { setting, value, other, other_value });
            }
        }
        Ok(())
    }

    /// How slowly a body or an item in parts may come.
    pub(crate) fn least_body_rate(&self) -> Option<LeastRate> {
        self.min_body_rate.map(|bytes_per_second| LeastRate { bytes_per_second, grace: BODY_GRACE })
    }

    /// How much a peer has to take within the timeout of writes, if it does not take all.
    pub(crate) fn least_written(&self) -> u64 {
        let bytes = self.write_timeout.as_millis().saturating_mul(self.min_write_rate.unwrap_or(0).into()) / 1_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }
}

/// How late a body may be in all, before its rate counts.
const BODY_GRACE: Duration = Duration::from_secs(10);
/// What a client may send before it has the server's HELLO; a server must take it.
const MIN_MAX_FRAME: u32 = 64 * 1024;
