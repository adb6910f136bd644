//! The words that both ends of Sluicegate share: ids, statuses, metadata, deadlines, contexts and
//! limits. There are no sockets and no runtime here, and time is passed in.
//!
//! Users reach all of it through the `sluicegate` crate.
//!
//! ```
//! use rpc_core::{Deadline, Status};
//! use std::time::{Duration, Instant};
//!
//! let now = Instant::now();
//! let deadline = Deadline::after(now, Duration::from_secs(1));
//! let answer = if deadline.is_expired(now) { Err(Status::deadline_exceeded("too late")) } else { Ok(()) };
//! assert_eq!(answer, Ok(()));
//! ```
#![forbid(unsafe_code)]

mod context;
mod deadline;
mod domain_error;
mod extensions;
mod id;
pub mod limit;
mod metadata;
mod refusal;
mod refused;
#[doc(hidden)]
pub mod socket;
mod status;
mod stream;
mod trace;

pub use context::{CallScope, ConnectionInfo, Context, Entered, Scoped};
pub use deadline::{AgeEstimator, Deadline};
#[doc(hidden)]
pub use domain_error::note;
pub use domain_error::{DomainError, OrStatus};
pub use extensions::Extensions;
pub use futures::Stream;
pub use id::{CallId, ConnectionId, MethodId};
pub use metadata::{Iter as MetadataIter, Metadata, MetadataError};
pub use refusal::{Refusal, RefusalReason};
pub use refused::Refused;
pub use status::{AnyDetail, ErrorInfo, Executed, Status, StatusCode};
pub use stream::{ItemSender, ItemSink, ItemSource, Streaming};
pub use trace::{TraceParent, TraceParentError};
