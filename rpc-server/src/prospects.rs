//! What tasks that were spawned a moment ago will want written, counted before it is there.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::{
    ready::Ready,
    sync::{AtomicBool, AtomicUsize, Ordering},
};

/// The replies that are to be expected of one connection's tasks that have not come to anything yet.
///
/// A call that is polled in place has written its reply before the next request is read, so a peer
/// that does not read is met by the high-water mark after a few of them. Tasks would all be spawned
/// before the first of them has a reply. So each counts against the mark with what its method mostly
/// replies, until it has been polled once: then it has either ended, and its reply counts, or it waits for
/// something, as calls that are parked do.
#[derive(Debug)]
pub(crate) struct Prospects {
    bytes: AtomicUsize,
    /// Whether the connection does not read until there are fewer.
    awaited: AtomicBool,
    ready: Arc<Ready>,
    /// What counts of one task, at most.
    most: usize,
}

/// The part of one task. Dropping it takes it back, and wakes the connection if that waits for it.
#[derive(Debug)]
pub(crate) struct Prospect {
    all: Arc<Prospects>,
    bytes: usize,
}

impl Prospects {
    /// However long replies are, as many tasks as the runtime has threads fit under the mark: what
    /// computes has all of them, and no more would help it.
    pub(crate) fn new(ready: &Arc<Ready>, mark: usize) -> Arc<Self> {
        Self::of_threads(ready, mark, Handle::current().metrics().num_workers().max(1))
    }

    /// As `new`, in a runtime of so many threads.
    pub(crate) fn of_threads(ready: &Arc<Ready>, mark: usize, threads: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            awaited: AtomicBool::new(false),
            ready: Arc::clone(ready),
            most: mark / threads,
        })
    }

    /// Counts a task that will reply so many bytes.
    pub(crate) fn count(self: &Arc<Self>, bytes: usize) -> Prospect {
        let bytes = bytes.min(self.most);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        Prospect { all: Arc::clone(self), bytes }
    }

    /// What is expected in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Wakes the connection when there is less. To be followed by another look: it may be less already.
    pub(crate) fn tell_when_less(&self) {
        self.awaited.store(true, Ordering::SeqCst);
    }
}

impl Drop for Prospect {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if self.all.awaited.swap(false, Ordering::SeqCst) {
            self.all.ready.wake_connection();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn as_many_tasks_as_there_are_threads_fit_under_the_mark_and_small_ones_by_the_dozen() {
        let prospects = Prospects::new(&Arc::default(), 1_000);
        let large: Vec<_> = (0..4).map(|_| prospects.count(1 << 20)).collect();
        assert_eq!(prospects.bytes(), 1_000);
        drop(large);
        let small: Vec<_> = (0..64).map(|_| prospects.count(10)).collect();
        assert_eq!(prospects.bytes(), 640);
        drop(small);
        assert_eq!(prospects.bytes(), 0);
    }

    #[tokio::test]
    async fn who_waits_for_fewer_is_woken_once() {
        let (woken, ready) = (Arc::new(Counted::default()), Arc::new(Ready::default()));
        ready.take(&Waker::from(Arc::clone(&woken)), &mut Vec::new());
        let prospects = Prospects::new(&ready, 1_000);
        let mut expected: Vec<_> = (0..3).map(|_| prospects.count(100)).collect();
        expected.pop();
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "nobody waits");
        prospects.tell_when_less();
        expected.clear();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    }
}
