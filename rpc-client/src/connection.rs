//! One connection: what callers share with the task that reads and writes, and that task.

use std::{
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use rpc_codec::{
    Decoded, Frame, FrameDecoder, GoAwayReason, HeadError, Hello, Kind, ResponseFrame, SendBounds, encode_cancel,
    encode_go_away, encode_pong, patch_id,
};
use rpc_core::{CallId, Deadline, Executed, Metadata, StatusCode};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    task::coop,
    time::{Sleep, sleep_until},
};

use crate::{
    client::Counters,
    clock,
    config::Config,
    error::{CallError, LostCause},
    scratch,
    slots::{Found, Slots},
};

/// What the callers of a connection share with its task.
///
/// Callers append whole frames under a short lock, and the task writes what has come together. It
/// delivers all answers of a read, then takes one more turn, in which the callers that it woke
/// append their next calls without waking anybody; then it writes once.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Arc<str>,
    state: Mutex<State>,
    /// What the server takes: longest frame in the upper half, longest message in the lower. Beside
    /// the lock because a call is encoded outside of it.
    bounds: AtomicU64,
    /// Woken when there may be room for one more call.
    room: Notify,
    /// Woken when the server has said what it takes.
    greeting: Notify,
}

#[derive(Debug)]
struct State {
    slots: Slots,
    /// Frames that the task has not begun to write.
    out: Vec<u8>,
    /// Length of all that was ever appended to `out`.
    queued: u64,
    /// The most calls at once that the server welcomes.
    max_calls: usize,
    greeted: bool,
    /// Callers that wait for room; newcomers queue up behind them.
    waiting_for_room: usize,
    task: Option<Waker>,
    /// The task will look at `out` anyway.
    task_is_awake: bool,
    closing: bool,
    /// Why no call is taken any more.
    ended: Option<CallError>,
}

/// What came of an attempt to send a call.
#[derive(Debug)]
pub(crate) enum Sent {
    /// It is on its way under this id.
    As(CallId),
    /// There are as many calls out as the server welcomes.
    NoRoom,
    /// The connection takes no calls any more; the next one may.
    Gone,
}

impl Connection {
    pub(crate) fn new(peer: Arc<str>) -> Arc<Self> {
        let hello = Hello::default();
        let connection = Self {
            peer,
            state: Mutex::new(State {
                slots: Slots::default(),
                out: Vec::new(),
                queued: 0,
                max_calls: hello.advised_calls as usize,
                greeted: false,
                waiting_for_room: 0,
                task: None,
                task_is_awake: false,
                closing: false,
                ended: None,
            }),
            bounds: AtomicU64::new(0),
            room: Notify::new(),
            greeting: Notify::new(),
        };
        connection.set_bounds(&hello);
        Arc::new(connection)
    }

    pub(crate) fn bounds(&self) -> SendBounds {
        let packed = self.bounds.load(Ordering::Relaxed);
        SendBounds { max_frame: (packed >> 32) as u32, max_message: packed as u32 }
    }

    fn set_bounds(&self, hello: &Hello) {
        let packed = u64::from(hello.max_frame) << 32 | u64::from(hello.max_message);
        self.bounds.store(packed, Ordering::Relaxed);
    }

    /// Whether the server has said what it takes.
    pub(crate) fn is_greeted(&self) -> bool {
        self.lock().greeted
    }

    /// Whether it is worth waiting for the server to say what it takes.
    pub(crate) fn may_yet_greet(&self) -> bool {
        let state = self.lock();
        !state.greeted && state.ended.is_none() && !state.closing
    }

    /// Appends a call whose id is still to be set; `waker` is woken when its answer is there. `waited`
    /// for who comes from [`Self::wait_for_room`].
    pub(crate) fn send(&self, frame: &mut [u8], deadline: Deadline, waited: bool, waker: &Waker) -> Sent {
        let (sent, task) = {
            let mut state = self.lock();
            if state.ended.is_some() || state.closing || state.slots.exhausted() {
                return Sent::Gone;
            }
            if !state.has_room() || (state.waiting_for_room > 0 && !waited) {
                return Sent::NoRoom;
            }
            let end = state.queued + frame.len() as u64;
            let Some(id) = state.slots.insert(deadline, end, waker) else { return Sent::NoRoom };
            patch_id(frame, id);
            state.out.extend_from_slice(frame);
            state.queued = end;
            (Sent::As(id), state.wake_task())
        };
        wake(task);
        sent
    }

