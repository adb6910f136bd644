//! Unix sockets.

use std::path::PathBuf;

use tokio::net::UnixStream;

use crate::{builder::ClientBuilder, client::Client};

impl Client {
    /// A client of the server whose Unix socket is at `path`.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::unix_builder(path).build()
    }

    /// A client of the server whose Unix socket is at `path`, to be configured.
    pub fn unix_builder(path: impl Into<PathBuf>) -> ClientBuilder {
        let path = path.into();
        let peer = path.display().to_string();
        Self::with_connector(peer, move || {
            let path = path.clone();
            async move { UnixStream::connect(path).await }
        })
    }
}
