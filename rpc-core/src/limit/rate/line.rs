//! Who waits for tokens of a rate limit, and whose turn it is.

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
    RateLimit, RateToken,
};

/// The line in front of a [`RateLimit`]: start-time fair queueing (Goyal, Vin, Cheng, 1996) with tokens for packets.
///
/// Everybody's turn is the number of tokens that it had. The next one goes to the lowest turn, and among equals to who
/// asked first, so those who always want more get as many, whatever the rate. Who comes for the first time begins where
/// the highest is; who comes back from elsewhere is behind by its part of a burst at most. So nobody saves up turns.
///
/// Who was called has its token, but may be late in coming for it, and would have had further ones meanwhile. Until it
/// comes, those who are ahead of it leave as many in the bucket as they have had more, up to its part of a burst, and
/// half of a burst for all of them; they have what is above that. So one that is slow keeps what it could not take, up to
/// there, and nothing is lost because of those who do not come, however many.
#[derive(Debug)]
pub(super) struct Line(Mutex<State>);

/// A turn, and the number of who has it, in the order of asking.
type Place = (u64, u64);

#[derive(Debug, Default)]
struct State {
    /// Who waits; in a counted cell, because a waker is another's code, to be cloned as well as to be dropped, and
    /// neither is done under the lock.
    waiting: BTreeMap<Place, Arc<Waker>>,
    /// Who was given the token of its turn, and has not come for it.
    called: BTreeSet<Place>,
    /// The highest turn.
    turn: u64,
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
    fn first(&self) -> Option<Place> {
        self.waiting.first_key_value().map(|(place, _)| *place)
    }

    /// How many are in line, in whichever part of it.
    fn len(&self) -> usize {
        self.waiting.len() + self.called.len()
    }

    /// The turn of who comes, and had `turn` when it asked last, if it has asked before.
    fn turn_of(&self, turn: Option<u64>, burst: u32) -> u64 {
        let part = part_of(burst, self.len() + 1);
        turn.map_or(self.turn, |turn| turn.max(self.turn.saturating_sub(part)))
    }

    /// How many tokens who has `turn` leaves for those who were called, and have not come; `all` want some.
    fn left(&self, turn: u64, all: usize, burst: u32) -> u32 {
        let part = part_of(burst, all);
        let ahead = self.called.iter().map(|(called, _)| turn.saturating_sub(called + 1));
        let left = ahead.take(MAX_LOOKED_AT).take_while(|ahead| *ahead > 0).map(|ahead| ahead.min(part)).sum::<u64>();
        left.min(u64::from(burst / 2)) as u32
    }

    /// Takes the token of `turn`, where `all` want some.
    ///
    /// # Errors
    ///
    /// It is not there, or for another; when it will be.
    fn take(&mut self, turn: u64, all: usize, limit: &RateLimit, now: Ticks) -> Result<RateToken, Duration> {
        let left = self.left(turn, all, limit.burst());
        if left > 0
            && let Some(wait) = limit.refills_in(left + 1, now)
        {
            return Err(wait);
        }
        let token = limit.try_acquire(1, now).map_err(|refusal| refusal.retry_after().unwrap_or(RateWait::LONGEST))?;
        self.turn = self.turn.max(turn + 1);
        Ok(token)
    }

    /// Gives tokens to those whose turn it is, as many as there are. Who is to be woken: those who have one, and who
    /// is first then, to see when the next one comes. And when it does.
    fn serve(&mut self, limit: &RateLimit, now: Ticks) -> (Vec<(Place, Arc<Waker>)>, Duration) {
        let mut woken = Vec::new();
        let again = loop {
            let Some(first) = self.first() else { break RateWait::LONGEST };
            if let Err(again) = self.take(first.0, self.len(), limit, now) {
                break again;
            }
            woken.extend(self.waiting.pop_first());
            self.called.insert(first);
        };
        if !woken.is_empty() {
            woken.extend(self.waiting.first_key_value().map(|(place, waker)| (*place, Arc::clone(waker))));
        }
        (woken, again)
    }
}

