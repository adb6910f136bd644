//! An RPC framework that protects its server from overload out of the box: a call holds its permit
//! until its response has been written, a refusal explains itself and is safe to retry, and to
//! refuse costs no more than to serve.
//!
//! ```
//! use std::time::Duration;
//!
//! use sluicegate::{Client, Server, Status};
//!
//! /// Says hello.
//! #[sluicegate::service]
//! pub trait Greeter {
//!     /// Greets somebody.
//!     async fn greet(&self, name: String) -> Result<String, Status>;
//! }
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn greet(&self, name: String) -> Result<String, Status> {
//!         if name.is_empty() {
//!             return Err(Status::invalid_argument("whom?"));
//!         }
//!         Ok(format!("Good day, {name}."))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder()
//!     .service(GreeterServer::new(Polite))
//!     .max_concurrent_calls(64)
//!     .build()?
//!     .bind("127.0.0.1:0")
//!     .await?;
//! let (address, handle) = (server.local_addr(), server.handle());
//! let serving = tokio::spawn(server.serve());
//!
//! let greeter: GreeterClient = Client::new(address).service();
//! let greeting = greeter.greet("Ada".to_owned()).timeout(Duration::from_secs(1)).await?;
//! assert_eq!(greeting, "Good day, Ada.");
//!
//! let error = greeter.greet(String::new()).await.unwrap_err();
//! assert_eq!(error.to_string(), "invalid argument: whom?");
//!
//! drop(greeter);
//! handle.shutdown();
//! serving.await?;
//! assert_eq!(handle.snapshot().calls.held, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Streams
//!
//! A parameter [`Streaming`], a returned [`Stream`] or a parameter [`ItemSender`] makes a call have items: from
//! the client, from the server, or both ways. It is one call for every limit, and paced by credit in bytes.
//!
//! ```
//! use sluicegate::{Client, ItemSender, Server, Status};
//!
//! #[sluicegate::service]
//! trait Counter {
//!     /// Counts up to `to`.
//!     async fn count(&self, to: u32, numbers: ItemSender<u32>) -> Result<(), Status>;
//! }
//!
//! struct Patient;
//!
//! impl Counter for Patient {
//!     async fn count(&self, to: u32, mut numbers: ItemSender<u32>) -> Result<(), Status> {
//!         for number in 1..=to {
//!             // Waits while the client takes none.
//!             numbers.send(number).await?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().service(CounterServer::new(Patient)).build()?.bind("127.0.0.1:0").await?;
//! let address = server.local_addr();
//! tokio::spawn(server.serve());
//!
//! let counter: CounterClient = Client::new(address).service();
//! let (mut numbers, mut sum) = (counter.count(1_000_000), 0);
//! while let Some(number) = numbers.message().await? {
//!     sum += number;
//!     if number == 100 {
//!         // Dropping the stream stops its producer.
//!         break;
//!     }
//! }
//! assert_eq!(sum, 5_050);
//! # Ok(())
//! # }
//! ```
//!
//! The guide, a module of these docs where all features are on (`cargo doc --all-features --open`), goes on from here: define, serve, call,
//! stream, limit, observe, test, deploy, evolve.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `server`, `client`, `macros` | both ends and the macros; on by default |
//! | `json`, `messagepack`, `postcard` | codecs beside bincode |
//! | `config` | settings of servers and clients from TOML, or from whatever else serde reads |
//! | `metrics` | the figures of servers and clients for the `metrics` facade |
//! | `testing` | the module `testing`: a server and its clients in memory |
//! | `tower` | layers of tower around services and around clients |
#![forbid(unsafe_code)]

pub use ::bytes::Bytes;
#[cfg(feature = "client")]
pub use rpc_client::{self as client, CallError, Client};
pub use rpc_codec::builtin::{Description, Health, MethodDescription, ServiceDescription};
pub use rpc_codec::{CodecId, Detail, PayloadError, TypedDetails, payload::bytes};
pub use rpc_core::{
    AnyDetail, CallId, ConnectionId, ConnectionInfo, Context, Deadline, DomainError, ErrorInfo, Executed, Extensions,
    ItemSender, Metadata, MetadataError, MethodId, OrStatus, Refusal, RefusalReason, Refused, Status, StatusCode,
    Stream, Streaming, TraceParent, TraceParentError, limit,
};
#[cfg(feature = "macros")]
pub use rpc_macros::{DomainError, service};
#[cfg(feature = "server")]
pub use rpc_server::{self as server, Server};

#[cfg(all(doc, feature = "macros", feature = "client", feature = "testing"))]
pub mod guide;
#[cfg(feature = "testing")]
pub mod testing;

/// For what macros write.
#[doc(hidden)]
pub mod __private {
    pub use rpc_core::note;
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../docs/limits.md")]
mod limits_page {}

#[cfg(doctest)]
#[doc = include_str!("../docs/evolving.md")]
mod evolving {}

#[cfg(doctest)]
#[doc = include_str!("../docs/errors.md")]
mod errors {}

#[cfg(doctest)]
#[doc = include_str!("../docs/migrating.md")]
mod migrating {}
