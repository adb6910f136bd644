//! The settings of a client to be.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use rpc_codec::CodecId;
use tokio::sync::Notify;

use crate::{
    backoff::Backoff,
    client::Client,
    config::Config,
    connecting::{Manager, Shared, Target},
    intercept::Interceptor,
    sync::Mutex,
    trace::TraceCalls,
};

/// Settings of a client to be.
#[must_use = "a builder does nothing until it is built"]
pub struct ClientBuilder {
    pub(crate) config: Config,
    peer: Arc<str>,
    target: Target,
    #[cfg(feature = "tower")]
    pub(crate) layers: Option<crate::tower::Wrap>,
}

impl ClientBuilder {
    pub(crate) fn of(peer: Arc<str>, target: Target) -> Self {
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

    /// What arguments are encoded with; the server answers in the same. With one that this build lacks, calls fail with
    /// [`CallError::Encode`](crate::CallError::Encode). Default: bincode.
    pub fn codec(mut self, codec: CodecId) -> Self {
        self.config.codec = codec;
        self
    }

    /// How long an attempt to connect may take, name resolution included; and then, how long the
    /// server may take to say HELLO. At least 1 ms. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout.max(MIN_WAIT);
        self
    }

    /// The delays between attempts to connect: doubling from `min` to `max`, each drawn from its upper
    /// half. The first attempt after a loss waits, too, for anything up to `min`. The delays begin
    /// anew when a connection has proved good by the answer to a call. Default: 2 s to 10 s, with
    /// which of a thousand clients that lost a server together less than a tenth come back within any
    /// tenth of a second. Where one server has few clients, a smaller `min` serves them better. At least 1 ms, and
    /// `max` at least `min`.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.config.min_backoff = min.max(MIN_WAIT);
        self.config.max_backoff = max;
        self
    }

    /// The longest frame taken from the server in bytes, at least 64 KiB. Longer bodies come in parts.
    /// Default: 256 KiB.
    pub fn max_frame(mut self, bytes: u32) -> Self {
        self.config.max_frame = bytes.max(MIN_FRAME);
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
    /// longer frames need more, or a smaller [`max_frame`](Self::max_frame). At least 1 ms. Default: 10 s.
    pub fn frame_timeout(mut self, timeout: Duration) -> Self {
        self.config.frame_timeout = timeout.max(MIN_WAIT);
        self
    }

    /// How long the server may take nothing of what is to be written to it. At least 1 ms. Default: 30 s.
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.config.write_timeout = timeout.max(MIN_WAIT);
        self
    }

    /// Whether calls wait for a server that cannot be reached, unless they say otherwise: see
    /// [`Call::wait_for_ready`](crate::Call::wait_for_ready). Default: no, they fail fast.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.config.wait_for_ready = wait;
        self
    }

    /// Sets what a file has, over what was set before.
    #[cfg(feature = "config")]
    pub fn settings(self, settings: crate::ClientSettings) -> Self {
        settings.apply(self)
    }

    /// Adds an interceptor behind those that are there: it sees every call of the client.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.config.interceptors.add(interceptor);
        self
    }

    /// Whether every call is told as an event of `tracing`, at level DEBUG, when it has ended: method,
    /// code, time taken, trace; and whether a call without a trace begins one, in the metadata
    /// `traceparent` of W3C. Calls within a call of a server carry that call's trace on either way.
    /// It happens behind all interceptors. Default: false.
    pub fn trace_calls(mut self, trace: bool) -> Self {
        self.config.trace_calls = trace;
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
    pub fn build(mut self) -> Client {
        if self.config.trace_calls {
            self.config.interceptors.add(TraceCalls);
        }
        let backoff = Backoff::new(self.config.min_backoff, self.config.max_backoff);
        let manager = Manager::new(backoff);
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
        Client::from_shared(shared)
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("peer", &self.peer).field("config", &self.config).finish_non_exhaustive()
    }
}

/// A PING more often than this is a flood of our own.
pub(crate) const MIN_KEEPALIVE: Duration = Duration::from_millis(10);
/// One part and its head, with room to spare.
pub(crate) const MIN_FRAME: u32 = 64 * 1024;
/// With less, no attempt could succeed, and one would follow the other without a pause.
pub(crate) const MIN_WAIT: Duration = Duration::from_millis(1);
