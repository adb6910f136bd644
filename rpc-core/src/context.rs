//! What a service knows about the call it answers.

use std::{
    cell::Cell,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use pin_project_lite::pin_project;

use crate::{
    CallId, ConnectionId, Deadline, Extensions, Metadata,
    limit::{CallHold, CallPermit, HeldPermit, HoldSlot},
};

/// What a service knows about the call it answers: who asks, until when, with which metadata, and
/// whether anybody still waits.
///
/// A cheap handle; clones name the same call. A method receives it by naming a first parameter of
/// this type, and anything that runs within the call finds it with [`Context::current`]. Calls made
/// from within inherit the deadline and the trace. Code that `tokio::spawn`s leaves the call's
/// context; [`Context::scope`] takes it along.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

impl Context {
    /// The context of a new call.
    #[doc(hidden)]
    pub fn new(call: CallScope) -> Self {
        Self(Arc::new(Inner::new(call)))
    }

    /// Makes this handle the context of another call of the same connection, without an allocation
    /// if nobody else holds it.
    #[doc(hidden)]
    #[inline]
    pub fn renew(&mut self, id: CallId, received: Instant, deadline: Deadline, priority: u8, metadata: Metadata) {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => inner.renew(id, received, deadline, priority, metadata),
            None => {
                let CallScope { connection, clock, .. } = &self.0.call;
                let (connection, clock, extensions) = (Arc::clone(connection), *clock, Extensions::new());
                *self =
                    Self::new(CallScope { id, connection, received, deadline, priority, metadata, extensions, clock });
            }
        }
    }

    /// Gives a call that has just begun what handlers put beside it, or takes that away when it has ended.
    /// Whoever holds a handle still has what the call had.
    #[doc(hidden)]
    pub fn set_extensions(&mut self, extensions: Extensions) {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.call.extensions = extensions;
        }
    }

    /// The context of the call within which this code runs, if it runs within one.
    pub fn current() -> Option<Self> {
        CURRENT.with(|current| {
            let context = current.take();
            let found = context.clone();
            current.set(context);
            found
        })
    }

    /// Runs `future` within this call: [`Context::current`] is set whenever it is polled.
    ///
    /// Needed for tasks of one's own, such as `tokio::spawn(context.scope(work))`.
    pub fn scope<F>(self, future: F) -> Scoped<F> {
        Scoped { context: Some(self), future }
    }

    /// Sets the current context until the guard is dropped, which puts it back into `slot`.
    #[doc(hidden)]
    pub fn enter(slot: &mut Option<Self>) -> Entered<'_> {
        let outer = CURRENT.replace(slot.take());
        Entered { slot, outer }
    }

    /// The deadline of the call.
    pub fn deadline(&self) -> Deadline {
        self.0.call.deadline
    }

    /// The class of the call: 0 normal, 1 critical, 2 low, 3 background. Calls made from within have it, too,
    /// unless they say otherwise.
    pub fn priority(&self) -> u8 {
        self.0.call.priority
    }

    /// The time left until the deadline; `None` without one.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().remaining((self.0.call.clock)())
    }

    /// When the request was received.
    pub fn received(&self) -> Instant {
        self.0.call.received
    }

    /// The id of the call on its connection.
    pub fn call_id(&self) -> CallId {
        self.0.call.id
    }

    /// The connection the call came by.
    pub fn connection(&self) -> &ConnectionInfo {
        &self.0.call.connection
    }

    /// The address of the peer, if the transport has one.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.connection().peer
    }

    /// The metadata of the request.
    pub fn metadata(&self) -> &Metadata {
        &self.0.call.metadata
    }

    /// What a handler put beside the call under this type, such as who it found the caller to be.
    /// [`ConnectionInfo::get`] has what was put beside the connection.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.call.extensions.get()
    }

    /// Everything that handlers put beside the call.
    pub fn extensions(&self) -> &Extensions {
        &self.0.call.extensions
    }

    /// The trace id of the request's W3C `traceparent`, as 32 hexadecimal digits.
    pub fn trace_id(&self) -> Option<&str> {
        let mut parts = self.metadata().get_str(TRACEPARENT)?.split('-');
        let trace_id = parts.nth(1)?;
        (trace_id.len() == 32 && trace_id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(trace_id)
    }

    /// Whether the call has ended without an answer from the service: the caller gave up, the
    /// deadline passed, or the connection is gone.
    ///
    /// The service's own future is dropped then, so this is for work that outlives it.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Waits until [`Context::is_cancelled`]. For ever, if the service answers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn cancelled(&self) {
        std::future::poll_fn(|cx| self.0.poll_cancelled(cx.waker())).await;
    }

    /// Keeps the call's place in the limits of concurrency taken until the hold is dropped.
    ///
    /// For work that goes on when the service's future is gone, such as a blocking task. Without it
    /// the place is free once the answer is written, and the limit would no longer bound the work.
    pub fn hold(&self) -> CallHold {
        self.0.holds.hold()
    }

    /// For the server: the call ended without an answer from the service.
    #[doc(hidden)]
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// For the server: the call needs its permits no longer, but holds may.
    #[doc(hidden)]
    pub fn settle(&self, permit: CallPermit) -> HeldPermit {
        // Only a handle can take a hold, so with the only handle here none can be taken meanwhile.
        if Arc::strong_count(&self.0) > 1 {
            return self.0.holds.settle(permit);
        }
        // What a handle that is gone by now did with the holds happened before this.
        fence(Ordering::Acquire);
        self.0.holds.settle_alone(permit)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("call", &self.0.call)
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// The fixed facts of one call, of which a [`Context`] is made.
#[derive(Clone, Debug)]
pub struct CallScope {
    /// The id of the call on its connection.
    pub id: CallId,
    /// The connection it came by.
    pub connection: Arc<ConnectionInfo>,
    /// When the request was received.
    pub received: Instant,
    /// By when it must have ended.
    pub deadline: Deadline,
    /// The class of the call.
    pub priority: u8,
    /// The metadata of the request.
    pub metadata: Metadata,
    /// What handlers put beside it.
    pub extensions: Extensions,
    /// The clock that instants of this call are read from; virtual in tests.
    pub clock: fn() -> Instant,
}

/// A connection, as those who look at its calls know it, and what they put beside it. Clones are the
/// same connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The name of the connection within this process.
    pub id: ConnectionId,
    /// The address of the peer, if the transport has one.
    pub peer: Option<SocketAddr>,
    extensions: Arc<Mutex<Extensions>>,
}

