//! The body of a request: in its frame, or in parts that arrive one by one.

use std::{mem, time::Instant};

use bytes::Bytes;
use rpc_codec::{Assembly, PartError};

use crate::pace::Pace;

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
    pace: Pace,
}

impl Upload {
    fn begin(body_len: u32, first: &[u8], now: Instant) -> Self {
        Self { assembly: Assembly::begin(body_len, first), pace: Pace::begin(first.len(), now) }
    }

    pub(crate) fn add(&mut self, part: &[u8], more: bool) -> Result<bool, PartError> {
        self.pace.came(part.len());
        self.assembly.add(part, more)
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.assembly.is_complete()
    }

    pub(crate) fn len(&self) -> usize {
        self.assembly.received().len()
    }

    /// How fast it comes, unless all of it has come.
    pub(crate) fn pace(&self) -> Option<&Pace> {
        if self.is_complete() { None } else { Some(&self.pace) }
    }

    /// As [`Self::pace`].
    pub(crate) fn pace_mut(&mut self) -> Option<&mut Pace> {
        if self.is_complete() { None } else { Some(&mut self.pace) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_a_pace_until_it_is_complete() {
        let mut upload = Body::InFrame(&[0; 500]).keep(10_000, Instant::now());
        upload.add(&[0; 5_000], true).unwrap();
        assert_eq!(upload.pace().map(Pace::arrived), Some(5_500));
        upload.add(&[0; 4_500], false).unwrap();
        assert!(upload.pace().is_none());
    }
}
