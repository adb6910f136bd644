//! Calls that could only be late are refused at once; and limits that are found from how long calls take.

use std::time::Duration;

use futures::{TryStreamExt, future::join_all};
use sluicegate::{
    CallError, Client, Executed, Server, Status, StatusCode,
    limit::{LimitAlgorithm, Sample},
    server::{Adaptive, BuildError, MethodLimits, ServerBuilder, WaitQueue},
};

use tokio::time::sleep;

use crate::support::{
    Got, Harness, Probe, Req,
    feed::{FeedClient, FeedServer},
    method,
    probe::path,
    raw,
};

const MS: Duration = Duration::from_millis(1);

/// A call that takes 50 ms.
async fn call(client: &Client, timeout: Duration) -> Result<u64, CallError> {
    client.call(method::SLEEP, (50_u64,)).timeout(timeout).await
}

/// So that it is known how long such calls take.
async fn teach(client: &Client) {
    for call in join_all((0..40).map(|_| call(client, 500 * MS))).await {
        call.unwrap();
    }
}

fn status(error: CallError) -> Status {
    match error {
        CallError::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

/// The reason of a refusal, and its figures.
fn too_short(error: CallError) -> (u64, u64) {
    let status = status(error);
    assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Never));
    let info = status.error_info().expect("a refusal");
    assert_eq!(&*info.reason, "DEADLINE_TOO_SHORT");
    let [usual, left] = ["usual_us", "left_us"].map(|key| info.metadata.get_str(key).unwrap().parse().unwrap());
    (usual, left)
}

