//! A server on a socket of this machine, whose connections behave as a run of the tests asks for.

use std::net::SocketAddr;

use sluicegate::{Client, Server, client::ClientBuilder, server::Drained};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

use super::shims::Manner;

/// A server that accepts connections until it is told to stop.
pub(crate) struct Sockets {
    pub(crate) address: SocketAddr,
    manner: Manner,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Drained>,
}

impl Sockets {
    /// Serves on `address`.
    pub(crate) async fn open(server: &Server, manner: Manner, address: SocketAddr) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (address, serving) = if manner == Manner::Plain {
            let bound = server.bind(address).await.expect("the address is free");
            let stopped = async {
                let _ = stopped.await;
            };
            (bound.local_addr(), tokio::spawn(bound.serve_until(stopped)))
        } else {
            let listener = TcpListener::bind(address).await.expect("the address is free");
            let address = listener.local_addr().expect("a listener has an address");
            (address, tokio::spawn(accept(server.clone(), manner, listener, stopped)))
        };
        Self { address, manner, stop, serving }
    }

    /// A client of the server.
    pub(crate) fn client(&self) -> Client {
        self.client_builder().build()
    }

    /// A client of the server, to be configured.
    pub(crate) fn client_builder(&self) -> ClientBuilder {
        let (address, manner) = (self.address, self.manner);
        match manner {
            Manner::Plain => Client::builder(address),
            _ => Client::with_connector(address.to_string(), move || async move {
                let socket = TcpStream::connect(address).await?;
                socket.set_nodelay(true)?;
                Ok(manner.wrap(socket))
            }),
        }
    }

    /// Tells the server to stop; the task ends when it has.
    pub(crate) fn stop(self) -> JoinHandle<Drained> {
        // A server that has been stopped by its handle waits no more.
        let _ = self.stop.send(());
        self.serving
    }

    /// Stops the server and waits for it.
    pub(crate) async fn shut_down(self) -> Drained {
        super::within(self.stop()).await.expect("the server does not panic")
    }
}

/// As [`sluicegate::server::BoundServer::serve_until`] does it, with something between the server
/// and its sockets.
async fn accept(server: Server, manner: Manner, listener: TcpListener, mut stopped: oneshot::Receiver<()>) -> Drained {
    loop {
        let (socket, peer) = tokio::select! {
            accepted = listener.accept() => accepted.expect("there are descriptors"),
            _ = &mut stopped => break,
        };
        socket.set_nodelay(true).expect("a socket that is open");
        let server = server.clone();
        tokio::spawn(async move { server.serve_connection(manner.wrap(socket), Some(peer)).await });
    }
    drop(listener);
    server.handle().drain().await
}
