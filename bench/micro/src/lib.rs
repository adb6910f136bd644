//! A server at work without sockets, threads or time, for benchmarks that want nothing else measured.
//!
//! The server is the real one; the peer is a script that sends the same frames again and again, so
//! that next to all that is spent is spent by the server.

#![forbid(unsafe_code)]

mod in_process;
mod message;

pub use in_process::{BATCH, Calls, InProcess};
pub use message::Message;
