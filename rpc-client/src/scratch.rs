//! Buffers that the calls and connections of a thread share, so that none of them keeps its own.

use std::cell::Cell;

/// Runs `read` with the thread's read buffer. Taken out while in use, so that a nested use gets one
/// of its own.
pub(crate) fn with_read_buffer<R>(read: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = READ.take();
    if buffer.is_empty() {
        buffer = vec![0; READ_LEN];
    }
    let result = read(&mut buffer);
    READ.set(buffer);
    result
}

/// Runs `work` with the thread's buffer for the frame or the body of one call.
pub(crate) fn with_call_buffer<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut buffer = CALL.take();
    buffer.clear();
    let result = work(&mut buffer);
    if buffer.capacity() <= MAX_KEPT_LEN {
        CALL.set(buffer);
    }
    result
}

thread_local! {
    static READ: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static CALL: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

const READ_LEN: usize = 64 * 1024;
const MAX_KEPT_LEN: usize = 256 * 1024;
