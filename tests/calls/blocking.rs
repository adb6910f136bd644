//! Methods that block their thread: where they run, what bounds them, and how they end.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sluicegate::{Bytes, CallError, Context, Executed, Status, StatusCode, client::Method, server::ServerBuilder};
use tokio::{runtime::Builder, task::yield_now, time::advance};

use crate::support::{Got, Harness, Req, assert_idle_soon, method, raw::cancel};

/// A service that blocks.
#[sluicegate::service(package = "test")]
trait Press {
    /// Waits for the gate; says whether the call was cancelled meanwhile.
    #[rpc(blocking)]
    fn print(&self, ctx: Context, nonce: u64) -> Result<(u64, bool), Status>;

    /// Bytes that no codec touches.
    #[rpc(blocking)]
    fn copy(&self, page: Bytes) -> Bytes;

    /// Leaves a trace of where arguments are decoded and the reply is encoded.
    #[rpc(blocking)]
    fn trace(&self, traced: Traced) -> Traced;

    /// What a blocking method sees of its call.
    #[rpc(blocking)]
    fn seen(&self) -> Result<(bool, bool, Option<String>), Status>;

    /// Waits for the gate, and panics.
    #[rpc(blocking)]
    fn burst(&self);

    /// Fails.
    #[rpc(blocking)]
    fn jam(&self) -> Result<(), Status>;
}

const PRINT: Method = Method::new("test.Press", "print");

#[derive(Clone, Default)]
struct Machine(Arc<Inner>);

#[derive(Default)]
struct Inner {
    open: Mutex<bool>,
    opened: Condvar,
    started: AtomicUsize,
    running: AtomicUsize,
    cancelled: AtomicUsize,
}

impl Machine {
    fn started(&self) -> usize {
        self.0.started.load(SeqCst)
    }

    fn running(&self) -> usize {
        self.0.running.load(SeqCst)
    }

    /// Printed without anybody to take it.
    fn cancelled(&self) -> usize {
        self.0.cancelled.load(SeqCst)
    }

    fn set_gate(&self, open: bool) {
        *self.0.open.lock().unwrap_or_else(PoisonError::into_inner) = open;
        self.0.opened.notify_all();
    }

    fn pass_gate(&self) {
        let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        // A test that fails does not open it, and its runtime waits for us.
        drop(self.0.opened.wait_timeout_while(open, Duration::from_secs(5), |open| !*open));
    }
}

impl Press for Machine {
    fn print(&self, ctx: Context, nonce: u64) -> Result<(u64, bool), Status> {
        self.0.started.fetch_add(1, SeqCst);
        self.0.running.fetch_add(1, SeqCst);
        self.pass_gate();
        self.0.running.fetch_sub(1, SeqCst);
        self.0.cancelled.fetch_add(usize::from(ctx.is_cancelled()), SeqCst);
        Ok((nonce, ctx.is_cancelled()))
    }

    fn copy(&self, page: Bytes) -> Bytes {
        page
    }

    fn trace(&self, traced: Traced) -> Traced {
        traced
    }

    fn seen(&self) -> Result<(bool, bool, Option<String>), Status> {
        let context = Context::current().ok_or_else(|| Status::internal("there is no context"))?;
        let shelf = context.metadata().get_str("shelf").map(str::to_owned);
        Ok((context.remaining().is_some(), context.is_cancelled(), shelf))
    }

    fn burst(&self) {
        self.0.running.fetch_add(1, SeqCst);
        self.pass_gate();
        panic!("a panic that a test wants");
    }

    fn jam(&self) -> Result<(), Status> {
        Err(Status::failed_precondition("there is no paper"))
    }
}

/// Notes the threads on which it is encoded and decoded.
struct Traced;

static TRACES: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

fn leave_trace() {
    TRACES.lock().unwrap_or_else(PoisonError::into_inner).push(thread::current().id());
}

impl Serialize for Traced {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        leave_trace();
        serializer.serialize_u8(7)
    }
}

impl<'de> Deserialize<'de> for Traced {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        leave_trace();
        u8::deserialize(deserializer).map(|_| Self)
    }
}

fn press(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> (Harness, Machine) {
    let machine = Machine::default();
    let service = PressServer::new(machine.clone());
    (Harness::with(|builder| configure(builder.service(service))), machine)
}

/// Waits, in real time or without any, until `condition` holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(20), "it did not come to it that {what}");
        yield_now().await;
    }
}

