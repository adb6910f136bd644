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
        static CLOCK: LazyLock<(Instant, Clock)> = LazyLock::new(|| {
            let origin = now();
            (origin, Clock::new(origin))
        });
        let instant = now();
        let (origin, clock) = &*CLOCK;
        let since = instant.saturating_duration_since(*origin);
        let micros = since.as_secs() * 1_000_000 + u64::from(since.subsec_micros());
        Self { instant, ticks: clock.ticks(instant), micros }
    }
}
