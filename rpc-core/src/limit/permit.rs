//! What a call carries while it is in flight, and how it may outlive its future.

use std::{
    mem,
    sync::{OnceLock, PoisonError},
};

use super::{
    concurrency::{ConcurrencyPermit, Releases, Reservation},
    sync::{Arc, AtomicBool, Mutex, Ordering},
};

/// The right of one call to be in flight: a permit of every limit it passed.
///
/// The limiter issues it, and it moves with the call until the response has been written. Dropping
/// it is the only way to give it back, so every exit is covered: written, cancelled, expired, or
/// lost with the connection. A call that a wider limit refuses drops what it has got so far.
///
/// It outlives the service on purpose. If it ended when the service returned, a peer that does not
/// read could make us hold any number of finished responses.
#[must_use = "dropping the permit ends the call's claim"]
#[derive(Debug, Default)]
pub struct CallPermit {
    /// One permit stands for a chain of limits, so more than one are rare.
    permit: Option<ConcurrencyPermit>,
    more: Option<Box<More>>,
}

#[derive(Debug)]
enum More {
    Permits(CallPermit),
    /// What is reserved for the call, and the rest.
    Reserved(#[expect(dead_code, reason = "owned to be dropped")] Reservation, Option<Box<Self>>),
    /// Only in a [`HeldPermit`]: the call's permits are in a cell that holds share.
    Held(Arc<HoldCell>),
}

impl CallPermit {
    /// Adds the permit of one more limit.
    pub fn push(&mut self, permit: ConcurrencyPermit) {
        if let Some(earlier) = self.permit.replace(permit) {
            self.more = Some(Box::new(More::Permits(Self { permit: Some(earlier), more: self.more.take() })));
        }
    }

    /// Adds what is reserved for the call, such as the bytes of its body.
    pub fn reserve(&mut self, reservation: Reservation) {
        self.more = Some(Box::new(More::Reserved(reservation, self.more.take())));
    }

    /// How many permits the call carries.
    pub fn len(&self) -> usize {
        usize::from(self.permit.is_some()) + More::len(self.more.as_deref())
    }

    /// Whether the call carries no permit.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl More {
    fn len(more: Option<&Self>) -> usize {
        match more {
            Some(Self::Permits(permits)) => permits.len(),
            Some(Self::Reserved(_, more)) => Self::len(more.as_deref()),
            Some(Self::Held(_)) | None => 0,
        }
    }
}

/// Where the holds of one call come from; see [`CallHold`].
///
/// ```text
///            hold                    settle
///   Open -----------> Held(cell) -----------> Settled     the permit goes into the cell
///     |                                          ^
///     +------------------------------------------+        the permit stays as it is
///                        settle
/// ```
///
/// Who owns the call's permit settles it when the service's future is gone, on every exit, and keeps
/// the [`HeldPermit`] in its place. Whatever is left of the call's context may outlive that: the
/// slot itself holds nothing once it is settled.
#[derive(Debug, Default)]
pub struct HoldSlot {
    // Under a lock, since a hold may be asked for by any thread while the call is being settled. It
    // covers moving one pointer; no permit is dropped under it.
    phase: Mutex<Phase>,
    /// Whether a hold was ever taken; set under the lock.
    used: AtomicBool,
}

impl HoldSlot {
    /// Keeps the call in flight until the hold is dropped; once the call is settled, holds nothing.
    pub fn hold(&self) -> CallHold {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*phase, Phase::Open) {
            self.used.store(true, Ordering::Relaxed);
            *phase = Phase::Held(Arc::new(HoldCell::default()));
        }
        match &*phase {
            Phase::Held(cell) => CallHold { cell: Some(Arc::clone(cell)) },
            Phase::Open | Phase::Settled => CallHold { cell: None },
        }
    }

    /// Whether a hold is alive that was taken here. Settling does not change that for the holds, but
    /// the slot knows of them no more.
    pub fn is_held(&self) -> bool {
        match &*self.phase.lock().unwrap_or_else(PoisonError::into_inner) {
            Phase::Held(cell) => Arc::strong_count(cell) > 1,
            Phase::Open | Phase::Settled => false,
        }
    }

    /// Joins the permit with the holds: it is given back when the value returned and every hold are
    /// gone. No hold can be taken here any more.
    pub fn settle(&self, permit: CallPermit) -> HeldPermit {
        let phase = mem::replace(&mut *self.phase.lock().unwrap_or_else(PoisonError::into_inner), Phase::Settled);
        phase.settle(permit)
    }

