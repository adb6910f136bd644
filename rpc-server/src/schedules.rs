//! Calls that are woken from anywhere and the task of their connection, under schedules drawn by shuttle.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p rpc-server --lib schedules`; `SLUICEGATE_SCHEDULES` says how
//! many schedules each test runs, by each of two ways to draw them. A wake-up that is lost is a deadlock
//! here, which shuttle finds and for which it prints the schedule.

use std::{
    env,
    sync::Arc,
    task::{Context, Poll, Wake},
};

use shuttle::{
    Config, Runner,
    future::block_on,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use crate::{
    prospects::Prospects,
    ready::{Key, Ready, SlotWaker},
};

const CALLS: usize = 3;
/// So often each call is pending before it is ready.
const STEPS: u64 = 3;

/// A call whose future is ready when it has been polled behind so many events.
struct Call {
    waker: Arc<SlotWaker>,
    events: AtomicU64,
}

/// The connection as far as it polls the calls that are listed, and no other.
struct Connection {
    ready: Arc<Ready>,
    calls: Arc<Vec<Call>>,
    keys: Vec<Key>,
    seen: [u64; CALLS],
}

impl Connection {
    fn new() -> Self {
        let ready = Arc::new(Ready::default());
        let calls = (0..CALLS)
            .map(|n| Call { waker: SlotWaker::new(&ready, Key::Waiting(n)), events: AtomicU64::new(0) })
            .collect();
        Self { ready, calls: Arc::new(calls), keys: Vec::new(), seen: [0; CALLS] }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.ready.take(cx.waker(), &mut self.keys);
        for key in self.keys.drain(..) {
            let Key::Waiting(n) = key else { unreachable!("no call is in a slot") };
            let call = &self.calls[n];
            call.waker.unlist();
            self.seen[n] = call.events.load(Ordering::SeqCst);
        }
        if self.seen == [STEPS; CALLS] { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn every_wake_up_of_a_call_from_any_thread_is_followed_by_a_poll_of_it() {
    under_schedules(|| {
        let mut connection = Connection::new();
        let wakers: Vec<_> = (0..CALLS)
            .map(|n| {
                let calls = Arc::clone(&connection.calls);
                thread::spawn(move || {
                    for _ in 0..STEPS {
                        calls[n].events.fetch_add(1, Ordering::SeqCst);
                        calls[n].waker.wake_by_ref();
                    }
                })
            })
            .collect();
        block_on(std::future::poll_fn(|cx| connection.poll(cx)));
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

#[test]
fn a_connection_whose_task_moves_to_another_thread_is_woken_there() {
    under_schedules(|| {
        let mut connection = Connection::new();
        let calls = Arc::clone(&connection.calls);
        let waking = thread::spawn(move || {
            for call in calls.iter() {
                call.events.store(STEPS, Ordering::SeqCst);
                call.waker.wake_by_ref();
            }
        });
        // Polled once here, with this thread's waker, and then elsewhere.
        let polled = block_on(std::future::poll_fn(|cx| Poll::Ready(connection.poll(cx))));
        if polled.is_pending() {
            thread::spawn(move || block_on(std::future::poll_fn(|cx| connection.poll(cx)))).join().unwrap();
        }
        waking.join().unwrap();
    });
}

#[test]
fn a_connection_that_is_told_to_look_around_does() {
    under_schedules(|| {
        let ready = Arc::new(Ready::default());
        let draining = Arc::new(AtomicBool::new(false));
        let telling = {
            let (ready, draining) = (Arc::clone(&ready), Arc::clone(&draining));
            thread::spawn(move || {
                draining.store(true, Ordering::SeqCst);
                ready.wake_connection();
            })
        };
        let mut keys = Vec::new();
        block_on(std::future::poll_fn(|cx| {
            // First the waker, then a look: the other way round it could be told in between.
            ready.take(cx.waker(), &mut keys);
            if draining.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        }));
        telling.join().unwrap();
    });
}

/// As `Connection::turn` does it: a look, and when it stays above the mark, to be told and another look.
#[test]
fn a_connection_that_waits_for_tasks_to_come_to_something_is_woken_by_one_of_them() {
    const MARK: usize = 100;
    under_schedules(|| {
        let ready = Arc::new(Ready::default());
        let prospects = Prospects::of_threads(&ready, MARK, 1);
        let tasks: Vec<_> = (0..CALLS)
            .map(|_| prospects.count(MARK / 2))
            .map(|prospect| thread::spawn(move || drop(prospect)))
            .collect();
        let mut keys = Vec::new();
        block_on(std::future::poll_fn(|cx| {
            ready.take(cx.waker(), &mut keys);
            if prospects.bytes() > 0 {
                prospects.tell_when_less();
            }
            if prospects.bytes() == 0 { Poll::Ready(()) } else { Poll::Pending }
        }));
        tasks.into_iter().for_each(|task| task.join().unwrap());
    });
}

/// Runs `test` under many schedules: with threads drawn at random at every step, and with a random order
/// of preference that changes at three steps.
pub(crate) fn under_schedules(test: fn()) {
    let schedules = env::var("SLUICEGATE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_500);
    run(RandomScheduler::new(schedules), test);
    run(PctScheduler::new(3, schedules), test);
}

fn run(scheduler: impl Scheduler + 'static, test: fn()) {
    Runner::new(scheduler, Config::new()).run(test);
}
