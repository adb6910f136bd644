//! The stacks that are compared: one file each, one row each in [`STACKS`].

mod raw;
mod raw_mux;
mod sluicegate;

use std::future::Future;
use std::pin::Pin;

use crate::BoxError;
use crate::harness::{LoadJob, Measured, ServeJob};

/// A server and a client of one kind.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Listens, announces its address, and serves until the process is ended.
    pub(crate) serve: fn(ServeJob) -> Running<()>,
    /// Connects, and measures one window.
    pub(crate) load: fn(LoadJob) -> Running<Measured>,
}

/// A server or a client at work. It need not be `Send`: the main thread polls it.
pub(crate) type Running<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>>>>;

/// Here is where a stack is added.
pub(crate) const STACKS: &[Stack] =
    &[raw::STACK, raw_mux::STACK, sluicegate::STRUCTS, sluicegate::VEC, sluicegate::BYTES];

/// Finds a stack by its name; the error is for the command line.
pub(crate) fn find(name: &str) -> Result<&'static Stack, String> {
    STACKS.iter().find(|stack| stack.name == name).ok_or_else(|| {
        let known: Vec<_> = STACKS.iter().map(|stack| stack.name).collect();
        format!("there are {}", known.join(", "))
    })
}
