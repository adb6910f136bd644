//! The message of all benchmarks.

use serde::{Deserialize, Serialize};

/// What is echoed: the message of `bench run`'s workloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Of the call.
    pub id: u64,
    /// 16 characters.
    pub name: String,
    /// Bytes as bytes.
    #[serde(with = "sluicegate::bytes")]
    pub payload: Vec<u8>,
}

impl Message {
    /// A message with a payload of this length.
    #[must_use]
    pub fn new(payload_len: usize) -> Self {
        Self { id: 7, name: "a caller's name!".to_owned(), payload: (0..payload_len).map(|at| at as u8).collect() }
    }
}
