//! What users set of limits: of a method, of a queue.

use std::{fmt, sync::Arc, time::Duration};

use rpc_core::limit::{AdaptiveLimit, Aimd, ConcurrencyLimit, Gradient2, LimitAlgorithm};

use crate::error::BuildError;

/// The limits of one method, or the default for each method of a service.
///
/// What is not set is unlimited, and a call weighs 1. The most specific setting counts: that of a method
/// before that of its service, and for either the configuration of the server before the attribute in the
/// trait.
///
/// ```
/// use rpc_server::MethodLimits;
///
/// let limits = MethodLimits::new().max_concurrent_calls(8).weight(4).pool("reports");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodLimits {
    pub(crate) max_concurrent_calls: Option<u64>,
    pub(crate) weight: Option<u32>,
    pub(crate) pool: Option<String>,
    pub(crate) stream_idle_timeout: Option<Duration>,
}

impl MethodLimits {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls of the method in flight in the whole server, whatever each weighs. In a refusal the limit is
    /// named by the method, `package.Service/Method`. Default: no limit.
    #[must_use]
    pub fn max_concurrent_calls(mut self, max: u64) -> Self {
        self.max_concurrent_calls = Some(max);
        self
    }

    /// For how many calls a call counts, in every limit of calls in flight but that of the method itself,
    /// and in every rate. A call that costs as much as ten others weighs 10. Default: 1.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// The pool in which calls count as well, see [`crate::ServerBuilder::pool`]. Default: none.
    #[must_use]
    pub fn pool(mut self, name: impl Into<String>) -> Self {
        self.pool = Some(name.into());
        self
    }

    /// How long streams of the method may be idle, see [`crate::ServerBuilder::stream_idle_timeout`], which it
    /// replaces; `Duration::MAX` is for ever. It means nothing where calls have no items. Default: that of the server.
    #[must_use]
    pub fn stream_idle_timeout(mut self, timeout: Duration) -> Self {
        self.stream_idle_timeout = Some(timeout);
        self
    }

    /// These, and where nothing is set, the others.
    pub(crate) fn or(&self, other: &Self) -> Self {
        Self {
            max_concurrent_calls: self.max_concurrent_calls.or(other.max_concurrent_calls),
            weight: self.weight.or(other.weight),
            pool: self.pool.clone().or_else(|| other.pool.clone()),
            stream_idle_timeout: self.stream_idle_timeout.or(other.stream_idle_timeout),
        }
    }
}

/// A maximum of calls in flight that is found from how long calls take, instead of being set.
///
/// It is fed by calls that were admitted and have succeeded, and costs a reading of the clock for each. What
/// is set by hand while the server runs is overwritten with the next change.
///
/// ```
/// use rpc_server::Adaptive;
///
/// let adaptive = Adaptive::gradient2().start(32).floor(8).ceiling(256);
/// ```
#[derive(Clone)]
pub struct Adaptive {
    make: Arc<MakeAlgorithm>,
    start: u64,
    pub(crate) floor: u64,
    ceiling: u64,
}

type MakeAlgorithm = dyn Fn() -> Box<dyn LimitAlgorithm> + Send + Sync;

impl Adaptive {
    /// By an algorithm of one's own.
    pub fn new<A: LimitAlgorithm + 'static>(make: impl Fn() -> A + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(move || Box::new(make())), start: 20, floor: 4, ceiling: 1_000 }
    }

    /// By comparing how long calls take with how long they usually take; see [`Gradient2`].
    pub fn gradient2() -> Self {
        Self::new(Gradient2::new)
    }

    /// By additive increase and multiplicative decrease, where a call that takes longer than `too_long` shows
    /// that there are too many; see [`Aimd`].
    pub fn aimd(too_long: Duration) -> Self {
        Self::new(move || Aimd::new(too_long))
    }

    /// The maximum at first. Default: 20.
    #[must_use]
    pub fn start(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// The least maximum. With none, a service that fails slowly would be left with no calls at all. At most the
    /// `max_concurrent_calls` of what it is for, and of the whole server at least the greatest weight of a method.
    /// Default: 4.
    #[must_use]
    pub fn floor(mut self, floor: u64) -> Self {
        self.floor = floor;
        self
    }

    /// The greatest maximum; or the `max_concurrent_calls` of the server or of the method, if that is less.
    /// Default: 1,000.
    #[must_use]
    pub fn ceiling(mut self, ceiling: u64) -> Self {
        self.ceiling = ceiling;
        self
    }

    /// Lets it set the maximum of a limit, up to the one that it has.
    pub(crate) fn on(&self, limit: &Arc<ConcurrencyLimit>) -> Result<AdaptiveLimit, BuildError> {
        let ceiling = limit.max().map_or(self.ceiling, |max| max.min(self.ceiling));
        AdaptiveLimit::new(Arc::clone(limit), (self.make)(), self.start, self.floor, ceiling)
            .map_err(|source| BuildError::Concurrency { limit: limit.name(), source })
    }
}

impl fmt::Debug for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, floor, ceiling, .. } = self;
        f.debug_struct("Adaptive")
            .field("start", start)
            .field("floor", floor)
            .field("ceiling", ceiling)
            .finish_non_exhaustive()
    }
}

/// Where calls wait that a limit of calls in flight refuses, instead of being turned away at once.
///
/// Each limit has its own queue: of the whole server, of a connection, of a method, a pool, a tenant. A
/// call waits at the limit that refused it, and holds nothing of the others; it only keeps its request
/// in memory, and the tokens that rates have taken of it. A call that weighs more than others is let in when
/// there is room for all of it, and those behind it wait for that as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitQueue {
    pub(crate) max_waiting: u64,
    pub(crate) max_wait: Duration,
}

impl WaitQueue {
    /// A queue in which so many calls may wait at each limit. Default: 128, which at 64 in flight is two
    /// rounds of calls.
    pub const fn of(max_waiting: u64) -> Self {
        Self { max_waiting, max_wait: Duration::from_millis(500) }
    }

    /// How long a call may wait, from when it asked for a permit: when it came, or had its body, or had waited
    /// for another handler. A queue that is bounded in number alone becomes a queue of calls whose callers have
    /// given up when the service gets slow. Default: 500 ms.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::of(128)
    }
}
