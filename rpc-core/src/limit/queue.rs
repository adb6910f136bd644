//! Where calls wait for a permit: bounded, in order, and fair between those who ask.

use std::{collections::BTreeMap, mem, task::Waker};

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
/// pushes out the last one of the longest line, if its own line is shorter by more than one. A line comes behind
/// all others when it begins, and again whenever one of it was called: however many begin later, none of them
/// passes it twice.
///
/// Who is called takes its permit itself, or finds that there is none and waits on, in its old place.
/// Nothing is handed over that could be lost when a waiter goes away; it only leaves, and then others are
/// called. While anybody waits the limit is closed to newcomers.
///
/// As many are called as there is room for, each with what it takes. If there is too little for the next
/// one, nobody else is called: a heavy call is not passed by light ones for as long as there are any.
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
    lines: BTreeMap<u64, Line>,
    /// The same lines, in the order in which they are called.
    turns: BTreeMap<u64, u64>,
    called: BTreeMap<Place, Called>,
    /// The one that was drawn last.
    last_turn: u64,
    waiting: u64,
    pushed_out: u64,
}

#[derive(Debug)]
struct Line {
    turn: u64,
    waiters: BTreeMap<u64, Waiter>,
}

#[derive(Debug)]
struct Called {
    /// The room that is kept for it.
    units: u64,
    /// The turn of its line, which comes back if there is no room after all.
    turn: u64,
}

#[derive(Debug)]
struct Waiter {
    /// What it takes of the limit.
    units: u64,
    waker: Waker,
}

impl WaitQueue {
    pub(super) fn new(max_waiting: u64) -> Self {
        let (lines, turns, called) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let lines = Lines { max_waiting, lines, turns, called, last_turn: 0, waiting: 0, pushed_out: 0 };
        Self { waiting: AtomicU64::new(0), lines: Mutex::new(lines) }
    }

