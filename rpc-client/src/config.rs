//! The settings of a client, each with its reason.

use std::time::Duration;

use rpc_codec::{CodecId, Hello};

/// The settings of a client. [`crate::ClientBuilder`] sets them.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) codec: CodecId,
    /// What a call gets that names no deadline of its own.
    pub(crate) timeout: Option<Duration>,
    /// Longer than a lost SYN is retried, shorter than anybody waits.
    pub(crate) connect_timeout: Duration,
    pub(crate) min_backoff: Duration,
    pub(crate) max_backoff: Duration,
    /// Bounds what a server may make us buffer.
    pub(crate) max_frame: u32,
    pub(crate) max_message: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            codec: CodecId::BINCODE,
            timeout: None,
            connect_timeout: Duration::from_secs(5),
            min_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(10),
            max_frame: 256 * 1024,
            max_message: 4 * 1024 * 1024,
        }
    }
}

impl Config {
    pub(crate) fn hello(&self) -> Hello {
        let mut hello = Hello::default();
        hello.max_frame = self.max_frame;
        hello.max_message = self.max_message;
        hello.codecs = CodecId::supported().iter().copied().chain([CodecId::BYTES]).collect();
        hello
    }
}