    /// The answer of a call, if it is there.
    pub(crate) fn poll_answer(
        &self,
        id: CallId,
        body: &mut Vec<u8>,
        cx: &Context<'_>,
    ) -> Poll<Result<Metadata, CallError>> {
        let (outcome, waiting, task) = {
            let mut state = self.lock();
            let outcome = state.slots.take(id, cx.waker(), body);
            let task = if outcome.is_some() { state.last_one_out() } else { None };
            (outcome, state.waiting_for_room, task)
        };
        if outcome.is_some() && waiting > 0 {
            self.room.notify_one();
        }
        wake(task);
        outcome.map_or(Poll::Pending, Poll::Ready)
    }

    /// The caller of a call has gone.
    pub(crate) fn abandon(&self, id: CallId) {
        let (waker, waiting) = {
            let mut state = self.lock();
            let mut waker = None;
            // A server that takes no more calls still wants to know, as long as anybody can tell it.
            if state.slots.abandon(id) && state.task.is_some() {
                state.append(|out| encode_cancel(out, id));
                waker = state.wake_task();
            }
            (waker.or_else(|| state.last_one_out()), state.waiting_for_room)
        };
        if waiting > 0 {
            self.room.notify_one();
        }
        wake(waker);
    }

    /// Waits until there may be room for one more call, or no more calls are taken.
    ///
    /// # Cancel safety
    ///
    /// A wake-up that a dropped future has got goes to the next one.
    pub(crate) async fn wait_for_room(&self) {
        let _waiting = WaitingForRoom::new(self);
        let mut notified = pin!(self.room.notified());
        loop {
            notified.as_mut().enable();
            {
                let state = self.lock();
                if state.has_room() || state.ended.is_some() || state.closing {
                    return;
                }
            }
            notified.as_mut().await;
            notified.set(self.room.notified());
        }
    }

    /// A caller that waited for room does not use it.
    pub(crate) fn pass_room_on(&self) {
        self.room.notify_one();
    }

    /// Waits until the server has said what it takes, or no more calls are taken.
    pub(crate) async fn wait_for_greeting(&self) {
        let mut greeted = pin!(self.greeting.notified());
        greeted.as_mut().enable();
        {
            let state = self.lock();
            if state.greeted || state.ended.is_some() || state.closing {
                return;
            }
        }
        greeted.await;
    }

    /// Takes no calls any more; the task says goodbye when those that are out have ended.
    pub(crate) fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.closing = true;
            state.wake_task()
        };
        self.notify_all();
        wake(waker);
    }

    /// Why no call is taken any more.
    pub(crate) fn ended(&self) -> Option<CallError> {
        self.lock().ended.clone()
    }

    /// Whether it ended before it was of any use; its task is about to say so to the client.
    pub(crate) fn has_failed(&self) -> bool {
        let state = self.lock();
        state.ended.is_some() && !state.greeted
    }

    /// Calls that are out or whose answers were not fetched.
    pub(crate) fn calls(&self) -> usize {
        self.lock().slots.used()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs under the lock, so it cannot be poisoned with a half-made change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_all(&self) {
        self.room.notify_waiters();
        self.greeting.notify_waiters();
    }

    /// Fails what waits and takes nothing more. `written` bytes have left.
    fn end(&self, cause: &LostCause, written: u64) {
        let mut wakers = Vec::new();
        {
            let mut state = self.lock();
            // A server that has said why it breaks off and then does is believed. One that drains has
            // promised to finish.
            let said = match &state.ended {
                Some(CallError::GoingAway { reason, message, .. }) if *reason != GoAwayReason::Drain => Some(message),
                _ => None,
            };
            let said = said.filter(|_| matches!(cause, LostCause::ServerClosed));
            let said = said.map(|message| LostCause::GoneAway(Arc::clone(message)));
            let cause = said.as_ref().unwrap_or(cause);
            let lost = |executed| CallError::Lost { peer: Arc::clone(&self.peer), executed, source: cause.clone() };
            let waiting: Vec<_> = state.slots.waiting().collect();
            for (id, request_end) in waiting {
                wakers.extend(state.slots.fail(id, lost(executed(request_end, written))));
            }
            state.ended.get_or_insert(lost(Executed::Never));
            state.out = Vec::new();
            state.task = None;
        }
        self.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.slots.used() < self.max_calls && self.out.len() < MAX_QUEUED_LEN
    }

    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.out.len();
        write(&mut self.out);
        self.queued += (self.out.len() - before) as u64;
    }

    /// The waker of the task if it waits for the last call to end, and that has happened.
    fn last_one_out(&mut self) -> Option<Waker> {
        if self.closing && self.slots.used() == 0 { self.wake_task() } else { None }
    }

    /// The waker to be woken when the lock is released; none if the task is awake.
    fn wake_task(&mut self) -> Option<Waker> {
        if mem::replace(&mut self.task_is_awake, true) { None } else { self.task.clone() }
    }
}

