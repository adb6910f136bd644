//! Bodies that arrive in parts: what they reserve, how they are put together, and how slowly they may
//! come.

use std::{task::Context as TaskContext, time::Instant};

use rpc_codec::{GoAwayReason, MIN_PART_LEN};
use rpc_core::{
    CallId, Metadata, Refusal, RefusalReason,
    limit::{ConcurrencyRefusal, Reservation},
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    body::Body,
    budgets::Budgets,
    call::Opening,
    clock::Reading,
    connection::{Broken, Connection},
    gauges::Share,
    handlers::{expired, explain},
    in_flight::{InParts, Pending, Place, Receiving, Slow, Waiting},
};

/// What a call with such a body takes of the budgets. It waits for the body without a permit, so what is kept
/// of the call itself is bounded here as well: a body of a few bytes counts for more than them.
pub(crate) fn kept_len(body_len: u32, metadata: &Metadata) -> u32 {
    // Metadata is far shorter than that.
    body_len.max(LEAST_KEPT.saturating_add(metadata.encoded_len() as u32))
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// The budgets of this connection.
    pub(crate) fn budgets(&mut self) -> &Budgets {
        let Self { server, budgets, peer, .. } = self;
        budgets.get_or_insert_with(|| Budgets::of_connection(server, peer))
    }

    /// Takes what a body in parts will need, before any of it is kept.
    pub(crate) fn reserve_body(&mut self, len: u32) -> Result<Reservation, Refusal> {
        self.budgets().take_body(len).map_err(|full| self.budget_is_full(&full))
    }

    /// Takes what a stream may send to us, before it opens.
    pub(crate) fn reserve_window(&mut self, window: u32) -> Result<Reservation, Refusal> {
        self.budgets().take_window(window).map_err(|full| self.budget_is_full(&full))
    }

    pub(crate) fn budget_is_full(&self, full: &ConcurrencyRefusal) -> Refusal {
        explain(full, RefusalReason::BodyBudget, self.server.config.concurrency_retry_delay)
    }

    /// Adds a part to the body of a call. With the last one the call goes on through the pipeline.
    pub(crate) fn add_part(
        &mut self,
        id: CallId,
        part: &[u8],
        more: bool,
        cx: &mut TaskContext<'_>,
        now: Reading,
    ) -> Result<(), Broken> {
        let Some(key) = self.in_flight.key_of(id) else {
            // The call was refused, or ended otherwise, while its parts were under way.
            return self.late_frame(now);
        };
        self.allowance.part_came();
        if self.item_part(key, id, part, more)? {
            return Ok(());
        }
        let upload = self.in_flight.get_mut(key).and_then(|pending| pending.place.upload_mut());
        let Some(upload) = upload.filter(|upload| !upload.is_complete()) else {
            let message = format!("the body of call {id} goes on after its last part");
            return Err(Broken::Refused(GoAwayReason::ProtocolError, message));
        };
        match upload.add(part, more) {
            Ok(false) => {}
            Ok(true) => self.received(key, cx, now)?,
            Err(_) => self.refuse_pending(key, &Refusal::new(RefusalReason::MalformedRequest)),
        }
        Ok(())
    }

    /// Lets a call wait for the rest of its body, at the handler in position `at`.
    pub(crate) fn await_body(&mut self, opening: &mut Opening, method: u32, body: &mut Body<'_>, at: usize) {
        let (id, received, deadline) = (opening.id, opening.received.instant, opening.deadline);
        let upload = body.keep(opening.body_len, opening.received.instant);
        let stream = self.seat(opening);
        let _gauge = Share::one_of(&self.server.gauges.in_pipeline);
        let place = Place::Receiving(Box::new(Receiving { opening: opening.take(), upload, at, _gauge }));
        self.in_flight.insert(Pending { id, method, received, began: received, deadline, place, stream });
    }

    /// A body is complete: its call goes on where it stopped, unless it waits for a handler.
    fn received(&mut self, key: usize, cx: &mut TaskContext<'_>, now: Reading) -> Result<(), Broken> {
        if !matches!(self.in_flight.get_mut(key), Some(Pending { place: Place::Receiving(_), .. })) {
            return Ok(());
        }
        let Some(Pending { method, place: Place::Receiving(receiving), stream, .. }) = self.in_flight.remove(key)
        else {
            return Ok(());
        };
        let Receiving { mut opening, upload, at, _gauge: waited } = *receiving;
        drop(waited);
        opening.stream = stream;
        opening.waited_until(now);
        let admitted = if opening.deadline.is_expired(now.instant) {
            self.refuse_call(&opening, method, at, &expired(opening.age));
            Ok(())
        } else {
            self.admit(&mut opening, method, &mut Body::Kept(upload), at, cx)
        };
        self.note_stream_left(&mut opening);
        self.batch.count();
        admitted
    }

    /// Turns a call away that waits in the pipeline or for its body.
    pub(crate) fn refuse_pending(&mut self, key: usize, refusal: &Refusal) {
        let Some(Pending { id, method, place, stream, .. }) = self.in_flight.remove(key) else { return };
        if let Some(seat) = &stream {
            self.note_stream_end(seat);
        }
        let (opening, at) = match place {
            Place::Waiting(waiting) => {
                let Waiting { opening, at, .. } = *waiting;
                (opening, at)
            }
            Place::Receiving(receiving) => (receiving.opening, receiving.at),
            Place::Slot(_) | Place::Task { .. } => return self.refuse(id, Some(method), self.pipeline.len(), refusal),
        };
        self.refuse_call(&opening, method, at, refusal);
    }

    /// Ends the calls whose bodies or items come too slowly. Only to be asked when everything that had
    /// arrived was read, so that nobody is blamed for what waits for us.
    pub(crate) fn end_slow_parts(&mut self, now: Instant) {
        for Slow { key, of, rate, arrived } in self.in_flight.too_slow(now) {
            let refusal = Refusal::new(RefusalReason::BodyTooSlow);
            let refusal = refusal.with_limit("", rate.bytes_per_second.into(), arrived as u64);
            match of {
                InParts::Body => self.refuse_pending(key, &refusal),
                InParts::Item => self.end_stream(key, &refusal),
            }
        }
    }

    /// The client sends nothing more: bodies that are not complete never will be.
    pub(crate) fn refuse_incomplete_bodies(&mut self) {
        for key in self.in_flight.incomplete() {
            self.refuse_pending(key, &Refusal::new(RefusalReason::MalformedRequest));
        }
    }
}

/// About what a call costs that waits for its body, and no more than a part that is not the last must have.
const LEAST_KEPT: u32 = MIN_PART_LEN as u32;
