//! What calls and bodies cost in memory, counted by an allocator.

#[path = "../support/mod.rs"]
mod support;

mod allocations;
mod bodies;
mod counting;
mod deadlines;
mod idle_client;
