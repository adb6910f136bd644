//! What can be wrong with a server before it serves.

use std::io;

use rpc_codec::CodecId;
use rpc_core::limit::{ConcurrencyError, RateError};

/// A server cannot be built as it was configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two methods have one id, most likely one name.
    #[error("the methods {first} and {second} have the same id")]
    MethodCollision {
        /// The path of one.
        first: String,
        /// The path of the other.
        second: String,
    },
    /// A rate limit that no bucket can have.
    #[error("the rate limit {limit} cannot be")]
    Rate {
        /// Which limit.
        limit: &'static str,
        /// What is wrong with it.
        source: RateError,
    },
    /// A limit of calls in flight that no limit can have.
    #[error("the limit {limit} cannot be")]
    Concurrency {
        /// Which limit.
        limit: &'static str,
        /// What is wrong with it.
        source: ConcurrencyError,
    },
    /// Two settings do not go together.
    #[error("{setting} ({value}) must not exceed {other} ({other_value})")]
    Relation {
        /// The greater one.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// The one that bounds it.
        other: &'static str,
        /// Its value.
        other_value: u64,
    },
    /// A setting speaks of what the server does not have.
    #[error("there is no {what} named {name}")]
    Unknown {
        /// What it should be: a service, a method or a pool.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A limit is set for what no limit counts.
    #[error("no limit counts calls of {name}, so it cannot have one")]
    Exempt {
        /// The name of the service, or the path of the method.
        name: String,
    },
    /// Two limits would have one name.
    #[error("a limit named {name} is there already")]
    NameTaken {
        /// The name.
        name: &'static str,
    },
    /// A method that blocks was put within a layer, which can only be around a future.
    #[cfg(feature = "tower")]
    #[error("the method {method} blocks, so it cannot be within a layer; write it as `async fn`, or use a handler")]
    LayeredBlocking {
        /// The path of the method.
        method: String,
    },
    /// A codec that clients were to be offered is not in this build.
    #[error("this build has no {codec}: the codecs but bincode are features of the crate sluicegate")]
    UnsupportedCodec {
        /// Which.
        codec: CodecId,
    },
    /// A setting must not be zero.
    #[error("{setting} must not be zero")]
    Zero {
        /// Which.
        setting: &'static str,
    },
}

/// A server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    /// What was asked for.
    pub address: String,
    /// Why not.
    pub source: io::Error,
}
