//! Calls that wait for a permit instead of being refused: in order, for a bounded time, and holding nothing.

use std::time::Duration;

use sluicegate::{
    Executed, StatusCode,
    server::{MethodLimits, ServerBuilder, WaitQueue},
};
use tokio::time::{Instant, sleep};

use crate::support::{Got, Harness, RawClient, Req, method, probe::path, raw, shims::times_in};

const MS: Duration = Duration::from_millis(1);

/// One call at a time, and a queue.
fn one_at_a_time(max_waiting: u64) -> Harness {
    Harness::with(|builder| queued(builder, max_waiting).max_concurrent_calls(1))
}

fn queued(builder: ServerBuilder, max_waiting: u64) -> ServerBuilder {
    builder.wait_queue(WaitQueue::of(max_waiting).max_wait(100 * MS))
}

async fn gate(peer: &mut RawClient, id: u64) {
    peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
}

async fn echo(peer: &mut RawClient, id: u64) {
    peer.send(&Req::new(id, method::ECHO, (id.to_string(),)).bytes()).await;
}

async fn until_waiting(harness: &Harness, calls: u64) {
    harness.until("the calls wait", |harness| harness.snapshot().calls_waiting == calls).await;
}

fn reason(got: &Got) -> &str {
    match got {
        Got::Response { status, executed: Executed::Never, .. } => &status.error_info().unwrap().reason,
        other => panic!("{other:?} is no refusal"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_no_room_waits_and_holds_nothing_until_its_turn() {
    let harness = one_at_a_time(8);
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    echo(&mut peer, 2).await;
    echo(&mut peer, 3).await;
    until_waiting(&harness, 2).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls.held, snapshot.calls_parked, harness.probe.started()), (1, 3, 1));
    harness.probe.open_gate();
    for id in 1..=3 {
        match peer.next().await {
            Got::Response { id: got, code: StatusCode::Ok, .. } => assert_eq!(got.sequence(), id),
            other => panic!("{other:?}"),
        }
    }
    assert!(harness.snapshot().refused.is_empty());
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_a_refusal_that_says_how_many_wait() {
    let harness = one_at_a_time(2);
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    for id in 2..=4 {
        echo(&mut peer, id).await;
    }
    let (status, _) = peer.answer(4).await;
    let info = status.error_info().unwrap();
    let told: Vec<_> = info.metadata.iter().map(|(key, value)| (key, std::str::from_utf8(value).unwrap())).collect();
    assert_eq!(&*info.reason, "QUEUE_FULL");
    assert_eq!(told, [("limit", "global"), ("max_waiting", "2"), ("waiting", "2")]);
    assert_eq!((status.code(), status.executed()), (StatusCode::ResourceExhausted, Executed::Never));
    assert!(status.retry_delay().is_some());
    assert_eq!(harness.refused("global"), 1);
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.answer(2).await;
    peer.answer(3).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_no_longer_than_it_may() {
    let harness = one_at_a_time(8);
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    let began = Instant::now();
    echo(&mut peer, 2).await;
    sleep(30 * MS).await;
    echo(&mut peer, 3).await;
    for (id, after) in [(2, 100 * MS), (3, 130 * MS)] {
        let got = peer.next().await;
        assert_eq!((reason(&got), began.elapsed().as_millis()), ("QUEUE_TIMEOUT", after.as_millis()));
        assert!(matches!(got, Got::Response { id: got, .. } if got.sequence() == id));
    }
    assert_eq!((harness.refused("global"), harness.snapshot().calls_waiting), (2, 0));
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.part().await;
    harness.assert_idle().await;
}

/// A queue that does not look at the deadline serves only those who have gone.
#[tokio::test(start_paused = true)]
async fn a_waiting_call_ends_with_its_deadline_and_is_not_executed_when_its_turn_comes_late() {
    let harness = one_at_a_time(8);
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    peer.send(&Req::new(2, method::ECHO, ("2",)).timeout(40 * MS).bytes()).await;
    peer.send(&Req::new(3, method::ECHO, ("3",)).timeout(80 * MS).bytes()).await;
    until_waiting(&harness, 2).await;
    let Got::Response { id, code, executed, .. } = peer.next().await else { panic!("an answer") };
    assert_eq!((id.sequence(), code, executed), (2, StatusCode::DeadlineExceeded, Executed::Never));
    // It is called in the very moment in which its deadline passes.
    sleep(40 * MS).await;
    harness.probe.open_gate();
    let mut executed = Vec::new();
    for _ in 0..2 {
        let Got::Response { id, code, executed: ran, .. } = peer.next().await else { panic!("an answer") };
        executed.push((id.sequence(), code, ran));
    }
    executed.sort_unstable_by_key(|(id, ..)| *id);
    assert_eq!(executed[1], (3, StatusCode::DeadlineExceeded, Executed::Never));
    assert_eq!(harness.probe.started(), 1);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_or_goes_away_leaves_the_queue_at_once() {
    let harness = one_at_a_time(8);
    let (mut peer, mut goes) = (harness.peer().await, harness.peer().await);
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    echo(&mut peer, 2).await;
    echo(&mut goes, 1).await;
    echo(&mut goes, 2).await;
    until_waiting(&harness, 3).await;
    peer.send(&raw::cancel(2)).await;
    until_waiting(&harness, 2).await;
    drop(goes);
    until_waiting(&harness, 0).await;
    harness.probe.open_gate();
    peer.answer(1).await;
    harness.until_flushed(0).await;
    echo(&mut peer, 3).await;
    assert_eq!(peer.reply::<String>(3).await, "3");
    assert_eq!(harness.probe.started(), 2);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn connections_take_turns_and_one_that_sends_much_makes_room_in_the_queue_for_others() {
    let harness = one_at_a_time(4);
    let harness = harness.plain("the order in which requests arrive");
    let (mut greedy, mut polite) = (harness.peer().await, harness.peer().await);
    gate(&mut greedy, 1).await;
    harness.until_running(1).await;
    for id in 2..=5 {
        echo(&mut greedy, id).await;
    }
    until_waiting(&harness, 4).await;
    // The queue is full of one connection's calls; the other's pass nevertheless, and before most.
    for id in 1..=2 {
        echo(&mut polite, id).await;
    }
    for id in [5, 4] {
        let got = greedy.next().await;
        assert!(matches!(&got, Got::Response { id: got, .. } if got.sequence() == id), "{got:?}");
        assert_eq!(reason(&got), "QUEUE_FULL");
    }
    echo(&mut polite, 3).await;
    assert_eq!(reason(&polite.next().await), "QUEUE_FULL");
    assert_eq!(harness.snapshot().calls_waiting, 4);
    harness.probe.open_gate();
    for id in 1..=3 {
        assert!(greedy.answer(id).await.0.code() == StatusCode::Ok);
    }
    for id in 1..=2 {
        assert_eq!(polite.reply::<String>(id).await, id.to_string());
    }
    greedy.part().await;
    polite.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_at_the_limit_that_refused_and_keeps_nobody_waiting_at_others() {
    let harness = Harness::with(|builder| {
        let builder = queued(builder, 8).max_concurrent_calls(8);
        builder.method_limits(path("gate"), MethodLimits::new().max_concurrent_calls(1))
    });
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    gate(&mut peer, 2).await;
    until_waiting(&harness, 1).await;
    echo(&mut peer, 3).await;
    assert_eq!(peer.reply::<String>(3).await, "3");
    assert_eq!(harness.snapshot().calls_waiting, 1);
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.answer(2).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_may_have_as_many_waiting_as_its_queue_takes() {
    let harness = Harness::with(|builder| queued(builder, 3).max_concurrent_calls_per_connection(2));
    let mut peer = harness.peer().await;
    for id in 1..=2 {
        gate(&mut peer, id).await;
    }
    harness.until_running(2).await;
    for id in 3..=5 {
        gate(&mut peer, id).await;
    }
    until_waiting(&harness, 3).await;
    gate(&mut peer, 6).await;
    let (status, _) = peer.answer(6).await;
    let info = status.error_info().unwrap();
    let told = ["limit", "max_waiting", "waiting"].map(|key| info.metadata.get_str(key));
    assert_eq!((&*info.reason, told), ("QUEUE_FULL", [Some("connection"), Some("3"), Some("3")]));
    harness.probe.open_gate();
    for _ in 1..=5 {
        assert!(matches!(peer.next().await, Got::Response { code: StatusCode::Ok, .. }));
    }
    assert_eq!(harness.probe.high_water(), 2);
    peer.part().await;
    harness.assert_idle().await;
}

/// Answers that wait to be written are not load: nobody waits for them, they are written.
#[tokio::test(start_paused = true)]
async fn calls_of_one_batch_do_not_wait_for_each_other() {
    let harness = Harness::with(|builder| queued(builder, 2).max_concurrent_calls(2));
    let harness = harness.plain("what a write takes at once");
    let mut peer = harness.peer().await;
    let batch: Vec<u8> = (1..=64_u64).flat_map(|id| Req::new(id, method::ECHO, (id.to_string(),)).bytes()).collect();
    peer.send(&batch).await;
    for id in 1..=64 {
        assert_eq!(peer.reply::<String>(id).await, id.to_string());
    }
    assert!(harness.snapshot().refused.is_empty());
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_waiting_calls_have_their_turn() {
    let harness = one_at_a_time(8);
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    echo(&mut peer, 2).await;
    until_waiting(&harness, 1).await;
    harness.handle.shutdown();
    peer.go_away().await;
    harness.probe.open_gate();
    peer.answer(1).await;
    assert_eq!(peer.reply::<String>(2).await, "2");
    drop(peer);
    harness.assert_idle().await;
}

/// A service that calls itself through the same limits: both would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_nested_call_through_the_limit_that_its_outer_call_fills_ends_with_its_wait() {
    let harness = one_at_a_time(8);
    harness.probe.set_inner_client(harness.client());
    let client = harness.client();
    let began = Instant::now();
    let error = client.call::<_, crate::support::probe::Seen>(method::NESTED, ()).await.unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    assert_eq!((began.elapsed().as_millis(), harness.refused("global")), (100, 1));
    assert_eq!(error.executed(), Executed::Finished);
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls_waiting, snapshot.refused_by_reason["QUEUE_TIMEOUT"]), (0, 1));
    drop(client);
    harness.probe.drop_inner_client();
    harness.assert_idle().await;
}

#[sluicegate::service(package = "test")]
trait Mill {
    #[rpc(blocking)]
    fn grind(&self, n: u64) -> u64;
}

struct Stone(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl Mill for Stone {
    fn grind(&self, n: u64) -> u64 {
        // Ends with the sender, too.
        let _ = self.0.lock().unwrap().recv();
        n
    }
}

#[tokio::test]
async fn a_blocking_call_waits_for_a_thread_and_holds_nothing_meanwhile() {
    let (go, stone) = std::sync::mpsc::channel();
    let harness = Harness::with(|builder| {
        let stone = MillServer::new(Stone(std::sync::Mutex::new(stone)));
        builder.service(stone).max_blocking_calls(1).wait_queue(WaitQueue::of(3).max_wait(20_000 * MS))
    });
    let mill: MillClient = harness.client().service();
    let calls: Vec<_> = (0..3).map(|n| tokio::spawn(mill.grind(n).into_future())).collect();
    while harness.snapshot().calls_waiting < 2 {
        tokio::task::yield_now().await;
    }
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.blocking.held, snapshot.calls.held), (1, 1));
    for _ in 0..3 {
        go.send(()).unwrap();
    }
    for (n, call) in (0..).zip(calls) {
        assert_eq!(call.await.unwrap().unwrap(), n);
    }
    assert_eq!(harness.snapshot().blocking.high_water, 1);
    drop(mill);
    crate::support::assert_idle_soon(&harness.handle).await;
}

/// Everybody at once, from several threads: nothing is lost, nobody waits for ever, and never more run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_from_several_threads_every_call_that_waits_gets_its_turn() {
    let harness = Harness::with(|builder| {
        let builder = builder.max_concurrent_calls(3).wait_queue(WaitQueue::of(1_000).max_wait(60_000 * MS));
        builder.pool("some", 2).method_limits(path("nonce"), MethodLimits::new().pool("some"))
    });
    let sockets = harness.sockets().await;
    let clients: Vec<_> = (0..8).map(|_| sockets.client()).collect();
    let rounds = times_in(10, 8);
    // Who gives up may ask again before the server knows, so there are more than these.
    let calls: Vec<_> = (0..400_u64)
        .map(|n| {
            let client = clients[n as usize % 8].clone();
            let method = if n % 2 == 0 { method::NONCE } else { method::NONCE_SPAWNED };
            let gives_up = n % 10 == 0;
            tokio::spawn(async move {
                let mut served = 0;
                for round in 0..rounds {
                    let call = client.call::<_, u64>(method, (n, 2_u32));
                    if gives_up && round % 2 == 0 {
                        let _ = tokio::time::timeout(Duration::from_micros(50 * round), call).await;
                        continue;
                    }
                    assert_eq!(call.await.unwrap(), n);
                    served += 1;
                }
                served
            })
        })
        .collect();
    let mut served = 0;
    for call in calls {
        served += crate::support::within(call).await.unwrap();
    }
    assert_eq!(served, 400 * rounds - 40 * rounds.div_ceil(2));
    let snapshot = harness.snapshot();
    assert!(
        harness.probe.high_water() <= 3 && snapshot.calls.high_water <= 3 && snapshot.limits["some"].high_water <= 2
    );
    assert!(snapshot.refused.is_empty(), "{:?}", snapshot.refused);
    drop(clients);
    sockets.shut_down().await;
    crate::support::assert_idle_soon(&harness.handle).await;
}
