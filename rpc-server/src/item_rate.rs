//! How fast the items of clients' streams are handed to services.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rpc_core::limit::{RateLimit, RateShare, Ticks};

/// The rates in which the client's items of a call count, narrow to wide; handlers put it beside the call.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemRates(pub(crate) Vec<Arc<RateLimit>>);

/// Says whether the next item of one stream may be handed to its service, and for what it waits if not.
///
/// An item takes a token of each rate, in turn, and keeps those that it has while it waits for the next: what it
/// has taken cannot be given back once others have built on it, and would be lost with every attempt. Streams that
/// share a rate wait for it in line: see [`RateShare`].
#[derive(Debug)]
pub(crate) struct ItemPace {
    rates: Vec<RateShare>,
    /// So many of them have given the next item its token.
    paid: usize,
    /// The next one is to give it one, when its turn in line comes.
    waits: bool,
    /// Items that had to wait, of all streams.
    waited: Arc<AtomicU64>,
}

impl ItemPace {
    pub(crate) fn new(rates: ItemRates, waited: &Arc<AtomicU64>) -> Self {
        let rates = rates.0.into_iter().map(RateShare::new).collect();
        Self { rates, paid: 0, waits: false, waited: Arc::clone(waited) }
    }

    /// Whether the next item waits in line.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// The token has come for which the next item waited.
    pub(crate) fn has_waited(&mut self) {
        self.paid += usize::from(std::mem::take(&mut self.waits));
    }

    /// Lets the next item pass.
    ///
    /// # Errors
    ///
    /// The rate in whose line it is to wait until [`Self::has_waited`].
    pub(crate) fn admit(&mut self, now: Ticks) -> Result<(), &mut RateShare> {
        let before = self.paid;
        while self.rates.get_mut(self.paid).is_some_and(|rate| rate.try_take(now)) {
            self.paid += 1;
        }
        if let Some(rate) = self.rates.get_mut(self.paid) {
            // Once, also if it has waited for another before.
            self.waited.fetch_add(u64::from(before == 0), Ordering::Relaxed);
            self.waits = true;
            return Err(rate);
        }
        self.paid = 0;
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{task::Waker, time::Duration};

    use rpc_core::limit::{Rate, RateWait};

    use super::*;

    const NOW: Ticks = Ticks::new(1 << 60);

    #[test]
    fn a_token_of_one_rate_is_kept_while_the_item_waits_for_the_other_and_it_counts_once() {
        let rate = |per_second| Arc::new(RateLimit::new("items", Rate::per_second(per_second).burst(1)).unwrap());
        let (narrow, wide, waited) = (rate(0.01), rate(10.0), Arc::default());
        let mut pace = ItemPace::new(ItemRates(vec![Arc::clone(&narrow), Arc::clone(&wide)]), &waited);
        wide.try_acquire(1, NOW).unwrap();
        let wait = pace.admit(NOW).unwrap_err().wait(Waker::noop().clone());
        assert!(pace.waits());
        assert_eq!(narrow.tokens_available(NOW), 0);
        let then = NOW.saturating_add(Duration::from_millis(100));
        wait.poll(then).unwrap();
        pace.has_waited();
        assert!(pace.admit(then).is_ok() && !pace.waits(), "it pays the narrow one once");
        let wait = pace.admit(then).unwrap_err().wait(Waker::noop().clone());
        assert_eq!(wait.poll(then), Err(RateWait::LONGEST), "the next item pays both, and this is the narrow one");
        assert_eq!(waited.load(Ordering::Relaxed), 2);
    }
}
