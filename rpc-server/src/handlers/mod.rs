//! The handlers that a server's pipeline has by default, in their order: deadline, rate of the
//! connection, rate of the server, concurrency; and that of blocking calls, if there are any.

mod blocking;
mod concurrency;
mod deadline;
mod group;
mod rate;

pub use blocking::BlockingHandler;
pub use concurrency::ConcurrencyHandler;
pub use deadline::DeadlineHandler;
pub(crate) use group::GroupHandler;
pub use rate::RateHandler;
