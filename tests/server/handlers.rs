//! The pipeline as users extend it: order, and decisions.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rpc_codec::{GoAwayReason, Hello};
use sluicegate::{
    Executed, Refusal, RefusalReason, Status, StatusCode,
    limit::Rate,
    server::{Call, CallInfo, Decision, Outbound},
};
use tokio::{sync::mpsc, time::sleep};

use crate::support::{
    Got, Harness, Req,
    handlers::{Changing, Deciding, Log, Noting, waiting, with_handler},
    method, no_call_runs,
    raw::cancel,
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn calls_pass_handlers_first_to_last_and_answers_last_to_first() {
    let log = Log::default();
    let noted = log.clone();
    let harness = Harness::with(|builder| {
        builder.pipeline(move |pipeline, _| {
            pipeline.add_last("b", Noting("b", noted.clone())).add_last("c", Noting("c", noted.clone()));
            pipeline.add_first("a", Noting("a", noted.clone()));
        })
    });
    let mut peer = harness.peer().await;
    assert_eq!(log.take(), ["a connected", "b connected", "c connected"]);
    for method in [method::ECHO, method::ECHO_SPAWNED] {
        let id = if method == method::ECHO { 1 } else { 2 };
        peer.send(&Req::new(id, method, ("hi",)).bytes()).await;
        peer.answer(id).await;
        harness.until_flushed(0).await;
        let expected = [
            "a inbound ?",
            "b inbound ?",
            "c inbound ?",
            "c outbound ? reply of 3",
            "b outbound ? reply of 3",
            "a outbound ? reply of 3",
            "c written ?",
            "b written ?",
            "a written ?",
        ];
        assert_eq!(log.take(), expected.map(|line| line.replace('?', &id.to_string())));
    }
    peer.part().await;
    harness.assert_idle().await;
    assert_eq!(log.take(), ["c closed", "b closed", "a closed"]);
}

#[tokio::test(start_paused = true)]
async fn handlers_stand_where_they_were_put_and_those_taken_out_are_gone() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let harness = Harness::with(|builder| {
        let builder = builder.rate(Rate::per_second(1.0).burst(1)).rate_per_connection(Rate::per_second(1.0).burst(1));
        builder.pipeline(move |pipeline, _| {
            let log = Log::default();
            pipeline.add_before("global rate", "before", Noting("before", log.clone()));
            pipeline.add_after("deadline", "after", Noting("after", log));
            assert!(pipeline.remove("connection rate") && !pipeline.remove("connection rate"));
            assert!(pipeline.remove("global rate"));
            *seen.lock().unwrap() = pipeline.names().collect();
        })
    });
    let mut peer = harness.peer().await;
    assert_eq!(*names.lock().unwrap(), ["deadline", "after", "before", "concurrency"]);
    for id in 1..=20_u64 {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(peer.reply::<String>(id).await, "hi", "the limits taken out refuse nothing");
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_refusals_of_later_handlers_but_not_of_earlier_ones() {
    let log = Log::default();
    let noted = log.clone();
    let harness = Harness::with(|builder| {
        builder.max_concurrent_calls(1).pipeline(move |pipeline, _| {
            pipeline.add_before("concurrency", "outer", Noting("outer", noted.clone()));
            pipeline.add_last("inner", Noting("inner", noted.clone()));
        })
    });
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    log.take();
    peer.send(&Req::new(2, method::ECHO, ("hi",)).bytes()).await;
    assert_eq!(peer.answer(2).await.0.code(), StatusCode::ResourceExhausted);
    assert_eq!(log.take(), ["outer inbound 2", "outer outbound 2 CONCURRENCY_LIMIT"]);
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_a_handler_keeps_the_service_out_of_it() {
    let harness = with_handler(|| {
        Deciding(|call: &mut Call<'_>| match call.metadata().get_str("password") {
            Some("mellon") => Decision::Pass,
            _ => Decision::Answer(Status::unauthenticated("speak, friend").with_executed(Executed::Never)),
        })
    });
    let client = harness.client();
    let call = || client.call::<_, String>(method::ECHO, ("hi".to_owned(),));
    let error = call().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unauthenticated, Executed::Never));
    assert_eq!(harness.probe.started(), 0);
    harness.until_flushed(0).await;
    no_call_runs(&harness.handle);
    assert_eq!(call().metadata("password", "mellon").await.unwrap(), "hi");
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_handlers_own_is_told_and_counted() {
    let harness = with_handler(|| {
        Deciding(|_: &mut Call<'_>| {
            let refusal = Refusal::new(RefusalReason::RateLimit).with_limit("of the test", 3, 4);
            Decision::Refuse(refusal.with_retry_delay(9 * MS))
        })
    });
    let client = harness.client();
    let error = client.call::<_, String>(method::ECHO, ("hi".to_owned(),)).await.unwrap_err();
    let info = error.status().unwrap().error_info().unwrap();
    assert_eq!((info.metadata.get_str("limit"), error.retry_delay()), (Some("of the test"), Some(9 * MS)));
    assert_eq!((error.executed(), harness.refused("RATE_LIMIT")), (Executed::Never, 1));
    drop(client);
    harness.assert_idle().await;
}

