//! The one clock of the client: monotonic, virtual when a test pauses the runtime's time.

use std::{sync::LazyLock, time::Instant};

/// Now, as the runtime has it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The monotonic clock as it stands on the wire: microseconds, cut to 32 bits.
pub(crate) fn wire_micros(instant: Instant) -> u32 {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(now);
    let since = instant.saturating_duration_since(*ORIGIN);
    (since.as_secs() as u32).wrapping_mul(1_000_000).wrapping_add(since.subsec_micros())
}
