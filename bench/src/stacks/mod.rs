//! The stacks in this program: one file each, one row each in [`STACKS`].

mod guarded;
mod raw;
mod raw_mux;
mod raw_spawn;
mod sluicegate;

use bench_kit::{Stack, overload};

/// Here is where a stack without dependencies of its own is added.
pub(crate) const STACKS: &[Stack] = &[
    raw::STACK,
    raw_mux::STACK,
    raw_spawn::ALONE,
    raw_spawn::TOGETHER,
    sluicegate::STRUCTS,
    sluicegate::OPEN,
    sluicegate::VEC,
    sluicegate::BYTES,
];

/// Those of this program that can be overloaded.
pub(crate) const OVERLOADED: &[overload::Stack] = &[guarded::STACK, guarded::RAW];
