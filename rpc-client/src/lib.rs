//! The client of Sluicegate: a cheap handle on one multiplexed connection, and calls that are
//! futures with options.
//!
//! Users reach it as `sluicegate::client`.
#![forbid(unsafe_code)]

mod backoff;
mod call;
mod client;
mod clock;
mod config;
mod connection;
mod driver;
mod error;
mod scratch;
mod slots;

pub use call::{Call, InCodec, Method, Untouched, WireForm};
pub use client::{Client, ClientBuilder, ClientSnapshot, Response, ServiceClient};
pub use error::{CallError, LostCause};
