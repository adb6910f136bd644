//! Who waits for tokens of a rate limit, in the order of asking.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::PoisonError,
    task::Waker,
    time::Duration,
};

use super::{
    super::{
        clock::Ticks,
        sync::{Arc, Mutex, MutexGuard},
    },
    RateLimit, RateToken, round_up_to_nanoseconds,
};

/// The line in front of a [`RateLimit`].
///
/// Tokens go to who has asked first, one for each. Who comes back for the next one stands behind all the others, so
/// everybody who waits gets as many, whatever the rate. Where several tokens are there at once, because timers are
/// coarser than the rate, the first to come back must not take those that are left: all who were called are waited
/// for, so that they stand in line as well. One that does not come, because it has something else to do, is not
/// waited for longer than [`LONGEST_ROUND`].
#[derive(Debug)]
pub(super) struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Who waits, by number; in a counted cell, because a waker is another's code, to be cloned as well as to be
    /// dropped, and neither is done under the lock.
    waiting: BTreeMap<u64, Arc<Waker>>,
    /// Who was given tokens last, and has not come back.
    called: BTreeSet<u64>,
    /// They are waited for until then.
    round_ends: Ticks,
    /// The number of who comes next.
    next: u64,
}

impl Line {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State::default()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is done under the lock that could leave the line half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How long those who were called are still waited for.
    fn round(&self, now: Ticks) -> Duration {
        let left = round_up_to_nanoseconds(self.round_ends.as_u64().saturating_sub(now.as_u64()));
        // More than that can only be left if the clock went back.
        if self.called.is_empty() || left > LONGEST_ROUND { Duration::ZERO } else { left }
    }

    /// Gives tokens to who has waited longest, as many as there are. Who is to be woken: those who have one, and who
    /// is first then, to see when the next one comes. And when it does.
    fn serve(&mut self, limit: &RateLimit, now: Ticks) -> (Vec<(u64, Arc<Waker>)>, Duration) {
        let (mut woken, mut again) = (Vec::new(), self.round(now));
        if !again.is_zero() {
            return (woken, again);
        }
        self.called.clear();
        while let Some(first) = self.waiting.first_entry() {
            if let Err(refusal) = limit.try_acquire(1, now) {
                // No burst is less than one.
                again = refusal.retry_after().unwrap_or(RateWait::LONGEST);
                break;
            }
            let (number, waker) = first.remove_entry();
            self.called.insert(number);
            woken.push((number, waker));
        }
        if !self.called.is_empty() {
            self.round_ends = now.saturating_add(LONGEST_ROUND);
            woken.extend(self.waiting.first_key_value().map(|(number, waker)| (*number, Arc::clone(waker))));
        }
        (woken, again)
    }
}

impl RateLimit {
    /// Takes a token if one is there and nobody waits for it in a [`RateWait`].
    pub fn try_in_line(&self, now: Ticks) -> Option<RateToken> {
        let line = self.line.lock();
        let is_free = line.waiting.is_empty() && line.round(now).is_zero();
        // Under the lock: who comes into the line meanwhile stands behind.
        if is_free { self.try_acquire(1, now).ok() } else { None }
    }
}

/// A wait for one token of a [`RateLimit`], behind all who wait for it already.
///
/// Dropping it leaves the line. A token that it was given is spent then, used or not: so who was called late, or had
/// something else to do, has its token when it comes, and nobody waits for it.
///
/// No timer belongs to it: whoever waits asks with [`RateWait::poll`] when it was told to, and when it is woken. Each
/// serves the whole line, so one that is late keeps the others waiting no longer than [`RateWait::LONGEST`]. Calls that
/// take tokens by [`RateLimit::try_acquire`] stand in no line, and may take what others wait for.
///
/// Wakers are called by polls and drops of other waits, so neither belongs under a lock that a waker takes.
///
/// ```
/// # use std::{sync::Arc, task::Waker, time::{Duration, Instant}};
/// # use rpc_core::limit::{Clock, Rate, RateLimit, RateWait};
/// let clock = Clock::new(Instant::now());
/// let limit = Arc::new(RateLimit::new("items", Rate::per_second(10.0).burst(1)).unwrap());
/// let now = clock.ticks(Instant::now());
/// assert!(limit.try_in_line(now).is_some());
///
/// let first = RateWait::join(&limit, Waker::noop().clone());
/// let second = RateWait::join(&limit, Waker::noop().clone());
/// let soon = Duration::from_millis(100);
/// assert_eq!(first.poll(now), Err(soon));
/// assert!(second.poll(now.saturating_add(soon)).is_err(), "the token is for the first");
/// assert_eq!(first.poll(now.saturating_add(soon)), Ok(()));
/// ```
#[derive(Debug)]
pub struct RateWait {
    limit: Arc<RateLimit>,
    number: u64,
}

