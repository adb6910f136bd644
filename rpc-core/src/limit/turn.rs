//! A call's wait for its permit.

use std::{
    pin::Pin,
    sync::{Arc, atomic},
    task::{Context, Poll},
};

use super::{
    concurrency::{ConcurrencyLimit, ConcurrencyPermit, ConcurrencyRefusal, Full},
    queue::{Found, Place, QueueFull, WaitQueue},
};

/// What becomes of a call that asks for a permit and is willing to wait.
#[derive(Debug)]
pub enum Admission {
    /// It may go on.
    Pass(ConcurrencyPermit),
    /// Its turn will come.
    Wait(Turn),
    /// It is turned away.
    Refuse(WaitRefusal),
}

/// Why a call that was willing to wait does not. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitRefusal {
    /// The limit that refused has no queue, or the call could never pass it.
    #[error(transparent)]
    Full(#[from] ConcurrencyRefusal),
    /// As many calls wait as may.
    #[error("{waiting} calls wait for {limit}, of {max_waiting}")]
    QueueFull {
        /// The limit for whose permits they wait.
        limit: &'static str,
        /// How many may wait.
        max_waiting: u64,
        /// How many do.
        waiting: u64,
    },
}

/// A call's wait for a permit; ready when it has one.
///
/// It waits at the limit that refused it, and holds nothing meanwhile: not even a permit of those that
/// did not. When it is called there and another limit refuses it, it goes on waiting at that one,
/// counted from when it first came.
///
/// # Cancel safety
///
/// Dropping it leaves the queue at once. If its turn had come, another's comes instead.
#[must_use = "a call that does not wait leaves the queue"]
#[derive(Debug)]
pub struct Turn {
    asked: Arc<ConcurrencyLimit>,
    /// Where it waits, of what it asked; `None` once that has ended.
    at: Option<usize>,
    place: Place,
}

impl ConcurrencyLimit {
    /// Takes a permit as [`ConcurrencyLimit::try_acquire`] does, or else waits for one at the limit that
    /// refused, if it has a queue. `line` names who asks: calls of one line pass in the order in
    /// which they came, and lines take turns.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Waker}};
    /// # use rpc_core::limit::{Admission, ConcurrencyLimit};
    /// let limit = ConcurrencyLimit::with_queue("reports", Some(1), 10).unwrap();
    /// let Admission::Pass(first) = limit.acquire_or_wait(1) else { panic!("nobody is there") };
    /// let Admission::Wait(turn) = limit.acquire_or_wait(1) else { panic!("one is there") };
    /// assert_eq!((limit.snapshot().held, limit.waiting()), (1, 1));
    ///
    /// let (mut turn, mut cx) = (pin!(turn), Context::from_waker(Waker::noop()));
    /// assert!(turn.as_mut().poll(&mut cx).is_pending());
    /// drop(first);
    /// assert!(turn.as_mut().poll(&mut cx).is_ready());
    /// ```
    pub fn acquire_or_wait(self: &Arc<Self>, line: u64) -> Admission {
        match self.admit(1, 0) {
            Ok(()) => Admission::Pass(ConcurrencyPermit::of_admitted(self)),
            Err(full) => self.wait(&full, line),
        }
    }

    /// Whether [`ConcurrencyLimit::acquire_or_wait`] would let a call pass or wait at this moment. It takes no
    /// permit and no place in a queue; see [`ConcurrencyLimit::check`].
    ///
    /// # Errors
    ///
    /// Why it would turn the call away.
    pub fn check_or_wait(self: &Arc<Self>, line: u64) -> Result<(), WaitRefusal> {
        let Err(full) = self.look() else { return Ok(()) };
        let (limit, queue) = self.queue_at(&full)?;
        queue.check(line).map_err(|full| queue_full(limit, full))
    }

    /// Where to wait for who was refused.
    fn queue_at(self: &Arc<Self>, full: &Full) -> Result<(&Arc<Self>, &WaitQueue), WaitRefusal> {
        let limit = self.limit_at(full.at);
        let queue = limit.queue().filter(|_| !full.refusal.never_passes());
        Ok((limit, queue.ok_or(WaitRefusal::Full(full.refusal))?))
    }

