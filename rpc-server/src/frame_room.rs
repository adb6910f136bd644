//! Room for long frames that have begun. Each connection may have one, and keeps what has come of it; so they
//! take it out of a budget of the server before more of them is read.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use rpc_core::limit::{Admission, ConcurrencyLimit, ConcurrencyPermit, Turn};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    clock,
    connection::{Broken, Connection},
    cut::Cut,
    ending::is_over,
};

/// What a frame beyond [`ORDINARY_FRAME`] has of the budget. Dropping it gives it back, or leaves the queue.
///
/// It has all that the whole frame needs or nothing: frames that had some and waited for more could wait for
/// each other.
#[derive(Debug)]
pub(crate) enum FrameRoom {
    /// It is there. Above the mark nothing is read of the frame; then it goes at that time, or, if there is no such
    /// time, never.
    Taken { until: Option<Instant>, _permit: ConcurrencyPermit },
    /// It waits since then, and has waited for so long before that.
    Awaited { turn: Turn, since: Instant, waited: Duration },
    /// It waits no more, or not yet, and has waited for so long.
    Unasked { waited: Duration },
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// How much to read next. `None` if there is no room for more of the frame that has begun; the task is
    /// woken when there may be.
    #[inline]
    pub(crate) fn may_read(&mut self, cx: &mut TaskContext<'_>) -> Result<Option<usize>, Broken> {
        let size = self.read_size.get();
        if self.partial.len() + size <= ORDINARY_FRAME {
            return Ok(Some(size));
        }
        self.may_read_of_frame(size, cx)
    }

    #[cold]
    fn may_read_of_frame(&mut self, size: usize, cx: &mut TaskContext<'_>) -> Result<Option<usize>, Broken> {
        let len = self.partial.len();
        // Behind a short frame others are read with it, a long one's beginning among them; if not all can be handled
        // now, that is kept.
        if len < ORDINARY_FRAME {
            return Ok(Some(size.min(ORDINARY_FRAME - len)));
        }
        // What is kept begins with a frame that is not whole, and a short one would be by now.
        let frame_len = self.decoder.frame_len(&self.partial).unwrap_or(0);
        if frame_len <= ORDINARY_FRAME {
            return Ok(Some(size));
        }
        // Its last byte is the last that is read, so the buffer is as long as the frame.
        Ok(self.has_room_for(frame_len, cx)?.then(|| size.min(frame_len - len)))
    }

    fn has_room_for(&mut self, frame_len: usize, cx: &mut TaskContext<'_>) -> Result<bool, Broken> {
        let unasked = || Box::new(FrameRoom::Unasked { waited: Duration::ZERO });
        let mut room = self.frame_room.take().unwrap_or_else(unasked);
        if let FrameRoom::Unasked { waited } = *room {
            *room = self.ask_for_room(frame_len, waited)?;
        }
        if let FrameRoom::Awaited { turn, since, waited } = &mut *room {
            let now = clock::now();
            match Pin::new(turn).poll(cx) {
                // It is us who do not listen.
                Poll::Pending => self.life.hear(now),
                Poll::Ready(Ok(permit)) => {
                    let pause = now.saturating_duration_since(*since);
                    self.life.spare_frame(*waited + pause, now);
                    self.in_flight.skip(pause, now);
                    *room = self.take_room(permit, frame_len, now);
                }
                Poll::Ready(Err(_)) => return Err(Broken::Cut(Cut::FrameRoom)),
            }
        }
        let is_taken = matches!(*room, FrameRoom::Taken { .. });
        self.frame_room = Some(room);
        Ok(is_taken)
    }

    fn ask_for_room(&mut self, frame_len: usize, waited: Duration) -> Result<FrameRoom, Broken> {
        let beyond = (frame_len - ORDINARY_FRAME) as u64;
        let limit = ConcurrencyLimit::all_of([(Arc::clone(&self.server.gauges.frames), beyond)]);
        // One line for all: each has one frame, so who came first is next.
        match limit.acquire_or_wait(0) {
            Admission::Pass(permit) => {
                let now = clock::now();
                self.life.spare_frame(waited, now);
                Ok(self.take_room(permit, frame_len, now))
            }
            Admission::Wait(turn) => Ok(FrameRoom::Awaited { turn, since: clock::now(), waited }),
            // The budget was made smaller than the longest frame.
            Admission::Refuse(_) => Err(Broken::Cut(Cut::FrameRoom)),
        }
    }

    /// Keeps what has come of a frame that is not whole. A buffer grows to twice what it had; up to the length of an
    /// ordinary frame it grows no further than that, because so much each connection may keep, and nobody has counted it.
    pub(crate) fn keep_of_frame(&mut self, bytes: &[u8]) {
        let (had, needed) = (self.partial.len(), self.partial.len() + bytes.len());
        if self.partial.capacity() < needed && needed <= ORDINARY_FRAME {
            let mut longer = BytesMut::with_capacity(needed.max(2 * had).min(ORDINARY_FRAME));
            longer.extend_from_slice(&self.partial);
            self.partial = longer;
        }
        self.partial.extend_from_slice(bytes);
    }

    /// Makes the buffer as long as the frame, which is paid for now.
    fn take_room(&mut self, permit: ConcurrencyPermit, frame_len: usize, now: Instant) -> FrameRoom {
        let mut whole = BytesMut::with_capacity(frame_len);
        whole.extend_from_slice(&self.partial);
        self.partial = whole;
        FrameRoom::Taken { until: now.checked_add(self.server.config.frame_timeout), _permit: permit }
    }

    /// Lets others come first while we do not read for another reason: nobody is called behind one who does not
    /// come. It asks again when we do. What it has, it keeps, for as long as [`Self::overstays`] says.
    pub(crate) fn leave_queue_for_room(&mut self, now: Instant) {
        if let Some(FrameRoom::Awaited { since, waited, .. }) = self.frame_room.as_deref() {
            let pause = now.saturating_duration_since(*since);
            // The frame gets its time when there is room. By then it may have gone in and out often, and to get it each
            // time would make it wait without end.
            let waited = *waited + pause;
            self.frame_room = Some(Box::new(FrameRoom::Unasked { waited }));
            self.in_flight.skip(pause, now);
        }
    }

    /// Whether it has kept room for as long as a frame may take, and its peer takes so little that nothing is read
    /// of the frame. That may go on for hours, while others wait for the room.
    pub(crate) fn overstays(&mut self, now: Instant) -> bool {
        if self.room_due().is_none() {
            return false;
        }
        let Some(FrameRoom::Taken { until, .. }) = self.frame_room.as_deref_mut() else { return false };
        is_over(until, now)
    }

    /// When it is to be looked at whether it overstays.
    pub(crate) fn room_due(&self) -> Option<Instant> {
        match self.frame_room.as_deref() {
            Some(FrameRoom::Taken { until, .. }) if self.is_above_mark() => *until,
            _ => None,
        }
    }

    /// Whether the frame that has begun is not read for want of room.
    pub(crate) fn awaits_room(&self) -> bool {
        matches!(self.frame_room.as_deref(), Some(FrameRoom::Awaited { .. }))
    }
}

/// The longest frame that needs no room but its connection's own, with its length field: what every server
/// takes, and all that a client may send before it knows more.
const ORDINARY_FRAME: usize = 64 * 1024 + 4;
