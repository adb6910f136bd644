//! The memory that the current thread has, counted byte by byte.
#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Runs `work` and returns, besides its result, how much more memory there was at once meanwhile.
pub(crate) fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    let outer = PEAK.replace(before);
    let result = work();
    let peak = PEAK.get();
    PEAK.set(outer.max(peak));
    (result, usize::try_from(peak - before).unwrap_or(0))
}

/// The system's allocator, and what the current thread has of it.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

impl Counting {
    fn take(len: usize) {
        // Less than nothing when memory of another thread is given back here; only differences count.
        let live = LIVE.get().wrapping_add_unsigned(len);
        LIVE.set(live);
        PEAK.set(PEAK.get().max(live));
    }

    fn give_back(len: usize) {
        LIVE.set(LIVE.get().wrapping_sub_unsigned(len));
    }
}

// SAFETY: it hands everything to the system's allocator and only counts beside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::take(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::take(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // Old and new may exist side by side.
        Self::take(len);
        Self::give_back(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, len) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Self::give_back(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_what_there_was_at_once_also_of_what_ran_inside() {
        let ((inner, kept), outer) = peak(|| {
            let kept = vec![0_u8; 1_000];
            let ((), inner) = peak(|| {
                drop(vec![0_u8; 5_000]);
                drop(vec![0_u8; 4_000]);
            });
            (inner, kept)
        });
        assert_eq!((inner, outer), (5_000, 6_000));
        assert_eq!(peak(|| drop(kept)).1, 0);
    }
}
