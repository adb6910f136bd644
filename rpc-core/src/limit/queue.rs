//! Where calls wait for a permit: bounded, in order, and fair between those who ask.

use std::{
    collections::{BTreeMap, BTreeSet},
    task::Waker,
};

use super::{
    concurrency::ConcurrencyLimit,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence},
};

/// The calls that wait for a permit of one limit.
///
/// ```text
///   join --> in its line --call--> called --> has its permit, and leaves
///                  ^                  |
///                  +---- no room -----+          a new call pushes out, or the waiter gives up: leaves
/// ```
///
/// Each connection has a line of its own: first in, first out. The lines are called in turn, so a
/// connection that sends much waits behind itself. For the same reason a call that finds the queue full
/// pushes out the last one of the longest line, if its own line is shorter by more than one.
///
/// Who is called takes its permit itself, or finds that there is none and waits on, in its old place.
/// Nothing is handed over that could be lost when a waiter goes away; it only leaves, and then others are
/// called. While anybody waits the limit is closed to newcomers.
#[derive(Debug)]
pub(super) struct WaitQueue {
    /// How many wait; changed under the lock, read without it by who gives back.
    waiting: AtomicU64,
    lines: Mutex<Lines>,
}

/// Whose call it is, and when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) line: u64,
    pub(super) number: u64,
}

/// What a waiter finds when it looks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is to wait on; its waker is kept.
    NotCalled,
    /// It may try now.
    Called,
    /// Another took its place.
    PushedOut,
}

/// A queue that takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull {
    pub(super) max_waiting: u64,
    pub(super) waiting: u64,
}

#[derive(Debug)]
struct Lines {
    max_waiting: u64,
    /// Never an empty line.
    lines: BTreeMap<u64, BTreeMap<u64, Waker>>,
    called: BTreeSet<Place>,
    /// The line that is called next, or the first one behind it.
    next: u64,
    waiting: u64,
    pushed_out: u64,
}

impl WaitQueue {
    pub(super) fn new(max_waiting: u64) -> Self {
        let lines = BTreeMap::new();
        let lines = Lines { max_waiting, lines, called: BTreeSet::new(), next: 0, waiting: 0, pushed_out: 0 };
        Self { waiting: AtomicU64::new(0), lines: Mutex::new(lines) }
    }

