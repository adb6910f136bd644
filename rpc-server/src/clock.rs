//! The one clock of the server: monotonic, virtual when a test pauses the runtime's time.

use std::{sync::LazyLock, time::Instant};

use rpc_core::limit::{Clock, Ticks};

/// Now, as the runtime has it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// One reading of the clock, in every form that a call needs it in; taken once for a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) instant: Instant,
    /// As rate limits count time.
    pub(crate) ticks: Ticks,
    /// Microseconds from some fixed point, for comparing with a peer's clock.
    pub(crate) micros: u64,
}

impl Reading {
    pub(crate) fn now() -> Self {
        Self::at(now())
    }

    /// That of a moment for which the clock was read.
    pub(crate) fn at(instant: Instant) -> Self {
        static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock::new(now()));
        // Ticks go on below the first reading: the clocks of two runtimes may be virtual and disagree.
        let ticks = CLOCK.ticks(instant);
        let micros = ticks.as_u64() / (Ticks::PER_NANOSECOND * 1_000);
        Self { instant, ticks, micros }
    }
}
