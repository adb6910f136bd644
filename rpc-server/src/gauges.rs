//! What is in use, exactly: each figure is read from the thing itself or from a counter that its
//! owner's drop gives back.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rpc_core::{
    Refusal, RefusalReason,
    limit::{ConcurrencyLimit, ConcurrencySnapshot},
};

use crate::{
    cut::CutCounts,
    limits::{Limits, TenantsSnapshot},
    turned_away::TurnedAwayCounts,
};

/// The figures of a server at one moment.
///
/// At every instant `calls.acquired == calls.released + calls.held`. When nothing runs and nobody
/// is connected, everything that is held, open or buffered is zero; see [`Snapshot::is_idle`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Calls in flight: admitted, and their responses not yet written.
    pub calls: ConcurrencySnapshot,
    /// Calls of blocking methods in flight: those that have or wait for a thread, and those whose
    /// responses are not yet written.
    pub blocking: ConcurrencySnapshot,
    /// Calls that wait in the pipeline, for their bodies or for their service.
    pub calls_parked: u64,
    /// Of these, calls that wait for a permit.
    pub calls_waiting: u64,
    /// Of those that are parked, calls whose service was called and has not ended. One that is at work for the first
    /// time counts once it has to wait, or runs in a task or on a thread of its own; one that blocks and whose caller has
    /// gone counts in `blocking` alone.
    pub services_running: u64,
    /// Limits of calls in flight that were configured: of methods by `package.Service/Method`, of pools by
    /// their names, and of `bytes`.
    pub limits: BTreeMap<&'static str, ConcurrencySnapshot>,
    /// How many classes of calls are turned away, see [`crate::ServerBuilder::shed_by_priority`].
    pub classes_shed: u64,
    /// What tenants there are, if they have limits.
    pub tenants: TenantsSnapshot,
    /// Open connections.
    pub connections: u64,
    /// Open connections whose client has not said HELLO yet.
    pub handshakes: u64,
    /// Response bytes that the sockets have not taken yet.
    pub buffered_bytes: u64,
    /// Calls with items that have not ended.
    pub streams: u64,
    /// Bytes of items that services have sent and connections have not taken, and that have come and services have
    /// not taken.
    pub stream_bytes: u64,
    /// Items of clients that had to wait for a rate before a service was handed them, so far.
    pub items_paced: u64,
    /// Bytes reserved for request bodies that came, or come, in parts, and for items of clients' streams that services
    /// have not consumed. Windows of streams that are open take none.
    pub body_bytes: u64,
    /// Received bytes of frames that are not whole yet, or whose turn has not come.
    pub inbound_bytes: u64,
    /// Bytes taken of [`frame_budget`](crate::ServerBuilder::frame_budget) by long frames that have begun.
    pub frame_bytes: u64,
    /// Calls turned away, by the name of the limit, or by the reason when no limit refused. Calls that were ended
    /// because an item came too slowly or found no room, or no item came or went, are among them.
    pub refused: BTreeMap<&'static str, u64>,
    /// The same calls by the reason, such as those that found a queue full.
    pub refused_by_reason: BTreeMap<&'static str, u64>,
    /// Calls that would have been turned away and were let pass, counted in the same way; see
    /// [`crate::LiveLimits::set_dry_run`].
    pub would_refuse: BTreeMap<&'static str, u64>,
    /// Panics of services, handlers, encoding, decoding and drops; each cost its call at most.
    pub panics: u64,
    /// Methods that run in tasks of their own because their polls were slow.
    pub methods_demoted: u64,
    /// Connections that were closed because the peer broke the protocol.
    pub protocol_errors: u64,
    /// Frames ignored as the protocol asks: of unknown ignorable kinds, or late for their call.
    pub frames_ignored: u64,
    /// Attempts to accept a connection that failed.
    pub accept_errors: u64,
    /// Connections given up by reason, those that occurred: `first byte`, `handshake`, `frame` and
    /// `write` for what was not done in time, `frame budget` for a long frame for which there was no room,
    /// `keepalive` for a PING without an answer, `idle`, `flood`
    /// for too many frames that open no call, and `age` for those that were told to go when they
    /// reached it.
    pub connections_cut: BTreeMap<&'static str, u64>,
    /// Connections that were too many, by the limit, those that refused any: `connections` for
    /// [`max_connections`](crate::ServerBuilder::max_connections), `address connections` for
    /// [`max_connections_per_address`](crate::ServerBuilder::max_connections_per_address). Each was closed, and never
    /// among the open ones.
    pub connections_turned_away: BTreeMap<&'static str, u64>,
}

