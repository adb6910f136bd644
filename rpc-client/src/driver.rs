//! The task of a connection: it reads and writes for all callers, and ends what waits when it ends.

use std::{
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use rpc_codec::{Decoded, FrameDecoder, GoAwayReason, Hello, Kind, encode_cancel, encode_go_away, encode_ping};
use rpc_core::CallId;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::coop,
    time::{Sleep, sleep_until},
};

use crate::{
    clock,
    config::Config,
    connection::{Connection, MAX_QUEUED_LEN, State, keep},
    error::{CallError, LostCause},
    gauges::Gauges,
    noise::Noise,
    parting::Parting,
    queue::{self, Withdrawal},
    scratch,
    slots::Found,
    vigil::{Seen, Unfinished, Vigil},
};

/// The task of a connection: it reads and writes, and ends what waits when it ends itself, even when
/// it is dropped with its runtime.
pub(crate) struct Driver<T> {
    io: T,
    pub(crate) connection: Arc<Connection>,
    pub(crate) gauges: Arc<Gauges>,
    decoder: FrameDecoder,
    pub(crate) max_message: u32,
    /// Bytes being written; what stands before `sent` has left.
    writing: Vec<u8>,
    sent: usize,
    partial: BytesMut,
    pub(crate) wakers: Vec<Waker>,
    timer: Option<Pin<Box<Sleep>>>,
    armed: Option<Instant>,
    /// The timer wakes the task that is polled now.
    timer_knows_us: bool,
    vigil: Vigil,
    pub(crate) noise: Noise,
    phase: Phase,
    /// Nothing can be written any more, for this cause: until then is read what has come.
    broken: Option<(LostCause, Instant)>,
    /// How many calls there had been at the last look.
    opened: u64,
    over: bool,
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
    pub(crate) fn new(io: T, connection: Arc<Connection>, gauges: Arc<Gauges>, config: &Config) -> Self {
        let mut writing = Vec::new();
        config.hello().encode(&mut writing);
        Self {
            io,
            connection,
            gauges,
            decoder: FrameDecoder::new(config.max_frame),
            max_message: config.max_message,
            writing,
            sent: 0,
            partial: BytesMut::new(),
            wakers: Vec::new(),
            timer: None,
            armed: None,
            timer_knows_us: false,
            vigil: Vigil::new(config, clock::now()),
            noise: Noise::new(),
            phase: Phase::Open,
            broken: None,
            opened: 0,
            over: false,
        }
    }

    /// Drives the connection to its end.
    pub(crate) async fn run(mut self) -> Parting {
        let cause = poll_fn(|cx| self.poll(cx)).await;
        tracing::debug!(peer = %self.connection.peer, %cause, "connection ended");
        self.finish(&cause);
        if let Some(reason) = told(&cause) {
            self.tell_why(reason, &cause);
        }
        self.connection.parted(&cause, self.phase != Phase::Open)
    }

    /// Tells the server what it did or failed to do, if that can be written without waiting.
    fn tell_why(&mut self, reason: GoAwayReason, cause: &LostCause) {
        if self.sent < self.writing.len() {
            return;
        }
        let mut farewell = Vec::new();
        let why = match cause {
            LostCause::Protocol(message) => message.to_string(),
            cause => cause.to_string(),
        };
        encode_go_away(&mut farewell, CallId::CONNECTION, reason, &why);
        let (io, mut cx) = (&mut self.io, Context::from_waker(Waker::noop()));
        let mut rest = &farewell[..];
        while !rest.is_empty()
            && let Poll::Ready(Ok(n @ 1..)) = poll_io(&mut cx, |cx| Pin::new(&mut *io).poll_write(cx, rest))
        {
            rest = &rest[n..];
        }
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
        if !self.wakers.is_empty() {
            // The turn between has woken an idle worker, if there is one. It looks for work by now, so
            // none of these wakes wakes it anew: see `MANY`.
            self.wakers.drain(..).for_each(Waker::wake);
            return Ok(Turn::Again);
        }
        if self.broken.is_some() {
            return self.hear_out(cx);
        }
        for _ in 0..MAX_ROUNDS {
            // What a part-written buffer kept us from taking is taken in the next round.
            let left_behind = self.sent < self.writing.len();
            let (more, expiry) = self.take_queued(cx);
            let blocked = match self.write(cx) {
                Ok(blocked) => blocked,
                Err(cause) => return self.break_down(cx, cause),
            };
            if left_behind && !blocked {
                continue;
            }
            if self.phase != Phase::Open && self.leave(cx, blocked) {
                return Ok(Turn::End);
            }
            match self.read(cx)? {
                // Parts of requests wait for nothing but us.
                Answers::None if more && !blocked => {}
                Answers::None => {
                    let due = match self.phase {
                        Phase::Lingering { until } => Some(until),
                        _ => earlier(expiry, self.rest(blocked)),
                    };
                    if !self.poll_timer(cx, due) {
                        return Ok(Turn::Wait);
                    }
                    self.look()?;
                    return Ok(Turn::Again);
                }
                // A lone answer's caller finds us asleep and is not kept waiting.
                Answers::One if !blocked => {}
                Answers::One | Answers::Several => return Ok(Turn::Again),
            }
        }
        Ok(Turn::Again)
    }

