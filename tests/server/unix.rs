//! Unix sockets: served, called, cleaned up, and who is at the other end.

use std::{fs, future::IntoFuture, io::ErrorKind, os::unix::net::UnixListener, path::PathBuf};

use sluicegate::{
    Client, Context, Server,
    server::{BoundUnixServer, UnixPeer},
};

use crate::support::{Probe, assert_idle_soon, method};

#[sluicegate::service]
trait Whoami {
    async fn whoami(&self, ctx: Context) -> Option<u32>;
}

struct ByUser;

impl Whoami for ByUser {
    async fn whoami(&self, ctx: Context) -> Option<u32> {
        assert!(ctx.peer().is_none());
        ctx.connection().get::<UnixPeer>().map(|peer| peer.uid)
    }
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sluicegate-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn bind(folder: &Folder) -> BoundUnixServer {
    let server = Server::builder().service(WhoamiServer::new(ByUser)).build().unwrap();
    server.bind_unix(folder.socket()).await.unwrap()
}

#[tokio::test]
async fn a_unix_socket_is_served_called_and_removed() {
    let folder = Folder::new("served");
    let bound = bind(&folder).await;
    assert_eq!(bound.path(), folder.socket());
    let handle = bound.handle();
    let serving = tokio::spawn(bound.serve());
    let client = Client::unix(folder.socket());
    let whoami: WhoamiClient = client.service();
    let own = fs::metadata(&folder.0).map(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata)).unwrap();
    assert_eq!(whoami.whoami().await.unwrap(), Some(own), "the kernel says who it is");
    handle.shutdown();
    assert!(serving.await.unwrap().cut.is_empty());
    assert!(!folder.socket().exists());
    let error = whoami.whoami().await.unwrap_err();
    assert!(error.to_string().contains("socket"), "the error names the socket: {error}");
    drop((client, whoami));
    assert_idle_soon(&handle).await;
}

#[tokio::test]
async fn a_server_stops_on_its_signal_and_leaves_no_socket() {
    let folder = Folder::new("signal");
    let bound = bind(&folder).await;
    let handle = bound.handle();
    assert!(bound.serve_until(async {}).await.cut.is_empty());
    assert!(!folder.socket().exists());
    assert_idle_soon(&handle).await;
}

#[tokio::test]
async fn a_socket_that_was_left_behind_is_replaced_and_anything_else_stays() {
    let folder = Folder::new("left");
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(folder.socket().exists(), "nobody listens on it");
    let bound = bind(&folder).await;
    // Somebody does.
    let server = Server::builder().service(WhoamiServer::new(ByUser)).build().unwrap();
    let error = server.bind_unix(folder.socket()).await.unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains("socket"), "{error}");
    drop(bound);
    assert!(!folder.socket().exists());

    fs::write(folder.socket(), "precious").unwrap();
    let error = server.bind_unix(folder.socket()).await.unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
    assert_eq!(fs::read_to_string(folder.socket()).unwrap(), "precious");
}

#[tokio::test]
async fn a_socket_that_another_server_has_put_in_place_stays() {
    let folder = Folder::new("another");
    let first = bind(&folder).await;
    fs::remove_file(folder.socket()).unwrap();
    let second = bind(&folder).await;
    drop(first);
    assert!(folder.socket().exists(), "it is the second one's");
    drop(second);
    assert!(!folder.socket().exists());
}

#[tokio::test]
async fn a_socket_is_gone_when_its_server_begins_to_drain_and_another_takes_its_place() {
    let folder = Folder::new("successor");
    let probe = Probe::default();
    let server = Server::builder().service(probe.clone()).build().unwrap();
    let bound = server.bind_unix(folder.socket()).await.unwrap();
    let handle = bound.handle();
    let serving = tokio::spawn(bound.serve());
    let client = Client::unix(folder.socket());
    let running = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)).into_future());
    while probe.running() == 0 {
        tokio::task::yield_now().await;
    }
    handle.shutdown();
    while folder.socket().exists() {
        tokio::task::yield_now().await;
    }
    assert_eq!(handle.snapshot().calls.held, 1, "it drains");
    let successor = bind(&folder).await;
    probe.open_gate();
    running.await.unwrap().unwrap();
    drop(client);
    assert!(serving.await.unwrap().cut.is_empty());
    assert!(folder.socket().exists(), "it is the successor's");
    drop(successor);
    assert!(!folder.socket().exists());
    assert_idle_soon(&handle).await;
}
