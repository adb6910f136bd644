//! Methods that block their thread: each call is a closure for the runtime's blocking pool.

use std::{fmt, marker::PhantomData};

use rpc_codec::CodecId;
use rpc_core::{CallId, Context, Status, StatusCode};

use crate::{
    body::Body,
    call::Claim,
    panics::contain,
    unary::{Shape, Starting, TaskEnd, encode_status, finished, panic_status, undecodable},
};

/// A method that blocks. Unlike one that is polled, it keeps nothing for each connection.
pub(crate) trait BlockingMethod: Send + Sync {
    /// Makes the closure of one call. Arguments are decoded in it, for they may be large.
    fn prepare(&self, call: Starting<'_, '_>) -> Job;
}

/// A call to be run where it may block, and the context by which it is told that nobody waits.
pub(crate) struct Job {
    /// Owns the call's permit, so the limits bound the work until it has ended, whatever becomes of
    /// the caller. Dropped without having run, it gives the permit back.
    pub(crate) run: Box<dyn FnOnce() -> TaskEnd + Send>,
    pub(crate) context: Context,
}

/// A blocking method whose handler is `F`.
pub(crate) struct Blocking<S, F> {
    handler: F,
    shape: PhantomData<fn() -> S>,
}

impl<S, F> Blocking<S, F> {
    pub(crate) fn new(handler: F) -> Self {
        Self { handler, shape: PhantomData }
    }
}

impl<S, F> BlockingMethod for Blocking<S, F>
where
    S: Shape,
    F: Fn(&Context, S::Args) -> Result<S::Reply, Status> + Clone + Send + Sync + 'static,
{
    fn prepare(&self, call: Starting<'_, '_>) -> Job {
        let Starting { opening, body, connection, parked, .. } = call;
        let (id, codec) = (opening.id, opening.codec);
        let mut claim = Claim::default();
        let context = claim.take_over(opening, connection).clone();
        let closure = Closure { handler: self.handler.clone(), claim, body: Body::Owned(body.take_bytes()), codec };
        Job { run: Box::new(move || closure.run::<S>(parked, id)), context }
    }
}

impl<S, F> fmt::Debug for Blocking<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}

/// What moves to the blocking pool.
struct Closure<F> {
    handler: F,
    claim: Claim,
    body: Body<'static>,
    codec: CodecId,
}

impl<F> Closure<F> {
    fn run<S>(mut self, parked: usize, id: CallId) -> TaskEnd
    where
        S: Shape,
        F: Fn(&Context, S::Args) -> Result<S::Reply, Status>,
    {
        let ran = contain("a service", || self.serve::<S>());
        let panicked = ran.is_err();
        let body = ran.unwrap_or_else(|_| Err(panic_status()));
        TaskEnd { parked, id, body, permit: self.claim.settle(), panicked, _prospect: None }
    }

    fn serve<S>(&mut self) -> Result<Vec<u8>, Status>
    where
        S: Shape,
        F: Fn(&Context, S::Args) -> Result<S::Reply, Status>,
    {
        let span = self.claim.span();
        let _in_span = span.as_ref().map(|span| span.0.enter());
        let context = self.claim.context.clone().expect("a claim that was taken has a context");
        let _entered = Context::enter(&mut self.claim.context);
        let args = S::decode(self.codec, &mut self.body, None).map_err(|error| undecodable(&error))?;
        // Nothing needs it any more, and the service may take long.
        self.body = Body::InFrame(&[]);
        let reply = (self.handler)(&context, args);
        if let Some(span) = &span {
            span.end(reply.as_ref().err().map_or(StatusCode::Ok, Status::code));
        }
        let reply = reply.map_err(finished)?;
        let mut body = Vec::new();
        S::encode(self.codec, &reply, &mut body).map_err(|error| encode_status(&error))?;
        Ok(body)
    }
}
