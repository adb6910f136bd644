//! The unary methods of one connection: their futures in pooled slots, polled in place.

use std::{
    fmt,
    marker::PhantomData,
    mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, Waker},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use rpc_codec::{CallKind, CodecId, OpenMessage, PayloadError};
use rpc_core::{CallId, ConnectionInfo, Context, Executed, Status, StatusCode, limit::HeldPermit};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    body::Body,
    call::{Claim, Opening},
    panics::{Panicked, contain, end},
    prospects::Prospect,
    ready::{Key, Ready, SlotWaker},
    stream::Stream,
};

/// One method on one connection. The method is behind `dyn`, its futures are not: a call that is
/// ready at once boxes nothing.
pub(crate) trait ConnMethod: Send {
    /// Decodes the arguments, makes the future and polls it once.
    fn start(&mut self, call: Starting<'_, '_>, out: &mut Vec<u8>) -> Started;

    /// As `start`, but gives the future back to be run in a task of its own.
    fn spawn(&mut self, call: Starting<'_, '_>, prospect: Prospect) -> Result<Task, Ended>;

    /// Polls a pending call again. `None` if the slot has no tenant, after a late wake-up.
    fn poll(&mut self, slot: u32, out: &mut Vec<u8>) -> Option<(usize, Poll<Ended>)>;

    /// Drops the future of a pending call, and tells its context that nobody waits.
    fn cancel(&mut self, slot: u32) -> Ended;

    /// Takes a pending call out of its slot, to be run in a task of its own.
    fn detach(&mut self, slot: u32, id: CallId, parked: usize) -> Task;
}

/// An admitted call, its service still to be called.
#[derive(Debug)]
pub(crate) struct Starting<'a, 'b> {
    pub(crate) opening: &'a mut Opening,
    pub(crate) body: &'a mut Body<'b>,
    pub(crate) connection: &'a Arc<ConnectionInfo>,
    /// Where the connection will keep the call if it is pending.
    pub(crate) parked: usize,
    /// If it has items.
    pub(crate) stream: Option<&'a Arc<Stream>>,
}

/// What the first poll came to.
#[derive(Debug)]
pub(crate) enum Started {
    Ended(Ended),
    /// The future waits in this slot.
    Parked(u32),
}

/// The end of a call's service: what to answer, and the permit that travels with the answer.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) permit: HeldPermit,
    pub(crate) panicked: bool,
}

/// A body encoded into the outbox behind an open head, or a status.
pub(crate) type Outcome = Result<OpenMessage, Status>;

/// A call to be run in a task of its own, and the context by which it is told that nobody waits.
pub(crate) struct Task {
    pub(crate) future: BoxFuture<'static, TaskEnd>,
    pub(crate) context: Context,
}

/// The end of a call that ran in a task of its own; its body is still to be put behind a head.
#[derive(Debug)]
pub(crate) struct TaskEnd {
    pub(crate) parked: usize,
    pub(crate) id: CallId,
    pub(crate) body: Result<Vec<u8>, Status>,
    pub(crate) permit: HeldPermit,
    pub(crate) panicked: bool,
    /// If the first poll was the last. It counts until the body does.
    pub(crate) _prospect: Option<Prospect>,
}

/// How arguments and replies of a method stand on the wire.
pub(crate) trait Shape: Send + 'static {
    type Args: Send + 'static;
    type Reply: Send + 'static;

    const UNTOUCHED: bool;
    /// Which ways items go.
    const KIND: CallKind = CallKind::Unary;
    /// Whether an error of the service knows whether it was executed. Usually it is the service's own
    /// answer, wherever it got it from.
    const SAYS_EXECUTED: bool = false;

    /// The arguments; with the ends of `stream` if calls have items.
    fn decode(codec: CodecId, body: &mut Body<'_>, stream: Option<&Arc<Stream>>) -> Result<Self::Args, PayloadError>;
    fn encode(codec: CodecId, reply: &Self::Reply, out: &mut Vec<u8>) -> Result<(), PayloadError>;
}

