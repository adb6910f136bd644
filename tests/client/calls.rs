//! Many calls of one client: each gets its own answer, waits its turn, and is told what became of it.

use std::time::Duration;

use futures::poll;
use rpc_codec::{CodecId, GoAwayReason};
use rpc_core::CallId;
use sluicegate::{CallError, Executed, StatusCode, client::LostCause};
use tokio::time::{Instant, advance, sleep};

use crate::support::{
    self, Got, Harness, method, no_call_runs,
    scripted::{first_call, scripted, scripted_with},
    shims::{Manner, times_in},
    until_client_idle,
};

const MS: Duration = Duration::from_millis(1);
/// Why a test stays on plain transports.
const FLUSHING: &str = "a client that has read an answer is ahead of a server that still flushes it";

#[tokio::test(start_paused = true)]
async fn more_calls_than_the_server_advises_wait_for_room_and_all_succeed() {
    for advised in [1, 4, 50] {
        let harness = Harness::with(|builder| builder.max_concurrent_calls_per_connection(advised));
        let harness = harness.plain(FLUSHING);
        let client = harness.client();
        // Greeted first: before that a client may send 64 calls.
        let _: String = client.call(method::ECHO, ("hi".to_owned(),)).await.unwrap();
        let calls: Vec<_> = (0..500_u64)
            .map(|n| match n % 3 {
                0 => tokio::spawn(client.call::<_, u64>(method::NONCE, (n, (n % 5) as u32))),
                1 => tokio::spawn(client.call::<_, u64>(method::NONCE_SPAWNED, (n, (n % 5) as u32))),
                _ => tokio::spawn(client.call::<_, u64>(method::SLEEP, (n % 7,))),
            })
            .collect();
        for (n, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap().unwrap(), if n % 3 == 2 { n % 7 } else { n });
        }
        assert!(harness.probe.high_water() as u64 <= advised);
        assert!(harness.snapshot().refused.is_empty(), "{:?}", harness.snapshot().refused);
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_give_up_while_they_wait_for_room_leave_it_to_the_others() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls_per_connection(2)).plain(FLUSHING);
    let client = harness.client();
    let _: String = client.call(method::ECHO, ("hi".to_owned(),)).await.unwrap();
    let out: Vec<_> = (0..2).map(|_| tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)))).collect();
    harness.until_running(2).await;
    let mut waiting: Vec<_> =
        (0..100_u64).map(|n| Some(tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 1_u32))))).collect();
    let timed_out = tokio::spawn(client.call::<_, u64>(method::NONCE, (1_u64, 1_u32)).timeout(5 * MS));
    sleep(MS).await;
    for call in waiting.iter_mut().step_by(2) {
        call.take().unwrap().abort();
    }
    let error = timed_out.await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { executed: Executed::Never, .. }), "{error:?}");
    harness.probe.open_gate();
    for call in out {
        call.await.unwrap().unwrap();
    }
    for call in waiting.into_iter().flatten() {
        call.await.unwrap().unwrap();
    }
    assert_eq!(harness.probe.finished(), 1 + 2 + 50);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn room_that_a_caller_gets_too_late_goes_to_the_next_in_line() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 1).await;
    sleep(MS).await;
    // This one is first in line, but is not polled while the room becomes its own and its time passes.
    let mut slow = client.call::<_, u64>(method::GATE, (2_u64,)).timeout(20 * MS);
    assert!(poll!(&mut slow).is_pending());
    let next = tokio::spawn(client.call::<_, u64>(method::GATE, (3_u64,)));
    sleep(MS).await;
    server.reply(id, 1_u64).await;
    assert_eq!(first.await.unwrap().unwrap(), 1);
    advance(30 * MS).await;
    assert_eq!(slow.await.unwrap_err().executed(), Executed::Never);
    let (id, body) = server.request().await;
    assert_eq!(CodecId::BINCODE.decode::<(u64,)>(&body).unwrap(), (3,));
    server.reply(id, 3_u64).await;
    assert_eq!(next.await.unwrap().unwrap(), 3);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn room_that_a_dropped_caller_got_goes_to_the_next_in_line() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 1).await;
    sleep(MS).await;
    let mut dropped = client.call::<_, u64>(method::GATE, (2_u64,));
    assert!(poll!(&mut dropped).is_pending());
    let next = tokio::spawn(client.call::<_, u64>(method::GATE, (3_u64,)));
    sleep(MS).await;
    server.reply(id, 1_u64).await;
    assert_eq!(first.await.unwrap().unwrap(), 1);
    drop(dropped);
    let (id, _) = server.request().await;
    server.reply(id, 3_u64).await;
    assert_eq!(next.await.unwrap().unwrap(), 3);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_call_that_is_kept_takes_no_room() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls_per_connection(1));
    let client = harness.client();
    let mut kept = Vec::new();
    for _ in 0..10 {
        let mut call = client.call::<_, String>(method::ECHO, ("hi".to_owned(),));
        kept.push((support::within(&mut call).await.unwrap(), call));
        harness.until_flushed(0).await;
    }
    assert_eq!((kept.len(), client.snapshot().calls), (10, 0));
    drop((kept, client));
    harness.assert_idle().await;
}

