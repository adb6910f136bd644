//! Refusals, of which one is much like the other.

use rpc_core::{CallId, Refusal};

use crate::{
    details,
    encoder::{encode_refusal, patch_id},
};

/// Encodes refusals. Those of a server that has too much to do differ in whose they are and in when to come back, and in
/// nothing else. So the last one is kept, and copied for the next one that is like it, which costs a fraction of putting it
/// together.
#[derive(Debug, Default)]
pub struct RefusalEncoder {
    last: Option<Refusal>,
    frame: Vec<u8>,
}

impl RefusalEncoder {
    /// One that has encoded nothing yet, and has no memory.
    pub const fn new() -> Self {
        Self { last: None, frame: Vec::new() }
    }

    /// Appends the RESPONSE that turns a call away: the same bytes as [`encode_refusal`].
    pub fn encode(&mut self, out: &mut Vec<u8>, id: CallId, refusal: &Refusal) {
        let start = out.len();
        if self.last.as_ref().is_some_and(|last| last.is_like(refusal)) {
            out.extend_from_slice(&self.frame);
            patch_id(&mut out[start..], id);
            if let Some(delay) = refusal.retry_delay() {
                details::patch_last_delay(out, delay);
            }
            return;
        }
        encode_refusal(out, id, refusal);
        self.frame.clear();
        self.frame.extend_from_slice(&out[start..]);
        self.last = Some(*refusal);
    }
}