    /// As [`HoldSlot::settle`], for a caller who knows that nobody else can reach the slot now or
    /// before it is reset: without the lock if no hold was ever taken, which is the common case.
    pub fn settle_alone(&self, permit: CallPermit) -> HeldPermit {
        if self.used.load(Ordering::Relaxed) { self.settle(permit) } else { permit.into() }
    }

    /// Makes the slot ready for another call. Holds of the last one keep what they hold.
    pub fn reset(&mut self) {
        *self.phase.get_mut().unwrap_or_else(PoisonError::into_inner) = Phase::Open;
        self.used = AtomicBool::new(false);
    }
}

/// A call's permit, settled: for who writes the response. Dropping it ends the connection's claim,
/// and the call's if there are no holds.
#[must_use = "dropping the permit ends the connection's claim"]
#[derive(Debug, Default)]
pub struct HeldPermit(CallPermit);

impl HeldPermit {
    /// Whether holds may keep the call in flight after this is dropped.
    pub fn is_shared(&self) -> bool {
        matches!(self.0.more.as_deref(), Some(More::Held(cell)) if Arc::strong_count(cell) > 1)
    }

    /// Gives the permit back together with others; what holds share is only let go.
    pub fn release_with(self, others: &mut Releases) {
        let CallPermit { permit, more } = self.0;
        if let Some(permit) = permit {
            others.add(permit);
        }
        drop(more);
    }
}

/// Without holds, for a call that never had a context.
impl From<CallPermit> for HeldPermit {
    fn from(permit: CallPermit) -> Self {
        Self(permit)
    }
}

/// Keeps a call in flight for as long as it lives.
///
/// For work that goes on when the service's future is gone, such as a blocking task: move the hold
/// into it, and the limits keep bounding the work. A clone is another hold.
#[must_use = "dropping the hold ends its claim"]
#[derive(Clone, Debug)]
pub struct CallHold {
    cell: Option<Arc<HoldCell>>,
}

impl CallHold {
    /// Whether it holds nothing, because the call had been settled before.
    pub const fn is_empty(&self) -> bool {
        self.cell.is_none()
    }
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Open,
    Held(Arc<HoldCell>),
    Settled,
}

impl Phase {
    fn settle(self, permit: CallPermit) -> HeldPermit {
        match self {
            Self::Held(cell) => {
                // Ours is one claim on the cell, so the permit stays in it at least that long.
                cell.permit.set(permit).expect("the phase left the slot, so it is settled once");
                HeldPermit(CallPermit { permit: None, more: Some(Box::new(More::Held(cell))) })
            }
            Self::Open | Self::Settled => permit.into(),
        }
    }
}

/// Shared by the connection and the holds; the last of them drops the permit with the cell.
#[derive(Debug, Default)]
struct HoldCell {
    permit: OnceLock<CallPermit>,
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;
    use crate::limit::ConcurrencyLimit;

    fn limits() -> [std::sync::Arc<ConcurrencyLimit>; 5] {
        ["connection", "pool", "method", "tenant", "global"].map(|name| ConcurrencyLimit::new(name, Some(1)).unwrap())
    }

    fn permit_of(limits: &[std::sync::Arc<ConcurrencyLimit>]) -> CallPermit {
        let mut permit = CallPermit::default();
        limits.iter().for_each(|limit| permit.push(limit.try_acquire().unwrap()));
        permit
    }

    fn held(limits: &[std::sync::Arc<ConcurrencyLimit>]) -> u64 {
        limits.iter().map(|limit| limit.snapshot().held).sum()
    }

    #[test]
    fn dropping_a_call_permit_gives_back_the_permit_of_every_limit() {
        let limits = limits();
        let permit = permit_of(&limits);
        assert_eq!((permit.len(), permit.is_empty(), held(&limits)), (5, false, 5));
        drop(permit);
        assert_eq!(held(&limits), 0);
        assert!(CallPermit::default().is_empty());
    }

    #[test]
    fn what_is_reserved_for_a_call_stays_with_its_permits() {
        let limits = limits();
        let bytes = ConcurrencyLimit::new("bytes", Some(100)).unwrap();
        let mut permit = CallPermit::default();
        permit.reserve(bytes.try_reserve(40).unwrap());
        assert!(permit.is_empty());
        limits.iter().for_each(|limit| permit.push(limit.try_acquire().unwrap()));
        assert_eq!((permit.len(), bytes.snapshot().held), (5, 40));
        let mut releases = Releases::default();
        HeldPermit::from(permit).release_with(&mut releases);
        drop(releases);
        assert_eq!((held(&limits), bytes.snapshot().held), (0, 0));
    }

