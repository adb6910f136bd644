//! Limits: how often calls may start, and how many may be in flight.
//!
//! A limit answers at once, with a plain value: a token or a permit when the call may go on, a
//! refusal that explains itself when it may not. Nothing here reads a clock or knows of sockets; the
//! caller passes `now` in and acts on the answer. What waits is a future of the caller's.
//!
//! - [`RateLimit`] bounds how often. It spends tokens: one atomic word, no background refill. Who would rather wait than
//!   be refused has a [`RateShare`], and with a [`RateWait`] a place in the line.
//! - [`ConcurrencyLimit`] bounds how many at once. It lends [`ConcurrencyPermit`]s, and dropping
//!   one is the only way to give it back; [`Releases`] does that for many at once.
//! - [`Turn`] is a call's place in a queue in front of it, if it has one.
//! - [`AdaptiveLimit`] finds the maximum of one by a [`LimitAlgorithm`], from how long calls take.
//! - [`PriorityGate`] turns lower classes away while higher ones find no room.
//! - [`CallPermit`] is what one call carries: the permits of every limit it passed. A [`HoldSlot`]
//!   keeps them taken for work that outlives the service's future.
//!
//! Ask the cheapest limit first and go from narrow to wide: the deadline, the rate of the
//! connection, the rate of the process, concurrency. When a later one refuses, dropping the
//! [`CallPermit`] gives permits back, and [`RateLimit::restore`] tries to give a token back. Both
//! are values, so no order of limits can leak.
//!
//! Every limit is per process: ten instances with a limit of 64 run up to 640 calls.

mod adaptive;
mod clock;
mod concurrency;
mod permit;
mod priority;
mod quantile;
mod queue;
mod rate;
mod sync;
mod turn;

pub use adaptive::{AdaptiveLimit, Aimd, Fixed, Gradient2, LimitAlgorithm, Sample};
pub use clock::{Clock, Ticks};
pub use concurrency::{
    ConcurrencyError, ConcurrencyLimit, ConcurrencyPermit, ConcurrencyRefusal, ConcurrencySnapshot, Releases,
    Reservation,
};
pub use permit::{CallHold, CallPermit, HeldPermit, HoldSlot};
pub use priority::{PriorityGate, PriorityRefusal};
pub use quantile::RunningMedian;
pub use rate::{Rate, RateError, RateLimit, RateRefusal, RateShare, RateToken, RateWait};
pub use turn::{Admission, Turn, WaitRefusal};
