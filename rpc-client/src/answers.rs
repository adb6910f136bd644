//! Frames from the server: what each kind does to the calls that wait.

use std::sync::{Arc, atomic::Ordering};

use rpc_codec::{FlowError, Frame, GoAwayReason, HeadError, MIN_PART_LEN, ResponseFrame, encode_pong};
use rpc_core::{CallId, StatusCode};

use crate::{
    connection::{MAX_QUEUED_LEN, State},
    driver::Driver,
    error::{CallError, LostCause},
    slots::Found,
};

impl<T> Driver<T> {
    /// Handles one frame; whether it was an answer.
    pub(crate) fn frame(&mut self, state: &mut State, frame: &Frame<'_>) -> Result<bool, LostCause> {
        match frame {
            Frame::Response(response) => self.answer(state, response),
            Frame::Malformed { id, error } => self.malformed(state, *id, error.clone()),
            Frame::Ping(opaque) => {
                self.noise.frame();
                // A server that asks without end and never reads is not owed a buffer of answers, and behind our farewell
                // nothing is sent.
                if state.out.len() < MAX_QUEUED_LEN && self.is_open() {
                    state.append(|out| encode_pong(out, *opaque));
                }
                Ok(false)
            }
            Frame::GoAway(go_away) => {
                self.noise.farewell();
                self.going_away(state, go_away.last, go_away.reason, go_away.message);
                // In place of a HELLO it means that we are not wanted, now and for a while.
                if state.greeted { Ok(false) } else { Err(LostCause::GoneAway(go_away.message.into())) }
            }
            Frame::Item { id, more, len, part } => self.item(state, *id, (*len, part, *more)),
            Frame::Credit { id, bytes } => self.credit(state, *id, *bytes),
            Frame::Cont { id, more, part } => self.part(state, *id, part, *more),
            Frame::Pong(_) | Frame::Ignored { .. } => {
                self.noise.frame();
                Ok(false)
            }
            _ => Err(LostCause::Protocol("it sent a frame that only a client sends".into())),
        }
    }

