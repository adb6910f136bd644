//! What every program that is measured shares: the workloads, the loop of a caller, the measured
//! window, and the two commands `serve` and `load`.
//!
//! It knows no stack. Sluicegate, the bare loops and each peer are programs of their own on top of it,
//! so that cargo unites the features of no two of them: in one binary with tarpc, tonic is a quarter
//! slower by a feature of `tracing` that it does not ask for.

#![forbid(unsafe_code)]

pub mod harness;
pub mod overload;
pub mod procfs;
pub mod program;
pub mod workload;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;

use crate::harness::{LoadJob, Measured, ServeJob};

/// What stops a benchmark; the programs only ever print it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A server and a client of one kind.
#[derive(Debug)]
pub struct Stack {
    /// What the command line calls it.
    pub name: &'static str,
    /// One line for lists.
    pub about: &'static str,
    /// Listens, announces its address, and serves until the process is ended.
    pub serve: fn(ServeJob) -> Running<()>,
    /// Connects, and measures one window.
    pub load: fn(LoadJob) -> Running<Measured>,
}

/// A server or a client at work. It need not be `Send`: the main thread polls it.
pub type Running<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>>>>;
