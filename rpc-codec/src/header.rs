//! The fixed header in front of every frame.
//!
//! ```text
//!  0        4     5      6         8            16
//! +--------+-----+------+---------+------------+------ - - -
//! | len    | kind| flags| head_len| id         | head, body
//! +--------+-----+------+---------+------------+------ - - -
//! ```

use rpc_core::CallId;

use crate::error::DecodeError;

/// The length of the header in bytes, with the length field itself.
pub const HEADER_LEN: usize = 16;
/// The part of the header that `len` counts: all that follows the length field.
pub(crate) const COUNTED_LEN: u32 = 12;

/// More of this body follows in CONT frames.
pub(crate) const FLAG_MORE: u8 = 0x01;
/// The client sends items of this call.
pub(crate) const FLAG_SENDS: u8 = 0x02;
/// The client takes items of this call.
pub(crate) const FLAG_TAKES: u8 = 0x04;
/// Flag bits that a receiver ignores when it does not know them.
const IGNORABLE_FLAGS: u8 = 0xf0;
/// Kinds with this bit are ignored by a receiver that does not know them.
pub(crate) const IGNORABLE_KIND: u8 = 0x80;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal $text:literal, flags $flags:expr;)*) => {
        /// What a frame is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $value,)*
        }

        impl Kind {
            /// Every kind of version 1.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name of the kind as the specification writes it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            const fn from_wire(value: u8) -> Option<Self> {
                match value {
                    $($value => Some(Self::$name),)*
                    _ => None,
                }
            }

            const fn known_flags(self) -> u8 {
                match self { $(Self::$name => $flags,)* }
            }
        }
    };
}

kinds! {
    /// Opens the connection, each way.
    Hello = 1 "HELLO", flags 0;
    /// Opens a call.
    Request = 2 "REQUEST", flags FLAG_MORE | FLAG_SENDS | FLAG_TAKES;
    /// Ends a call.
    Response = 3 "RESPONSE", flags FLAG_MORE;
    /// A further part of a body.
    Cont = 4 "CONT", flags FLAG_MORE;
    /// An item of a stream.
    Item = 5 "ITEM", flags FLAG_MORE;
    /// The caller's end of its stream.
    End = 6 "END", flags 0;
    /// Credit for the other side's stream.
    Credit = 7 "CREDIT", flags 0;
    /// The caller gave up.
    Cancel = 8 "CANCEL", flags 0;
    /// Asks for a PONG with the same eight bytes.
    Ping = 9 "PING", flags 0;
    /// Answers a PING.
    Pong = 10 "PONG", flags 0;
    /// No call above the last id will be answered.
    GoAway = 11 "GOAWAY", flags 0;
}

/// A header whose rules have been checked: the frame may be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// `None` for a kind that this version does not know and may ignore.
    pub(crate) kind: Option<Kind>,
    pub(crate) kind_byte: u8,
    pub(crate) flags: u8,
    pub(crate) head_len: usize,
    pub(crate) id: CallId,
    /// Length of the whole frame, with the length field.
    pub(crate) frame_len: usize,
}

impl Header {
    /// Reads the header at the front of `buf`; `None` if more bytes are needed to judge it.
    ///
    /// A rule is judged as soon as its bytes are there, and in the order of the fields, so that any
    /// split of the same bytes finds the same error.
    #[inline]
    pub(crate) fn decode(buf: &[u8], max_frame: u32) -> Result<Option<Self>, DecodeError> {
        let Some(header) = buf.first_chunk::<HEADER_LEN>() else {
            return Self::judge_part(buf, max_frame).map(|()| None);
        };
        let [l0, l1, l2, l3, kind_byte, flags, h0, h1, ref id @ ..] = *header;
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        let kind = Kind::from_wire(kind_byte);
        let head_len = u16::from_be_bytes([h0, h1]);
        check_len(len, max_frame)?;
        check_kind(kind, kind_byte)?;
        check_flags(kind, flags)?;
        check_head_len(head_len, len)?;
        Ok(Some(Self {
            kind,
            kind_byte,
            flags,
            head_len: usize::from(head_len),
            id: CallId::from_wire(u64::from_be_bytes(*id)),
            frame_len: 4 + len as usize,
        }))
    }

    /// Judges what is there of a header that has not arrived in full.
    #[cold]
    fn judge_part(buf: &[u8], max_frame: u32) -> Result<(), DecodeError> {
        let Some(len) = buf.first_chunk::<4>() else { return Ok(()) };
        let len = u32::from_be_bytes(*len);
        check_len(len, max_frame)?;
        let Some(&kind_byte) = buf.get(4) else { return Ok(()) };
        let kind = Kind::from_wire(kind_byte);
        check_kind(kind, kind_byte)?;
        let Some(&flags) = buf.get(5) else { return Ok(()) };
        check_flags(kind, flags)?;
        let Some(&[h0, h1]) = buf.get(6..8) else { return Ok(()) };
        check_head_len(u16::from_be_bytes([h0, h1]), len)
    }

    pub(crate) const fn more(&self) -> bool {
        self.flags & FLAG_MORE != 0
    }
}

fn check_len(len: u32, max: u32) -> Result<(), DecodeError> {
    if len > max {
        return Err(DecodeError::FrameTooLong { len, max });
    }
    if len < COUNTED_LEN { Err(DecodeError::FrameTooShort { len }) } else { Ok(()) }
}

fn check_kind(kind: Option<Kind>, kind_byte: u8) -> Result<(), DecodeError> {
    let known = kind.is_some() || kind_byte & IGNORABLE_KIND != 0;
    if known { Ok(()) } else { Err(DecodeError::UnknownKind { kind: kind_byte }) }
}

fn check_flags(kind: Option<Kind>, flags: u8) -> Result<(), DecodeError> {
    let Some(kind) = kind else { return Ok(()) };
    let unknown = flags & !kind.known_flags() & !IGNORABLE_FLAGS;
    if unknown == 0 { Ok(()) } else { Err(DecodeError::UnknownFlags { kind: kind.name(), flags: unknown }) }
}

fn check_head_len(head_len: u16, len: u32) -> Result<(), DecodeError> {
    if u32::from(head_len) > len - COUNTED_LEN { Err(DecodeError::HeadTooLong { head_len, len }) } else { Ok(()) }
}