impl Snapshot {
    /// Whether nobody is connected and nothing is left of anybody: no call is in flight or parked, no
    /// permit held, no byte buffered. The counters of what has happened do not matter.
    pub fn is_idle(&self) -> bool {
        self.left().next().is_none()
    }

    /// What is left of somebody: the gauges that are not zero, by the names of their fields or limits. None, if the
    /// server is idle.
    pub fn left(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let limits = self.limits.iter().map(|(name, limit)| (*name, limit.held));
        let gauges = [
            ("calls", self.calls.held),
            ("blocking", self.blocking.held),
            ("calls_parked", self.calls_parked),
            ("calls_waiting", self.calls_waiting),
            ("services_running", self.services_running),
            ("tenants", self.tenants.held),
            ("connections", self.connections),
            ("handshakes", self.handshakes),
            ("buffered_bytes", self.buffered_bytes),
            ("streams", self.streams),
            ("stream_bytes", self.stream_bytes),
            ("body_bytes", self.body_bytes),
            ("inbound_bytes", self.inbound_bytes),
            ("frame_bytes", self.frame_bytes),
        ];
        gauges.into_iter().chain(limits).filter(|(_, value)| *value > 0)
    }
}

/// The counters that connections share.
#[derive(Debug)]
pub(crate) struct Gauges {
    pub(crate) limits: Arc<Limits>,
    pub(crate) connections: Arc<ConcurrencyLimit>,
    /// In bytes.
    pub(crate) bodies: Arc<ConcurrencyLimit>,
    /// In bytes beyond what each connection may keep.
    pub(crate) frames: Arc<ConcurrencyLimit>,
    pub(crate) refused: RefusedCounts,
    pub(crate) would_refuse: RefusedCounts,
    pub(crate) parked: Arc<AtomicU64>,
    pub(crate) waiting: Arc<AtomicU64>,
    /// Of those that are parked, calls whose service was not called yet.
    pub(crate) in_pipeline: Arc<AtomicU64>,
    pub(crate) handshakes: Arc<AtomicU64>,
    pub(crate) buffered_bytes: Arc<AtomicU64>,
    pub(crate) inbound_bytes: Arc<AtomicU64>,
    pub(crate) streams: Arc<AtomicU64>,
    pub(crate) stream_bytes: Arc<AtomicU64>,
    pub(crate) items_paced: Arc<AtomicU64>,
    pub(crate) panics: Arc<AtomicU64>,
    pub(crate) methods_demoted: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
    pub(crate) frames_ignored: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    pub(crate) cuts: CutCounts,
    pub(crate) turned_away: TurnedAwayCounts,
}

