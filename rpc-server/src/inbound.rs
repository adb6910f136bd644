//! Frames on their way in: what each kind does, and how a request passes the pipeline. What lets a call
//! run is in `dispatch.rs`, and how a body arrives in parts in `uploads.rs`.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use rpc_codec::{CodecId, Decoded, Frame, GoAwayReason, RequestFrame, encode_pong};
use rpc_core::{
    CallId, Deadline, Executed, Extensions, Metadata, Refusal, RefusalReason, Status,
    limit::{CallPermit, HeldPermit},
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    body::Body,
    call::{Call, Opening},
    clock::{self, Reading},
    connection::{Broken, Connection},
    cut::Cut,
    ending::CLOSED_BY_HANDLER,
    gauges::{CONNECTION, Share},
    handlers::{expired, with_jitter},
    in_flight::{HandlerFuture, Patience, Pending, Place, Waiting},
    panics::contain,
    pipeline::Decision,
    ready::{Key, SlotWaker},
    uploads::kept_len,
};

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Handles the frame at the front of `bytes`, and says how long it was.
    pub(crate) fn process_frame(
        &mut self,
        bytes: &[u8],
        cx: &mut TaskContext<'_>,
        now: Reading,
    ) -> Result<Option<usize>, Broken> {
        let (frame, len) = match self.decoder.decode(bytes)? {
            Decoded::Frame { frame, len } => (frame, len),
            Decoded::Incomplete { .. } => return Ok(None),
        };
        match frame {
            Frame::Request(request) => {
                self.request(&request, cx, now)?;
                if request.more {
                    self.note_parts(request.body_len, request.body);
                }
                if request.kind.client_sends() {
                    self.note_stream_opening(request.id);
                }
            }
            Frame::Cancel { id } => self.cancelled(id, now)?,
            Frame::Ping(opaque) => {
                self.charge(now)?;
                encode_pong(&mut self.writer.out, opaque);
            }
            Frame::GoAway(_) if !self.client_leaves => self.client_leaves = true,
            Frame::GoAway(_) => self.charge(now)?,
            Frame::Malformed { id, .. } => {
                self.charge(now)?;
                if self.opens(id, now)? {
                    self.refuse(id, None, 0, &Refusal::new(RefusalReason::MalformedRequest));
                }
            }
            Frame::Item { id, more, len, part } => self.item(id, len, part, more, now)?,
            Frame::End { id } => self.end_of_items(id, now)?,
            Frame::Credit { id, bytes } => self.credit(id, bytes, now)?,
            Frame::Cont { id, more, part } if id != CallId::CONNECTION && id <= self.last_id => {
                self.add_part(id, part, more, cx, now)?
            }
            Frame::Pong(opaque) if self.life.is_answer(opaque) => {}
            Frame::Pong(_) | Frame::Ignored { .. } => {
                self.ignore_frame();
                self.charge(now)?;
            }
            other => return Err(unexpected(&other)),
        }
        Ok(Some(len))
    }

    /// Charges the peer for a frame that opens no call.
    pub(crate) fn charge(&self, now: Reading) -> Result<(), Broken> {
        within_rate(self.allowance.takes(now.ticks))
    }

    pub(crate) fn ignore_frame(&mut self) {
        self.server.gauges.frames_ignored.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks and notes the id of an opening frame. `false` for a call that nobody waits for: the
    /// client knows from our GOAWAY that it was never executed.
    fn opens(&mut self, id: CallId, now: Reading) -> Result<bool, Broken> {
        if id <= self.last_id {
            let message = format!("call {id} does not come after call {}", self.last_id);
            return Err(Broken::Refused(GoAwayReason::ProtocolError, message));
        }
        self.last_id = id;
        self.allowance.opened();
        let accepted = self.going_away.is_none_or(|last| id <= last);
        if !accepted {
            // It crossed our GOAWAY on the way.
            self.ignore_frame();
            within_rate(self.allowance.takes_free(now.ticks))?;
        }
        Ok(accepted)
    }

    fn request(&mut self, request: &RequestFrame<'_>, cx: &mut TaskContext<'_>, now: Reading) -> Result<(), Broken> {
        let id = request.id;
        if !self.opens(id, now)? {
            return Ok(());
        }
        let Some(method) = self.server.methods.find(request.head.method) else {
            self.refuse(id, None, 0, &Refusal::new(RefusalReason::UnknownMethod));
            return Ok(());
        };
        let age = self.age.observe(request.head.sent_at_us, now.micros);
        let metadata = match self.examine(request, method) {
            Ok(()) => request.metadata().map_err(|_| Refusal::new(RefusalReason::MalformedRequest)),
            Err(refusal) => Err(refusal),
        };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(refusal) => {
                self.refuse(id, Some(method), 0, &refusal);
                return Ok(());
            }
        };
        if request.kind != self.server.methods.get(method).info.kind() {
            self.answer_other_kind(id, method);
            return Ok(());
        }
        let mut permit = CallPermit::default();
        if (request.more || request.kind.client_sends())
            && let Err(refusal) = self.reserve(request, &metadata, &mut permit)
        {
            self.refuse(id, Some(method), 0, &refusal);
            return Ok(());
        }
        let mut opening = Opening {
            id,
            received: now,
            let_in: now.instant,
            age,
            deadline: self.deadline(request.head.timeout_us, age, now),
            codec: request.head.codec,
            priority: request.head.priority,
            attempt: request.head.attempt,
            body_len: request.body_len,
            kind: request.kind,
            metadata,
            extensions: Extensions::new(),
            permit,
            stream: None,
        };
        let admitted = self.admit(&mut opening, method, &mut Body::InFrame(request.body), 0, cx);
        self.batch.count();
        admitted
    }

    /// Takes what the rest of a call's body and its client's items may need.
    fn reserve(
        &mut self,
        request: &RequestFrame<'_>,
        metadata: &Metadata,
        permit: &mut CallPermit,
    ) -> Result<(), Refusal> {
        if request.kind.client_sends() {
            permit.reserve(self.reserve_window(self.server.config.stream_window)?);
        }
        if request.more {
            permit.reserve(self.reserve_body(kept_len(request.body_len, metadata))?);
        }
        Ok(())
    }

    /// The deadline that the caller has set, or the server's if that is earlier.
    fn deadline(&self, timeout_us: u64, age: Duration, now: Reading) -> Deadline {
        let callers = Deadline::from_wire(timeout_us, age, now.instant);
        let longest = self.server.config.max_call_time;
        longest.map_or(callers, |longest| callers.min(Deadline::after(now.instant, longest)))
    }

    /// Answers a call whose client takes the method for one of another kind.
    #[cold]
    fn answer_other_kind(&mut self, id: CallId, method: u32) {
        let kind = self.server.methods.get(method).info.kind().name();
        let status = Status::unimplemented(format!("the method is {kind}")).with_executed(Executed::Never);
        self.respond(id, Some(method), 0, Err(status), HeldPermit::default());
    }

    /// What can be refused from the fixed fields alone.
    fn examine(&self, request: &RequestFrame<'_>, method: u32) -> Result<(), Refusal> {
        let config = &self.server.config;
        let head = &request.head;
        let untouched = self.server.methods.get(method).info.is_untouched();
        let codec_fits = (head.codec == CodecId::BYTES) == untouched;
        if !codec_fits || !config.codecs.contains(head.codec) {
            let codec = u64::from(head.codec.to_wire());
            return Err(Refusal::new(RefusalReason::UnsupportedCodec).with_limit("", 0, codec));
        }
        if head.compression != 0 {
            let compression = u64::from(head.compression);
            return Err(Refusal::new(RefusalReason::UnsupportedCompression).with_limit("", 0, compression));
        }
        if request.body_len > config.max_message {
            let (max, len) = (u64::from(config.max_message), u64::from(request.body_len));
            return Err(Refusal::new(RefusalReason::MessageTooLarge).with_limit("", max, len));
        }
        // A task that was cancelled and has not ended is no call any more, but still costs what it holds.
        let pending = self.in_flight.len().max(self.tasks.len()) as u64;
        let max = self.server.limits.max_pending();
        // Holds even if the user's pipeline has no limit: parked calls cost memory.
        if pending >= max { self.has_too_many(pending, method) } else { Ok(()) }
    }

    /// What is said of one call more on a connection that has as many as it may.
    #[cold]
    fn has_too_many(&self, pending: u64, method: u32) -> Result<(), Refusal> {
        let Self { server, .. } = self;
        let most = server.limits.max_pending().saturating_add(MAX_EXEMPT);
        // How the server is shall be told also if it has much to do; but not for any number of calls, each of
        // which has parts of a body to come.
        if server.methods.get(method).info.is_exempt() && pending < most {
            return Ok(());
        }
        let max = server.limits.max_per_connection();
        let refusal = match server.limits.max_waiting().filter(|_| pending >= max) {
            Some(max_waiting) => {
                Refusal::new(RefusalReason::QueueFull).with_limit(CONNECTION, max_waiting, pending - max)
            }
            None => Refusal::new(RefusalReason::ConcurrencyLimit).with_limit(CONNECTION, max, pending),
        };
        Err(refusal.with_retry_delay(with_jitter(server.config.concurrency_retry_delay)))
    }

    /// Passes the call through the pipeline from position `from` on, and starts it if it is let
    /// through and its body is there.
    pub(crate) fn admit(
        &mut self,
        opening: &mut Opening,
        method: u32,
        body: &mut Body<'_>,
        mut from: usize,
        cx: &mut TaskContext<'_>,
    ) -> Result<(), Broken> {
        let id = opening.id;
        let whole = body.bytes().len() == opening.body_len as usize;
        loop {
            let Self { pipeline, server, info, .. } = self;
            let passed = contain("a handler", || {
                let method = &*server.methods.get(method).info;
                pipeline.inbound(from, &mut Call { opening, method, connection: info, whole })
            });
            let Ok(stopped) = passed else {
                self.count_panic();
                let status = Status::internal("a handler panicked").with_executed(Executed::Never);
                self.respond(id, Some(method), 0, Err(status), mem::take(&mut opening.permit).into());
                return Ok(());
            };
            let Some((at, decision)) = stopped else {
                match whole {
                    true => self.start(opening, method, body),
                    false => self.await_body(opening, method, body, self.pipeline.len()),
                }
                return Ok(());
            };
            match decision {
                Decision::Refuse(refusal) if is_for_want_of_permits(&refusal) && self.flush_frees(cx)? => from = at,
                Decision::WaitUntil { until, otherwise, future } if is_for_want_of_permits(&otherwise) => {
                    // It may be a user's, and panic when it is dropped: here, or because the write fails.
                    let future = HandlerFuture::new(future, &self.server.gauges.panics);
                    if !self.flush_frees(cx)? {
                        self.wait(opening, method, body, at, future, Some(Patience { until, otherwise }));
                        return Ok(());
                    }
                    from = at;
                }
                Decision::Carry(permit) => {
                    opening.permit.push(permit);
                    from = at + 1;
                }
                Decision::AwaitBody if whole => from = at + 1,
                Decision::Refuse(refusal) if self.server.limits.is_dry_run() && is_of_a_limit(&refusal) => {
                    self.server.gauges.would_refuse.count(&refusal);
                    from = at + 1;
                }
                decision => return self.decided(opening, method, body, at, decision),
            }
        }
    }

    /// Does what a handler at position `at` has decided, other than to let the call pass.
    fn decided(
        &mut self,
        opening: &mut Opening,
        method: u32,
        body: &mut Body<'_>,
        at: usize,
        decision: Decision,
    ) -> Result<(), Broken> {
        let id = opening.id;
        match decision {
            Decision::Refuse(refusal) => self.refuse_call(opening, method, at, &refusal),
            Decision::Answer(status) => {
                let status = status.with_executed(Executed::Never);
                self.respond(id, Some(method), at, Err(status), mem::take(&mut opening.permit).into());
            }
            Decision::AwaitBody => self.await_body(opening, method, body, at),
            Decision::Wait(future) => {
                let future = HandlerFuture::new(future, &self.server.gauges.panics);
                self.wait(opening, method, body, at, future, None);
            }
            Decision::WaitUntil { until, otherwise, future } => {
                let future = HandlerFuture::new(future, &self.server.gauges.panics);
                self.wait(opening, method, body, at, future, Some(Patience { until, otherwise }));
            }
            Decision::Close(message) => {
                return Err(Broken::Refused(GoAwayReason::Other(CLOSED_BY_HANDLER), message));
            }
            Decision::Pass | Decision::Carry(_) => {
                unreachable!("a call that passes a handler is not stopped at it");
            }
        }
        Ok(())
    }

    /// Whether writing gave permits back. Finished calls whose responses wait in the buffer are not
    /// load; to refuse because of them would refuse most of a batch on an idle server.
    fn flush_frees(&mut self, cx: &mut TaskContext<'_>) -> Result<bool, Broken> {
        let before = self.writer.unwritten();
        if before == 0 {
            return Ok(false);
        }
        self.flush(cx, clock::now())?;
        Ok(self.writer.unwritten() < before)
    }

    fn wait(
        &mut self,
        opening: &mut Opening,
        method: u32,
        body: &mut Body<'_>,
        at: usize,
        future: HandlerFuture,
        patience: Option<Patience>,
    ) {
        let key = self.in_flight.next_key();
        let waker = SlotWaker::new(&self.ready, Key::Waiting(key));
        let (id, received, deadline) = (opening.id, opening.received.instant, opening.deadline);
        let upload = body.keep(opening.body_len, opening.received.instant);
        let stream = self.seat(opening);
        let _gauge = Share::one_of(&self.server.gauges.in_pipeline);
        let waiting = Waiting { opening: opening.take(), upload, at, future, waker, patience, _gauge };
        let place = Place::Waiting(Box::new(waiting));
        self.in_flight.insert(Pending { id, method, received, began: received, deadline, place, stream });
        // Nothing else polls it for the first time.
        self.ready.push(Key::Waiting(key));
    }

    pub(crate) fn poll_waiting(&mut self, key: usize, cx: &mut TaskContext<'_>) -> Result<(), Broken> {
        let Some(pending) = self.in_flight.get_mut(key) else { return Ok(()) };
        let Place::Waiting(waiting) = &mut pending.place else { return Ok(()) };
        waiting.waker.unlist();
        let waker = Arc::clone(&waiting.waker).into();
        let mut waiting_cx = TaskContext::from_waker(&waker);
        let polled = contain("a handler", || waiting.future.poll(&mut waiting_cx));
        let decision = match polled {
            Ok(Poll::Pending) => return Ok(()),
            Ok(Poll::Ready(decision)) => decision,
            Err(_) => {
                self.count_panic();
                Decision::Answer(Status::internal("a handler panicked").with_executed(Executed::Never))
            }
        };
        let Some(Pending { method, place: Place::Waiting(waiting), stream, .. }) = self.in_flight.remove(key) else {
            return Ok(());
        };
        let Waiting { mut opening, upload, at, _gauge: waited, .. } = *waiting;
        drop(waited);
        opening.stream = stream;
        let mut body = Body::Kept(upload);
        let asked = opening.let_in;
        if !matches!(decision, Decision::Wait(_) | Decision::WaitUntil { .. }) {
            opening.waited_until(Reading::now());
        }
        let went_on = match decision {
            // Its deadline is looked at again: it may have passed in this very turn.
            Decision::Pass | Decision::Carry(_) | Decision::AwaitBody
                if opening.deadline.is_expired(opening.let_in) =>
            {
                drop(decision);
                self.refuse_call(&opening, method, at, &expired(opening.age));
                Ok(())
            }
            Decision::Pass | Decision::AwaitBody => self.admit(&mut opening, method, &mut body, at + 1, cx),
            Decision::Carry(permit) => {
                if let Some(feedback) = &self.server.feedback {
                    feedback.waited(method, opening.let_in.saturating_duration_since(asked));
                }
                opening.permit.push(permit);
                self.admit(&mut opening, method, &mut body, at + 1, cx)
            }
            decision => self.decided(&mut opening, method, &mut body, at, decision),
        };
        self.note_stream_left(&mut opening);
        went_on
    }

    fn cancelled(&mut self, id: CallId, now: Reading) -> Result<(), Broken> {
        if id == CallId::CONNECTION || id > self.last_id {
            let message = format!("call {id} was cancelled before it was opened");
            return Err(Broken::Refused(GoAwayReason::ProtocolError, message));
        }
        let paid = self.allowance.cancelled();
        match self.in_flight.key_of(id) {
            Some(key) => self.end_pending(key, None),
            None if self.writer.abandon(id) => {}
            None => {
                // It crossed the answer on the way.
                self.ignore_frame();
                if !paid {
                    self.charge(now)?;
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn within_rate(is_within: bool) -> Result<(), Broken> {
    if is_within { Ok(()) } else { Err(Broken::Cut(Cut::Flood)) }
}

/// Calls of the health service that a connection may have pending when it has as many others as it may. They are
/// ready at once, but for those whose bodies are still coming.
const MAX_EXEMPT: u64 = 64;

/// Whether permits that come back would let the call pass.
fn is_for_want_of_permits(refusal: &Refusal) -> bool {
    matches!(
        refusal.reason(),
        RefusalReason::ConcurrencyLimit
            | RefusalReason::QueueFull
            | RefusalReason::QueueTimeout
            | RefusalReason::BodyBudget
    )
}

/// Whether a limit has refused it, which lets the call pass nevertheless if it is only tried out.
pub(crate) fn is_of_a_limit(refusal: &Refusal) -> bool {
    is_for_want_of_permits(refusal)
        || matches!(
            refusal.reason(),
            RefusalReason::ConcurrencyNeverPasses
                | RefusalReason::DeadlineTooShort
                | RefusalReason::PriorityShed
                | RefusalReason::RateLimit
                | RefusalReason::RateContended
                | RefusalReason::RateNeverPasses
        )
}

fn unexpected(frame: &Frame<'_>) -> Broken {
    let kind = match frame {
        Frame::Response(_) => "RESPONSE",
        Frame::Cont { .. } => "CONT of a call that was not opened",
        _ => "frame",
    };
    Broken::Refused(GoAwayReason::ProtocolError, format!("a client must not send this {kind}"))
}
