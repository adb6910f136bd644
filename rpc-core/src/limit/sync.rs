//! The primitives that limits are built on, in one place so that loom and shuttle can stand in for them.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

#[cfg(all(shuttle, not(loom)))]
pub(crate) use shuttle::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};
