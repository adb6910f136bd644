//! Errors of frames. What they cost is in their name: a [`DecodeError`] ends the connection, an
//! [`EncodeError`] the call.

use rpc_core::MetadataError;

/// The peer broke the framing; the connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The first bytes are another protocol's.
    #[error("the peer speaks {protocol} on a port for Sluicegate")]
    ForeignProtocol {
        /// Which.
        protocol: &'static str,
    },
    /// The first frame is not a HELLO with the magic bytes.
    #[error("the connection does not begin with a HELLO of Sluicegate")]
    NotSluicegate,
    /// A frame claims more bytes than allowed.
    #[error("frame of {len} bytes exceeds the limit of {max}")]
    FrameTooLong {
        /// Bytes claimed, without the length field.
        len: u32,
        /// Bytes allowed.
        max: u32,
    },
    /// A frame claims fewer bytes than its header has.
    #[error("frame of {len} bytes is shorter than its header")]
    FrameTooShort {
        /// Bytes claimed, without the length field.
        len: u32,
    },
    /// The head claims more bytes than the frame has.
    #[error("head of {head_len} bytes exceeds its frame of {len}")]
    HeadTooLong {
        /// Bytes claimed for the head.
        head_len: u16,
        /// Bytes of the frame, without the length field.
        len: u32,
    },
    /// The kind is unknown and not marked as ignorable.
    #[error("unknown frame kind {kind:#04x}")]
    UnknownKind {
        /// The kind.
        kind: u8,
    },
    /// Flag bits are unknown and not marked as ignorable.
    #[error("unknown flags {flags:#04x} on a {kind} frame")]
    UnknownFlags {
        /// The frame's kind.
        kind: &'static str,
        /// The unknown bits.
        flags: u8,
    },
    /// The frame's head or body is not what its kind asks for.
    #[error("malformed {kind} frame: {why}")]
    Malformed {
        /// The frame's kind.
        kind: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// The two ends have no version in common.
    #[error("the peer speaks versions {min} to {max}, this end version {ours}", ours = crate::VERSION)]
    NoCommonVersion {
        /// The peer's lowest version.
        min: u8,
        /// The peer's highest version.
        max: u8,
    },
}

/// A frame cannot be sent; nothing was written, and the next call is fine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The body is longer than the receiver takes.
    #[error("message of {len} bytes exceeds the limit of {max}")]
    MessageTooLong {
        /// The length of the body in bytes.
        len: u64,
        /// What may be sent.
        max: u64,
    },
    /// Metadata, message and details do not fit into a head.
    #[error("metadata, message and details take {len} bytes, more than {max}")]
    HeadTooLong {
        /// The length of the head in bytes.
        len: usize,
        /// What a head may have.
        max: usize,
    },
}

/// The head of one request or response is not well formed. It costs that call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// The head ends before its last field.
    #[error("the head is cut short")]
    Truncated,
    /// The body is not as long as the head says.
    #[error("the head says a body of {claimed} bytes, the frame has {actual}")]
    BodyLen {
        /// What the head says.
        claimed: u32,
        /// What is there.
        actual: usize,
    },
    /// The parts of the body do not add up.
    #[error(transparent)]
    Parts(#[from] PartError),
    /// The body is compressed, which was not asked for.
    #[error("the body is compressed by {0}, which this end does not take")]
    Compression(u8),
    /// The metadata breaks a rule.
    #[error("bad metadata")]
    Metadata(#[from] MetadataError),
    /// Text is not UTF-8.
    #[error("the status message is not UTF-8")]
    Text,
}

/// The parts of a body do not add up to the length that its head said. It costs that call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the head says a body of {claimed} bytes, the parts have {actual}{}", if *more { " and go on" } else { "" })]
#[non_exhaustive]
pub struct PartError {
    /// What the head says.
    pub claimed: usize,
    /// What the parts have.
    pub actual: usize,
    /// Whether more were to follow.
    pub more: bool,
}

/// The other end broke a rule of streams. The connection cannot go on: what it believes about the stream
/// is not what we do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// A frame for a direction in which the call has no items.
    #[error("the call is {kind}")]
    WrongWay {
        /// What the call is.
        kind: &'static str,
    },
    /// An item that was not paid for.
    #[error("the credit of the stream is used up")]
    BeyondCredit,
    /// An item is longer than a message may be.
    #[error("an item of {len} bytes exceeds the limit of {max}")]
    ItemTooLong {
        /// The length of the item in bytes.
        len: u32,
        /// What is taken.
        max: u32,
    },
    /// The parts of an item do not add up.
    #[error(transparent)]
    Parts(#[from] PartError),
    /// An item or END in the middle of an item.
    #[error("an item is not complete")]
    WithinItem,
    /// A part without an item.
    #[error("no item is to go on")]
    WithoutItem,
    /// An item or END behind an END.
    #[error("the stream has ended")]
    AfterEnd,
    /// More credit than can be kept.
    #[error("the credit of the stream exceeds 2^32 - 1")]
    CreditOverflow,
}
