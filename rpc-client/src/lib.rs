//! The client of Sluicegate: a cheap handle on one multiplexed connection, and calls that are
//! futures with options.
//!
//! Users reach it as `sluicegate::client`.
#![forbid(unsafe_code)]

mod answers;
mod backoff;
mod builder;
mod builtin;
mod call;
mod client;
mod clock;
mod config;
mod connecting;
mod connection;
mod driver;
mod error;
mod gauges;
mod intercept;
mod items;
mod line;
mod noise;
mod parting;
mod queue;
#[cfg(all(test, shuttle))]
mod schedules;
mod scratch;
mod sink;
mod slots;
mod stream;
#[cfg(all(test, shuttle))]
mod stream_schedules;
mod streaming;
mod sync;
#[cfg(feature = "tower")]
pub mod tower;
mod trace;
#[cfg(unix)]
mod unix;
mod vigil;
mod wait;

pub use builder::ClientBuilder;
pub use builtin::{DescribeClient, HealthClient};
pub use call::{Call, InCodec, Method, Untouched, WireForm};
pub use client::{Client, Response, ServiceClient};
pub use error::{CallError, LostCause};
pub use gauges::ClientSnapshot;
pub use intercept::{Finished, Interceptor, Outcome, Outgoing};
pub use rpc_codec::{Coded, DecodeItem, EncodeItem, Plain};
pub use sink::ItemSink;
pub use stream::{ItemStream, Reply};
pub use streaming::{BothWays, ClientStream, Exchange, ServerStream};
