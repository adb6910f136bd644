//! The server of Sluicegate: it accepts connections, passes every call through a pipeline of
//! limits, and runs it in its connection's task.
//!
//! ```text
//! accept -> Connection::run -> decode -> Pipeline inbound -> service
//!   -> Pipeline outbound -> encode -> write -> permits drop
//! ```
//!
//! Users reach it as `sluicegate::server`.
#![forbid(unsafe_code)]

mod batch;
mod body;
mod builder;
mod call;
mod clock;
mod config;
mod connection;
mod error;
mod gauges;
pub mod handlers;
mod in_flight;
mod inbound;
mod method;
mod outbound;
mod pipeline;
mod ready;
mod scratch;
mod server;
mod timer;
mod unary;
mod writer;

pub use builder::ServerBuilder;
pub use call::Call;
pub use error::{BindError, BuildError};
pub use gauges::Snapshot;
pub use method::{MethodInfo, MethodOptions, Service, ServiceMethods};
pub use pipeline::{Answer, CallInfo, Decision, Handler, Interest, Outbound, Pipeline};
pub use server::{BoundServer, CutCall, Drained, Server, ServerHandle, SetRateError};
