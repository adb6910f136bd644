//! The settings of a client, each with its reason.

use std::time::Duration;

use rpc_codec::{CodecId, Hello};

use crate::intercept::Interceptors;

/// The settings of a client. [`crate::ClientBuilder`] sets them.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) codec: CodecId,
    /// What a call gets that names no deadline of its own.
    pub(crate) timeout: Option<Duration>,
    /// Longer than a lost SYN is retried, shorter than anybody waits.
    pub(crate) connect_timeout: Duration,
    /// So long that a thousand clients that lost their server together come back at less than a tenth of
    /// them in any tenth of a second.
    pub(crate) min_backoff: Duration,
    pub(crate) max_backoff: Duration,
    /// Bounds what a server may make us buffer.
    pub(crate) max_frame: u32,
    pub(crate) max_message: u32,
    /// What a server may send of a stream before any of it is taken: at 64 bytes an item two thousand of
    /// them, which is more than are consumed while credit is under way.
    pub(crate) stream_window: u32,
    /// Often enough to find a dead server before people do, and to keep what stands between the two
    /// ends from forgetting the connection; seldom enough to cost nothing.
    pub(crate) keepalive_interval: Option<Duration>,
    /// Longer than any way there and back, and than a server's worst turn.
    pub(crate) keepalive_timeout: Duration,
    /// The longest frame takes it at 26 KB a second.
    pub(crate) frame_timeout: Duration,
    /// What the server grants us, too.
    pub(crate) write_timeout: Duration,
    /// A caller that is told at once can do something else.
    pub(crate) wait_for_ready: bool,
    pub(crate) interceptors: Interceptors,
    pub(crate) trace_calls: bool,
    /// How many ids count as used when a connection begins: for tests of what happens at the last.
    pub(crate) ids_used: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            codec: CodecId::BINCODE,
            timeout: None,
            connect_timeout: Duration::from_secs(5),
            min_backoff: Duration::from_secs(2),
            max_backoff: Duration::from_secs(10),
            max_frame: 256 * 1024,
            max_message: 4 * 1024 * 1024,
            stream_window: 128 * 1024,
            keepalive_interval: Some(Duration::from_secs(30)),
            keepalive_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            wait_for_ready: false,
            interceptors: Interceptors::default(),
            trace_calls: false,
            ids_used: 0,
        }
    }
}

impl Config {
    pub(crate) fn hello(&self) -> Hello {
        let mut hello = Hello::default();
        hello.max_frame = self.max_frame;
        hello.max_message = self.max_message;
        hello.stream_window = self.stream_window;
        hello.codecs = CodecId::supported().iter().copied().chain([CodecId::BYTES]).collect();
        hello
    }
}
