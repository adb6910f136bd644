//! The client: connections that come and go, servers that misbehave, calls that are given up.

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod broken_writes;
mod calls;
mod cancel;
mod connects;
mod downloads;
mod drains;
mod ends;
mod greeting;
mod hostile;
mod interceptors;
mod keepalive;
mod long_items;
mod longest;
#[cfg(feature = "metrics")]
mod metrics;
mod noise;
mod partings;
mod ready;
mod reconnect;
mod room;
mod runtimes;
mod sinks;
mod stream_deadlines;
mod stream_states;
mod uploads;
mod waits;
mod wakers;
mod withdraws;
