//! Responses on their way out: past the handlers, into the buffer, with the permits that wait for
//! them.

use rpc_codec::{EncodeError, OpenMessage, Remainder, encode_status};
use rpc_core::{CallId, Executed, Metadata, Refusal, RefusalReason, Status, StatusCode, limit::HeldPermit};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    call::Opening,
    clock::Reading,
    connection::Connection,
    gauges::{CONNECTION, TENANT},
    in_flight::{Pending, Place},
    inbound::is_of_a_limit,
    panics::contain,
    pipeline::{Answer, CallInfo, Outbound},
    scratch,
    server::{CutCall, Phase},
    stream::Seat,
    unary::{Outcome, TaskEnd},
};

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Tells of one refusal of many: a line for each would cost more than they do.
    #[cold]
    fn log_refusal(&self, refusal: &Refusal, refused: u64) {
        let (reason, limit) = (refusal.reason().name(), refusal.limit());
        tracing::debug!(connection = %self.info, reason, limit, tenant = refusal.tenant(), refused, "a call is refused");
    }

    /// Answers a call whose service has ended.
    pub(crate) fn service_ended(
        &mut self,
        id: CallId,
        method: u32,
        outcome: Outcome,
        permit: HeldPermit,
        panicked: bool,
        stream: Option<Box<Seat>>,
    ) {
        if panicked {
            self.count_panic();
        }
        if let Some(seat) = stream {
            return self.respond_behind_items(&seat, method, outcome, permit);
        }
        let handlers = self.pipeline.len();
        self.respond(id, Some(method), handlers, outcome, permit);
    }

    /// Answers a call that ran in a task of its own.
    pub(crate) fn respond_task(&mut self, pending: Pending, end: TaskEnd) {
        let outcome = end.body.map(|body| {
            let message = OpenMessage::response(&mut self.writer.out);
            self.writer.out.extend_from_slice(&body);
            message
        });
        self.service_ended(pending.id, pending.method, outcome, end.permit, end.panicked, pending.stream);
    }

    /// Turns away a call that was in the pipeline, and takes note of it if that was for want of permits: then there
    /// is no room for calls of its class, whether it has waited or not. A call above its rate, or above the share of
    /// its tenant or connection, says nothing of the server.
    pub(crate) fn refuse_call(&mut self, opening: &Opening, method: u32, upto: usize, refusal: &Refusal) {
        if let Some(gate) = self.server.limits.priority()
            && matches!(
                refusal.reason(),
                RefusalReason::ConcurrencyLimit | RefusalReason::QueueFull | RefusalReason::QueueTimeout
            )
            && !matches!(refusal.limit(), CONNECTION | TENANT)
        {
            gate.refused(opening.priority, Reading::now().ticks);
        }
        self.refuse(opening.id, Some(method), upto, refusal);
    }

    /// Turns a call away. Nothing is allocated, and no permit is held for it.
    ///
    /// What a limit refuses while the server drains is refused because of that: to come back later would be in vain.
    pub(crate) fn refuse(&mut self, id: CallId, method: Option<u32>, upto: usize, refusal: &Refusal) {
        let leaves = self.server.phase() != Phase::Serving && is_of_a_limit(refusal);
        let refusal = if leaves { &Refusal::new(RefusalReason::Draining) } else { refusal };
        let count = self.server.gauges.refused.count(refusal);
        if count.is_power_of_two() || count.is_multiple_of(LOGGED_REFUSALS) {
            self.log_refusal(refusal, count);
        }
        if upto > 0 {
            let info = CallInfo { id, method: method.map(|index| &*self.server.methods.get(index).info) };
            let mut response = Outbound::new(Answer::Refusal(refusal));
            let pipeline = &mut self.pipeline;
            if contain("a handler", || pipeline.outbound(upto, &info, &mut response)).is_err() {
                self.count_panic();
            }
        }
        scratch::encode_refusal(&mut self.writer.out, id, refusal);
    }

    /// Passes an answer through the handlers before position `upto` and appends its frame. The
    /// permit stays with it until its bytes have left.
    #[inline]
    pub(crate) fn respond(
        &mut self,
        id: CallId,
        method: Option<u32>,
        upto: usize,
        outcome: Outcome,
        permit: HeldPermit,
    ) {
        let remainder = match outcome {
            // Mostly it is a reply, and nobody looks at it.
            Ok(message) if !self.pipeline.wants_answers() => {
                let encoded = message.finish(&mut self.writer.out, id, self.bounds);
                encoded.unwrap_or_else(|error| self.say_does_not_fit(id, &error))
            }
            outcome => self.encode_response(id, method, upto, outcome),
        };
        match remainder {
            None => self.writer.push(id, method, permit),
            Some(remainder) => self.writer.push_parts(id, method, permit, remainder),
        }
    }

    /// Shows an answer to the handlers and appends it; what is left to be sent in parts, if anything is.
    pub(crate) fn encode_response(
        &mut self,
        id: CallId,
        method: Option<u32>,
        upto: usize,
        outcome: Outcome,
    ) -> Option<Remainder> {
        let (message, mut status) = match outcome {
            Ok(message) => (Some(message), None),
            Err(status) => (None, Some(status)),
        };
        let mut metadata = Metadata::new();
        if self.pipeline.wants_answers() {
            // What is not sent is shown to nobody.
            if let Some(reply) = &message
                && let Err(error) = reply.check(&self.writer.out, self.bounds)
            {
                status = Some(does_not_fit(&error));
            }
            let answer = match (&message, status) {
                (_, Some(status)) => Answer::Status(status),
                (Some(message), None) => Answer::Reply(message.body(&self.writer.out)),
                (None, None) => Answer::Reply(&[]),
            };
            let info = CallInfo { id, method: method.map(|index| &*self.server.methods.get(index).info) };
            let executed = match &answer {
                Answer::Status(status) => status.executed(),
                _ => Executed::Finished,
            };
            let mut response = Outbound::new(answer);
            let pipeline = &mut self.pipeline;
            let handled = contain("a handler", || pipeline.outbound(upto, &info, &mut response));
            (status, metadata) = response.into_parts();
            if handled.is_err() {
                self.count_panic();
                status = Some(Status::internal("a handler panicked").with_executed(executed));
            }
        }
        let out = &mut self.writer.out;
        let encoded = match (message, status) {
            (Some(mut message), None) => {
                if !metadata.is_empty() {
                    message.insert_metadata(out, &metadata);
                }
                message.finish(out, id, self.bounds)
            }
            (message, status) => {
                if let Some(message) = message {
                    message.abandon(out);
                }
                // An error that says OK would be a success without a value.
                let status = status.filter(|status| status.code() != StatusCode::Ok);
                let status = status.unwrap_or_else(|| Status::internal("the call has no answer"));
                encode_status(out, id, &status, self.bounds.max_frame).map(|()| None)
            }
        };
        encoded.unwrap_or_else(|error| self.say_does_not_fit(id, &error))
    }

    #[cold]
    fn say_does_not_fit(&mut self, id: CallId, error: &EncodeError) -> Option<Remainder> {
        encode_status(&mut self.writer.out, id, &does_not_fit(error), u32::MAX).expect("a short message fits");
        None
    }

    /// Notes a call that the server's shutdown cuts off.
    pub(crate) fn note_cut(&mut self, key: usize) {
        let Some(Pending { id, method, place, .. }) = self.in_flight.get_mut(key) else { return };
        let started = !matches!(place, Place::Waiting(_) | Place::Receiving(_));
        let method = self.server.methods.get(*method).info.path().to_owned();
        self.server.note_cut(CutCall { id: *id, method, connection: (*self.info).clone(), started });
    }
}

/// What the caller of a call is told whose answer it does not take, or whose handlers put too much beside it.
#[cold]
fn does_not_fit(error: &EncodeError) -> Status {
    match error {
        EncodeError::MessageTooLong { .. } => Status::resource_exhausted(format!("the response is too large: {error}")),
        _ => Status::internal(format!("the response does not fit: {error}")),
    }
}

/// Of refusals by one limit, the first is logged, the second, the fourth and so on, and every one of so many.
const LOGGED_REFUSALS: u64 = 1 << 16;
