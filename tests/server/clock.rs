//! Services that keep the thread for long: what that does to the ages and deadlines of other calls.
//!
//! A poll "takes" virtual time: the service moves the clock on while it is being polled.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, Read},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::join_all};
use sluicegate::{
    Client, Executed, Server, Status, StatusCode,
    client::Method,
    server::{MethodOptions, Service, ServiceMethods},
};
use tokio::{
    io::{AsyncRead, DuplexStream, ReadBuf, ReadHalf, join, split},
    time::{Instant, sleep},
};

use crate::support::{Got, Harness, RawClient, Req, assert_idle_soon, method, shims::Manner, within};

const MS: Duration = Duration::from_millis(1);

/// Keeps the thread for so many milliseconds, and then for so many more after having been pending.
const SLOW: Method = Method::new("test.Slow", "slow");
const SLOW_LATER: Method = Method::new("test.Slow", "slow_later");

/// Why a test stays on plain transports.
const ONE_READ: &str = "the calls have to come in one read";

/// A service whose polls take long.
#[derive(Clone, Default)]
struct Slow {
    started: Arc<AtomicUsize>,
    /// What arrives while the service keeps the thread.
    arriving: Arc<Mutex<Vec<u8>>>,
    arrived: Arc<Mutex<VecDeque<u8>>>,
}

impl Slow {
    /// Keeps the thread, and lets what is about to arrive do so at four fifths of the time.
    fn keep_the_thread(&self, ms: u32) {
        pass(MS * ms * 4 / 5);
        self.arrived.lock().unwrap().extend(self.arriving.lock().unwrap().drain(..));
        pass(MS * ms / 5);
    }

    async fn slow(self, ms: u32) -> Result<(), Status> {
        self.started.fetch_add(1, SeqCst);
        self.keep_the_thread(ms);
        Ok(())
    }

    async fn slow_later(self, ms: u32) -> Result<(), Status> {
        let mut pending = true;
        // Woken at once: it is polled in the next turn of its connection.
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::take(&mut pending) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self.slow(ms).await
    }

    fn harness(&self) -> Harness {
        Harness::with(|builder| builder.service(self.clone()))
    }

    fn started(&self) -> usize {
        self.started.load(SeqCst)
    }
}

impl Service for Slow {
    fn name(&self) -> &str {
        "test.Slow"
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        let later = self.clone();
        let slow = move |_: &sluicegate::Context, (ms,): (u32,)| self.clone().slow(ms);
        methods.unary("slow", MethodOptions::default(), slow);
        let slow_later = move |_: &sluicegate::Context, (ms,): (u32,)| later.clone().slow_later(ms);
        methods.unary("slow_later", MethodOptions::default(), slow_later);
    }
}

/// Moves the clock on without giving the thread to anybody.
fn pass(time: Duration) {
    let before = Instant::now();
    let _ = tokio::time::advance(time).now_or_never();
    assert_eq!(before.elapsed(), time);
}

