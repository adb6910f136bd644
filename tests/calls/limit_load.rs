//! Limits and gauges under load, over sockets and from several threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use fastrand::Rng;
use futures::FutureExt;
use sluicegate::{Client, Executed, StatusCode, limit::Rate, server::ServerHandle};
use tokio::task::yield_now;

use crate::support::{Harness, assert_idle_soon, method, probe::silence_wanted_panics, shims::times_in, within};

const CLIENTS: u64 = 64;

/// Looks at the gauges all the time, from a thread of its own.
struct Watcher {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<u64>,
}

impl Watcher {
    fn new(handle: ServerHandle, limit: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut samples = 0;
            while !stopped.load(SeqCst) {
                let calls = handle.snapshot().calls;
                assert_eq!(calls.acquired, calls.released + calls.held);
                assert!(calls.held <= limit && calls.high_water <= limit, "{calls:?}");
                samples += 1;
                thread::yield_now();
            }
            samples
        });
        Self { stop, thread }
    }

    /// How many samples there were; all of them were right.
    fn finish(self) -> u64 {
        self.stop.store(true, SeqCst);
        let samples = self.thread.join().expect("every sample is right");
        assert!(samples > 0);
        samples
    }
}

/// All calls of all clients at once, against a limit; some are given up on the way.
async fn never_more_than(limit: u64) {
    // A million calls of 64 pipelines of 256.
    let (pipeline, rounds) = (times_in(256, 16), times_in(62, 4));
    let harness = Harness::with(|builder| builder.max_concurrent_calls(limit));
    let (sockets, handle) = (harness.sockets().await, harness.handle.clone());
    let watcher = Watcher::new(handle.clone(), limit);
    let clients: Vec<_> = (0..CLIENTS).map(|_| sockets.client()).collect();
    let calls: Vec<_> = (0..pipeline)
        .flat_map(|n| clients.iter().zip((0..).map(move |client| client * pipeline + n)))
        .map(|(client, nonce)| {
            let method = if nonce % 4 == 0 { method::NONCE_SPAWNED } else { method::NONCE };
            let client = client.clone();
            tokio::spawn(async move {
                let (mut served, mut refused) = (0, 0);
                for round in 0..rounds {
                    match client.call::<_, u64>(method, (nonce, (round % 4) as u32)).await {
                        Ok(answer) => {
                            assert_eq!(answer, nonce);
                            served += 1;
                        }
                        Err(error) => {
                            assert_eq!(
                                (error.code(), error.executed()),
                                (StatusCode::ResourceExhausted, Executed::Never)
                            );
                            refused += 1;
                        }
                    }
                }
                (served, refused)
            })
        })
        .collect();
    let (mut served, mut refused) = (0, 0);
    for call in calls {
        let (ok, no) = call.await.unwrap();
        (served, refused) = (served + ok, refused + no);
    }
    assert_eq!(served + refused, CLIENTS * pipeline * rounds);
    assert_eq!((harness.probe.finished() as u64, harness.refused("global")), (served, refused));
    assert!(harness.probe.high_water() as u64 <= limit, "{} ran at once", harness.probe.high_water());
    watcher.finish();
    drop(clients);
    sockets.shut_down().await;
    assert_idle_soon(&handle).await;
    assert_eq!(handle.snapshot().calls.acquired, served);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_three_run() {
    never_more_than(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_eight_run() {
    never_more_than(8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_sixty_four_run() {
    never_more_than(64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_three_run_of_calls_that_take_their_time_at_clones_of_one_server() {
    const LIMIT: u64 = 3;
    let harness = Harness::with(|builder| builder.max_concurrent_calls(LIMIT));
    let clones = [harness.sockets().await, harness.clone().sockets().await];
    let watcher = Watcher::new(harness.handle.clone(), LIMIT);
    let clients: Vec<_> = (0..10)
        .map(|n| {
            let client = clones[n % 2].client();
            tokio::spawn(async move {
                let mut served = 0_u64;
                for _ in 0..times_in(10_000, 100) {
                    match client.call::<_, u64>(method::SLEEP, (1_u64,)).await {
                        Ok(_) => served += 1,
                        Err(error) => assert_eq!(error.executed(), Executed::Never, "{error:?}"),
                    }
                }
                served
            })
        })
        .collect();
    let mut served = 0;
    for client in clients {
        served += client.await.unwrap();
    }
    watcher.finish();
    let most = harness.probe.high_water() as u64;
    assert!(most <= LIMIT, "{most} ran at once");
    assert_eq!((harness.probe.finished() as u64, harness.snapshot().calls.acquired), (served, served));
    // One server they are, and shut down as one.
    for sockets in clones {
        sockets.shut_down().await;
    }
    assert_idle_soon(&harness.handle).await;
}

/// Calls that end by themselves, panic, expire, are given up, or lose their connection, in any order.
async fn everything_at_once(client: Client, mut random: Rng) {
    for _ in 0..times_in(400, 40) {
        let timeout = Duration::from_micros(random.u64(..2_000));
        let (n, after) = (random.u64(..2), random.u8(..4));
        let call = match random.u8(..5) {
            0 => tokio::spawn(client.call::<_, u64>(method::GATE, (n,)).timeout(timeout).map(drop)),
            1 => tokio::spawn(client.call::<_, u64>(method::GATE_SPAWNED, (n,)).timeout(timeout).map(drop)),
            2 => tokio::spawn(client.call::<_, u64>(method::SLEEP, (n,)).timeout(timeout).map(drop)),
            3 => tokio::spawn(client.call::<_, ()>(method::PANIC_LATER, ()).timeout(timeout).map(drop)),
            _ => tokio::spawn(client.call::<_, u64>(method::NONCE_SPAWNED, (n, 3_u32)).timeout(timeout).map(drop)),
        };
        for _ in 0..after {
            yield_now().await;
        }
        if random.bool() {
            call.abort();
        }
        // The others end while the next ones begin.
        if random.u8(..4) > 0 {
            let _ = call.await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_sample_is_above_the_limit_whichever_ways_of_ending_meet_in_a_call() {
    const LIMIT: u64 = 8;
    silence_wanted_panics();
    let (wanted, mut samples, mut seed) = (times_in(10_000_000, 1), 0, 0);
    while samples < wanted {
        let harness = Harness::with(|builder| builder.max_concurrent_calls(LIMIT).drain_grace(Duration::ZERO));
        let (sockets, watcher) = (harness.sockets().await, Watcher::new(harness.handle.clone(), LIMIT));
        let callers: Vec<_> = (0..8)
            .map(|_| {
                seed += 1;
                tokio::spawn(everything_at_once(sockets.client(), Rng::with_seed(seed)))
            })
            .collect();
        for (n, caller) in callers.into_iter().enumerate() {
            // The last ones meet the end of the server.
            if n < 6 {
                caller.await.unwrap();
            } else {
                harness.handle.stop();
            }
        }
        within(sockets.stop()).await.unwrap();
        assert_idle_soon(&harness.handle).await;
        assert_eq!(harness.probe.running(), 0);
        samples += watcher.finish();
    }
    println!("{samples} samples of {wanted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_are_right_while_calls_are_cancelled_expire_and_lose_their_connections() {
    const LIMIT: u64 = 50;
    let harness = Harness::with(|builder| {
        builder.max_concurrent_calls(LIMIT).rate(Rate::per_second(1e6).burst(10_000)).max_connections(100)
    });
    let (sockets, handle) = (Arc::new(harness.sockets().await), harness.handle.clone());
    let watcher = Watcher::new(handle.clone(), LIMIT);
    let rounds: Vec<_> = (0..8_u32)
        .map(|n| {
            let sockets = Arc::clone(&sockets);
            tokio::spawn(async move {
                for round in 0..10 {
                    let client = sockets.client();
                    let methods = [method::GATE, method::GATE_SPAWNED, method::HOLD, method::WATCHED];
                    let method = methods[(n + round) as usize % 4];
                    let calls: Vec<_> = (0..10_u32)
                        .map(|call| {
                            let timeout = Duration::from_micros(u64::from(call) * 500);
                            if method == method::HOLD || method == method::WATCHED {
                                let call = client.call::<_, ()>(method, ()).timeout(timeout);
                                tokio::spawn(async move { call.await.is_ok() })
                            } else {
                                let call = client.call::<_, u64>(method, (1_u64,)).timeout(timeout);
                                tokio::spawn(async move { call.await.is_ok() })
                            }
                        })
                        .collect();
                    for (call, give_up) in calls.into_iter().zip([true, false].into_iter().cycle()) {
                        if give_up {
                            call.abort();
                        }
                        let _ = call.await;
                    }
                }
            })
        })
        .collect();
    for round in rounds {
        within(round).await.unwrap();
    }
    watcher.finish();
    harness.probe.drop_holds();
    Arc::into_inner(sockets).expect("all rounds are over").shut_down().await;
    assert_idle_soon(&handle).await;
    assert_eq!(harness.probe.running(), 0);
}
