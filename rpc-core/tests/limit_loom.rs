//! Every interleaving of the limits' atomic words, as far as loom goes.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p rpc-core --release --test limit_loom`
#![cfg(loom)]

use std::sync::Arc;

use loom::{
    future::block_on,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};
use rpc_core::limit::{
    Admission, CallPermit, ConcurrencyLimit, ConcurrencyPermit, HoldSlot, Rate, RateLimit, RateToken, Ticks, Turn,
};

const NOW: Ticks = Ticks::new(1 << 60);

#[test]
fn threads_on_one_bucket_admit_exactly_its_burst() {
    loom::model(|| {
        let limit = rate_limit(2);
        let threads = [(); 2].map(|()| {
            let limit = Arc::clone(&limit);
            thread::spawn(move || taken(&limit).is_some())
        });
        let mine = taken(&limit).is_some();
        let admitted = threads.map(|thread| thread.join().unwrap());
        assert_eq!(u32::from(mine) + admitted.map(u32::from).iter().sum::<u32>(), 2);
        assert_eq!(limit.tokens_available(NOW), 0);
    });
}

#[test]
fn a_restored_token_is_taken_once_and_a_forfeited_one_never() {
    loom::model(|| {
        let limit = rate_limit(2);
        let other = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || [taken(&limit), taken(&limit)].iter().flatten().count() as u32)
        };
        let forfeited = u32::from(taken(&limit).is_some_and(|token| !limit.restore(token)));
        let spent = other.join().unwrap();
        assert_eq!(limit.tokens_available(NOW), 2 - spent - forfeited);
    });
}

#[test]
fn two_threads_that_give_back_never_give_back_more_than_they_took() {
    loom::model(|| {
        let limit = rate_limit(3);
        let give_and_take = |limit: &RateLimit| {
            let kept = u32::from(taken(limit).is_some_and(|token| !limit.restore(token)));
            kept + u32::from(taken(limit).is_some())
        };
        let other = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || give_and_take(&limit))
        };
        let spent = give_and_take(&limit) + other.join().unwrap();
        assert_eq!(limit.tokens_available(NOW), 3 - spent);
    });
}

#[test]
fn of_two_threads_that_find_the_clock_gone_back_one_heals() {
    loom::model(|| {
        let limit = rate_limit(1);
        limit.try_acquire(1, Ticks::LAST).unwrap();
        let other = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || assert!(limit.try_acquire(1, NOW).is_err()))
        };
        assert!(limit.try_acquire(1, NOW).is_err());
        other.join().unwrap();
        assert_eq!((limit.healed(), limit.tokens_available(NOW)), (1, 0));
    });
}

#[test]
fn a_call_sees_the_old_rate_or_the_new_one_but_no_mixture() {
    loom::model(|| {
        let limit = Arc::new(RateLimit::new("loom", Rate::per_second(1.0).burst(4)).unwrap());
        let other = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.reconfigure(Rate::per_second(1_000.0).burst(1), NOW).unwrap())
        };
        let old = limit.try_acquire(3, NOW).is_ok();
        other.join().unwrap();
        let refusal = limit.try_acquire(1, NOW).err().and_then(|refusal| refusal.retry_after());
        assert_eq!(refusal.is_some(), old);
    });
}

#[test]
fn a_limit_of_one_lets_one_of_three_in_at_a_time() {
    in_flight_is_never_above(1, 3, 1);
}

#[test]
fn a_limit_of_two_lets_two_of_three_in_at_a_time() {
    in_flight_is_never_above(2, 3, 1);
}

#[test]
fn a_limit_of_one_is_taken_again_after_it_was_given_back() {
    in_flight_is_never_above(1, 2, 2);
}

#[test]
fn a_refusal_is_true_if_nobody_gives_back() {
    loom::model(|| {
        let limit = concurrency_limit(2);
        let threads = [(); 2].map(|()| {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.try_acquire().ok())
        });
        let mine = limit.try_acquire().ok();
        let permits: Vec<ConcurrencyPermit> =
            threads.map(|thread| thread.join().unwrap()).into_iter().chain([mine]).flatten().collect();
        // Adding first and undoing would refuse two of three here.
        assert_eq!(permits.len(), 2);
        drop(permits);
        assert_eq!(limit.snapshot().held, 0);
    });
}

#[test]
fn a_neighbour_that_comes_and_goes_refuses_nobody_while_there_is_room() {
    loom::model(|| {
        let limit = concurrency_limit(2);
        let other = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || (0..2).for_each(|_| drop(limit.try_acquire().unwrap())))
        };
        // Also if the count of acquired permits is read before the neighbour came, and that of
        // released ones after it went.
        drop(limit.try_acquire().unwrap());
        other.join().unwrap();
        assert_eq!(limit.snapshot().released, 3);
    });
}

#[test]
fn a_snapshot_adds_up_while_permits_come_and_go() {
    loom::model(|| {
        let limit = concurrency_limit(2);
        let other = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || (0..2).for_each(|_| drop(limit.try_acquire())))
        };
        // Not only for the figures: loom looks for races between writes, and a thread that does
        // nothing but read would be run in one order only.
        let permit = limit.try_acquire().unwrap();
        let samples = [limit.snapshot(), limit.snapshot()];
        drop(permit);
        for sample in samples.into_iter().chain([limit.snapshot()]) {
            assert_eq!(sample.released.checked_add(sample.held), Some(sample.acquired));
            assert!(sample.held <= sample.high_water && sample.high_water <= 2);
        }
        other.join().unwrap();
        assert_eq!(limit.snapshot().acquired, 3);
    });
}