/// One's share of a [`RateLimit`] that others want as well: all who want more than there is get the same.
///
/// ```
/// # use std::{sync::Arc, task::Waker, time::{Duration, Instant}};
/// # use rpc_core::limit::{Clock, Rate, RateLimit, RateShare};
/// let clock = Clock::new(Instant::now());
/// let limit = Arc::new(RateLimit::new("items", Rate::per_second(10.0).burst(1)).unwrap());
/// let (mut one, mut other) = (RateShare::new(Arc::clone(&limit)), RateShare::new(limit));
/// let now = clock.ticks(Instant::now());
/// assert!(one.try_take(now) && !one.try_take(now));
///
/// let first = other.wait(Waker::noop().clone());
/// let second = one.wait(Waker::noop().clone());
/// let soon = Duration::from_millis(100);
/// assert_eq!(first.poll(now), Err(soon));
/// assert!(second.poll(now.saturating_add(soon)).is_err(), "the token is for the first");
/// assert_eq!(first.poll(now.saturating_add(soon)), Ok(()));
/// ```
#[derive(Debug)]
pub struct RateShare {
    limit: Arc<RateLimit>,
    turn: Option<u64>,
}

impl RateShare {
    /// A share that was never asked for anything.
    pub const fn new(limit: Arc<RateLimit>) -> Self {
        Self { limit, turn: None }
    }

    /// Takes a token if one is there, and it is nobody else's turn. It is spent then.
    ///
    /// Locks the line of the limit, which all shares of it have in common, and allocates nothing.
    pub fn try_take(&mut self, now: Ticks) -> bool {
        let limit = &*self.limit;
        let mut line = limit.line.lock();
        let turn = line.turn_of(self.turn, limit.burst());
        // Under the lock: who comes into the line meanwhile stands behind.
        let all = line.len() + 1;
        let taken = line.first().is_none_or(|(first, _)| turn < first) && line.take(turn, all, limit, now).is_ok();
        self.turn = Some(turn + u64::from(taken));
        taken
    }

    /// A place in the line for one token; `waker` is woken when the wait is to be polled earlier than it was told.
    /// Who leaves it without the token has lost its turn.
    pub fn wait(&mut self, waker: Waker) -> RateWait {
        let waker = Arc::new(waker);
        let place = {
            let mut line = self.limit.line.lock();
            let place = (line.turn_of(self.turn, self.limit.burst()), line.next);
            line.next += 1;
            line.waiting.insert(place, waker);
            place
        };
        self.turn = Some(place.0 + 1);
        RateWait { limit: Arc::clone(&self.limit), place }
    }
}

/// A wait for the next token of a [`RateShare`].
///
/// Dropping it leaves the line. A token that it was given is spent then, used or not: so who was called late, or had
/// something else to do, has its token when it comes.
///
/// No timer belongs to it: whoever waits asks with [`RateWait::poll`] when it was told to, and when it is woken. Each
/// serves the whole line, so one that is late keeps the others waiting no longer than [`RateWait::LONGEST`]. Calls that
/// take tokens by [`RateLimit::try_acquire`] stand in no line, and may take what others wait for.
///
/// Wakers are called by polls and drops of other waits, so neither belongs under a lock that a waker takes.
#[derive(Debug)]
pub struct RateWait {
    limit: Arc<RateLimit>,
    place: Place,
}

impl RateWait {
    /// Nobody is told to ask later than this: the rate may have been changed meanwhile, or who is first may be late.
    pub const LONGEST: Duration = Duration::from_secs(1);

    /// Whether the token is there, which it then stays.
    ///
    /// # Errors
    ///
    /// Not yet; how long to wait until asking again.
    pub fn poll(&self, now: Ticks) -> Result<(), Duration> {
        // Wakers are called and dropped outside of the lock.
        let (woken, outcome) = {
            let mut line = self.limit.line.lock();
            if !line.waiting.contains_key(&self.place) {
                return Ok(());
            }
            let (woken, again) = line.serve(&self.limit, now);
            let outcome = match line.first() {
                Some(first) if first == self.place => Err(again.min(Self::LONGEST)),
                Some(first) if first < self.place => Err(Self::LONGEST),
                _ => Ok(()),
            };
            (woken, outcome)
        };
        for (place, waker) in woken {
            // Who asks is told.
            if place != self.place {
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
            let first = line.first();
            line.called.remove(&self.place);
            let own = line.waiting.remove(&self.place);
            // The first may have become another one, or have less to leave.
            let next = line
                .waiting
                .first_key_value()
                .filter(|(place, _)| first.is_some_and(|first| **place != first) || place.0 > self.place.0 + 1);
            (own, next.map(|(_, waker)| Arc::clone(waker)))
        };
        if let Some(next) = next {
            next.wake_by_ref();
        }
    }
}

/// How far one may be behind where `all` want tokens.
fn part_of(burst: u32, all: usize) -> u64 {
    (u64::from(burst) / all as u64).max(1)
}

/// Of so many who were called, those who have had least, it is seen how far they are behind: others wait for that.
const MAX_LOOKED_AT: usize = 64;

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

