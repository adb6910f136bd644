//! The list of a connection's parked calls that want to be polled.

use std::{
    mem,
    sync::{Arc, PoisonError},
    task::{Wake, Waker},
};

use rpc_core::CallId;

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// The calls of one connection that were woken, and how to wake the connection itself.
///
/// Every parked call has a waker of its own that puts its key here, so one wake-up polls one call
/// and not all of them.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    keys: Vec<Key>,
    connection: Option<Waker>,
}

/// Which of a connection's calls was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A call parked in a slot of its method.
    Slot {
        /// The method's index.
        method: u32,
        /// The slot within it.
        slot: u32,
    },
    /// A call that waits in the pipeline, by its index among the calls in flight.
    Waiting(usize),
    /// A call whose service has sent or taken items.
    Stream(CallId),
}

impl Ready {
    /// Makes `waker` the one that wakes the connection, and swaps the woken keys into `keys`, which
    /// must be empty, so that both lists keep their memory. Whether the waker is another one than before.
    pub(crate) fn take(&self, waker: &Waker, keys: &mut Vec<Key>) -> bool {
        debug_assert!(keys.is_empty());
        let mut list = self.lock();
        let changed = !list.connection.as_ref().is_some_and(|known| known.will_wake(waker));
        if changed {
            list.connection = Some(waker.clone());
        }
        mem::swap(&mut list.keys, keys);
        changed
    }

    /// Wakes the connection without a call, to have a look at what is shared.
    pub(crate) fn wake_connection(&self) {
        let waker = self.lock().connection.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Lists `key`, and wakes the connection.
    pub(crate) fn push(&self, key: Key) {
        let waker = {
            let mut list = self.lock();
            list.keys.push(key);
            // One wake-up is enough until the list has been taken.
            if list.keys.len() == 1 { list.connection.clone() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        // Nothing is done under the lock that could leave the list half changed.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pooled waker of one slot. A wake-up that comes late reaches the slot's next tenant as a
/// spurious poll.
#[derive(Debug)]
pub(crate) struct SlotWaker {
    ready: Arc<Ready>,
    key: Key,
    /// Whether the key is in the list, so that a call stands there once.
    listed: AtomicBool,
}

impl SlotWaker {
    pub(crate) fn new(ready: &Arc<Ready>, key: Key) -> Arc<Self> {
        Arc::new(Self { ready: Arc::clone(ready), key, listed: AtomicBool::new(false) })
    }

    /// To be called before the call is polled: a wake-up from then on counts.
    pub(crate) fn unlist(&self) {
        self.listed.store(false, Ordering::Release);
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.listed.swap(true, Ordering::AcqRel) {
            self.ready.push(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key::Slot { method: 1, slot: 2 };

    #[test]
    fn a_call_stands_in_the_list_once_until_it_is_polled() {
        let ready = Arc::new(Ready::default());
        let waker = SlotWaker::new(&ready, KEY);
        let mut keys = Vec::new();
        waker.wake_by_ref();
        waker.wake_by_ref();
        ready.take(Waker::noop(), &mut keys);
        assert_eq!(keys, [KEY]);
        keys.clear();
        waker.wake_by_ref();
        ready.take(Waker::noop(), &mut keys);
        assert!(keys.is_empty(), "not polled since");
        waker.unlist();
        waker.wake_by_ref();
        ready.take(Waker::noop(), &mut keys);
        assert_eq!(keys, [KEY]);
    }
}