impl ConnectionInfo {
    /// A connection that nobody knows more about yet.
    pub fn new(id: ConnectionId, peer: Option<SocketAddr>) -> Self {
        Self { id, peer, extensions: Arc::default() }
    }

    /// Puts a value beside the connection, for handlers and services of all its calls, and gives back
    /// the one of the same type that was there. It goes with the connection.
    pub fn insert<T: Send + Sync + 'static>(&self, value: T) -> Option<Arc<T>> {
        self.extensions.lock().unwrap_or_else(PoisonError::into_inner).insert(value)
    }

    /// The value of this type that was put beside the connection.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.extensions.lock().unwrap_or_else(PoisonError::into_inner).get_arc()
    }

    /// Puts all of `extensions` beside the connection, in place of what was there.
    #[doc(hidden)]
    pub fn set_extensions(&self, extensions: Extensions) {
        let before =
            std::mem::replace(&mut *self.extensions.lock().unwrap_or_else(PoisonError::into_inner), extensions);
        drop(before);
    }
}

impl PartialEq for ConnectionInfo {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.peer) == (other.id, other.peer)
    }
}

impl Eq for ConnectionInfo {}

impl fmt::Display for ConnectionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{} from {peer}", self.id),
            None => write!(f, "{}", self.id),
        }
    }
}

pin_project! {
    /// A future within a call; see [`Context::scope`].
    #[derive(Debug)]
    pub struct Scoped<F> {
        context: Option<Context>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = Context::enter(this.context);
        this.future.poll(cx)
    }
}

