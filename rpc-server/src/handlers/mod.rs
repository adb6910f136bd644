//! The handlers that a server's pipeline has by default, in their order: deadline, rate of the
//! connection, rate of the server, concurrency; and that of blocking calls, if there are any.

mod blocking;
mod concurrency;
mod deadline;
mod rate;
mod trace;

pub use blocking::BlockingHandler;
pub use concurrency::ConcurrencyHandler;
pub use deadline::DeadlineHandler;
pub use rate::RateHandler;
pub(crate) use trace::CallSpan;
pub use trace::TraceHandler;
