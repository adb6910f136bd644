//! Turns away calls of blocking methods when as many run as allowed.

use std::{sync::Arc, time::Duration};

use rpc_core::limit::ConcurrencyLimit;

use super::concurrency::ConcurrencyHandler;
use crate::{
    Call,
    pipeline::{Decision, Handler, Interest},
};

/// Takes a permit of the limit of blocking calls, for calls of blocking methods only.
///
/// A blocking call has a thread for as long as it runs, and nobody can take it away, so its permit
/// stays inside of the work: it comes back when the work has ended and the response has been written
/// or the connection is gone. A call that finds no room is refused before its body is decoded, and one whose
/// body comes in parts takes its permit when that is there, as in [`ConcurrencyHandler`].
#[derive(Debug)]
pub struct BlockingHandler(ConcurrencyHandler);

impl BlockingHandler {
    /// A handler of `limit`, that tells refused calls to come back after about `retry_delay`.
    pub fn new(limit: Arc<ConcurrencyLimit>, retry_delay: Duration) -> Self {
        Self(ConcurrencyHandler::new(limit, retry_delay))
    }
}

impl Handler for BlockingHandler {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn limits_load() -> bool {
        true
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        if call.method().is_blocking() { self.0.inbound(call) } else { Decision::Pass }
    }
}
