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
    Request = 2 "REQUEST", flags FLAG_MORE;
    /// Ends a call.
    Response = 3 "RESPONSE", flags FLAG_MORE;
    /// A further part of a body.
    Cont = 4 "CONT", flags FLAG_MORE;
    /// An item of a stream.
    Item = 5 "ITEM", flags 0;
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
    pub(crate) fn decode(buf: &[u8], max_frame: u32) -> Result<Option<Self>, DecodeError> {
        let Some(len) = buf.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_be_bytes(*len);
        if len > max_frame {
            return Err(DecodeError::FrameTooLong { len, max: max_frame });
        }
        if len < COUNTED_LEN {
            return Err(DecodeError::FrameTooShort { len });
        }
        let Some(&kind_byte) = buf.get(4) else { return Ok(None) };
        let kind = Kind::from_wire(kind_byte);
        if kind.is_none() && kind_byte & IGNORABLE_KIND == 0 {
            return Err(DecodeError::UnknownKind { kind: kind_byte });
        }
        let Some(&flags) = buf.get(5) else { return Ok(None) };
        if let Some(kind) = kind {
            let unknown = flags & !kind.known_flags() & !IGNORABLE_FLAGS;
            if unknown != 0 {
                return Err(DecodeError::UnknownFlags { kind: kind.name(), flags: unknown });
            }
        }
        let Some(head_len) = buf.get(6..8) else { return Ok(None) };
        let head_len = u16::from_be_bytes([head_len[0], head_len[1]]);
        if u32::from(head_len) > len - COUNTED_LEN {
            return Err(DecodeError::HeadTooLong { head_len, len });
        }
        let Some(id) = buf.get(8..HEADER_LEN) else { return Ok(None) };
        let id = u64::from_be_bytes(id.try_into().expect("a range of eight"));
        Ok(Some(Self {
            kind,
            kind_byte,
            flags,
            head_len: usize::from(head_len),
            id: CallId::from_wire(id),
            frame_len: 4 + len as usize,
        }))
    }

    pub(crate) const fn more(&self) -> bool {
        self.flags & FLAG_MORE != 0
    }
}
