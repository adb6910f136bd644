//! How much a server may send that ends no call.

use std::time::Instant;

use rpc_core::limit::{Rate, RateLimit};

use crate::{clock, error::LostCause};

/// The rate of frames that end no call: pings and pongs, farewells, frames to be ignored, short
/// parts that nobody waits for, and answers that nobody waits for beyond one for every call that was
/// given up.
///
/// They are counted while a read is handled and charged at its end, so that ordinary answers cost
/// neither a token nor a reading of the clock. A read bounds what is counted at once.
#[derive(Debug)]
pub(crate) struct Noise {
    limit: RateLimit,
    /// Frames since the last charge, by their weight.
    heard: u32,
}

impl Noise {
    pub(crate) fn new() -> Self {
        let rate = Rate::per_second(f64::from(PER_SECOND)).burst(BURST);
        let limit = RateLimit::new("frames that end no call", rate).expect("a constant rate is a good one");
        Self { limit, heard: 0 }
    }

    /// A frame that ends no call.
    pub(crate) fn frame(&mut self) {
        self.heard = self.heard.saturating_add(1);
    }

    /// A GOAWAY, for which all calls are looked through.
    pub(crate) fn farewell(&mut self) {
        self.heard = self.heard.saturating_add(FAREWELL_WEIGHT);
    }

    /// Charges what was heard since the last time; the clock is read only if there was anything.
    ///
    /// # Errors
    ///
    /// It was too much.
    pub(crate) fn charge(&mut self, now: impl FnOnce() -> Instant) -> Result<(), LostCause> {
        let heard = std::mem::take(&mut self.heard);
        if heard == 0 {
            return Ok(());
        }
        let charged = self.limit.try_acquire(heard, clock::ticks(now()));
        charged.map(drop).map_err(|_| LostCause::Flooded { per_second: PER_SECOND, burst: BURST })
    }
}

/// No server has reason to send as many; a burst of ten seconds' worth is no flood yet.
const PER_SECOND: u32 = 1_000;
const BURST: u32 = 10_000;
/// More than one farewell is unusual, more than a hundred at once an attack.
const FAREWELL_WEIGHT: u32 = 100;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_and_then_a_thousand_a_second_pass_and_one_more_does_not() {
        let (mut noise, began) = (Noise::new(), Instant::now());
        noise.charge(|| panic!("nothing was heard")).unwrap();
        for _ in 0..BURST {
            noise.frame();
        }
        noise.charge(|| began).unwrap();
        for second in 1..5 {
            for _ in 0..PER_SECOND {
                noise.frame();
            }
            noise.charge(|| began + second * Duration::from_secs(1)).unwrap();
        }
        noise.frame();
        let flooded = noise.charge(|| began + Duration::from_secs(4)).unwrap_err();
        assert!(flooded.to_string().contains("1000"), "{flooded}");
    }
}
