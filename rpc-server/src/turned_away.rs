//! Which limit a connection was too many for, and how often that was so.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::gauges::{ADDRESS_CONNECTIONS, CONNECTIONS};

/// A limit of connections that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooMany {
    /// Of the server.
    Connections,
    /// Of the peer's address.
    OfAddress,
}

impl TooMany {
    const ALL: [Self; 2] = [Self::Connections, Self::OfAddress];

    /// As it is called in [`crate::Snapshot::connections_turned_away`].
    const fn limit(self) -> &'static str {
        match self {
            Self::Connections => CONNECTIONS,
            Self::OfAddress => ADDRESS_CONNECTIONS,
        }
    }

    /// What the people behind the peer are told.
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::Connections => "the server has as many connections as it takes",
            Self::OfAddress => "the server has as many connections of this address as it takes",
        }
    }
}

/// How many connections were turned away, by limit.
#[derive(Debug, Default)]
pub(crate) struct TurnedAwayCounts([AtomicU64; TooMany::ALL.len()]);

impl TurnedAwayCounts {
    pub(crate) fn count(&self, limit: TooMany) {
        self.0[limit as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        let counts = TooMany::ALL.iter().map(|&limit| (limit.limit(), self.0[limit as usize].load(Ordering::Relaxed)));
        counts.filter(|&(_, count)| count > 0).collect()
    }
}
