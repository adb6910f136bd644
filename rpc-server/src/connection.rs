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
use rpc_codec::{DecodeError, FrameDecoder, GoAwayReason, Hello, SendBounds, encode_go_away};
use rpc_core::{AgeEstimator, CallId, ConnectionInfo, Deadline, Status};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::{JoinSet, coop},
};

use crate::{
    allowance::Allowance,
    batch::Batch,
    budgets::Budgets,
    clock::{self, Reading},
    cut::Cut,
    ending::{CLOSE_WHEN_BROKEN, CLOSED_BY_HANDLER, FOREVER},
    frame_room::FrameRoom,
    gauges::Share,
    in_flight::InFlight,
    life::Life,
    panics::{contain, end_of_task},
    peer::Peer,
    pipeline::{CallInfo, Pipeline},
    prospects::Prospects,
    read_size::ReadSize,
    ready::{Key, Ready},
    scratch,
    server::ServerCore,
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
/// What the loop does for calls is in `inbound.rs`, `uploads.rs`, `dispatch.rs` and `outbound.rs`, and how it
/// ends in `ending.rs`.
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
    pub(crate) peer: Arc<Peer>,
    pub(crate) writer: Writer,
    pub(crate) batch: Batch,
    pub(crate) age: AgeEstimator,
    /// The last call that the client opened.
    pub(crate) last_id: CallId,
    /// The last call that we accept, once we have said GOAWAY.
    pub(crate) going_away: Option<CallId>,
    /// What the client takes.
    pub(crate) bounds: SendBounds,
    /// The credit of a stream to the client.
    pub(crate) client_window: u32,
    /// Of bytes of bodies and streams; made with the first of them.
    pub(crate) budgets: Option<Budgets>,
    pub(crate) decoder: FrameDecoder,
    pub(crate) state: State,
    /// The client said GOAWAY: the end of its stream is then no loss.
    pub(crate) client_leaves: bool,
    /// For frames that open no call.
    pub(crate) allowance: Allowance,
    pub(crate) life: Life,
    /// When the calls that still run are cut off, and what they are told.
    pub(crate) cut_off: Option<(Instant, &'static str)>,
    /// When it is gone at the latest, once a shutdown has cut them off.
    pub(crate) gone_by: Option<Instant>,
    pub(crate) read_closed: bool,
    pub(crate) woken: Vec<Key>,
    /// Whether answers of woken calls have been gathered for one turn.
    gathered: bool,
    /// Received bytes that do not make a whole frame, or that the last batch left.
    pub(crate) partial: BytesMut,
    /// If that is a long frame's beginning.
    pub(crate) frame_room: Option<Box<FrameRoom>>,
    inbound: Share,
    pub(crate) read_size: ReadSize,
    timer: Timer,
    pub(crate) write_stalls: Option<Instant>,
    /// How many bytes had been taken when the time of writes last began.
    renewed_at: u64,
    /// Of tasks that begin; made with the first of them.
    pub(crate) prospects: Option<Arc<Prospects>>,
    /// Since when something has waited for the transport without a break.
    waits_since: Option<Instant>,
}

#[derive(Debug)]
pub(crate) enum State {
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
pub(crate) enum Turn {
    /// There is more to do, after others had their turn.
    Again,
    /// Something must happen first; whatever it is wakes the task.
    Wait,
    End,
}

/// Why reading stopped.
pub(crate) enum ReadEnd {
    /// The transport has no more, or we do not want more now.
    Dry,
    /// The batch is full.
    Full,
    /// There is no room for more of the frame that has begun.
    Held,
}

/// A transport that wants to be asked again has done what it can by then, unless its peer holds it up.
const HESITATION: Duration = Duration::from_millis(1);

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    pub(crate) fn new(io: T, server: Arc<ServerCore>, info: ConnectionInfo, peer: Arc<Peer>) -> Self {
        let now = clock::now();
        let state = State::Handshake {
            until: now + server.config.handshake_timeout.min(FOREVER),
            first_byte: Some(now + server.config.first_byte_timeout.min(FOREVER)),
            _gauge: Share::one_of(&server.gauges.handshakes),
        };
        let hello = Hello::default();
        Self {
            io,
            info: Arc::new(info),
            pipeline: Pipeline::new(),
            methods: Vec::new(),
            in_flight: InFlight::new(server.config.least_body_rate(), Share::of(&server.gauges.parked)),
            tasks: JoinSet::new(),
            ready: Arc::clone(&peer.ready),
            peer,
            writer: Writer::new(Share::of(&server.gauges.buffered_bytes)),
            batch: Batch::default(),
            age: AgeEstimator::default(),
            last_id: CallId::CONNECTION,
            going_away: None,
            bounds: SendBounds { max_frame: hello.max_frame, max_message: hello.max_message },
            client_window: hello.stream_window,
            budgets: None,
            decoder: FrameDecoder::new(server.config.max_frame),
            state,
            client_leaves: false,
            allowance: Allowance::new(server.config.control_frame_rate),
            life: Life::new(&server.config, now, fastrand::f64()),
            cut_off: None,
            gone_by: None,
            read_closed: false,
            woken: Vec::new(),
            gathered: false,
            partial: BytesMut::new(),
            frame_room: None,
            inbound: Share::of(&server.gauges.inbound_bytes),
            read_size: ReadSize::default(),
            timer: Timer::default(),
            write_stalls: None,
            renewed_at: 0,
            prospects: None,
            waits_since: None,
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
        self.peer.note_buffered(self.writer.noted(), self.partial.len());
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
        self.tell_askers();
        // What is being gathered has waited its turn when the woken calls have had theirs.
        if !self.gathered {
            self.flush(cx, now)?;
        }
        if !self.is_above_mark()
            && let Some(pause) = self.life.resume(now)
        {
            self.in_flight.skip(pause, now);
        }
        let (finished, last_id, had_calls) = (self.writer.unwritten(), self.last_id, self.has_calls());
        self.expire(now);
        self.in_flight.wake_paced(now);
        self.poll_woken(cx)?;
        self.poll_tasks(cx);
        if self.gather(self.writer.unwritten() > finished) {
            return Ok(Turn::Again);
        }
        let read = self.read(cx)?;
        if matches!(read, ReadEnd::Dry) {
            self.end_slow_parts(now);
            self.end_idle_streams(now);
        }
        // Tasks that were spawned just now wake us only once they have been polled for.
        self.poll_tasks(cx);
        if had_calls || self.last_id != last_id || self.has_calls() {
            self.life.be_busy(now);
        }
        self.look_after(now, &read, cx)?;
        self.flush(cx, now)?;
        let paused = self.is_above_mark();
        if paused {
            self.life.pause(now);
            self.writer.slim();
            self.leave_queue_for_room(now);
        }
        if self.step_state(cx, now)? {
            return Ok(Turn::End);
        }
        let due = self.timer.poll(cx, now, self.next_due());
        // Above the mark only the peer's reading gets us on, or what tasks come to, and either wakes us.
        let more = (paused || matches!(read, ReadEnd::Full)) && !self.stays_above_mark();
        Ok(if due || more { Turn::Again } else { Turn::Wait })
    }

    /// Writes what the transport takes; permits of what has left go back.
    pub(crate) fn flush(&mut self, cx: &mut TaskContext<'_>, now: Instant) -> Result<(), Broken> {
        let Self { writer, io, pipeline, server, .. } = self;
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
        // A peer that has something to take lives if it takes some; a PING would stand behind it. But
        // a transport may hesitate without any peer, at every PING: that is no sign of life.
        if self.waits_since.is_some_and(|since| now.saturating_duration_since(since) >= HESITATION) {
            self.life.hear(now);
        }
        if let Poll::Ready(result) = flushed {
            (self.write_stalls, self.waits_since) = (None, None);
            return result.map_err(Broken::Lost);
        }
        // What is taken too slowly does not renew its time.
        if self.write_stalls.is_none() || writer.sent() - self.renewed_at >= server.config.least_written() {
            self.renewed_at = writer.sent();
            // Read anew: services may have taken their time in this turn, and that is not the peer's.
            let now = clock::now();
            self.write_stalls = now.checked_add(server.config.write_timeout);
            self.waits_since.get_or_insert(now);
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
                self.partial = if bytes.is_empty() {
                    self.frame_room = None;
                    BytesMut::new()
                } else {
                    bytes
                };
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
            let Some(size) = self.may_read(cx)? else { return Ok(ReadEnd::Held) };
            let read = scratch::with_read_buffer(|buffer| self.read_once(&mut buffer[..size], cx))?;
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
        let expected = self.prospects.as_ref().map_or(0, |prospects| prospects.bytes());
        self.writer.is_above(self.server.config.write_high_water, expected)
    }

    /// Whether we are above the mark until something wakes us.
    fn stays_above_mark(&self) -> bool {
        if let Some(prospects) = &self.prospects
            && self.is_above_mark()
        {
            prospects.tell_when_less();
        }
        self.is_above_mark()
    }

    /// Whether to take on no more in this turn. That stays so until it ends: other threads may get us below
    /// the mark at any moment, and what was left because of it would look like half a frame.
    fn has_enough(&mut self) -> bool {
        if self.is_above_mark() {
            self.batch.end();
        }
        self.batch.is_full()
    }

    fn read_once(&mut self, buffer: &mut [u8], cx: &mut TaskContext<'_>) -> Result<Option<usize>, Broken> {
        let asked = buffer.len();
        let mut buf = ReadBuf::new(buffer);
        match poll_io(cx, |cx| Pin::new(&mut self.io).poll_read(cx, &mut buf)) {
            Poll::Pending => return Ok(None),
            Poll::Ready(result) => result.map_err(Broken::Lost)?,
        }
        let bytes = buf.filled();
        // That all came of what was less than usual says nothing.
        if asked == self.read_size.get() || bytes.len() < asked {
            self.read_size.came(bytes.len());
        }
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
        self.keep_of_frame(&bytes[taken..]);
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
        let Self { server, pipeline, info, peer, .. } = self;
        // Half a pipeline may lack its limits.
        if contain("the pipeline's initializer", || server.build_pipeline(pipeline, info, peer)).is_err() {
            self.count_panic();
            self.pipeline = Pipeline::new();
            let message = "the server could not make a pipeline for this connection".to_owned();
            return Err(Broken::Refused(GoAwayReason::Other(CLOSED_BY_HANDLER), message));
        }
        self.bounds = SendBounds { max_frame: hello.max_frame, max_message: hello.max_message };
        self.client_window = hello.stream_window;
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
        self.life.end(clock::now());
        let handshake = matches!(self.state, State::Handshake { .. });
        if self.client_leaves || (handshake && self.partial.is_empty()) {
            self.refuse_incomplete_bodies();
            self.end_incomplete_streams();
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
            Key::Stream(id) => {
                self.look_at_stream(id);
                Ok(())
            }
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

    /// Whether the deadline of a pending call is the server's and not its caller's.
    fn was_longest(&mut self, key: usize) -> bool {
        let Some(longest) = self.server.config.max_call_time else { return false };
        let pending = self.in_flight.get_mut(key);
        pending.is_some_and(|pending| pending.deadline == Deadline::after(pending.received, longest))
    }

    /// Answers the calls whose deadline has passed, or that have waited for too long, and drops their
    /// futures.
    fn expire(&mut self, now: Instant) {
        for key in self.in_flight.expired(now) {
            if let Some(refusal) = self.in_flight.get_mut(key).and_then(|pending| pending.waited_enough(now)) {
                self.refuse_pending(key, &refusal);
                continue;
            }
            let told = if self.was_longest(key) {
                "the call took for as long as any may on this server"
            } else {
                "the deadline passed while the call was running"
            };
            self.end_pending(key, Some(&Status::deadline_exceeded(told)));
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
