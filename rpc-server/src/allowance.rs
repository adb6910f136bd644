//! What a peer may send that opens no call.

use rpc_core::limit::{Rate, RateLimit, Ticks};

/// Bounds the frames of one connection that open no call.
///
/// They pass no limit of calls, cost us more than the peer, and a peer that means well sends few of
/// them. So they have a rate of their own, far above any honest need. A CANCEL may be honest however
/// many there are: whoever gives up calls under load cancels many that have just been answered. Each
/// call that is opened, and has passed the limits of calls, therefore pays for one CANCEL.
#[derive(Debug)]
pub(crate) struct Allowance {
    rate: Option<RateLimit>,
    cancels: u64,
    /// Frames that streams which have ended may still get.
    late: u64,
}

impl Allowance {
    /// An allowance at `rate`, which must have been checked. `None` allows everything.
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        let rate = rate.map(|rate| RateLimit::new("frames", rate).expect("checked when the server was built"));
        Self { rate, cancels: 0, late: 0 }
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

    /// Notes a frame of a stream that has ended. Whether that has paid for it.
    pub(crate) fn late(&mut self) -> bool {
        let paid = self.late > 0;
        self.late -= u64::from(paid);
        paid
    }

    /// Takes one frame; whether there was room for it.
    pub(crate) fn takes(&self, now: Ticks) -> bool {
        self.rate.as_ref().is_none_or(|rate| rate.try_acquire(1, now).is_ok())
    }
}

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

    #[test]
    fn a_stream_pays_for_what_may_be_under_way_when_it_ends() {
        let mut allowance = Allowance::new(None);
        assert!(!allowance.late());
        allowance.stream_ended(2);
        assert_eq!([(); 3].map(|()| allowance.late()), [true, true, false]);
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
