//! The calls of one connection that wait for their answers, in reusable slots.

use std::{mem, task::Waker, time::Instant};

use rpc_codec::{Assembly, CallKind, FlowError, Intake, PartError};
use rpc_core::{CallId, Deadline, Metadata};

use crate::{connection::keep, error::CallError, items::Items};

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
    /// Frames that calls with items which have ended may still get.
    late_frames: u64,
    /// Who is to be woken because of items, when the lock is released.
    pub(crate) woken: Vec<Waker>,
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
    /// If the call has any.
    items: Option<Box<Items>>,
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

/// What has come of a call with items.
#[derive(Debug)]
pub(crate) enum Came {
    /// Items that were moved.
    Items,
    /// The end, with the metadata beside it.
    End(Metadata),
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

    /// How many calls there have been.
    pub(crate) fn opened(&self) -> u64 {
        self.sequence
    }

    /// Whether another call can be named on this connection.
    pub(crate) fn exhausted(&self) -> bool {
        self.sequence >= CallId::MAX_SEQUENCE
    }

    /// Takes a slot and the next id for a call whose answer will wake `waker`. `None` when there is no slot or no id left.
    pub(crate) fn insert(&mut self, deadline: Deadline, waker: &Waker, items: Option<Box<Items>>) -> Option<CallId> {
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
                    items: None,
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
        tenant.items = items;
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
        let items = |slot: &Slot| slot.items.as_ref().map_or(0, |items| items.inflow.len());
        self.slots.iter().map(|slot| len(slot) + items(slot)).sum()
    }

    /// Bytes of items that are to be sent.
    pub(crate) fn items_to_send_len(&self) -> usize {
        self.slots.iter().filter_map(|slot| slot.items.as_ref()).map(|items| items.pending()).sum()
    }

    /// The items of a call that waits, if it has any.
    #[inline]
    pub(crate) fn items(&mut self, id: CallId) -> Option<&mut Items> {
        let slot = self.slots.get_mut(usize::from(id.slot()))?;
        let waits = slot.id == id && matches!(slot.state, SlotState::Waiting(_));
        slot.items.as_deref_mut().filter(|_| waits)
    }

    /// Whether this is the id of a call with items that was not fetched.
    pub(crate) fn has_items(&self, id: CallId) -> bool {
        self.slots.get(usize::from(id.slot())).is_some_and(|slot| slot.id == id && slot.items.is_some())
    }

    /// The items of all calls that wait.
    pub(crate) fn all_items(&mut self) -> impl Iterator<Item = (CallId, &mut Items)> {
        let waiting = self.slots.iter_mut().filter(|slot| slot.is_waiting());
        waiting.filter_map(|slot| Some((slot.id, slot.items.as_deref_mut()?)))
    }

    /// Calls that wait, and keep an item until the server has said what it takes.
    pub(crate) fn that_keep_long_items(&mut self) -> Vec<CallId> {
        self.all_items().filter(|(_, items)| items.keeps_long()).map(|(id, _)| id).collect()
    }