/// Puts the outer context back when it is dropped; see [`Context::enter`].
#[derive(Debug)]
#[must_use = "the context is left when the guard is dropped"]
pub struct Entered<'a> {
    slot: &'a mut Option<Context>,
    outer: Option<Context>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        *self.slot = CURRENT.replace(self.outer.take());
    }
}

thread_local! {
    static CURRENT: Cell<Option<Context>> = const { Cell::new(None) };
}

const TRACEPARENT: &str = "traceparent";

struct Inner {
    call: CallScope,
    cancelled: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
    holds: HoldSlot,
}

impl Inner {
    fn new(call: CallScope) -> Self {
        Self { call, cancelled: AtomicBool::new(false), waiting: Mutex::new(Vec::new()), holds: HoldSlot::default() }
    }

    fn renew(&mut self, id: CallId, received: Instant, deadline: Deadline, priority: u8, metadata: Metadata) {
        let call = &mut self.call;
        (call.id, call.received, call.deadline, call.metadata) = (id, received, deadline, metadata);
        call.priority = priority;
        *self.cancelled.get_mut() = false;
        self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.holds.reset();
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll_cancelled(&self, waker: &Waker) -> Poll<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: `cancel` sets the flag before it takes the wakers.
        if self.cancelled.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::task;

    use super::*;

    fn context() -> Context {
        let now = Instant::now();
        Context::new(CallScope {
            id: CallId::new(1, 0),
            connection: Arc::new(ConnectionInfo::new(ConnectionId::new(1), None)),
            received: now,
            deadline: Deadline::NONE,
            priority: 0,
            metadata: Metadata::new(),
            extensions: Extensions::new(),
            clock: Instant::now,
        })
    }

    #[test]
    fn the_current_context_is_that_of_the_innermost_scope() {
        assert!(Context::current().is_none());
        let (outer, inner) = (context(), context());
        let (outer_too, inner_too) = (outer.clone(), inner.clone());
        let future = outer.scope(async move {
            assert!(Arc::ptr_eq(&Context::current().unwrap().0, &outer_too.0));
            inner.scope(async move { assert!(Arc::ptr_eq(&Context::current().unwrap().0, &inner_too.0)) }).await;
            assert!(Arc::ptr_eq(&Context::current().unwrap().0, &outer_too.0));
        });
        let mut future = std::pin::pin!(future);
        assert!(future.as_mut().poll(&mut task::Context::from_waker(Waker::noop())).is_ready());
        assert!(Context::current().is_none());
    }

    #[test]
    fn the_outer_context_is_back_after_a_panic() {
        let mut slot = Some(context());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _entered = Context::enter(&mut slot);
            panic!("service bug");
        }));
        assert!(result.is_err());
        assert!(Context::current().is_none());
        assert!(slot.is_some());
    }

    #[test]
    fn cancelling_wakes_who_waits_and_stays() {
        let context = context();
        let mut wait = Box::pin(context.cancelled());
        let mut cx = task::Context::from_waker(Waker::noop());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        context.cancel();
        assert!(wait.as_mut().poll(&mut cx).is_ready());
        assert!(context.is_cancelled());
    }

    #[test]
    fn a_handle_that_is_held_elsewhere_is_not_reused_for_another_call() {
        let mut context = context();
        let kept = context.clone();
        kept.cancel();
        let now = Instant::now();
        context.renew(CallId::new(2, 0), now, Deadline::NONE, 0, Metadata::new());
        assert_eq!(kept.call_id(), CallId::new(1, 0));
        assert!(kept.is_cancelled() && !context.is_cancelled());
        drop(kept);
        let address = Arc::as_ptr(&context.0);
        context.renew(CallId::new(3, 0), now, Deadline::NONE, 0, Metadata::new());
        assert_eq!(Arc::as_ptr(&context.0), address);
    }

    #[test]
    fn the_trace_id_is_that_of_the_traceparent() {
        let mut call = context().0.call.clone();
        call.metadata.insert("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!(Context::new(call).trace_id(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
    }
}