#[test]
fn settling_while_holds_are_dropped_gives_the_permit_back_once() {
    loom::model(|| {
        let limit = concurrency_limit(1);
        let slot = HoldSlot::default();
        let hold = slot.hold();
        let other = {
            let clone = hold.clone();
            thread::spawn(move || drop(clone))
        };
        let third = thread::spawn(move || drop(hold));
        let settled = slot.settle(permit_of(&limit));
        assert_eq!(limit.snapshot().held, 1);
        drop(settled);
        other.join().unwrap();
        third.join().unwrap();
        let end = limit.snapshot();
        assert_eq!((end.acquired, end.released), (1, 1));
    });
}

#[test]
fn a_hold_taken_while_the_call_is_settled_holds_it_or_says_that_it_does_not() {
    loom::model(|| {
        let limit = concurrency_limit(1);
        let slot = loom::sync::Arc::new(HoldSlot::default());
        let other = {
            let slot = slot.clone();
            thread::spawn(move || slot.hold())
        };
        drop(slot.settle(permit_of(&limit)));
        let hold = other.join().unwrap();
        assert_eq!(limit.snapshot().held, u64::from(!hold.is_empty()));
        drop(hold);
        // The slot is still alive.
        let end = limit.snapshot();
        assert_eq!((end.acquired, end.released), (1, 1));
    });
}

#[test]
fn who_begins_to_wait_while_the_permit_comes_back_gets_it() {
    loom::model(|| {
        let limit = ConcurrencyLimit::with_queue("loom", Some(1), 1).unwrap();
        let permit = limit.try_acquire().unwrap();
        let other = thread::spawn(move || drop(permit));
        // A wake-up that is lost would be a deadlock.
        match limit.acquire_or_wait(1) {
            Admission::Pass(permit) => drop(permit),
            Admission::Wait(turn) => drop(block_on(turn).unwrap()),
            Admission::Refuse(refusal) => panic!("{refusal}"),
        }
        other.join().unwrap();
        assert_eq!((limit.snapshot().held, limit.waiting()), (0, 0));
        assert!(limit.try_acquire().is_ok(), "it is open again");
    });
}

#[test]
fn one_who_gives_up_while_it_is_called_leaves_the_permit_to_another() {
    loom::model(|| {
        let limit = ConcurrencyLimit::with_queue("loom", Some(1), 2).unwrap();
        let permit = limit.try_acquire().unwrap();
        let (first, second) = (turn(&limit), turn(&limit));
        let gives_up = thread::spawn(move || drop(first));
        let gives_back = thread::spawn(move || drop(permit));
        drop(block_on(second).unwrap());
        gives_up.join().unwrap();
        gives_back.join().unwrap();
        assert_eq!((limit.snapshot().held, limit.waiting()), (0, 0));
    });
}

#[test]
fn a_newcomer_and_one_who_waits_are_never_in_flight_together_on_a_limit_of_one() {
    loom::model(|| {
        let limit = ConcurrencyLimit::with_queue("loom", Some(1), 1).unwrap();
        let permit = limit.try_acquire().unwrap();
        let waits = turn(&limit);
        let newcomer = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || drop(limit.try_acquire()))
        };
        drop(permit);
        drop(block_on(waits).unwrap());
        newcomer.join().unwrap();
        let end = limit.snapshot();
        assert_eq!((end.held, end.high_water), (0, 1));
    });
}

#[test]
fn of_two_who_set_a_maximum_at_once_the_one_that_stays_is_the_one_that_newcomers_are_held_to() {
    loom::model(|| {
        let limit = concurrency_limit(5);
        let other = {
            let limit = Arc::clone(&limit);
            thread::spawn(move || limit.set_max(Some(1)).unwrap())
        };
        limit.set_max(Some(2)).unwrap();
        other.join().unwrap();
        let permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire().ok()).collect();
        assert_eq!(limit.max(), Some(permits.len() as u64));
    });
}

fn turn(limit: &Arc<ConcurrencyLimit>) -> Turn {
    match limit.acquire_or_wait(1) {
        Admission::Wait(turn) => turn,
        other => panic!("{other:?}"),
    }
}

fn in_flight_is_never_above(max: u64, threads: usize, rounds: usize) {
    loom::model(move || {
        let limit = concurrency_limit(max);
        let running = Arc::new(AtomicU64::new(0));
        let work = {
            let (limit, running) = (Arc::clone(&limit), Arc::clone(&running));
            move || {
                for _ in 0..rounds {
                    if let Ok(permit) = limit.try_acquire() {
                        assert!(running.fetch_add(1, Ordering::Relaxed) < max);
                        running.fetch_sub(1, Ordering::Relaxed);
                        drop(permit);
                    }
                }
            }
        };
        let others: Vec<_> = (1..threads).map(|_| thread::spawn(work.clone())).collect();
        work();
        others.into_iter().for_each(|other| other.join().unwrap());
        let end = limit.snapshot();
        assert!(end.acquired >= 1 && end.high_water <= max);
        assert_eq!((end.held, end.acquired), (0, end.released));
    });
}

fn rate_limit(burst: u32) -> Arc<RateLimit> {
    Arc::new(RateLimit::new("loom", Rate::per_second(1.0).burst(burst)).unwrap())
}

fn taken(limit: &RateLimit) -> Option<RateToken> {
    limit.try_acquire(1, NOW).ok()
}

fn concurrency_limit(max: u64) -> Arc<ConcurrencyLimit> {
    ConcurrencyLimit::new("loom", Some(max)).unwrap()
}

fn permit_of(limit: &Arc<ConcurrencyLimit>) -> CallPermit {
    let mut permit = CallPermit::default();
    permit.push(limit.try_acquire().unwrap());
    permit
}