    /// Adds a waiter that was refused by `limit`. The first one is called at once: a permit may have
    /// come back since.
    pub(super) fn join(&self, limit: &ConcurrencyLimit, place: Place) -> Result<(), QueueFull> {
        let pushed_out;
        {
            let mut lines = self.lock();
            pushed_out = lines.make_room(place.line)?;
            if lines.waiting == 0 {
                lines.called.insert(place);
            } else {
                lines.add(place, Waker::noop().clone());
            }
            lines.waiting += 1;
            self.waiting.store(lines.waiting, Ordering::Relaxed);
            limit.open(false);
        }
        // With the one in `has_room`: either who gives back sees us, or we see what was given back.
        fence(Ordering::SeqCst);
        pushed_out.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whether one more of `line` could wait now. Nobody is pushed out for it yet.
    pub(super) fn check(&self, line: u64) -> Result<(), QueueFull> {
        self.lock().find_room(line).map(drop)
    }

    /// Whether it is the turn of the waiter at `place`, which then is to try. It does so from its old
    /// place: whatever is given back from now on calls it again.
    pub(super) fn look(&self, place: Place, waker: &Waker) -> Found {
        let mut lines = self.lock();
        let called = lines.called.remove(&place);
        if !called && !lines.has(place) {
            return Found::PushedOut;
        }
        lines.add(place, waker.clone());
        if called {
            lines.next = place.line;
            return Found::Called;
        }
        Found::NotCalled
    }

    /// Takes a waiter out, wherever it is, and calls others if there is room for them. If it was
    /// `served`, another line comes next.
    pub(super) fn leave(&self, limit: &ConcurrencyLimit, place: Place, served: bool) {
        let woken = {
            let mut lines = self.lock();
            if served {
                lines.next = place.line.wrapping_add(1);
            }
            if !lines.called.remove(&place) && lines.take(place).is_none() {
                return;
            }
            lines.waiting -= 1;
            self.waiting.store(lines.waiting, Ordering::Relaxed);
            if lines.waiting == 0 {
                limit.open(true);
            }
            lines.call(limit.room())
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Tells the queue that something was given back.
    #[inline]
    pub(super) fn has_room(&self, limit: &ConcurrencyLimit) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.call(limit);
        }
    }

    #[cold]
    fn call(&self, limit: &ConcurrencyLimit) {
        let woken = self.lock().call(limit.room());
        // Not under the lock: a waker is another's code.
        woken.into_iter().for_each(Waker::wake);
    }

    /// Sets the maximum of `limit`, and lets in whoever has room then.
    pub(super) fn set_max(&self, limit: &ConcurrencyLimit, max: u64) {
        let woken = {
            let mut lines = self.lock();
            limit.store_max(max);
            limit.open(lines.waiting == 0);
            lines.call(limit.room())
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Sets how many may wait. Those who wait already, stay.
    pub(super) fn set_max_waiting(&self, max_waiting: u64) {
        self.lock().max_waiting = max_waiting;
    }

    pub(super) fn max_waiting(&self) -> u64 {
        self.lock().max_waiting
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn pushed_out(&self) -> u64 {
        self.lock().pushed_out
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // Nothing is done under the lock that could leave the lines half changed.
        self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Lines {
    fn has(&self, place: Place) -> bool {
        self.lines.get(&place.line).is_some_and(|line| line.contains_key(&place.number))
    }

    fn add(&mut self, place: Place, waker: Waker) {
        self.lines.entry(place.line).or_default().insert(place.number, waker);
    }

    fn take(&mut self, place: Place) -> Option<Waker> {
        let line = self.lines.get_mut(&place.line)?;
        let waker = line.remove(&place.number);
        if line.is_empty() {
            self.lines.remove(&place.line);
        }
        waker
    }

    /// Calls as many as there is room for, one of each line in turn.
    fn call(&mut self, room: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        while (self.called.len() as u64) < room {
            let next = self.lines.range(self.next..).chain(self.lines.range(..self.next)).next();
            let Some((&line, waiters)) = next else { break };
            let (&number, _) = waiters.first_key_value().expect("no line is empty");
            let place = Place { line, number };
            woken.extend(self.take(place));
            self.called.insert(place);
            self.next = line.wrapping_add(1);
        }
        woken
    }

    /// Makes room for one more of `line`, and says whom it pushed out for it.
    fn make_room(&mut self, line: u64) -> Result<Option<Waker>, QueueFull> {
        let Some(place) = self.find_room(line)? else { return Ok(None) };
        self.waiting -= 1;
        self.pushed_out += 1;
        Ok(self.take(place))
    }

    /// Finds room for one more of `line`, and says who would be pushed out for it.
    fn find_room(&self, line: u64) -> Result<Option<Place>, QueueFull> {
        if self.waiting < self.max_waiting {
            return Ok(None);
        }
        let full = QueueFull { max_waiting: self.max_waiting, waiting: self.waiting };
        let own = self.lines.get(&line).map_or(0, BTreeMap::len);
        // Whoever has its share already need not look for one who has more. Under overload that is
        // nearly everybody, and a refusal must be cheap.
        if self.max_waiting == 0 || own * self.lines.len().max(1) >= self.waiting as usize {
            return Err(full);
        }
        let (len, longest) = self.lines.iter().map(|(&line, waiters)| (waiters.len(), line)).max().unwrap_or_default();
        if own + 1 >= len {
            return Err(full);
        }
        let (&number, _) = self.lines[&longest].last_key_value().expect("no line is empty");
        Ok(Some(Place { line: longest, number }))
    }
}
