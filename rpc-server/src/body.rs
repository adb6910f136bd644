//! The body of a request: in its frame, or in parts that arrive one by one.

use std::{
    mem,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rpc_codec::{Assembly, PartError};

/// A body as far as it is there.
#[derive(Debug)]
pub(crate) enum Body<'a> {
    /// In the buffer that was read.
    InFrame(&'a [u8]),
    /// Put together from parts, or kept for later.
    Kept(Upload),
    /// Taken along to where it is decoded.
    Owned(Bytes),
}

impl Body<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::InFrame(bytes) => bytes,
            Self::Kept(upload) => upload.assembly.received(),
            Self::Owned(bytes) => bytes,
        }
    }

    /// The body as bytes of its own; copied only if it is in a buffer that others use.
    pub(crate) fn take_bytes(&mut self) -> Bytes {
        match self {
            Self::InFrame(bytes) => Bytes::copy_from_slice(bytes),
            Self::Kept(upload) => upload.assembly.take().into(),
            Self::Owned(bytes) => mem::take(bytes),
        }
    }

    /// The body for keeping, of which `body_len` bytes are to come in all.
    pub(crate) fn keep(&mut self, body_len: u32, now: Instant) -> Upload {
        match self {
            Self::InFrame(bytes) => Upload::begin(body_len, bytes, now),
            Self::Kept(upload) => mem::replace(upload, Upload::begin(0, &[], now)),
            Self::Owned(bytes) => Upload::begin(body_len, bytes, now),
        }
    }
}

/// A body that is kept while its call waits for the rest of it, or for a handler.
#[derive(Debug)]
pub(crate) struct Upload {
    assembly: Assembly,
    /// From when on its rate counts, and what had arrived by then.
    since: Instant,
    had: usize,
    /// It was found too slow once.
    warned: bool,
}

/// How slowly a body may come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeastRate {
    pub(crate) bytes_per_second: u32,
    /// A body may come late by this much in all.
    pub(crate) grace: Duration,
}

impl Upload {
    fn begin(body_len: u32, first: &[u8], now: Instant) -> Self {
        Self { assembly: Assembly::begin(body_len, first), since: now, had: first.len(), warned: false }
    }

    pub(crate) fn add(&mut self, part: &[u8], more: bool) -> Result<bool, PartError> {
        self.assembly.add(part, more)
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.assembly.is_complete()
    }

    pub(crate) fn len(&self) -> usize {
        self.assembly.received().len()
    }

    /// When it will have come too slowly if nothing more comes, and be warned or refused; never for one
    /// that is complete.
    pub(crate) fn too_slow_at(&self, rate: LeastRate) -> Option<Instant> {
        if self.is_complete() {
            return None;
        }
        let paid = Duration::from_secs_f64((self.len() - self.had) as f64 / f64::from(rate.bytes_per_second));
        let grace = if self.warned { LAST_CHANCE } else { rate.grace.saturating_sub(LAST_CHANCE) };
        self.since.checked_add(grace.saturating_add(paid))
    }

    /// Whether it was warned before. The first time it is given a last chance instead of being
    /// refused: it may have been us who did not read, busy with something else, and then nothing more
    /// could be sent until now.
    pub(crate) fn was_warned(&mut self, now: Instant) -> bool {
        if !self.warned {
            self.warned = true;
            self.since = now;
            self.had = self.len();
            return false;
        }
        true
    }

    /// Does not count a `pause` up to `now` in which we did not read.
    pub(crate) fn skip(&mut self, pause: Duration, now: Instant) {
        self.since = (self.since + pause).min(now);
    }
}

/// The part of the grace in which a body must move again that seemed to have stopped.
const LAST_CHANCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_may_come_as_slowly_as_its_rate_after_the_grace() {
        let now = Instant::now();
        let rate = LeastRate { bytes_per_second: 1_000, grace: Duration::from_secs(10) };
        let mut upload = Body::InFrame(&[0; 500]).keep(100_000, now);
        assert_eq!(upload.too_slow_at(rate), Some(now + Duration::from_secs(9)));
        upload.add(&[0; 5_000], true).unwrap();
        assert_eq!(upload.too_slow_at(rate), Some(now + Duration::from_secs(14)), "the first part is no merit");
        upload.skip(Duration::from_secs(100), now + Duration::from_secs(200));
        let due = now + Duration::from_secs(114);
        assert_eq!(upload.too_slow_at(rate), Some(due));
        assert!(!upload.was_warned(due));
        assert_eq!(upload.too_slow_at(rate), Some(due + Duration::from_secs(1)));
        assert!(upload.was_warned(due + Duration::from_secs(1)));
        upload.add(&[0; 94_500], false).unwrap();
        assert_eq!(upload.too_slow_at(rate), None);
    }
}
