//! One connection, one loop: it owns the transport, the calls and everything else that must die
//! with it.

use std::{
    future::poll_fn,
    io, mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use rpc_codec::{DecodeError, FrameDecoder, GoAwayReason, Hello, SendBounds, encode_go_away, encode_ping};
use rpc_core::{AgeEstimator, CallId, ConnectionInfo, Executed, Status, limit::ConcurrencyLimit};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::{JoinSet, coop},
};

use crate::{
    allowance::Allowance,
    batch::Batch,
    clock::{self, Reading},
    cut::Cut,
    gauges::Share,
    in_flight::InFlight,
    life::{Due, Life},
    panics::{contain, end_of_task},
    pipeline::{CallInfo, Pipeline},
    ready::{Key, Ready},
    scratch,
    server::{Phase, ServerCore},
    timer::Timer,
    unary::{ConnMethod, TaskEnd},
    writer::{Writer, poll_io},
};

/// A transport with the state of its calls.
///
/// ```text
///   Handshake --HELLO--> Open --drained or broken--> Closing --flushed--> Lingering --> gone
///       \__________________\______ transport lost _____\_______________________________/
/// ```
///
/// What the loop does for calls is in `inbound.rs` and `outbound.rs`.
pub(crate) struct Connection<T: AsyncRead + AsyncWrite + Unpin> {
    pub(crate) io: T,
    pub(crate) server: Arc<ServerCore>,
    pub(crate) info: Arc<ConnectionInfo>,
    /// Empty until the handshake is done.
    pub(crate) pipeline: Pipeline,
    pub(crate) methods: Vec<Option<Box<dyn ConnMethod>>>,
    pub(crate) in_flight: InFlight,
    pub(crate) tasks: JoinSet<TaskEnd>,
    pub(crate) ready: Arc<Ready>,
    pub(crate) writer: Writer,
    pub(crate) batch: Batch,
    pub(crate) age: AgeEstimator,
    /// The last call that the client opened.
    pub(crate) last_id: CallId,
    /// The last call that we accept, once we have said GOAWAY.
    pub(crate) going_away: Option<CallId>,
    /// What the client takes.
    pub(crate) bounds: SendBounds,
    /// Bytes of bodies that arrive in parts; made with the first of them.
    pub(crate) bodies: Option<Arc<ConcurrencyLimit>>,
    /// We have not read for a while, because the client did not.
    pub(crate) reads_paused: bool,
    pub(crate) decoder: FrameDecoder,
    state: State,
    /// The client said GOAWAY: the end of its stream is then no loss.
    pub(crate) client_leaves: bool,
    /// For frames that open no call.
    pub(crate) allowance: Allowance,
    pub(crate) life: Life,
    /// When the calls that still run are cut off, and what they are told.
    cut_off: Option<(Instant, &'static str)>,
    read_closed: bool,
    woken: Vec<Key>,
    /// Whether answers of woken calls have been gathered for one turn.
    gathered: bool,
    /// Received bytes that do not make a whole frame, or that the last batch left.
    partial: BytesMut,
    inbound: Share,
    timer: Timer,
    write_stalls: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Handshake {
        until: Instant,
        /// When something must have been said, while nothing has.
        first_byte: Option<Instant>,
        _gauge: Share,
    },
    Open,
    /// Writing what is left, then the end of the stream.
    Closing {
        until: Instant,
    },
    /// Reading what the peer still sends: closing with unread input would reset the connection and
    /// destroy answers on their way.
    Lingering {
        until: Instant,
        left: usize,
    },
}

/// Why a connection cannot go on.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The transport failed or ended without a farewell.
    Lost(io::Error),
    /// The peer broke the protocol, or a handler wants no more of it.
    Refused(GoAwayReason, String),
    /// The peer takes too long, or sends too much of what is no call.
    Cut(Cut),
}