#[tokio::test(start_paused = true)]
async fn a_call_with_less_time_than_such_calls_take_is_refused_at_once_and_others_are_not() {
    let harness = Harness::with(|builder| builder.refuse_late_calls(true));
    let harness = harness.plain("how long a call takes");
    let client = harness.client();
    // Nothing is known yet, so it is tried.
    assert!(matches!(call(&client, 20 * MS).await, Err(error) if error.executed() != Executed::Never));
    teach(&client).await;
    let started = harness.probe.started();
    let (usual, left) = too_short(call(&client, 20 * MS).await.unwrap_err());
    assert!((49_000..=55_000).contains(&usual) && left <= 20_000, "{usual} {left}");
    assert_eq!(harness.probe.started(), started);
    call(&client, 70 * MS).await.unwrap();
    client.call::<_, u64>(method::SLEEP, (50_u64,)).await.expect("one without a deadline is never late");
    client.call::<_, String>(method::ECHO, ("hi".to_owned(),)).timeout(20 * MS).await.expect("another method");
    assert_eq!(harness.refused("DEADLINE_TOO_SHORT"), 1);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn one_in_sixteen_is_tried_so_that_it_is_found_out_when_calls_are_quick_again() {
    let harness = Harness::with(|builder| builder.refuse_late_calls(true));
    let client = harness.client();
    teach(&client).await;
    let quick = || client.call::<_, u64>(method::SLEEP, (1_u64,)).timeout(20 * MS);
    let mut refused = Vec::new();
    while let Err(error) = quick().await {
        refused.push(too_short(error));
    }
    assert_eq!(refused.len(), 15);
    // Each that is tried brings the median a twentieth down.
    let mut rounds = 0;
    while rounds < 100 && (quick().await.is_err() || quick().await.is_err()) {
        rounds += 1;
    }
    let mut passed = 0;
    for _ in 0..400 {
        passed += u32::from(quick().await.is_ok());
    }
    assert!(passed > 100, "{passed}");
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_wait_would_make_it_late_is_refused_instead_of_waiting() {
    let harness = Harness::with(|builder| {
        let queue = WaitQueue::of(100).max_wait(10_000 * MS);
        builder.refuse_late_calls(true).max_concurrent_calls(2).wait_queue(queue)
    });
    let client = harness.client();
    for call in join_all((0..40).map(|_| call(&client, 5_000 * MS))).await {
        call.unwrap();
    }
    // Two run and eight wait, which is 250 ms of work for two at once.
    let before: Vec<_> = (0..10).map(|_| tokio::spawn(call_owned(client.clone()))).collect();
    harness.until("eight wait", |harness| harness.snapshot().calls_waiting == 8).await;
    let (takes, left) = too_short(call(&client, 150 * MS).await.unwrap_err());
    assert!((250_000..350_000).contains(&takes) && left <= 150_000, "{takes} {left}");
    assert_eq!(harness.snapshot().calls_waiting, 8);
    call(&client, 400 * MS).await.unwrap();
    for call in before {
        call.await.unwrap().unwrap();
    }
    drop(client);
    harness.assert_idle().await;
}

async fn call_owned(client: Client) -> Result<u64, CallError> {
    call(&client, 5_000 * MS).await
}

#[tokio::test(start_paused = true)]
async fn unless_it_is_asked_for_a_call_with_little_time_is_tried() {
    let harness = Harness::new();
    let client = harness.client();
    teach(&client).await;
    let started = harness.probe.started();
    assert!(call(&client, 20 * MS).await.is_err());
    assert_eq!(harness.probe.started(), started + 1);
    drop(client);
    harness.assert_idle().await;
}

/// Notes what it is told, and answers what it is told to.
#[derive(Clone, Debug, Default)]
struct Noting(std::sync::Arc<std::sync::Mutex<Vec<Sample>>>);

impl LimitAlgorithm for Noting {
    fn update(&mut self, limit: f64, sample: Sample) -> f64 {
        self.0.lock().unwrap().push(sample);
        limit
    }
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_limit_is_fed_by_calls_that_were_admitted_and_have_succeeded_and_by_no_others() {
    let noting = Noting::default();
    let harness = Harness::with(|builder| {
        let noting = noting.clone();
        builder.adaptive_limit(Adaptive::new(move || noting.clone()).start(3).floor(1))
    });
    let harness = harness.plain("how long a call takes");
    let client = harness.client();
    let seen = || noting.0.lock().unwrap().len();
    for method in [method::FAIL, method::FAIL_SPAWNED] {
        client.call::<_, ()>(method, ("it".to_owned(),)).await.unwrap_err();
    }
    client.call::<_, ()>(method::PANIC_LATER, ()).await.unwrap_err();
    assert_eq!(seen(), 0);
    // Of five at once, two are refused.
    let calls = join_all((0..5).map(|_| call(&client, 500 * MS))).await;
    assert_eq!((calls.iter().filter(|call| call.is_ok()).count(), harness.refused("global")), (3, 2));
    for spawned in [method::SLEEP_SPAWNED, method::SLEEP] {
        client.call::<_, u64>(spawned, (50_u64,)).await.unwrap();
    }
    let samples = noting.0.lock().unwrap().clone();
    assert_eq!(samples.len(), 5);
    assert!(samples.iter().all(|sample| sample.latency >= 50 * MS && sample.latency < 60 * MS), "{samples:?}");
    assert_eq!(samples[0].in_flight, 3);
    drop(client);
    harness.assert_idle().await;
}

/// Deadline, cancel and loss; polled where they were read, in a task, and on the blocking pool.
#[tokio::test(start_paused = true)]
async fn an_adaptive_limit_hears_of_calls_that_ran_and_were_given_up_and_of_no_others_that_were() {
    let noting = Noting::default();
    let harness = Harness::with(|builder| {
        let noting = noting.clone();
        let queue = WaitQueue::of(9).max_wait(10_000 * MS);
        builder.adaptive_limit(Adaptive::new(move || noting.clone()).start(1).floor(1)).wait_queue(queue)
    });
    let harness = harness.plain("how long a call takes");
    for (id, method) in (1..).zip([method::SLEEP, method::SLEEP_SPAWNED]) {
        for how in ["deadline", "cancel", "loss"] {
            let mut peer = harness.peer().await;
            let mut runs = Req::new(id, method, (5_000_u64,));
            // Another one waits for its permit, and is given up with it.
            let mut waits = Req::new(id + 1, method, (5_000_u64,));
            if how == "deadline" {
                (runs, waits) = (runs.timeout(30 * MS), waits.timeout(30 * MS));
            }
            peer.send(&[runs.bytes(), waits.bytes()].concat()).await;
            harness.until("one waits", |harness| harness.snapshot().calls_waiting == 1).await;
            match how {
                "deadline" => {
                    for _ in 0..2 {
                        assert!(matches!(peer.next().await, Got::Response { code: StatusCode::DeadlineExceeded, .. }));
                    }
                }
                "cancel" => {
                    sleep(30 * MS).await;
                    peer.send(&[raw::cancel(id + 1), raw::cancel(id)].concat()).await;
                }
                _ => sleep(30 * MS).await,
            }
            drop(peer);
            harness.until_held(0).await;
            let samples = std::mem::take(&mut *noting.0.lock().unwrap());
            let [Sample { latency, in_flight: 1, given_up: true }] = samples[..] else { panic!("{how}: {samples:?}") };
            assert!(latency >= 29 * MS && latency < 35 * MS, "{how}: {latency:?}");
        }
    }
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_permit_is_no_part_of_how_long_a_call_takes() {
    let noting = Noting::default();
    let harness = Harness::with(|builder| {
        let noting = noting.clone();
        builder.adaptive_limit(Adaptive::new(move || noting.clone()).start(1).floor(1)).wait_queue(WaitQueue::of(9))
    });
    let harness = harness.plain("how long a call takes");
    let client = harness.client();
    for call in join_all((0..5).map(|_| call(&client, 500 * MS))).await {
        call.unwrap();
    }
    let samples = noting.0.lock().unwrap().clone();
    assert!(samples.len() == 5 && samples.iter().all(|sample| sample.latency < 60 * MS), "{samples:?}");
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_method_has_an_adaptive_limit_of_its_own_that_moves_between_floor_and_ceiling() {
    let harness = Harness::with(|builder| {
        let adaptive = Adaptive::aimd(20 * MS).start(16).floor(4).ceiling(18);
        builder.adaptive_method_limit(path("sleep"), adaptive)
    });
    let client = harness.client();
    let max = || harness.snapshot().limits[&*path("sleep")].max.unwrap();
    let rounds = async |ms: u64| {
        for _ in 0..40 {
            join_all((0..18).map(|_| client.call::<_, u64>(method::SLEEP, (ms,)))).await;
        }
    };
    assert_eq!(max(), 16);
    rounds(5).await;
    assert_eq!(max(), 18);
    rounds(50).await;
    assert_eq!(max(), 4);
    rounds(5).await;
    assert_eq!(max(), 18);
    assert_eq!(harness.snapshot().calls.max, None);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_limit_of_a_method_stays_below_the_maximum_that_was_set_for_it() {
    let harness = Harness::with(|builder| {
        let builder = builder.method_limits(path("sleep"), MethodLimits::new().max_concurrent_calls(6));
        // Said twice: the last one counts, and finds the maximum that was set.
        let builder = builder.adaptive_method_limit(path("sleep"), Adaptive::gradient2().start(5));
        builder.adaptive_method_limit(path("sleep"), Adaptive::aimd(20 * MS).start(16))
    });
    let client = harness.client();
    let max = || harness.snapshot().limits[&*path("sleep")].max.unwrap();
    assert_eq!(max(), 6);
    for _ in 0..40 {
        join_all((0..6).map(|_| client.call::<_, u64>(method::SLEEP, (1_u64,)))).await;
    }
    assert_eq!(max(), 6);
    drop(client);
    harness.assert_idle().await;
}

/// Fails at the first sample, and then says ten.
#[derive(Debug, Default)]
struct Panics(bool);

impl LimitAlgorithm for Panics {
    fn update(&mut self, _: f64, _: Sample) -> f64 {
        assert!(std::mem::replace(&mut self.0, true), "{}", crate::support::probe::PANIC_TEXT);
        10.0
    }
}

#[tokio::test(start_paused = true)]
async fn an_algorithm_that_panics_costs_neither_its_call_nor_its_connection_nor_its_limit() {
    crate::support::probe::silence_wanted_panics();
    let harness = Harness::with(|builder| builder.adaptive_limit(Adaptive::new(Panics::default).start(5)));
    let mut peer = harness.peer().await;
    for (id, max) in [(1, 5), (2, 10)] {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(peer.reply::<String>(id).await, "hi");
        assert_eq!((harness.snapshot().calls.max, harness.snapshot().panics), (Some(max), 1));
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[test]
fn floors_that_do_not_fit_into_the_limit_of_the_server_are_refused_at_the_start() {
    let build = |change: fn(ServerBuilder) -> ServerBuilder| {
        change(Server::builder().service(Probe::default())).build().map(drop).unwrap_err()
    };
    let error = build(|builder| {
        let adaptive = Adaptive::gradient2().floor(6);
        let builder = builder.adaptive_method_limit(path("echo"), adaptive.clone()).max_concurrent_calls(11);
        builder.adaptive_method_limit(path("gate"), adaptive)
    });
    assert_eq!(
        error.to_string(),
        "the floors of adaptive limits together (12) must not exceed max_concurrent_calls (11)"
    );
    let error = build(|builder| builder.adaptive_limit(Adaptive::gradient2().floor(6)).max_concurrent_calls(5));
    assert_eq!(error.to_string(), "the floor of an adaptive limit (6) must not exceed max_concurrent_calls (5)");
    let error = build(|builder| {
        let builder = builder.method_limits(path("echo"), MethodLimits::new().max_concurrent_calls(5));
        builder.adaptive_method_limit(path("echo"), Adaptive::gradient2().floor(6))
    });
    assert_eq!(error.to_string(), "the floor of an adaptive limit (6) must not exceed max_concurrent_calls (5)");
    let error = build(|builder| builder.adaptive_limit(Adaptive::gradient2().floor(0)));
    assert!(matches!(error, BuildError::Concurrency { limit: "global", .. }), "{error}");
    let error = build(|builder| builder.adaptive_method_limit("no/such", Adaptive::gradient2()));
    assert_eq!(error.to_string(), "there is no method named no/such");
}

#[tokio::test(start_paused = true)]
async fn how_long_a_consumer_takes_over_its_items_makes_no_later_call_too_late() {
    let server = FeedServer::with(|builder| builder.refuse_late_calls(true));
    let client = server.client();
    let feed: FeedClient = client.service();
    for _ in 0..40 {
        let mut items = feed.count(2).open().await.unwrap();
        while items.message().await.unwrap().is_some() {
            sleep(100 * MS).await;
        }
    }
    let items = feed.count(2).timeout(20 * MS).open().await.unwrap();
    assert_eq!(items.try_collect::<Vec<_>>().await.unwrap(), [0, 1]);
    drop((feed, client));
    server.assert_idle().await;
}