    /// Takes what callers have queued. Says whether parts of requests are left, and when the next call
    /// expires.
    fn take_queued(&mut self, cx: &Context<'_>) -> (bool, Option<Instant>) {
        let connection = Arc::clone(&self.connection);
        let mut state = connection.lock();
        let replaced = keep(&mut state.task, cx.waker());
        self.timer_knows_us &= replaced.is_none();
        state.task_is_awake = false;
        let was_full = state.out.len() >= MAX_QUEUED_LEN;
        self.take_given_up(&mut state);
        let mut more = false;
        if self.sent == self.writing.len() {
            self.writing.clear();
            self.sent = 0;
            more = state.queue_parts(connection.bounds().max_frame);
            mem::swap(&mut state.out, &mut self.writing);
        }
        if was_full && state.out.len() < MAX_QUEUED_LEN {
            state.wake_for_room();
            state.give_withheld(&mut self.writing);
        }
        if state.closing && state.slots.used() == 0 && self.phase == Phase::Open {
            self.phase = Phase::Leaving;
            // Behind what else is queued: nothing follows it.
            let last = if state.out.is_empty() { &mut self.writing } else { &mut state.out };
            encode_go_away(last, CallId::CONNECTION, GoAwayReason::Drain, "the client is closing");
        }
        let expiry = state.slots.next_expiry();
        self.wakers.append(&mut state.slots.woken);
        drop(state);
        drop(replaced);
        self.wakers.drain(..).for_each(Waker::wake);
        (more, expiry)
    }

    #[inline]
    fn take_given_up(&mut self, state: &mut State) {
        if state.slots.next_expiry().is_some() {
            expire(state);
        }
        if !state.withdrawals.is_empty() {
            self.withdraw(state);
        }
    }

    /// Sees to the calls that were given up: what of them has not begun to leave never does, and the
    /// server is told of those that it may know. Those whose deadline has passed still wait to be told.
    fn withdraw(&mut self, state: &mut State) {
        let mut withdrawals = mem::take(&mut state.withdrawals);
        withdrawals.sort_unstable_by_key(|withdrawal| withdrawal.id);
        queue::take_out(&mut self.writing, self.sent, &mut withdrawals);
        queue::take_out(&mut state.out, 0, &mut withdrawals);
        note_len(&self.connection.unwritten, self.writing.len() - self.sent);
        for Withdrawal { id, incomplete, unopened, .. } in withdrawals.drain(..) {
            if !unopened {
                state.append(|out| encode_cancel(out, id));
            }
            if state.slots.find(id) == Found::Waiting {
                let (peer, executed) = (Arc::clone(&self.connection.peer), state.executed(id, incomplete));
                self.wakers.extend(state.slots.fail(id, CallError::DeadlineExceeded { peer, executed }));
            }
        }
        if withdrawals.capacity() <= MAX_KEPT_WITHDRAWALS {
            state.withdrawals = withdrawals;
        }
    }

