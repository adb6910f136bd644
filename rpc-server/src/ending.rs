//! How a connection ends: in peace, in time, or because its peer leaves no choice.

use std::{
    io,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use rpc_codec::{GoAwayReason, encode_go_away, encode_ping};
use rpc_core::{Executed, Status};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    clock,
    connection::{Broken, Connection, ReadEnd, State, Turn},
    cut::Cut,
    life::Due,
    scratch,
    server::Phase,
    writer::poll_io,
};

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Does what the server as a whole is about to do.
    pub(crate) fn follow_server(&mut self, now: Instant) {
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
    pub(crate) fn look_after(&mut self, now: Instant, read: &ReadEnd, cx: &mut TaskContext<'_>) -> Result<(), Broken> {
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
            Some(Due::Feel) => self.feel(cx)?,
            Some(Due::Farewell) => self.part(Cut::Idle),
            Some(Due::Cut(Cut::Frame)) if self.awaits_room() => return Err(Broken::Cut(Cut::FrameRoom)),
            Some(Due::Cut(cut)) => return Err(Broken::Cut(cut)),
            None => {}
        }
        Ok(())
    }

    /// Whether a call is pending or its response not yet written.
    pub(crate) fn has_calls(&self) -> bool {
        !self.in_flight.is_empty() || self.writer.unwritten() > 0
    }

    /// Finds a transport that is gone. Where the end of a stream was read, sockets announce a reset to nobody and go on
    /// reading as ended; but they fail to write, also nothing. Where something waits to be written, that fails by itself.
    fn feel(&mut self, cx: &mut TaskContext<'_>) -> Result<(), Broken> {
        if !self.writer.is_empty() {
            return Ok(());
        }
        match poll_io(cx, |cx| Pin::new(&mut self.io).poll_write(cx, &[])) {
            Poll::Ready(Err(error)) => Err(Broken::Lost(error)),
            Poll::Ready(Ok(_)) | Poll::Pending => Ok(()),
        }
    }

    /// Says goodbye to a peer that did nothing wrong.
    fn part(&mut self, cut: Cut) {
        if self.going_away.is_none() {
            self.server.gauges.cuts.count(cut);
            self.go_away(cut.reason(), cut.message());
        }
    }

    /// Lets calls run for so long, unless an earlier end is set already. To say it again, later, changes nothing.
    fn cut_off_after(&mut self, grace: Duration, told: &'static str, now: Instant) {
        let Some(at) = now.checked_add(grace) else { return };
        if self.cut_off.is_none_or(|(set, _)| at < set) {
            self.cut_off = Some((at, told));
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
        if shutdown {
            self.gone_by.get_or_insert_with(|| clock::now() + CLOSE_WHEN_STOPPING);
        }
        self.close(if shutdown { CLOSE_WHEN_STOPPING } else { CLOSE_WHEN_BROKEN });
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
    pub(crate) fn close(&mut self, within: Duration) {
        let by = clock::now() + within.min(FOREVER);
        match &mut self.state {
            State::Closing { until } | State::Lingering { until, .. } => *until = by.min(*until),
            State::Handshake { .. } | State::Open => {
                self.state = State::Closing { until: by };
                // Nothing is read any more.
                self.partial = BytesMut::new();
                self.frame_room = None;
            }
        }
    }

    /// Goes on to the next state when it is time. `true` when the connection is gone.
    pub(crate) fn step_state(&mut self, cx: &mut TaskContext<'_>, now: Instant) -> Result<bool, Broken> {
        if is_over(&mut self.write_stalls, now) {
            self.server.gauges.cuts.count(Cut::Write);
            return Err(Broken::Lost(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes")));
        }
        if self.overstays(now) {
            return Err(Broken::Cut(Cut::Frame));
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
                    let until = now + LINGER_TIME;
                    let until = self.gone_by.map_or(until, |gone_by| until.min(gone_by));
                    self.state = State::Lingering { until, left: LINGER_BYTES };
                }
                State::Lingering { until, .. } if *until <= now => return Ok(true),
                State::Lingering { left, .. } => return Ok(discard(&mut self.io, left, cx)),
            }
        }
    }

    /// When something is due that no event announces.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let state = match self.state {
            State::Handshake { until, first_byte, .. } => Some(first_byte.map_or(until, |first| first.min(until))),
            State::Closing { until } | State::Lingering { until, .. } => Some(until),
            State::Open => {
                let cut_off = self.cut_off.map(|(at, _)| at);
                [self.life.next_due(&self.server.config), cut_off].into_iter().flatten().min()
            }
        };
        // Nobody is looked at who is not read.
        let [slow, idle] = match self.is_above_mark() || self.awaits_room() {
            true => [None; 2],
            false => [self.in_flight.next_slow(), self.in_flight.next_idle()],
        };
        let [expiry, token] = [self.in_flight.next_expiry(), self.in_flight.next_token()];
        let room = self.room_due();
        [state, expiry, token, slow, idle, room, self.write_stalls].into_iter().flatten().min()
    }

    /// Cancels every call; then, if the peer may still read, tells it why and closes.
    pub(crate) fn break_off(&mut self, broken: Broken, cx: &mut TaskContext<'_>) -> Turn {
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
                tracing::warn!(connection = %self.info, ?reason, told = message, "connection refused");
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

    pub(crate) fn cancel_all(&mut self) {
        for key in self.in_flight.keys() {
            self.end_pending(key, None);
        }
    }
}

/// Whether the time of a peer that does not read is over. If we look late, it was us who were busy and did not offer
/// it anything meanwhile: then it has a while more.
pub(crate) fn is_over(due: &mut Option<Instant>, now: Instant) -> bool {
    let Some(at) = due.filter(|at| *at <= now) else { return false };
    let late = now.saturating_duration_since(at);
    if late < PUNCTUAL {
        return true;
    }
    *due = now.checked_add(late.min(MOST_GIVEN_BACK));
    false
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
pub(crate) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a peer that broke the protocol gets to take what is on its way.
pub(crate) const CLOSE_WHEN_BROKEN: Duration = Duration::from_secs(1);
/// What calls are told that a shutdown cuts off.
const SHUTTING_DOWN: &str = "the server is shutting down";
/// How long a connection lasts whose calls a shutdown has cut off, its farewell and its lingering together: less
/// than the shutdown waits for it.
const CLOSE_WHEN_STOPPING: Duration = Duration::from_millis(900);
/// What is looked at within so much of its time was not held up by us.
const PUNCTUAL: Duration = Duration::from_millis(10);
/// What a peer gets at most for the time in which we were busy.
const MOST_GIVEN_BACK: Duration = Duration::from_secs(1);
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 256 * 1024;
