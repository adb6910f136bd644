//! Unix sockets: whom they are for, and who is at the other end.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use rpc_core::Extensions;
use tokio::net::{UnixListener, UnixStream};

use crate::{
    accept::Listener,
    error::BindError,
    server::{Drained, Server, ServerHandle, serve_until},
};

/// Who is at the other end of a Unix socket, as the kernel says: it is beside the connection, where
/// handlers and services find it with `ConnectionInfo::get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnixPeer {
    /// The user that connected.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// The process that connected, where the system tells.
    pub pid: Option<i32>,
}

impl Listener for UnixListener {
    type Transport = UnixStream;

    async fn accept(&mut self) -> io::Result<(UnixStream, Option<SocketAddr>)> {
        let (socket, _) = Self::accept(self).await?;
        Ok((socket, None))
    }

    fn known(&mut self, socket: &UnixStream) -> Extensions {
        let mut known = Extensions::new();
        if let Ok(peer) = socket.peer_cred() {
            known.insert(UnixPeer { uid: peer.uid(), gid: peer.gid(), pid: peer.pid() });
        }
        known
    }
}

impl Server {
    /// Listens on a Unix socket at `path`. One that a server left behind which is gone is replaced. Who may
    /// connect is up to the permissions of the folder.
    ///
    /// # Errors
    ///
    /// Something else is at `path`, a server that lives included; or the socket cannot be made.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn bind_unix(&self, path: impl Into<PathBuf>) -> Result<BoundUnixServer, BindError> {
        let path = path.into();
        let bound = remove_left_over(&path).await.and_then(|()| UnixListener::bind(&path)).and_then(|listener| {
            let file = SocketFile::at(path.clone())?;
            Ok(BoundUnixServer { server: self.clone(), listener: BoundListener { file, listener } })
        });
        bound.map_err(|source| BindError { address: path.display().to_string(), source })
    }
}

/// A server with a listening Unix socket. The file of the socket is removed when it listens no more.
#[derive(Debug)]
pub struct BoundUnixServer {
    server: Server,
    listener: BoundListener,
}

/// A listener with the file of its socket.
///
/// The file is dropped first, while the socket is open. As long as it is, nothing else can have its inode; then
/// the file of a server that has come in its place could not be told from it.
#[derive(Debug)]
struct BoundListener {
    file: SocketFile,
    listener: UnixListener,
}

impl Listener for BoundListener {
    type Transport = UnixStream;

    fn accept(&mut self) -> impl Future<Output = io::Result<(UnixStream, Option<SocketAddr>)>> + Send {
        Listener::accept(&mut self.listener)
    }

    fn known(&mut self, socket: &UnixStream) -> Extensions {
        self.listener.known(socket)
    }
}

impl BoundUnixServer {
    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.listener.file.path
    }

    /// A handle to watch and to stop the server.
    pub fn handle(&self) -> ServerHandle {
        self.server.handle()
    }

    /// As [`BoundServer::serve`](crate::BoundServer::serve). The socket is gone as soon as the server begins to drain,
    /// so that another can take its place.
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn serve(self) -> Drained {
        self.server.serve_with(self.listener).await
    }

    /// As [`BoundServer::serve_until`](crate::BoundServer::serve_until).
    pub async fn serve_until(self, signal: impl Future<Output = ()>) -> Drained {
        let handle = self.handle();
        serve_until(&handle, self.serve(), signal).await
    }
}

/// The file of a socket, which goes with its server, unless it has become another's.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: PathBuf) -> io::Result<Self> {
        let identity = identity(&path)?;
        Ok(Self { path, identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // If it is gone already, that is as well.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes the file of a socket that nobody listens on.
async fn remove_left_over(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        // What is no socket stays, and binding says that it is there.
        _ => return Ok(()),
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Ok(()),
    }
}