    /// Writes what the transport takes. `true` if it does not take all.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, LostCause> {
        while self.sent < self.writing.len() {
            let (io, writing) = (&mut self.io, &self.writing[self.sent..]);
            match poll_io(cx, |cx| Pin::new(&mut *io).poll_write(cx, writing)) {
                Poll::Pending => {
                    note_len(&self.connection.unwritten, self.writing.len() - self.sent);
                    return Ok(true);
                }
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(n)) => {
                    self.sent += n;
                    self.vigil.wrote();
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
            }
        }
        if !self.writing.is_empty() {
            self.writing.clear();
            self.sent = 0;
            note_len(&self.connection.unwritten, 0);
        }
        // Also where all of it was taken back.
        if self.writing.capacity() > MAX_KEPT_LEN {
            self.writing = Vec::new();
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
            self.vigil.heard(clock::now);
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
        note_len(&self.connection.partial, self.partial.len());
        match read {
            None => Ok(Answers::None),
            Some(1) => Ok(Answers::One),
            // Without an answer, too: a server that sends nothing but those frames must not keep the thread.
            Some(_) => Ok(Answers::Several),
        }
    }

    /// Nothing can be written any more, because of `cause`: no more calls are taken. What the server had sent before that may
    /// still be there: answers, and why.
    #[cold]
    fn break_down(&mut self, cx: &mut Context<'_>, cause: LostCause) -> Result<Turn, LostCause> {
        {
            let mut state = self.connection.lock();
            state.broken = true;
            state.closing = true;
            state.wake_all_waiting();
        }
        self.broken = Some((cause, clock::now() + LINGER_TIME));
        self.hear_out(cx)
    }