impl RateWait {
    /// Nobody is told to ask later than this: the rate may have been changed meanwhile, or who is first may be late.
    pub const LONGEST: Duration = Duration::from_secs(1);

    /// The last place in the line of `limit`. `waker` is woken when the wait is to be polled earlier than it was told.
    pub fn join(limit: &Arc<RateLimit>, waker: Waker) -> Self {
        let waker = Arc::new(waker);
        let number = {
            let mut line = limit.line.lock();
            let number = line.next;
            line.next += 1;
            line.waiting.insert(number, waker);
            number
        };
        Self { limit: Arc::clone(limit), number }
    }

    /// Whether the token is there, which it then stays.
    ///
    /// # Errors
    ///
    /// Not yet; how long to wait until asking again.
    pub fn poll(&self, now: Ticks) -> Result<(), Duration> {
        // Wakers are called and dropped outside of the lock.
        let (woken, outcome) = {
            let mut line = self.limit.line.lock();
            if !line.waiting.contains_key(&self.number) {
                return Ok(());
            }
            let (woken, again) = line.serve(&self.limit, now);
            let outcome = match line.waiting.keys().next() {
                Some(first) if *first == self.number => Err(again.min(Self::LONGEST)),
                Some(first) if *first < self.number => Err(Self::LONGEST),
                _ => Ok(()),
            };
            (woken, outcome)
        };
        for (number, waker) in woken {
            // Who asks is told.
            if number != self.number {
                waker.wake_by_ref();
            }
        }
        outcome
    }
}

impl Drop for RateWait {
    fn drop(&mut self) {
        let (_own, next) = {
            let mut line = self.limit.line.lock();
            let own = line.waiting.remove(&self.number);
            let first_leaves = own.is_some() && line.waiting.keys().next().is_none_or(|first| *first > self.number);
            let ends_round = line.called.remove(&self.number) && line.called.is_empty();
            let first = line.waiting.values().next().filter(|_| first_leaves || ends_round).map(Arc::clone);
            (own, first)
        };
        if let Some(next) = next {
            next.wake_by_ref();
        }
    }
}