    #[test]
    fn a_permit_comes_back_when_its_owner_panics() {
        let limits = limits();
        let result = std::panic::catch_unwind(|| {
            let _permit = permit_of(&limits);
            panic!("service bug");
        });
        assert!(result.is_err());
        assert_eq!(held(&limits), 0);
    }

    #[test]
    fn what_wider_limits_refuse_gives_back_what_narrower_ones_gave() {
        let limits = limits();
        let (narrow, global) = (&limits[..4], &limits[4]);
        let _taken = global.try_acquire().unwrap();
        let mut permit = permit_of(narrow);
        match global.try_acquire() {
            Ok(last) => permit.push(last),
            Err(refusal) => {
                assert_eq!(refusal.max, 1);
                drop(permit);
            }
        }
        assert_eq!((held(narrow), global.snapshot().held), (0, 1));
    }

    #[test]
    fn without_holds_the_permit_comes_back_with_what_was_settled() {
        let limits = limits();
        let slot = HoldSlot::default();
        let settled = slot.settle(permit_of(&limits));
        assert!(!settled.is_shared());
        assert_eq!(held(&limits), 5);
        drop(settled);
        assert_eq!(held(&limits), 0);
    }

    #[test]
    fn a_call_is_in_flight_until_the_response_is_written_and_every_hold_is_dropped() {
        for hold_goes_first in [true, false] {
            let limits = limits();
            let slot = HoldSlot::default();
            let hold = slot.hold();
            let clone = hold.clone();
            assert!(slot.is_held() && !hold.is_empty());
            let settled =
                if hold_goes_first { slot.settle(permit_of(&limits)) } else { slot.settle_alone(permit_of(&limits)) };
            assert!(settled.is_shared());
            if hold_goes_first {
                drop((hold, clone));
                assert!(!settled.is_shared());
                assert_eq!(held(&limits), 5);
                drop(settled);
            } else {
                drop((settled, hold));
                assert_eq!(held(&limits), 5);
                drop(clone);
            }
            assert_eq!(held(&limits), 0);
        }
    }

    #[test]
    fn a_hold_dropped_before_the_call_ends_keeps_nothing() {
        let limits = limits();
        let slot = HoldSlot::default();
        drop(slot.hold());
        assert!(!slot.is_held());
        drop(slot.settle(permit_of(&limits)));
        assert_eq!(held(&limits), 0);
    }

    #[test]
    fn a_settled_slot_keeps_nothing_and_hands_out_empty_holds() {
        let limits = limits();
        let slot = HoldSlot::default();
        let early = slot.hold();
        let settled = slot.settle(permit_of(&limits));
        let late = slot.hold();
        assert!(late.is_empty() && !slot.is_held());
        drop((early, settled));
        // The slot and the late hold are still alive.
        assert_eq!(held(&limits), 0);
        assert!(late.is_empty());
        drop(slot.settle(permit_of(&limits)));
        assert_eq!(held(&limits), 0);
    }

    #[test]
    fn holds_of_the_last_call_do_not_hold_the_next_one_of_a_reused_slot() {
        let (last, next) = (limits(), limits());
        let mut slot = HoldSlot::default();
        let hold = slot.hold();
        drop(slot.settle(permit_of(&last)));
        slot.reset();
        assert!(!slot.is_held());
        drop(slot.settle(permit_of(&next)));
        assert_eq!((held(&last), held(&next)), (5, 0));
        drop(hold);
        assert_eq!(held(&last), 0);
    }

    #[test]
    fn settling_while_others_take_and_drop_holds_gives_back_exactly_once() {
        let limits = limits();
        let start = Barrier::new(3);
        let mut slot = HoldSlot::default();
        for round in 1..=2_000 {
            slot.reset();
            thread::scope(|scope| {
                if round % 100 == 0 {
                    for _ in 0..2 {
                        scope.spawn(|| {
                            start.wait();
                            drop((slot.hold(), slot.hold()));
                        });
                    }
                    start.wait();
                }
                drop(slot.settle(permit_of(&limits)));
            });
            let global = limits[4].snapshot();
            assert_eq!((global.acquired, global.released), (round, round));
        }
    }

    #[test]
    fn permits_and_holds_may_travel_between_threads() {
        fn travels<T: Send + Sync + 'static>() {}
        travels::<CallPermit>();
        travels::<HeldPermit>();
        travels::<CallHold>();
        travels::<HoldSlot>();
    }
}
