//! What calls and bodies cost in memory, counted by an allocator.

#[path = "../support/mod.rs"]
mod support;

mod allocations;
mod bodies;
mod claims;
mod counting;
mod deadlines;
mod frames;
mod given_up;
mod idle_client;
mod released;