impl Gauges {
    pub(crate) fn new(
        limits: Arc<Limits>,
        connections: Arc<ConcurrencyLimit>,
        bodies: Arc<ConcurrencyLimit>,
        frames: Arc<ConcurrencyLimit>,
    ) -> Self {
        Self {
            refused: RefusedCounts::new(limits.named().map(|limit| limit.name())),
            would_refuse: RefusedCounts::new(limits.named().map(|limit| limit.name())),
            limits,
            connections,
            bodies,
            frames,
            parked: Arc::default(),
            waiting: Arc::default(),
            in_pipeline: Arc::default(),
            handshakes: Arc::default(),
            buffered_bytes: Arc::default(),
            inbound_bytes: Arc::default(),
            streams: Arc::default(),
            stream_bytes: Arc::default(),
            items_paced: Arc::default(),
            panics: Arc::default(),
            methods_demoted: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
            frames_ignored: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            cuts: CutCounts::default(),
            turned_away: TurnedAwayCounts::default(),
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let calls_parked = self.parked.load(Ordering::Relaxed);
        Snapshot {
            calls: self.limits.global.snapshot(),
            blocking: self.limits.blocking.snapshot(),
            calls_parked,
            calls_waiting: self.waiting.load(Ordering::Relaxed),
            // Most calls never wait in the pipeline, so those that do are counted.
            services_running: calls_parked.saturating_sub(self.in_pipeline.load(Ordering::Relaxed)),
            limits: self.limits.named().map(|limit| (limit.name(), limit.snapshot())).collect(),
            classes_shed: self.limits.priority().map_or(0, |gate| gate.level()),
            tenants: self.limits.tenants().map(|tenants| tenants.snapshot()).unwrap_or_default(),
            connections: self.connections.snapshot().held,
            handshakes: self.handshakes.load(Ordering::Relaxed),
            buffered_bytes: self.buffered_bytes.load(Ordering::Relaxed),
            streams: self.streams.load(Ordering::Relaxed),
            stream_bytes: self.stream_bytes.load(Ordering::Relaxed),
            items_paced: self.items_paced.load(Ordering::Relaxed),
            body_bytes: self.bodies.snapshot().held,
            inbound_bytes: self.inbound_bytes.load(Ordering::Relaxed),
            frame_bytes: self.frames.snapshot().held,
            refused: self.refused.snapshot(),
            refused_by_reason: self.refused.reasons(),
            would_refuse: self.would_refuse.snapshot(),
            panics: self.panics.load(Ordering::Relaxed),
            methods_demoted: self.methods_demoted.load(Ordering::Relaxed),
            protocol_errors: self.protocol_errors.load(Ordering::Relaxed),
            frames_ignored: self.frames_ignored.load(Ordering::Relaxed),
            accept_errors: self.accept_errors.load(Ordering::Relaxed),
            connections_cut: self.cuts.snapshot(),
            connections_turned_away: self.turned_away.snapshot(),
        }
    }
}

/// One connection's share of a gauge that all connections add up to. Dropping it takes the share
/// back.
#[derive(Debug)]
pub(crate) struct Share {
    total: Arc<AtomicU64>,
    own: u64,
}

impl Share {
    pub(crate) fn of(total: &Arc<AtomicU64>) -> Self {
        Self { total: Arc::clone(total), own: 0 }
    }

    /// One that counts until it is dropped.
    pub(crate) fn one_of(total: &Arc<AtomicU64>) -> Self {
        let mut one = Self::of(total);
        one.set(1);
        one
    }

    /// Another share of the same gauge.
    pub(crate) fn another(&self) -> Self {
        Self::of(&self.total)
    }

    pub(crate) fn get(&self) -> usize {
        self.own as usize
    }

