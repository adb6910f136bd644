//! Bytes to frames and back, and values to bodies and back: pure functions of a buffer.
//!
//! `docs/protocol.md` specifies every byte. Nothing here waits, and nothing is reserved for what a
//! peer merely claims.
//!
//! ```
//! use rpc_codec::{Decoded, Frame, FrameDecoder, encode_cancel};
//! use rpc_core::CallId;
//!
//! let mut wire = Vec::new();
//! encode_cancel(&mut wire, CallId::new(1, 0));
//! let decoded = FrameDecoder::new(1 << 18).decode(&wire)?;
//! assert!(matches!(decoded, Decoded::Frame { frame: Frame::Cancel { .. }, len: 16 }));
//! # Ok::<(), rpc_codec::DecodeError>(())
//! ```
#![forbid(unsafe_code)]

pub mod builtin;
mod decoder;
mod details;
mod encoder;
mod error;
mod flow;
mod frame;
mod header;
mod hello;
mod parts;
pub mod payload;
mod queued;
mod refusals;
#[cfg(feature = "config")]
pub mod settings;
mod typed_details;

pub use decoder::{Decoded, FrameDecoder};
pub use encoder::{
    EMPTY_REQUEST_LEN, EMPTY_RESPONSE_LEN, ItemError, OpenMessage, SendBounds, encode_cancel, encode_credit,
    encode_end, encode_go_away, encode_item, encode_ping, encode_pong, encode_refusal, encode_status, mark_kind,
    patch_id,
};
pub use error::{DecodeError, EncodeError, FlowError, HeadError, PartError};
pub use flow::{FrameQueue, Inflow, Intake, Outflow, charge, late_frames};
pub use frame::{CallKind, Frame, GoAway, GoAwayReason, RequestFrame, RequestHead, ResponseFrame};
pub use header::{HEADER_LEN, Kind};
pub use hello::{CodecSet, Hello, MAGIC, MAX_HELLO_LEN, VERSION};
pub use parts::{Assembly, MIN_PART_LEN, PART_LEN, Remainder};
pub use payload::{
    Codec, CodecId, PayloadError,
    items::{Coded, DecodeItem, EncodeItem, Plain},
};
pub use queued::QueuedFrame;
pub use refusals::RefusalEncoder;
pub use typed_details::{Detail, TypedDetails};