/// Both in the codec of the call, arguments as a tuple.
#[derive(Debug)]
pub(crate) struct Typed<A, R>(PhantomData<fn(A) -> R>);

impl<A, R> Shape for Typed<A, R>
where
    A: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
{
    type Args = A;
    type Reply = R;

    const UNTOUCHED: bool = false;

    fn decode(codec: CodecId, body: &mut Body<'_>, _: Option<&Arc<Stream>>) -> Result<A, PayloadError> {
        codec.decode(body.bytes())
    }

    fn encode(codec: CodecId, reply: &R, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        codec.encode(reply, out)
    }
}

/// Bytes that no codec touches.
#[derive(Debug)]
pub(crate) struct Untouched;

impl Shape for Untouched {
    type Args = Bytes;
    type Reply = Bytes;

    const UNTOUCHED: bool = true;

    fn decode(_: CodecId, body: &mut Body<'_>, _: Option<&Arc<Stream>>) -> Result<Bytes, PayloadError> {
        Ok(body.take_bytes())
    }

    fn encode(_: CodecId, reply: &Bytes, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        out.extend_from_slice(reply);
        Ok(())
    }
}

/// A method whose futures are of one type: `Fut`, made by `F`.
pub(crate) struct Unary<S, F, Fut> {
    handler: F,
    index: u32,
    ready: Arc<Ready>,
    slots: Vec<Slot<Fut>>,
    free: Vec<u32>,
    shape: PhantomData<fn() -> S>,
}

/// The pooled home of one call: future, context and waker are used again by the next tenant.
struct Slot<Fut> {
    future: Pin<Box<Option<Fut>>>,
    claim: Claim,
    codec: CodecId,
    parked: usize,
    slot_waker: Arc<SlotWaker>,
    waker: Waker,
}

impl<S, F, Fut> Unary<S, F, Fut>
where
    S: Shape,
    F: Fn(&Context, S::Args) -> Fut + Send,
    Fut: Future<Output = Result<S::Reply, Status>> + Send + 'static,
{
    pub(crate) fn new(handler: F, index: u32, ready: Arc<Ready>) -> Self {
        Self { handler, index, ready, slots: Vec::new(), free: Vec::new(), shape: PhantomData }
    }

    fn free_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.len() as u32;
            let slot_waker = SlotWaker::new(&self.ready, Key::Slot { method: self.index, slot });
            self.slots.push(Slot {
                future: Box::pin(None),
                claim: Claim::default(),
                codec: CodecId::BYTES,
                parked: 0,
                waker: Arc::clone(&slot_waker).into(),
                slot_waker,
            });
            slot
        })
    }

    fn end(&mut self, slot: u32, outcome: Outcome, panicked: bool) -> Ended {
        let permit = self.slots[slot as usize].claim.settle();
        self.free.push(slot);
        Ended { outcome, permit, panicked }
    }
}

impl<Fut: Future> Slot<Fut> {
    /// Polls the future in its context, and puts what it answers into the outbox.
    fn poll<S>(&mut self, out: &mut Vec<u8>) -> Poll<Outcome>
    where
        S: Shape,
        Fut: Future<Output = Result<S::Reply, Status>>,
    {
        let Some(future) = self.future.as_mut().as_pin_mut() else {
            return Poll::Ready(Err(Status::internal("the call has no future")));
        };
        self.slot_waker.unlist();
        let span = self.claim.span();
        let in_span = span.as_ref().map(|span| span.0.enter());
        let entered = Context::enter(&mut self.claim.context);
        let polled = future.poll(&mut TaskContext::from_waker(&self.waker));
        drop(entered);
        drop(in_span);
        if let (Some(span), Poll::Ready(reply)) = (&span, &polled) {
            span.end(reply.as_ref().err().map_or(StatusCode::Ok, Status::code));
        }
        let outcome = match polled {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(status)) => Err(ended::<S>(status)),
            Poll::Ready(Ok(reply)) => encode::<S>(self.codec, &reply, out),
        };
        self.future.as_mut().set(None);
        Poll::Ready(outcome)
    }

    /// Drops the future, on its own, so that a panic in it does not meet the next tenant.
    fn clear(&mut self) -> bool {
        contain("a service's drop", || self.future.as_mut().set(None)).is_err()
    }
}