/// A generator that gives the same figures every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // Knuth's MMIX; its high bits are good enough for a test.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[tokio::test(start_paused = true)]
async fn answers_reach_their_own_callers_whatever_is_cancelled_and_expires_meanwhile() {
    for (seed, pipe) in [(1, 64 * 1024), (2, 64 * 1024), (3, 100), (4, 7)] {
        let harness = Harness::new();
        let client = harness.client_through(pipe).build();
        let callers: Vec<_> = (0..40_u64)
            .map(|caller| {
                let client = client.clone();
                tokio::spawn(async move {
                    let mut random = Random(seed * 1_000 + caller);
                    for n in 0..times_in(50, 50) {
                        let nonce = caller << 32 | n;
                        let pending = random.below(4) as u32;
                        let spawned = random.below(2) == 0;
                        let method = if spawned { method::NONCE_SPAWNED } else { method::NONCE };
                        let mut call = client.call::<_, u64>(method, (nonce, pending));
                        match random.below(4) {
                            0 => {
                                for _ in 0..random.below(6) {
                                    if let std::task::Poll::Ready(answer) = poll!(&mut call) {
                                        assert_eq!(answer.unwrap(), nonce);
                                        break;
                                    }
                                    tokio::task::yield_now().await;
                                }
                            }
                            1 => {
                                let slow = client.call::<_, u64>(method::SLEEP, (random.below(4),));
                                let answer = slow.timeout((1 + random.below(3)) as u32 * MS).await;
                                if let Err(error) = answer {
                                    assert_eq!(error.code(), StatusCode::DeadlineExceeded);
                                }
                            }
                            _ => assert_eq!(call.await.unwrap(), nonce),
                        }
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        assert_eq!((client.snapshot().calls, harness.network.attempts()), (0, 1));
        harness.until_held(0).await;
        assert_eq!(harness.snapshot().protocol_errors, 0, "no frame was torn");
        let echo: String = client.call(method::ECHO, ("hi".to_owned(),)).await.unwrap();
        assert_eq!(echo, "hi");
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn large_calls_that_are_dropped_half_written_tear_no_frame() {
    let harness = Harness::new().unless(Manner::OneByte, "megabytes go by");
    let client = harness.client_through(1_000).build();
    let mut random = Random(9);
    for n in 0..300_usize {
        let text = "x".repeat(1 + random.below(20_000) as usize);
        let mut call = client.call::<_, String>(method::ECHO, (text.clone(),));
        for _ in 0..random.below(12) {
            if poll!(&mut call).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        if n % 10 == 0 {
            drop(call);
            let echo: String = client.call(method::ECHO, (text.clone(),)).await.unwrap();
            assert!(echo == text);
        }
    }
    assert_eq!((harness.snapshot().protocol_errors, harness.network.attempts()), (0, 1));
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_is_counted_and_reaches_nobody() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let first = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)).timeout(10 * MS));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (first_id, _) = server.request().await;
    assert_eq!(first.await.unwrap().unwrap_err().code(), StatusCode::DeadlineExceeded);
    assert!(matches!(server.peer.next().await, Got::Cancel(id) if id == first_id));
    let second = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    let (second_id, _) = server.request().await;
    assert_eq!(first_id.slot(), second_id.slot(), "the slot is used again, the id is not");
    assert!(second_id > first_id);
    server.reply(first_id, 1_u64).await;
    sleep(MS).await;
    assert!(!second.is_finished());
    server.reply(second_id, 2_u64).await;
    assert_eq!(second.await.unwrap().unwrap(), 2);
    server.reply(second_id, 2_u64).await;
    sleep(MS).await;
    assert_eq!((client.snapshot().late_answers, client.snapshot().connected), (2, true));
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_fails_its_calls_at_once_and_says_which_cannot_have_been_executed() {
    // The pipe takes the HELLO and some calls, and a part of one more.
    let (builder, mut servers) =
        scripted_with(Manner::unless(Manner::Withholding, "it counts the bytes that have left"), 1_000);
    let client = builder.build();
    let calls: Vec<_> = (0..1_000_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    let mut server = servers.recv().await.unwrap();
    let greeting = support::raw::hello_with(|hello| hello.advised_calls = 10_000);
    server.peer.send(&greeting).await;
    sleep(MS).await;
    let began = Instant::now();
    drop(server);
    let (mut never, mut maybe) = (0, 0);
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        let CallError::Lost { ref peer, executed, .. } = error else { panic!("{error:?}") };
        assert_eq!((&**peer, error.code()), ("the scripted server", StatusCode::Unavailable));
        match executed {
            Executed::Never => never += 1,
            Executed::Maybe => maybe += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!((never + maybe, client.snapshot().calls), (1_000, 0));
    assert!((5..30).contains(&maybe), "{maybe} calls of about 50 bytes fit into what is left of 1,000");
    // A later call gets a new connection.
    let next = tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,)));
    let error = tokio::select! {
        _ = servers.recv() => return,
        error = next => error.unwrap().unwrap_err(),
    };
    assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn calls_above_the_last_of_a_farewell_were_never_executed_and_the_others_are_waited_for() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let calls: Vec<_> = (0..10_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(server.request().await.0);
    }
    server.go_away(ids[3], GoAwayReason::Drain, "moving house").await;
    let mut calls = calls.into_iter();
    let accepted: Vec<_> = calls.by_ref().take(4).collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the scripted server takes no more calls: moving house");
        assert!(matches!(error, CallError::GoingAway { reason: GoAwayReason::Drain, .. }));
        assert_eq!(error.executed(), Executed::Never);
    }
    for (n, &id) in (0_u64..).zip(&ids[..2]) {
        server.reply(id, n).await;
    }
    // A second farewell with a lower last counts, too.
    server.go_away(ids[2], GoAwayReason::Drain, "sooner than thought").await;
    server.reply(ids[2], 2_u64).await;
    let mut accepted = accepted.into_iter();
    for n in 0..3_u64 {
        assert_eq!(accepted.next().unwrap().await.unwrap().unwrap(), n);
    }
    let error = accepted.next().unwrap().await.unwrap().unwrap_err();
    assert_eq!((error.executed(), client.snapshot().calls), (Executed::Never, 0));
    assert!(matches!(server.peer.next().await, Got::GoAway { last: CallId::CONNECTION, .. }));
    assert!(matches!(server.peer.next().await, Got::End));
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_given_up_after_a_farewell_is_cancelled_at_the_server() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
    server.go_away(id, GoAwayReason::Drain, "moving house").await;
    sleep(MS).await;
    call.abort();
    assert!(matches!(server.peer.next().await, Got::Cancel(cancelled) if cancelled == id));
    assert!(matches!(server.peer.next().await, Got::GoAway { .. }));
    assert!(matches!(server.peer.next().await, Got::End));
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_behind_a_farewell_leaves_its_calls_maybe_executed() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
    server.go_away(id, GoAwayReason::Drain, "moving house").await;
    drop(server);
    let error = call.await.unwrap().unwrap_err();
    let CallError::Lost { executed: Executed::Maybe, source: LostCause::ServerClosed, .. } = error else {
        panic!("{error:?}")
    };
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn options_of_a_call_stand_in_its_request() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.timeout(9_000 * MS).build();
    let call = client.call::<_, u64>(method::GATE, (1_u64,)).timeout(250 * MS).metadata("tenant", "acme");
    let call = tokio::spawn(call);
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let Got::Request { id, timeout_us, attempt, metadata, .. } = server.peer.next().await else { panic!() };
    assert_eq!((timeout_us, attempt, metadata.get_str("tenant"), metadata.len()), (250_000, 0, Some("acme"), 1));
    server.reply(id, 1_u64).await;
    call.await.unwrap().unwrap();
    for (call, expected) in [
        (client.call::<_, u64>(method::GATE, (1_u64,)), 9_000_000),
        (client.call(method::GATE, (1_u64,)).deadline((Instant::now() + 100 * MS).into_std()), 100_000),
        (client.call(method::GATE, (1_u64,)).timeout(MS / 5_000), 1),
    ] {
        let call = tokio::spawn(call);
        let Got::Request { id, timeout_us, .. } = server.peer.next().await else { panic!() };
        assert_eq!(timeout_us, expected);
        server.reply(id, 1_u64).await;
        let _ = call.await;
    }
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn answers_and_drops_that_meet_in_one_moment_leave_no_trace() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(16));
    let client = harness.client();
    let _: String = client.call(method::ECHO, ("hi".to_owned(),)).await.unwrap();
    for n in 0..1_000_u64 {
        let mut call = client.call::<_, u64>(method::NONCE, (n, 0_u32));
        assert!(poll!(&mut call).is_pending());
        // The answer is delivered while the test yields, more or less.
        for _ in 0..n % 5 {
            tokio::task::yield_now().await;
        }
        drop(call);
    }
    // The last of them may still be on their way.
    sleep(MS).await;
    harness.until_held(0).await;
    assert_eq!(client.snapshot().calls, 0);
    harness.until_flushed(0).await;
    no_call_runs(&harness.handle);
    let calls: Vec<_> = (0..16_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    harness.until_running(16).await;
    let error = client.call::<_, u64>(method::GATE, (17_u64,)).await.unwrap_err();
    assert_eq!(error.code(), StatusCode::ResourceExhausted, "the limit is what it was");
    calls.into_iter().for_each(|call| call.abort());
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_room_goes_elsewhere_when_the_server_takes_no_more() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut old, first_id) = first_call(&client, &mut servers, 1).await;
    sleep(MS).await;
    let waiting: Vec<_> = (0..10_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    sleep(MS).await;
    old.go_away(first_id, GoAwayReason::Drain, "moving house").await;
    let mut new = servers.recv().await.unwrap();
    new.shake_hands(100).await;
    for _ in 0..10 {
        let (id, body) = new.request().await;
        let (n,): (u64,) = CodecId::BINCODE.decode(&body).unwrap();
        new.reply(id, n).await;
    }
    for (n, call) in (0..).zip(waiting) {
        assert_eq!(call.await.unwrap().unwrap(), n);
    }
    old.reply(first_id, 1_u64).await;
    assert_eq!(first.await.unwrap().unwrap(), 1);
    assert!(servers.try_recv().is_err(), "one new connection is enough");
    until_client_idle(&client).await;
}