/// Longer than it takes to come back where much is going on, and no longer than what the default burst holds: what is
/// not given out meanwhile is not lost.
const LONGEST_ROUND: Duration = Duration::from_millis(10);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        task::Wake,
    };

    use super::{super::Rate, *};

    const NOW: Ticks = Ticks::new(1 << 60);
    const MS: Duration = Duration::from_millis(1);

    fn limit(per_second: f64, burst: u32) -> Arc<RateLimit> {
        Arc::new(RateLimit::new("test", Rate::per_second(per_second).burst(burst)).unwrap())
    }

    fn join(limit: &Arc<RateLimit>) -> RateWait {
        RateWait::join(limit, Waker::noop().clone())
    }

    fn after(by: Duration) -> Ticks {
        NOW.saturating_add(by)
    }

    #[derive(Debug, Default)]
    struct Wakes(AtomicU64);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn tokens_go_to_who_asked_first_and_who_leaves_moves_the_others_up() {
        let limit = limit(10.0, 1);
        limit.try_in_line(NOW).unwrap();
        let (first, second, third) = (join(&limit), join(&limit), join(&limit));
        assert_eq!(first.poll(NOW), Err(100 * MS));
        assert_eq!(third.poll(NOW), Err(RateWait::LONGEST), "it is woken before");
        assert!(limit.try_in_line(after(100 * MS)).is_none(), "nobody passes those who wait");
        assert!(third.poll(after(100 * MS)).is_err());
        assert_eq!(first.poll(after(100 * MS)), Ok(()), "whoever serves the line serves it in order");
        drop((first, second));
        assert_eq!(third.poll(after(150 * MS)), Err(50 * MS), "one that left was given none");
        assert_eq!(third.poll(after(200 * MS)), Ok(()));
        assert_eq!(third.poll(after(900 * MS)), Ok(()), "it stays");
        drop(third);
        assert!(limit.try_in_line(after(300 * MS)).is_some());
    }

    #[test]
    fn tokens_that_are_left_wait_until_those_who_were_called_have_come_back_but_not_for_long() {
        let limit = limit(1_000.0, 10);
        while limit.try_in_line(NOW).is_some() {}
        let (quick, slow) = (join(&limit), join(&limit));
        assert_eq!(quick.poll(after(9 * MS)), Ok(()));
        drop(quick);
        assert!(limit.try_in_line(after(9 * MS)).is_none(), "there are seven, and the other one may want one of them");
        let quick = join(&limit);
        assert_eq!(quick.poll(after(9 * MS)), Err(10 * MS), "it does not come");
        assert_eq!(quick.poll(after(19 * MS)), Ok(()));
        drop(quick);
        assert!(limit.try_in_line(after(19 * MS)).is_some(), "nobody waits for it in the round after that");
        assert_eq!(slow.poll(after(1_000 * MS)), Ok(()));
    }

    #[test]
    fn a_place_that_is_given_up_or_called_wakes_the_next_and_nobody_else() {
        let limit = limit(10.0, 2);
        while limit.try_in_line(NOW).is_some() {}
        let wakes: Vec<_> = (0..5).map(|_| Arc::new(Wakes::default())).collect();
        let mut waits: Vec<_> =
            wakes.iter().map(|wakes| Some(RateWait::join(&limit, Arc::clone(wakes).into()))).collect();
        let woken = || wakes.iter().map(|wakes| wakes.0.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
        waits[1] = None;
        assert_eq!(woken(), [0, 0, 0, 0, 0], "it was not the first");
        waits[0] = None;
        assert_eq!(woken(), [0, 0, 1, 0, 0]);
        assert_eq!(waits[2].as_ref().unwrap().poll(after(100 * MS)), Ok(()));
        assert_eq!(woken(), [0, 0, 0, 1, 0], "it is first now, and the one that asked knows");
        waits[2] = None;
        assert_eq!(woken(), [0, 0, 0, 1, 0], "the round is over");
        assert!(waits[4].as_ref().unwrap().poll(after(300 * MS)).is_ok());
        assert_eq!(woken(), [0, 0, 0, 1, 0]);
        waits.clear();
        assert!(limit.line.lock().called.is_empty() && limit.line.lock().waiting.is_empty());
    }

    #[test]
    fn who_waits_is_told_to_ask_again_within_a_second_however_slow_the_rate() {
        let limit = limit(0.001, 1);
        limit.try_in_line(NOW).unwrap();
        let wait = join(&limit);
        assert_eq!(wait.poll(NOW), Err(RateWait::LONGEST));
        limit.reconfigure(Rate::per_second(1_000_000.0).burst(10), NOW).unwrap();
        assert_eq!(wait.poll(after(RateWait::LONGEST)), Ok(()));
    }

    #[test]
    fn a_clock_that_went_back_ends_a_round() {
        let limit = limit(1_000.0, 10);
        while limit.try_in_line(after(3_600_000 * MS)).is_some() {}
        let (first, second) = (join(&limit), join(&limit));
        assert_eq!(first.poll(after(3_600_001 * MS)), Ok(()));
        // The bucket is set to empty, and goes on from there.
        assert!(second.poll(NOW).is_err());
        assert_eq!(second.poll(after(MS)), Ok(()));
    }

    /// Those who ask again at once, in whatever order and however often in a row they are polled.
    #[test]
    fn whatever_the_rate_all_who_want_more_than_there_is_get_the_same_and_all_of_it() {
        for (per_second, burst, waiters) in
            [(100.0, 1, 2), (1_000.0, 10, 2), (10_000.0, 100, 2), (10_000.0, 100, 10), (1_000.0, 100, 200)]
        {
            for manner in 0..4 {
                let limit = limit(per_second, burst);
                let mut waits: Vec<Option<RateWait>> = (0..waiters).map(|_| None).collect();
                let mut had = vec![0_u64; waiters];
                for ms in 0..5_000 {
                    let now = after(MS * ms);
                    let mut order: Vec<_> = (0..waiters).collect();
                    match manner {
                        0 => {}
                        1 => order.reverse(),
                        2 => order.rotate_left(ms as usize % waiters),
                        _ => order.sort_unstable_by_key(|who| (ms as usize * 7 + who * 31) % 101),
                    }
                    // Timers come once in a millisecond; who is woken comes at once.
                    let mut moves = true;
                    while std::mem::take(&mut moves) {
                        for &who in &order {
                            loop {
                                match &waits[who] {
                                    Some(wait) if wait.poll(now).is_err() => break,
                                    Some(_) => waits[who] = None,
                                    None if limit.try_in_line(now).is_none() => {
                                        waits[who] = Some(join(&limit));
                                        continue;
                                    }
                                    None => {}
                                }
                                (had[who], moves) = (had[who] + 1, true);
                            }
                        }
                    }
                }
                let (all, rate) = (had.iter().sum::<u64>(), (per_second * 5.0) as u64);
                let [least, most] = [had.iter().min(), had.iter().max()].map(|had| *had.expect("somebody waits"));
                // In the last millisecond not all is there, and the first burst is for who comes first.
                assert!((rate - rate / 5_000 - 1..=rate + u64::from(burst)).contains(&all), "{per_second}/s: {all}");
                assert!(most - least <= u64::from(burst) + 1, "{per_second}/s: {had:?}");
            }
        }
    }
}
