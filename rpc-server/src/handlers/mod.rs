//! The handlers that a server's pipeline has by default, in their order: deadline, rate of the
//! connection, rate of the server, concurrency.

mod concurrency;
mod deadline;
mod rate;

pub use concurrency::ConcurrencyHandler;
pub use deadline::DeadlineHandler;
pub use rate::RateHandler;
