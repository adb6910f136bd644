//! Fuzz targets: functions of bytes that panic when a promise is broken.
//!
//! `run.sh` puts libFuzzer behind them, and `tests/corpus.rs` replays what it found. Each target
//! says in its own docs what it promises; in addition none may take more memory than
//! [`Target::MAX_MEMORY`] at any moment, whatever the input says.

mod flow;
mod frame;
mod listener;
mod memory;
mod payload;
mod pipe;
mod porter;
mod scene;
mod script;
mod service;
mod shapes;
mod streams;
mod targets;

use std::path::PathBuf;

use targets::{bincode, client_connection, frames, hello, json, messagepack, postcard, server_connection, status};

/// A property of arbitrary bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name, which is also that of its folder in the corpus.
    pub name: &'static str,
    check: fn(&[u8]),
}

impl Target {
    /// Every target.
    pub const ALL: &'static [Self] = &[
        Self { name: "frames", check: frames::check },
        Self { name: "hello", check: hello::check },
        Self { name: "status", check: status::check },
        Self { name: "bincode", check: bincode::check },
        Self { name: "json", check: json::check },
        Self { name: "postcard", check: postcard::check },
        Self { name: "messagepack", check: messagepack::check },
        Self { name: "server_connection", check: server_connection::check },
        Self { name: "client_connection", check: client_connection::check },
    ];

    /// What one input may take: some connections with a full buffer each way, and then some. It is
    /// far below what a length on the wire can claim.
    pub const MAX_MEMORY: usize = 8 * 1024 * 1024;

    /// The target of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|target| target.name == name)
    }

    /// Where its inputs are kept.
    pub fn corpus(self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// Checks the property for one input.
    ///
    /// # Panics
    ///
    /// The property does not hold.
    pub fn run(self, data: &[u8]) {
        let ((), peak) = memory::peak(|| (self.check)(data));
        assert!(peak <= Self::MAX_MEMORY, "{} bytes of input took {peak} bytes of memory", data.len());
    }
}