impl From<DecodeError> for Broken {
    fn from(error: DecodeError) -> Self {
        Self::Refused(GoAwayReason::ProtocolError, error.to_string())
    }
}

/// How a turn of the loop ended.
enum Turn {
    /// There is more to do, after others had their turn.
    Again,
    /// Something must happen first; whatever it is wakes the task.
    Wait,
    End,
}

/// Why reading stopped.
enum ReadEnd {
    /// The transport has no more, or we do not want more now.
    Dry,
    /// The batch is full.
    Full,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    pub(crate) fn new(io: T, server: Arc<ServerCore>, info: ConnectionInfo, ready: Arc<Ready>) -> Self {
        let now = clock::now();
        let mut handshake = Share::of(&server.gauges.handshakes);
        handshake.set(1);
        let state = State::Handshake {
            until: now + server.config.handshake_timeout.min(FOREVER),
            first_byte: Some(now + server.config.first_byte_timeout.min(FOREVER)),
            _gauge: handshake,
        };
        let hello = Hello::default();
        Self {
            io,
            info: Arc::new(info),
            pipeline: Pipeline::new(),
            methods: Vec::new(),
            in_flight: InFlight::new(server.config.least_body_rate(), Share::of(&server.gauges.parked)),
            tasks: JoinSet::new(),
            ready,
            writer: Writer::new(Share::of(&server.gauges.buffered_bytes)),
            batch: Batch::default(),
            age: AgeEstimator::default(),
            last_id: CallId::CONNECTION,
            going_away: None,
            bounds: SendBounds { max_frame: hello.max_frame, max_message: hello.max_message },
            bodies: None,
            reads_paused: false,
            decoder: FrameDecoder::new(server.config.max_frame),
            state,
            client_leaves: false,
            allowance: Allowance::new(server.config.control_frame_rate),
            life: Life::new(&server.config, now, fastrand::f64()),
            cut_off: None,
            read_closed: false,
            woken: Vec::new(),
            gathered: false,
            partial: BytesMut::new(),
            inbound: Share::of(&server.gauges.inbound_bytes),
            timer: Timer::default(),
            write_stalls: None,
            server,
        }
    }

    /// Makes the connection one that only says why it will not serve.
    pub(crate) fn turn_away(&mut self, reason: GoAwayReason, message: &str) {
        encode_go_away(&mut self.writer.out, CallId::CONNECTION, reason, message);
        self.going_away = Some(CallId::CONNECTION);
        self.close(CLOSE_WHEN_BROKEN);
    }

