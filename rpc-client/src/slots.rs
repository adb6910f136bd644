//! The calls of one connection that wait for their answers, in reusable slots.

use std::{mem, task::Waker, time::Instant};

use rpc_codec::{Assembly, PartError};
use rpc_core::{CallId, Deadline, Metadata};

use crate::error::CallError;

/// The waiting calls of one connection.
///
/// An id names its slot and a sequence that is never used again, so an answer that comes late finds
/// another id in the slot and cannot reach another caller.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    used: usize,
    sequence: u64,
    /// Calls that were given up while they waited. Each may still be answered once, if it has left.
    given_up: u64,
    /// Answers that nobody waited for.
    late: u64,
    /// No call expires before this; it may be early.
    next_expiry: Option<Instant>,
}

#[derive(Debug)]
struct Slot {
    /// [`CallId::CONNECTION`] while the slot is free.
    id: CallId,
    state: SlotState,
    deadline: Deadline,
    /// The body of the answer; kept for the next tenant.
    body: Vec<u8>,
    /// An answer of which parts are still to come.
    download: Option<Box<Download>>,
}

#[derive(Debug)]
struct Download {
    metadata: Metadata,
    assembly: Assembly,
}

#[derive(Debug)]
enum SlotState {
    Waiting(Option<Waker>),
    /// Boxed, so that an outcome is two words and moves in registers.
    Done(Result<Metadata, Box<CallError>>),
}

/// What an answer's id leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A call that waits.
    Waiting,
    /// A call that does not wait any more.
    Late,
    /// No call of this connection had this id.
    NeverIssued,
}

impl Slots {
    /// Slots of a connection on which so many ids count as used.
    pub(crate) fn with_ids_used(sequence: u64) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// How many calls wait or have answers that were not fetched.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Whether another call can be named on this connection.
    pub(crate) fn exhausted(&self) -> bool {
        self.sequence >= CallId::MAX_SEQUENCE
    }

