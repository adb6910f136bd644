//! The server of Sluicegate: it accepts connections, passes every call through a pipeline of
//! limits, and runs it in its connection's task.
//!
//! ```text
//! accept -> Connection::run -> decode -> Pipeline inbound -> service
//!   -> Pipeline outbound -> encode -> write -> permits drop
//! ```
//!
//! # Panics of user code
//!
//! A panic of a service, of a handler, or of encoding, decoding or dropping what is theirs costs its
//! call: the caller is told INTERNAL and nothing of the text, which is logged. Its siblings go on, its
//! permit comes back, and `Snapshot::panics` counts it. One in the pipeline's initializer costs its
//! connection. Built with `panic = "abort"` nothing can be caught: any of these ends the process, and
//! clients see their connections lost. A drop that panics while another panic unwinds does the same.
//!
//! Users reach it as `sluicegate::server`.
#![forbid(unsafe_code)]

mod accept;
mod addresses;
mod allowance;
mod batch;
mod bind;
mod blocking;
mod body;
mod budgets;
mod builder;
mod call;
mod clock;
mod config;
mod connection;
mod cut;
mod describe;
mod dispatch;
mod ending;
mod error;
mod feedback;
mod frame_room;
mod gauges;
pub mod handlers;
mod health;
mod idle;
mod in_flight;
mod inbound;
mod inlet;
mod item_rate;
mod items;
mod life;
mod limits;
mod live;
mod method;
#[cfg(feature = "metrics")]
mod metrics;
mod outbound;
mod outlet;
mod pace;
mod panics;
mod peer;
mod pipeline;
mod prospects;
mod read_size;
mod ready;
#[cfg(all(test, shuttle))]
mod schedules;
mod scratch;
mod server;
#[cfg(feature = "config")]
mod settings;
mod stream;
#[cfg(all(test, shuttle))]
mod stream_schedules;
mod streaming;
mod sync;
mod timer;
#[cfg(feature = "tower")]
pub mod tower;
mod turned_away;
mod unary;
#[cfg(unix)]
mod unix;
mod uploads;
mod writer;

pub use accept::Listener;
pub use builder::ServerBuilder;
pub use call::Call;
pub use error::{BindError, BuildError};
pub use gauges::Snapshot;
pub use limits::{Adaptive, MethodLimits, TenantLimits, Tenants, TenantsSnapshot, WaitQueue};
pub use live::{ChangeError, LimitInfo, LiveLimits};
pub use method::{MethodInfo, MethodOptions, Service, ServiceMethods};
pub use outlet::Outlet;
pub use peer::{ConnectionSnapshot, Holder, HolderState};
pub use pipeline::{Answer, CallInfo, Decision, Handler, Interest, Outbound, Pipeline};
#[cfg(feature = "config")]
pub use rpc_codec::settings::SettingsError;
pub use rpc_codec::{CallKind, Coded, DecodeItem, EncodeItem, Plain};
pub use server::{BoundServer, CutCall, Drained, Server, ServerHandle, SetRateError};
#[cfg(feature = "config")]
pub use settings::ServerSettings;
#[cfg(unix)]
pub use unix::{BoundUnixServer, UnixPeer};