    /// Gives back the buffers that are kept for answers to come. The slots stay: late answers find theirs.
    pub(crate) fn let_go(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.id == CallId::CONNECTION) {
            slot.body = Vec::new();
        }
        self.woken.shrink_to_fit();
    }

    /// Adds an item, or its first part, to those of a call that waits. Its waker if one is complete.
    ///
    /// # Errors
    ///
    /// The server broke a rule.
    #[inline]
    pub(crate) fn add_item(
        &mut self,
        id: CallId,
        (len, part, more): (u32, &[u8], bool),
        max: u32,
    ) -> Result<Option<Waker>, FlowError> {
        let slot = &mut self.slots[usize::from(id.slot())];
        let Some(items) = slot.items.as_deref_mut().filter(|items| items.kind.server_sends()) else {
            return Err(slot.wrong_way());
        };
        let complete = items.inflow.add(len, part, more, max)?;
        Ok(if complete { slot.take_waker() } else { None })
    }

    /// Adds a further part to an item of a call that waits, if it is within one. Its waker if that is complete.
    ///
    /// # Errors
    ///
    /// The server broke a rule.
    pub(crate) fn add_item_part(&mut self, id: CallId, part: &[u8], more: bool) -> Result<Option<Waker>, FlowError> {
        let slot = &mut self.slots[usize::from(id.slot())];
        let Some(items) = slot.items.as_deref_mut() else { return Ok(None) };
        let complete = items.inflow.add_part(part, more)?;
        Ok(if complete { slot.take_waker() } else { None })
    }

    /// Whether a call that waits is within an item.
    pub(crate) fn is_within_item(&self, id: CallId) -> bool {
        let items = self.slots[usize::from(id.slot())].items.as_ref();
        items.is_some_and(|items| items.inflow.is_within_item())
    }

    /// Adds credit to the items of a call that waits. Whether an item has paid for that.
    ///
    /// # Errors
    ///
    /// The server broke a rule.
    pub(crate) fn add_credit(&mut self, id: CallId, bytes: u32) -> Result<bool, FlowError> {
        let slot = &mut self.slots[usize::from(id.slot())];
        let Some(items) = slot.items.as_deref_mut().filter(|items| items.kind.client_sends()) else {
            return Err(slot.wrong_way());
        };
        let paid = items.outflow.add_credit(bytes)?;
        self.woken.extend(items.ready_sender());
        Ok(paid)
    }

    /// Notes a frame of a call with items that has ended. Whether that has paid for it.
    pub(crate) fn late_frame(&mut self) -> bool {
        let paid = self.late_frames > 0;
        self.late_frames -= u64::from(paid);
        paid
    }

    /// What has come of a call: items, which are moved into `intake`, or its outcome behind the last of them.
    ///
    /// # Errors
    ///
    /// Neither has, and `waker` will be woken. The one that it replaces is dropped outside of the lock.
    pub(crate) fn take_items(
        &mut self,
        id: CallId,
        intake: &mut Intake,
        waker: &Waker,
        body: &mut Vec<u8>,
    ) -> Result<Result<Came, Box<CallError>>, Option<Waker>> {
        let slot = &mut self.slots[usize::from(id.slot())];
        if let Some(items) = &mut slot.items
            && intake.refill(&mut items.inflow)
        {
            return Ok(Ok(Came::Items));
        }
        self.take(id, waker, body).map(|outcome| outcome.map(Came::End))
    }

    /// Ends a waiting call with a reply.
    pub(crate) fn reply(&mut self, id: CallId, metadata: Metadata, body: &[u8]) -> Option<Waker> {
        let slot = &mut self.slots[usize::from(id.slot())];
        slot.body.clear();
        slot.body.extend_from_slice(body);
        if slot.items.is_some() {
            self.end_items(id);
        }
        self.slots[usize::from(id.slot())].finish(Ok(metadata))
    }

    /// Ends the items of a call that ends: those that have come may still be taken.
    fn end_items(&mut self, id: CallId) {
        let Some(items) = &mut self.slots[usize::from(id.slot())].items else { return };
        self.late_frames = self.late_frames.saturating_add(items.frames_to_come());
        self.woken.extend(items.stop_sending());
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
        self.end_items(id);
        Ok(self.slots[usize::from(id.slot())].finish(Ok(metadata)))
    }

    /// Ends a waiting call with an error.
    pub(crate) fn fail(&mut self, id: CallId, error: CallError) -> Option<Waker> {
        self.end_items(id);
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

    /// The outcome of a call if it has ended; its slot is then free and its body in `body`.
    ///
    /// # Errors
    ///
    /// It has not, and `waker` will be woken. The one that it replaces is dropped outside of the lock.
    pub(crate) fn take(
        &mut self,
        id: CallId,
        waker: &Waker,
        body: &mut Vec<u8>,
    ) -> Result<Result<Metadata, Box<CallError>>, Option<Waker>> {
        let slot = &mut self.slots[usize::from(id.slot())];
        match &mut slot.state {
            SlotState::Waiting(known) => Err(keep(known, waker)),
            SlotState::Done(outcome) => {
                let outcome = mem::replace(outcome, Ok(Metadata::new()));
                mem::swap(&mut slot.body, body);
                self.release(id);
                Ok(outcome)
            }
        }
    }

    /// The waker of a caller who goes, to be dropped outside of the lock.
    pub(crate) fn take_waker(&mut self, id: CallId) -> Option<Waker> {
        let slot = &mut self.slots[usize::from(id.slot())];
        if slot.id == id { slot.take_waker() } else { None }
    }

    /// Frees the slot of a call whose caller has gone. `true` if it still waited.
    pub(crate) fn abandon(&mut self, id: CallId) -> bool {
        let waited = self.find(id) == Found::Waiting;
        if waited {
            self.given_up += 1;
            self.end_items(id);
        }
        self.release(id);
        waited
    }

    /// Ends a call that waits because its caller has given up, but has not gone. Whether it waited.
    pub(crate) fn give_up(&mut self, id: CallId, error: CallError) -> bool {
        let waited = self.find(id) == Found::Waiting;
        if waited {
            self.given_up += 1;
            let waker = self.fail(id, error);
            self.woken.extend(waker);
        }
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
        slot.items = None;
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

    fn take_waker(&mut self) -> Option<Waker> {
        match &mut self.state {
            SlotState::Waiting(waker) => waker.take(),
            SlotState::Done(_) => None,
        }
    }

    #[cold]
    fn wrong_way(&self) -> FlowError {
        let kind = self.items.as_ref().map_or(CallKind::Unary, |items| items.kind);
        FlowError::WrongWay { kind: kind.name() }
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
        let first = slots.insert(Deadline::NONE, Waker::noop(), None).unwrap();
        assert!(slots.abandon(first));
        let second = slots.insert(Deadline::NONE, Waker::noop(), None).unwrap();
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
            let id = slots.insert(Deadline::NONE, Waker::noop(), None).unwrap();
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
        let last = slots.insert(Deadline::NONE, Waker::noop(), None).unwrap();
        assert_eq!(last.sequence(), CallId::MAX_SEQUENCE);
        assert!(slots.exhausted() && slots.insert(Deadline::NONE, Waker::noop(), None).is_none());
    }

    #[test]
    fn a_fetched_answer_leaves_the_slot_to_the_next() {
        let mut slots = Slots::default();
        let id = slots.insert(Deadline::NONE, Waker::noop(), None).unwrap();
        let mut body = Vec::new();
        assert!(slots.take(id, Waker::noop(), &mut body).is_err());
        assert!(slots.reply(id, Metadata::new(), b"book").is_some());
        assert_eq!(slots.find(id), Found::Late, "an answer that comes twice");
        assert!(matches!(slots.take(id, Waker::noop(), &mut body), Ok(Ok(_))));
        assert_eq!((body.as_slice(), slots.used()), (&b"book"[..], 0));
    }

    #[test]
    fn as_many_answers_may_be_late_as_calls_were_given_up() {
        let mut slots = Slots::default();
        let now = Instant::now();
        let abandoned = slots.insert(Deadline::NONE, Waker::noop(), None).unwrap();
        slots.insert(Deadline::at(now), Waker::noop(), None).unwrap();
        let answered = slots.insert(Deadline::NONE, Waker::noop(), None).unwrap();
        slots.reply(answered, Metadata::new(), b"an answer");
        assert_eq!(slots.answers_len(), 9);
        assert!(!slots.abandon(answered), "it has its answer");
        assert_eq!(slots.answers_len(), 0);
        assert!(slots.abandon(abandoned) && slots.expired(now).len() == 1);
        assert!(slots.late() && slots.late() && !slots.late());
    }

    /// Against a sorted list of deadlines, in ticks: whatever comes, ends, is given up or expires, in any order, also
    /// at the same tick or with a deadline that has passed already.
    #[test]
    fn calls_expire_as_in_a_sorted_list_of_deadlines() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut slots, start) = (Slots::default(), Instant::now());
            let at = |tick: u64| start + Duration::from_millis(tick);
            // By deadline; the last tick is none.
            let (mut waiting, mut gone, mut now) = (Vec::<(u64, CallId)>::new(), Vec::new(), 100);
            for _ in 0..200 {
                match random.u8(..10) {
                    0..4 => {
                        let tick = if random.u8(..4) == 0 { u64::MAX } else { now + random.u64(..20) - 5 };
                        let deadline = if tick == u64::MAX { Deadline::NONE } else { Deadline::at(at(tick)) };
                        waiting.push((tick, slots.insert(deadline, Waker::noop(), None).unwrap()));
                    }
                    4 | 5 if !waiting.is_empty() => {
                        let (_, id) = waiting.swap_remove(random.usize(..waiting.len()));
                        if random.bool() {
                            slots.reply(id, Metadata::new(), b"");
                            assert!(slots.take(id, Waker::noop(), &mut Vec::new()).is_ok());
                        } else {
                            assert!(slots.abandon(id));
                        }
                        gone.push(id);
                    }
                    // A key of one that has gone, whose slot may be another's by now.
                    6 if !gone.is_empty() => assert!(!slots.abandon(gone[random.usize(..gone.len())])),
                    _ => {
                        now += random.u64(..8);
                        let mut expired = slots.expired(at(now));
                        expired.sort_unstable();
                        let mut due: Vec<_> =
                            waiting.extract_if(.., |&mut (tick, _)| tick <= now).map(|(_, id)| id).collect();
                        due.sort_unstable();
                        assert_eq!(expired, due, "seed {seed}");
                        for id in due {
                            slots.fail(id, CallError::Closed);
                            assert!(slots.take(id, Waker::noop(), &mut Vec::new()).is_ok());
                            gone.push(id);
                        }
                    }
                }
                // It may be looked at too early, and never too late.
                let next = waiting.iter().map(|&(tick, _)| tick).filter(|&tick| tick < u64::MAX).min();
                let looks = slots.next_expiry();
                assert!(next.is_none_or(|next| looks.is_some_and(|looks| looks <= at(next))), "seed {seed}");
                assert_eq!(slots.used(), waiting.len());
            }
        }
    }

    #[test]
    fn only_waiting_calls_expire() {
        let mut slots = Slots::default();
        let now = Instant::now();
        let deadline = Deadline::after(now, Duration::from_secs(1));
        let answered = slots.insert(deadline, Waker::noop(), None).unwrap();
        let waiting = slots.insert(deadline, Waker::noop(), None).unwrap();
        slots.reply(answered, Metadata::new(), b"");
        assert!(slots.expired(now).is_empty());
        assert_eq!(slots.expired(now + Duration::from_secs(1)), [waiting]);
    }
}