/// Counts as one that waits for room until it is dropped.
struct WaitingForRoom<'a>(&'a Connection);

impl<'a> WaitingForRoom<'a> {
    fn new(connection: &'a Connection) -> Self {
        connection.lock().waiting_for_room += 1;
        Self(connection)
    }
}

impl Drop for WaitingForRoom<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.waiting_for_room -= 1;
    }
}

/// The task of a connection: it reads and writes, and ends what waits when it ends itself, even when
/// it is dropped with its runtime.
pub(crate) struct Driver<T> {
    io: T,
    connection: Arc<Connection>,
    counters: Arc<Counters>,
    decoder: FrameDecoder,
    /// Bytes being written; what stands before `sent` has left.
    writing: Vec<u8>,
    sent: usize,
    /// Bytes of queued frames that have left.
    written: u64,
    partial: BytesMut,
    wakers: Vec<Waker>,
    timer: Option<Pin<Box<Sleep>>>,
    armed: Option<Instant>,
    phase: Phase,
    /// The server answered a call, so connecting to it was worth it.
    proved_good: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The farewell is queued: write it, then the end of the stream.
    Leaving,
    /// Waiting for the server's end of the stream.
    Lingering {
        until: Instant,
    },
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    pub(crate) fn new(io: T, connection: Arc<Connection>, counters: Arc<Counters>, config: &Config) -> Self {
        let mut writing = Vec::new();
        config.hello().encode(&mut writing);
        Self {
            io,
            connection,
            counters,
            decoder: FrameDecoder::new(config.max_frame),
            // The HELLO is not a queued frame; `written` starts below zero by its length.
            written: 0_u64.wrapping_sub(writing.len() as u64),
            writing,
            sent: 0,
            partial: BytesMut::new(),
            wakers: Vec::new(),
            timer: None,
            armed: None,
            phase: Phase::Open,
            proved_good: false,
        }
    }

    /// Drives the connection to its end; why it ended, if it had not proved good by then.
    pub(crate) async fn run(mut self) -> Option<LostCause> {
        let cause = poll_fn(|cx| self.poll(cx)).await;
        tracing::debug!(peer = %self.connection.peer, %cause, "connection ended");
        self.connection.end(&cause, self.left());
        if let LostCause::Protocol(message) = &cause {
            self.tell_why(message);
        }
        (!self.proved_good).then_some(cause)
    }

