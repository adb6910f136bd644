//! The items of one call that is out: what has come and was not taken, and what is to be sent.

use std::task::Waker;

use rpc_codec::{CallKind, Inflow, Outflow, late_frames};

/// The items of a call, both ways. They live in its slot, under the lock of its connection: the
/// connection's task has that lock for a whole read anyway, and a consumer takes all that has come at once.
#[derive(Debug)]
pub(crate) struct Items {
    pub(crate) kind: CallKind,
    pub(crate) outflow: Outflow,
    pub(crate) inflow: Inflow,
    pub(crate) threshold: usize,
    /// The connection has the call among those it takes items from.
    pub(crate) queued: bool,
    /// The parts of the request are still to be queued, which go before items.
    pub(crate) held_back: bool,
    /// The last item is in the queue, and END behind it.
    pub(crate) ended: bool,
    pub(crate) sender: Option<Waker>,
    /// Credit that the server is owed, and is told of when it has read what it was told before.
    pub(crate) withheld: u32,
    server_window: u32,
}

impl Items {
    pub(crate) fn new(kind: CallKind, client_window: u32, server_window: u32, held_back: bool) -> Box<Self> {
        Box::new(Self {
            kind,
            outflow: Outflow::new(if kind.client_sends() { server_window } else { 0 }),
            inflow: Inflow::new(if kind.server_sends() { client_window } else { 0 }),
            threshold: DEFAULT_THRESHOLD,
            queued: false,
            held_back,
            ended: false,
            sender: None,
            withheld: 0,
            server_window,
        })
    }

    /// Whether an item may be sent now.
    pub(crate) fn is_ready(&self) -> bool {
        self.outflow.is_ready(self.threshold)
    }

    /// The sender's waker if it may go on.
    pub(crate) fn ready_sender(&mut self) -> Option<Waker> {
        if self.is_ready() { self.sender.take() } else { None }
    }

    /// The server has said what its window is; until then the call counted on the least one.
    pub(crate) fn widen(&mut self, server_window: u32) -> Option<Waker> {
        let more = server_window.saturating_sub(self.server_window);
        self.server_window = self.server_window.max(server_window);
        if self.kind.client_sends() && more > 0 {
            self.outflow.widen(more);
        }
        self.ready_sender()
    }

    /// How many frames an honest server may still have under way.
    pub(crate) fn frames_to_come(&self) -> u64 {
        let parts = u64::from(self.inflow.is_within_item());
        late_frames(self.inflow.credit()) + parts + self.outflow.credits_to_come(self.server_window)
    }
}

/// How many bytes may be pending before a producer waits.
pub(crate) const DEFAULT_THRESHOLD: usize = 32 * 1024;
