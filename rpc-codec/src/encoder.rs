//! Frames to bytes: each is appended to a buffer in place, its lengths patched in when it ends.

use rpc_core::{CallId, Executed, Metadata, Refusal, Status, StatusCode};

use crate::{
    details::{self, FieldTooLong},
    error::EncodeError,
    frame::{CallKind, GoAwayReason, RequestHead},
    header::{COUNTED_LEN, FLAG_MORE, HEADER_LEN, Kind},
    parts::{PART_LEN, Remainder},
};

/// The length of a REQUEST's header and head without metadata; the shortest frame of a call.
pub const EMPTY_REQUEST_LEN: usize = HEADER_LEN + 29;
/// The length of a RESPONSE's header and head without metadata, message and details.
pub const EMPTY_RESPONSE_LEN: usize = HEADER_LEN + 12;

/// The longest frame and body that the other end takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendBounds {
    /// Bytes of a frame, without its length field.
    pub max_frame: u32,
    /// Bytes of a body.
    pub max_message: u32,
}

/// The beginning of a RESPONSE that succeeded: all but lengths and id is known.
const EMPTY_RESPONSE: [u8; EMPTY_RESPONSE_LEN] = {
    let mut response = [0; EMPTY_RESPONSE_LEN];
    response[KIND_AT] = Kind::Response as u8;
    response[HEAD_LEN_AT + 1] = (EMPTY_RESPONSE_LEN - HEADER_LEN) as u8;
    response[HEADER_LEN] = StatusCode::Ok.to_wire();
    response[HEADER_LEN + 1] = Executed::Finished.to_wire();
    response
};

/// Where a frame begins that is still being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFrame {
    start: usize,
}

impl OpenFrame {
    pub(crate) fn begin(out: &mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_LEN]);
        Self { start }
    }

    /// Ends a frame that is all head.
    pub(crate) fn finish_head(self, out: &mut [u8], kind: Kind, id: CallId) {
        let head_len = out.len() - self.start - HEADER_LEN;
        self.write_header(out, kind, head_len, id);
    }

    fn head_len(self, out: &[u8]) -> usize {
        let at = self.start + HEAD_LEN_AT;
        u16::from_be_bytes([out[at], out[at + 1]]).into()
    }

    fn body_start(self, out: &[u8]) -> usize {
        self.start + HEADER_LEN + self.head_len(out)
    }

    /// Ends a frame that is all body.
    pub(crate) fn finish_part(self, out: &mut [u8], kind: Kind, flags: u8, id: CallId) {
        self.write_header(out, kind, 0, id);
        out[self.start + FLAGS_AT] = flags;
    }

    fn write_header(self, out: &mut [u8], kind: Kind, head_len: usize, id: CallId) {
        let len = (out.len() - self.start - LEN_LEN) as u32;
        let header = &mut out[self.start..self.start + HEADER_LEN];
        header[..LEN_LEN].copy_from_slice(&len.to_be_bytes());
        header[KIND_AT] = kind as u8;
        header[FLAGS_AT] = 0;
        header[HEAD_LEN_AT..8].copy_from_slice(&(head_len as u16).to_be_bytes());
        header[8..].copy_from_slice(&id.to_wire().to_be_bytes());
    }
}

/// A REQUEST or RESPONSE whose body is still being written.
///
/// The body is encoded straight behind the head; [`OpenMessage::finish`] then patches the lengths.
/// Everything but its place stands in the buffer already, so it moves in a register.
#[derive(Debug)]
#[must_use = "a message that is not finished leaves half a frame in the buffer"]
pub struct OpenMessage {
    frame: OpenFrame,
}

impl OpenMessage {
    /// Opens a REQUEST; the body may be appended to `out` now.
    #[inline]
    pub fn request(out: &mut Vec<u8>, head: &RequestHead, metadata: &Metadata) -> Self {
        let frame = OpenFrame { start: out.len() };
        out.extend_from_slice(&[0; HEADER_LEN + 28]);
        // In place: an array filled in pieces and then copied as a whole would wait for the pieces.
        let fixed = &mut out[frame.start + HEADER_LEN..];
        fixed[..8].copy_from_slice(&head.method.to_wire().to_be_bytes());
        fixed[8..16].copy_from_slice(&head.timeout_us.to_be_bytes());
        fixed[16..20].copy_from_slice(&head.sent_at_us.to_be_bytes());
        fixed[24..].copy_from_slice(&[head.codec.to_wire(), head.compression, head.priority, head.attempt]);
        metadata.encode(out);
        Self::behind_head(frame, out, Kind::Request)
    }

    /// Opens a RESPONSE that succeeded, without metadata; the body may be appended to `out` now.
    #[inline]
    pub fn response(out: &mut Vec<u8>) -> Self {
        let frame = OpenFrame { start: out.len() };
        out.extend_from_slice(&EMPTY_RESPONSE);
        Self { frame }
    }

