//! What a client has in use, exactly: each figure is read from the thing itself, from a token that
//! its owner drops, or counts what has happened and only grows.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{connection::Connection, error::LostCause};

/// The figures of a client at one moment, over all of its connections: the open one, and those that
/// still finish what they began.
///
/// When no call is out or waits, everything but `connected` and what only counts is zero:
/// [`ClientSnapshot::is_idle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientSnapshot {
    /// Calls that are out, or whose answers were not fetched yet.
    pub calls: u64,
    /// Calls that wait for a connection.
    pub waiting_for_connection: u64,
    /// Calls that wait on a connection: for room, or for the server to say what it takes.
    pub waiting_for_room: u64,
    /// Bytes that the transports have not taken yet: of frames, of bodies that leave in parts, and of items.
    pub outbound_bytes: u64,
    /// Bytes that have come: of frames and bodies that are not complete, and of answers and items that were not
    /// fetched yet.
    pub inbound_bytes: u64,
    /// Attempts to connect that are under way, or wait until they are due.
    pub connecting: u64,
    /// Whether there is an open connection.
    pub connected: bool,
    /// Answers that came when their caller had gone, or that came twice. They are dropped.
    pub late_answers: u64,
    /// Items and credit that came for calls that had ended. They are dropped.
    pub late_items: u64,
    /// Connections made.
    pub connects: u64,
    /// Attempts that failed.
    pub failed_connects: u64,
    /// Connections that ended otherwise than by a farewell.
    pub lost_connections: u64,
    /// Connections that were given up because nothing came, not even the answer to a PING.
    pub keepalive_timeouts: u64,
    /// Connections that were given up because the server broke the protocol, floods included.
    pub protocol_errors: u64,
}

impl ClientSnapshot {
    /// Whether nothing is under way: no call is out or waits, no byte is buffered, and no attempt to
    /// connect is made. There may be an open connection.
    pub fn is_idle(&self) -> bool {
        self.left().next().is_none()
    }

    /// What is under way: the gauges that are not zero, by the names of their fields. None, if the client is idle.
    pub fn left(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let gauges = [
            ("calls", self.calls),
            ("waiting_for_connection", self.waiting_for_connection),
            ("waiting_for_room", self.waiting_for_room),
            ("outbound_bytes", self.outbound_bytes),
            ("inbound_bytes", self.inbound_bytes),
            ("connecting", self.connecting),
        ];
        gauges.into_iter().filter(|(_, value)| *value > 0)
    }
}

/// What a client counts, and where its connections are.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) waiting_for_connection: Gauge,
    pub(crate) connecting: Arc<Gauge>,
    pub(crate) late_answers: AtomicU64,
    pub(crate) late_items: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) failed_connects: AtomicU64,
    lost_connections: AtomicU64,
    keepalive_timeouts: AtomicU64,
    protocol_errors: AtomicU64,
    /// Those that somebody still has, and some that nobody has any more.
    connections: Mutex<Vec<Weak<Connection>>>,
}

impl Gauges {
    /// A connection was made.
    pub(crate) fn connected(&self, connection: &Arc<Connection>) {
        self.connects.fetch_add(1, Relaxed);
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(connection));
    }

    /// A connection ended otherwise than by a farewell.
    pub(crate) fn lost(&self, cause: &LostCause) {
        self.lost_connections.fetch_add(1, Relaxed);
        match cause {
            LostCause::KeepaliveTimeout { .. } => self.keepalive_timeouts.fetch_add(1, Relaxed),
            LostCause::Protocol(_) | LostCause::Flooded { .. } => self.protocol_errors.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    pub(crate) fn snapshot(&self, connected: bool) -> ClientSnapshot {
        let connections: Vec<_> = {
            let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.iter().filter_map(Weak::upgrade).collect()
        };
        let loads: Vec<_> = connections.iter().map(|connection| connection.load()).collect();
        let sum = |figure: fn(&Load) -> usize| loads.iter().map(|load| figure(load) as u64).sum();
        ClientSnapshot {
            calls: sum(|load| load.calls),
            waiting_for_connection: self.waiting_for_connection.read(),
            waiting_for_room: sum(|load| load.waiting),
            outbound_bytes: sum(|load| load.outbound),
            inbound_bytes: sum(|load| load.inbound),
            connecting: self.connecting.read(),
            connected,
            late_answers: self.late_answers.load(Relaxed),
            late_items: self.late_items.load(Relaxed),
            connects: self.connects.load(Relaxed),
            failed_connects: self.failed_connects.load(Relaxed),
            lost_connections: self.lost_connections.load(Relaxed),
            keepalive_timeouts: self.keepalive_timeouts.load(Relaxed),
            protocol_errors: self.protocol_errors.load(Relaxed),
        }
    }
}

/// What one connection has in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) calls: usize,
    pub(crate) waiting: usize,
    pub(crate) outbound: usize,
    pub(crate) inbound: usize,
}

/// How many tokens are out.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

/// Counts in its gauge until it is dropped.
#[must_use = "it counts for as long as it lives"]
pub(crate) struct Token<G: AsRef<Gauge>>(G);

impl Gauge {
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl AsRef<Self> for Gauge {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<G: AsRef<Gauge>> Token<G> {
    pub(crate) fn new(gauge: G) -> Self {
        gauge.as_ref().0.fetch_add(1, Relaxed);
        Self(gauge)
    }
}

impl<G: AsRef<Gauge>> Drop for Token<G> {
    fn drop(&mut self) {
        self.0.as_ref().0.fetch_sub(1, Relaxed);
    }
}
