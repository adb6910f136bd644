//! How fast the items of clients' streams are handed to services.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rpc_core::limit::{RateLimit, Ticks};

/// The rates in which the client's items of a call count, narrow to wide; handlers put it beside the call.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemRates(pub(crate) Vec<Arc<RateLimit>>);

/// Says whether the next item of one stream may be handed to its service, and for what it waits if not.
///
/// An item takes a token of each rate, in turn, and keeps those that it has while it waits for the next: what it
/// has taken cannot be given back once others have built on it, and would be lost with every attempt. Streams that
/// share a rate wait for it in line: see [`RateWait`](rpc_core::limit::RateWait).
#[derive(Debug)]
pub(crate) struct ItemPace {
    rates: ItemRates,
    /// So many of them have given the next item its token.
    paid: usize,
    /// The next one is to give it one, when its turn in line comes.
    waits: bool,
    /// Items that had to wait, of all streams.
    waited: Arc<AtomicU64>,
}

impl ItemPace {
    pub(crate) fn new(rates: ItemRates, waited: &Arc<AtomicU64>) -> Self {
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
    pub(crate) fn admit(&mut self, now: Ticks) -> Result<(), &Arc<RateLimit>> {
        let before = self.paid;
        self.paid += self.rates.0[before..].iter().take_while(|rate| rate.try_in_line(now).is_some()).count();
        if let Some(rate) = self.rates.0.get(self.paid) {
            // Once, also if it has waited for another before.
            self.waited.fetch_add(u64::from(before == 0), Ordering::Relaxed);
            self.waits = true;
            return Err(rate);
        }
        self.paid = 0;
        Ok(())
    }
}
