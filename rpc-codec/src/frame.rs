//! Frames as a receiver sees them: one variant for each kind, borrowed from the buffer.

use rpc_core::{CallId, Executed, Metadata, MethodId, Status, StatusCode};

use crate::{
    CodecId,
    details::{self, Details},
    error::HeadError,
    header::{FLAG_MORE, FLAG_SENDS, FLAG_TAKES},
};

/// One frame, borrowed from the buffer it was read into.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame<'a> {
    /// Opens a call.
    Request(RequestFrame<'a>),
    /// Ends a call.
    Response(ResponseFrame<'a>),
    /// A further part of a body.
    Cont {
        /// The call.
        id: CallId,
        /// Whether still more parts follow.
        more: bool,
        /// The part.
        part: &'a [u8],
    },
    /// An item of a stream, or its first part.
    Item {
        /// The call.
        id: CallId,
        /// Whether the item goes on in CONT frames.
        more: bool,
        /// Length of the whole item in bytes.
        len: u32,
        /// The item, or its first part.
        part: &'a [u8],
    },
    /// The end of the client's stream.
    End {
        /// The call.
        id: CallId,
    },
    /// Credit for the other end's stream.
    Credit {
        /// The call.
        id: CallId,
        /// How many bytes more; at least one.
        bytes: u32,
    },
    /// The caller gave up.
    Cancel {
        /// The call.
        id: CallId,
    },
    /// Asks for a PONG with the same bytes.
    Ping([u8; 8]),
    /// Answers a PING.
    Pong([u8; 8]),
    /// No call above `last` will be answered.
    GoAway(GoAway<'a>),
    /// A REQUEST or RESPONSE whose head is not well formed. It costs that call only.
    Malformed {
        /// The call.
        id: CallId,
        /// What is wrong.
        error: HeadError,
    },
    /// A kind that this version does not know and may ignore.
    Ignored {
        /// The kind.
        kind: u8,
    },
}

/// A call's opening: its fixed fields read, its metadata and body not yet.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestFrame<'a> {
    /// The call.
    pub id: CallId,
    /// Whether the body goes on in CONT frames.
    pub more: bool,
    /// Which ways items go.
    pub kind: CallKind,
    /// The fixed fields of the head.
    pub head: RequestHead,
    /// Length of the whole body in bytes.
    pub body_len: u32,
    /// The metadata as it stands on the wire.
    metadata: &'a [u8],
    /// The body, or its first part.
    pub body: &'a [u8],
}

impl<'a> RequestFrame<'a> {
    #[inline(always)]
    pub(crate) fn decode(id: CallId, flags: u8, head: &'a [u8], body: &'a [u8]) -> Result<Self, HeadError> {
        let more = flags & FLAG_MORE != 0;
        let (fixed, metadata) = head.split_first_chunk::<28>().ok_or(HeadError::Truncated)?;
        if metadata.is_empty() {
            return Err(HeadError::Truncated);
        }
        let body_len = u32_at(fixed, 20);
        check_body_len(body_len, more, body)?;
        let head = RequestHead {
            method: MethodId::from_wire(u64_at(fixed, 0)),
            timeout_us: u64_at(fixed, 8),
            sent_at_us: u32_at(fixed, 16),
            codec: CodecId::from_wire(fixed[24]),
            compression: fixed[25],
            priority: fixed[26],
            attempt: fixed[27],
        };
        Ok(Self { id, more, kind: CallKind::of_flags(flags), head, body_len, metadata, body })
    }

    /// Reads the metadata. A request without any allocates nothing.
    ///
    /// # Errors
    ///
    /// The metadata breaks a rule; that costs this call only.
    #[inline]
    pub fn metadata(&self) -> Result<Metadata, HeadError> {
        decode_metadata(self.metadata)
    }
}

/// Which ways the items of a call go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// There are none: one request, one response.
    #[default]
    Unary,
    /// From the client to the server.
    ClientStream,
    /// From the server to the client.
    ServerStream,
    /// Both ways.
    BothWays,
}

impl CallKind {
    /// Whether the client sends items.
    pub const fn client_sends(self) -> bool {
        matches!(self, Self::ClientStream | Self::BothWays)
    }

    /// Whether the server sends items.
    pub const fn server_sends(self) -> bool {
        matches!(self, Self::ServerStream | Self::BothWays)
    }

    /// The kind in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ClientStream => "a client stream",
            Self::ServerStream => "a server stream",
            Self::BothWays => "a stream both ways",
        }
    }

    /// Other flags of a REQUEST do not matter here.
    const fn of_flags(flags: u8) -> Self {
        match (flags & FLAG_SENDS != 0, flags & FLAG_TAKES != 0) {
            (false, false) => Self::Unary,
            (true, false) => Self::ClientStream,
            (false, true) => Self::ServerStream,
            (true, true) => Self::BothWays,
        }
    }

    pub(crate) const fn flags(self) -> u8 {
        let sends = if self.client_sends() { FLAG_SENDS } else { 0 };
        let takes = if self.server_sends() { FLAG_TAKES } else { 0 };
        sends | takes
    }
}

