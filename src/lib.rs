//! Sluicegate.
#![forbid(unsafe_code)]

pub use ::bytes::Bytes;
#[cfg(feature = "client")]
pub use rpc_client::{self as client, CallError, Client};
pub use rpc_codec::{CodecId, PayloadError, payload::bytes};
pub use rpc_core::{
    AnyDetail, CallId, ConnectionId, ConnectionInfo, Context, Deadline, ErrorInfo, Executed, Metadata, MetadataError,
    MethodId, Refusal, RefusalReason, Status, StatusCode, limit,
};
#[cfg(feature = "macros")]
pub use rpc_macros::service;
#[cfg(feature = "server")]
pub use rpc_server::{self as server, Server};
