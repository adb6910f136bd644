//! A call on its way in: what its request says, and the permit that travels with it.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use rpc_codec::{CallKind, CodecId};
use rpc_core::{
    CallId, CallScope, ConnectionInfo, Context, Deadline, Extensions, Metadata,
    limit::{CallPermit, ConcurrencyPermit, HeldPermit, RateLimit, Ticks},
};

use crate::{
    clock::{self, Reading},
    handlers::CallSpan,
    item_rate::ItemRates,
    method::MethodInfo,
    stream::Seat,
};

/// A call on its way through the pipeline, before its body is decoded.
///
/// It carries the permits that limits have given out for it. When it is refused after all, they come
/// back by being dropped.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) opening: &'a mut Opening,
    pub(crate) method: &'a MethodInfo,
    pub(crate) connection: &'a ConnectionInfo,
    /// Whether all of its body is there.
    pub(crate) whole: bool,
}

/// What a call owns of its request, but for the body.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) id: CallId,
    pub(crate) received: Reading,
    /// When it had waited for what it had to so far: its body, a handler, a permit.
    pub(crate) let_in: Instant,
    pub(crate) age: Duration,
    pub(crate) deadline: Deadline,
    pub(crate) codec: CodecId,
    pub(crate) priority: u8,
    pub(crate) attempt: u8,
    pub(crate) body_len: u32,
    pub(crate) kind: CallKind,
    pub(crate) metadata: Metadata,
    /// What handlers put beside it.
    pub(crate) extensions: Extensions,
    pub(crate) permit: CallPermit,
    /// If it has items, and items may have come already.
    pub(crate) stream: Option<Box<Seat>>,
}

impl Call<'_> {
    /// The id on its connection.
    pub fn id(&self) -> CallId {
        self.opening.id
    }

    /// The method that is called.
    pub fn method(&self) -> &MethodInfo {
        self.method
    }

    /// The connection it came by.
    pub fn connection(&self) -> &ConnectionInfo {
        self.connection
    }

    /// When it was received. Read once for all calls of a batch, so it may be late by the time a
    /// batch takes.
    pub fn received(&self) -> Instant {
        self.opening.received.instant
    }

    /// When it began to ask for a permit: when it was received, or had its body or what else it waited for.
    pub(crate) fn let_in(&self) -> Instant {
        self.opening.let_in
    }

    /// When it was received, or had its body or what else it waited for, as rate limits count time: a rate is of
    /// calls that could go on.
    pub fn received_ticks(&self) -> Ticks {
        self.opening.received.ticks
    }

    /// How long it had waited in socket buffers when it was received.
    pub fn age(&self) -> Duration {
        self.opening.age
    }

    /// By when it must have ended.
    pub fn deadline(&self) -> Deadline {
        self.opening.deadline
    }

    /// What its body is encoded with.
    pub fn codec(&self) -> CodecId {
        self.opening.codec
    }

    /// The class of the call: 0 normal, 1 critical, 2 low, 3 and others background.
    pub fn priority(&self) -> u8 {
        self.opening.priority
    }

    /// How often it was tried before.
    pub fn attempt(&self) -> u8 {
        self.opening.attempt
    }

    /// The length of its body in bytes, as the request says.
    pub fn body_len(&self) -> u32 {
        self.opening.body_len
    }

    /// Whether all of its body has come. A long body comes in parts, and handlers see the call with the first
    /// of them, so that whoever is to be refused is so before the rest is sent. A handler that gives the
    /// call something that others need, such as a permit, should leave that until the body is there, with
    /// [`Decision::AwaitBody`](crate::Decision::AwaitBody): who dribbles would hold it for as long as
    /// they like to.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Which ways items of the call go.
    pub fn kind(&self) -> CallKind {
        self.opening.kind
    }

    /// The metadata of the request.
    pub fn metadata(&self) -> &Metadata {
        &self.opening.metadata
    }

    /// What handlers before this one put beside the call.
    pub fn extensions(&self) -> &Extensions {
        &self.opening.extensions
    }

    /// Puts values beside the call, for handlers behind this one and for the service, which finds them
    /// with [`Context::extension`]. They are dropped when the call has ended and nobody holds its context.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.opening.extensions
    }

    /// Has each item that the client sends of the call take a token of `limit` before the service is handed it, in
    /// order, and wait until there is one. Items are neither refused nor lost by that: those that wait lie in the
    /// window of their stream, and the client is given no credit for more of them, so it is slowed down. Said
    /// several times, an item takes a token of each limit. It is for handlers that do not know the limit when the
    /// server is built, such as those that have one for each customer; see
    /// [`item_rate`](crate::ServerBuilder::item_rate) for what there is without one.
    ///
    /// Time is counted in milliseconds here, so the burst should be what refills in some of them: the default of a
    /// [`Rate`](rpc_core::limit::Rate) is. Where the client sends no items, and in a dry run of limits, it means
    /// nothing.
    pub fn pace_items(&mut self, limit: Arc<RateLimit>) {
        let extensions = &mut self.opening.extensions;
        let mut rates = extensions.get::<ItemRates>().cloned().unwrap_or_default();
        rates.0.push(limit);
        extensions.insert(rates);
    }

    /// Gives the call a permit to carry until its response has been written; while its body comes, if that
    /// is not there yet: see [`Call::is_whole`].
    pub fn carry(&mut self, permit: ConcurrencyPermit) {
        self.opening.permit.push(permit);
    }
}

