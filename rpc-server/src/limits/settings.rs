//! What users set of limits: of a method, of a queue.

use std::time::Duration;

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

    /// These, and where nothing is set, the others.
    pub(crate) fn or(&self, other: &Self) -> Self {
        Self {
            max_concurrent_calls: self.max_concurrent_calls.or(other.max_concurrent_calls),
            weight: self.weight.or(other.weight),
            pool: self.pool.clone().or_else(|| other.pool.clone()),
        }
    }
}

/// Where calls wait that a limit of calls in flight refuses, instead of being turned away at once.
///
/// Each limit has its own queue: of the whole server, of a connection, of a method, a pool, a tenant. A
/// call waits at the limit that refused it, and holds nothing of the others; it only keeps its request
/// in memory, and the tokens that rates have taken of it.
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

    /// How long a call may wait. A queue that is bounded in number alone becomes a queue of calls whose
    /// callers have given up when the service gets slow. Default: 500 ms.
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