    /// Takes a slot and the next id for a call whose answer will wake `waker`. `None` when there is no slot or no id left.
    pub(crate) fn insert(&mut self, deadline: Deadline, waker: &Waker) -> Option<CallId> {
        if self.exhausted() {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot {
                    id: CallId::CONNECTION,
                    state: SlotState::Waiting(None),
                    deadline: Deadline::NONE,
                    body: Vec::new(),
                    download: None,
                });
                slot
            }
        };
        self.sequence += 1;
        self.used += 1;
        let id = CallId::new(self.sequence, slot);
        let tenant = &mut self.slots[usize::from(slot)];
        tenant.id = id;
        tenant.state = SlotState::Waiting(Some(waker.clone()));
        tenant.deadline = deadline;
        if let Some(expiry) = deadline.instant() {
            self.next_expiry = Some(self.next_expiry.map_or(expiry, |next| next.min(expiry)));
        }
        Some(id)
    }

    /// Where an answer with this id belongs.
    pub(crate) fn find(&self, id: CallId) -> Found {
        match self.slots.get(usize::from(id.slot())) {
            Some(slot) if slot.id == id && matches!(slot.state, SlotState::Waiting(_)) => Found::Waiting,
            Some(_) if id.sequence() >= 1 && id.sequence() <= self.sequence => Found::Late,
            _ => Found::NeverIssued,
        }
    }

    /// Notes an answer that nobody waits for. `true` if it may be the answer of a call that was given
    /// up, `false` if there have been more of them than of those.
    pub(crate) fn late(&mut self) -> bool {
        self.late += 1;
        self.late <= self.given_up
    }

    /// Bytes of answers that were not fetched, or have come in part.
    pub(crate) fn answers_len(&self) -> usize {
        let len = |slot: &Slot| match (&slot.download, &slot.state) {
            (Some(download), _) => download.assembly.received().len(),
            (None, SlotState::Done(Ok(_))) => slot.body.len(),
            _ => 0,
        };
        self.slots.iter().map(len).sum()
    }

    /// Ends a waiting call with a reply.
    pub(crate) fn reply(&mut self, id: CallId, metadata: Metadata, body: &[u8]) -> Option<Waker> {
        let slot = &mut self.slots[usize::from(id.slot())];
        slot.body.clear();
        slot.body.extend_from_slice(body);
        slot.finish(Ok(metadata))
    }

    /// Begins the answer of a waiting call, whose body comes in parts.
    pub(crate) fn begin_reply(&mut self, id: CallId, metadata: Metadata, body_len: u32, first: &[u8]) {
        let assembly = Assembly::begin(body_len, first);
        let slot = &mut self.slots[usize::from(id.slot())];
        slot.download = Some(Box::new(Download { metadata, assembly }));
    }

    /// Whether the answer of a waiting call has begun.
    pub(crate) fn has_parts_to_come(&self, id: CallId) -> bool {
        self.slots[usize::from(id.slot())].download.is_some()
    }

    /// Adds a part to the answer of a waiting call. Its waker if that ends the call.
    ///
    /// # Errors
    ///
    /// The parts do not add up to the length that was said. `None` if no part is due.
    pub(crate) fn add_part(&mut self, id: CallId, part: &[u8], more: bool) -> Result<Option<Waker>, Option<PartError>> {
        let slot = &mut self.slots[usize::from(id.slot())];
        let mut download = slot.download.take().ok_or(None)?;
        if !download.assembly.add(part, more).map_err(Some)? {
            slot.download = Some(download);
            return Ok(None);
        }
        let Download { metadata, mut assembly } = *download;
        slot.body = assembly.take();
        Ok(slot.finish(Ok(metadata)))
    }

    /// Ends a waiting call with an error.
    pub(crate) fn fail(&mut self, id: CallId, error: CallError) -> Option<Waker> {
        self.slots[usize::from(id.slot())].finish(Err(Box::new(error)))
    }

    /// The waiting calls.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = CallId> {
        self.slots.iter().filter(|slot| slot.is_waiting()).map(|slot| slot.id)
    }

    /// When to look for expired calls next.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.next_expiry
    }

    /// The waiting calls whose deadline has passed at `now`. The caller fails them.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<CallId> {
        if self.next_expiry.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let deadlines = self.slots.iter().filter(|slot| slot.is_waiting());
        let (expired, later): (Vec<_>, Vec<_>) = deadlines
            .filter_map(|slot| Some((slot.deadline.instant()?, slot.id)))
            .partition(|&(expiry, _)| expiry <= now);
        self.next_expiry = later.into_iter().map(|(expiry, _)| expiry).min();
        self.given_up += expired.len() as u64;
        expired.into_iter().map(|(_, id)| id).collect()
    }

    /// The outcome of a call if it has ended; its slot is then free and its body in `body`. If it
    /// has not, `waker` will be woken.
    pub(crate) fn take(
        &mut self,
        id: CallId,
        waker: &Waker,
        body: &mut Vec<u8>,
    ) -> Option<Result<Metadata, Box<CallError>>> {
        let slot = &mut self.slots[usize::from(id.slot())];
        match &mut slot.state {
            SlotState::Waiting(known) => {
                if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
                    *known = Some(waker.clone());
                }
                None
            }
            SlotState::Done(outcome) => {
                let outcome = mem::replace(outcome, Ok(Metadata::new()));
                mem::swap(&mut slot.body, body);
                self.release(id);
                Some(outcome)
            }
        }
    }

    /// Frees the slot of a call whose caller has gone. `true` if it still waited.
    pub(crate) fn abandon(&mut self, id: CallId) -> bool {
        let waited = self.find(id) == Found::Waiting;
        self.given_up += u64::from(waited);
        self.release(id);
        waited
    }

    fn release(&mut self, id: CallId) {
        let slot = &mut self.slots[usize::from(id.slot())];
        if slot.id != id {
            return;
        }
        slot.id = CallId::CONNECTION;
        slot.state = SlotState::Waiting(None);
        slot.download = None;
        if slot.body.capacity() > MAX_KEPT_LEN {
            slot.body = Vec::new();
        }
        self.used -= 1;
        self.free.push(id.slot());
    }
}

