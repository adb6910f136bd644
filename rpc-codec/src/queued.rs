//! Frames of our own that wait to be written, told apart without being decoded.

use std::ops::Range;

use rpc_core::CallId;

use crate::header::{HEADER_LEN, Kind};

/// A frame in a buffer of whole frames.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuedFrame {
    /// Where in the buffer it stands.
    pub range: Range<usize>,
    /// The call, or [`CallId::CONNECTION`].
    pub id: CallId,
    kind: u8,
}

impl QueuedFrame {
    /// The frame that begins at `at` of a buffer of whole frames; `None` at its end.
    pub fn at(frames: &[u8], at: usize) -> Option<Self> {
        let [l0, l1, l2, l3, kind, _, _, _, id @ ..] = frames.get(at..)?.first_chunk::<HEADER_LEN>()?;
        let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
        let id = CallId::from_wire(u64::from_be_bytes(*id));
        Some(Self { range: at..at + 4 + len, id, kind: *kind })
    }

    /// Whether it opens its call.
    pub const fn opens_call(&self) -> bool {
        self.kind == Kind::Request as u8
    }

    /// Whether it is a further part of a body, or of an item.
    pub const fn is_part(&self) -> bool {
        self.kind == Kind::Cont as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{encode_cancel, encode_ping};

    #[test]
    fn frames_are_found_one_behind_the_other() {
        let mut frames = Vec::new();
        encode_ping(&mut frames, [7; 8]);
        let ping_end = frames.len();
        encode_cancel(&mut frames, CallId::new(3, 1));
        let ping = QueuedFrame::at(&frames, 0).unwrap();
        assert_eq!((ping.range, ping.id), (0..ping_end, CallId::CONNECTION));
        let cancel = QueuedFrame::at(&frames, ping_end).unwrap();
        assert_eq!((cancel.range.clone(), cancel.id), (ping_end..frames.len(), CallId::new(3, 1)));
        assert!(!cancel.opens_call());
        assert_eq!(QueuedFrame::at(&frames, frames.len()), None);
    }
}
