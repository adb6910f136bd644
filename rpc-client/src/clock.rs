//! The one clock of the client: monotonic, virtual when a test pauses the runtime's time.

use std::{sync::LazyLock, time::Instant};

use rpc_core::limit::{Clock, Ticks};

/// Now, as the runtime has it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The monotonic clock as it stands on the wire: microseconds, cut to 32 bits.
pub(crate) fn wire_micros(instant: Instant) -> u32 {
    (ticks(instant).as_u64() / (Ticks::PER_NANOSECOND * 1_000)) as u32
}

/// The monotonic clock as rate limits count it.
pub(crate) fn ticks(instant: Instant) -> Ticks {
    // Ticks go on below the first reading: the clocks of two runtimes may be virtual and disagree.
    static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock::new(now()));
    CLOCK.ticks(instant)
}
