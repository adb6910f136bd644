//! Bytes to frames: a pure function of a buffer.

use crate::{
    error::DecodeError,
    frame::{Frame, GoAway, GoAwayReason, RequestFrame, ResponseFrame},
    header::{HEADER_LEN, Header, Kind},
    parts::MIN_PART_LEN,
};

/// Reads frames from the front of a buffer.
///
/// It holds no bytes and no state, so the same bytes give the same frames however they were split
/// on their way, and no memory is reserved for what a peer claims.
///
/// ```
/// use rpc_codec::{Decoded, Frame, FrameDecoder, encode_ping};
///
/// let mut wire = Vec::new();
/// encode_ping(&mut wire, [7; 8]);
/// let decoder = FrameDecoder::new(1 << 18);
/// assert!(matches!(decoder.decode(&wire[..10]), Ok(Decoded::Incomplete { .. })));
/// let Ok(Decoded::Frame { frame, len }) = decoder.decode(&wire) else { panic!() };
/// assert_eq!((frame, len), (Frame::Ping([7; 8]), wire.len()));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FrameDecoder {
    max_frame: u32,
}

/// What stands at the front of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A frame, and how many bytes it took.
    Frame {
        /// The frame.
        frame: Frame<'a>,
        /// Its length in the buffer.
        len: usize,
    },
    /// The beginning of a frame.
    Incomplete {
        /// The length the frame will have, once its header is known.
        frame_len: Option<usize>,
    },
}

impl FrameDecoder {
    /// A decoder that takes frames of up to `max_frame` bytes, without the length field.
    pub const fn new(max_frame: u32) -> Self {
        Self { max_frame }
    }

    /// The length that the frame at the front of `buf` has or will have, with its length field; `None` while
    /// its header is not there, or breaks a rule.
    pub fn frame_len(&self, buf: &[u8]) -> Option<usize> {
        Header::decode(buf, self.max_frame).ok().flatten().map(|header| header.frame_len)
    }

    /// Reads the frame at the front of `buf`.
    ///
    /// # Errors
    ///
    /// The peer broke the framing. The connection cannot go on, since where the next frame begins
    /// is not to be trusted.
    #[inline(always)]
    pub fn decode<'a>(&self, buf: &'a [u8]) -> Result<Decoded<'a>, DecodeError> {
        let Some(header) = Header::decode(buf, self.max_frame)? else {
            return Ok(Decoded::Incomplete { frame_len: None });
        };
        let len = header.frame_len;
        let Some(frame) = buf.get(HEADER_LEN..len) else {
            return Ok(Decoded::Incomplete { frame_len: Some(len) });
        };
        let (head, body) = frame.split_at(header.head_len);
        let frame = decode_kind(&header, head, body)?;
        Ok(Decoded::Frame { frame, len })
    }
}

#[inline(always)]
fn decode_kind<'a>(header: &Header, head: &'a [u8], body: &'a [u8]) -> Result<Frame<'a>, DecodeError> {
    let id = header.id;
    let Some(kind) = header.kind else { return Ok(Frame::Ignored { kind: header.kind_byte }) };
    Ok(match kind {
        Kind::Request => match RequestFrame::decode(id, header.flags, head, body) {
            Ok(request) => Frame::Request(request),
            Err(error) => Frame::Malformed { id, error },
        },
        Kind::Response => match ResponseFrame::decode(id, header.more(), head, body) {
            Ok(response) => Frame::Response(response),
            Err(error) => Frame::Malformed { id, error },
        },
        Kind::Cont => {
            // A head is a later version's, and its unknown tail ignored as any other's.
            if header.more() && body.len() < MIN_PART_LEN {
                return Err(DecodeError::Malformed {
                    kind: kind.name(),
                    why: "a part that is not the last is too short",
                });
            }
            Frame::Cont { id, more: header.more(), part: body }
        }
        Kind::Cancel => Frame::Cancel { id },
        Kind::Ping => Frame::Ping(opaque(kind, head)?),
        Kind::Pong => Frame::Pong(opaque(kind, head)?),
        Kind::GoAway => Frame::GoAway(decode_go_away(head)?),
        Kind::Hello => return Err(DecodeError::Malformed { kind: kind.name(), why: "it must be the first frame" }),
        Kind::Item => decode_item(header, head, body)?,
        Kind::End => Frame::End { id },
        Kind::Credit => Frame::Credit { id, bytes: decode_credit(head)? },
    })
}

fn opaque(kind: Kind, head: &[u8]) -> Result<[u8; 8], DecodeError> {
    let bytes = head.first_chunk::<8>();
    bytes.copied().ok_or(DecodeError::Malformed { kind: kind.name(), why: "it must carry eight bytes" })
}

fn decode_item<'a>(header: &Header, head: &[u8], part: &'a [u8]) -> Result<Frame<'a>, DecodeError> {
    let (id, more) = (header.id, header.more());
    if !more {
        // No item comes near the 4 GiB that a frame might have.
        return Ok(Frame::Item { id, more, len: part.len() as u32, part });
    }
    let malformed = |why| DecodeError::Malformed { kind: Kind::Item.name(), why };
    let len = head.first_chunk::<4>().ok_or(malformed("an item in parts must say its length"))?;
    let len = u32::from_be_bytes(*len);
    if part.len() as u64 >= u64::from(len) {
        return Err(malformed("the first part is as long as the item"));
    }
    Ok(Frame::Item { id, more, len, part })
}

fn decode_credit(head: &[u8]) -> Result<u32, DecodeError> {
    let malformed = |why| DecodeError::Malformed { kind: Kind::Credit.name(), why };
    let bytes = head.first_chunk::<4>().ok_or(malformed("it must say how many bytes"))?;
    match u32::from_be_bytes(*bytes) {
        0 => Err(malformed("it gives nothing")),
        bytes => Ok(bytes),
    }
}

fn decode_go_away(head: &[u8]) -> Result<GoAway<'_>, DecodeError> {
    let malformed = |why| DecodeError::Malformed { kind: Kind::GoAway.name(), why };
    let (last, rest) = head.split_first_chunk::<8>().ok_or(malformed("the head is cut short"))?;
    let (reason, rest) = rest.split_first_chunk::<2>().ok_or(malformed("the head is cut short"))?;
    let (len, rest) = rest.split_first_chunk::<2>().ok_or(malformed("the head is cut short"))?;
    let message = rest.get(..usize::from(u16::from_be_bytes(*len))).ok_or(malformed("the message is cut short"))?;
    Ok(GoAway {
        last: rpc_core::CallId::from_wire(u64::from_be_bytes(*last)),
        reason: GoAwayReason::from_wire(u16::from_be_bytes(*reason)),
        message: std::str::from_utf8(message).map_err(|_| malformed("the message is not UTF-8"))?,
    })
}
