//! Every connection ends in bounded time, whatever state it is in when it is to end.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use rpc_codec::GoAwayReason;
use sluicegate::{
    Context, Server,
    client::Method,
    server::{MethodOptions, Service, ServiceMethods},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::support::{
    Got, Harness, RawClient, Req, assert_idle_soon,
    feed::{FeedService, Feeder, named},
    method,
    raw::{frame, hello},
    shims::is_full,
    within,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(2);

/// How long a connection may take to say goodbye: a second to write it, a second to linger.
const FAREWELL: Duration = Duration::from_millis(2_100);
/// How long a shutdown may take beyond its grace, to the two ticks of the timers that tell so.
const PARTING: Duration = Duration::from_millis(1_002);

macro_rules! states {
    ($($state:ident,)*) => {
        /// What a connection is doing when it is to end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum State {
            $($state,)*
        }

        use State::*;

        impl State {
            const ALL: &[Self] = &[$($state),*];
        }
    };
}

states! {
    BeforeTheFirstByte,
    HalfAHello,
    Open,
    HalfAFrame,
    BlockedOnWriting,
    EndlessCall,
    EndlessTask,
    WorkThatOutlivesItsCall,
    EndlessItems,
    ItemsWithoutCredit,
    ItemsBlockedOnWriting,
    ItemsThatNeverEnd,
    PeerHasLeft,
    PeerHasSaidGoodbyeAndStays,
    ClosingToAPeerThatDoesNotRead,
    LingeringWithAPeerThatStays,
    LingeringWithAPeerThatSends,
    TurnedAwayAndNotReading,
}

impl State {
    /// Whether something runs that has the grace period.
    fn has_grace(self) -> bool {
        let calls =
            matches!(self, BlockedOnWriting | EndlessCall | EndlessTask | WorkThatOutlivesItsCall | PeerHasLeft);
        calls || self.has_items()
    }

    /// Whether it is a stream that has the grace period.
    fn has_items(self) -> bool {
        matches!(self, EndlessItems | ItemsWithoutCredit | ItemsBlockedOnWriting | ItemsThatNeverEnd)
    }

    /// Whether what the server writes is not taken at once.
    fn is_narrow(self) -> bool {
        matches!(self, BlockedOnWriting | ItemsBlockedOnWriting | ClosingToAPeerThatDoesNotRead)
    }

    /// Whether it lasts until somebody ends it.
    fn lasts(self) -> bool {
        let ends = matches!(
            self,
            ClosingToAPeerThatDoesNotRead
                | LingeringWithAPeerThatStays
                | LingeringWithAPeerThatSends
                | TurnedAwayAndNotReading
        );
        !ends
    }
}

/// A server whose connections nothing ends but what the test does.
fn harness(state: State) -> Harness {
    Harness::with(|builder| {
        let builder = builder.first_byte_timeout(600 * SECOND).handshake_timeout(600 * SECOND);
        let builder = builder.frame_timeout(600 * SECOND).write_timeout(600 * SECOND).keepalive_interval(None);
        let builder = builder.drain_grace(GRACE).service(FeedService::new(Feeder::default()));
        if state == TurnedAwayAndNotReading { builder.max_connections(1) } else { builder }
    })
}

/// A peer whose connection is in `state`. None of them reads.
async fn peer_in(state: State, harness: &Harness) -> Vec<RawClient> {
    let mut peer = harness.peer_through(if state.is_narrow() { 256 } else { 512 * 1024 });
    if !matches!(state, BeforeTheFirstByte | HalfAHello) {
        peer.shake_hands().await;
    }
    let gate = |method| Req::new(1, method, (1_u64,)).bytes();
    let broken = frame(0x2a, 0, 0, &[], &[]);
    match state {
        BeforeTheFirstByte | Open => {}
        HalfAHello => peer.send(&hello()[..30]).await,
        HalfAFrame => peer.send(&gate(method::GATE)[..30]).await,
        BlockedOnWriting => peer.send(&Req::new(1, method::LARGE, (100_000_u32,)).bytes()).await,
        EndlessCall => peer.send(&gate(method::GATE)).await,
        EndlessTask => peer.send(&gate(method::GATE_SPAWNED)).await,
        EndlessItems => peer.send(&Req::new(1, named("stall"), (3_u64,)).takes().bytes()).await,
        ItemsWithoutCredit | ItemsBlockedOnWriting => {
            peer.send(&Req::new(1, named("count_sent"), (u64::MAX,)).takes().bytes()).await;
        }
        ItemsThatNeverEnd => peer.send(&Req::new(1, named("sum"), (1_u64,)).sends().bytes()).await,
        WorkThatOutlivesItsCall => peer.send(&Req::new(1, method::HOLD_AND_WAIT_SPAWNED, ()).bytes()).await,
        PeerHasLeft => {
            peer.send(&gate(method::GATE)).await;
            peer.leave().await;
        }
        PeerHasSaidGoodbyeAndStays => {
            let mut out = Vec::new();
            rpc_codec::encode_go_away(&mut out, rpc_core::CallId::CONNECTION, GoAwayReason::Drain, "");
            peer.send(&out).await;
        }
        ClosingToAPeerThatDoesNotRead => {
            peer.send(&Req::new(1, method::LARGE, (100_000_u32,)).bytes()).await;
            sleep(MS).await;
            peer.send(&broken).await;
        }
        LingeringWithAPeerThatStays => peer.send(&broken).await,
        LingeringWithAPeerThatSends => peer.send(&[broken, vec![0; 200_000]].concat()).await,
        TurnedAwayAndNotReading => {
            let other = harness.peer_through(1);
            sleep(MS).await;
            return vec![peer, other];
        }
    }
    sleep(5 * MS).await;
    vec![peer]
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Drain,
    DrainTwice,
    DrainThatNobodyAwaits,
    Stop,
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_in_bounded_time_whatever_the_connections_are_doing() {
    use Ending::{Drain, DrainThatNobodyAwaits, DrainTwice, Stop};
    for &state in State::ALL {
        for ending in [Drain, DrainTwice, DrainThatNobodyAwaits, Stop] {
            let what = format!("{state:?}, {ending:?}");
            let harness = harness(state);
            let peers = peer_in(state, &harness).await;
            if state.lasts() {
                assert_eq!(harness.snapshot().connections, 1, "{what}");
            }
            let began = Instant::now();
            match ending {
                Drain => {
                    let drained = harness.handle.drain().await;
                    assert_eq!(drained.stuck_connections, 0, "{what}");
                    // The answer of a call that is blocked on writing is there already.
                    let cut = state.has_grace() && state != BlockedOnWriting;
                    assert_eq!(drained.cut.len(), usize::from(cut), "{what}");
                }
                DrainTwice => {
                    harness.handle.shutdown();
                    let drained = tokio::join!(harness.handle.drain(), harness.handle.drain());
                    assert_eq!(drained.0.stuck_connections + drained.1.stuck_connections, 0, "{what}");
                }
                DrainThatNobodyAwaits => harness.handle.shutdown(),
                Stop => harness.handle.stop(),
            }
            let grace = if state.has_grace() && !matches!(ending, Stop) { GRACE } else { Duration::ZERO };
            while harness.snapshot().connections > 0 || harness.snapshot().buffered_bytes > 0 {
                assert!(began.elapsed() <= grace + PARTING, "{what}: {:?}", began.elapsed());
                sleep(MS).await;
            }
            assert!(began.elapsed() >= grace && began.elapsed() <= grace + PARTING, "{what}: {:?}", began.elapsed());
            assert_eq!((harness.probe.running(), harness.snapshot().streams), (0, 0), "{what}");
            let held = harness.snapshot().calls.held;
            assert_eq!(held, u64::from(state == WorkThatOutlivesItsCall), "{what}");
            harness.probe.drop_holds();
            harness.assert_idle().await;
            // To say it after everything has ended is harmless.
            harness.handle.stop();
            assert!(harness.handle.drain().await.cut.len() <= 1, "{what}");
            drop(peers);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_its_last_answers_slowly_and_stays_does_not_hold_up_a_shutdown() {
    for takes in [0, 100, 500, 850, 899, 950] {
        let harness = harness(Open);
        let mut peer = harness.peer_through(256);
        peer.shake_hands().await;
        peer.send(&Req::new(1, method::LARGE, (10_000_u32,)).bytes()).await;
        harness.until_held(1).await;
        let (began, handle) = (Instant::now(), harness.handle.clone());
        let draining = tokio::spawn(async move { handle.drain().await });
        sleep(GRACE + takes * MS).await;
        let mut answers = Vec::new();
        // It takes them and does not close.
        let read = peer.peer.io.read_to_end(&mut answers).await;
        let drained = draining.await.unwrap();
        assert!(began.elapsed() <= GRACE + PARTING, "{takes}: {:?}", began.elapsed());
        assert_eq!((drained.stuck_connections, read.is_ok()), (0, true), "{takes}");
        assert_eq!(answers.len() > 10_000, takes < 900, "{takes}: {} bytes", answers.len());
        harness.assert_idle().await;
        drop(peer);
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_a_closing_connection_is_doing_it_is_gone_without_a_shutdown_as_well() {
    for state in State::ALL.iter().copied().filter(|state| !state.lasts()) {
        let harness = harness(state);
        let mut peers = peer_in(state, &harness).await;
        if state == TurnedAwayAndNotReading {
            drop(peers.remove(0));
        }
        let began = Instant::now();
        while harness.snapshot().connections > 0 || harness.snapshot().buffered_bytes > 0 {
            assert!(began.elapsed() <= FAREWELL, "{state:?}: {:?}", began.elapsed());
            sleep(MS).await;
        }
        harness.assert_idle().await;
        drop(peers);
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_connection_ends_in_bounded_time_whatever_it_is_doing() {
    for state in
        State::ALL.iter().copied().filter(|state| state.lasts() && !matches!(state, BeforeTheFirstByte | HalfAHello))
    {
        let harness = Harness::with(|builder| {
            let builder = builder.frame_timeout(600 * SECOND).write_timeout(600 * SECOND).keepalive_interval(None);
            let builder = builder.service(FeedService::new(Feeder::default()));
            builder.max_connection_age(100 * SECOND).max_connection_age_grace(GRACE)
        });
        let began = Instant::now();
        let peers = peer_in(state, &harness).await;
        sleep(85 * SECOND).await;
        assert_eq!(harness.snapshot().connections, 1, "{state:?}");
        let grace = if state.has_grace() { GRACE } else { Duration::ZERO };
        while harness.snapshot().connections > 0 {
            assert!(began.elapsed() <= 110 * SECOND + grace + FAREWELL, "{state:?}: {:?}", began.elapsed());
            sleep(10 * MS).await;
        }
        assert!(began.elapsed() >= 90 * SECOND + grace, "{state:?}: {:?}", began.elapsed());
        assert_eq!(harness.probe.running(), 0, "{state:?}");
        harness.probe.drop_holds();
        harness.assert_idle().await;
        drop(peers);
    }
}

/// A service that blocks its thread, which no cancellation ends.
#[derive(Clone)]
struct Blocking(Arc<Mutex<mpsc::Receiver<()>>>);

const BLOCK: Method = Method::new("test.Blocking", "block");

impl Service for Blocking {
    fn name(&self) -> &str {
        "test.Blocking"
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        methods.unary("block", MethodOptions::default().spawn(true), move |_: &Context, (): ()| {
            let released = Arc::clone(&self.0);
            async move {
                let _ = released.lock().unwrap().recv();
                Ok(())
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_task_that_ignores_its_cancellation_is_reported_and_its_peer_not_kept_waiting() {
    let (release, released) = mpsc::channel();
    let service = Blocking(Arc::new(Mutex::new(released)));
    let server = Server::builder().service(service).drain_grace(50 * MS).build().unwrap();
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (serving, handle) = (server.clone(), server.handle());
    let serving = tokio::spawn(async move { serving.serve_connection(theirs, None).await });
    let mut peer = RawClient::new(ours);
    peer.shake_hands().await;
    peer.send(&Req::new(1, BLOCK, ()).bytes()).await;
    within(async {
        while handle.snapshot().calls_parked == 0 {
            sleep(MS).await;
        }
    })
    .await;
    let began = Instant::now();
    let drained = within(handle.drain()).await;
    // Beside others that keep this thread it may take longer.
    assert!(!is_full() || began.elapsed() <= 50 * MS + PARTING + 10 * MS, "{:?}", began.elapsed());
    assert_eq!((drained.stuck_connections, drained.cut.len()), (1, 1), "{drained:?}");
    let rest = peer.peer.rest().await;
    assert!(matches!(rest[..], [Got::GoAway { .. }, Got::Response { .. }]), "{rest:?}");
    assert_eq!(handle.snapshot().calls.held, 1, "the thread has the permit as long as it works");
    release.send(()).unwrap();
    within(serving).await.unwrap();
    assert_idle_soon(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_still_sends_when_it_is_refused_reads_why_every_time() {
    const ROUNDS: usize = 1_000;
    let harness = Harness::with(|builder| builder.max_connections(100_000));
    let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
    let address = bound.local_addr();
    let serving = tokio::spawn(bound.serve());
    let mut told = 0;
    for _ in 0..ROUNDS {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let junk = vec![0_u8; 20_000];
        socket.write_all(&[hello(), frame(0x2a, 0, 0, &[], &[]), junk].concat()).await.unwrap();
        let mut received = Vec::new();
        within(socket.read_to_end(&mut received)).await.unwrap();
        told += usize::from(received.ends_with(b"unknown frame kind 0x2a"));
    }
    assert_eq!(told, ROUNDS);
    assert_idle_soon(&harness.handle).await;
    harness.handle.shutdown();
    within(serving).await.unwrap();
}