    /// Serves until the connection is gone and every call of it has ended.
    pub(crate) async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
        self.cancel_all();
        let server = Arc::clone(&self.server);
        let (mut tasks, mut pipeline) = (mem::take(&mut self.tasks), mem::take(&mut self.pipeline));
        // Work that blocks ends when it likes. Neither the socket nor the permits of responses that
        // nobody will get wait for it.
        drop(self);
        let count = |panics| server.gauges.panics.fetch_add(panics, Ordering::Relaxed);
        tasks.abort_all();
        // Aborting is asynchronous: a task has ended only when it has been joined.
        while let Some(joined) = tasks.join_next().await {
            count(u64::from(joined.map_or_else(end_of_task, |end| end.panicked)));
        }
        count(pipeline.close());
    }

    pub(crate) fn count_panic(&self) {
        self.server.gauges.panics.fetch_add(1, Ordering::Relaxed);
    }

    fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.ready.take(cx.waker(), &mut self.woken) {
            self.timer.task_changed();
        }
        scratch::lend_out(&mut self.writer.out);
        let turn = match self.turn(cx) {
            Ok(turn) => turn,
            Err(broken) => self.break_off(broken, cx),
        };
        self.inbound.set(self.partial.len());
        if self.writer.is_empty() {
            scratch::take_back(&mut self.writer.out);
        }
        match turn {
            Turn::End => Poll::Ready(()),
            Turn::Wait => Poll::Pending,
            Turn::Again => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    /// One turn: writes before finished calls before reads.
    ///
    /// Writes come first because they give permits back and what waits to be written has waited
    /// longest; finished calls before reads because finishing work is worth more than taking on new
    /// work. A turn takes a bounded batch and then steps aside even if there is more to read, so
    /// that the connections of a thread share it.
    fn turn(&mut self, cx: &mut TaskContext<'_>) -> Result<Turn, Broken> {
        let now = clock::now();
        self.batch.begin(now);
        self.follow_server(now);
        // What is being gathered has waited its turn when the woken calls have had theirs.
        if !self.gathered {
            self.flush(cx, now)?;
        }
        if !self.is_above_mark() {
            self.life.resume(now);
        }
        let (finished, last_id, had_calls) = (self.writer.unwritten(), self.last_id, self.has_calls());
        self.expire(now);
        self.poll_woken(cx)?;
        self.poll_tasks(cx);
        if self.gather(self.writer.unwritten() > finished) {
            return Ok(Turn::Again);
        }
        let read = self.read(cx)?;
        self.refuse_slow_bodies(matches!(read, ReadEnd::Dry), now);
        // Tasks that were spawned just now wake us only once they have been polled for.
        self.poll_tasks(cx);
        if had_calls || self.last_id != last_id || self.has_calls() {
            self.life.be_busy(now);
        }
        self.look_after(now, &read)?;
        self.flush(cx, now)?;
        if self.is_above_mark() {
            self.life.pause(now);
        }
        if self.step_state(cx, now)? {
            return Ok(Turn::End);
        }
        let due = self.timer.poll(cx, now, self.next_due());
        // Above the mark only the peer's reading gets us on, and that wakes us.
        let more = matches!(read, ReadEnd::Full) && !self.is_above_mark();
        Ok(if due || more { Turn::Again } else { Turn::Wait })
    }

    /// Writes what the transport takes; permits of what has left go back.
    pub(crate) fn flush(&mut self, cx: &mut TaskContext<'_>, now: Instant) -> Result<(), Broken> {
        let Self { writer, io, pipeline, server, .. } = self;
        let before = writer.sent();
        let wants_written = pipeline.wants_written();
        let flushed = writer.poll_flush(io, cx, |response| {
            if !wants_written {
                return;
            }
            let method = response.method.map(|index| &*server.methods.get(index).info);
            let info = CallInfo { id: response.id, method };
            if contain("a handler", || pipeline.written(&info)).is_err() {
                server.gauges.panics.fetch_add(1, Ordering::Relaxed);
            }
        });
        if flushed.is_pending() || self.write_stalls.is_some() {
            // A peer that has something to take lives if it takes some. A PING would stand behind it.
            self.life.hear(now);
        }
        if let Poll::Ready(result) = flushed {
            self.write_stalls = None;
            return result.map_err(Broken::Lost);
        }
        if self.write_stalls.is_none() || writer.sent() > before {
            self.write_stalls = now.checked_add(server.config.write_timeout);
        }
        Ok(())
    }

    /// Whether to wait a turn before writing: woken calls have finished, more calls are out, and
    /// those may well be done by then. A lone call never waits.
    fn gather(&mut self, finished: bool) -> bool {
        self.gathered = finished && !self.gathered && !self.in_flight.is_empty();
        self.gathered
    }

    fn read(&mut self, cx: &mut TaskContext<'_>) -> Result<ReadEnd, Broken> {
        if matches!(self.state, State::Closing { .. } | State::Lingering { .. }) {
            return Ok(ReadEnd::Dry);
        }
        loop {
            if !self.partial.is_empty() {
                let mut bytes = mem::take(&mut self.partial);
                // Read anew: woken calls may have taken their time.
                let now = Reading::now();
                let taken = self.process(&bytes, cx, now)?;
                self.note_frames(taken, taken < bytes.len(), now.instant);
                bytes.advance(taken);
                // An idle connection keeps no buffer.
                self.partial = if bytes.is_empty() { BytesMut::new() } else { bytes };
                if self.has_enough() {
                    return Ok(ReadEnd::Full);
                }
            }
            if self.read_closed {
                return Ok(ReadEnd::Dry);
            }
            // Not dry: nothing will wake us for what the transport has, unless we come back for it.
            if self.is_above_mark() {
                return Ok(ReadEnd::Full);
            }
            let read = scratch::with_read_buffer(|buffer| self.read_once(buffer, cx))?;
            match read {
                None => return Ok(ReadEnd::Dry),
                Some(0) => self.input_ended()?,
                // A full batch ends the turn, but most often it was all there was: then nothing is
                // left, and the next round only asks to be woken.
                Some(_) if self.has_enough() && !self.partial.is_empty() => return Ok(ReadEnd::Full),
                Some(_) => {}
            }
        }
    }

    /// Above the mark we stop reading: the peer must take what it asked for first.
    pub(crate) fn is_above_mark(&self) -> bool {
        self.writer.pressure() > self.server.config.write_high_water
    }

    /// Whether to take on no more in this turn.
    fn has_enough(&self) -> bool {
        self.batch.is_full() || self.is_above_mark()
    }

    fn read_once(&mut self, buffer: &mut [u8], cx: &mut TaskContext<'_>) -> Result<Option<usize>, Broken> {
        let mut buf = ReadBuf::new(buffer);
        match poll_io(cx, |cx| Pin::new(&mut self.io).poll_read(cx, &mut buf)) {
            Poll::Pending => return Ok(None),
            Poll::Ready(result) => result.map_err(Broken::Lost)?,
        }
        let bytes = buf.filled();
        // Read anew: a reading from before the bytes were sent would make every later call look old.
        let now = Reading::now();
        if !bytes.is_empty() {
            self.hear(now.instant);
        }
        let mut taken = 0;
        if self.partial.is_empty() {
            taken = self.process(bytes, cx, now)?;
            self.note_frames(taken, taken < bytes.len(), now.instant);
        }
        self.partial.extend_from_slice(&bytes[taken..]);
        Ok(Some(bytes.len()))
    }

    fn hear(&mut self, now: Instant) {
        self.life.hear(now);
        if let State::Handshake { first_byte, .. } = &mut self.state {
            *first_byte = None;
        }
    }

    /// Notes what became of received bytes. What a full batch has left may well be whole frames.
    fn note_frames(&mut self, taken: usize, left: bool, now: Instant) {
        let left = left && !self.has_enough();
        self.life.frames(taken, left, now);
    }

    /// Handles whole frames at the front of `bytes` until the batch is full, and says how many
    /// bytes they took.
    fn process(&mut self, bytes: &[u8], cx: &mut TaskContext<'_>, now: Reading) -> Result<usize, Broken> {
        let mut taken = 0;
        if matches!(self.state, State::Handshake { .. }) {
            let Some((hello, len)) = Hello::decode(bytes)? else { return Ok(0) };
            self.greet(&hello)?;
            taken = len;
        }
        while !self.has_enough() && !matches!(self.state, State::Closing { .. }) {
            match self.process_frame(&bytes[taken..], cx, now)? {
                Some(len) => {
                    taken += len;
                    self.batch.count_frame();
                }
                None => break,
            }
        }
        Ok(taken)
    }

    fn greet(&mut self, hello: &Hello) -> Result<(), Broken> {
        let Self { server, pipeline, info, .. } = self;
        // Half a pipeline may lack its limits.
        if contain("the pipeline's initializer", || server.build_pipeline(pipeline, info)).is_err() {
            self.count_panic();
            self.pipeline = Pipeline::new();
            let message = "the server could not make a pipeline for this connection".to_owned();
            return Err(Broken::Refused(GoAwayReason::Other(CLOSED_BY_HANDLER), message));
        }
        self.bounds = SendBounds { max_frame: hello.max_frame, max_message: hello.max_message };
        self.writer.max_frame = hello.max_frame;
        self.server.hello(&self.server.config).encode(&mut self.writer.out);
        self.state = State::Open;
        let Self { pipeline, info, .. } = self;
        if contain("a handler", || pipeline.connected(info)).is_err() {
            self.count_panic();
        }
        Ok(())
    }

    fn input_ended(&mut self) -> Result<(), Broken> {
        self.read_closed = true;
        self.life.end();
        let handshake = matches!(self.state, State::Handshake { .. });
        if self.client_leaves || (handshake && self.partial.is_empty()) {
            self.refuse_incomplete_bodies();
            return Ok(());
        }
        Err(Broken::Lost(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Polls the calls that were woken before this turn.
    fn poll_woken(&mut self, cx: &mut TaskContext<'_>) -> Result<(), Broken> {
        let mut woken = mem::take(&mut self.woken);
        let polled = woken.drain(..).try_for_each(|key| match key {
            Key::Slot { method, slot } => {
                self.poll_slot(method, slot);
                Ok(())
            }
            Key::Waiting(key) => self.poll_waiting(key, cx),
        });
        self.woken = woken;
        polled
    }

    fn poll_tasks(&mut self, cx: &mut TaskContext<'_>) {
        while let Poll::Ready(Some(joined)) = self.tasks.poll_join_next(cx) {
            match joined {
                Ok(end) => self.task_ended(end),
                Err(error) => self.task_lost(error),
            }
        }
    }

    /// Answers the calls whose deadline has passed, and drops their futures.
    fn expire(&mut self, now: Instant) {
        for key in self.in_flight.expired(now) {
            self.end_pending(key, Some(&Status::deadline_exceeded("the deadline passed while the call was running")));
        }
    }

    /// Does what the server as a whole is about to do.
    fn follow_server(&mut self, now: Instant) {
        match self.server.phase() {
            Phase::Serving => {}
            Phase::Draining => {
                self.go_away(GoAwayReason::Drain, "the server is draining");
                // Whoever began the drain may not have stayed to end it.
                self.cut_off_after(self.server.config.drain_grace, SHUTTING_DOWN, now);
            }
            Phase::Stopping => {
                self.go_away(GoAwayReason::Drain, "the server is draining");
                self.cut_off(SHUTTING_DOWN);
            }
        }
    }

    /// Gives up a peer that is too slow, silent or idle, and one that was connected for long enough.
    fn look_after(&mut self, now: Instant, read: &ReadEnd) -> Result<(), Broken> {
        if !matches!(self.state, State::Open) {
            return Ok(());
        }
        if self.life.retires(now) && self.going_away.is_none() {
            self.part(Cut::Age);
            let config = &self.server.config;
            let grace = config.max_connection_age_grace.unwrap_or(config.drain_grace);
            self.cut_off_after(grace, Cut::Age.message(), now);
        }
        if let Some((_, told)) = self.cut_off.take_if(|(at, _)| *at <= now) {
            self.cut_off(told);
        }
        // Only who has been read dry is silent.
        if matches!(read, ReadEnd::Full) {
            return Ok(());
        }
        match self.life.due(&self.server.config, now) {
            Some(Due::Ping(opaque)) => encode_ping(&mut self.writer.out, opaque),
            Some(Due::Farewell) => self.part(Cut::Idle),
            Some(Due::Cut(cut)) => return Err(Broken::Cut(cut)),
            None => {}
        }
        Ok(())
    }

    /// Whether a call is pending or its response not yet written.
    fn has_calls(&self) -> bool {
        !self.in_flight.is_empty() || self.writer.unwritten() > 0
    }

    /// Says goodbye to a peer that did nothing wrong.
    fn part(&mut self, cut: Cut) {
        if self.going_away.is_none() {
            self.server.gauges.cuts.count(cut);
            self.go_away(cut.reason(), cut.message());
        }
    }

    /// Lets calls run for so long, unless an earlier end is set already.
    fn cut_off_after(&mut self, grace: Duration, told: &'static str, now: Instant) {
        if self.cut_off.is_none() {
            self.cut_off = now.checked_add(grace).map(|at| (at, told));
        }
    }

    /// Cuts off the calls that run, tells them, and closes.
    fn cut_off(&mut self, told: &'static str) {
        let shutdown = self.server.phase() != Phase::Serving;
        for key in self.in_flight.keys() {
            if shutdown {
                self.note_cut(key);
            }
            self.end_pending(key, Some(&Status::unavailable(told).with_executed(Executed::Maybe)));
        }
        self.close(CLOSE_WHEN_STOPPING);
    }

    fn go_away(&mut self, reason: GoAwayReason, message: &str) {
        if self.going_away.is_none() {
            self.going_away = Some(self.last_id);
            encode_go_away(&mut self.writer.out, self.last_id, reason, message);
            // Who has not said HELLO yet reads from it that nothing was executed.
            if matches!(self.state, State::Handshake { .. }) {
                self.close(CLOSE_WHEN_BROKEN);
            }
        }
    }

    /// Begins to close, if that has not begun, and is done with it by then.
    fn close(&mut self, within: Duration) {
        let by = clock::now() + within.min(FOREVER);
        match &mut self.state {
            State::Closing { until } => *until = by.min(*until),
            State::Lingering { .. } => {}
            State::Handshake { .. } | State::Open => {
                self.state = State::Closing { until: by };
                // Nothing is read any more.
                self.partial = BytesMut::new();
            }
        }
    }

    /// Goes on to the next state when it is time. `true` when the connection is gone.
    fn step_state(&mut self, cx: &mut TaskContext<'_>, now: Instant) -> Result<bool, Broken> {
        if self.write_stalls.is_some_and(|stalls| stalls <= now) {
            self.server.gauges.cuts.count(Cut::Write);
            return Err(Broken::Lost(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes")));
        }
        loop {
            match &mut self.state {
                State::Handshake { first_byte: Some(first_byte), .. } if *first_byte <= now => {
                    return Err(Broken::Cut(Cut::FirstByte));
                }
                State::Handshake { until, .. } if *until <= now => return Err(Broken::Cut(Cut::Handshake)),
                State::Handshake { .. } => return Ok(self.read_closed),
                State::Open => {
                    let leaving = self.going_away.is_some() || self.read_closed;
                    if !leaving || !self.in_flight.is_empty() || !self.writer.is_empty() {
                        return Ok(false);
                    }
                    self.close(self.server.config.write_timeout);
                }
                State::Closing { until } if *until <= now => return Ok(true),
                State::Closing { .. } => {
                    if !self.writer.is_empty() {
                        return Ok(false);
                    }
                    match poll_io(cx, |cx| Pin::new(&mut self.io).poll_shutdown(cx)) {
                        Poll::Pending => return Ok(false),
                        Poll::Ready(Err(_)) => return Ok(true),
                        Poll::Ready(Ok(())) => {}
                    }
                    if self.read_closed {
                        return Ok(true);
                    }
                    self.state = State::Lingering { until: now + LINGER_TIME, left: LINGER_BYTES };
                }
                State::Lingering { until, .. } if *until <= now => return Ok(true),
                State::Lingering { left, .. } => return Ok(discard(&mut self.io, left, cx)),
            }
        }
    }

    /// When something is due that no event announces.
    fn next_due(&self) -> Option<Instant> {
        let state = match self.state {
            State::Handshake { until, first_byte, .. } => Some(first_byte.map_or(until, |first| first.min(until))),
            State::Closing { until } | State::Lingering { until, .. } => Some(until),
            State::Open => {
                let cut_off = self.cut_off.map(|(at, _)| at);
                [self.life.next_due(&self.server.config), cut_off].into_iter().flatten().min()
            }
        };
        let slow = if self.reads_paused { None } else { self.in_flight.next_slow() };
        [state, self.in_flight.next_expiry(), slow, self.write_stalls].into_iter().flatten().min()
    }

    /// Cancels every call; then, if the peer may still read, tells it why and closes.
    fn break_off(&mut self, broken: Broken, cx: &mut TaskContext<'_>) -> Turn {
        self.cancel_all();
        self.writer.abandon_parts();
        // The turn that broke may not have come to them.
        self.woken.clear();
        match broken {
            Broken::Lost(error) => {
                tracing::debug!(connection = %self.info, %error, "connection lost");
                Turn::End
            }
            Broken::Refused(reason, message) => {
                if reason == GoAwayReason::ProtocolError {
                    self.server.gauges.protocol_errors.fetch_add(1, Ordering::Relaxed);
                }
                tracing::warn!(connection = %self.info, ?reason, message, "connection refused");
                self.say_farewell(reason, &message);
                Turn::Again
            }
            Broken::Cut(cut) => {
                self.server.gauges.cuts.count(cut);
                tracing::debug!(connection = %self.info, ?cut, "connection given up");
                self.say_farewell(cut.reason(), cut.message());
                if cut != Cut::Keepalive {
                    return Turn::Again;
                }
                // Most likely nobody is there: it is said in one write, and not waited for.
                let _ = self.flush(cx, clock::now());
                Turn::End
            }
        }
    }

    fn say_farewell(&mut self, reason: GoAwayReason, message: &str) {
        // Once said, the last call accepted stays: later ones were ignored.
        let last = *self.going_away.get_or_insert(self.last_id);
        encode_go_away(&mut self.writer.out, last, reason, message);
        self.close(CLOSE_WHEN_BROKEN);
    }

    fn cancel_all(&mut self) {
        for key in self.in_flight.keys() {
            self.end_pending(key, None);
        }
    }
}

/// Its calls end with it, also when it is dropped in the middle of serving, one by one: a panic in the
/// drop of one's future would otherwise meet that of the next, which nothing survives.
impl<T: AsyncRead + AsyncWrite + Unpin> Drop for Connection<T> {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

impl Batch {
    /// Whether to stop taking on calls in this turn. A used-up cooperative budget makes everything
    /// in a service look pending, so there is no point in starting more.
    pub(crate) fn is_full(&self) -> bool {
        self.is_over() || !coop::has_budget_remaining()
    }
}

/// Reads and forgets. `true` when there is nothing more to wait for.
fn discard<T: AsyncRead + Unpin>(io: &mut T, left: &mut usize, cx: &mut TaskContext<'_>) -> bool {
    scratch::with_read_buffer(|buffer| {
        loop {
            let mut buf = ReadBuf::new(buffer);
            match poll_io(cx, |cx| Pin::new(&mut *io).poll_read(cx, &mut buf)) {
                Poll::Pending => return false,
                Poll::Ready(Err(_)) => return true,
                Poll::Ready(Ok(())) => {}
            }
            let read = buf.filled().len();
            *left = left.saturating_sub(read);
            if read == 0 || *left == 0 {
                return true;
            }
        }
    })
}

/// The reason of a GOAWAY by which the server's user closes a connection.
pub(crate) const CLOSED_BY_HANDLER: u16 = 64;
/// As good as for ever, and an instant can still be expressed.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a peer that broke the protocol gets to take what is on its way.
const CLOSE_WHEN_BROKEN: Duration = Duration::from_secs(1);
/// What calls are told that a shutdown cuts off.
const SHUTTING_DOWN: &str = "the server is shutting down";
const CLOSE_WHEN_STOPPING: Duration = Duration::from_secs(1);
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 256 * 1024;
