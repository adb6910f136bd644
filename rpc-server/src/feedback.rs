//! What calls tell that have succeeded or were given up: how long such calls usually take, and how many should be
//! in flight.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rpc_codec::CallKind;
use rpc_core::limit::{AdaptiveLimit, RunningMedian};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    clock, config::Config, connection::Connection, error::BuildError, limits::Limits, method::Methods, panics::contain,
};

/// What is learned from calls, of all connections. It is there only if somebody wants to know: it costs a
/// reading of the clock for each call.
#[derive(Debug)]
pub(crate) struct Feedback {
    /// By the methods' index.
    methods: Vec<OfMethod>,
    global: Option<AdaptiveLimit>,
    refuses_late: bool,
}

#[cfg(not(feature = "metrics"))]
type Histograms = std::convert::Infallible;
#[cfg(feature = "metrics")]
type Histograms = crate::metrics::MethodHistograms;

#[derive(Debug, Default)]
struct OfMethod {
    usual: RunningMedian,
    late: AtomicU64,
    adaptive: Option<AdaptiveLimit>,
    histograms: Option<Histograms>,
}

impl Feedback {
    /// `None` if nobody wants to know.
    ///
    /// # Errors
    ///
    /// An adaptive limit has a floor of zero.
    pub(crate) fn new(config: &Config, limits: &Limits, methods: &Methods) -> Result<Option<Self>, BuildError> {
        let mut of_methods: Vec<_> = (0..methods.len()).map(|_| OfMethod::default()).collect();
        for (path, adaptive) in &config.adaptive_methods {
            let Some(index) = methods.iter().position(|method| method.info.path() == path) else {
                return Err(BuildError::Unknown { what: "method", name: path.clone() });
            };
            let limit = limits.of_method(index).expect("a method with an adaptive limit has one");
            of_methods[index].adaptive = Some(adaptive.on(limit)?);
        }
        #[cfg(feature = "metrics")]
        if config.measure_calls {
            for (of, method) in of_methods.iter_mut().zip(methods.iter()) {
                of.histograms = Some(Histograms::new(method.info.path()));
            }
        }
        let global = config.adaptive.as_ref().map(|adaptive| adaptive.on(&limits.global)).transpose()?;
        let is_wanted = config.refuse_late_calls
            || global.is_some()
            || !config.adaptive_methods.is_empty()
            || of_methods.iter().any(|of| of.histograms.is_some());
        Ok(is_wanted.then_some(Self { methods: of_methods, global, refuses_late: config.refuse_late_calls }))
    }

    #[inline(never)]
    fn succeeded(&self, method: u32, began: Instant) {
        let took = clock::now().saturating_duration_since(began);
        let of = &self.methods[method as usize];
        of.usual.add(took);
        #[cfg(feature = "metrics")]
        if let Some(histograms) = &of.histograms {
            histograms.service.record(took);
        }
        self.global.iter().chain(&of.adaptive).for_each(|limit| limit.succeeded(took));
    }

    /// Such a call says nothing of how long they usually take: its caller may have been in a hurry.
    fn given_up(&self, method: u32, began: Instant) {
        let lasted = clock::now().saturating_duration_since(began);
        let of = &self.methods[method as usize];
        self.global.iter().chain(&of.adaptive).for_each(|limit| limit.given_up(lasted));
    }

    /// Takes note of how long a call has waited for its permit.
    pub(crate) fn waited(&self, method: u32, waited: Duration) {
        #[cfg(feature = "metrics")]
        if let Some(histograms) = &self.methods[method as usize].histograms {
            histograms.wait.record(waited);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (method, waited);
    }

    /// How long calls of a method usually take, as far as known.
    pub(crate) fn usual(&self, method: u32) -> Option<Duration> {
        self.methods[method as usize].usual.get()
    }

    /// Itself, for handlers, if they refuse what would be late.
    pub(crate) fn if_it_refuses(self: &Arc<Self>) -> SharedFeedback {
        self.refuses_late.then(|| Arc::clone(self))
    }

    /// What a call will take, if it has less time left than that and so could only be late; `wait` is
    /// what it would wait before.
    ///
    /// One in sixteen of them is let pass nevertheless: if all were refused, nothing would be learned of such
    /// calls any more, even if they had become quick again.
    pub(crate) fn would_be_late(&self, method: u32, left: Option<Duration>, wait: Wait) -> Option<Duration> {
        let (left, usual) = (left?, self.usual(method)?);
        let takes = wait.before(usual).saturating_add(usual);
        if left >= takes {
            return None;
        }
        let late = self.methods[method as usize].late.fetch_add(1, Ordering::Relaxed);
        (late % PROBES != PROBES - 1).then_some(takes)
    }
}

/// Calls that come before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    /// How many wait already.
    pub(crate) ahead: u64,
    /// How many are in flight at once, while they do.
    pub(crate) at_once: u64,
}

impl Wait {
    /// How long it takes until its turn comes, if the others take as long as this one.
    fn before(self, usual: Duration) -> Duration {
        match self.at_once {
            0 => Duration::ZERO,
            at_once => usual.mul_f64((self.ahead as f64 + 1.0) / at_once as f64),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Learns from a call that was let through at `began`, and has succeeded now.
    #[inline]
    pub(crate) fn learn(&self, method: u32, began: Instant, succeeded: bool) {
        if let Some(feedback) = &self.server.feedback
            && succeeded
        {
            self.learn_from(method, || feedback.succeeded(method, began));
        }
    }

    /// Learns from a call that was let through at `began`, and for which nobody waits any more.
    pub(crate) fn learn_given_up(&self, method: u32, began: Instant) {
        if let Some(feedback) = &self.server.feedback {
            self.learn_from(method, || feedback.given_up(method, began));
        }
    }

    /// A call with items takes as long as its peer likes, which tells nothing of the next; and one that is exempt
    /// counts in no limit.
    fn learn_from(&self, method: u32, tell: impl FnOnce()) {
        let info = &self.server.methods.get(method).info;
        if info.kind() == CallKind::Unary
            && !info.is_exempt()
            // The algorithm of a limit may be a user's.
            && contain("the algorithm of a limit", tell).is_err()
        {
            self.count_panic();
        }
    }
}

/// For handlers, which look at it if it is there.
pub(crate) type SharedFeedback = Option<Arc<Feedback>>;

const PROBES: u64 = 16;
