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
}

impl Body<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::InFrame(bytes) => bytes,
            Self::Kept(upload) => upload.assembly.received(),
        }
    }

    /// The body as bytes of its own; copied only if it is in a buffer that others use.
    pub(crate) fn take_bytes(&mut self) -> Bytes {
        match self {
            Self::InFrame(bytes) => Bytes::copy_from_slice(bytes),
            Self::Kept(upload) => upload.assembly.take().into(),
        }
    }

    /// The body for keeping, of which `body_len` bytes are to come in all.
    pub(crate) fn keep(&mut self, body_len: u32, now: Instant) -> Upload {
        match self {
            Self::InFrame(bytes) => Upload::begin(body_len, bytes, now),
            Self::Kept(upload) => mem::replace(upload, Upload::begin(0, &[], now)),
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
        Self { assembly: Assembly::begin(body_len, first), since: now, had: first.len() }
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

    /// When it will have come too slowly if nothing more comes; never for one that is complete.
    pub(crate) fn too_slow_at(&self, rate: LeastRate) -> Option<Instant> {
        if self.is_complete() {
            return None;
        }
        let paid = Duration::from_secs_f64((self.len() - self.had) as f64 / f64::from(rate.bytes_per_second));
        self.since.checked_add(rate.grace + paid)
    }

    /// Lets its rate count from `now` on, because it was us who did not read.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.since = now;
        self.had = self.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_may_come_as_slowly_as_its_rate_after_the_grace() {
        let now = Instant::now();
        let rate = LeastRate { bytes_per_second: 1_000, grace: Duration::from_secs(10) };
        let mut upload = Body::InFrame(&[0; 500]).keep(100_000, now);
        assert_eq!(upload.too_slow_at(rate), Some(now + Duration::from_secs(10)));
        upload.add(&[0; 5_000], true).unwrap();
        assert_eq!(upload.too_slow_at(rate), Some(now + Duration::from_secs(15)), "the first part is no merit");
        let later = now + Duration::from_secs(100);
        upload.restart(later);
        assert_eq!(upload.too_slow_at(rate), Some(later + Duration::from_secs(10)));
        upload.add(&[0; 94_500], false).unwrap();
        assert_eq!(upload.too_slow_at(rate), None);
    }
}
