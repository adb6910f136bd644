//! What the server knows of each open connection: how to wake it, its own limits, and what it is asked.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use rpc_core::{
    CallId, ConnectionId, ConnectionInfo,
    limit::{ConcurrencyLimit, RateLimit},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};

use crate::{connection::Connection, in_flight::Place, ready::Ready};

/// A connection, as others than its own task see it.
#[derive(Default)]
pub(crate) struct Peer {
    pub(crate) ready: Arc<Ready>,
    limits: Mutex<Vec<Arc<ConcurrencyLimit>>>,
    rates: Mutex<Vec<Arc<RateLimit>>>,
    /// Whether anybody asks; so that a turn in which nobody does takes no lock.
    asked: AtomicBool,
    askers: Mutex<Vec<oneshot::Sender<Vec<Holder>>>>,
    /// What the last turn left in buffers.
    outbound: AtomicUsize,
    inbound: AtomicUsize,
}

impl Peer {
    /// Notes a limit that is the connection's own.
    pub(crate) fn has_limit(&self, limit: &Arc<ConcurrencyLimit>) {
        lock(&self.limits).push(Arc::clone(limit));
    }

    /// Notes a rate that is the connection's own.
    pub(crate) fn has_rate(&self, rate: &Arc<RateLimit>) {
        lock(&self.rates).push(Arc::clone(rate));
    }

    /// The connection's own limit of this name.
    pub(crate) fn limit(&self, name: &str) -> Option<Arc<ConcurrencyLimit>> {
        lock(&self.limits).iter().find(|limit| limit.name() == name).cloned()
    }

    /// The connection's own rate of this name.
    pub(crate) fn rate(&self, name: &str) -> Option<Arc<RateLimit>> {
        lock(&self.rates).iter().find(|rate| rate.name() == name).cloned()
    }

    /// Notes what a turn has left in buffers. Only the connection's task writes it.
    pub(crate) fn note_buffered(&self, outbound: usize, inbound: usize) {
        for (noted, len) in [(&self.outbound, outbound), (&self.inbound, inbound)] {
            if noted.load(Ordering::Relaxed) != len {
                noted.store(len, Ordering::Relaxed);
            }
        }
    }

    /// What it has in buffers.
    pub(crate) fn snapshot(&self, id: ConnectionId) -> ConnectionSnapshot {
        let [buffered_bytes, inbound_bytes] =
            [&self.outbound, &self.inbound].map(|noted| noted.load(Ordering::Relaxed) as u64);
        ConnectionSnapshot { id, buffered_bytes, inbound_bytes }
    }

    /// Asks the connection's task who holds permits. The answer does not come if it ends before.
    pub(crate) fn ask(&self) -> oneshot::Receiver<Vec<Holder>> {
        let (sender, receiver) = oneshot::channel();
        lock(&self.askers).push(sender);
        self.asked.store(true, Ordering::Release);
        self.ready.wake_connection();
        receiver
    }

    fn take_askers(&self) -> Vec<oneshot::Sender<Vec<Holder>>> {
        if !self.asked.load(Ordering::Relaxed) || !self.asked.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut lock(&self.askers))
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("limits", &lock(&self.limits)).finish_non_exhaustive()
    }
}

/// What one connection has in buffers, as its last turn left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// The connection, as services know it by [`ConnectionInfo::id`].
    pub id: ConnectionId,
    /// Its part of [`Snapshot::buffered_bytes`](crate::Snapshot::buffered_bytes).
    pub buffered_bytes: u64,
    /// Its part of [`Snapshot::inbound_bytes`](crate::Snapshot::inbound_bytes).
    pub inbound_bytes: u64,
}

/// A call that the server has accepted and not yet got rid of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The connection it came by.
    pub connection: ConnectionInfo,
    /// The id on its connection.
    pub call: CallId,
    /// The path of its method.
    pub method: String,
    /// What it holds its permit for.
    pub state: HolderState,
    /// When it was received; not known of those whose responses are being written.
    pub received: Option<Instant>,
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderState {
    /// It waits in the pipeline. It has the permits of what it has passed, and one that waits for a permit
    /// has none.
    Waiting,
    /// Its body is still coming. It has the permits of what it has passed, and none of calls in flight.
    Receiving,
    /// Its service is at work.
    Running,
    /// Its response is there, and has not left.
    Writing,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Tells whoever has asked which calls hold permits.
    pub(crate) fn tell_askers(&mut self) {
        for asker in self.peer.take_askers() {
            // Whoever asked may have gone.
            let _ = asker.send(self.holders());
        }
    }

    fn holders(&self) -> Vec<Holder> {
        let holder = |call, method, state, received| Holder {
            connection: (*self.info).clone(),
            call,
            method: self.server.methods.get(method).info.path().to_owned(),
            state,
            received,
        };
        let pending = self.in_flight.iter().map(|pending| {
            let state = match pending.place {
                Place::Waiting(_) => HolderState::Waiting,
                Place::Receiving(_) => HolderState::Receiving,
                Place::Slot(_) | Place::Task { .. } => HolderState::Running,
            };
            holder(pending.id, pending.method, state, Some(pending.received))
        });
        let unwritten = self.writer.unwritten_calls();
        let writing = unwritten.filter_map(|(id, method)| Some(holder(id, method?, HolderState::Writing, None)));
        pending.chain(writing).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