/// A request that says when it was sent, by a clock of the client's own.
fn stamped(id: u64, method: Method, args: impl serde::Serialize, ahead: Duration, timeout: Duration) -> Vec<u8> {
    static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    // Tests have clocks of their own, which may be behind.
    let origin = *ORIGIN.get_or_init(Instant::now);
    let micros = 1_000_000_000 + (Instant::now() + ahead + 1_000 * MS - origin).as_micros();
    Req::new(id, method, args).timeout(timeout).head(|head| head.sent_at_us = micros as u32).bytes()
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_during_a_slow_poll_does_not_make_later_calls_look_old() {
    for slow_method in [SLOW, SLOW_LATER] {
        let slow = Slow::default();
        let harness = slow.harness();
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (read, write) = split(theirs);
        let read = Arriving { io: read, arrived: Arc::clone(&slow.arrived) };
        let (server, io) = (harness.server.clone(), Manner::of_this_run().wrap(join(read, write)));
        tokio::spawn(async move { server.serve_connection(io, None).await });
        let mut peer = RawClient::new(ours);
        peer.shake_hands().await;
        for round in 0..5 {
            let id = 1 + round * 10;
            peer.send(&stamped(id, method::ECHO, ("hi",), Duration::ZERO, 25 * MS)).await;
            assert_eq!(peer.reply::<String>(id).await, "hi");
            *slow.arriving.lock().unwrap() = stamped(id + 2, method::ECHO, ("while it is slow",), 40 * MS, 25 * MS);
            peer.send(&stamped(id + 1, slow_method, (50_u32,), Duration::ZERO, 500 * MS)).await;
            peer.reply::<()>(id + 1).await;
            assert_eq!(peer.reply::<String>(id + 2).await, "while it is slow");
            for idle in 3..6 {
                sleep(50 * MS).await;
                peer.send(&stamped(id + idle, method::ECHO, ("hi",), Duration::ZERO, 25 * MS)).await;
                assert_eq!(peer.reply::<String>(id + idle).await, "hi", "round {round}");
            }
        }
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_behind_slow_ones_whose_deadline_has_passed_meanwhile_are_not_executed() {
    for calls in [2, 7, 100] {
        let slow = Slow::default();
        let harness = slow.harness();
        let mut peer = harness.peer().await;
        peer.send(&stamped(1, SLOW, (0_u32,), Duration::ZERO, 50 * MS)).await;
        peer.reply::<()>(1).await;
        let requests: Vec<_> = (2..2 + calls).map(|id| stamped(id, SLOW, (30_u32,), Duration::ZERO, 50 * MS)).collect();
        peer.send(&requests.concat()).await;
        for id in 2..2 + calls {
            let Got::Response { code, executed, .. } = peer.next().await else { panic!("no answer to {id}") };
            if code != StatusCode::Ok {
                assert_eq!((code, executed), (StatusCode::DeadlineExceeded, Executed::Never));
            }
        }
        // One at 0 ms and one at 30, beside the first call of all.
        assert_eq!(slow.started(), 1 + 2);
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn clients_of_calls_behind_slow_ones_are_told_of_the_deadline() {
    let slow = Slow::default();
    let harness = slow.harness();
    let client: Client = harness.client();
    client.call::<_, ()>(SLOW, (0_u32,)).await.unwrap();
    let calls = (0..7).map(|_| client.call::<_, ()>(SLOW, (30_u32,)).timeout(50 * MS));
    let outcomes = join_all(calls).await;
    let late = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    assert!(late.clone().count() >= 5, "{outcomes:?}");
    assert!(late.clone().all(|error| error.code() == StatusCode::DeadlineExceeded), "{outcomes:?}");
    drop(client);
    harness.assert_idle().await;
    assert!(slow.started() <= 1 + 2, "{} started", slow.started());
}

#[tokio::test(start_paused = true)]
async fn a_call_left_for_the_next_turn_whose_deadline_passes_while_woken_calls_are_polled_is_not_executed() {
    let slow = Slow::default();
    let harness = slow.harness().plain(ONE_READ);
    let mut peer = harness.peer().await;
    peer.send(&stamped(1, SLOW, (0_u32,), Duration::ZERO, 50 * MS)).await;
    peer.reply::<()>(1).await;
    // The first is pending; the second ends the batch; then the first keeps the thread for long.
    let requests = [
        stamped(2, SLOW_LATER, (60_u32,), Duration::ZERO, 500 * MS),
        stamped(3, SLOW, (1_u32,), Duration::ZERO, 500 * MS),
        stamped(4, SLOW, (1_u32,), Duration::ZERO, 50 * MS),
    ];
    peer.send(&requests.concat()).await;
    peer.reply::<()>(3).await;
    peer.reply::<()>(2).await;
    let (status, _) = peer.answer(4).await;
    assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Never), "{status}");
    assert_eq!(slow.started(), 3);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_service_blocks_its_thread_is_one_stuck_connection() {
    let (blocked, is_blocked) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let server = Server::builder().service(BlocksServer::new(Blocking(Mutex::new((blocked, released)))));
    let server = server.drain_grace(Duration::ZERO).build().unwrap();
    let handle = server.handle();
    // The server's time is real and its thread blocked; ours is virtual, and so is the wait for it.
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // Plain in every run: it is about the server's own accept loop and its drain.
            let bound = server.bind("127.0.0.1:0").await.unwrap();
            let client: BlocksClient = Client::new(bound.local_addr().to_string()).service();
            let call = tokio::spawn(async move { client.block().await });
            bound.serve().await;
            let _ = call.await;
        });
    });
    is_blocked.recv().unwrap();
    assert_eq!(within(handle.drain()).await.stuck_connections, 1);
    release.send(()).unwrap();
    thread.join().unwrap();
    assert_idle_soon(&handle).await;
}

#[sluicegate::service]
trait Blocks {
    async fn block(&self) -> Result<(), Status>;
}

struct Blocking(Mutex<(mpsc::Sender<()>, mpsc::Receiver<()>)>);

impl Blocks for Blocking {
    async fn block(&self) -> Result<(), Status> {
        let channels = self.0.lock().unwrap();
        channels.0.send(()).unwrap();
        let _ = channels.1.recv();
        Ok(())
    }
}

/// A transport to which things arrive while nobody else runs.
struct Arriving {
    io: ReadHalf<DuplexStream>,
    arrived: Arc<Mutex<VecDeque<u8>>>,
}

impl AsyncRead for Arriving {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut arrived = self.arrived.lock().unwrap();
        if !arrived.is_empty() {
            let len = arrived.read(buf.initialize_unfilled())?;
            buf.advance(len);
            return Poll::Ready(Ok(()));
        }
        drop(arrived);
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

#[tokio::test(start_paused = true)]
async fn however_many_calls_were_woken_before_the_slow_one_what_expired_meanwhile_is_not_executed() {
    for parked in 1..20_u64 {
        let slow = Slow::default();
        let harness = slow.harness().plain(ONE_READ);
        let mut peer = harness.peer().await;
        // The last of the parked calls keeps the thread; the batch is full without a slow call.
        let requests = (1..=64 + 10).map(|id| match id {
            _ if id < parked => stamped(id, SLOW_LATER, (0_u32,), Duration::ZERO, 500 * MS),
            _ if id == parked => stamped(id, SLOW_LATER, (60_u32,), Duration::ZERO, 500 * MS),
            ..=64 => stamped(id, method::ECHO, ("hi",), Duration::ZERO, 500 * MS),
            _ => stamped(id, SLOW, (1_u32,), Duration::ZERO, 50 * MS),
        });
        peer.send(&requests.collect::<Vec<_>>().concat()).await;
        for _ in 0..64 + 10 {
            assert!(matches!(peer.next().await, Got::Response { .. }));
        }
        assert_eq!(slow.started() as u64, parked, "calls were executed after their deadline");
        peer.part().await;
        harness.assert_idle().await;
    }
}
