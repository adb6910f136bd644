//! Clients that lose their server together do not come back together, and one that loses it again and
//! again hangs on nothing.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::poll;
use sluicegate::{CallError, Client, StatusCode};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::support::{Harness, method, until_client_idle, within};

const MS: Duration = Duration::from_millis(1);
const CLIENTS: usize = 1_000;

const UP: u8 = 0;
const DOWN: u8 = 1;
/// Accepts, and hangs up at once.
const BROKEN: u8 = 2;

/// A way to the harness's server that notes who tried it when.
#[derive(Clone)]
struct Way {
    harness: Harness,
    mode: Arc<AtomicU8>,
    attempts: Arc<Mutex<Vec<(Instant, usize)>>>,
    tasks: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Way {
    fn new() -> Self {
        Self { harness: Harness::new(), mode: Arc::default(), attempts: Arc::default(), tasks: Arc::default() }
    }

    fn client(&self, n: usize) -> Client {
        let way = self.clone();
        let builder = Client::with_connector("the lost server", move || {
            let connected = way.connect(n);
            async { connected }
        });
        builder.wait_for_ready(true).build()
    }

    fn connect(&self, n: usize) -> io::Result<tokio::io::DuplexStream> {
        self.attempts.lock().unwrap().push((Instant::now(), n));
        let (ours, theirs) = tokio::io::duplex(4_096);
        match self.mode.load(SeqCst) {
            DOWN => return Err(io::ErrorKind::ConnectionRefused.into()),
            BROKEN => drop(theirs),
            _ => {
                let server = self.harness.server.clone();
                let task = tokio::spawn(async move { server.serve_connection(theirs, None).await });
                self.tasks.lock().unwrap().push(task);
            }
        }
        Ok(ours)
    }

    /// The server crashes, and is then `mode`.
    fn crash(&self, mode: u8) {
        self.attempts.lock().unwrap().clear();
        self.mode.store(mode, SeqCst);
        self.tasks.lock().unwrap().drain(..).for_each(|task| task.abort());
    }

    /// The most attempts within any tenth of a second.
    fn most_at_once(&self) -> usize {
        let attempts = self.attempts.lock().unwrap();
        // They are in the order of time.
        let until = |last: Instant| attempts.partition_point(|(at, _)| *at < last);
        (0..attempts.len()).map(|n| until(attempts[n].0 + 100 * MS) - n).max().unwrap_or(0)
    }

    /// The most attempts of any client.
    fn most_of_one(&self) -> usize {
        let mut of = vec![0; CLIENTS];
        self.attempts.lock().unwrap().iter().for_each(|&(_, n)| of[n] += 1);
        of.into_iter().max().unwrap_or(0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_clients_come_back_spread_out_and_not_too_often() {
    let way = Way::new();
    let clients: Vec<_> = (0..CLIENTS).map(|n| way.client(n)).collect();
    let call = |client: &Client| tokio::spawn(client.call::<_, u64>(method::NONCE, (7_u64, 0_u32)));
    for mode in [DOWN, BROKEN] {
        for call in clients.iter().map(call).collect::<Vec<_>>() {
            assert_eq!(within(call).await.unwrap().unwrap(), 7);
        }
        way.crash(mode);
        sleep(MS).await;
        let waiting: Vec<_> = clients.iter().map(call).collect();
        sleep(30_000 * MS).await;
        let (at_once, of_one) = (way.most_at_once(), way.most_of_one());
        assert!(at_once <= CLIENTS / 10, "{at_once} attempts within 100 ms");
        assert!((4..=8).contains(&of_one), "{of_one} attempts of one client in 30 s");
        way.mode.store(UP, SeqCst);
        for call in waiting {
            assert_eq!(within(call).await.unwrap().unwrap(), 7);
        }
        let at_once = way.most_at_once();
        assert!(at_once <= CLIENTS / 10, "{at_once} attempts within 100 ms");
    }
    for client in &clients {
        until_client_idle(client).await;
    }
    drop(clients);
    way.harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_who_waits_for_an_attempt_may_leave_and_the_others_get_its_connection() {
    let harness = Harness::new();
    let client = harness.client();
    let mut first = client.call::<_, u64>(method::NONCE, (1_u64, 0_u32));
    assert!(poll!(&mut first).is_pending());
    let others: Vec<_> = (0..100_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 0_u32)))).collect();
    drop(first);
    for (n, call) in (0..).zip(others) {
        assert_eq!(within(call).await.unwrap().unwrap(), n);
    }
    assert_eq!((harness.network.attempts(), harness.probe.finished()), (1, 100));
    until_client_idle(&client).await;
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn connections_killed_at_random_leave_no_call_hanging_and_no_connection_behind() {
    let calls = std::env::var("SLUICEGATE_CLIENT_CALLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000_u64);
    let harness = Harness::new();
    let client = harness.client_builder().backoff(2 * MS, 20 * MS).build();
    let done = Arc::new(AtomicU8::new(0));
    let (network, over) = (harness.network.clone(), Arc::clone(&done));
    let killer = tokio::spawn(async move {
        let mut random = seeded(7);
        while over.load(SeqCst) == 0 {
            sleep(random(12) as u32 * MS).await;
            network.set_down(random(3) == 0);
            network.cut();
        }
        network.set_down(false);
    });
    let callers: Vec<_> = (0..20_u64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut random = seeded(n + 1);
                let mut good = 0;
                for nonce in 0..calls / 20 {
                    let call = client.call::<_, u64>(method::NONCE, (nonce, random(3) as u32));
                    let call = call.wait_for_ready(random(2) == 0).timeout(2_000 * MS);
                    let began = Instant::now();
                    match call.await {
                        Ok(answer) => {
                            assert_eq!(answer, nonce);
                            good += 1;
                        }
                        Err(CallError::DeadlineExceeded { .. }) => panic!("it hung"),
                        Err(error) => assert_eq!(error.code(), StatusCode::Unavailable, "{error:?}"),
                    }
                    assert!(began.elapsed() <= 2_002 * MS);
                    if random(4) == 0 {
                        sleep(MS).await;
                    }
                }
                good
            })
        })
        .collect();
    let mut good = 0;
    for caller in callers {
        good += caller.await.unwrap();
    }
    done.store(1, SeqCst);
    killer.await.unwrap();
    assert!(good > calls / 10, "{good} of {calls} were answered");
    until_client_idle(&client).await;
    assert!(client.snapshot().lost_connections > 10, "{:?}", client.snapshot());
    drop(client);
    harness.assert_idle().await;
}

/// Random numbers below a bound, the same in every run.
fn seeded(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed + 1);
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % bound
    }
}