    fn behind_head(frame: OpenFrame, out: &mut [u8], kind: Kind) -> Self {
        let head_len = out.len() - frame.start - HEADER_LEN;
        frame.write_header(out, kind, head_len, CallId::CONNECTION);
        Self { frame }
    }

    /// Where in its buffer the frame begins.
    pub fn start(&self) -> usize {
        self.frame.start
    }

    /// The body as far as it has been written.
    pub fn body<'a>(&self, out: &'a [u8]) -> &'a [u8] {
        &out[self.frame.body_start(out)..]
    }

    /// Puts metadata into a RESPONSE that was opened without any; the body moves up.
    pub fn insert_metadata(&mut self, out: &mut Vec<u8>, metadata: &Metadata) {
        let head_len = self.frame.head_len(out) + metadata.encoded_len() - 1;
        let mut encoded = Vec::with_capacity(metadata.encoded_len());
        metadata.encode(&mut encoded);
        let empty_at = self.frame.start + HEADER_LEN + 8;
        out.splice(empty_at..=empty_at, encoded);
        self.frame.write_header(out, Kind::Response, head_len, CallId::CONNECTION);
    }

    /// Whether the message as it stands may be sent.
    ///
    /// # Errors
    ///
    /// The body would be longer than the receiver takes, or the head than a frame.
    #[inline]
    pub fn check(&self, out: &[u8], bounds: SendBounds) -> Result<(), EncodeError> {
        let (body_len, max) = ((out.len() - self.frame.body_start(out)) as u64, u64::from(bounds.max_message));
        if body_len > max {
            return Err(EncodeError::MessageTooLong { len: body_len, max });
        }
        let (head_len, max) = (self.frame.head_len(out), max_head(bounds.max_frame));
        if head_len > max { Err(EncodeError::HeadTooLong { len: head_len, max }) } else { Ok(()) }
    }

    /// Ends the frame: patches the lengths and the id. Of a body that is longer than a part, the
    /// frame has the first; what is left goes into CONT frames.
    ///
    /// # Errors
    ///
    /// As for [`OpenMessage::check`]; `out` is cut back to where the frame began.
    pub fn finish(self, out: &mut Vec<u8>, id: CallId, bounds: SendBounds) -> Result<Option<Remainder>, EncodeError> {
        if let Err(error) = self.check(out, bounds) {
            self.abandon(out);
            return Err(error);
        }
        let frame = self.frame;
        let body_start = frame.body_start(out);
        let body_len = out.len() - body_start;
        let room = bounds.max_frame as usize - (body_start - frame.start - LEN_LEN);
        let first = PART_LEN.min(room);
        let remainder = (body_len > first).then(|| Remainder::new(out.split_off(body_start + first)));
        let frame_len = (out.len() - frame.start - LEN_LEN) as u32;
        let header = &mut out[frame.start..];
        let body_len_at = HEADER_LEN + if header[KIND_AT] == Kind::Request as u8 { 20 } else { 4 };
        header[..LEN_LEN].copy_from_slice(&frame_len.to_be_bytes());
        header[FLAGS_AT] = if remainder.is_some() { FLAG_MORE } else { 0 };
        header[body_len_at..body_len_at + 4].copy_from_slice(&(body_len as u32).to_be_bytes());
        patch_id(header, id);
        Ok(remainder)
    }

    /// Takes the frame back; `out` is as it was before.
    pub fn abandon(self, out: &mut Vec<u8>) {
        out.truncate(self.frame.start);
    }
}

/// Says in a whole REQUEST which ways the items of its call go.
pub fn mark_kind(request: &mut [u8], kind: CallKind) {
    request[FLAGS_AT] |= kind.flags();
}

/// Sets the id of a whole frame that was encoded before its id was known.
pub fn patch_id(frame: &mut [u8], id: CallId) {
    frame[8..HEADER_LEN].copy_from_slice(&id.to_wire().to_be_bytes());
}

/// Appends the RESPONSE that ends a call with `status`.
///
/// # Errors
///
/// Message, details and metadata do not fit into a head, one of them is longer than its length can
/// say, or the frame would be longer than `max_frame`; `out` is cut back.
pub fn encode_status(out: &mut Vec<u8>, id: CallId, status: &Status, max_frame: u32) -> Result<(), EncodeError> {
    let frame = OpenFrame::begin(out);
    write_response_head(out, status.code(), status.executed());
    status.metadata().encode(out);
    let fields = write_message(out, status.message()).and_then(|()| details::encode(out, status));
    let (len, max) = (out.len() - frame.start - HEADER_LEN, max_head(max_frame));
    let error = match fields {
        Ok(()) if len <= max => {
            frame.finish_head(out, Kind::Response, id);
            return Ok(());
        }
        Ok(()) => EncodeError::HeadTooLong { len, max },
        Err(FieldTooLong { len, max }) => EncodeError::HeadTooLong { len, max },
    };
    out.truncate(frame.start);
    Err(error)
}

