//! The client of Sluicegate: a cheap handle on one multiplexed connection, and calls that are
//! futures with options.
//!
//! Users reach it as `sluicegate::client`, and mostly call through what `#[sluicegate::service]` wrote. Underneath, a
//! call names its method and what it takes and gives:
//!
//! ```
//! use std::time::Duration;
//!
//! use rpc_client::{CallError, Client, Method};
//! use rpc_core::{Executed, StatusCode};
//!
//! const GET_BOOK: Method = Method::new("acme.v1.Library", "get_book");
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // Nothing is connected until there is a call to send; here nobody listens.
//! let client = Client::builder("127.0.0.1:1").connect_timeout(Duration::from_secs(1)).build();
//! let call = client.call::<_, Option<String>>(GET_BOOK, ("9780131103627",)).timeout(Duration::from_secs(5));
//! match call.await {
//!     Ok(title) => println!("{title:?}"),
//!     Err(error) => {
//!         // Every error says whether the call may have been executed, and many when to come back.
//!         assert!(matches!(error, CallError::Connect { .. }));
//!         assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Never));
//!         assert!(error.retry_delay().is_some());
//!     }
//! }
//! # }
//! ```
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
#[cfg(feature = "metrics")]
mod metrics;
mod noise;
mod parting;
mod queue;
#[cfg(all(test, shuttle))]
mod schedules;
mod scratch;
#[cfg(feature = "config")]
mod settings;
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
#[cfg(feature = "metrics")]
pub use metrics::MeasureCalls;
#[cfg(feature = "config")]
pub use rpc_codec::settings::SettingsError;
pub use rpc_codec::{Coded, DecodeItem, EncodeItem, Plain};
#[cfg(feature = "config")]
pub use settings::ClientSettings;
pub use sink::ItemSink;
pub use stream::{ItemStream, Reply};
pub use streaming::{BothWays, ClientStream, Exchange, ServerStream};
