//! The items of one call that is out: what has come and was not taken, and what is to be sent.

use std::{convert::Infallible, task::Waker};

use rpc_codec::{
    CallKind, EncodeError, Inflow, ItemError, Outflow, SendBounds, charge, encode_end, encode_item, late_frames,
};
use rpc_core::CallId;

use crate::connection::keep;

/// The items of a call, both ways. They live in its slot, under the lock of its connection: the
/// connection's task has that lock for a whole read anyway, and a consumer takes all that has come at once.
#[derive(Debug)]
pub(crate) struct Items {
    pub(crate) kind: CallKind,
    pub(crate) outflow: Outflow,
    /// An item that goes behind those in the queue, and before all others.
    long: Option<Long>,
    pub(crate) inflow: Inflow,
    pub(crate) threshold: usize,
    /// The connection has the call among those it takes items from.
    pub(crate) queued: bool,
    /// The parts of the request are still to be queued, which go before items.
    pub(crate) held_back: bool,
    /// The last item was sent: END goes behind it.
    pub(crate) ended: bool,
    /// Who waits for room, or to hear what becomes of the long item.
    pub(crate) sender: Option<Waker>,
    /// Credit that the server is owed, and is told of when it has read what it was told before.
    pub(crate) withheld: u32,
    server_window: u32,
}

/// An item that is too long for a server that has not said yet what it takes.
#[derive(Debug)]
enum Long {
    /// Encoded, and kept until the server says so.
    Kept(Vec<u8>),
    /// It has said so, and takes none as long as that, which the sink is still to be told.
    TooLong(EncodeError),
}

impl Items {
    pub(crate) fn new(kind: CallKind, client_window: u32, server_window: u32, held_back: bool) -> Box<Self> {
        Box::new(Self {
            kind,
            outflow: Outflow::new(if kind.client_sends() { server_window } else { 0 }),
            long: None,
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
        self.outflow.is_ready(self.threshold) && self.long.is_none()
    }

    /// Whether an item may be sent at all, whatever is pending.
    pub(crate) fn may_send(&self) -> bool {
        self.outflow.credit() > 0 && self.long.is_none()
    }

    /// Bytes of items that the connection has not taken.
    pub(crate) fn pending(&self) -> usize {
        let kept = match &self.long {
            Some(Long::Kept(item)) => item.len(),
            _ => 0,
        };
        self.outflow.queue.len() + kept
    }

    /// Keeps an encoded item until it is settled what becomes of it.
    pub(crate) fn keep_long(&mut self, item: Vec<u8>) {
        self.long = Some(Long::Kept(item));
    }

    /// Whether it is still to be settled what becomes of a long item.
    pub(crate) fn keeps_long(&self) -> bool {
        matches!(self.long, Some(Long::Kept(_)))
    }

    /// What is wrong with the long item. Told once.
    pub(crate) fn take_too_long(&mut self) -> Option<EncodeError> {
        match self.long.take() {
            Some(Long::TooLong(error)) => Some(error),
            other => {
                self.long = other;
                None
            }
        }
    }

    /// The server takes so much: the item that is kept goes into the queue, and END behind it if that was the last.
    pub(crate) fn settle_long(&mut self, id: CallId, bounds: SendBounds) {
        let Some(Long::Kept(item)) = self.long.take() else { return };
        let mut frames = Vec::new();
        let encoded = encode_item::<Infallible>(&mut frames, id, bounds, |out| {
            out.extend_from_slice(&item);
            Ok(())
        });
        match encoded {
            Ok(len) => {
                if self.ended {
                    encode_end(&mut frames, id);
                }
                self.outflow.push(&mut frames, 1, charge(len));
            }
            Err(ItemError::TooLong(error)) => self.long = Some(Long::TooLong(error)),
        }
    }

    /// The last item was sent. END, which needs no credit, goes behind it; behind one that is kept, when that goes.
    pub(crate) fn end(&mut self, id: CallId) {
        self.ended = true;
        if !self.keeps_long() {
            let mut end = Vec::new();
            encode_end(&mut end, id);
            self.outflow.push(&mut end, 0, 0);
        }
    }

    /// Nothing is sent any more.
    pub(crate) fn stop_sending(&mut self) -> Option<Waker> {
        self.outflow.queue.clear();
        self.long = None;
        self.sender.take()
    }

    /// Has `waker` woken when there may be room, or it is settled what becomes of a long item. The one that it
    /// replaces is dropped outside of the lock.
    #[must_use]
    pub(crate) fn wake_later(&mut self, waker: &Waker) -> Option<Waker> {
        keep(&mut self.sender, waker)
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
