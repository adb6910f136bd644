//! The client: a cheap handle that connects when there is a call to send.

use std::{fmt, future::Future, io, marker::PhantomData, mem, pin::pin, sync::Arc};

use rpc_core::Metadata;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    builder::ClientBuilder,
    call::{Call, InCodec, Method, Untouched},
    config::Config,
    connecting::{Connecting, Phase, Shared, Target, Transport},
    connection::Connection,
    error::CallError,
    gauges::{ClientSnapshot, Token},
};

/// A handle to one server, over one multiplexed connection.
///
/// Cheap to clone; clones share the connection. It connects when there is a call to send, and again
/// after a loss, with backoff. The connection lives on the tokio runtime of the call that it was made for, which must have
/// time and, for sockets, I/O enabled (`enable_all`); when that runtime ends, the next call makes another. When the last handle and the last call are gone, it says goodbye; an
/// attempt to connect that is still under way is given up.
///
/// What a server may do to it is bounded: how long it may be silent, how long it may take to greet, to
/// end a frame and to take what is written, how long its frames may be, and how many it may send that
/// end no call. A connection that breaks a bound is given up, and its calls fail with the cause.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// A client of the server at `address`: a `SocketAddr`, or text such as `127.0.0.1:7000` or
    /// `books.internal:7000`. A name is resolved at every attempt to connect.
    pub fn new(address: impl fmt::Display) -> Self {
        Self::builder(address).build()
    }

    /// A client of the server at `address`, as for [`Client::new`], to be configured.
    pub fn builder(address: impl fmt::Display) -> ClientBuilder {
        let address = address.to_string();
        let peer = Arc::from(address.as_str());
        ClientBuilder::of(peer, Target::Tcp(address))
    }

    /// A client that gets each connection from `connect`: a socket of another kind, or a pipe in
    /// memory. `peer` names the other end in errors.
    pub fn with_connector<F, Fut, T>(peer: impl Into<String>, connect: F) -> ClientBuilder
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<T>> + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connect = move || -> Connecting {
            let connecting = connect();
            Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Transport>) })
        };
        ClientBuilder::of(peer.into().into(), Target::Custom(Box::new(connect)))
    }

    /// The generated client of a service, on this connection.
    pub fn service<S: ServiceClient>(&self) -> S {
        S::from_client(self.clone())
    }

    /// A call of `method` with the tuple `args`; it does nothing until it is awaited. Generated
    /// clients make these.
    pub fn call<A, R>(&self, method: Method, args: A) -> Call<A, R, InCodec> {
        Call::new(self.clone(), method, args)
    }

    /// A call of a method that takes and returns bytes; generated clients make these.
    pub fn call_bytes(&self, method: Method, body: bytes::Bytes) -> Call<bytes::Bytes, bytes::Bytes, Untouched> {
        Call::new(self.clone(), method, body)
    }

    /// Takes no more calls. Those that are out are waited for, then the connection is closed.
    pub fn close(&self) {
        let phase = mem::replace(&mut self.shared.lock().phase, Phase::Closed);
        if let Phase::Open(connection) = phase {
            connection.close();
        }
        self.shared.changed.notify_waiters();
        self.shared.abandoned.notify_waiters();
    }

    /// The client's figures at this moment.
    pub fn snapshot(&self) -> ClientSnapshot {
        let connected = matches!(self.shared.lock().phase, Phase::Open(_));
        self.shared.gauges.snapshot(connected)
    }

    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.shared.lock().phase, Phase::Closed)
    }

    #[cfg(feature = "tower")]
    pub(crate) fn layers(&self) -> Option<&crate::tower::Next> {
        self.shared.layers.as_ref()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    pub(crate) fn peer(&self) -> &Arc<str> {
        &self.shared.peer
    }

    /// The open connection, if there is one; the common case.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        match &self.shared.lock().phase {
            Phase::Open(connection) => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// The open connection, once there is one.
    ///
    /// # Errors
    ///
    /// Unless it waits for one, whatever it takes: the attempt that it waits for fails, or the last
    /// one did and the next is not due yet. The client is closed.
    ///
    /// # Cancel safety
    ///
    /// An attempt that was begun goes on for whoever else waits for it.
    pub(crate) async fn connected(&self, patience: Patience) -> Result<Arc<Connection>, CallError> {
        let _waiting = Token::new(&self.shared.gauges.waiting_for_connection);
        let mut began = None;
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            match self.shared.step(&mut began, patience)? {
                Some(connection) => return Ok(connection),
                None => changed.await,
            }
        }
    }

    /// Forgets a connection that takes no more calls, so that the next call gets a new one.
    pub(crate) fn forget(&self, gone: &Arc<Connection>) {
        {
            let mut manager = self.shared.lock();
            if !manager.is_open(gone) {
                return;
            }
            let Some(parting) = gone.left() else { return };
            manager.part(parting);
        }
        // Who is not asked any more may leave: one that has used up its ids does not know yet.
        gone.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("peer", &self.shared.peer).finish_non_exhaustive()
    }
}

/// A generated client of one service. It has no constructor of its own, so that none can have the
/// name of one of the service's methods; [`Client::service`] makes it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a client type that `#[sluicegate::service]` made",
    label = "a trait `Library` has the client type `LibraryClient`",
    note = "write the type where the client is made: `let library: LibraryClient = client.service();`"
)]
pub trait ServiceClient {
    /// The client of the service, over `client`'s connection.
    fn from_client(client: Client) -> Self;
}

/// What a call does about a server that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It fails.
    FailFast,
    /// It waits.
    WaitForReady,
}

impl Patience {
    pub(crate) fn of(wait: bool) -> Self {
        if wait { Self::WaitForReady } else { Self::FailFast }
    }
}

#[cfg(all(test, shuttle))]
impl Client {
    /// Makes an attempt to connect look under way, which a test of schedules plays.
    pub(crate) fn begin_attempt(&self) {
        self.shared.lock().phase = Phase::Connecting;
    }

    /// The attempt succeeds with `transport`; drives the connection to its end.
    pub(crate) fn drive<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        transport: T,
    ) -> impl Future<Output = ()> + use<T> {
        crate::connecting::Attempt::drive(Arc::clone(&self.shared), Box::new(transport))
    }

    /// The attempt fails.
    pub(crate) fn fail_attempt(&self) {
        crate::connecting::Attempt::new(&self.shared).ends(Some(io::ErrorKind::ConnectionRefused.into()));
    }
}

/// What a call brought besides its value.
#[derive(Debug)]
pub struct Response<R> {
    /// The value.
    pub value: R,
    /// The metadata that handlers of the server put beside it.
    pub metadata: Metadata,
    pub(crate) _private: PhantomData<()>,
}