/// Appends the RESPONSE that turns a call away. It allocates nothing but room in `out`.
pub fn encode_refusal(out: &mut Vec<u8>, id: CallId, refusal: &Refusal) {
    let frame = OpenFrame::begin(out);
    write_response_head(out, refusal.reason().code(), refusal.reason().executed());
    let message = refusal.reason().message();
    out.push(0);
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
    details::encode_refusal(out, refusal).expect("names of limits are cut");
    frame.finish_head(out, Kind::Response, id);
}

/// Appends an END.
pub fn encode_end(out: &mut Vec<u8>, id: CallId) {
    OpenFrame::begin(out).finish_head(out, Kind::End, id);
}

/// Appends a CREDIT.
pub fn encode_credit(out: &mut Vec<u8>, id: CallId, bytes: u32) {
    let frame = OpenFrame::begin(out);
    out.extend_from_slice(&bytes.to_be_bytes());
    frame.finish_head(out, Kind::Credit, id);
}

/// Appends an item that `encode` writes; a long one as several frames. Says how long it is.
///
/// # Errors
///
/// That of `encode`, or the item is longer than the other end takes. `out` is then as it was. If `encode` panics, what it
/// has written is left, and whoever catches that cuts `out` back.
pub fn encode_item<E>(
    out: &mut Vec<u8>,
    id: CallId,
    bounds: SendBounds,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<usize, ItemError<E>> {
    let frame = OpenFrame::begin(out);
    let body_start = frame.start + HEADER_LEN;
    if let Err(error) = encode(out) {
        out.truncate(frame.start);
        return Err(ItemError::Encode(error));
    }
    let len = out.len() - body_start;
    if len > bounds.max_message as usize {
        out.truncate(frame.start);
        let max = u64::from(bounds.max_message);
        return Err(ItemError::TooLong(EncodeError::MessageTooLong { len: len as u64, max }));
    }
    let longest = (bounds.max_frame.saturating_sub(COUNTED_LEN) as usize).min(PART_LEN);
    if len <= longest {
        frame.finish_part(out, Kind::Item, 0, id);
        return Ok(len);
    }
    let body = out.split_off(body_start);
    // The head is within the frame as well.
    let first = longest - ITEM_HEAD_LEN;
    out.extend_from_slice(&(len as u32).to_be_bytes());
    out.extend_from_slice(&body[..first]);
    frame.write_header(out, Kind::Item, ITEM_HEAD_LEN, id);
    out[frame.start + FLAGS_AT] = FLAG_MORE;
    let mut remainder = Remainder::behind(body, first);
    while !remainder.cut_part(out, id, bounds.max_frame) {}
    Ok(len)
}

/// Why an item cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemError<E> {
    /// It could not be encoded.
    Encode(E),
    /// It is longer than the other end takes.
    TooLong(EncodeError),
}

/// Appends a CANCEL.
pub fn encode_cancel(out: &mut Vec<u8>, id: CallId) {
    OpenFrame::begin(out).finish_head(out, Kind::Cancel, id);
}

/// Appends a PING.
pub fn encode_ping(out: &mut Vec<u8>, opaque: [u8; 8]) {
    encode_opaque(out, Kind::Ping, opaque);
}

/// Appends the PONG that answers a PING of the same bytes.
pub fn encode_pong(out: &mut Vec<u8>, opaque: [u8; 8]) {
    encode_opaque(out, Kind::Pong, opaque);
}

/// Appends a GOAWAY. Of a long `message`, 1,024 bytes at most are sent.
pub fn encode_go_away(out: &mut Vec<u8>, last: CallId, reason: GoAwayReason, message: &str) {
    let message = &message[..message.floor_char_boundary(1024)];
    let frame = OpenFrame::begin(out);
    out.extend_from_slice(&last.to_wire().to_be_bytes());
    out.extend_from_slice(&reason.to_wire().to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
    frame.finish_head(out, Kind::GoAway, CallId::CONNECTION);
}

fn encode_opaque(out: &mut Vec<u8>, kind: Kind, opaque: [u8; 8]) {
    let frame = OpenFrame::begin(out);
    out.extend_from_slice(&opaque);
    frame.finish_head(out, kind, CallId::CONNECTION);
}

/// The longest head of a frame of `max_frame` bytes.
fn max_head(max_frame: u32) -> usize {
    max_frame.saturating_sub(COUNTED_LEN).min(u16::MAX.into()) as usize
}

fn write_message(out: &mut Vec<u8>, message: &str) -> Result<(), FieldTooLong> {
    let len = FieldTooLong::check::<u16>(message.len(), u16::MAX.into())?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(message.as_bytes());
    Ok(())
}

fn write_response_head(out: &mut Vec<u8>, code: StatusCode, executed: Executed) {
    out.extend_from_slice(&[code.to_wire(), executed.to_wire(), 0, 0, 0, 0, 0, 0]);
}

/// The length of a frame's length field, which does not count itself.
const LEN_LEN: usize = 4;
const KIND_AT: usize = 4;
const FLAGS_AT: usize = 5;
/// The head of an item in parts: its length.
const ITEM_HEAD_LEN: usize = 4;
const HEAD_LEN_AT: usize = 6;