    /// Adds a waiter that was refused `units` by `limit`. The first one is called at once: a permit may have
    /// come back since.
    pub(super) fn join(&self, limit: &ConcurrencyLimit, place: Place, units: u64) -> Result<(), QueueFull> {
        let pushed_out;
        {
            let mut lines = self.lock();
            pushed_out = lines.make_room(place.line)?;
            let turn = lines.draw_turn();
            if lines.waiting == 0 {
                lines.called.insert(place, Called { units, turn });
            } else {
                lines.add(place, turn, Waiter { units, waker: Waker::noop().clone() });
            }
            lines.waiting += 1;
            self.waiting.store(lines.waiting, Ordering::Relaxed);
            limit.open(false);
        }
        // With the one of who gives back: either who gives back sees us, or we see what was given back.
        fence(Ordering::SeqCst);
        pushed_out.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whether one more of `line` could wait now. Nobody is pushed out for it yet.
    pub(super) fn check(&self, line: u64) -> Result<(), QueueFull> {
        self.lock().find_room(line).map(drop)
    }

    /// Whether it is the turn of the waiter at `place`, which takes so many `units`, and then is to try. It
    /// does so from its old place: whatever is given back from now on calls it again.
    pub(super) fn look(&self, place: Place, units: u64, waker: &Waker) -> Found {
        // A waker is another's code, to be cloned as well as to be dropped: neither is done under the lock.
        let waiter = Waiter { units, waker: waker.clone() };
        let (found, replaced) = self.lock().look(place, waiter);
        drop(replaced);
        found
    }

    /// Takes a waiter out, wherever it is, and calls others if there is room for them. If it was
    /// `served`, the other lines come next.
    pub(super) fn leave(&self, limit: &ConcurrencyLimit, place: Place, served: bool) {
        let woken = {
            let mut lines = self.lock();
            let (waiter, called) = (lines.take(place), lines.called.remove(&place).is_some());
            // Who is called has had its line's turn by that.
            if served && !called {
                lines.move_behind(place.line);
            }
            // If it was pushed out it has left already, but may have been called before: then others are now.
            if called || waiter.is_some() {
                lines.waiting -= 1;
                self.waiting.store(lines.waiting, Ordering::Relaxed);
                if lines.waiting == 0 {
                    limit.open(true);
                }
            }
            (lines.call(limit), waiter)
        };
        woken.0.into_iter().for_each(Waker::wake);
    }

    /// Tells the queue that something was given back, before a fence.
    #[inline]
    pub(super) fn has_room(&self, limit: &ConcurrencyLimit) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.call(limit);
        }
    }

    #[cold]
    fn call(&self, limit: &ConcurrencyLimit) {
        let woken = self.lock().call(limit);
        // Not under the lock: a waker is another's code.
        woken.into_iter().for_each(Waker::wake);
    }

    /// Sets the maximum of `limit`, and lets in whoever has room then.
    pub(super) fn set_max(&self, limit: &ConcurrencyLimit, max: u64) {
        let woken = {
            let mut lines = self.lock();
            limit.store_max(max);
            limit.open(lines.waiting == 0);
            lines.call(limit)
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
    /// What the one at `place` finds, and what is to be dropped.
    fn look(&mut self, place: Place, waiter: Waiter) -> (Found, Option<Waiter>) {
        if let Some(Called { turn, .. }) = self.called.remove(&place) {
            return (Found::Called, self.add(place, turn, waiter));
        }
        match self.lines.get_mut(&place.line).and_then(|line| line.waiters.get_mut(&place.number)) {
            Some(known) => (Found::NotCalled, Some(mem::replace(known, waiter))),
            None => (Found::PushedOut, Some(waiter)),
        }
    }

    fn draw_turn(&mut self) -> u64 {
        self.last_turn += 1;
        self.last_turn
    }

    /// Puts a waiter into its line, which is called at `turn` or has an earlier one already.
    fn add(&mut self, place: Place, turn: u64, waiter: Waiter) -> Option<Waiter> {
        let line = self.lines.entry(place.line).or_insert(Line { turn, waiters: BTreeMap::new() });
        self.turns.remove(&line.turn);
        line.turn = line.turn.min(turn);
        self.turns.insert(line.turn, place.line);
        line.waiters.insert(place.number, waiter)
    }

    fn take(&mut self, place: Place) -> Option<Waiter> {
        let line = self.lines.get_mut(&place.line)?;
        let waiter = line.waiters.remove(&place.number);
        if line.waiters.is_empty() {
            self.turns.remove(&line.turn);
            self.lines.remove(&place.line);
        }
        waiter
    }

    /// Lets all other lines come before this one.
    fn move_behind(&mut self, line: u64) {
        let turn = self.draw_turn();
        if let Some(known) = self.lines.get_mut(&line) {
            self.turns.remove(&mem::replace(&mut known.turn, turn));
            self.turns.insert(turn, line);
        }
    }

    /// Calls as many as there is room for, one of each line in turn.
    fn call(&mut self, limit: &ConcurrencyLimit) -> Vec<Waker> {
        let mut woken = Vec::new();
        let (max, in_flight) = limit.max_and_in_flight();
        let mut taken = self.called.values().map(|called| called.units).fold(in_flight, u64::saturating_add);
        while let Some((&turn, &line)) = self.turns.first_key_value() {
            let (&number, &Waiter { units, .. }) =
                self.lines[&line].waiters.first_key_value().expect("no line is empty");
            // Who has become too heavy for the limit is called to find that out, and keeps room from nobody.
            let kept = if units > max { 0 } else { units.max(1) };
            if taken.saturating_add(kept) > max && kept > 0 {
                break;
            }
            taken += kept;
            let place = Place { line, number };
            woken.extend(self.take(place).map(|waiter| waiter.waker));
            self.called.insert(place, Called { units: kept, turn });
            self.move_behind(line);
        }
        woken
    }

    /// Makes room for one more of `line`, and says whom it pushed out for it.
    fn make_room(&mut self, line: u64) -> Result<Option<Waker>, QueueFull> {
        let Some(place) = self.find_room(line)? else { return Ok(None) };
        self.waiting -= 1;
        self.pushed_out += 1;
        Ok(self.take(place).map(|waiter| waiter.waker))
    }

    /// Finds room for one more of `line`, and says who would be pushed out for it.
    fn find_room(&self, line: u64) -> Result<Option<Place>, QueueFull> {
        if self.waiting < self.max_waiting {
            return Ok(None);
        }
        let full = QueueFull { max_waiting: self.max_waiting, waiting: self.waiting };
        let own = self.lines.get(&line).map_or(0, Line::len);
        // Whoever has its share already need not look for one who has more. Under overload that is
        // nearly everybody, and a refusal must be cheap.
        if self.max_waiting == 0 || own * self.lines.len().max(1) >= self.waiting as usize {
            return Err(full);
        }
        let (len, longest) = self.lines.iter().map(|(&line, waiters)| (waiters.len(), line)).max().unwrap_or_default();
        if own + 1 >= len {
            return Err(full);
        }
        let (&number, _) = self.lines[&longest].waiters.last_key_value().expect("no line is empty");
        Ok(Some(Place { line: longest, number }))
    }
}

impl Line {
    fn len(&self) -> usize {
        self.waiters.len()
    }
}
