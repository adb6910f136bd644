//! What a peer may send that opens no call.

use rpc_codec::MIN_PART_LEN;
use rpc_core::limit::{Rate, RateLimit, Ticks};

/// Bounds the frames of one connection that open no call.
///
/// They pass no limit of calls, cost us more than the peer, and a peer that means well sends few of
/// them. So they have a rate of their own, far above any honest need.
///
/// Some are honest however many there are, and a call pays for them: counters that are too strict cut clients in
/// the middle of an overload. Whoever gives up calls then cancels many that have just been answered; so each
/// REQUEST pays for one CANCEL, also one of a method that there is not, or that was refused. A call that is let in
/// has met the limits, and of one that is not the answer must be read, or nothing more is. And what was under way
/// when a call ended is late and no fault: each part of a body or of an item is paid for when that begins, and a
/// stream pays for what its credit allows when it ends. But to open and cancel a stream costs a peer far less than a
/// thousand late frames cost us. So these have a rate as well, at which one connection keeps a small part of a core
/// busy.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// For frames that nothing has paid for; `None` takes everything.
    rate: Option<RateLimit>,
    /// For late frames that were paid for; there with the other.
    late_rate: Option<RateLimit>,
    cancels: u64,
    /// Frames that may come for calls that have ended, and parts of those that have not.
    late: u64,
}

impl Allowance {
    /// An allowance at `rate`, which must have been checked. `None` allows everything.
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        let limit = |rate| RateLimit::new("frames", rate).expect("checked when the server was built");
        Self { rate: rate.map(limit), late_rate: rate.map(|_| limit(LATE_RATE)), cancels: 0, late: 0 }
    }

    /// Notes that a call was opened.
    pub(crate) fn opened(&mut self) {
        self.cancels += 1;
    }

    /// Notes a CANCEL. Whether a call has paid for it.
    pub(crate) fn cancelled(&mut self) -> bool {
        let paid = self.cancels > 0;
        self.cancels -= u64::from(paid);
        paid
    }

    /// Notes that a stream has ended whose client may have sent so many frames that have not come.
    pub(crate) fn stream_ended(&mut self, frames: u64) {
        self.late = self.late.saturating_add(frames);
    }

    /// Notes that a body or an item has begun of which so many bytes are to come in parts.
    pub(crate) fn parts_begin(&mut self, bytes: usize) {
        self.late = self.late.saturating_add(bytes.div_ceil(MIN_PART_LEN) as u64);
    }

    /// Notes a part that was in time.
    pub(crate) fn part_came(&mut self) {
        self.late = self.late.saturating_sub(1);
    }

    /// Takes a frame for a call that has ended; whether there was room for it.
    pub(crate) fn takes_late(&mut self, now: Ticks) -> bool {
        if self.late == 0 {
            return self.takes(now);
        }
        self.late -= 1;
        self.takes_free(now)
    }

    /// Takes a frame that needs not be paid for; whether there was room for it.
    pub(crate) fn takes_free(&self, now: Ticks) -> bool {
        is_within(&self.late_rate, now)
    }

    /// Takes a frame that nothing has paid for; whether there was room for it.
    pub(crate) fn takes(&self, now: Ticks) -> bool {
        is_within(&self.rate, now)
    }
}

fn is_within(rate: &Option<RateLimit>, now: Ticks) -> bool {
    rate.as_ref().is_none_or(|rate| rate.try_acquire(1, now).is_ok())
}

/// A thousand streams of the default window may be refused or cancelled at once with all that their clients may have
/// sent, and again in each second.
const LATE_RATE: Rate = Rate::per_second(1_000_000.0).burst(1_000_000);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn frames_are_taken_at_the_rate_behind_the_burst() {
        let now = Ticks::new(1 << 50);
        let allowance = Allowance::new(Some(Rate::per_second(10.0).burst(20)));
        assert_eq!((0..100).filter(|_| allowance.takes(now)).count(), 20);
        let later = now.saturating_add(Duration::from_secs(1));
        assert_eq!((0..100).filter(|_| allowance.takes(later)).count(), 10);
        assert!((0..1_000_000).all(|_| Allowance::new(None).takes(now)));
    }

    const NOW: Ticks = Ticks::new(1 << 50);

    /// Takes nothing that was not paid for.
    fn strict() -> Allowance {
        let allowance = Allowance::new(Some(Rate::per_second(0.001).burst(1)));
        assert!(allowance.takes(NOW));
        allowance
    }

    #[test]
    fn a_stream_pays_for_what_may_be_under_way_when_it_ends() {
        let mut allowance = strict();
        assert!(!allowance.takes_late(NOW));
        allowance.stream_ended(2);
        assert_eq!([(); 3].map(|()| allowance.takes_late(NOW)), [true, true, false]);
    }

    #[test]
    fn a_body_pays_for_its_parts_in_time_or_late() {
        let mut allowance = strict();
        allowance.parts_begin(2 * MIN_PART_LEN + 1);
        allowance.part_came();
        assert_eq!([(); 3].map(|()| allowance.takes_late(NOW)), [true, true, false]);
        // Too many parts of one end the call or the connection, and take nothing of another's.
        allowance.part_came();
        allowance.parts_begin(1);
        assert_eq!([(); 2].map(|()| allowance.takes_late(NOW)), [true, false]);
    }

    #[test]
    fn late_frames_that_were_paid_for_have_a_rate_as_well() {
        let mut allowance = strict();
        allowance.stream_ended(u64::MAX);
        allowance.stream_ended(1_025);
        assert!((0..1_000_000).all(|_| allowance.takes_late(NOW)));
        assert!(!allowance.takes_late(NOW) && !allowance.takes_free(NOW));
        let later = NOW.saturating_add(Duration::from_millis(1));
        assert_eq!((0..2_000).filter(|_| allowance.takes_late(later)).count(), 1_000);
        let mut boundless = Allowance::new(None);
        boundless.stream_ended(u64::MAX);
        assert!((0..2_000_000).all(|_| boundless.takes_late(NOW)));
    }

    #[test]
    fn a_call_pays_for_one_cancel() {
        let mut allowance = Allowance::new(None);
        assert!(!allowance.cancelled());
        allowance.opened();
        allowance.opened();
        assert_eq!([(); 3].map(|()| allowance.cancelled()), [true, true, false]);
    }
}
