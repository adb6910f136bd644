//! What every program under overload shares: the work that a call is, the calls that are offered, and
//! the generator that offers them whatever becomes of them.

mod books;
mod generator;
mod pacer;
mod plan;
mod tally;
mod work;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Running;

pub use books::{Books, Busy};
pub use generator::{BREATH, Caller, PATIENCE, generate};
pub use pacer::GRAIN;
pub use plan::{Closed, Due, Load, Open, Plan, Source};
pub use tally::{Outcome, Report, Slot, SourceReport, TIME_SLOT, Tally, times};
pub use work::{Admitted, BEHIND, Served, Work, answer_questions, tell};

/// A server that can be told its limits, and the client that loads it.
#[derive(Debug)]
pub struct Stack {
    /// What the command line calls it.
    pub name: &'static str,
    /// Listens, announces its address, and serves until the process is ended.
    pub serve: fn(SocketAddr, Settings) -> Running<()>,
    /// Connects, and offers what is planned.
    pub offer: fn(SocketAddr, Plan) -> Running<Report>,
}

/// Bytes that every call carries, both ways.
pub const PAYLOAD_LEN: usize = 64;

/// How a server protects itself. What a stack does not have, it leaves out.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// Calls in flight in the whole server.
    pub limit: Option<u64>,
    /// Calls in flight on a connection.
    pub limit_per_connection: Option<u64>,
    /// Calls that wait for a permit; none if 0.
    pub queue: u64,
    /// For how long each of them may.
    pub max_wait_us: u64,
    /// Whether `limit` is only the ceiling of what is found.
    pub adaptive: bool,
    /// How long a connection may go without taking anything of what is written; as is usual if 0.
    pub write_timeout_us: u64,
    /// Calls that may begin in each second.
    pub rate: Option<f64>,
    /// Whether lower classes are refused first.
    pub shed_by_priority: bool,
}