/// Lets calls that wait in the pipeline go on, first come first served.
struct Doorman {
    let_in: mpsc::UnboundedSender<()>,
    door: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<()>>>,
}

impl Doorman {
    fn let_one_in(&self) {
        self.let_in.send(()).unwrap();
    }

    /// Whether somebody was let in who was not there.
    async fn somebody_is_missing(&self) -> bool {
        self.door.lock().await.try_recv().is_ok()
    }
}

/// A server whose calls with metadata `wait` wait in the pipeline, behind the limit of calls in
/// flight, until the doorman lets them in.
fn waiting_room() -> (Harness, Doorman) {
    let (let_in, door) = mpsc::unbounded_channel();
    let door = Arc::new(tokio::sync::Mutex::new(door));
    let shared = Arc::clone(&door);
    let harness = with_handler(move || {
        let door = Arc::clone(&shared);
        Deciding(move |call: &mut Call<'_>| {
            let Some(_) = call.metadata().get("wait") else { return Decision::Pass };
            let door = Arc::clone(&door);
            Decision::Wait(Box::pin(async move {
                let entered = door.lock().await.recv().await;
                entered.map_or_else(|| Decision::Answer(Status::unavailable("the door is locked")), |()| Decision::Pass)
            }))
        })
    });
    (harness, Doorman { let_in, door })
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_resumes_behind_its_handler_while_later_ones_pass_it() {
    let (harness, doorman) = waiting_room();
    let mut peer = harness.peer().await;
    peer.send(&waiting(1).bytes()).await;
    peer.send(&Req::new(2, method::ECHO, ("later",)).bytes()).await;
    assert_eq!(peer.reply::<String>(2).await, "later");
    harness.until_flushed(1).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls_parked, snapshot.calls.held, harness.probe.started()), (1, 1, 1));
    doorman.let_one_in();
    assert_eq!(peer.reply::<String>(1).await, "1");
    assert_eq!(harness.snapshot().calls.acquired, 2, "the limit was not passed twice");
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_while_it_waits_is_gone_and_its_future_dropped() {
    let (harness, doorman) = waiting_room();
    let mut peer = harness.peer().await;
    peer.send(&[waiting(1).bytes(), waiting(2).bytes()].concat()).await;
    harness.until("both wait", |harness| harness.snapshot().calls_parked == 2).await;
    peer.send(&cancel(1)).await;
    harness.until_held(1).await;
    doorman.let_one_in();
    assert_eq!(peer.reply::<String>(2).await, "2", "the first in line has left it");
    assert!(peer.peer.is_silent_for(1_000 * MS).await);
    assert_eq!(harness.probe.started(), 1);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_while_a_call_waits_is_answered_and_it_was_never_executed() {
    let (harness, doorman) = waiting_room();
    let mut peer = harness.peer().await;
    peer.send(&waiting(1).timeout(20 * MS).bytes()).await;
    let began = tokio::time::Instant::now();
    let (status, _) = peer.answer(1).await;
    assert!(began.elapsed() >= 20 * MS && began.elapsed() <= 22 * MS);
    assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Never));
    doorman.let_one_in();
    assert!(peer.peer.is_silent_for(100 * MS).await);
    assert_eq!(harness.probe.started(), 0);
    assert!(doorman.somebody_is_missing().await);
    harness.until_flushed(0).await;
    no_call_runs(&harness.handle);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_end_with_their_connection() {
    let (harness, doorman) = waiting_room();
    let mut peer = harness.peer().await;
    peer.send(&(1..=50).map(|id| waiting(id).bytes()).collect::<Vec<_>>().concat()).await;
    harness.until("all wait", |harness| harness.snapshot().calls_parked == 50).await;
    drop(peer);
    harness.assert_idle().await;
    doorman.let_one_in();
    assert!(doorman.somebody_is_missing().await);
    assert_eq!(harness.probe.started(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_wait_decides_is_done() {
    let (harness, doorman) = waiting_room();
    let mut peer = harness.peer().await;
    peer.send(&waiting(1).bytes()).await;
    harness.until("it waits", |harness| harness.snapshot().calls_parked == 1).await;
    drop(doorman.let_in);
    let (status, _) = peer.answer(1).await;
    assert_eq!((status.code(), status.message()), (StatusCode::Unavailable, "the door is locked"));
    assert_eq!(harness.probe.started(), 0);
    harness.until_flushed(0).await;
    no_call_runs(&harness.handle);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_at_once_passes() {
    let harness = with_handler(|| {
        Deciding(|_: &mut Call<'_>| {
            Decision::Wait(Box::pin(async { Decision::Wait(Box::pin(async { Decision::Pass })) }))
        })
    });
    let mut peer = harness.peer().await;
    for id in 1..=100_u64 {
        peer.send(&Req::new(id, method::NONCE, (id, (id % 3) as u32)).bytes()).await;
    }
    for _ in 1..=100 {
        assert!(matches!(peer.next().await, Got::Response { code: StatusCode::Ok, .. }));
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_close_the_connection_with_its_own_words() {
    let harness = with_handler(|| {
        Deciding(|call: &mut Call<'_>| match call.metadata().get("evil") {
            Some(_) => Decision::Close("we are not amused".to_owned()),
            None => Decision::Pass,
        })
    });
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    let mut evil = Req::new(2, method::ECHO, ("hi",));
    evil.metadata.insert("evil", "yes").unwrap();
    peer.send(&evil.bytes()).await;
    let (_, reason, message) = peer.go_away().await;
    assert_eq!((reason, &*message), (GoAwayReason::Other(64), "we are not amused"));
    assert!(matches!(peer.next().await, Got::End));
    assert_eq!((harness.probe.running(), harness.snapshot().protocol_errors), (0, 0));
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn metadata_that_handlers_put_beside_a_reply_reaches_the_caller() {
    let harness = Harness::with(|builder| {
        builder.pipeline(|pipeline, _| {
            for (name, key) in [("outer", "outer"), ("inner", "inner")] {
                let handler = Changing(move |call: &CallInfo<'_>, response: &mut Outbound<'_>| {
                    let path = call.method.map_or("", |method| method.path());
                    response.metadata_mut().insert(key, path).unwrap();
                });
                pipeline.add_last(name, handler);
            }
        })
    });
    let client = harness.client();
    for method in [method::ECHO, method::ECHO_SPAWNED, method::LARGE] {
        let response = if method == method::LARGE {
            client.call::<_, String>(method, (100_000_u32,)).response().await.unwrap()
        } else {
            client.call::<_, String>(method, ("hi".to_owned(),)).response().await.unwrap()
        };
        let pairs: Vec<_> = response.metadata.iter().collect();
        let path = method.to_string();
        assert_eq!(pairs, [("inner", path.as_bytes()), ("outer", path.as_bytes())]);
        assert!(response.value == "hi" || response.value.len() == 100_000);
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn metadata_that_makes_an_answer_too_long_costs_its_call() {
    let harness = with_handler(|| {
        Changing(|_: &CallInfo<'_>, response: &mut Outbound<'_>| {
            response.metadata_mut().insert("long", vec![7; 10_000]).unwrap();
        })
    });
    let mut hello = Hello::default();
    hello.max_frame = 8_192;
    let mut bytes = Vec::new();
    hello.encode(&mut bytes);
    let mut peer = harness.silent_peer();
    peer.send(&bytes).await;
    assert!(matches!(peer.next().await, Got::Hello(_)));
    for id in 1..=2 {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        let (status, _) = peer.answer(id).await;
        assert_eq!((status.code(), status.executed()), (StatusCode::Internal, Executed::Finished), "{status}");
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_replace_what_the_service_answered_but_not_a_refusal() {
    let harness = Harness::with(|builder| {
        builder.max_concurrent_calls(1).pipeline(|pipeline, _| {
            let handler = Changing(|_: &CallInfo<'_>, response: &mut Outbound<'_>| {
                response.replace(Status::data_loss("we lost it"));
            });
            pipeline.add_first("test", handler);
        })
    });
    let client = harness.client();
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let error = client.call::<_, String>(method, (50_000_u32,)).await.unwrap_err();
        assert_eq!(error.to_string(), "data loss: we lost it");
    }
    let sibling = tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,)));
    harness.until_running(1).await;
    let error = client.call::<_, String>(method::LARGE, (1_u32,)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::ResourceExhausted, Executed::Never));
    harness.probe.open_gate();
    assert_eq!(sibling.await.unwrap().unwrap_err().code(), StatusCode::DataLoss);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn outbound_handlers_see_the_deadline_that_passed_and_the_panic() {
    let log = Log::default();
    let noted = log.clone();
    let harness = with_handler(move || Noting("it", noted.clone()));
    let mut peer = harness.peer().await;
    log.take();
    peer.send(&Req::new(1, method::GATE, (1_u64,)).timeout(10 * MS).bytes()).await;
    peer.answer(1).await;
    harness.until_flushed(0).await;
    peer.send(&Req::new(2, method::PANIC_LATER_SPAWNED, ()).bytes()).await;
    peer.answer(2).await;
    sleep(MS).await;
    let expected = [
        "it inbound 1",
        "it outbound 1 DEADLINE_EXCEEDED",
        "it written 1",
        "it inbound 2",
        "it outbound 2 INTERNAL",
        "it written 2",
    ];
    assert_eq!(log.take(), expected);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_refuses_a_call_which_waited_before_it_leaves_no_trace() {
    let (let_in, _) = tokio::sync::watch::channel(false);
    let door = let_in.clone();
    let harness = Harness::with(|builder| {
        builder.rate(Rate::per_second(0.001).burst(10)).max_concurrent_calls(1).pipeline(move |pipeline, _| {
            let door = door.clone();
            let handler = Deciding(move |_: &mut Call<'_>| {
                let mut open = door.subscribe();
                Decision::Wait(Box::pin(async move {
                    let _ = open.wait_for(|open| *open).await;
                    Decision::Pass
                }))
            });
            pipeline.add_after("global rate", "door", handler);
        })
    });
    let mut peer = harness.peer().await;
    let requests: Vec<_> = (1..=10_u64).map(|id| Req::new(id, method::GATE, (id,)).bytes()).collect();
    peer.send(&requests.concat()).await;
    harness.until("all wait", |harness| harness.snapshot().calls_parked == 10).await;
    assert_eq!(harness.snapshot().calls.held, 0, "who waits holds nothing");
    let_in.send_replace(true);
    for _ in 0..9 {
        let Got::Response { status, .. } = peer.next().await else { panic!("an answer is missing") };
        assert_eq!((status.code(), status.executed()), (StatusCode::ResourceExhausted, Executed::Never));
        assert_eq!(status.error_info().unwrap().reason, "CONCURRENCY_LIMIT");
    }
    harness.until_running(1).await;
    peer.send(&Req::new(11, method::ECHO, ("hi",)).bytes()).await;
    assert_eq!(peer.answer(11).await.0.code(), StatusCode::ResourceExhausted);
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_a_handler_bounds_ends_with_the_refusal_it_names() {
    let harness = with_handler(|| {
        Deciding(|call: &mut Call<'_>| {
            let otherwise = Refusal::new(RefusalReason::QueueTimeout).with_limit("of the test", 5, 0);
            let until = call.received() + 30 * MS;
            match call.id().sequence() {
                1 => Decision::WaitUntil { until, otherwise, future: Box::pin(std::future::pending()) },
                _ => Decision::WaitUntil { until, otherwise, future: Box::pin(async { Decision::Pass }) },
            }
        })
    });
    let mut peer = harness.peer().await;
    let began = tokio::time::Instant::now();
    for id in 1..=2 {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
    }
    assert_eq!(peer.reply::<String>(2).await, "hi");
    let (status, _) = peer.answer(1).await;
    let info = status.error_info().unwrap();
    assert_eq!((&*info.reason, info.metadata.get_str("limit")), ("QUEUE_TIMEOUT", Some("of the test")));
    assert_eq!((began.elapsed(), status.executed()), (30 * MS, Executed::Never));
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_a_handler_gives_a_call_comes_back_when_it_was_answered_or_its_deadline_was_missed() {
    let limit = sluicegate::limit::ConcurrencyLimit::new("of the test", Some(2)).unwrap();
    let (given, limit) = (Arc::clone(&limit), limit);
    let harness = with_handler(move || {
        let limit = Arc::clone(&limit);
        Deciding(move |call: &mut Call<'_>| {
            let permit = limit.try_acquire().expect("there is room");
            match call.id().sequence() {
                1 => Decision::Carry(permit),
                _ => Decision::Wait(Box::pin(async {
                    sleep(20 * MS).await;
                    Decision::Carry(permit)
                })),
            }
        })
    });
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    peer.send(&Req::new(2, method::ECHO, ("hi",)).timeout(20 * MS).bytes()).await;
    assert_eq!(peer.answer(2).await.0.code(), StatusCode::DeadlineExceeded);
    assert_eq!(given.snapshot().held, 1);
    harness.probe.open_gate();
    peer.answer(1).await;
    harness.until_flushed(0).await;
    peer.part().await;
    assert_eq!(given.snapshot().held, 0);
    harness.assert_idle().await;
}
