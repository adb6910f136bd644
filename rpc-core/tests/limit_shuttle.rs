//! Limits within limits, with more threads than loom can go through, under schedules drawn by shuttle.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p rpc-core --test limit_shuttle`; `SLUICEGATE_SCHEDULES` says
//! how many schedules each test runs, by each of two ways to draw them.
#![cfg(shuttle)]

mod schedules {
    use std::{env, future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

    use rpc_core::limit::{
        Admission, ConcurrencyLimit, ConcurrencyPermit, Rate, RateLimit, RateShare, RateWait, Releases, Ticks, Turn,
        WaitRefusal,
    };
    use shuttle::{
        Config, Runner,
        future::block_on,
        scheduler::{PctScheduler, RandomScheduler, Scheduler},
        sync::atomic::{AtomicU32, Ordering},
        thread,
    };

    #[test]
    fn permits_of_many_connections_given_back_one_by_one_or_together_all_come_back() {
        under_schedules(|| {
            let server = ConcurrencyLimit::new("server", Some(3)).unwrap();
            let connections =
                ["a", "b"].map(|name| ConcurrencyLimit::within(Arc::clone(&server), name, Some(2)).unwrap());
            let threads: Vec<_> = (0..4)
                .map(|n| {
                    let limit = Arc::clone(&connections[n % 2]);
                    let other = Arc::clone(&connections[(n + 1) % 2]);
                    thread::spawn(move || {
                        let mut releases = Releases::default();
                        let mut admitted = 0;
                        for round in 0..2 {
                            for permit in [limit.try_acquire(), other.try_acquire()].into_iter().flatten() {
                                admitted += 1;
                                if round == 0 { releases.add(permit) } else { drop(permit) }
                            }
                        }
                        admitted
                    })
                })
                .collect();
            for _ in 0..3 {
                for (limit, max) in [(&server, 3), (&connections[0], 2), (&connections[1], 2)] {
                    let sample = limit.snapshot();
                    assert!(sample.held <= max && sample.acquired == sample.released + sample.held, "{sample:?}");
                }
            }
            let admitted: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            let [wide, a, b] = [&server, &connections[0], &connections[1]].map(|limit| limit.snapshot());
            assert!(admitted > 0 && a.high_water <= 2 && b.high_water <= 2 && wide.high_water <= 3);
            assert_eq!((wide.held, a.held, b.held), (0, 0, 0));
            assert_eq!(wide.acquired, admitted);
        });
    }

    #[test]
    fn whoever_waits_in_a_queue_gets_through_it_or_is_told_that_it_was_full() {
        under_schedules(|| {
            let server = ConcurrencyLimit::with_queue("server", Some(2), 2).unwrap();
            let pool = ConcurrencyLimit::with_queue("pool", Some(1), 2).unwrap();
            let both = ConcurrencyLimit::all_of([(Arc::clone(&pool), 1), (Arc::clone(&server), 1)]);
            let threads: Vec<_> = (0..4_u64)
                .map(|n| {
                    let limit = Arc::clone(if n % 2 == 0 { &server } else { &both });
                    thread::spawn(move || {
                        let mut passed = 0;
                        for round in 0..2 {
                            match limit.acquire_or_wait(n / 2) {
                                Admission::Pass(permit) => {
                                    passed += 1;
                                    drop(permit);
                                }
                                // Now and then one gives up, whatever its turn has come to.
                                Admission::Wait(turn) if (n, round) == (3, 1) => drop(turn),
                                Admission::Wait(turn) => match wait_somehow(turn, round == 0) {
                                    Ok(permit) => {
                                        passed += 1;
                                        drop(permit);
                                    }
                                    Err(refusal) => {
                                        assert!(matches!(refusal, WaitRefusal::QueueFull { .. }), "{refusal}")
                                    }
                                },
                                Admission::Refuse(WaitRefusal::QueueFull { waiting, .. }) => assert_eq!(waiting, 2),
                                Admission::Refuse(refusal) => panic!("{refusal}"),
                            }
                        }
                        passed
                    })
                })
                .collect();
            let passed: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            let [server_end, pool_end] = [&server, &pool].map(|limit| limit.snapshot());
            assert!(passed > 0 && server_end.high_water <= 2 && pool_end.high_water <= 1);
            assert_eq!([server_end.held, pool_end.held, server.waiting(), pool.waiting()], [0; 4]);
            assert!(both.try_acquire().is_ok(), "both are open again");
        });
    }

    #[test]
    fn whoever_waits_in_the_line_of_a_rate_gets_its_token_whoever_leaves_or_comes_late() {
        const PERIOD: Duration = Duration::from_millis(1);
        under_schedules(|| {
            for burst in [1, 4] {
                let limit = Arc::new(RateLimit::new("items", Rate::per(1, PERIOD).burst(burst)).unwrap());
                let periods = Arc::new(AtomicU32::new(0));
                let now =
                    |periods: &AtomicU32| Ticks::new(1 << 60).saturating_add(PERIOD * periods.load(Ordering::SeqCst));
                let threads: Vec<_> = (0..3)
                    .map(|who| {
                        let (mut share, periods) = (RateShare::new(Arc::clone(&limit)), Arc::clone(&periods));
                        thread::spawn(move || {
                            for round in 0..3 {
                                if share.try_take(now(&periods)) {
                                    continue;
                                }
                                let mut wait = None;
                                block_on(poll_fn(|cx| {
                                    let wait = wait.get_or_insert_with(|| share.wait(cx.waker().clone()));
                                    match wait.poll(now(&periods)) {
                                        Ok(()) => return Poll::Ready(()),
                                        // The others wait for somebody to wake them.
                                        Err(again) if again < RateWait::LONGEST => {
                                            periods.fetch_add(1, Ordering::SeqCst);
                                            cx.waker().wake_by_ref();
                                        }
                                        Err(_) => {}
                                    }
                                    if (who, round) == (2, 1) { Poll::Ready(()) } else { Poll::Pending }
                                }));
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                let later = now(&periods).saturating_add(PERIOD * burst);
                assert!(RateShare::new(limit).try_take(later), "somebody is still in line");
            }
        });
    }

    /// Waits for the turn: here, or looks at it here and waits for it on another thread.
    fn wait_somehow(mut turn: Turn, moved: bool) -> Result<ConcurrencyPermit, WaitRefusal> {
        if !moved {
            return block_on(turn);
        }
        match block_on(poll_fn(|cx| Poll::Ready(pin!(&mut turn).poll(cx)))) {
            Poll::Ready(waited) => waited,
            Poll::Pending => thread::spawn(move || block_on(turn)).join().unwrap(),
        }
    }

    /// Runs `test` under many schedules: with threads drawn at random at every step, and with a random order
    /// of preference that changes at three steps.
    fn under_schedules(test: fn()) {
        let schedules = env::var("SLUICEGATE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_500);
        run(RandomScheduler::new(schedules), test);
        run(PctScheduler::new(3, schedules), test);
    }

    fn run(scheduler: impl Scheduler + 'static, test: fn()) {
        Runner::new(scheduler, Config::new()).run(test);
    }
}