/// The fixed fields of a REQUEST's head, without the length of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The method.
    pub method: MethodId,
    /// The time left in microseconds, 0 for none.
    pub timeout_us: u64,
    /// The caller's monotonic clock in microseconds, cut to 32 bits.
    pub sent_at_us: u32,
    /// What the body is encoded with.
    pub codec: CodecId,
    /// What the body is compressed with; 0 is nothing.
    pub compression: u8,
    /// The class of the call; 0 is the normal one.
    pub priority: u8,
    /// How often this call was tried before.
    pub attempt: u8,
}

/// A call's end.
#[derive(Debug, PartialEq, Eq)]
pub struct ResponseFrame<'a> {
    /// The call.
    pub id: CallId,
    /// Whether the body goes on in CONT frames.
    pub more: bool,
    /// The outcome.
    pub code: StatusCode,
    /// Whether the service ran.
    pub executed: Executed,
    /// What the body is compressed with; 0 is nothing.
    pub compression: u8,
    /// Length of the whole body in bytes.
    pub body_len: u32,
    /// Metadata, message and details as they stand on the wire.
    rest: &'a [u8],
    /// The body, or its first part.
    pub body: &'a [u8],
}

impl<'a> ResponseFrame<'a> {
    #[inline]
    pub(crate) fn decode(id: CallId, more: bool, head: &'a [u8], body: &'a [u8]) -> Result<Self, HeadError> {
        let (fixed, rest) = head.split_first_chunk::<8>().ok_or(HeadError::Truncated)?;
        if rest.len() < 4 {
            return Err(HeadError::Truncated);
        }
        let body_len = u32_at(fixed, 4);
        check_body_len(body_len, more, body)?;
        Ok(Self {
            id,
            more,
            code: StatusCode::from_wire(fixed[0]),
            executed: Executed::from_wire(fixed[1]),
            compression: fixed[2],
            body_len,
            rest,
            body,
        })
    }

    /// Reads the metadata that travels beside the answer.
    ///
    /// # Errors
    ///
    /// The metadata breaks a rule; that costs this call only.
    #[inline]
    pub fn metadata(&self) -> Result<Metadata, HeadError> {
        decode_metadata(self.rest)
    }

    /// Reads the whole status, with message, details and metadata.
    ///
    /// # Errors
    ///
    /// A part of it is not well formed; that costs this call only.
    pub fn status(&self) -> Result<Status, HeadError> {
        let (metadata, metadata_len) = Metadata::decode(self.rest)?;
        let rest = &self.rest[metadata_len..];
        let (message_len, rest) = rest.split_first_chunk::<2>().ok_or(HeadError::Truncated)?;
        let message_len = usize::from(u16::from_be_bytes(*message_len));
        let (message, rest) = rest.split_at_checked(message_len).ok_or(HeadError::Truncated)?;
        let message = std::str::from_utf8(message).map_err(|_| HeadError::Text)?.to_owned();
        let Details { error_info, retry_delay, other } = details::decode(rest)?;
        let mut status = Status::new(self.code, message).with_executed(self.executed);
        if let Some(info) = error_info {
            status = status.with_error_info(info);
        }
        if let Some(delay) = retry_delay {
            status = status.with_retry_delay(delay);
        }
        for detail in other {
            status = status.with_detail(detail.type_url, detail.value);
        }
        if !metadata.is_empty() {
            status = status.with_metadata(metadata);
        }
        Ok(status)
    }
}

/// The other end accepts no call above `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoAway<'a> {
    /// The last call that was accepted; those above it get no answer and were never executed.
    pub last: CallId,
    /// Why.
    pub reason: GoAwayReason,
    /// The reason in words.
    pub message: &'a str,
}

/// Why an end of a connection accepts no more calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GoAwayReason {
    /// It is being shut down or replaced; what was accepted will be finished.
    Drain,
    /// The other end broke the protocol.
    ProtocolError,
    /// The other end did not say HELLO in time.
    HandshakeTimeout,
    /// There are as many connections as allowed.
    TooManyConnections,
    /// The connection was idle or silent for too long.
    Timeout,
    /// The other end sent too many frames that open no call.
    TooManyFrames,
    /// A reason of a later version.
    Other(u16),
}

impl GoAwayReason {
    /// As it stands on the wire.
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Drain => 0,
            Self::ProtocolError => 1,
            Self::HandshakeTimeout => 2,
            Self::TooManyConnections => 3,
            Self::Timeout => 4,
            Self::TooManyFrames => 5,
            Self::Other(reason) => reason,
        }
    }

    /// As it stands on the wire.
    pub const fn from_wire(reason: u16) -> Self {
        match reason {
            0 => Self::Drain,
            1 => Self::ProtocolError,
            2 => Self::HandshakeTimeout,
            3 => Self::TooManyConnections,
            4 => Self::Timeout,
            5 => Self::TooManyFrames,
            reason => Self::Other(reason),
        }
    }
}

#[inline]
fn decode_metadata(encoded: &[u8]) -> Result<Metadata, HeadError> {
    // Nearly always there is none, and this is then decided without a call.
    if encoded.first() == Some(&0) { Ok(Metadata::new()) } else { Ok(Metadata::decode(encoded)?.0) }
}

fn check_body_len(claimed: u32, more: bool, body: &[u8]) -> Result<(), HeadError> {
    let fits = if more { (body.len() as u64) < u64::from(claimed) } else { body.len() as u64 == u64::from(claimed) };
    if fits { Ok(()) } else { Err(HeadError::BodyLen { claimed, actual: body.len() }) }
}

fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("a range of eight"))
}

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("a range of four"))
}
