//! Calls for programs without a runtime: a thread of ours has one.

use std::{future::pending, sync::OnceLock, thread};

use tokio::runtime::{Builder, Handle};

use crate::{
    call::{Call, WireForm},
    client::Response,
    error::CallError,
};

impl<A: 'static, R, W: WireForm<A, R>> Call<A, R, W> {
    /// Makes the call and blocks the thread until it has ended; for programs without a runtime.
    ///
    /// The connection lives in a thread of its own, one for all clients of the process, which begins with
    /// the first call that waits. Options, deadlines and errors are as when it is awaited. A method marked
    /// `#[rpc(blocking)]` may wait as well, and the deadline and the trace of its own call are inherited.
    ///
    /// ```no_run
    /// # use rpc_client::{Client, Method};
    /// let client = Client::new("127.0.0.1:7000");
    /// let count: u64 = client.call(Method::new("Library", "count"), ()).wait()?;
    /// # Ok::<(), rpc_client::CallError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for the call when it is awaited; and [`CallError::NoRuntime`] if the thread cannot be made.
    ///
    /// # Panics
    ///
    /// In asynchronous code, whose thread must not be blocked: await the call there.
    pub fn wait(self) -> Result<R, CallError> {
        runtime()?.block_on(self)
    }

    /// As [`Call::wait`], with the metadata that came beside the reply.
    ///
    /// # Errors
    ///
    /// As for [`Call::wait`].
    ///
    /// # Panics
    ///
    /// As [`Call::wait`].
    pub fn wait_response(self) -> Result<Response<R>, CallError>
    where
        A: Send,
    {
        runtime()?.block_on(self.response())
    }
}

/// The runtime of those that wait. It is never shut down: whoever still waits when the process ends is
/// gone with it.
fn runtime() -> Result<&'static Handle, CallError> {
    static RUNTIME: OnceLock<Option<Handle>> = OnceLock::new();
    RUNTIME.get_or_init(start).as_ref().ok_or(CallError::NoRuntime)
}

fn start() -> Option<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    let thread = thread::Builder::new().name("sluicegate".to_owned());
    thread.spawn(move || runtime.block_on(pending::<()>())).ok()?;
    Some(handle)
}