    fn share(limit: &Arc<RateLimit>) -> RateShare {
        RateShare::new(Arc::clone(limit))
    }

    fn join(limit: &Arc<RateLimit>) -> RateWait {
        share(limit).wait(Waker::noop().clone())
    }

    fn after(by: Duration) -> Ticks {
        NOW.saturating_add(by)
    }

    fn drain(limit: &RateLimit, now: Ticks) {
        while limit.try_acquire(1, now).is_ok() {}
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
        drain(&limit, NOW);
        let (first, second, third) = (join(&limit), join(&limit), join(&limit));
        assert_eq!(first.poll(NOW), Err(100 * MS));
        assert_eq!(third.poll(NOW), Err(RateWait::LONGEST), "it is woken before");
        assert!(!share(&limit).try_take(after(100 * MS)), "nobody passes those who wait");
        assert!(third.poll(after(100 * MS)).is_err());
        assert_eq!(first.poll(after(100 * MS)), Ok(()), "whoever serves the line serves it in order");
        drop((first, second));
        assert_eq!(third.poll(after(150 * MS)), Err(50 * MS), "one that left was given none");
        assert_eq!(third.poll(after(200 * MS)), Ok(()));
        assert_eq!(third.poll(after(900 * MS)), Ok(()), "it stays");
        drop(third);
        assert!(share(&limit).try_take(after(300 * MS)));
    }

    #[test]
    fn who_was_called_and_has_not_come_is_left_as_much_as_others_had_more_up_to_its_part_of_a_burst() {
        let limit = limit(1_000.0, 10);
        drain(&limit, NOW);
        let (mut quick, mut slow) = (share(&limit), share(&limit));
        let called = [&mut quick, &mut slow].map(|share| share.wait(Waker::noop().clone()));
        assert_eq!(called.each_ref().map(|wait| wait.poll(after(9 * MS))), [Ok(()), Ok(())]);
        let [own, late] = called;
        drop(own);
        let takes = |share: &mut RateShare, at| (0..).take_while(|_| share.try_take(after(at))).count();
        assert_eq!(takes(&mut quick, 9 * MS), 4, "of seven");
        let waits = quick.wait(Waker::noop().clone());
        assert_eq!(waits.poll(after(9 * MS)), Err(2 * MS), "it has had four more, and three are there");
        assert_eq!(waits.poll(after(11 * MS)), Ok(()));
        drop(waits);
        assert_eq!((takes(&mut quick, 12 * MS), takes(&mut quick, 17 * MS)), (0, 5), "five is all that is left for it");
        drop(late);
        assert_eq!(takes(&mut slow, 17 * MS), 5);
        assert_eq!((takes(&mut quick, 21 * MS), takes(&mut slow, 21 * MS)), (4, 0), "nobody is waited for");
    }

    #[test]
    fn who_was_away_is_behind_by_its_part_of_a_burst_at_most_and_who_is_new_by_nothing() {
        let limit = limit(1_000.0, 10);
        let (mut away, mut there) = (share(&limit), share(&limit));
        assert!(away.try_take(NOW));
        (1..1_000).for_each(|ms| assert!(there.try_take(after(MS * ms))));
        drain(&limit, after(1_000 * MS));
        let _first = there.wait(Waker::noop().clone());
        let takes = |share: &mut RateShare| (0..).take_while(|_| share.try_take(after(1_010 * MS))).count();
        assert_eq!(takes(&mut share(&limit)), 0);
        assert_eq!(takes(&mut away), 5, "the other one waits, and so its part is a half");
    }

