//! Why the server gives up a connection whose peer broke no rule of the wire, and how often it did.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use rpc_codec::GoAwayReason;

/// Why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing came at all.
    FirstByte,
    /// The HELLO did not come, or not all of it.
    Handshake,
    /// A frame was begun and not ended.
    Frame,
    /// Nothing came, and a PING was not answered.
    Keepalive,
    /// There was no call for too long.
    Idle,
    /// Too many frames that open no call.
    Flood,
    /// The connection was as old as it may get.
    Age,
    /// The peer took nothing of what was written.
    Write,
    /// A long frame was begun, and there was no room for it.
    FrameRoom,
}

impl Cut {
    const ALL: [Self; 9] = [
        Self::FirstByte,
        Self::Handshake,
        Self::Frame,
        Self::Keepalive,
        Self::Idle,
        Self::Flood,
        Self::Age,
        Self::Write,
        Self::FrameRoom,
    ];

    /// As it is called in [`crate::Snapshot::connections_cut`].
    const fn name(self) -> &'static str {
        match self {
            Self::FirstByte => "first byte",
            Self::Handshake => "handshake",
            Self::Frame => "frame",
            Self::Keepalive => "keepalive",
            Self::Idle => "idle",
            Self::Flood => "flood",
            Self::Age => "age",
            Self::Write => "write",
            Self::FrameRoom => "frame budget",
        }
    }

    /// What the peer's program is told.
    pub(crate) const fn reason(self) -> GoAwayReason {
        match self {
            Self::FirstByte | Self::Handshake => GoAwayReason::HandshakeTimeout,
            Self::Frame | Self::Keepalive | Self::Idle | Self::Write | Self::FrameRoom => GoAwayReason::Timeout,
            Self::Flood => GoAwayReason::TooManyFrames,
            Self::Age => GoAwayReason::Drain,
        }
    }

    /// What the people behind the peer are told.
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::FirstByte => "nothing was said in time",
            Self::Handshake => "no HELLO in time",
            Self::Frame => "a frame was not completed in time",
            Self::Keepalive => "nothing was heard, and a PING was not answered in time",
            Self::Idle => "there was no call for too long",
            Self::Flood => "there are more frames that open no call than the server takes",
            Self::Age => "the connection is as old as it may get",
            Self::Write => "what was written was not taken in time",
            Self::FrameRoom => "there was no room for so long a frame in time",
        }
    }
}

/// How many connections were given up, by reason.
#[derive(Debug, Default)]
pub(crate) struct CutCounts([AtomicU64; Cut::ALL.len()]);

impl CutCounts {
    pub(crate) fn count(&self, cut: Cut) {
        self.0[cut as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        let counts = Cut::ALL.iter().map(|&cut| (cut.name(), self.0[cut as usize].load(Ordering::Relaxed)));
        counts.filter(|&(_, count)| count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_counts_for_itself() {
        let counts = CutCounts::default();
        for (n, cut) in Cut::ALL.into_iter().enumerate() {
            assert_eq!(cut as usize, n);
            (0..=n).for_each(|_| counts.count(cut));
        }
        let snapshot = counts.snapshot();
        assert_eq!((snapshot.len(), snapshot["first byte"], snapshot["write"]), (9, 1, 8));
    }
}
