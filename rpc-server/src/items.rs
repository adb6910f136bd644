//! Frames of streams on their way in, what services ask of their connection, and the answers behind items.

use std::{sync::Arc, time::Instant};

use rpc_codec::{CallKind, FlowError, GoAwayReason, PART_LEN, encode_credit, late_frames};
use rpc_core::{CallId, Refusal, RefusalReason, Status, limit::HeldPermit};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    call::Opening,
    clock::Reading,
    connection::{Broken, Connection},
    idle::IdleWatch,
    inbound::within_rate,
    item_rate::{ItemPace, ItemRates},
    stream::{Found, Seat, Stream, Unkept, Windows},
    unary::Outcome,
};

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Opens the stream of a call that was let in.
    fn open_stream(&self, id: CallId, kind: CallKind) -> Box<Seat> {
        let gauges = &self.server.gauges;
        let windows = Windows { server: self.server.config.stream_window, client: self.client_window };
        Seat::new(Stream::new(id, kind, self.bounds, windows, &self.ready, &gauges.stream_bytes), &gauges.streams)
    }

    /// The stream of a call that has items; opened if it was not. Unary calls have none.
    #[inline]
    pub(crate) fn seat(&self, opening: &mut Opening) -> Option<Box<Seat>> {
        if opening.kind == CallKind::Unary {
            return None;
        }
        Some(opening.stream.take().unwrap_or_else(|| self.open_stream(opening.id, opening.kind)))
    }

    /// The stream of a call whose service is about to be called, with what limits it from then on.
    #[inline]
    pub(crate) fn seat_of_service(&self, opening: &mut Opening, method: u32) -> Option<Box<Seat>> {
        let mut seat = self.seat(opening)?;
        let Self { server, .. } = self;
        if let Some(rates) = opening.extensions.get::<ItemRates>()
            && !server.limits.is_dry_run()
        {
            seat.stream.set_pace(ItemPace::new(rates.clone(), &server.gauges.items_paced));
        }
        let timeout = server.limits.stream_idle_timeout(method);
        seat.idle = timeout.and_then(|timeout| IdleWatch::begin(timeout, opening.let_in));
        Some(seat)
    }

    /// Ends the streams on which nothing has happened for too long. Only to be asked when everything that had
    /// arrived was read.
    pub(crate) fn end_idle_streams(&mut self, now: Instant) {
        for (key, timeout) in self.in_flight.idle_streams(now) {
            let micros = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
            self.end_stream(key, &Refusal::new(RefusalReason::StreamIdle).with_limit("", micros, 0));
        }
    }

    /// An item has come, or its first part.
    pub(crate) fn item(&mut self, id: CallId, len: u32, part: &[u8], more: bool, now: Reading) -> Result<(), Broken> {
        if more {
            self.note_parts(len, part);
        }
        let Some((key, stream)) = self.find_stream(id, "ITEM", CallKind::client_sends)? else {
            return self.late_frame(now);
        };
        let max = self.server.config.max_message;
        match stream.add_item(len, part, more, max, self.budgets()) {
            Ok(()) if more => self.in_flight.item_begins(key, part.len(), now.instant),
            Ok(()) => {}
            Err(Unkept::Rule(error)) => return Err(broken("ITEM", id, error)),
            Err(Unkept::Full(full)) => self.end_stream(key, &self.budget_is_full(&full)),
        }
        Ok(())
    }

    /// A further part of an item has come, if the call is within one. Whether it was.
    pub(crate) fn item_part(&mut self, key: usize, id: CallId, part: &[u8], more: bool) -> Result<bool, Broken> {
        let Some(stream) = self.in_flight.stream(key).filter(|stream| stream.is_within_item()) else {
            return Ok(false);
        };
        stream.add_part(part, more).map_err(|error| broken("CONT", id, error))?;
        self.in_flight.item_came(key, part.len(), more);
        Ok(true)
    }

    /// Notes that parts will come of a body or an item of so many bytes: they are no flood, whatever becomes of it.
    pub(crate) fn note_parts(&mut self, len: u32, first: &[u8]) {
        let len = len.min(self.server.config.max_message) as usize;
        self.allowance.parts_begin(len.saturating_sub(first.len()));
    }

    /// Ends a call of which the items break a limit, and tells of that.
    pub(crate) fn end_stream(&mut self, key: usize, refusal: &Refusal) {
        self.server.gauges.refused.count(refusal);
        self.end_pending(key, Some(&Status::from(refusal)));
    }

    /// The client has sent its last item.
    pub(crate) fn end_of_items(&mut self, id: CallId, now: Reading) -> Result<(), Broken> {
        match self.find_stream(id, "END", CallKind::client_sends)? {
            Some((_, stream)) => stream.end().map_err(|error| broken("END", id, error)),
            None => self.late_frame(now),
        }
    }

    /// The client takes more items.
    pub(crate) fn credit(&mut self, id: CallId, bytes: u32, now: Reading) -> Result<(), Broken> {
        let Some((_, stream)) = self.find_stream(id, "CREDIT", CallKind::server_sends)? else {
            return self.late_frame(now);
        };
        let paid = stream.add_credit(bytes).map_err(|error| broken("CREDIT", id, error))?;
        if paid { Ok(()) } else { self.charge(now) }
    }

    /// The stream of a call that is pending; `None` if the call has ended.
    fn find_stream(
        &self,
        id: CallId,
        frame: &'static str,
        has: fn(CallKind) -> bool,
    ) -> Result<Option<(usize, Arc<Stream>)>, Broken> {
        if id == CallId::CONNECTION || id > self.last_id {
            let message = format!("{frame} of call {id}, which was not opened");
            return Err(Broken::Refused(GoAwayReason::ProtocolError, message));
        }
        let Some(key) = self.in_flight.key_of(id) else { return Ok(None) };
        let stream = self.in_flight.stream(key);
        let kind = stream.map_or(CallKind::Unary, |stream| stream.kind);
        match stream.filter(|_| has(kind)) {
            Some(stream) => Ok(Some((key, Arc::clone(stream)))),
            None => Err(broken(frame, id, FlowError::WrongWay { kind: kind.name() })),
        }
    }

    /// A frame of a stream that has ended.
    pub(crate) fn late_frame(&mut self, now: Reading) -> Result<(), Broken> {
        self.ignore_frame();
        within_rate(self.allowance.takes_late(now.ticks))
    }

    /// Does what a service has asked for: takes its items, gives its client credit.
    pub(crate) fn look_at_stream(&mut self, id: CallId) {
        let Some(stream) = self.in_flight.key_of(id).and_then(|key| self.in_flight.stream(key)) else { return };
        let Found { grant, to_writer, paced } = stream.look();
        let next_token = if paced { stream.look_for_token(Reading::now()) } else { None };
        if to_writer {
            let stream = Arc::clone(stream);
            self.writer.push_stream(stream);
        }
        if let Some(at) = next_token {
            self.in_flight.note_token(at);
        }
        if grant > 0 {
            encode_credit(&mut self.writer.out, id, grant);
        }
    }

    /// Notes that a stream has ended: what its client may still send is no flood.
    pub(crate) fn note_stream_end(&mut self, seat: &Seat) {
        self.allowance.stream_ended(seat.stream.frames_to_come());
    }

    /// Notes the end of the stream of a call that did not go on, if it has one: its items may be under way. That of
    /// one that did is where the call is.
    pub(crate) fn note_stream_left(&mut self, opening: &mut Opening) {
        if let Some(seat) = opening.stream.take() {
            self.note_stream_end(&seat);
        }
    }

    /// Notes what a client may have sent behind the REQUEST of a call that was not let in.
    pub(crate) fn note_stream_opening(&mut self, id: CallId) {
        if self.in_flight.key_of(id).is_none() {
            self.allowance.stream_ended(late_frames(self.server.config.stream_window.into()) + 1);
        }
    }

    /// Ends the stream of a call that the connection ends. Items that wait are dropped.
    pub(crate) fn close_stream(&mut self, seat: &Seat, status: Option<&Status>) {
        self.note_stream_end(seat);
        self.writer.drop_stream(seat.stream.id);
        if let Some(status) = status {
            seat.stream.close(status);
        }
    }

    /// The client sends nothing more: streams that it did not end never will be.
    pub(crate) fn end_incomplete_streams(&mut self) {
        let status = Status::cancelled("the client's end of the connection came before that of its stream");
        for key in self.in_flight.unended() {
            self.end_pending(key, Some(&status));
        }
    }

    /// Answers a call behind the items that its service has sent.
    pub(crate) fn respond_behind_items(&mut self, seat: &Seat, method: u32, outcome: Outcome, permit: HeldPermit) {
        self.note_stream_end(seat);
        let (id, handlers) = (seat.stream.id, self.pipeline.len());
        let mut items = seat.stream.finish();
        self.writer.drop_stream(id);
        if items.is_empty() {
            return self.respond(id, Some(method), handlers, outcome, permit);
        }
        let start = outcome.as_ref().map_or(self.writer.out.len(), |message| message.start());
        if let Some(remainder) = self.encode_response(id, Some(method), handlers, outcome) {
            // Only where the client alone has items does a long reply follow.
            return self.writer.push_parts(id, Some(method), permit, remainder);
        }
        let mut response = self.writer.out.split_off(start);
        if items.len() <= PART_LEN {
            items.take_all(&mut self.writer.out);
            self.writer.out.append(&mut response);
            return self.writer.push(id, Some(method), permit);
        }
        items.append(&mut response);
        self.writer.push_items(id, Some(method), permit, items);
    }
}

fn broken(frame: &str, id: CallId, error: FlowError) -> Broken {
    Broken::Refused(GoAwayReason::ProtocolError, format!("{frame} of call {id}: {error}"))
}
