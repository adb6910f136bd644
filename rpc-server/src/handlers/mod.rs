//! The handlers that a server's pipeline has by default, in their order: deadline, priority, rate
//! of the connection, of the tenant, of the server, concurrency; that of blocking calls, if there are any, and those
//! that pace the items of clients.
//!
//! Where there are more limits of calls in flight than those of the connection and of the server, one
//! handler takes them all, and it is called `concurrency` as well.

mod blocking;
mod concurrency;
mod deadline;
mod group;
mod item_rate;
mod priority;
mod rate;
mod tenant_rate;
mod trace;

pub use blocking::BlockingHandler;
pub use concurrency::ConcurrencyHandler;
pub(crate) use concurrency::explain;
pub use deadline::DeadlineHandler;
pub(crate) use deadline::expired;
pub(crate) use group::GroupHandler;
pub use item_rate::ItemRateHandler;
pub(crate) use priority::PriorityHandler;
pub use rate::RateHandler;
pub(crate) use rate::with_jitter;
pub(crate) use tenant_rate::TenantRateHandler;
pub(crate) use trace::CallSpan;
pub use trace::TraceHandler;