    /// Reads on, to the end of the stream or for a while: a read that finds nothing says little, as tokio asks a socket
    /// only when it has heard from it that there is something, which may be a moment later than a write finds it broken.
    #[cold]
    fn hear_out(&mut self, cx: &mut Context<'_>) -> Result<Turn, LostCause> {
        let Some((cause, until)) = self.broken.clone() else { return Ok(Turn::Again) };
        let expiry = {
            let connection = Arc::clone(&self.connection);
            let mut state = connection.lock();
            self.take_given_up(&mut state);
            self.wakers.append(&mut state.slots.woken);
            state.slots.next_expiry()
        };
        self.wakers.drain(..).for_each(Waker::wake);
        match self.read(cx) {
            Ok(_) if until <= clock::now() => Err(cause),
            Ok(Answers::None) if !self.poll_timer(cx, earlier(expiry, Some(until))) => Ok(Turn::Wait),
            Ok(_) => Ok(Turn::Again),
            Err(LostCause::Io(_)) => Err(cause),
            Err(heard) => Err(heard),
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
            connection.greeted(&mut state, &hello);
            self.vigil.greeted();
        }
        let delivered = loop {
            match self.decoder.decode(&bytes[taken..]) {
                Ok(Decoded::Incomplete { .. }) => break Ok(()),
                Ok(Decoded::Frame { ref frame, len }) => {
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
        self.wakers.append(&mut state.slots.woken);
        drop(state);
        if self.wakers.len() < MANY {
            self.wakers.drain(..).for_each(Waker::wake);
        }
        if taken > 0 {
            self.vigil.frame_ended();
        }
        delivered?;
        self.noise.charge(clock::now)?;
        Ok((taken, answers))
    }

    /// There is nothing to do. When to look at the latest whether that has gone on for too long.
    fn rest(&mut self, blocked: bool) -> Option<Instant> {
        let write = blocked || self.phase == Phase::Leaving;
        self.vigil.rest(Unfinished { frame: !self.partial.is_empty(), write }, clock::now)
    }

    /// Looks whether anything has taken too long, and asks a silent server for a sign of life.
    fn look(&mut self) -> Result<(), LostCause> {
        if matches!(self.phase, Phase::Lingering { .. }) {
            return Ok(());
        }
        // Behind our farewell nothing is sent; what remains to be written has its own time.
        if self.vigil.look(clock::now())? == Seen::Silence && self.phase == Phase::Open {
            self.connection.lock().append(|out| encode_ping(out, PING));
        }
        self.let_go();
        Ok(())
    }

    /// Gives back the buffers of a connection on which nothing has been called since the last look: not sooner, for
    /// whoever calls again and again would have to make new ones each time.
    fn let_go(&mut self) {
        let mut state = self.connection.lock();
        let opened = state.slots.opened();
        if mem::replace(&mut self.opened, opened) == opened && state.slots.used() == 0 && self.writing.is_empty() {
            state.let_go();
            self.writing.shrink_to_fit();
            self.wakers.shrink_to_fit();
        }
    }

    /// Whether the timer has fired. It is armed for `due` unless it fires before that anyway.
    fn poll_timer(&mut self, cx: &mut Context<'_>, due: Option<Instant>) -> bool {
        let Some(due) = due else { return false };
        if self.armed.is_none_or(|armed| due < armed) {
            self.armed = Some(due);
            self.timer_knows_us = false;
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(due.into()),
                None => self.timer = Some(Box::pin(sleep_until(due.into()))),
            }
        }
        let Some(timer) = &mut self.timer else { return false };
        // To poll it costs more than to look, and is needed only to be woken.
        let fired =
            if self.timer_knows_us { timer.is_elapsed() } else { poll_io(cx, |cx| timer.as_mut().poll(cx)).is_ready() };
        self.timer_knows_us = true;
        if fired {
            self.armed = None;
        }
        fired
    }
}

impl<T> Driver<T> {
    /// Whether we have not said goodbye.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// The connection has ended: what waits ends with it.
    fn finish(&mut self, cause: &LostCause) {
        if mem::replace(&mut self.over, true) {
            return;
        }
        if self.connection.end(cause, &self.writing, self.sent) && self.phase == Phase::Open {
            // It has left before we had a turn to.
            self.phase = Phase::Leaving;
        }
        if self.phase == Phase::Open {
            self.gauges.lost(cause);
        }
    }
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        // Callers whose answers were delivered in the last turn are still to be woken.
        self.wakers.drain(..).for_each(Waker::wake);
        // After a regular end this does nothing.
        self.finish(&LostCause::RuntimeEnded);
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

/// The reason that a server is told for a loss that is its own doing.
fn told(cause: &LostCause) -> Option<GoAwayReason> {
    match cause {
        LostCause::Protocol(_) => Some(GoAwayReason::ProtocolError),
        LostCause::Flooded { .. } => Some(GoAwayReason::TooManyFrames),
        LostCause::HandshakeTimeout { .. } => Some(GoAwayReason::HandshakeTimeout),
        LostCause::KeepaliveTimeout { .. } | LostCause::FrameTimeout { .. } => Some(GoAwayReason::Timeout),
        _ => None,
    }
}

/// Gives up the calls whose deadline has passed.
fn expire(state: &mut State) {
    for id in state.slots.expired(clock::now()) {
        let had_parts_to_come = state.stop_upload(id);
        let has_items = state.slots.has_items(id);
        state.withdrawals.push(Withdrawal::new(id, had_parts_to_come).with_items(has_items));
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Notes a length that others may read; it is written only when it has changed.
fn note_len(noted: &AtomicUsize, len: usize) {
    if noted.load(Ordering::Relaxed) != len {
        noted.store(len, Ordering::Relaxed);
    }
}

/// Polls a transport outside of tokio's cooperative budget: the loop's own turns bound it, and a
/// used-up budget would look like a peer that takes or sends nothing.
fn poll_io<R>(cx: &mut Context<'_>, poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> Poll<R> {
    pin!(coop::unconstrained(poll_fn(poll))).poll(cx)
}

/// What a PING carries. Any sign of life answers it, so it need not be told from others.
const PING: [u8; 8] = *b"sluicegt";
/// A longer write buffer is not kept.
const MAX_KEPT_LEN: usize = 256 * 1024;
/// Nor is a longer list of calls that were given up.
const MAX_KEPT_WITHDRAWALS: usize = 1024;
/// Where in a frame its kind stands.
const KIND_AT: usize = 4;
/// So many lone answers, one after the other, and others get their turn.
const MAX_ROUNDS: u32 = 32;
/// How long a closing client waits for the server to close, too, and one that cannot write for what the server has sent.
const LINGER_TIME: Duration = Duration::from_secs(1);
/// So many callers are woken in a turn of their own.
///
/// tokio wakes an idle worker for a task that becomes ready unless one is looking for work already.
/// Woken in the middle of a burst, such a worker finds one task, runs it, sleeps, and is woken again:
/// a system call and two context switches for every few callers. Stepping aside first wakes it once.
/// Measured with 64 callers and both processes on one CPU: 1.05 to 1.37 million calls a second.
const MANY: usize = 24;