impl Opening {
    /// Notes that it has waited until now.
    pub(crate) fn waited_until(&mut self, now: Reading) {
        self.let_in = now.instant;
        self.received.ticks = now.ticks;
    }

    /// Moves the call out; what is left behind has neither metadata nor permit nor stream.
    pub(crate) fn take(&mut self) -> Self {
        let (metadata, permit) = (mem::take(&mut self.metadata), mem::take(&mut self.permit));
        let extensions = mem::take(&mut self.extensions);
        Self { metadata, permit, extensions, stream: self.stream.take(), ..*self }
    }
}

/// A call's permit together with the context that may hand out holds on it; used again by one call
/// after the other.
///
/// However a running call ends, the permit goes through [`Context::settle`], so that a hold keeps
/// the slot even when the service's future is dropped with its connection; and in that case, too,
/// the context is told that nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    permit: CallPermit,
    /// Whether a call has it.
    taken: bool,
    /// Whether the context has what is dropped with the call.
    extended: bool,
    /// Once there was a call, always there but inside a poll, during which it is the thread's
    /// current context.
    pub(crate) context: Option<Context>,
}

impl Claim {
    /// Makes it the claim of a call that runs. Metadata and permit leave the opening.
    ///
    /// In place: what is written field by field and then moved as a whole makes the processor wait.
    pub(crate) fn take_over(&mut self, opening: &mut Opening, connection: &Arc<ConnectionInfo>) -> &Context {
        debug_assert!(!self.taken);
        self.permit = mem::take(&mut opening.permit);
        self.taken = true;
        let (id, received, deadline) = (opening.id, opening.received.instant, opening.deadline);
        let (priority, metadata) = (opening.priority, mem::take(&mut opening.metadata));
        let context = match &mut self.context {
            Some(context) => {
                context.renew(id, received, deadline, priority, metadata);
                context
            }
            none => {
                let (connection, extensions, clock) = (Arc::clone(connection), Extensions::new(), clock::now);
                let scope = CallScope { id, connection, received, deadline, priority, metadata, extensions, clock };
                none.insert(Context::new(scope))
            }
        };
        self.extended = !opening.extensions.is_empty();
        if self.extended {
            context.set_extensions(mem::take(&mut opening.extensions));
        }
        context
    }

    /// Whether a call has it.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken
    }

    /// Ends the service's part: what is left is the claim of the response on its way out.
    pub(crate) fn settle(&mut self) -> HeldPermit {
        self.taken = false;
        if self.extended
            && let Some(context) = &mut self.context
        {
            context.set_extensions(Extensions::new());
        }
        let permit = mem::take(&mut self.permit);
        match &self.context {
            Some(context) => context.settle(permit),
            None => HeldPermit::from(permit),
        }
    }

    /// The span that the call runs in, if it has one. Not inside a poll.
    #[inline]
    pub(crate) fn span(&self) -> Option<CallSpan> {
        if self.extended { self.context.as_ref()?.extension::<CallSpan>().cloned() } else { None }
    }

    pub(crate) fn cancel(&self) {
        if let Some(context) = &self.context {
            context.cancel();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.taken {
            self.cancel();
            drop(self.settle());
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use rpc_core::ConnectionId;

    use super::*;

    /// What a call is made of in tests without a socket.
    pub(crate) struct CallParts {
        pub(crate) opening: Opening,
        method: MethodInfo,
        connection: ConnectionInfo,
    }

    impl CallParts {
        /// The call as the pipeline sees it.
        pub(crate) fn call(&mut self) -> Call<'_> {
            Call { opening: &mut self.opening, method: &self.method, connection: &self.connection, whole: true }
        }

        /// The call as the pipeline sees it with the first part of its body.
        pub(crate) fn begun(&mut self) -> Call<'_> {
            Call { whole: false, ..self.call() }
        }

        /// The call number `sequence`, received `after` the first.
        pub(crate) fn received(sequence: u64, after: Duration) -> Self {
            let mut parts = Self::default();
            parts.opening.id = CallId::new(sequence, 0);
            parts.opening.received.instant += after;
            parts.opening.received.ticks = parts.opening.received.ticks.saturating_add(after);
            parts
        }
    }

    impl Default for CallParts {
        fn default() -> Self {
            let now = Instant::now();
            let opening = Opening {
                id: CallId::new(1, 0),
                let_in: now,
                received: Reading { instant: now, ticks: Ticks::new(1 << 61), micros: 0 },
                age: Duration::ZERO,
                deadline: Deadline::NONE,
                codec: CodecId::BINCODE,
                priority: 0,
                attempt: 0,
                body_len: 0,
                kind: CallKind::Unary,
                metadata: Metadata::new(),
                extensions: Extensions::new(),
                permit: CallPermit::default(),
                stream: None,
            };
            let connection = ConnectionInfo::new(ConnectionId::new(1), None);
            Self { opening, method: MethodInfo::new("test.Service", "method", false, false), connection }
        }
    }
}
