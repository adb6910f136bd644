//! The one clock of the client: monotonic, virtual when a test pauses the runtime's time.

use std::{sync::LazyLock, time::Instant};

/// Now, as the runtime has it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The monotonic clock as it stands on the wire: microseconds, cut to 32 bits.
pub(crate) fn wire_micros(instant: Instant) -> u32 {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(now);
    instant.saturating_duration_since(*ORIGIN).as_micros() as u32
}