    #[test]
    fn a_place_that_is_given_up_or_called_wakes_the_next_and_nobody_else() {
        let limit = limit(10.0, 2);
        drain(&limit, NOW);
        let wakes: Vec<_> = (0..5).map(|_| Arc::new(Wakes::default())).collect();
        let mut waits: Vec<_> =
            wakes.iter().map(|wakes| Some(share(&limit).wait(Waker::from(Arc::clone(wakes))))).collect();
        let woken = || wakes.iter().map(|wakes| wakes.0.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
        waits[1] = None;
        assert_eq!(woken(), [0, 0, 0, 0, 0], "it was not the first");
        waits[0] = None;
        assert_eq!(woken(), [0, 0, 1, 0, 0]);
        assert_eq!(waits[2].as_ref().unwrap().poll(after(100 * MS)), Ok(()));
        assert_eq!(woken(), [0, 0, 0, 1, 0], "it is first now, and the one that asked knows");
        waits[2] = None;
        assert_eq!(woken(), [0, 0, 0, 0, 0], "the next one was not to leave anything for it");
        assert!(waits[4].as_ref().unwrap().poll(after(300 * MS)).is_ok());
        assert_eq!(woken(), [0, 0, 0, 1, 0]);
        waits.clear();
        assert!(limit.line.lock().called.is_empty() && limit.line.lock().waiting.is_empty());
    }

    #[test]
    fn who_leaves_tokens_for_another_is_woken_when_that_one_comes_and_else_not() {
        for (turn, left) in [(0, 0), (1, 0), (2, 1), (5, 4)] {
            let limit = limit(1_000.0, 10);
            drain(&limit, NOW);
            let (mut quick, wakes) = (share(&limit), Arc::new(Wakes::default()));
            let late = join(&limit);
            assert_eq!(late.poll(after(MS)), Ok(()));
            quick.turn = Some(turn);
            let waits = quick.wait(Waker::from(Arc::clone(&wakes)));
            assert_eq!(waits.poll(after(MS)), Err(MS * (left + 1)));
            drop(late);
            assert_eq!(wakes.0.load(Ordering::Relaxed), u64::from(left > 0), "it leaves {left}");
            assert_eq!(waits.poll(after(2 * MS)), Ok(()));
        }
    }

    #[test]
    fn the_part_of_who_is_late_is_one_of_as_many_as_want_tokens_whether_they_wait_or_were_called_or_ask() {
        for waits in [true, false] {
            let limit = limit(1_000.0, 12);
            drain(&limit, NOW);
            let called = [0, 5].map(|turn| {
                let mut late = share(&limit);
                late.turn = Some(turn);
                late.wait(Waker::noop().clone())
            });
            assert_eq!(called.each_ref().map(|wait| wait.poll(after(6 * MS))), [Ok(()), Ok(())]);
            // Five ahead of one, and of the other by none. Where three want some, a third of twelve is left, and is there.
            let mut quick = share(&limit);
            quick.turn = Some(6);
            let wait = waits.then(|| quick.wait(Waker::noop().clone()));
            let mut has = |at| wait.as_ref().map_or_else(|| quick.try_take(at), |wait| wait.poll(at).is_ok());
            assert_eq!([6, 7].map(|ms| has(after(ms * MS))), [false, true]);
        }
    }

    #[test]
    fn where_more_want_tokens_than_a_burst_has_one_is_left_for_who_is_late() {
        let limit = limit(1_000.0, 4);
        drain(&limit, NOW);
        let late = join(&limit);
        assert_eq!(late.poll(after(MS)), Ok(()));
        let waits = [5, 6, 6, 6].map(|turn| {
            let mut share = share(&limit);
            share.turn = Some(turn);
            share.wait(Waker::noop().clone())
        });
        assert_eq!(waits[0].poll(after(2 * MS)), Err(MS));
        assert_eq!(waits[0].poll(after(3 * MS)), Ok(()));
    }

    #[test]
    fn who_is_behind_moves_nobody_back_who_is_new() {
        let limit = limit(1_000.0, 10);
        let (mut away, mut there) = (share(&limit), share(&limit));
        assert!(away.try_take(NOW));
        (1..100).for_each(|ms| assert!(there.try_take(after(MS * ms))));
        assert!(away.try_take(after(100 * MS)));
        drain(&limit, after(100 * MS));
        let (first, second) = (there.wait(Waker::noop().clone()), join(&limit));
        assert!(second.poll(after(101 * MS)).is_err());
        assert_eq!(first.poll(after(101 * MS)), Ok(()), "it was there before, and has had as much");
    }

    /// A waker that looks, when its last owner drops it, whether the line could be used.
    struct Own(Arc<RateLimit>, Arc<AtomicU64>);

    impl Wake for Own {
        fn wake(self: Arc<Self>) {
            self.wake_by_ref();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            assert!(self.0.line.0.try_lock().is_ok());
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            let free = self.0.line.0.try_lock().is_ok();
            self.1.fetch_add(if free { 1 } else { 1_000 }, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakers_are_woken_and_dropped_where_the_line_may_be_used() {
        let (limit, dropped) = (limit(10.0, 2), Arc::default());
        drain(&limit, NOW);
        let join = || share(&limit).wait(Waker::from(Arc::new(Own(Arc::clone(&limit), Arc::clone(&dropped)))));
        let waits = [join(), join(), join(), join(), join()];
        assert!(waits[1].poll(after(200 * MS)).is_ok());
        assert_eq!(dropped.load(Ordering::Relaxed), 2, "those who were called");
        let [first, second, third, fourth, fifth] = waits;
        drop((fourth, third));
        assert_eq!(dropped.load(Ordering::Relaxed), 4, "and those who left");
        drop((first, second));
        assert!(fifth.poll(after(300 * MS)).is_ok());
        assert_eq!(dropped.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn who_waits_is_told_to_ask_again_within_a_second_however_slow_the_rate() {
        let limit = limit(0.001, 1);
        drain(&limit, NOW);
        let wait = join(&limit);
        assert_eq!(wait.poll(NOW), Err(RateWait::LONGEST));
        limit.reconfigure(Rate::per_second(1_000_000.0).burst(10), NOW).unwrap();
        assert_eq!(wait.poll(after(RateWait::LONGEST)), Ok(()));
    }

    #[test]
    fn a_clock_that_went_back_sets_the_bucket_to_empty_whoever_is_waited_for() {
        for ahead in [0, 5] {
            let limit = limit(1_000.0, 10);
            drain(&limit, after(3_600_000 * MS));
            let (late, mut other) = (join(&limit), share(&limit));
            assert_eq!(late.poll(after(3_600_001 * MS)), Ok(()));
            other.turn = Some(ahead);
            let wait = other.wait(Waker::noop().clone());
            assert!(wait.poll(NOW).is_err());
            assert_eq!(wait.poll(after(6 * MS)), Ok(()));
        }
    }

    /// Shares that always want more. One that was woken is there at the end of the same millisecond, and `late` ones
    /// after so many.
    struct World {
        limit: Arc<RateLimit>,
        shares: Vec<(RateShare, Option<RateWait>)>,
        had: Vec<u64>,
    }

    impl World {
        fn new(limit: Arc<RateLimit>, shares: usize) -> Self {
            let all = (0..shares).map(|_| (share(&limit), None)).collect();
            Self { limit, shares: all, had: vec![0; shares] }
        }

        /// Takes what there is, and waits. Whether there was anything.
        fn poll(&mut self, who: usize, now: Ticks) -> bool {
            let ((share, wait), before) = (&mut self.shares[who], self.had[who]);
            loop {
                match wait {
                    Some(waits) if waits.poll(now).is_err() => return self.had[who] > before,
                    Some(_) => *wait = None,
                    None if !share.try_take(now) => {
                        *wait = Some(share.wait(Waker::noop().clone()));
                        continue;
                    }
                    None => {}
                }
                self.had[who] += 1;
            }
        }

        /// Takes one, if its token has come, and waits for the next.
        fn asks_for_one(&mut self, who: usize, now: Ticks) {
            let (share, wait) = &mut self.shares[who];
            if wait.as_ref().is_none_or(|waits| waits.poll(now).is_ok()) {
                self.had[who] += u64::from(wait.take().is_some());
                *wait = Some(share.wait(Waker::noop().clone()));
            }
        }

        /// Whether there was anything for any of them.
        fn poll_each(&mut self, order: impl Iterator<Item = usize>, now: Ticks) -> bool {
            let mut moved = false;
            for who in order {
                moved |= self.poll(who, now);
            }
            moved
        }

        /// How many all of them had, and the least and the most of one.
        fn sums(&self) -> (u64, u64, u64) {
            let [least, most] =
                [self.had.iter().min(), self.had.iter().max()].map(|had| *had.expect("there is somebody"));
            (self.had.iter().sum(), least, most)
        }

        fn is_called(&self, who: usize) -> bool {
            self.shares[who].1.as_ref().is_some_and(|wait| self.limit.line.lock().called.contains(&wait.place))
        }
    }

    /// Those who ask again at once, in whatever order and however often in a row they are polled.
    #[test]
    fn whatever_the_rate_all_who_want_more_than_there_is_get_the_same_and_all_of_it() {
        for (per_second, burst, waiters) in
            [(100.0, 1, 2), (1_000.0, 10, 2), (10_000.0, 100, 2), (10_000.0, 100, 10), (1_000.0, 100, 200)]
        {
            for manner in 0..4 {
                let mut world = World::new(limit(per_second, burst), waiters);
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
                    while world.poll_each(order.iter().copied(), now) {}
                }
                let ((all, least, most), rate) = (world.sums(), (per_second * 5.0) as u64);
                // In the last millisecond not all is there, and the first burst is for who comes first.
                assert!((rate - rate / 5_000 - 1..=rate + u64::from(burst)).contains(&all), "{per_second}/s: {all}");
                assert!(most - least <= u64::from(burst) + 1, "{per_second}/s: {:?}", world.had);
            }
        }
    }

    /// Those whose connections have much to do, so that what they are called for waits, or who do not come at all.
    #[test]
    fn one_that_is_late_takes_nothing_from_those_who_are_not_and_loses_nothing_of_its_own_within_its_part_of_a_burst() {
        const STEP: Duration = Duration::from_micros(20);
        for (per_second, burst) in [(10_000.0, 100), (100_000.0, 1_000), (1_000_000.0, 10_000)] {
            for (late, fair) in [(1, true), (5, true), (9, true), (50, false), (1_000, false)] {
                for prompt in [1, 3] {
                    let mut world = World::new(limit(per_second, burst), 1 + prompt);
                    let mut called = None;
                    for step in 0..25_000 {
                        let now = after(STEP * step);
                        while world.poll_each(1..=prompt, now) {}
                        if world.is_called(0) && *called.get_or_insert(step) + late * 50 > step {
                            continue;
                        }
                        called = None;
                        world.poll(0, now);
                    }
                    let ((all, least, _), rate) = (world.sums(), (per_second / 2.0) as u64);
                    let of = format!("{per_second}/s, {late} ms late: {:?}", world.had);
                    assert!((rate * 98 / 100..=rate + u64::from(burst)).contains(&all), "{of}");
                    let share = all / (1 + prompt as u64);
                    assert!(world.had[1..].iter().all(|had| *had >= share * 9 / 10), "{of}");
                    assert!(!fair || least >= share * 9 / 10, "{of}");
                }
            }
        }
    }

    /// Those whose connections have stopped, or hardly move.
    #[test]
    fn any_number_of_those_who_do_not_come_take_nothing_from_those_who_do() {
        for (per_second, burst) in [(1_000.0, 10), (10_000.0, 100), (100_000.0, 1_000)] {
            for deaf in [1, 9, 49, 500] {
                // Never again, and once in a while, to be called anew.
                for comes_again in [false, true] {
                    let mut world = World::new(limit(per_second, burst), 2 + deaf);
                    for ms in 0..2_000_u32 {
                        let now = after(MS * ms);
                        for who in 2..2 + deaf {
                            if ms == 0 || comes_again && ms % 30 == who as u32 % 30 {
                                world.asks_for_one(who, now);
                            }
                        }
                        while world.poll_each(0..2, now) {}
                    }
                    let (all, rate) = (world.sums().0, (per_second * 2.0) as u64);
                    let of = format!("{per_second}/s, {deaf} of them: {:?}", &world.had[..2]);
                    assert!(!comes_again || all >= rate * 95 / 100, "{of}: {all} in all");
                    let (one, other) = (world.had[0], world.had[1]);
                    // Tokens of those who never come are lost, one each; nothing else is.
                    assert!(comes_again || one + other + deaf as u64 >= rate * 95 / 100, "{of}");
                }
            }
        }
    }
}
