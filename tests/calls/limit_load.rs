//! Limits and gauges under load, over sockets and from several threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use sluicegate::{Executed, StatusCode, limit::Rate, server::ServerHandle};

use crate::support::{Harness, assert_idle_soon, method, within};

const CLIENTS: u64 = 16;
const CALLS: u64 = 64;

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

    fn finish(self) {
        self.stop.store(true, SeqCst);
        assert!(self.thread.join().expect("every sample is right") > 0);
    }
}

/// All calls of all clients at once, against a limit; some are given up on the way.
async fn never_more_than(limit: u64) {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(limit));
    let (sockets, handle) = (harness.sockets().await, harness.handle.clone());
    let watcher = Watcher::new(handle.clone(), limit);
    let clients: Vec<_> = (0..CLIENTS).map(|_| sockets.client()).collect();
    let calls: Vec<_> = (0..CALLS)
        .flat_map(|n| clients.iter().zip((0..).map(move |client| client * CALLS + n)))
        .map(|(client, nonce)| {
            let method = if nonce % 4 == 0 { method::NONCE_SPAWNED } else { method::NONCE };
            let client = client.clone();
            tokio::spawn(async move {
                let (mut served, mut refused) = (0, 0);
                for pending in 0..4_u32 {
                    match client.call::<_, u64>(method, (nonce, pending)).await {
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
        let (ok, no) = within(call).await.unwrap();
        (served, refused) = (served + ok, refused + no);
    }
    assert_eq!(served + refused, CLIENTS * CALLS * 4);
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
