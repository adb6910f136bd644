//! Interceptors: code of the user's that sees every call of a client before it is sent and when it has
//! ended.

use std::{
    fmt, mem,
    sync::Arc,
    time::{Duration, Instant},
};

use rpc_core::{Deadline, Metadata, MetadataError, Status};

use crate::{call::Method, clock, error::CallError};

/// Sees every call of a client, those with items included. It runs where the call is awaited, so it must not
/// block.
///
/// ```
/// use rpc_client::{Client, Interceptor, Outgoing};
/// use rpc_core::Status;
///
/// /// Says who calls.
/// struct Token(String);
///
/// impl Interceptor for Token {
///     fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status> {
///         call.insert("authorization", &self.0).map_err(|_| Status::internal("the token is no metadata"))
///     }
/// }
///
/// let client = Client::builder("127.0.0.1:7000").interceptor(Token("secret".to_owned())).build();
/// # drop(client);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no interceptor of calls",
    label = "it does not implement `sluicegate::client::Interceptor`",
    note = "`impl Interceptor for {Self}` with `fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status>`, or `after`, or both"
)]
pub trait Interceptor: Send + Sync + 'static {
    /// A call that is about to be sent. Interceptors see it first to last.
    ///
    /// # Errors
    ///
    /// The call fails with this status, never executed, and nothing is sent.
    fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status> {
        let _ = call;
        Ok(())
    }

    /// A call that has ended, one that [`before`](Self::before) refused included, but for one that a panic
    /// drops. Interceptors see it last to first. A call with items has ended when its caller has the last item
    /// or the reply, or has dropped what gives them; the items themselves are not seen.
    fn after(&self, call: &Finished<'_>) {
        let _ = call;
    }
}

/// A call that is about to be sent.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub(crate) method: Method,
    pub(crate) metadata: &'a mut Metadata,
    pub(crate) deadline: &'a mut Deadline,
    pub(crate) priority: &'a mut u8,
}

impl Outgoing<'_> {
    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The metadata as it will be sent.
    pub fn metadata(&self) -> &Metadata {
        self.metadata
    }

    /// Adds a pair of metadata.
    ///
    /// # Errors
    ///
    /// It breaks a rule of [`Metadata::insert`].
    pub fn insert(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        self.metadata.insert(key, value)
    }

    /// By when the call must have ended.
    pub fn deadline(&self) -> Deadline {
        *self.deadline
    }

    /// Makes the call end within `timeout` from now, if it had more time.
    pub fn limit_timeout(&mut self, timeout: Duration) {
        *self.deadline = self.deadline.min(Deadline::after(clock::now(), timeout));
    }

    /// The class of the call; 0 is the normal one.
    pub fn priority(&self) -> u8 {
        *self.priority
    }

    /// Sets the class of the call.
    pub fn set_priority(&mut self, class: u8) {
        *self.priority = class;
    }
}

/// A call that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished<'a> {
    /// The method.
    pub method: Method,
    /// The metadata that was sent.
    pub metadata: &'a Metadata,
    /// How it ended.
    pub outcome: Outcome<'a>,
    /// How long it took since it was first polled.
    pub elapsed: Duration,
}

/// How a call ended, as its client knows.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// With a reply, or behind its last item.
    Reply,
    /// With an error.
    Error(&'a CallError),
    /// Its future was dropped, or its stream before the end.
    Dropped,
}

/// The interceptors of a client, in order.
#[derive(Clone, Default)]
pub(crate) struct Interceptors(Vec<Arc<dyn Interceptor>>);

impl Interceptors {
    pub(crate) fn add(&mut self, interceptor: impl Interceptor) {
        self.0.push(Arc::new(interceptor));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status> {
        self.0.iter().try_for_each(|interceptor| interceptor.before(call))
    }

    pub(crate) fn after(&self, call: &Finished<'_>) {
        self.0.iter().rev().for_each(|interceptor| interceptor.after(call));
    }
}

impl fmt::Debug for Interceptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} interceptors", self.0.len())
    }
}

/// A call that interceptors see, from its first poll until they were told of its end.
pub(crate) struct Watch(pub(crate) Instant);

/// A call with items that is out and that interceptors see. Its drop tells them that the call was given up,
/// if they were not told of another end.
#[derive(Debug)]
pub(crate) struct StreamWatch {
    began: Instant,
    method: Method,
    metadata: Metadata,
    interceptors: Interceptors,
    told: bool,
}

impl StreamWatch {
    pub(crate) fn new(watch: &Watch, method: Method, metadata: Metadata, interceptors: Interceptors) -> Self {
        Self { began: watch.0, method, metadata, interceptors, told: false }
    }

    pub(crate) fn tell(&mut self, outcome: Outcome<'_>) {
        // Noted first, for an interceptor may panic.
        if !mem::replace(&mut self.told, true) {
            let elapsed = clock::now().saturating_duration_since(self.began);
            self.interceptors.after(&Finished { method: self.method, metadata: &self.metadata, outcome, elapsed });
        }
    }
}

impl Drop for StreamWatch {
    fn drop(&mut self) {
        // Two panics at once would end the process.
        if !std::thread::panicking() {
            self.tell(Outcome::Dropped);
        }
    }
}
