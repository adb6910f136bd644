//! Frames on their way in: what each kind does, and how a request becomes a running call.

use std::{
    mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use rpc_codec::{CodecId, Decoded, Frame, GoAwayReason, MIN_PART_LEN, RequestFrame, encode_pong};
use rpc_core::{
    CallId, Deadline, Executed, Refusal, RefusalReason, Status,
    limit::{CallPermit, ConcurrencyLimit, HeldPermit, Reservation},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinError,
};

use crate::{
    batch::Batch,
    blocking::Job,
    body::Body,
    call::{Call, Opening},
    clock::{self, Reading},
    connection::{Broken, CLOSED_BY_HANDLER, Connection},
    cut::Cut,
    gauges::{CONNECTION, CONNECTION_BODIES},
    in_flight::{HandlerFuture, Pending, Place, Receiving, Waiting},
    method::Run,
    panics::{contain, end_of_task},
    pipeline::Decision,
    ready::{Key, SlotWaker},
    unary::{Ended, Outbox, Started, Starting, TaskEnd, panic_status},
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
            Frame::Request(request) => self.request(&request, cx, now)?,
            Frame::Cancel { id } => self.cancelled(id, now)?,
            Frame::Ping(opaque) => {
                self.charge(now)?;
                encode_pong(&mut self.writer.out, opaque);
            }
            Frame::GoAway(_) if !self.client_leaves => self.client_leaves = true,
            Frame::GoAway(_) => self.charge(now)?,
            Frame::Malformed { id, .. } => {
                self.charge(now)?;
                if self.opens(id)? {
                    self.refuse(id, None, 0, &Refusal::new(RefusalReason::MalformedRequest));
                }
            }
            Frame::Cont { id, more, part } if id != CallId::CONNECTION && id <= self.last_id => {
                self.add_part(id, part, more, now)?
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
    fn charge(&self, now: Reading) -> Result<(), Broken> {
        if self.allowance.takes(now.ticks) { Ok(()) } else { Err(Broken::Cut(Cut::Flood)) }
    }

    fn ignore_frame(&mut self) {
        self.server.gauges.frames_ignored.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks and notes the id of an opening frame. `false` for a call that nobody waits for: the
    /// client knows from our GOAWAY that it was never executed.
    fn opens(&mut self, id: CallId) -> Result<bool, Broken> {
        if id <= self.last_id {
            let message = format!("call {id} does not come after call {}", self.last_id);
            return Err(Broken::Refused(GoAwayReason::ProtocolError, message));
        }
        self.last_id = id;
        self.allowance.opened();
        let accepted = self.going_away.is_none_or(|last| id <= last);
        if !accepted {
            self.ignore_frame();
        }
        Ok(accepted)
    }

    fn request(&mut self, request: &RequestFrame<'_>, cx: &mut TaskContext<'_>, now: Reading) -> Result<(), Broken> {
        let id = request.id;
        if !self.opens(id)? {
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
        let mut permit = CallPermit::default();
        if request.more {
            match self.reserve_body(request.body_len) {
                Ok(bytes) => permit.reserve(bytes),
                Err(refusal) => {
                    self.refuse(id, Some(method), 0, &refusal);
                    return Ok(());
                }
            }
        }
        let mut opening = Opening {
            id,
            received: now,
            age,
            deadline: Deadline::from_wire(request.head.timeout_us, age, now.instant),
            codec: request.head.codec,
            priority: request.head.priority,
            attempt: request.head.attempt,
            body_len: request.body_len,
            metadata,
            permit,
        };
        let admitted = self.admit(&mut opening, method, &mut Body::InFrame(request.body), 0, cx);
        self.batch.count();
        admitted
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
        let max = config.max_concurrent_calls_per_connection;
        if pending >= max {
            // Holds even if the user's pipeline has no limit: parked calls cost memory.
            return Err(Refusal::new(RefusalReason::ConcurrencyLimit)
                .with_limit(CONNECTION, max, pending)
                .with_retry_delay(config.concurrency_retry_delay));
        }
        Ok(())
    }

    /// Takes what a body in parts will need, before any of it is kept.
    fn reserve_body(&mut self, len: u32) -> Result<Reservation, Refusal> {
        let Self { server, bodies, .. } = self;
        let config = &server.config;
        let limit = bodies.get_or_insert_with(|| {
            let max = Some(config.body_budget_per_connection);
            ConcurrencyLimit::within(Arc::clone(&server.gauges.bodies), CONNECTION_BODIES, max)
                .expect("checked when the server was built")
        });
        limit.try_reserve(len.into()).map_err(|full| {
            Refusal::new(RefusalReason::BodyBudget)
                .with_limit(full.limit, full.max, full.in_flight)
                .with_retry_delay(config.concurrency_retry_delay)
        })
    }

    /// Adds a part to the body of a call. The last one starts the call, if it was let through.
    fn add_part(&mut self, id: CallId, part: &[u8], more: bool, now: Reading) -> Result<(), Broken> {
        let Some(key) = self.in_flight.key_of(id) else {
            // The call was refused, or ended otherwise, while its parts were under way.
            self.ignore_frame();
            // Long parts pay with their length.
            if part.len() < MIN_PART_LEN {
                self.charge(now)?;
            }
            return Ok(());
        };
        let upload = self.in_flight.get_mut(key).and_then(|pending| pending.place.upload_mut());
        let Some(upload) = upload.filter(|upload| !upload.is_complete()) else {
            let message = format!("the body of call {id} goes on after its last part");
            return Err(Broken::Refused(GoAwayReason::ProtocolError, message));
        };
        match upload.add(part, more) {
            Ok(false) => {}
            Ok(true) => self.received(key, now),
            Err(_) => self.refuse_pending(key, &Refusal::new(RefusalReason::MalformedRequest)),
        }
        Ok(())
    }

    /// Starts a call whose body is complete, unless it still waits in the pipeline.
    fn received(&mut self, key: usize, now: Reading) {
        if !matches!(self.in_flight.get_mut(key), Some(Pending { place: Place::Receiving(_), .. })) {
            return;
        }
        let Some(Pending { method, place: Place::Receiving(receiving), .. }) = self.in_flight.remove(key) else {
            return;
        };
        let Receiving { mut opening, upload } = *receiving;
        if opening.deadline.is_expired(now.instant) {
            let handlers = self.pipeline.len();
            self.refuse(opening.id, Some(method), handlers, &Refusal::new(RefusalReason::DeadlineExpired));
        } else {
            self.start(&mut opening, method, &mut Body::Kept(upload));
        }
        self.batch.count();
    }

    /// Turns a call away whose body is not complete.
    fn refuse_pending(&mut self, key: usize, refusal: &Refusal) {
        let Some(Pending { id, method, place, .. }) = self.in_flight.remove(key) else { return };
        let passed = match &place {
            Place::Waiting(waiting) => waiting.at,
            _ => self.pipeline.len(),
        };
        drop(place);
        self.refuse(id, Some(method), passed, refusal);
    }

    /// Turns away the calls whose bodies come too slowly: there is `nothing_to_read`, so it is not us
    /// who are slow.
    pub(crate) fn refuse_slow_bodies(&mut self, nothing_to_read: bool, now: Instant) {
        if self.is_above_mark() {
            self.reads_paused = true;
            return;
        }
        // Woken long after it was due, we were busy, and kept the peer from sending.
        let busy = self.in_flight.next_slow().is_some_and(|due| now.saturating_duration_since(due) > BUSY);
        if mem::take(&mut self.reads_paused) || busy {
            self.in_flight.restart_uploads(now);
        }
        if !nothing_to_read {
            return;
        }
        for (key, rate) in self.in_flight.too_slow(now) {
            let upload = self.in_flight.get_mut(key).and_then(|pending| pending.place.upload_mut());
            let received = upload.map_or(0, |upload| upload.len());
            let refusal = Refusal::new(RefusalReason::BodyTooSlow);
            self.refuse_pending(key, &refusal.with_limit("", rate.bytes_per_second.into(), received as u64));
        }
    }

    /// The client sends nothing more: bodies that are not complete never will be.
    pub(crate) fn refuse_incomplete_bodies(&mut self) {
        for key in self.in_flight.incomplete() {
            self.refuse_pending(key, &Refusal::new(RefusalReason::MalformedRequest));
        }
    }

    /// Passes the call through the pipeline from position `from` on, and starts it if it is let
    /// through.
    fn admit(
        &mut self,
        opening: &mut Opening,
        method: u32,
        body: &mut Body<'_>,
        mut from: usize,
        cx: &mut TaskContext<'_>,
    ) -> Result<(), Broken> {
        let id = opening.id;
        loop {
            let Self { pipeline, server, info, .. } = self;
            let passed = contain("a handler", || {
                let method = &*server.methods.get(method).info;
                pipeline.inbound(from, &mut Call { opening, method, connection: info })
            });
            let Ok(stopped) = passed else {
                self.count_panic();
                let status = Status::internal("a handler panicked").with_executed(Executed::Never);
                self.respond(id, Some(method), 0, Err(status), mem::take(&mut opening.permit).into());
                return Ok(());
            };
            let Some((at, decision)) = stopped else {
                self.let_through(opening, method, body);
                return Ok(());
            };
            match decision {
                Decision::Refuse(refusal)
                    if refusal.reason() == RefusalReason::ConcurrencyLimit && self.flush_frees(cx)? =>
                {
                    from = at;
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
            Decision::Refuse(refusal) => self.refuse(id, Some(method), at, &refusal),
            Decision::Answer(status) => {
                let status = status.with_executed(Executed::Never);
                self.respond(id, Some(method), at, Err(status), mem::take(&mut opening.permit).into());
            }
            Decision::Wait(future) => self.wait(opening, method, body, at, future),
            Decision::Close(message) => {
                return Err(Broken::Refused(GoAwayReason::Other(CLOSED_BY_HANDLER), message));
            }
            Decision::Pass => self.let_through(opening, method, body),
        }
        Ok(())
    }

    /// Starts a call that has passed the pipeline, or waits for the rest of its body.
    fn let_through(&mut self, opening: &mut Opening, method: u32, body: &mut Body<'_>) {
        if body.bytes().len() == opening.body_len as usize {
            return self.start(opening, method, body);
        }
        let (id, deadline) = (opening.id, opening.deadline);
        let upload = body.keep(opening.body_len, opening.received.instant);
        let receiving = Receiving { opening: opening.take(), upload };
        self.in_flight.insert(Pending { id, method, deadline, place: Place::Receiving(Box::new(receiving)) });
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
        future: Pin<Box<dyn Future<Output = Decision> + Send>>,
    ) {
        let key = self.in_flight.next_key();
        let waker = SlotWaker::new(&self.ready, Key::Waiting(key));
        let (id, deadline) = (opening.id, opening.deadline);
        let future = HandlerFuture::new(future, &self.server.gauges.panics);
        let upload = body.keep(opening.body_len, opening.received.instant);
        let waiting = Waiting { opening: opening.take(), upload, at, future, waker };
        self.in_flight.insert(Pending { id, method, deadline, place: Place::Waiting(Box::new(waiting)) });
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
        let Some(Pending { method, place: Place::Waiting(waiting), .. }) = self.in_flight.remove(key) else {
            return Ok(());
        };
        let Waiting { mut opening, upload, at, .. } = *waiting;
        let mut body = Body::Kept(upload);
        match decision {
            // Its deadline is looked at again: it may have passed in this very turn.
            Decision::Pass if opening.deadline.is_expired(clock::now()) => {
                self.refuse(opening.id, Some(method), at, &Refusal::new(RefusalReason::DeadlineExpired));
                Ok(())
            }
            Decision::Pass => self.admit(&mut opening, method, &mut body, at + 1, cx),
            decision => self.decided(&mut opening, method, &mut body, at, decision),
        }
    }

    /// Decodes and runs an admitted call: in place if its method is quick, in a task if it is not, and
    /// on the blocking pool if it blocks.
    fn start(&mut self, opening: &mut Opening, method: u32, body: &mut Body<'_>) {
        let Self { server, methods, in_flight, tasks, ready, writer, bounds, info, .. } = self;
        let registered = server.methods.get(method);
        let (id, deadline) = (opening.id, opening.deadline);
        let starting = Starting { opening, body, connection: info, parked: in_flight.next_key() };
        let make = match &registered.run {
            Run::Polled(make) => make,
            Run::Blocking(blocking) => {
                let Job { run, context } = blocking.prepare(starting);
                // It panics if there is no thread and none can be made.
                let Ok(abort) = contain("the blocking pool", || tasks.spawn_blocking(run)) else {
                    let status = Status::unavailable("there is no thread to run this").with_executed(Executed::Never);
                    let handlers = self.pipeline.len();
                    return self.respond(id, Some(method), handlers, Err(status), HeldPermit::default());
                };
                in_flight.insert(Pending { id, method, deadline, place: Place::Task { abort, context } });
                return;
            }
        };
        if methods.len() < server.methods.len() {
            methods.resize_with(server.methods.len(), || None);
        }
        let place = methods[method as usize].get_or_insert_with(|| make(method, ready));
        if server.config.spawn_calls || registered.info.is_spawned() {
            match place.spawn(starting) {
                Ok(task) => {
                    let abort = tasks.spawn(task.future);
                    let place = Place::Task { abort, context: task.context };
                    in_flight.insert(Pending { id, method, deadline, place });
                }
                Err(Ended { outcome, permit, panicked }) => {
                    self.service_ended(id, method, outcome, permit, panicked);
                }
            }
            return;
        }
        let began = self.batch.poll_begins();
        match place.start(starting, &mut Outbox { out: &mut writer.out, bounds: *bounds }) {
            Started::Ended(Ended { outcome, permit, panicked }) => {
                self.service_ended(id, method, outcome, permit, panicked);
            }
            Started::Parked(slot) => {
                in_flight.insert(Pending { id, method, deadline, place: Place::Slot(slot) });
            }
        }
        if let Some(began) = began {
            self.note_poll(method, began);
        }
    }

    /// Notes how long a poll of `method` took. `true` if it was slow.
    fn note_poll(&mut self, method: u32, began: Instant) -> bool {
        let slow = clock::now().saturating_duration_since(began) >= Batch::SLOW_POLL;
        let info = &self.server.methods.get(method).info;
        if info.note_poll(slow) {
            self.server.gauges.methods_demoted.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(method = info.path(), "polls are slow; calls run in tasks of their own from now on");
        }
        slow
    }

    pub(crate) fn poll_slot(&mut self, method: u32, slot: u32) {
        let Some(Some(place)) = self.methods.get_mut(method as usize) else { return };
        let began = self.batch.poll_begins();
        let Some((key, polled)) = place.poll(slot, &mut Outbox { out: &mut self.writer.out, bounds: self.bounds })
        else {
            return;
        };
        self.batch.count();
        let slow = began.is_some_and(|began| self.note_poll(method, began));
        match polled {
            Poll::Ready(Ended { outcome, permit, panicked }) => {
                if let Some(pending) = self.in_flight.remove(key) {
                    self.service_ended(pending.id, method, outcome, permit, panicked);
                }
            }
            Poll::Pending if slow => self.detach(key, method, slot),
            Poll::Pending => {}
        }
    }

    /// Moves a pending call whose polls are slow into a task of its own.
    fn detach(&mut self, key: usize, method: u32, slot: u32) {
        let (Some(Some(place)), Some(pending)) = (self.methods.get_mut(method as usize), self.in_flight.get_mut(key))
        else {
            return;
        };
        let task = place.detach(slot, pending.id, key);
        let abort = self.tasks.spawn(task.future);
        pending.place = Place::Task { abort, context: task.context };
    }

    pub(crate) fn task_ended(&mut self, end: TaskEnd) {
        // A call that was cancelled or expired meanwhile is not there any more, and its key may be
        // another's.
        if self.in_flight.get_mut(end.parked).is_none_or(|pending| pending.id != end.id) {
            if end.panicked {
                self.count_panic();
            }
            return;
        }
        if let Some(pending) = self.in_flight.remove(end.parked) {
            self.respond_task(&pending, end);
        }
    }

    /// A task ended without a word: aborted by us, which needs none; panicked, as a future does in its
    /// drop; or refused by a runtime that is shutting down, of which the caller shall hear.
    pub(crate) fn task_lost(&mut self, error: JoinError) {
        let key = self.in_flight.key_of_task(error.id());
        let panicked = end_of_task(error);
        if panicked {
            self.count_panic();
        }
        let Some(Pending { id, method, .. }) = key.and_then(|key| self.in_flight.remove(key)) else { return };
        let status = if panicked {
            panic_status()
        } else {
            // Work that blocks can only be turned away before it begins.
            let blocking = self.server.methods.get(method).info.is_blocking();
            let executed = if blocking { Executed::Never } else { Executed::Maybe };
            Status::unavailable("the server's runtime is shutting down").with_executed(executed)
        };
        let handlers = self.pipeline.len();
        // The permit went with the task.
        self.respond(id, Some(method), handlers, Err(status), HeldPermit::default());
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

    /// Ends a pending call wherever it is: its future is dropped, its context told. With a status
    /// the caller is answered, without one nothing is owed.
    pub(crate) fn end_pending(&mut self, key: usize, status: Option<&Status>) {
        let Some(Pending { id, method, place, .. }) = self.in_flight.remove(key) else { return };
        let (permit, executed) = match place {
            Place::Slot(slot) => {
                let Some(Some(place)) = self.methods.get_mut(method as usize) else { return };
                let ended = place.cancel(slot);
                if ended.panicked {
                    self.count_panic();
                }
                (ended.permit, Executed::Maybe)
            }
            Place::Task { abort, context } => {
                context.cancel();
                abort.abort();
                // The permit is the task's, until the task has ended.
                (HeldPermit::default(), Executed::Maybe)
            }
            Place::Waiting(waiting) => (waiting.opening.permit.into(), Executed::Never),
            Place::Receiving(receiving) => (receiving.opening.permit.into(), Executed::Never),
        };
        if let Some(status) = status {
            let handlers = self.pipeline.len();
            self.respond(id, Some(method), handlers, Err(status.clone().with_executed(executed)), permit);
        }
    }
}

fn unexpected(frame: &Frame<'_>) -> Broken {
    let kind = match frame {
        Frame::Response(_) => "RESPONSE",
        Frame::Cont { .. } => "CONT of a call that was not opened",
        _ => "frame",
    };
    Broken::Refused(GoAwayReason::ProtocolError, format!("a client must not send this {kind}"))
}

/// A turn that comes so late was kept from coming.
const BUSY: Duration = Duration::from_secs(1);