    /// Tells the server how it broke the protocol, if that can be written without waiting.
    fn tell_why(&mut self, message: &str) {
        if self.sent < self.writing.len() {
            return;
        }
        let mut farewell = Vec::new();
        encode_go_away(&mut farewell, CallId::CONNECTION, GoAwayReason::ProtocolError, message);
        let (io, mut cx) = (&mut self.io, Context::from_waker(Waker::noop()));
        let _ = poll_io(&mut cx, |cx| Pin::new(&mut *io).poll_write(cx, &farewell));
        let _ = poll_io(&mut cx, |cx| Pin::new(&mut *io).poll_shutdown(cx));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LostCause> {
        match self.turn(cx) {
            Ok(Turn::Wait) => Poll::Pending,
            Ok(Turn::Again) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(Turn::End) => Poll::Ready(LostCause::ServerClosed),
            Err(cause) => Poll::Ready(cause),
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Result<Turn, LostCause> {
        for _ in 0..MAX_ROUNDS {
            // What a part-written buffer kept us from taking is taken in the next round.
            let left_behind = self.sent < self.writing.len();
            let expiry = self.take_queued(cx);
            let blocked = self.write(cx)?;
            if left_behind && !blocked {
                continue;
            }
            if self.phase != Phase::Open && self.leave(cx, blocked) {
                return Ok(Turn::End);
            }
            match self.read(cx)? {
                Answers::None => {
                    let due = match self.phase {
                        Phase::Lingering { until } => Some(until),
                        _ => expiry,
                    };
                    return Ok(if self.poll_timer(cx, due) { Turn::Again } else { Turn::Wait });
                }
                // A lone answer's caller finds us asleep and is not kept waiting.
                Answers::One if !blocked => {}
                Answers::One | Answers::Several => return Ok(Turn::Again),
            }
        }
        Ok(Turn::Again)
    }

    /// Takes what callers have queued, and says when the next call expires.
    fn take_queued(&mut self, cx: &Context<'_>) -> Option<Instant> {
        let connection = Arc::clone(&self.connection);
        let mut state = connection.lock();
        if !state.task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            state.task = Some(cx.waker().clone());
        }
        state.task_is_awake = false;
        if state.slots.next_expiry().is_some() {
            self.expire(&mut state);
        }
        if self.sent == self.writing.len() {
            self.writing.clear();
            self.sent = 0;
            let was_full = state.out.len() >= MAX_QUEUED_LEN;
            mem::swap(&mut state.out, &mut self.writing);
            if was_full {
                connection.room.notify_waiters();
            }
        }
        if state.closing && state.slots.used() == 0 && self.phase == Phase::Open {
            self.phase = Phase::Leaving;
            encode_go_away(&mut self.writing, CallId::CONNECTION, GoAwayReason::Drain, "the client is closing");
        }
        let expiry = state.slots.next_expiry();
        drop(state);
        self.wakers.drain(..).for_each(Waker::wake);
        expiry
    }

    fn expire(&mut self, state: &mut State) {
        for id in state.slots.expired(clock::now()) {
            // What has not left yet still will, so nobody knows until the connection is gone.
            let executed = Executed::Maybe;
            let error = CallError::DeadlineExceeded { peer: Arc::clone(&self.connection.peer), executed };
            self.wakers.extend(state.slots.fail(id, error));
            state.append(|out| encode_cancel(out, id));
        }
    }

    /// Writes what the transport takes. `true` if it does not take all.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, LostCause> {
        while self.sent < self.writing.len() {
            let (io, writing) = (&mut self.io, &self.writing[self.sent..]);
            match poll_io(cx, |cx| Pin::new(&mut *io).poll_write(cx, writing)) {
                Poll::Pending => return Ok(true),
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(n)) => self.sent += n,
                Poll::Ready(Err(error)) => return Err(error.into()),
            }
        }
        if !self.writing.is_empty() {
            self.written = self.written.wrapping_add(self.writing.len() as u64);
            self.writing.clear();
            self.sent = 0;
            if self.writing.capacity() > MAX_KEPT_LEN {
                self.writing = Vec::new();
            }
        }
        let io = &mut self.io;
        match poll_io(cx, |cx| Pin::new(&mut *io).poll_flush(cx)) {
            Poll::Pending => Ok(true),
            Poll::Ready(flushed) => flushed.map(|()| false).map_err(Into::into),
        }
    }

