//! How much a connection does before it steps aside.

use std::time::{Duration, Instant};

use crate::clock;

/// The bound of one turn: so many calls, so many frames, or so much time spent in services.
///
/// A clock reading costs as much as several limit checks, so the clock is read once for some calls,
/// and for each call only after a batch took too long: then it matters whose polls they were.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    began: Option<Instant>,
    calls: u32,
    frames: u32,
    over: bool,
    /// Calls that are still to be timed one by one.
    suspicious: u32,
}

impl Batch {
    pub(crate) const MAX_CALLS: u32 = 64;
    const MAX_FRAMES: u32 = 512;
    pub(crate) const MAX_TIME: Duration = Duration::from_micros(100);
    /// A poll that takes longer than this is slow.
    pub(crate) const SLOW_POLL: Duration = Duration::from_micros(50);
    const CALLS_PER_READING: u32 = 8;
    /// Behind which calls the clock is read: a bit for each.
    const READINGS: u64 = {
        let (mut readings, mut calls) = (0, 1);
        while calls < Self::MAX_CALLS {
            if calls.is_multiple_of(Self::CALLS_PER_READING) || calls.is_power_of_two() {
                readings |= 1 << calls;
            }
            calls += 1;
        }
        readings
    };
    /// So many calls are timed after a batch that took too long.
    const TIMED_CALLS: u32 = 256;

    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
        self.calls = 0;
        self.frames = 0;
        self.over = false;
    }

    /// Counts a frame that was handled. Those that open no call cost little, but not nothing.
    pub(crate) fn count_frame(&mut self) {
        self.frames += 1;
        self.over |= self.frames >= Self::MAX_FRAMES;
    }

    /// Counts a call that has been polled. The clock is read more often at first, so that a few slow
    /// calls end their batch as well.
    pub(crate) fn count(&mut self) {
        self.calls += 1;
        let reading_due = Self::READINGS >> (self.calls % u64::BITS) & 1 != 0;
        if self.calls >= Self::MAX_CALLS {
            self.over = true;
        } else if reading_due || self.suspicious > 0 {
            self.look_at(clock::now());
        }
        self.suspicious = self.suspicious.saturating_sub(1);
    }

    fn look_at(&mut self, now: Instant) {
        if self.began.is_some_and(|began| now.saturating_duration_since(began) >= Self::MAX_TIME) {
            self.over = true;
            self.suspicious = Self::TIMED_CALLS;
        }
    }

    /// Ends it before its bounds do.
    pub(crate) fn end(&mut self) {
        self.over = true;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// When the next poll begins, if it is to be timed.
    pub(crate) fn poll_begins(&self) -> Option<Instant> {
        (self.suspicious > 0).then(clock::now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_batch_ends_after_sixty_four_calls() {
        let mut batch = Batch::default();
        batch.begin(clock::now());
        (0..63).for_each(|_| batch.count());
        assert!(!batch.is_over());
        batch.count();
        assert!(batch.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_batch_ends_early_and_the_next_calls_are_timed() {
        let mut batch = Batch::default();
        batch.begin(clock::now());
        assert!(batch.poll_begins().is_none());
        tokio::time::advance(Batch::MAX_TIME).await;
        (0..Batch::CALLS_PER_READING).for_each(|_| batch.count());
        assert!(batch.is_over());
        batch.begin(clock::now());
        assert!(!batch.is_over() && batch.poll_begins().is_some());
        for _ in 0..Batch::TIMED_CALLS {
            batch.begin(clock::now());
            batch.count();
        }
        assert!(batch.poll_begins().is_none(), "quick calls end the suspicion");
    }
}