fn print(id: u64) -> Req {
    Req::new(id, PRINT, (id,))
}

fn assert_refused(error: &CallError, max: &str) {
    assert_eq!((error.code(), error.executed()), (StatusCode::ResourceExhausted, Executed::Never), "{error:?}");
    assert!(error.retry_delay().is_some());
    let info = error.status().and_then(Status::error_info).expect("a refusal explains itself");
    let told = ["limit", "max_in_flight", "in_flight"].map(|key| info.metadata.get_str(key));
    assert_eq!((&*info.reason, told), ("CONCURRENCY_LIMIT", [Some("blocking"), Some(max), Some(max)]));
}

#[tokio::test]
async fn a_blocking_method_is_called_like_any_other() {
    let (harness, machine) = press(|builder| builder);
    let client: PressClient = harness.client().service();
    machine.set_gate(true);
    assert_eq!(client.print(7).await.unwrap(), (7, false));
    assert_eq!(client.copy(Bytes::from_static(b"a page")).await.unwrap(), "a page");
    let seen = client.seen().timeout(Duration::from_secs(60)).metadata("shelf", "3").await.unwrap();
    assert_eq!(seen, (true, false, Some("3".to_owned())));
    assert_eq!(client.seen().await.unwrap(), (false, false, None));
    let error = client.jam().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::FailedPrecondition, Executed::Finished));
    assert_eq!(harness.snapshot().blocking.acquired, 5);
    drop(client);
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test]
async fn arguments_are_decoded_and_the_reply_is_encoded_where_it_may_take_long() {
    let (harness, _) = press(|builder| builder);
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, Method::new("test.Press", "trace"), (7_u8,)).bytes()).await;
    assert_eq!(peer.reply::<u8>(1).await, 7);
    let traces = std::mem::take(&mut *TRACES.lock().unwrap());
    // Decoded and encoded in one place; and the runtime has one thread for its tasks, which is this one.
    let [decoded, encoded] = traces[..] else { panic!("{traces:?}") };
    assert!(decoded == encoded && decoded != thread::current().id());
    peer.send(&Req::new(2, PRINT, ()).body(*b"").bytes()).await;
    let (status, _) = peer.answer(2).await;
    assert_eq!((status.code(), status.executed()), (StatusCode::InvalidArgument, Executed::Never));
    peer.part().await;
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test]
async fn calls_on_the_same_connection_go_on_while_one_blocks() {
    let (harness, machine) = press(|builder| builder);
    let mut peer = harness.peer().await;
    peer.send(&print(1).bytes()).await;
    until("it blocks", || machine.running() == 1).await;
    for id in 2..100 {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(peer.reply::<String>(id).await, "hi");
    }
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.blocking.held, snapshot.blocking.max, snapshot.calls_parked), (1, Some(64), 1));
    machine.set_gate(true);
    assert_eq!(peer.reply::<(u64, bool)>(1).await, (1, false));
    peer.part().await;
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test]
async fn a_call_that_finds_every_place_taken_is_refused_before_it_is_decoded() {
    let (harness, machine) = press(|builder| builder.max_blocking_calls(2));
    let client = harness.client();
    let service: PressClient = client.service();
    let running = [1, 2].map(|nonce| tokio::spawn(service.print(nonce)));
    until("both block", || machine.running() == 2).await;
    assert_refused(&service.print(3).await.unwrap_err(), "2");
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, PRINT, ()).body(*b"not decoded").bytes()).await;
    assert_eq!(peer.answer(1).await.0.code(), StatusCode::ResourceExhausted);
    peer.part().await;
    // Other methods have nothing to do with it.
    assert_eq!(client.call::<_, String>(method::ECHO, ("hi",)).await.unwrap(), "hi");
    assert_eq!((harness.refused("blocking"), machine.started()), (2, 2));

    harness.handle.set_max_blocking_calls(3).unwrap();
    let third = tokio::spawn(service.print(3));
    until("the third has found room", || machine.running() == 3).await;
    assert_refused(&service.print(4).await.unwrap_err(), "3");
    machine.set_gate(true);
    for call in running.into_iter().chain([third]) {
        assert!(!call.await.unwrap().unwrap().1);
    }
    assert_eq!(harness.snapshot().blocking.high_water, 3);
    drop((client, service));
    assert_idle_soon(&harness.handle).await;
}

