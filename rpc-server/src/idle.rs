//! Streams on which nothing happens.

use std::time::{Duration, Instant};

/// Looks at a stream from time to time, and tells when nothing has happened for as long as may be.
///
/// Items note no time, which would be a reading of the clock for each: they only leave a mark, and who looks takes
/// it off. It looks eight times in the time that a stream may be idle, so one is found idle that was so for that
/// time, and for an eighth more at most. Where looking is put off because the connection is not read, that time
/// does not count.
#[derive(Debug)]
pub(crate) struct IdleWatch {
    timeout: Duration,
    /// When to look.
    next: Instant,
    /// How often nothing had happened, on end.
    quiet: u32,
}

impl IdleWatch {
    /// Begins at `now`. `None` if the time never comes.
    pub(crate) fn begin(timeout: Duration, now: Instant) -> Option<Self> {
        now.checked_add(timeout)?;
        Some(Self { timeout, next: now + timeout / LOOKS, quiet: 0 })
    }

    /// When to look next.
    pub(crate) fn due(&self) -> Instant {
        self.next
    }

    /// How long a stream may be idle.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Notes at `now` whether something has `happened` since it was looked at last. `true` if the stream is idle.
    pub(crate) fn look(&mut self, happened: bool, now: Instant) -> bool {
        self.next = now + self.timeout / LOOKS;
        self.quiet = if happened { 0 } else { self.quiet + 1 };
        self.quiet >= LOOKS
    }
}

const LOOKS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_idle_when_nothing_has_happened_for_the_time_and_hardly_longer() {
        let (start, timeout) = (Instant::now(), Duration::from_secs(8));
        for happened_at in [0, 1, 500, 999, 7_999, 50_001] {
            let last = start + Duration::from_millis(happened_at);
            let mut watch = IdleWatch::begin(timeout, start).unwrap();
            let found = loop {
                let now = watch.due();
                let happened = now > last && now - timeout / LOOKS <= last;
                // Until then, something happens all the time.
                if watch.look(happened || now <= last, now) {
                    break now - last;
                }
            };
            assert!(timeout <= found && found <= timeout + timeout / LOOKS, "{happened_at}: {found:?}");
        }
    }

    #[test]
    fn a_time_beyond_all_time_is_never() {
        assert!(IdleWatch::begin(Duration::MAX, Instant::now()).is_none());
    }
}