    #[cold]
    fn wait(self: &Arc<Self>, full: &Full, line: u64) -> Admission {
        // Only names a place in a line; any number greater than the last will do.
        static NUMBERS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, atomic::Ordering::Relaxed);
        let mut turn = Turn { asked: Arc::clone(self), at: None, place: Place { line, number } };
        match turn.join(full) {
            Ok(()) => Admission::Wait(turn),
            Err(refusal) => Admission::Refuse(refusal),
        }
    }

    /// How many calls wait for its permits.
    pub fn waiting(&self) -> u64 {
        self.queue().map_or(0, |queue| queue.waiting())
    }

    /// How many calls may wait for its permits; `None` if it was made without a queue.
    pub fn max_waiting(&self) -> Option<u64> {
        self.queue().map(|queue| queue.max_waiting())
    }

    /// Sets how many calls may wait, of a limit that was made with a queue. Those who wait already stay.
    /// Whether it has one.
    pub fn set_max_waiting(&self, max_waiting: u64) -> bool {
        let queue = self.queue();
        queue.inspect(|queue| queue.set_max_waiting(max_waiting)).is_some()
    }

    /// How many waiting calls lost their places to calls of those who had fewer.
    pub fn pushed_out(&self) -> u64 {
        self.queue().map_or(0, |queue| queue.pushed_out())
    }
}

impl Turn {
    /// The limit at which it waits; `None` when it waits no more.
    pub fn at(&self) -> Option<&Arc<ConcurrencyLimit>> {
        self.at.map(|at| self.asked.limit_at(at))
    }

    /// Waits at the limit that refused.
    fn join(&mut self, full: &Full) -> Result<(), WaitRefusal> {
        let (limit, queue) = self.asked.queue_at(full)?;
        let units = self.asked.units_at(full.at);
        queue.join(limit, self.place, units).map_err(|full| queue_full(limit, full))?;
        self.at = Some(full.at);
        Ok(())
    }

    fn leave(&mut self, served: bool) {
        if let Some(at) = self.at.take() {
            let limit = self.asked.limit_at(at);
            if let Some(queue) = limit.queue() {
                queue.leave(limit, self.place, served);
            }
        }
    }

    /// Waits at the limit that refused now, and no longer at the one before.
    fn go_on(&mut self, full: &Full) -> Result<(), WaitRefusal> {
        if self.at == Some(full.at) && !full.refusal.never_passes() {
            return Ok(());
        }
        // It leaves first: a place at the old limit would be called for nothing.
        self.leave(false);
        self.join(full)
    }
}

impl Future for Turn {
    type Output = Result<ConcurrencyPermit, WaitRefusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let at = this.at.expect("a turn is not polled once it was ready");
            let limit = this.asked.limit_at(at);
            let queue = limit.queue().expect("it waits only where there is a queue");
            match queue.look(this.place, this.asked.units_at(at), cx.waker()) {
                Found::NotCalled => return Poll::Pending,
                Found::Called => {}
                Found::PushedOut => {
                    let full = QueueFull { max_waiting: queue.max_waiting(), waiting: queue.waiting() };
                    let refusal = queue_full(limit, full);
                    // It may have been called before, and then others are now.
                    this.leave(false);
                    return Poll::Ready(Err(refusal));
                }
            }
            // Whoever waits at a narrower limit comes later than one who has come as far as this. To
            // queue up there again would make two who are both refused here change places for ever.
            match this.asked.admit(1, at + 1) {
                Ok(()) => {
                    let permit = ConcurrencyPermit::of_admitted(&this.asked);
                    this.leave(true);
                    return Poll::Ready(Ok(permit));
                }
                Err(full) => {
                    if let Err(refusal) = this.go_on(&full) {
                        return Poll::Ready(Err(refusal));
                    }
                }
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.leave(false);
    }
}