#[test]
fn a_limit_of_no_blocking_calls_is_a_mistake() {
    let error = sluicegate::Server::builder().max_blocking_calls(0).build().unwrap_err();
    assert_eq!(error.to_string(), "the limit blocking cannot be");
}

#[tokio::test]
async fn the_limits_bound_the_work_when_its_caller_is_gone() {
    enum Way {
        Cancelled,
        Expired,
        Lost,
    }
    for way in [Way::Cancelled, Way::Expired, Way::Lost] {
        let (harness, machine) = press(|builder| builder.max_blocking_calls(1).max_concurrent_calls(10));
        let (mut peer, mut other) = (Some(harness.peer().await), harness.peer().await);
        let caller = peer.as_mut().expect("connected");
        let expires = matches!(way, Way::Expired).then_some(Duration::from_millis(300));
        caller.send(&expires.map_or(print(1), |timeout| print(1).timeout(timeout)).bytes()).await;
        until("it blocks", || machine.running() == 1).await;
        match way {
            Way::Cancelled => caller.send(&cancel(1)).await,
            Way::Expired => assert_eq!(caller.answer(1).await.0.code(), StatusCode::DeadlineExceeded),
            Way::Lost => drop(peer.take()),
        }
        until("nobody waits", || harness.snapshot().calls_parked == 0).await;
        let snapshot = harness.snapshot();
        assert_eq!((machine.running(), snapshot.blocking.held, snapshot.calls.held), (1, 1, 1));
        other.send(&print(1).bytes()).await;
        assert_eq!(other.answer(1).await.0.code(), StatusCode::ResourceExhausted);
        machine.set_gate(true);
        until("the work has ended", || harness.snapshot().blocking.held == 0).await;
        assert_eq!(machine.cancelled(), 1, "it was told");
        other.send(&print(2).bytes()).await;
        assert_eq!(other.reply::<(u64, bool)>(2).await, (2, false));
        other.part().await;
        drop(peer);
        assert_idle_soon(&harness.handle).await;
    }
}

#[tokio::test]
async fn a_panic_of_work_that_nobody_waits_for_is_counted() {
    let (harness, machine) = press(|builder| builder);
    let (mut peer, mut lost) = (harness.peer().await, harness.peer().await);
    let burst = Req::new(1, Method::new("test.Press", "burst"), ()).bytes();
    peer.send(&burst).await;
    lost.send(&burst).await;
    until("both block", || machine.running() == 2).await;
    peer.send(&cancel(1)).await;
    drop(lost);
    until("nobody waits", || harness.snapshot().calls_parked == 0).await;
    machine.set_gate(true);
    until("both are counted", || harness.snapshot().panics == 2).await;
    peer.part().await;
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test]
async fn a_lost_connection_gives_back_all_but_what_its_blocking_work_has() {
    let (harness, machine) = press(|builder| builder);
    let mut peer = harness.peer_through(1_000);
    peer.shake_hands().await;
    let large = Req::new(2, method::LARGE, (40_000_u32,)).bytes();
    peer.send(&[print(1).bytes(), large, Req::new(3, method::GATE, (3_u64,)).bytes()].concat()).await;
    until("one blocks, one waits, one is written", || {
        machine.running() == 1 && harness.probe.running() == 1 && harness.snapshot().buffered_bytes > 0
    })
    .await;
    assert_eq!(harness.snapshot().calls.held, 3);
    drop(peer);
    until("the others are back", || harness.snapshot().calls.held == 1).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.buffered_bytes, snapshot.blocking.held, snapshot.connections), (0, 1, 1));
    machine.set_gate(true);
    assert_idle_soon(&harness.handle).await;
}

/// A runtime whose blocking pool has one thread.
fn on_one_thread(test: impl Future<Output = ()>) {
    Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap().block_on(test);
}

#[test]
fn work_that_has_not_begun_when_nobody_waits_any_more_does_not_begin() {
    on_one_thread(async {
        let (harness, machine) = press(|builder| builder);
        let (mut peer, mut lost) = (harness.peer().await, harness.peer().await);
        peer.send(&print(1).bytes()).await;
        until("the only thread blocks", || machine.running() == 1).await;
        let expires = print(3).timeout(Duration::from_secs(1)).bytes();
        peer.send(&[print(2).bytes(), expires, print(4).bytes()].concat()).await;
        lost.send(&print(1).bytes()).await;
        until("all have been admitted", || harness.snapshot().blocking.held == 5).await;
        peer.send(&cancel(2)).await;
        assert_eq!(peer.answer(3).await.0.code(), StatusCode::DeadlineExceeded);
        drop(lost);
        until("two are waited for", || harness.snapshot().calls_parked == 2).await;
        // Their places in the pool's queue are not free before their turn has come.
        assert_eq!(harness.snapshot().blocking.held, 5);
        machine.set_gate(true);
        assert_eq!(peer.reply::<(u64, bool)>(1).await, (1, false));
        assert_eq!(peer.reply::<(u64, bool)>(4).await, (4, false));
        assert_eq!((machine.started(), machine.cancelled()), (2, 0));
        peer.part().await;
        assert_idle_soon(&harness.handle).await;
        assert_eq!(machine.started(), 2);
    });
}