    pub(crate) fn set(&mut self, own: usize) {
        let own = own as u64;
        if own != self.own {
            // Wraps below zero and back; the sum of all shares is right at every moment.
            self.total.fetch_add(own.wrapping_sub(self.own), Ordering::Relaxed);
            self.own = own;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// How many calls were turned away, by limit and reason.
#[derive(Debug)]
pub(crate) struct RefusedCounts {
    limits: Vec<&'static str>,
    /// A row for each limit, and one for what no limit of these refused; in it one for each reason.
    counts: Vec<AtomicU64>,
}

/// The names of the limits that a server has by default.
pub(crate) const GLOBAL: &str = "global";
pub(crate) const CONNECTION: &str = "connection";
pub(crate) const BLOCKING: &str = "blocking";
pub(crate) const GLOBAL_RATE: &str = "global rate";
pub(crate) const CONNECTION_RATE: &str = "connection rate";
pub(crate) const GLOBAL_ITEM_RATE: &str = "global item rate";
pub(crate) const CONNECTION_ITEM_RATE: &str = "connection item rate";
pub(crate) const GLOBAL_BODIES: &str = "global bodies";
pub(crate) const GLOBAL_FRAMES: &str = "global frames";
pub(crate) const CONNECTION_BODIES: &str = "connection bodies";
pub(crate) const BYTES: &str = "bytes";
pub(crate) const PRIORITY: &str = "priority";
pub(crate) const CONNECTIONS: &str = "connections";
pub(crate) const ADDRESS_CONNECTIONS: &str = "address connections";
pub(crate) const TENANT: &str = "tenant";
pub(crate) const TENANT_RATE: &str = "tenant rate";
/// What no limit of the user's may be called.
pub(crate) const RESERVED_NAMES: [&str; 16] = [
    GLOBAL,
    CONNECTION,
    BLOCKING,
    GLOBAL_RATE,
    CONNECTION_RATE,
    GLOBAL_ITEM_RATE,
    CONNECTION_ITEM_RATE,
    GLOBAL_BODIES,
    GLOBAL_FRAMES,
    CONNECTION_BODIES,
    BYTES,
    CONNECTIONS,
    ADDRESS_CONNECTIONS,
    PRIORITY,
    TENANT,
    TENANT_RATE,
];

impl RefusedCounts {
    /// Counts of the limits that a server always has, and of those named.
    fn new(named: impl Iterator<Item = &'static str>) -> Self {
        let named = named.filter(|name| !RESERVED_NAMES.contains(name));
        let limits: Vec<_> = RESERVED_NAMES.into_iter().chain(named).collect();
        let counts = (0..(limits.len() + 1) * REASONS).map(|_| AtomicU64::new(0)).collect();
        Self { limits, counts }
    }

    /// Counts a refusal, and says which of its kind it is.
    pub(crate) fn count(&self, refusal: &Refusal) -> u64 {
        let name = refusal.limit();
        // Most often it is the very same text.
        let is_it = |known: &&str| std::ptr::eq(*known, name) || *known == name;
        let limit = self.limits.iter().position(is_it).unwrap_or(self.limits.len());
        self.counts[limit * REASONS + refusal.reason() as usize].fetch_add(1, Ordering::Relaxed) + 1
    }

    /// By the limit, or by the reason where none of ours refused.
    fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        let mut refused = BTreeMap::new();
        for (limit, reason, count) in self.cells() {
            *refused.entry(limit.unwrap_or(reason)).or_default() += count;
        }
        refused
    }

    /// By the reason alone.
    fn reasons(&self) -> BTreeMap<&'static str, u64> {
        let mut refused = BTreeMap::new();
        for (_, reason, count) in self.cells() {
            *refused.entry(reason).or_default() += count;
        }
        refused
    }

    fn cells(&self) -> impl Iterator<Item = (Option<&'static str>, &'static str, u64)> {
        let limits = self.limits.iter().map(|limit| Some(*limit)).chain([None]);
        let names = limits.flat_map(|limit| RefusalReason::ALL.iter().map(move |reason| (limit, reason.name())));
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        names.zip(counts).map(|((limit, reason), count)| (limit, reason, count)).filter(|(.., count)| *count > 0)
    }
}

const REASONS: usize = RefusalReason::ALL.len();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_goes_back_when_its_connection_goes() {
        let total = Arc::new(AtomicU64::new(0));
        let (mut a, mut b) = (Share::of(&total), Share::of(&total));
        a.set(700);
        b.set(40);
        a.set(2);
        assert_eq!(total.load(Ordering::Relaxed), 42);
        drop(a);
        assert_eq!(total.load(Ordering::Relaxed), 40);
        drop(b);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn refusals_count_by_limit_and_without_one_by_reason() {
        let counts = RefusedCounts::new(["writes"].into_iter());
        counts.count(&Refusal::new(RefusalReason::QueueFull).with_limit("writes", 1, 1));
        counts.count(&Refusal::new(RefusalReason::RateLimit).with_limit(GLOBAL_RATE, 1, 1));
        counts.count(&Refusal::new(RefusalReason::UnknownMethod));
        counts.count(&Refusal::new(RefusalReason::ConcurrencyLimit).with_limit("a user's own", 1, 1));
        let snapshot = counts.snapshot();
        let expected = [("CONCURRENCY_LIMIT", 1), ("UNKNOWN_METHOD", 1), ("global rate", 1), ("writes", 1)];
        assert_eq!(snapshot.into_iter().collect::<Vec<_>>(), expected);
        let expected = [("CONCURRENCY_LIMIT", 1), ("QUEUE_FULL", 1), ("RATE_LIMIT", 1), ("UNKNOWN_METHOD", 1)];
        assert_eq!(counts.reasons().into_iter().collect::<Vec<_>>(), expected);
        assert!(RefusalReason::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
    }
}