    /// Ends our side of the stream, then waits a little for the server's end. `true` at the end.
    fn leave(&mut self, cx: &mut Context<'_>, blocked: bool) -> bool {
        if self.phase == Phase::Leaving && !blocked {
            let io = &mut self.io;
            match poll_io(cx, |cx| Pin::new(&mut *io).poll_shutdown(cx)) {
                Poll::Pending => {}
                Poll::Ready(Err(_)) => return true,
                Poll::Ready(Ok(())) => self.phase = Phase::Lingering { until: clock::now() + LINGER_TIME },
            }
        }
        matches!(self.phase, Phase::Lingering { until } if until <= clock::now())
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<Answers, LostCause> {
        let read = scratch::with_read_buffer(|buffer| {
            let mut buf = ReadBuf::new(buffer);
            let io = &mut self.io;
            match poll_io(cx, |cx| Pin::new(&mut *io).poll_read(cx, &mut buf)) {
                Poll::Pending => return Ok(None),
                Poll::Ready(result) => result?,
            }
            let bytes = buf.filled();
            if bytes.is_empty() {
                return Err(LostCause::ServerClosed);
            }
            if self.partial.is_empty() {
                let (taken, answers) = self.deliver(bytes)?;
                self.partial.extend_from_slice(&bytes[taken..]);
                return Ok(Some(answers));
            }
            self.partial.extend_from_slice(bytes);
            let mut bytes = mem::take(&mut self.partial);
            let (taken, answers) = self.deliver(&bytes)?;
            bytes.advance(taken);
            self.partial = if bytes.is_empty() { BytesMut::new() } else { bytes };
            Ok(Some(answers))
        })?;
        match read {
            None => Ok(Answers::None),
            Some(1) => Ok(Answers::One),
            // Without an answer, too: a server that sends nothing but those frames must not keep the thread.
            Some(_) => Ok(Answers::Several),
        }
    }

    /// Delivers the answers in `bytes` under one lock, then wakes their callers. Says how many bytes
    /// and how many answers there were.
    fn deliver(&mut self, bytes: &[u8]) -> Result<(usize, usize), LostCause> {
        let connection = Arc::clone(&self.connection);
        let mut taken = 0;
        let mut answers = 0;
        let mut state = connection.lock();
        // A server that will not serve says so in place of a HELLO.
        let turned_away = bytes.get(KIND_AT).is_some_and(|&kind| kind == Kind::GoAway as u8);
        if !state.greeted && !turned_away {
            let Some((hello, len)) = Hello::decode(bytes)? else { return Ok((0, 0)) };
            taken = len;
            connection.set_bounds(&hello);
            state.greeted = true;
            state.max_calls = (hello.advised_calls as usize).clamp(1, MAX_CALLS);
            connection.notify_all();
        }
        let delivered = loop {
            match self.decoder.decode(&bytes[taken..]) {
                Ok(Decoded::Incomplete { .. }) => break Ok(()),
                Ok(Decoded::Frame { frame, len }) => {
                    taken += len;
                    match self.frame(&mut state, frame) {
                        Ok(answered) => answers += usize::from(answered),
                        Err(cause) => break Err(cause),
                    }
                }
                Err(error) => break Err(error.into()),
            }
        };
        // Who is woken now appends without waking us, if we take another turn anyway.
        state.task_is_awake |= answers > 1;
        drop(state);
        self.wakers.drain(..).for_each(Waker::wake);
        delivered.map(|()| (taken, answers))
    }

    /// Handles one frame; whether it was an answer.
    fn frame(&mut self, state: &mut State, frame: Frame<'_>) -> Result<bool, LostCause> {
        match frame {
            Frame::Response(response) => self.answer(state, &response),
            Frame::Malformed { id, error } => self.malformed(state, id, error),
            Frame::Ping(opaque) => {
                // A server that asks without end and never reads is not owed a buffer of answers.
                if state.out.len() < MAX_QUEUED_LEN {
                    state.append(|out| encode_pong(out, opaque));
                }
                Ok(false)
            }
            Frame::GoAway(go_away) => {
                self.going_away(state, go_away.last, go_away.reason, go_away.message);
                // In place of a HELLO it means that we are not wanted, now and for a while.
                if state.greeted { Ok(false) } else { Err(LostCause::GoneAway(go_away.message.into())) }
            }
            Frame::Cont { .. } | Frame::Pong(_) | Frame::Ignored { .. } => Ok(false),
            _ => Err(LostCause::Protocol("it sent a frame that only a client sends".into())),
        }
    }

    fn answer(&mut self, state: &mut State, response: &ResponseFrame<'_>) -> Result<bool, LostCause> {
        let id = response.id;
        match state.slots.find(id) {
            Found::Waiting => {}
            Found::Late => {
                self.counters.late_answers.fetch_add(1, Ordering::Relaxed);
                return Ok(false);
            }
            Found::NeverIssued => {
                return Err(LostCause::Protocol(format!("it answered call {id}, which never was").into()));
            }
        }
        self.proved_good = true;
        if response.more || response.compression != 0 {
            let error = CallError::MalformedResponse {
                peer: Arc::clone(&self.connection.peer),
                source: HeadError::BodyLen { claimed: response.body_len, actual: response.body.len() },
            };
            self.wakers.extend(state.slots.fail(id, error));
            return Ok(true);
        }
        let outcome = if response.code == StatusCode::Ok {
            response.metadata().map(Ok)
        } else {
            response.status().map(|status| Err(CallError::Status(status)))
        };
        match outcome {
            Ok(Ok(metadata)) => self.wakers.extend(state.slots.reply(id, metadata, response.body)),
            Ok(Err(error)) => self.wakers.extend(state.slots.fail(id, error)),
            Err(error) => return self.malformed(state, id, error),
        }
        Ok(true)
    }

    fn malformed(&mut self, state: &mut State, id: CallId, source: HeadError) -> Result<bool, LostCause> {
        if state.slots.find(id) == Found::Waiting {
            let error = CallError::MalformedResponse { peer: Arc::clone(&self.connection.peer), source };
            self.wakers.extend(state.slots.fail(id, error));
        }
        Ok(true)
    }

    /// The server accepts nothing above `last`: those calls fail, the others are waited for.
    fn going_away(&mut self, state: &mut State, last: CallId, reason: GoAwayReason, message: &str) {
        let error = CallError::GoingAway { peer: Arc::clone(&self.connection.peer), reason, message: message.into() };
        let refused: Vec<_> = state.slots.waiting().filter(|&(id, _)| id > last).collect();
        for (id, _) in refused {
            self.wakers.extend(state.slots.fail(id, error.clone()));
        }
        state.ended.get_or_insert(error);
        state.closing = true;
        self.connection.notify_all();
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>, due: Option<Instant>) -> bool {
        let Some(due) = due else { return false };
        if self.armed.is_none_or(|armed| due < armed) {
            self.armed = Some(due);
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(due.into()),
                None => self.timer = Some(Box::pin(sleep_until(due.into()))),
            }
        }
        let Some(timer) = &mut self.timer else { return false };
        let fired = poll_io(cx, |cx| timer.as_mut().poll(cx)).is_ready();
        if fired {
            self.armed = None;
        }
        fired
    }
}