fn queue_full(limit: &ConcurrencyLimit, full: QueueFull) -> WaitRefusal {
    WaitRefusal::QueueFull { limit: limit.name(), max_waiting: full.max_waiting, waiting: full.waiting }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::atomic::{AtomicU64, Ordering},
        task::{Wake, Waker},
    };

    use proptest::prelude::*;

    use super::*;
    use crate::limit::{ConcurrencySnapshot, Releases};

    /// Calls that wait, each with a waker that counts.
    #[derive(Default)]
    struct Waiters {
        turns: BTreeMap<u64, (Turn, Arc<Woken>)>,
        passed: Vec<(u64, ConcurrencyPermit)>,
        refused: Vec<(u64, WaitRefusal)>,
    }

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Waiters {
        /// Asks for a permit, as the call `call` of a line.
        fn ask(&mut self, limit: &Arc<ConcurrencyLimit>, line: u64, call: u64) {
            match limit.acquire_or_wait(line) {
                Admission::Pass(permit) => self.passed.push((call, permit)),
                Admission::Wait(turn) => {
                    // As a connection does: what begins to wait is polled once.
                    let woken = Arc::new(Woken(AtomicU64::new(1)));
                    self.turns.insert(call, (turn, woken));
                    self.run();
                }
                Admission::Refuse(refusal) => self.refused.push((call, refusal)),
            }
        }

        /// Polls whoever was woken, until nobody is.
        fn run(&mut self) {
            loop {
                let woken = self.turns.iter().find(|(_, (_, woken))| woken.0.swap(0, Ordering::SeqCst) > 0);
                let Some((&call, _)) = woken else { return };
                let (turn, woken) = self.turns.get_mut(&call).unwrap();
                let waker = Waker::from(Arc::clone(woken));
                match Pin::new(turn).poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => continue,
                    Poll::Ready(Ok(permit)) => self.passed.push((call, permit)),
                    Poll::Ready(Err(refusal)) => self.refused.push((call, refusal)),
                }
                self.turns.remove(&call);
            }
        }

        /// Ends calls that have permits, the oldest first, and says which.
        fn end(&mut self, calls: usize) -> Vec<u64> {
            let mut releases = Releases::default();
            let ended = self.passed.drain(..calls).map(|(call, permit)| {
                releases.add(permit);
                call
            });
            let ended = ended.collect();
            drop(releases);
            self.run();
            ended
        }

        /// How many are woken and have not looked.
        fn woken(&self) -> usize {
            self.turns.values().filter(|(_, woken)| woken.0.load(Ordering::SeqCst) > 0).count()
        }

        fn give_up(&mut self, call: u64) {
            drop(self.turns.remove(&call).unwrap());
            self.run();
        }

        fn passed(&self) -> Vec<u64> {
            self.passed.iter().map(|(call, _)| *call).collect()
        }
    }

    fn queued(max: u64, max_waiting: u64) -> Arc<ConcurrencyLimit> {
        ConcurrencyLimit::with_queue("test", Some(max), max_waiting).unwrap()
    }

    #[test]
    fn calls_of_a_line_pass_in_their_order_and_lines_take_turns() {
        let (limit, mut waiters) = (queued(1, 100), Waiters::default());
        waiters.ask(&limit, 7, 0);
        // One who sends much, and two who send little and came later.
        (1..=5).for_each(|call| waiters.ask(&limit, 1, call));
        (11..=12).for_each(|call| waiters.ask(&limit, 2, call));
        waiters.ask(&limit, 3, 21);
        let order: Vec<_> = (0..9).flat_map(|_| waiters.end(1)).collect();
        assert_eq!(order, [0, 1, 11, 21, 2, 12, 3, 4, 5]);
        assert_eq!((limit.snapshot().held, limit.waiting()), (0, 0));
    }

    #[test]
    fn lines_that_begin_later_never_pass_one_that_waits_whatever_their_numbers_are() {
        let (limit, mut waiters) = (queued(1, 100), Waiters::default());
        waiters.ask(&limit, 1_000, 0);
        waiters.ask(&limit, 1_001, 1);
        waiters.ask(&limit, 5, 2);
        // Each brings a call before the next one ends.
        let order = (3..50).flat_map(|call| {
            waiters.ask(&limit, 1_000 + call, call);
            waiters.end(1)
        });
        assert!(order.eq(0..47));
    }

    #[test]
    fn a_call_that_finds_no_room_after_all_keeps_the_turn_of_its_line() {
        let (limit, mut waiters) = (queued(2, 100), Waiters::default());
        (0..2).for_each(|call| waiters.ask(&limit, 9, call));
        (2..4).for_each(|call| waiters.ask(&limit, 1, call));
        (4..6).for_each(|call| waiters.ask(&limit, 2, call));
        // The first is called, and the room has gone when it comes.
        drop(waiters.passed.remove(0));
        assert_eq!(waiters.woken(), 1);
        limit.set_max(Some(1)).unwrap();
        waiters.run();
        let order: Vec<_> = (0..5).flat_map(|_| waiters.end(1)).collect();
        assert_eq!(order, [1, 2, 4, 3, 5]);
    }

    #[test]
    fn nobody_overtakes_those_who_wait() {
        let (limit, mut waiters) = (queued(2, 100), Waiters::default());
        (0..4).for_each(|call| waiters.ask(&limit, 1, call));
        let second = waiters.passed.pop();
        drop(waiters.passed.pop());
        drop(second);
        // Two are called and have not come yet; there is room, but not for others.
        assert_eq!(limit.try_acquire().unwrap_err(), ConcurrencyRefusal { in_flight: 0, ..refusal_of(&limit) });
        waiters.ask(&limit, 9, 4);
        waiters.run();
        assert_eq!(waiters.passed(), [2, 3]);
        assert_eq!(waiters.end(2), [2, 3]);
        assert_eq!(waiters.end(1), [4]);
        assert!(limit.try_acquire().is_ok(), "nobody waits any more");
    }

    fn refusal_of(limit: &Arc<ConcurrencyLimit>) -> ConcurrencyRefusal {
        limit.try_acquire().unwrap_err()
    }

    #[test]
    fn who_gives_up_leaves_at_once_and_if_it_was_called_another_is() {
        let (limit, mut waiters) = (queued(1, 100), Waiters::default());
        (0..4).for_each(|call| waiters.ask(&limit, 1, call));
        waiters.give_up(2);
        assert_eq!(limit.waiting(), 2);
        drop(waiters.passed.pop());
        // The first one is called, and goes away without a look.
        waiters.give_up(1);
        assert_eq!((waiters.passed(), limit.waiting()), (vec![3], 0));
        assert_eq!(waiters.end(1), [3]);
    }

    /// F08, and the shape of tokio's #2237.
    #[test]
    fn a_hundred_thousand_who_gave_up_are_not_in_the_way_of_one_who_waits() {
        let (limit, mut waiters) = (queued(1, 100_000), Waiters::default());
        waiters.ask(&limit, 1, 0);
        let turns: Vec<_> = (0..100_000_u64).map(|call| limit.acquire_or_wait(call % 10)).collect();
        assert_eq!(limit.waiting(), 100_000);
        drop(turns);
        assert_eq!(limit.waiting(), 0);
        waiters.ask(&limit, 2, 1);
        assert_eq!(waiters.end(1), [0]);
        assert_eq!(waiters.passed(), [1]);
    }

    #[test]
    fn a_full_queue_refuses_and_says_how_many_wait() {
        let (limit, mut waiters) = (queued(1, 3), Waiters::default());
        (0..5).for_each(|call| waiters.ask(&limit, 1, call));
        let refusal = WaitRefusal::QueueFull { limit: "test", max_waiting: 3, waiting: 3 };
        assert_eq!(waiters.refused, [(4, refusal)]);
        assert!(limit.set_max_waiting(1));
        assert_eq!(limit.waiting(), 3, "who waits, stays");
        (0..3).for_each(|_| drop(waiters.end(1)));
        waiters.ask(&limit, 1, 5);
        assert_eq!((limit.waiting(), limit.max_waiting()), (1, Some(1)));
        assert_eq!(refusal.to_string(), "3 calls wait for test, of 3");
    }

    #[test]
    fn to_check_says_who_would_be_turned_away_and_takes_no_place() {
        let (limit, mut waiters) = (queued(1, 4), Waiters::default());
        assert_eq!(limit.check_or_wait(1), Ok(()));
        (0..=4).for_each(|call| {
            assert_eq!(limit.check_or_wait(1), Ok(()), "{call}");
            waiters.ask(&limit, 1, call);
        });
        // The first would be refused; another would take a place of it, and has taken none yet.
        let refusal = WaitRefusal::QueueFull { limit: "test", max_waiting: 4, waiting: 4 };
        assert_eq!((limit.check_or_wait(1), limit.check_or_wait(2)), (Err(refusal), Ok(())));
        assert_eq!((limit.waiting(), limit.pushed_out(), limit.snapshot().held), (4, 0, 1));
        let heavy = ConcurrencyLimit::all_of([(Arc::clone(&limit), 2)]);
        assert!(matches!(heavy.check_or_wait(2), Err(WaitRefusal::Full(full)) if full.never_passes()));
        (0..5).for_each(|_| drop(waiters.end(1)));
        assert_eq!((limit.check_or_wait(1), limit.snapshot().held), (Ok(()), 0));
    }

    #[test]
    fn one_who_fills_the_queue_makes_room_for_others_up_to_an_equal_share() {
        let (limit, mut waiters) = (queued(1, 4), Waiters::default());
        waiters.ask(&limit, 1, 0);
        (1..=4).for_each(|call| waiters.ask(&limit, 1, call));
        (11..=13).for_each(|call| waiters.ask(&limit, 2, call));
        waiters.run();
        let refused: Vec<_> = waiters.refused.iter().map(|(call, _)| *call).collect();
        // The two that came last of those of the first; then the second has its half.
        assert_eq!((refused, limit.pushed_out(), limit.waiting()), (vec![4, 3, 13], 2, 4));
        let order: Vec<_> = (0..5).flat_map(|_| waiters.end(1)).collect();
        assert_eq!(order, [0, 1, 11, 2, 12]);
    }

    #[test]
    fn a_call_waits_at_the_limit_that_refused_and_holds_nothing_of_the_others() {
        let (server, mut waiters) = (queued(3, 10), Waiters::default());
        let [reads, writes] = ["reads", "writes"].map(|name| ConcurrencyLimit::with_queue(name, Some(1), 10).unwrap());
        let all_of = |pool: &Arc<_>| ConcurrencyLimit::all_of([(Arc::clone(pool), 1), (Arc::clone(&server), 1)]);
        let (read, write) = (all_of(&reads), all_of(&writes));
        waiters.ask(&read, 1, 0);
        waiters.ask(&read, 1, 1);
        assert_eq!([reads.waiting(), server.waiting(), server.snapshot().held], [1, 0, 1]);
        // Whoever waits for a read keeps no write waiting.
        waiters.ask(&write, 1, 2);
        assert_eq!(waiters.passed(), [0, 2]);
        // Others take the rest of the server. The read that is called then waits there, and the reads
        // are free for those who need nothing else.
        let others = [server.try_acquire().unwrap()];
        let more = ConcurrencyLimit::all_of([(Arc::clone(&server), 1)]);
        waiters.ask(&more, 2, 3);
        drop(waiters.passed.remove(0));
        waiters.run();
        assert_eq!(waiters.passed(), [2, 3], "who came to the server first has its place");
        assert_eq!([reads.waiting(), server.waiting(), reads.snapshot().held], [0, 1, 0]);
        drop(others);
        waiters.run();
        assert_eq!(waiters.passed(), [2, 3, 1]);
        waiters.end(3);
        assert_eq!([reads, writes, server].map(|limit| limit.snapshot().held), [0; 3]);
    }

    #[test]
    fn a_changed_maximum_lets_in_as_many_as_wait_or_turns_away_what_can_never_pass() {
        let (limit, mut waiters) = (queued(4, 10), Waiters::default());
        let heavy = ConcurrencyLimit::all_of([(Arc::clone(&limit), 4)]);
        waiters.ask(&heavy, 1, 0);
        waiters.ask(&heavy, 1, 1);
        waiters.ask(&limit, 2, 2);
        limit.set_max(Some(9)).unwrap();
        waiters.run();
        assert_eq!(waiters.passed(), [0, 1, 2]);
        waiters.ask(&heavy, 1, 3);
        limit.set_max(Some(3)).unwrap();
        waiters.end(3);
        let (call, refusal) = waiters.refused[0];
        assert!(call == 3 && matches!(refusal, WaitRefusal::Full(full) if full.never_passes()), "{refusal:?}");
        assert!(matches!(heavy.acquire_or_wait(1), Admission::Refuse(WaitRefusal::Full(full)) if full.never_passes()));
        assert_eq!((limit.waiting(), limit.snapshot().held), (0, 0));
    }

    #[test]
    fn a_heavy_call_passes_before_the_light_ones_behind_it_and_is_not_woken_for_less_than_it_takes() {
        let (limit, mut waiters) = (queued(4, 100), Waiters::default());
        let heavy = ConcurrencyLimit::all_of([(Arc::clone(&limit), 4)]);
        (0..4).for_each(|call| waiters.ask(&limit, 1, call));
        waiters.ask(&heavy, 2, 4);
        (5..11).for_each(|call| waiters.ask(&limit, 3, call));
        for _ in 0..3 {
            drop(waiters.passed.remove(0));
            assert_eq!(waiters.woken(), 0, "there is not room enough for the one in front");
            // One behind it goes away, and that is no room either.
            waiters.give_up(*waiters.turns.keys().next_back().unwrap());
        }
        assert_eq!(waiters.end(1), [3]);
        assert_eq!(waiters.passed(), [4]);
        assert_eq!(waiters.end(1), [4]);
        assert_eq!((waiters.passed(), limit.waiting()), (vec![5, 6, 7], 0));
    }

    #[test]
    fn as_many_are_woken_as_what_they_take_has_room() {
        let (bytes, mut waiters) = (queued(1_000, 100), Waiters::default());
        let of = |len| ConcurrencyLimit::all_of([(Arc::clone(&bytes), len)]);
        waiters.ask(&of(1_000), 1, 0);
        for (call, len) in (1..).zip([400, 300, 0, 300, 300, 500]) {
            waiters.ask(&of(len), 1, call);
        }
        drop(waiters.passed.remove(0));
        assert_eq!(waiters.woken(), 3);
        waiters.run();
        assert_eq!(waiters.passed(), [1, 2, 3, 4]);
        // All that wait have become too heavy but for one: they are told so, and it passes.
        bytes.set_max(Some(300)).unwrap();
        waiters.end(4);
        let refused: Vec<_> = waiters.refused.iter().map(|(call, _)| *call).collect();
        assert_eq!((waiters.passed(), refused, bytes.waiting()), (vec![5], vec![6], 0));
    }

    #[test]
    fn who_was_called_and_pushed_out_before_it_passed_calls_the_others_when_it_leaves() {
        let (limit, mut waiters) = (queued(2, 2), Waiters::default());
        (0..2).for_each(|call| waiters.ask(&limit, 1, call));
        let place = Place { line: 1, number: u64::MAX - 1 };
        let queue = limit.queue().unwrap();
        queue.join(&limit, place, 1).unwrap();
        assert_eq!(queue.look(place, 1, Waker::noop()), Found::Called);
        waiters.ask(&limit, 1, 2);
        // The last one of the longest line, which has looked and not passed yet.
        waiters.ask(&limit, 2, 3);
        assert_eq!(limit.pushed_out(), 1);
        queue.leave(&limit, place, true);
        waiters.end(2);
        assert_eq!((waiters.passed(), limit.waiting()), (vec![2, 3], 0));
    }

    /// A waker of another's code, which is not to run under a lock of ours.
    struct Asks(Arc<ConcurrencyLimit>);

    impl Wake for Asks {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Asks {
        fn drop(&mut self) {
            assert!(self.0.max_waiting().is_some());
        }
    }

    #[test]
    fn a_waker_that_asks_for_the_queue_when_it_is_dropped_finds_it() {
        let limit = queued(1, 2);
        let _permit = limit.try_acquire().unwrap();
        let Admission::Wait(mut turn) = limit.acquire_or_wait(1) else { panic!("one is there") };
        for _ in 0..3 {
            let waker = Waker::from(Arc::new(Asks(Arc::clone(&limit))));
            assert!(Pin::new(&mut turn).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(turn);
        assert_eq!(limit.waiting(), 0);
    }

    #[test]
    fn a_limit_without_a_queue_lets_nobody_wait() {
        let limit = ConcurrencyLimit::new("test", Some(1)).unwrap();
        let Admission::Pass(_permit) = limit.acquire_or_wait(1) else { panic!("it is free") };
        assert!(matches!(limit.acquire_or_wait(1), Admission::Refuse(WaitRefusal::Full(full)) if full.in_flight == 1));
        assert_eq!((limit.max_waiting(), limit.set_max_waiting(1)), (None, false));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ask { line: u64, group: usize },
        End(usize),
        GiveUp(usize),
        SetMax(u64),
        SetMaxWaiting(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0_u64..3, 0_usize..3).prop_map(|(line, group)| Step::Ask { line, group }),
            3 => any::<usize>().prop_map(Step::End),
            2 => any::<usize>().prop_map(Step::GiveUp),
            1 => (1_u64..6).prop_map(Step::SetMax),
            1 => (0_u64..6).prop_map(Step::SetMaxWaiting),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: nobody waits while there is room, nothing is lost or
        /// given twice, and the bounds hold.
        #[test]
        fn nobody_waits_while_there_is_room(steps in prop::collection::vec(step(), 0..150)) {
            let server = queued(4, 5);
            let pool = ConcurrencyLimit::with_queue("pool", Some(2), 5).unwrap();
            // One call of the server's, one of the pool and the server, and one of two units.
            let groups = [
                ConcurrencyLimit::all_of([(Arc::clone(&server), 1)]),
                ConcurrencyLimit::all_of([(Arc::clone(&pool), 1), (Arc::clone(&server), 1)]),
                ConcurrencyLimit::all_of([(Arc::clone(&pool), 1), (Arc::clone(&server), 2)]),
            ];
            let mut waiters = Waiters::default();
            let mut asked = Vec::new();
            for (call, step) in (0..).zip(steps) {
                match step {
                    Step::Ask { line, group } => {
                        waiters.ask(&groups[group], line, call);
                        asked.push(call);
                    }
                    Step::End(at) if !waiters.passed.is_empty() => {
                        let at = at % waiters.passed.len();
                        drop(waiters.passed.swap_remove(at));
                        asked.pop();
                    }
                    Step::GiveUp(at) if !waiters.turns.is_empty() => {
                        let call = *waiters.turns.keys().nth(at % waiters.turns.len()).unwrap();
                        waiters.give_up(call);
                        asked.pop();
                    }
                    Step::SetMax(max) => server.set_max(Some(max)).unwrap(),
                    Step::SetMaxWaiting(max) => prop_assert!(pool.set_max_waiting(max)),
                    Step::End(_) | Step::GiveUp(_) => {}
                }
                waiters.run();
                let alive = waiters.passed.len() + waiters.turns.len() + waiters.refused.len();
                prop_assert_eq!(alive, asked.len());
                prop_assert_eq!(server.waiting() + pool.waiting(), waiters.turns.len() as u64);
                let ConcurrencySnapshot { held, max, .. } = server.snapshot();
                // A heavy call in front may wait for more than there is.
                prop_assert!(server.waiting() == 0 || held + 2 > max.unwrap(), "{held} of {max:?}");
                prop_assert!(pool.waiting() == 0 || pool.snapshot().held == 2);
                prop_assert!(pool.snapshot().held <= 2);
            }
            drop(waiters);
            prop_assert_eq!([server.snapshot().held, pool.snapshot().held], [0, 0]);
            prop_assert_eq!([server.waiting(), pool.waiting()], [0, 0]);
            prop_assert!(server.try_acquire().is_ok(), "the limit is open again");
        }
    }
}
