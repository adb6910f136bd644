//! For tests of services: a server and its clients in memory, and the check that nothing is left.
//!
//! Nothing here needs a socket, and all of it works in tokio's virtual time
//! (`#[tokio::test(start_paused = true)]`).
//!
//! ```
//! use sluicegate::{Server, testing::InMemory};
//!
//! #[sluicegate::service]
//! trait Greeter {
//!     async fn greet(&self, name: String) -> String;
//! }
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn greet(&self, name: String) -> String {
//!         format!("Good day, {name}.")
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = InMemory::new(Server::builder().service(GreeterServer::new(Polite)).build()?);
//! let greeter: GreeterClient = server.client().service();
//! assert_eq!(greeter.greet("Ada".to_owned()).await?, "Good day, Ada.");
//! drop(greeter);
//! server.assert_idle().await;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use rpc_client::{Client, ClientBuilder};
use rpc_server::{Server, ServerHandle};
use tokio::{io::duplex, time::sleep};

/// A server that clients reach through pipes in memory.
///
/// Each connection is served in a task of its own, which ends with the connection or the runtime.
#[derive(Clone, Debug)]
pub struct InMemory {
    server: Server,
}

impl InMemory {
    /// Makes `server` one that is reached through pipes.
    pub fn new(server: Server) -> Self {
        Self { server }
    }

    /// A client of the server.
    pub fn client(&self) -> Client {
        self.client_builder().build()
    }

    /// A client of the server, to be configured.
    pub fn client_builder(&self) -> ClientBuilder {
        let server = self.server.clone();
        Client::with_connector("in memory", move || {
            let (near, far) = duplex(PIPE_LEN);
            let server = server.clone();
            tokio::spawn(async move { server.serve_connection(far, None).await });
            async move { Ok(near) }
        })
    }

    /// A handle to watch and to stop the server.
    pub fn handle(&self) -> ServerHandle {
        self.server.handle()
    }

    /// As [`assert_idle`], for this server.
    ///
    /// # Panics
    ///
    /// Something is left.
    pub async fn assert_idle(&self) {
        assert_idle(&self.handle()).await;
    }
}

/// Waits until the server has nothing left: no call in flight or parked, no permit out, nobody
/// connected, no byte buffered or reserved. Waits for as long as a connection may take to close,
/// 2.5 s. Clients must have been dropped.
///
/// To be called at the end of a test: it finds whatever leaks.
///
/// # Panics
///
/// Something is left; the message says what, which calls, and what that comes of.
pub async fn assert_idle(server: &ServerHandle) {
    if becomes(|| server.snapshot().is_idle()).await {
        return;
    }
    let snapshot = server.snapshot();
    let calls: Vec<_> = server.limits().holders().await.iter().map(|call| call.method.clone()).collect();
    let why = match (calls.is_empty(), snapshot.connections) {
        (false, _) => {
            "a call goes on: it was not awaited to its end, nor dropped, or its stream or a `Context::hold` is kept"
        }
        (true, 1..) => "somebody is connected: drop every client, the generated ones and their clones included",
        (true, 0) => "nobody is connected, so something was not given back, such as a `Context::hold`",
    };
    let left: Vec<_> = snapshot.left().collect();
    panic!("the server is not idle: {why}\n  calls: {calls:?}\n  left: {left:?}\n{snapshot:#?}");
}

/// Waits, as long as [`assert_idle`], until no call of the client is out or waits, and no byte is
/// buffered. It may be connected.
///
/// # Panics
///
/// Something is left; the message says what, and what that comes of.
pub async fn assert_client_idle(client: &Client) {
    if becomes(|| client.snapshot().is_idle()).await {
        return;
    }
    let snapshot = client.snapshot();
    let left: Vec<_> = snapshot.left().collect();
    let why =
        "a call was not awaited to its end, nor dropped, or its stream is kept, or the client still tries to connect";
    panic!("the client is not idle: {why}\n  left: {left:?}\n{snapshot:#?}");
}

/// Whether it is so within the time that a connection may take to close.
async fn becomes(is_so: impl Fn() -> bool) -> bool {
    for _ in 0..CLOSE_TIME_MS {
        if is_so() {
            return true;
        }
        sleep(Duration::from_millis(1)).await;
    }
    is_so()
}

/// A pipe takes so many bytes that nobody has read.
const PIPE_LEN: usize = 64 * 1024;
const CLOSE_TIME_MS: u32 = 2_500;