impl<S, F, Fut> ConnMethod for Unary<S, F, Fut>
where
    S: Shape,
    F: Fn(&Context, S::Args) -> Fut + Send,
    Fut: Future<Output = Result<S::Reply, Status>> + Send + 'static,
{
    fn start(&mut self, call: Starting<'_, '_>, out: &mut Vec<u8>) -> Started {
        let mark = out.len();
        let slot = self.free_slot();
        let tenant = &mut self.slots[slot as usize];
        let Starting { opening, body, connection, parked, stream } = call;
        let codec = opening.codec;
        tenant.codec = codec;
        tenant.parked = parked;
        let handler = &self.handler;
        let polled = contain("a service", || {
            let context = tenant.claim.take_over(opening, connection);
            match S::decode(codec, body, stream) {
                Err(error) => Poll::Ready(Err(undecodable(&error))),
                Ok(args) => {
                    tenant.future.as_mut().set(Some(handler(context, args)));
                    tenant.poll::<S>(out)
                }
            }
        });
        match polled {
            Ok(Poll::Pending) => Started::Parked(slot),
            Ok(Poll::Ready(outcome)) => Started::Ended(self.end(slot, outcome, false)),
            Err(Panicked) => Started::Ended(self.panicked(slot, mark, out)),
        }
    }

    fn spawn(&mut self, call: Starting<'_, '_>, prospect: Prospect) -> Result<Task, Ended> {
        let Starting { opening, body, connection, parked, stream } = call;
        let (id, codec) = (opening.id, opening.codec);
        let mut claim = Claim::default();
        let context = claim.take_over(opening, connection).clone();
        let prepared = contain("a service", || {
            S::decode(codec, body, stream)
                .map(|args| (self.handler)(&context, args))
                .map_err(|error| undecodable(&error))
        });
        let (status, panicked) = match prepared {
            Ok(Ok(future)) => {
                let future = Box::pin(Some(future));
                let future =
                    in_task::<S, Fut>(Tenancy { future, claim, codec, prospect: Some(prospect) }, parked, id).boxed();
                return Ok(Task { future, context });
            }
            Ok(Err(status)) => (status, false),
            Err(Panicked) => (panic_status(), true),
        };
        Err(Ended { outcome: Err(status), permit: claim.settle(), panicked })
    }

    fn poll(&mut self, slot: u32, out: &mut Vec<u8>) -> Option<(usize, Poll<Ended>)> {
        let mark = out.len();
        let tenant = &mut self.slots[slot as usize];
        if !tenant.claim.is_taken() {
            return None;
        }
        let parked = tenant.parked;
        let ended = match contain("a service", || tenant.poll::<S>(out)) {
            Ok(Poll::Pending) => return Some((parked, Poll::Pending)),
            Ok(Poll::Ready(outcome)) => self.end(slot, outcome, false),
            Err(Panicked) => self.panicked(slot, mark, out),
        };
        Some((parked, Poll::Ready(ended)))
    }

    fn cancel(&mut self, slot: u32) -> Ended {
        let tenant = &mut self.slots[slot as usize];
        tenant.claim.cancel();
        let panicked = tenant.clear();
        self.end(slot, Err(Status::cancelled("the call was cancelled").with_executed(Executed::Maybe)), panicked)
    }

    fn detach(&mut self, slot: u32, id: CallId, parked: usize) -> Task {
        let tenant = &mut self.slots[slot as usize];
        let future = mem::replace(&mut tenant.future, Box::pin(None));
        let claim = mem::take(&mut tenant.claim);
        let codec = tenant.codec;
        self.free.push(slot);
        let context = claim.context.clone().expect("a parked call is not polled right now");
        Task {
            future: in_task::<S, Fut>(Tenancy { future, claim, codec, prospect: None }, parked, id).boxed(),
            context,
        }
    }
}