#[tokio::test]
async fn a_drain_waits_for_blocking_work() {
    let (harness, machine) = press(|builder| builder);
    let mut peer = harness.peer().await;
    let mut lost = harness.peer().await;
    peer.send(&print(1).bytes()).await;
    lost.send(&print(1).bytes()).await;
    until("both block", || machine.running() == 2).await;
    drop(lost);
    until("one is lost", || harness.snapshot().calls_parked == 1).await;
    let handle = harness.handle.clone();
    let drain = tokio::spawn(async move { handle.drain().await });
    let Got::GoAway { .. } = peer.next().await else { panic!("the server drains") };
    assert!(!drain.is_finished());
    machine.set_gate(true);
    assert_eq!(peer.reply::<(u64, bool)>(1).await, (1, false));
    peer.leave().await;
    let drained = drain.await.unwrap();
    assert_eq!((drained.cut.len(), drained.stuck_connections), (0, 0));
    assert_eq!(machine.cancelled(), 1, "nobody waited for one of them");
    assert_idle_soon(&harness.handle).await;
}

// While work blocks, virtual time goes on only when it is told to.
#[tokio::test(start_paused = true)]
async fn a_drain_reports_blocking_work_that_does_not_end() {
    let (harness, machine) = press(|builder| builder.drain_grace(Duration::from_secs(10)));
    let mut peer = harness.peer().await;
    peer.send(&print(1).bytes()).await;
    until("it blocks", || machine.running() == 1).await;
    let handle = harness.handle.clone();
    let drain = tokio::spawn(async move { handle.drain().await });
    let Got::GoAway { .. } = peer.next().await else { panic!("the server drains") };
    advance(Duration::from_secs(9)).await;
    assert_eq!(harness.snapshot().calls_parked, 1, "it is within the grace period");
    advance(Duration::from_secs(2)).await;
    let (status, _) = peer.answer(1).await;
    assert_eq!((status.code(), status.executed()), (StatusCode::Unavailable, Executed::Maybe));
    drop(peer);
    for _ in 0..10 {
        advance(Duration::from_secs(1)).await;
    }
    let drained = drain.await.unwrap();
    let cut: Vec<_> = drained.cut.iter().map(|call| (&*call.method, call.started)).collect();
    assert_eq!((cut, drained.stuck_connections), (vec![("test.Press/print", true)], 1));
    assert_eq!(harness.snapshot().blocking.held, 1);
    machine.set_gate(true);
    assert_idle_soon(&harness.handle).await;
    assert_eq!(machine.cancelled(), 1);
}

#[test]
fn a_runtime_that_shuts_down_loses_no_permit_of_queued_work_and_its_callers_hear_of_it() {
    let (harness, machine) = press(|builder| builder);
    let serving = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
    let calling = Builder::new_current_thread().enable_all().build().unwrap();
    let bound = serving.block_on(harness.server.bind("127.0.0.1:0")).unwrap();
    let client: PressClient = sluicegate::Client::new(bound.local_addr()).service();
    serving.spawn(bound.serve());
    calling.block_on(async {
        let calls: Vec<_> = (0..20).map(|nonce| tokio::spawn(client.print(nonce))).collect();
        until("one runs and the rest waits", || harness.snapshot().blocking.held == 20).await;
        until("one runs", || machine.running() == 1).await;
        serving.shutdown_background();
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            assert_eq!(error.code(), StatusCode::Unavailable, "{error:?}");
        }
        until("all but the one that runs have ended", || harness.snapshot().connections == 0).await;
        machine.set_gate(true);
        drop(client);
        assert_idle_soon(&harness.handle).await;
        assert_eq!((machine.started(), harness.snapshot().blocking.released), (1, 20));
    });
}
