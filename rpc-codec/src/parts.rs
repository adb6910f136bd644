//! Bodies in parts: cutting one into CONT frames, and putting one together from them.

use std::mem;

use rpc_core::CallId;

use crate::{
    encoder::OpenFrame,
    error::PartError,
    header::{COUNTED_LEN, FLAG_MORE, Kind},
};

/// The longest part that is sent. A longer body lets other frames in between.
pub const PART_LEN: usize = 32 * 1024;
/// The shortest part in a CONT frame that is not the last, so that a body has few of them.
pub const MIN_PART_LEN: usize = 4096;

/// What is left of a body whose first part has been written.
#[derive(Debug)]
pub struct Remainder {
    body: Vec<u8>,
    sent: usize,
}

impl Remainder {
    pub(crate) fn new(body: Vec<u8>) -> Self {
        Self { body, sent: 0 }
    }

    /// What is left of `body` behind its first `sent` bytes.
    pub(crate) fn behind(body: Vec<u8>, sent: usize) -> Self {
        Self { body, sent }
    }

    /// Bytes that have not been written.
    pub fn len(&self) -> usize {
        self.body.len() - self.sent
    }

    /// Whether the last part has been written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the next part as a CONT frame of at most `max_frame` bytes; `true` if it was the last. What has been
    /// written is given back once it is most of the body, because the rest may wait for long.
    pub fn encode_part(&mut self, out: &mut Vec<u8>, id: CallId, max_frame: u32) -> bool {
        let last = self.cut_part(out, id, max_frame);
        self.slim();
        last
    }

    /// The same for one of which nothing waits: all of it goes with the next part, or the ones right behind.
    pub(crate) fn cut_part(&mut self, out: &mut Vec<u8>, id: CallId, max_frame: u32) -> bool {
        let longest = (max_frame.saturating_sub(COUNTED_LEN) as usize).clamp(MIN_PART_LEN, PART_LEN);
        let part = &self.body[self.sent..];
        let part = &part[..part.len().min(longest)];
        self.sent += part.len();
        let flags = if self.is_empty() { 0 } else { FLAG_MORE };
        let frame = OpenFrame::begin(out);
        out.extend_from_slice(part);
        frame.finish_part(out, Kind::Cont, flags, id);
        self.is_empty()
    }

    /// Gives back what has been written once that is most of the body. What this copies is a third of a body at most.
    fn slim(&mut self) {
        if self.len() <= self.body.capacity() / 4 {
            self.body.drain(..self.sent);
            self.sent = 0;
            self.body.shrink_to_fit();
        }
    }
}

/// A body that arrives in parts.
///
/// Its memory grows with what has been received, never with what was claimed.
#[derive(Debug, Default)]
pub struct Assembly {
    body: Vec<u8>,
    body_len: usize,
}

impl Assembly {
    /// Begins a body of `body_len` bytes with its first part.
    pub fn begin(body_len: u32, first: &[u8]) -> Self {
        Self { body: first.to_vec(), body_len: body_len as usize }
    }

    /// Adds a part; `more` says that others follow. `true` when the body is complete.
    ///
    /// # Errors
    ///
    /// The parts do not add up to the length that the head said. That costs the call.
    pub fn add(&mut self, part: &[u8], more: bool) -> Result<bool, PartError> {
        let len = self.body.len() + part.len();
        if len > self.body_len || (len == self.body_len) == more {
            return Err(PartError { claimed: self.body_len, actual: len, more });
        }
        if len > self.body.capacity() {
            let capacity = len.max(2 * self.body.capacity()).min(self.body_len);
            self.body.reserve_exact(capacity - self.body.len());
        }
        self.body.extend_from_slice(part);
        Ok(!more)
    }

    /// What has arrived.
    pub fn received(&self) -> &[u8] {
        &self.body
    }

    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.body.len() == self.body_len
    }

    /// What has arrived, taken out.
    pub fn take(&mut self) -> Vec<u8> {
        mem::take(&mut self.body)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Decoded, Frame, FrameDecoder};

    const ID: CallId = CallId::new(7, 0);

    fn parts_of(body: &[u8], max_frame: u32) -> Vec<(Vec<u8>, bool)> {
        let mut remainder = Remainder::new(body.to_vec());
        let mut wire = Vec::new();
        while !remainder.encode_part(&mut wire, ID, max_frame) {}
        let decoder = FrameDecoder::new(max_frame);
        let mut parts = Vec::new();
        let mut rest = &wire[..];
        while !rest.is_empty() {
            let Ok(Decoded::Frame { frame: Frame::Cont { id, more, part }, len }) = decoder.decode(rest) else {
                panic!("a CONT frame that its own decoder takes")
            };
            assert_eq!(id, ID);
            parts.push((part.to_vec(), more));
            rest = &rest[len..];
        }
        parts
    }

    #[test]
    fn what_is_left_keeps_no_more_than_four_times_its_memory() {
        let (mut remainder, mut wire) = (Remainder::new(vec![7; 20 * PART_LEN + 5]), Vec::new());
        while !remainder.encode_part(&mut wire, ID, u32::MAX) {
            assert!(remainder.body.capacity() <= 4 * remainder.len() + 2 * PART_LEN, "{remainder:?}");
        }
        assert_eq!(remainder.body.capacity(), 0);
        let (mut tail, mut wire) = (Remainder::new(vec![7; PART_LEN + 5]), Vec::new());
        assert!(!tail.encode_part(&mut wire, ID, u32::MAX));
        assert_eq!((tail.len(), tail.body.capacity()), (5, 5));
    }

    #[test]
    fn of_what_leaves_at_once_nothing_is_copied_to_give_it_back() {
        let (mut remainder, mut wire) = (Remainder::new(vec![7; 20 * PART_LEN + 5]), Vec::new());
        while !remainder.cut_part(&mut wire, ID, u32::MAX) {}
        assert_eq!((remainder.len(), remainder.body.capacity()), (0, 20 * PART_LEN + 5));
    }

    proptest! {
        #[test]
        fn any_body_arrives_as_it_was_sent(len in 1_usize..200_000, max_frame in 8_192_u32..300_000, first in 0_usize..5_000) {
            let body: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let first = first.min(len - 1);
            let mut assembly = Assembly::begin(len as u32, &body[..first]);
            let parts = parts_of(&body[first..], max_frame);
            let count = parts.len();
            for (at, (part, more)) in parts.into_iter().enumerate() {
                prop_assert_eq!(more, at + 1 < count);
                prop_assert_eq!(assembly.add(&part, more).unwrap(), !more);
            }
            prop_assert!(assembly.is_complete());
            prop_assert_eq!(assembly.take(), body);
        }
    }

    #[test]
    fn parts_that_do_not_add_up_are_refused_and_change_nothing() {
        for (part, more) in [(7, false), (5, false), (6, true), (8, true)] {
            let mut assembly = Assembly::begin(10, b"four");
            assert!(assembly.add(&vec![0; part], more).is_err(), "{part} bytes, more: {more}");
            assert_eq!(assembly.received(), b"four");
        }
    }

    #[test]
    fn memory_grows_with_what_has_arrived() {
        let mut assembly = Assembly::begin(u32::MAX, &[0; 10]);
        assert!(assembly.body.capacity() < 100);
        for _ in 0..64 {
            assembly.add(&[0; MIN_PART_LEN], true).unwrap();
            assert!(assembly.body.capacity() <= 2 * assembly.body.len());
        }
        let mut exact = Assembly::begin(10_000, &[0; 4_096]);
        exact.add(&[0; 4_096], true).unwrap();
        assert!(exact.body.capacity() <= 10_000);
    }
}
