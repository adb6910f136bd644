//! Clients whose servers the test plays.

use rpc_core::CallId;
use sluicegate::{CallError, Client, client::ClientBuilder};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    task::JoinHandle,
};

use super::{method, raw::RawServer, shims::Manner};

/// A client whose connections are played by the test: each comes out of the receiver when the client
/// connects. A pipe takes `pipe` bytes that nobody has read.
pub(crate) fn scripted(pipe: usize) -> (ClientBuilder, UnboundedReceiver<RawServer>) {
    scripted_with(Manner::of_this_run(), pipe)
}

/// As [`scripted`], whatever this run asks for.
pub(crate) fn scripted_with(manner: Manner, pipe: usize) -> (ClientBuilder, UnboundedReceiver<RawServer>) {
    let (send, receive) = mpsc::unbounded_channel();
    let builder = Client::with_connector("the scripted server", move || {
        let send = send.clone();
        async move {
            let (ours, theirs) = tokio::io::duplex(pipe);
            // Nobody listens any more once a test has ended.
            let _ = send.send(RawServer::new(theirs));
            Ok(manner.wrap(ours))
        }
    });
    (builder, receive)
}

/// A call on its way.
pub(crate) type Calling = JoinHandle<Result<u64, CallError>>;

/// The first call on a connection, with the server, which advises so many calls and has read the
/// request, and its id.
pub(crate) async fn first_call(
    client: &Client,
    servers: &mut UnboundedReceiver<RawServer>,
    advised_calls: u32,
) -> (Calling, RawServer, CallId) {
    let call = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    let mut server = servers.recv().await.expect("the client connects");
    server.shake_hands(advised_calls).await;
    let (id, _) = server.request().await;
    (call, server, id)
}
