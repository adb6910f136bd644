//! Paces the items that clients send.

use std::sync::Arc;

use rpc_core::limit::RateLimit;

use crate::{
    Call,
    pipeline::{Decision, Handler, Interest},
};

/// Has each item that a client sends take a token of one bucket before its service is handed it: the connection's
/// own bucket, or one that all connections share.
///
/// It refuses nothing; see [`Call::pace_items`]. Calls whose clients send no items pass it untouched.
#[derive(Debug)]
pub struct ItemRateHandler {
    limit: Arc<RateLimit>,
}

impl ItemRateHandler {
    /// A handler that has items take tokens of `limit`.
    pub fn new(limit: Arc<RateLimit>) -> Self {
        Self { limit }
    }
}

impl Handler for ItemRateHandler {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn limits_load() -> bool {
        true
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        if call.kind().client_sends() {
            call.pace_items(Arc::clone(&self.limit));
        }
        Decision::Pass
    }
}
