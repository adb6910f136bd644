//! The server: how it accepts, reads, bounds, and leaves, whatever its peers do.

#[path = "../support/mod.rs"]
mod support;

mod accepting;
mod backpressure;
mod burst;
mod clock;
mod closing;
mod drain;
mod drain_backlog;
mod drain_crossing;
mod floods;
mod frame_budget;
mod gauges;
mod handler_panics;
mod handlers;
mod health;
mod hesitation;
mod io_faults;
mod keepalive;
mod limits_live;
mod metrics;
mod mutated;
mod noise;
mod parting_faults;
mod protocol;
mod stream_faults;
mod stream_states;
mod timeouts;
#[cfg(unix)]
mod unix;
