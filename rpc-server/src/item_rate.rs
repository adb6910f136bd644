//! How fast the items of clients' streams are handed to services.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rpc_core::limit::RateLimit;

use crate::clock::Reading;

/// The rates in which the client's items of a call count, narrow to wide; handlers put it beside the call.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemRates(pub(crate) Vec<Arc<RateLimit>>);

/// Says when the next item of one stream may be handed to its service.
///
/// An item takes a token of each rate, in turn, and keeps those that it has while it waits for the next: what it
/// has taken cannot be given back once others have built on it, and would be lost with every attempt.
///
/// Streams that share a rate are refused until the same moment, and all but one would come in vain. So who was
/// refused again and again draws when to come back, from a time that doubles. Tokens that nobody fetches meanwhile
/// are not lost as long as the burst has room for them.
#[derive(Debug)]
pub(crate) struct ItemPace {
    rates: ItemRates,
    /// So many of them have given the next item its token.
    paid: usize,
    /// Not to be asked before.
    again: Option<Instant>,
    /// How often the next item was refused.
    refused: u32,
    /// Items that had to wait, of all streams.
    waited: Arc<AtomicU64>,
}

impl ItemPace {
    pub(crate) fn new(rates: ItemRates, waited: &Arc<AtomicU64>) -> Self {
        Self { rates, paid: 0, again: None, refused: 0, waited: Arc::clone(waited) }
    }

    /// Lets the next item pass.
    ///
    /// # Errors
    ///
    /// Not yet; when to ask again.
    pub(crate) fn admit(&mut self, now: Reading) -> Result<(), Instant> {
        if let Some(again) = self.again.filter(|again| now.instant < *again) {
            return Err(again);
        }
        while let Some(rate) = self.rates.0.get(self.paid) {
            match rate.try_acquire(1, now.ticks) {
                Ok(_) => self.paid += 1,
                // No burst is less than one.
                Err(refusal) => return Err(self.put_off(refusal.retry_after().unwrap_or(LONGEST_WAIT), now.instant)),
            }
        }
        (self.paid, self.again, self.refused) = (0, None, 0);
        Ok(())
    }

    fn put_off(&mut self, exact: Duration, now: Instant) -> Instant {
        if self.refused == 0 {
            self.waited.fetch_add(1, Ordering::Relaxed);
        }
        let spread = exact.saturating_mul((1 << self.refused.min(MOST_DOUBLINGS)) - 1).min(MOST_SPREAD);
        let drawn = Duration::from_nanos(fastrand::u64(0..=spread.as_nanos() as u64));
        self.refused = self.refused.saturating_add(1);
        *self.again.insert(now + exact.saturating_add(drawn).min(LONGEST_WAIT))
    }
}

const MOST_DOUBLINGS: u32 = 10;
/// However many wait, one that was unlucky is not later than that for it.
const MOST_SPREAD: Duration = Duration::from_millis(100);
/// The rate may have been changed while somebody waited.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use rpc_core::limit::Rate;

    use super::*;

    fn rate(per_second: f64, burst: u32) -> Arc<RateLimit> {
        Arc::new(RateLimit::new("items", Rate::per_second(per_second).burst(burst)).unwrap())
    }

    fn later(now: Reading, by: Duration) -> Reading {
        Reading { instant: now.instant + by, ticks: now.ticks.saturating_add(by), ..now }
    }

    #[test]
    fn an_item_that_waits_passes_at_the_moment_it_was_told_and_counts_once() {
        let (waited, now) = (Arc::default(), Reading::now());
        let mut pace = ItemPace::new(ItemRates(vec![rate(10.0, 2)]), &waited);
        assert!(pace.admit(now).is_ok() && pace.admit(now).is_ok());
        let again = pace.admit(now).unwrap_err();
        assert_eq!(again, now.instant + Duration::from_millis(100));
        assert_eq!(pace.admit(later(now, Duration::from_millis(99))), Err(again), "who asks early takes nothing");
        assert!(pace.admit(later(now, Duration::from_millis(100))).is_ok());
        assert_eq!(waited.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_token_of_one_rate_is_kept_while_the_item_waits_for_the_other() {
        let (narrow, wide, now) = (rate(0.01, 1), rate(10.0, 1), Reading::now());
        let mut pace = ItemPace::new(ItemRates(vec![Arc::clone(&narrow), Arc::clone(&wide)]), &Arc::default());
        wide.try_acquire(1, now.ticks).unwrap();
        let again = pace.admit(now).unwrap_err();
        assert_eq!(narrow.tokens_available(now.ticks), 0);
        assert!(pace.admit(later(now, again - now.instant)).is_ok(), "it pays the narrow one once");
    }

    #[test]
    fn however_slow_the_rate_it_is_asked_again_within_a_second() {
        let (slow, now) = (rate(0.001, 1), Reading::now());
        let mut pace = ItemPace::new(ItemRates(vec![Arc::clone(&slow)]), &Arc::default());
        assert!(pace.admit(now).is_ok());
        let again = pace.admit(now).unwrap_err();
        assert_eq!(again, now.instant + Duration::from_secs(1));
        slow.reconfigure(Rate::per_second(1_000_000.0).burst(10), now.ticks).unwrap();
        assert!(pace.admit(later(now, Duration::from_secs(1))).is_ok());
    }

    #[test]
    fn of_many_who_share_a_rate_few_come_in_vain() {
        let (shared, start) = (rate(1_000.0, 100), Reading::now());
        let mut paces: Vec<_> = (0..200)
            .map(|_| (start.instant, ItemPace::new(ItemRates(vec![Arc::clone(&shared)]), &Arc::default())))
            .collect();
        let (mut passed, mut vain) = (0, 0);
        for ms in 0..5_000 {
            let now = later(start, Duration::from_millis(ms));
            for (due, pace) in paces.iter_mut().filter(|(due, _)| *due <= now.instant) {
                match pace.admit(now) {
                    Ok(()) => passed += 1,
                    Err(again) => (*due, vain) = (again, vain + 1),
                }
            }
        }
        assert!((5_000..=5_100).contains(&passed), "{passed}");
        // Each millisecond, all two hundred would.
        assert!(vain < 10 * passed, "{vain}");
    }
}
