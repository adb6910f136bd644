//! What the tests of the whole system share: a service with every way to behave, a server on pipes
//! in memory, a peer that speaks raw frames, and the check that nothing is left.
#![allow(dead_code, unused_imports, reason = "every test uses a part of it")]

pub(crate) mod bodies;
pub(crate) mod feed;
pub(crate) mod handlers;
pub(crate) mod harness;
pub(crate) mod parts;
pub(crate) mod probe;
pub(crate) mod raw;
#[cfg(feature = "metrics")]
pub(crate) mod recorder;
pub(crate) mod scripted;
pub(crate) mod shims;
pub(crate) mod sockets;
pub(crate) mod states;
pub(crate) mod traces;

pub(crate) use harness::{Harness, assert_idle, assert_idle_soon, no_call_runs, within};
pub(crate) use probe::{Probe, method};
pub(crate) use raw::{Got, RawClient, RawServer, Req};
pub(crate) use sluicegate::testing::assert_client_idle as until_client_idle;