impl<S, F, Fut> Unary<S, F, Fut>
where
    S: Shape,
    F: Fn(&Context, S::Args) -> Fut + Send,
    Fut: Future<Output = Result<S::Reply, Status>> + Send + 'static,
{
    #[cold]
    fn panicked(&mut self, slot: u32, mark: usize, out: &mut Vec<u8>) -> Ended {
        out.truncate(mark);
        self.slots[slot as usize].clear();
        self.end(slot, Err(panic_status()), true)
    }
}

impl<S, F, Fut> fmt::Debug for Unary<S, F, Fut> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unary")
            .field("slots", &self.slots.len())
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

/// What moves into a task of its own. The future goes before the claim, so that a slot is free only
/// when the future is dropped.
struct Tenancy<Fut> {
    future: Pin<Box<Option<Fut>>>,
    claim: Claim,
    codec: CodecId,
    /// Until it has been polled once.
    prospect: Option<Prospect>,
}

async fn in_task<S, Fut>(mut tenancy: Tenancy<Fut>, parked: usize, id: CallId) -> TaskEnd
where
    S: Shape,
    Fut: Future<Output = Result<S::Reply, Status>> + Send + 'static,
{
    let run = std::future::poll_fn(|cx| {
        let span = tenancy.claim.span();
        let _in_span = span.as_ref().map(|span| span.0.enter());
        let _entered = Context::enter(&mut tenancy.claim.context);
        let Some(future) = tenancy.future.as_mut().as_pin_mut() else { return Poll::Pending };
        let Poll::Ready(reply) = future.poll(cx) else {
            tenancy.prospect = None;
            return Poll::Pending;
        };
        if let Some(span) = &span {
            span.end(reply.as_ref().err().map_or(StatusCode::Ok, Status::code));
        }
        tenancy.future.as_mut().set(None);
        Poll::Ready(reply.map_err(ended::<S>).and_then(|reply| {
            let mut body = Vec::new();
            S::encode(tenancy.codec, &reply, &mut body).map_err(|error| encode_status(&error))?;
            Ok(body)
        }))
    });
    let (body, panicked) = match AssertUnwindSafe(run).catch_unwind().await {
        Ok(body) => (body, false),
        Err(panic) => {
            end("a service", panic);
            let _ = contain("a service's drop", || tenancy.future.as_mut().set(None));
            (Err(panic_status()), true)
        }
    };
    TaskEnd { parked, id, body, permit: tenancy.claim.settle(), panicked, _prospect: tenancy.prospect.take() }
}

fn ended<S: Shape>(status: Status) -> Status {
    if S::SAYS_EXECUTED { status } else { finished(status) }
}

/// A status that a service returns says that it ran, even if it got the status from elsewhere, where
/// something was never executed.
pub(crate) fn finished(status: Status) -> Status {
    status.with_executed(Executed::Finished)
}

fn encode<S: Shape>(codec: CodecId, reply: &S::Reply, out: &mut Vec<u8>) -> Outcome {
    let message = OpenMessage::response(out);
    if let Err(error) = S::encode(codec, reply, out) {
        message.abandon(out);
        return Err(encode_status(&error));
    }
    Ok(message)
}

pub(crate) fn undecodable(error: &PayloadError) -> Status {
    Status::invalid_argument(format!("the arguments cannot be decoded: {error}")).with_executed(Executed::Never)
}

pub(crate) fn encode_status(error: &PayloadError) -> Status {
    Status::internal(format!("the response cannot be encoded: {error}"))
}

/// What the peer is told of a panic: nothing of its text.
pub(crate) fn panic_status() -> Status {
    Status::internal("the service panicked").with_executed(Executed::Maybe)
}