    fn answer(&mut self, state: &mut State, response: &ResponseFrame<'_>) -> Result<bool, LostCause> {
        let id = response.id;
        if !self.is_waited_for(state, id)? {
            return Ok(false);
        }
        state.proved = true;
        if state.slots.has_parts_to_come(id) {
            return Err(LostCause::Protocol(format!("it answered call {id} twice").into()));
        }
        if response.code == StatusCode::Ok && state.slots.is_within_item(id) {
            return Err(broken("RESPONSE", id, FlowError::WithinItem));
        }
        // It may come before the request has left: then the rest of that is of no use.
        state.stop_upload(id);
        if response.compression != 0 {
            let error = CallError::MalformedResponse {
                peer: Arc::clone(&self.connection.peer),
                source: HeadError::Compression(response.compression),
            };
            self.wakers.extend(state.slots.fail(id, error));
            return Ok(true);
        }
        if response.body_len > self.max_message {
            let error = CallError::ResponseTooLarge {
                peer: Arc::clone(&self.connection.peer),
                len: response.body_len.into(),
                max: self.max_message.into(),
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
            Ok(Ok(metadata)) if response.more => {
                state.slots.begin_reply(id, metadata, response.body_len, response.body);
                return Ok(false);
            }
            Ok(Ok(metadata)) => self.wakers.extend(state.slots.reply(id, metadata, response.body)),
            Ok(Err(error)) => self.wakers.extend(state.slots.fail(id, error)),
            Err(error) => return self.malformed(state, id, error),
        }
        Ok(true)
    }

    /// Adds an item, or its first part; whether it is complete.
    #[inline]
    fn item(&mut self, state: &mut State, id: CallId, item: (u32, &[u8], bool)) -> Result<bool, LostCause> {
        match state.slots.find(id) {
            Found::Waiting => {}
            Found::Late => {
                self.late_frame(state);
                return Ok(false);
            }
            Found::NeverIssued => return Err(never_was("ITEM", id)),
        }
        state.proved = true;
        let waker = state.slots.add_item(id, item, self.max_message).map_err(|error| broken("ITEM", id, error))?;
        self.wakers.extend(waker);
        Ok(!item.2)
    }

    /// Lets a call send more items.
    fn credit(&mut self, state: &mut State, id: CallId, bytes: u32) -> Result<bool, LostCause> {
        match state.slots.find(id) {
            Found::Waiting => {}
            Found::Late => {
                self.late_frame(state);
                return Ok(false);
            }
            Found::NeverIssued => return Err(never_was("CREDIT", id)),
        }
        let paid = state.slots.add_credit(id, bytes).map_err(|error| broken("CREDIT", id, error))?;
        if !paid {
            self.noise.frame();
        }
        Ok(false)
    }

    /// A frame of a call with items that has ended.
    fn late_frame(&mut self, state: &mut State) {
        self.gauges.late_items.fetch_add(1, Ordering::Relaxed);
        if !state.slots.late_frame() {
            self.noise.frame();
        }
    }

    /// Adds a part to an answer or an item; whether that was the last.
    fn part(&mut self, state: &mut State, id: CallId, part: &[u8], more: bool) -> Result<bool, LostCause> {
        match state.slots.find(id) {
            Found::Waiting if state.slots.is_within_item(id) => {
                let waker = state.slots.add_item_part(id, part, more).map_err(|error| broken("CONT", id, error))?;
                self.wakers.extend(waker);
                return Ok(!more);
            }
            Found::Waiting => {}
            // Its caller has gone, or has failed by an earlier part. What is long costs the server more than us.
            Found::Late => {
                if part.len() < MIN_PART_LEN && !state.slots.late_frame() {
                    self.noise.frame();
                }
                return Ok(false);
            }
            Found::NeverIssued => {
                return Err(LostCause::Protocol(format!("it sent a part for call {id}, which never was").into()));
            }
        }
        match state.slots.add_part(id, part, more) {
            Ok(waker) => {
                let answered = waker.is_some();
                self.wakers.extend(waker);
                Ok(answered)
            }
            Err(None) => Err(LostCause::Protocol(format!("it sent a part for call {id} without an answer").into())),
            Err(Some(error)) => self.malformed(state, id, error.into()),
        }
    }

    fn malformed(&mut self, state: &mut State, id: CallId, source: HeadError) -> Result<bool, LostCause> {
        if !self.is_waited_for(state, id)? {
            return Ok(false);
        }
        let error = CallError::MalformedResponse { peer: Arc::clone(&self.connection.peer), source };
        self.wakers.extend(state.slots.fail(id, error));
        state.stop_upload(id);
        Ok(true)
    }

    /// Whether somebody waits for an answer with this id. If not, it is counted.
    fn is_waited_for(&mut self, state: &mut State, id: CallId) -> Result<bool, LostCause> {
        match state.slots.find(id) {
            Found::Waiting => Ok(true),
            Found::Late => {
                self.gauges.late_answers.fetch_add(1, Ordering::Relaxed);
                if !state.slots.late() {
                    self.noise.frame();
                }
                Ok(false)
            }
            Found::NeverIssued => Err(LostCause::Protocol(format!("it answered call {id}, which never was").into())),
        }
    }

    /// The server accepts nothing above `last`: those calls fail, the others are waited for.
    fn going_away(&mut self, state: &mut State, last: CallId, reason: GoAwayReason, message: &str) {
        let error = CallError::GoingAway { peer: Arc::clone(&self.connection.peer), reason, message: message.into() };
        let refused: Vec<_> = state.slots.waiting().filter(|&id| id > last).collect();
        for id in refused {
            self.wakers.extend(state.slots.fail(id, error.clone()));
            state.stop_upload(id);
        }
        // One that drains may have to break off yet, and says why.
        if state.ended.is_none() || (state.drains() && reason != GoAwayReason::Drain) {
            state.ended = Some(error);
        }
        state.closing = true;
        state.wake_all_waiting();
    }
}

fn broken(frame: &str, id: CallId, error: FlowError) -> LostCause {
    LostCause::Protocol(format!("{frame} of call {id}: {error}").into())
}

fn never_was(frame: &str, id: CallId) -> LostCause {
    LostCause::Protocol(format!("it sent {frame} for call {id}, which never was").into())
}