impl Slot {
    fn is_waiting(&self) -> bool {
        self.id != CallId::CONNECTION && matches!(self.state, SlotState::Waiting(_))
    }

    fn finish(&mut self, outcome: Result<Metadata, Box<CallError>>) -> Option<Waker> {
        self.download = None;
        match mem::replace(&mut self.state, SlotState::Done(outcome)) {
            SlotState::Waiting(waker) => waker,
            SlotState::Done(_) => None,
        }
    }
}

/// A longer body's buffer is not kept for the next tenant.
const MAX_KEPT_LEN: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_answer_for_an_earlier_tenant_of_the_slot_is_late() {
        let mut slots = Slots::default();
        let first = slots.insert(Deadline::NONE, Waker::noop()).unwrap();
        assert!(slots.abandon(first));
        let second = slots.insert(Deadline::NONE, Waker::noop()).unwrap();
        assert_eq!(first.slot(), second.slot());
        assert_eq!(slots.find(first), Found::Late);
        assert_eq!(slots.find(second), Found::Waiting);
        assert_eq!(slots.find(CallId::new(3, 0)), Found::NeverIssued);
        assert_eq!(slots.find(CallId::new(2, 9)), Found::NeverIssued);
        assert_eq!(slots.find(CallId::CONNECTION), Found::NeverIssued);
    }

    #[test]
    fn ids_increase_whatever_slots_are_free() {
        let mut slots = Slots::default();
        let mut last = CallId::CONNECTION;
        for round in 0..100 {
            let id = slots.insert(Deadline::NONE, Waker::noop()).unwrap();
            assert!(id > last);
            last = id;
            if round % 3 == 0 {
                slots.abandon(id);
            }
        }
    }

    #[test]
    fn a_connection_whose_ids_are_used_up_takes_no_more_calls() {
        let mut slots = Slots { sequence: CallId::MAX_SEQUENCE - 1, ..Slots::default() };
        let last = slots.insert(Deadline::NONE, Waker::noop()).unwrap();
        assert_eq!(last.sequence(), CallId::MAX_SEQUENCE);
        assert!(slots.exhausted() && slots.insert(Deadline::NONE, Waker::noop()).is_none());
    }

    #[test]
    fn a_fetched_answer_leaves_the_slot_to_the_next() {
        let mut slots = Slots::default();
        let id = slots.insert(Deadline::NONE, Waker::noop()).unwrap();
        let mut body = Vec::new();
        assert!(slots.take(id, Waker::noop(), &mut body).is_none());
        assert!(slots.reply(id, Metadata::new(), b"book").is_some());
        assert_eq!(slots.find(id), Found::Late, "an answer that comes twice");
        assert!(matches!(slots.take(id, Waker::noop(), &mut body), Some(Ok(_))));
        assert_eq!((body.as_slice(), slots.used()), (&b"book"[..], 0));
    }

    #[test]
    fn as_many_answers_may_be_late_as_calls_were_given_up() {
        let mut slots = Slots::default();
        let now = Instant::now();
        let abandoned = slots.insert(Deadline::NONE, Waker::noop()).unwrap();
        slots.insert(Deadline::at(now), Waker::noop()).unwrap();
        let answered = slots.insert(Deadline::NONE, Waker::noop()).unwrap();
        slots.reply(answered, Metadata::new(), b"an answer");
        assert_eq!(slots.answers_len(), 9);
        assert!(!slots.abandon(answered), "it has its answer");
        assert_eq!(slots.answers_len(), 0);
        assert!(slots.abandon(abandoned) && slots.expired(now).len() == 1);
        assert!(slots.late() && slots.late() && !slots.late());
    }

    #[test]
    fn only_waiting_calls_expire() {
        let mut slots = Slots::default();
        let now = Instant::now();
        let deadline = Deadline::after(now, Duration::from_secs(1));
        let answered = slots.insert(deadline, Waker::noop()).unwrap();
        let waiting = slots.insert(deadline, Waker::noop()).unwrap();
        slots.reply(answered, Metadata::new(), b"");
        assert!(slots.expired(now).is_empty());
        assert_eq!(slots.expired(now + Duration::from_secs(1)), [waiting]);
    }
}
