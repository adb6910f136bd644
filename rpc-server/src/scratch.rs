//! Buffers that the connections of a thread share, so that an idle connection has none.

use std::cell::{Cell, RefCell};

use rpc_codec::RefusalEncoder;
use rpc_core::{CallId, Refusal};

use crate::read_size::ReadSize;

/// Runs `read` with the thread's read buffer. Taken out while in use, so that a nested use gets one
/// of its own.
pub(crate) fn with_read_buffer<R>(read: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = READ.take();
    if buffer.is_empty() {
        buffer = vec![0; ReadSize::MOST];
    }
    let result = read(&mut buffer);
    READ.set(buffer);
    result
}

/// Gives `out` the thread's write buffer if it has none.
pub(crate) fn lend_out(out: &mut Vec<u8>) {
    if out.capacity() == 0 {
        *out = WRITE.take();
    }
}

/// Takes an empty write buffer back for the thread's next connection.
pub(crate) fn take_back(out: &mut Vec<u8>) {
    let mut buffer = std::mem::take(out);
    buffer.clear();
    if buffer.capacity() <= MAX_KEPT_LEN {
        WRITE.set(buffer);
    }
}

/// Appends a refusal, for little if it is like the last one of the thread.
pub(crate) fn encode_refusal(out: &mut Vec<u8>, id: CallId, refusal: &Refusal) {
    REFUSALS.with_borrow_mut(|refusals| refusals.encode(out, id, refusal));
}

thread_local! {
    static READ: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static WRITE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static REFUSALS: RefCell<RefusalEncoder> = const { RefCell::new(RefusalEncoder::new()) };
}

const MAX_KEPT_LEN: usize = 256 * 1024;
