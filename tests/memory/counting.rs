//! An allocator that counts what each thread does with it.
#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;

thread_local! {
    /// Allocations, those that grow one included.
    pub(crate) static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes allocated and not given back.
    pub(crate) static LIVE: Cell<i64> = const { Cell::new(0) };
    /// The most that [`LIVE`] has been since it was set.
    pub(crate) static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(allocations: u64, bytes: i64) {
    // A thread that ends may allocate and free after its counters are gone.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: it hands everything to the system's allocator and only counts beside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(1, len as i64 - layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, len) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