impl<T> Driver<T> {
    /// Bytes of queued frames that have left.
    fn left(&self) -> u64 {
        let left = self.written.wrapping_add(self.sent as u64);
        // Negative while the HELLO in front of them has not left.
        u64::try_from(left.cast_signed()).unwrap_or(0)
    }
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        // After a regular end nothing waits any more, and this does nothing.
        self.connection.end(&LostCause::RuntimeEnded, self.left());
    }
}

enum Turn {
    Again,
    Wait,
    End,
}

/// How many answers a read brought.
enum Answers {
    None,
    One,
    Several,
}

/// A request that has not left completely cannot have been executed.
fn executed(request_end: u64, left: u64) -> Executed {
    if request_end > left { Executed::Never } else { Executed::Maybe }
}

/// Polls a transport outside of tokio's cooperative budget: the loop's own turns bound it, and a
/// used-up budget would look like a peer that takes or sends nothing.
fn poll_io<R>(cx: &mut Context<'_>, poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> Poll<R> {
    pin!(coop::unconstrained(poll_fn(poll))).poll(cx)
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// With more than this waiting to be written, further calls wait.
const MAX_QUEUED_LEN: usize = 1024 * 1024;
/// A longer write buffer is not kept.
const MAX_KEPT_LEN: usize = 256 * 1024;
/// Where in a frame its kind stands.
const KIND_AT: usize = 4;
/// So many lone answers, one after the other, and others get their turn.
const MAX_ROUNDS: u32 = 32;
/// Slots are named by 16 bits.
const MAX_CALLS: usize = 1 << 16;
/// How long a closing client waits for the server to close, too.
const LINGER_TIME: Duration = Duration::from_secs(1);
