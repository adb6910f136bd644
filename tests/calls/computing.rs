//! Services that compute: calls beside them do not wait, and what they do elsewhere is bounded.

use std::{
    future::IntoFuture,
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use futures::future::join_all;
use sluicegate::{
    Client, Context, Status, StatusCode,
    client::{HealthClient, Method},
    server::{MethodOptions, ServerBuilder, ServerHandle, Service, ServiceMethods, WaitQueue},
};
use tokio::{
    net::TcpListener,
    runtime,
    task::{JoinHandle, spawn_blocking, yield_now},
    time::{sleep, timeout},
};

use crate::support::{Harness, assert_idle_soon, method};

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn calls_beside_one_that_computes_do_not_wait_for_it() {
    let harness = Harness::new();
    let client = harness.client();
    let spin = async |client: &Client, us: u64| {
        let began = Instant::now();
        client.call::<_, ()>(method::SPIN, (us,)).await.unwrap();
        began.elapsed()
    };
    while harness.snapshot().methods_demoted == 0 {
        spin(&client, 1_000).await;
    }
    let computing = {
        let client = client.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            for _ in 0..20 {
                times.push(spin(&client, 20_000).await);
            }
            median(times)
        })
    };
    let mut siblings = Vec::new();
    while !computing.is_finished() {
        let began = Instant::now();
        assert_eq!(client.call::<_, String>(method::ECHO, ("hi",)).await.unwrap(), "hi");
        siblings.push(began.elapsed());
        // A call now and then: this is about waiting, not about throughput.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (computing, siblings) = (computing.await.unwrap(), median(siblings));
    assert!(siblings * 4 < computing, "{siblings:?} beside a method of {computing:?}");
    assert_eq!(harness.network.attempts(), 1);
    drop(client);
    assert_idle_soon(&harness.handle).await;
}

/// A server whose only thread computes, with sockets that it has to look at: in memory, whoever writes wakes it. The
/// thread ends when the server has, and looks whether anything is left.
fn serve_on_one_thread(calls: usize) -> (SocketAddr, ServerHandle, thread::JoinHandle<()>) {
    let (told, tell) = mpsc::channel();
    let serving = thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limits = |builder: ServerBuilder| {
                let builder = builder.max_concurrent_calls(2).max_concurrent_calls_per_connection(calls as u64);
                builder.wait_queue(WaitQueue::of(calls as u64).max_wait(Duration::from_secs(60))).health(true)
            };
            let harness = Harness::with(limits);
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let bound = harness.server.listen(listener).unwrap();
            told.send((bound.local_addr(), harness.handle.clone())).unwrap();
            bound.serve().await;
            assert!(harness.snapshot().is_idle(), "{:#?}", harness.snapshot());
        });
    });
    let (address, handle) = tell.recv().unwrap();
    (address, handle, serving)
}

#[tokio::test]
async fn who_asks_where_calls_compute_one_after_the_other_waits_for_few_of_them() {
    const CALLS: usize = 2_000;
    let (address, handle, serving) = serve_on_one_thread(CALLS);
    let connect = || Client::builder(address).wait_for_ready(true).build();
    let (client, other) = (connect(), connect());
    let health: HealthClient = other.service();
    health.check("").await.unwrap();
    let computing: Vec<_> =
        (0..CALLS).map(|_| tokio::spawn(client.call::<_, ()>(method::SPIN, (200_u64,)).into_future())).collect();
    while handle.snapshot().methods_demoted == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let mut waited_for = Vec::new();
    for _ in 0..41 {
        let before = handle.snapshot().calls.released;
        health.check("").await.unwrap();
        waited_for.push(handle.snapshot().calls.released - before);
        sleep(Duration::from_millis(2)).await;
    }
    assert!(handle.snapshot().calls_waiting > 0, "they are through already");
    waited_for.sort_unstable();
    // Two compute at a time, and two may have begun while the answer was on its way. Where the machine is busy, more are
    // counted that this thread has waited for and not the call; of a tenth of the calls they are not.
    assert!(waited_for[4] <= 6, "{waited_for:?}");
    computing.iter().for_each(JoinHandle::abort);
    drop((client, other, health));
    assert_idle_soon(&handle).await;
    handle.shutdown();
    spawn_blocking(|| serving.join()).await.unwrap().unwrap();
}

/// A service whose work goes on when its caller is gone.
#[derive(Clone, Default)]
struct Mill(Arc<Work>);

#[derive(Default)]
struct Work {
    running: AtomicUsize,
    high_water: AtomicUsize,
    ground: AtomicU64,
}

/// A piece of work, counted until it is dropped.
struct Grinding(Mill);

impl Mill {
    fn begin(&self) -> Grinding {
        let running = self.0.running.fetch_add(1, SeqCst) + 1;
        self.0.high_water.fetch_max(running, SeqCst);
        Grinding(self.clone())
    }
}

impl Grinding {
    fn grind(self) -> u64 {
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(300) {
            black_box(&self);
            std::thread::yield_now();
        }
        self.0.0.ground.fetch_add(1, SeqCst)
    }
}

impl Drop for Grinding {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, SeqCst);
    }
}

const BY_HAND: Method = Method::new("test.Mill", "by_hand");
const BLOCKING: Method = Method::new("test.Mill", "blocking");

impl Service for Mill {
    fn name(&self) -> &str {
        "test.Mill"
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        let (options, mill) = (MethodOptions::default(), self.clone());
        methods.blocking("blocking", options, move |_, (): ()| Ok(self.begin().grind()));
        methods.unary("by_hand", options, move |context: &Context, (): ()| {
            let (hold, mill) = (context.hold(), mill.clone());
            async move {
                let work = move || {
                    // Dropped in this order: the place is taken for as long as the work goes on.
                    let _hold = hold;
                    mill.begin().grind()
                };
                spawn_blocking(work).await.map_err(|_| Status::internal("the mill broke"))
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_eight_work_at_once_whoever_gives_up_meanwhile() {
    for method in [BY_HAND, BLOCKING] {
        let mill = Mill::default();
        let harness = Harness::with(|builder| {
            let builder = builder.service(mill.clone());
            if method == BLOCKING { builder.max_blocking_calls(8) } else { builder.max_concurrent_calls(8) }
        });
        let clients: Vec<_> = (0..4).map(|_| harness.client()).collect();
        let callers = (0..32_usize).map(|caller| {
            let client = clients[caller % 4].clone();
            tokio::spawn(async move {
                let mut ended = [0; 3];
                for n in 0..100 {
                    // A third has no patience, and its work goes on without it.
                    let patience = if (caller + n) % 3 == 0 { 200 } else { 60_000_000 };
                    let call = client.call::<_, u64>(method, ());
                    match timeout(Duration::from_micros(patience), call).await {
                        Ok(Ok(_)) => ended[0] += 1,
                        Ok(Err(error)) => {
                            assert_eq!(error.code(), StatusCode::ResourceExhausted, "{error:?}");
                            ended[1] += 1;
                            yield_now().await;
                        }
                        Err(_) => ended[2] += 1,
                    }
                }
                ended
            })
        });
        let mut ended = [0; 3];
        for caller in join_all(callers).await {
            let caller = caller.unwrap();
            (0..3).for_each(|n| ended[n] += caller[n]);
        }
        assert!(ended.iter().all(|&calls| calls > 0), "served, refused, given up: {ended:?}");
        drop(clients);
        assert_idle_soon(&harness.handle).await;
        assert_eq!(mill.0.running.load(SeqCst), 0);
        let high_water = mill.0.high_water.load(SeqCst);
        assert!((2..=8).contains(&high_water), "{high_water} at once");
    }
}
