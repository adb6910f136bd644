//! Sieges over real sockets: a thousand who never read, five thousand who dribble, floods, junk, more calls than
//! there is room for, long streams, and servers that are restarted under load. Whatever peers do costs them, and nobody else.
//!
//! They are small, and measure little, unless `SLUICEGATE_SIEGE=full` asks for the sizes that the
//! figures are about; that takes a quarter of an hour, optimised:
//!
//! ```sh
//! SLUICEGATE_SIEGE=full cargo test --release --test siege -- --nocapture
//! ```
//!
//! Time is real here, and peers are sockets whatever transports the run asks for.
#![cfg(target_os = "linux")]

#[path = "../support/mod.rs"]
mod support;

mod aborts;
mod floods;
mod junk;
mod kit;
mod latency;
mod machine;
mod overload;
mod restarts;
mod slow;
mod streams;

use std::time::Duration;

use rpc_codec::{GoAwayReason, encode_go_away};
use rpc_core::CallId;
use sluicegate::server::ServerBuilder;
use tokio::sync::Mutex;

use crate::kit::serve_if_child;

/// Sieges wait for each other, since they measure.
static TURN: Mutex<()> = Mutex::const_new(());

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Longer than any peer has to wait for anything.
const FOR_EVER: Duration = Duration::from_secs(60);

/// The server itself, when it is started by one of the others.
#[test]
fn a_siege_has_a_server_in_a_process_of_its_own() {
    serve_if_child(configure);
}

/// The settings of each siege's server.
fn configure(siege: &str, builder: ServerBuilder) -> ServerBuilder {
    match siege {
        "aborts" => builder.max_concurrent_calls(LIMIT),
        "stalls" => builder.write_timeout(slow::stall_time()),
        "dribbles" => {
            let time = slow::dribble_time();
            builder.first_byte_timeout(time).handshake_timeout(time).frame_timeout(time)
        }
        "cancels" => builder.max_concurrent_calls(LIMIT).max_concurrent_calls_per_connection(LIMIT / 2),
        "eight" => builder.max_concurrent_calls(8),
        "two hundred" => builder.max_concurrent_calls(200),
        "far above" => builder.max_concurrent_calls(1_000_000).max_concurrent_calls_per_connection(1_000_000),
        "unbounded floods" => builder.control_frame_rate(None),
        _ => builder,
    }
}

const LIMIT: u64 = 64;

fn farewell() -> Vec<u8> {
    let mut out = Vec::new();
    encode_go_away(&mut out, CallId::CONNECTION, GoAwayReason::Drain, "bye");
    out
}
