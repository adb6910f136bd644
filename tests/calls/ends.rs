//! Every way a call can end, and that its permit comes back each time.

use std::time::Duration;

use rpc_codec::CodecId;
use sluicegate::{CallError, Executed, StatusCode, client::Method};
use tokio::{io::AsyncReadExt, time::sleep};

use crate::support::{
    self, Got, Harness, Req, method, no_call_runs,
    shims::{Manner, times_in},
    within,
};

const MS: Duration = Duration::from_millis(1);
/// Longer than any pipe here, shorter than a frame may be.
const LARGE: u32 = 200_000;

#[tokio::test(start_paused = true)]
async fn a_permit_comes_back_when_the_response_is_written() {
    let harness = Harness::new();
    let client = harness.client();
    for (method, text) in [(method::ECHO, "inline"), (method::ECHO_SPAWNED, "in a task")] {
        let reply: String = client.call(method, (text.to_owned(),)).await.unwrap();
        assert_eq!(reply, text);
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
    }
    assert_eq!(harness.snapshot().calls.acquired, 2);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_stays_out_while_the_peer_does_not_read_and_comes_back_with_the_last_byte() {
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let harness = Harness::new().unless(Manner::Withholding, "it counts the bytes that have left");
        let mut peer = harness.peer_through(1024);
        peer.shake_hands().await;
        peer.send(&Req::new(1, method, (LARGE,)).bytes()).await;
        harness.until_held(1).await;
        sleep(1_000 * MS).await;
        assert_eq!(harness.probe.running(), 0, "the service has answered long ago");
        assert_eq!(harness.snapshot().calls.held, 1);
        assert!(harness.snapshot().buffered_bytes > u64::from(LARGE) - 2048);
        let reply: String = peer.reply(1).await;
        assert_eq!(reply.len(), LARGE as usize);
        harness.until_held(0).await;
        assert_eq!(harness.snapshot().buffered_bytes, 0);
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_comes_back_when_the_peer_resets_mid_write() {
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let harness = Harness::new();
        let mut peer = harness.peer_through(1024);
        peer.shake_hands().await;
        peer.send(&Req::new(1, method, (LARGE,)).bytes()).await;
        let mut part = [0; 5_000];
        peer.peer.io.read_exact(&mut part).await.unwrap();
        harness.until_held(1).await;
        drop(peer);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_reads_keeps_its_permit_until_the_write_timeout_and_no_longer() {
    let harness = Harness::with(|builder| builder.write_timeout(5_000 * MS));
    let mut peer = harness.peer_through(1024);
    peer.shake_hands().await;
    peer.send(&Req::new(1, method::LARGE, (LARGE,)).bytes()).await;
    harness.until_held(1).await;
    sleep(4_900 * MS).await;
    assert_eq!((harness.snapshot().calls.held, harness.snapshot().connections), (1, 1));
    sleep(150 * MS).await;
    assert_eq!((harness.snapshot().calls.held, harness.snapshot().connections), (0, 0));
    harness.assert_idle().await;
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_slowly_but_steadily_is_not_cut_off() {
    let harness = Harness::with(|builder| builder.write_timeout(5_000 * MS).min_write_rate(200));
    let harness = harness.unless(Manner::Withholding, "what a transport passes on of what it holds shows nowhere");
    let mut peer = harness.peer_through(1024);
    peer.shake_hands().await;
    peer.send(&Req::new(1, method::LARGE, (20_000_u32,)).bytes()).await;
    harness.until_held(1).await;
    for _ in 0..19 {
        sleep(4_000 * MS).await;
        let mut part = [0; 1024];
        peer.peer.io.read_exact(&mut part).await.unwrap();
    }
    harness.until_held(0).await;
    assert_eq!(harness.snapshot().connections, 1);
    drop(peer);
    harness.assert_idle().await;
}

/// A peer that takes so many bytes of long replies in each of so many intervals. Whether it is still connected then, and
/// how often one was cut for that.
async fn reads_slowly(min_rate: Option<u32>, bytes: usize, every: Duration, times: u32) -> (bool, u64) {
    let harness = Harness::with(|builder| builder.min_write_rate(min_rate).keepalive_interval(None));
    let harness = harness.unless(Manner::Withholding, "what a transport passes on of what it holds shows nowhere");
    let mut peer = harness.peer_through(2 * 1024);
    peer.shake_hands().await;
    let calls: Vec<_> = (1..=20).map(|id| Req::new(id, method::LARGE, (50_000_u32,)).bytes()).collect();
    peer.send(&calls.concat()).await;
    harness.until("answers wait", |harness| harness.snapshot().buffered_bytes > 0).await;
    for _ in 0..times {
        sleep(every).await;
        // Nothing more comes when it was cut.
        let _ = within(peer.peer.io.read_exact(&mut vec![0; bytes])).await;
    }
    let snapshot = harness.snapshot();
    assert_eq!(snapshot.calls.held > 0, snapshot.connections == 1, "it holds permits for as long as it is there");
    drop(peer);
    harness.assert_idle().await;
    (snapshot.connections == 1, snapshot.connections_cut.get("write").copied().unwrap_or(0))
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_less_than_the_least_rate_is_cut_as_one_that_takes_nothing() {
    const SECOND: Duration = Duration::from_secs(1);
    let default = Some(1024);
    assert_eq!(reads_slowly(default, 1, 29 * SECOND, 1).await, (true, 0), "not before its time");
    assert_eq!(reads_slowly(default, 1, 29 * SECOND, 2).await, (false, 1), "a byte now and then");
    assert_eq!(reads_slowly(default, 900, SECOND, 62).await, (false, 1), "a little too slow");
    assert_eq!(reads_slowly(default, 1_100, SECOND, 600).await, (true, 0), "a little above the rate");
    assert_eq!(reads_slowly(Some(100), 150, SECOND, 600).await, (true, 0), "another rate");
    assert_eq!(reads_slowly(None, 1, 29 * SECOND, 100).await, (true, 0), "any rate");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_calls_future_drops_the_services_and_leaves_the_connection_good() {
    let harness = Harness::new();
    let client = harness.client();
    for method in [method::GATE, method::GATE_SPAWNED] {
        let call = tokio::spawn(client.call::<_, u64>(method, (1_u64,)));
        harness.until_running(1).await;
        assert_eq!(harness.snapshot().calls.held, 1);
        call.abort();
        harness.until_running(0).await;
        harness.until_held(0).await;
        let echo: String = client.call(method::ECHO, ("still here".to_owned(),)).await.unwrap();
        assert_eq!(echo, "still here");
    }
    assert_eq!((harness.probe.finished(), harness.network.attempts()), (2, 1));
    assert_eq!(client.snapshot().calls, 0);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_in_the_same_read_owes_nothing() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    for (id, method) in [(1, method::GATE), (2, method::GATE_SPAWNED)] {
        let bytes = [Req::new(id, method, (7_u64,)).bytes(), support::raw::cancel(id)].concat();
        peer.send(&bytes).await;
    }
    assert!(peer.peer.is_silent_for(1_000 * MS).await);
    harness.until_flushed(0).await;
    no_call_runs(&harness.handle);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_crosses_the_answer_is_ignored_and_gives_no_permit_back_twice() {
    // In virtual time they would be a flood.
    let harness = Harness::with(|builder| builder.max_concurrent_calls(2).control_frame_rate(None));
    let mut peer = harness.peer().await;
    let calls = times_in(100_000, 400);
    for id in 1..=calls {
        let request = Req::new(id, method::ECHO, (id.to_string(),)).bytes();
        peer.send(&[request, support::raw::cancel(id)].concat()).await;
        assert_eq!(peer.reply::<String>(id).await, id.to_string());
        harness.until_flushed(0).await;
    }
    harness.until("the last cancel has come", |harness| harness.snapshot().frames_ignored == calls).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls.acquired, snapshot.calls.released, snapshot.frames_ignored), (calls, calls, calls));
    assert!(snapshot.calls.high_water <= 2, "{snapshot:?}");
    for id in calls + 1..=calls + 3 {
        peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
    }
    let (status, _) = peer.answer(calls + 3).await;
    assert_eq!(status.code(), StatusCode::ResourceExhausted, "the limit is still two");
    harness.probe.open_gate();
    for _ in 0..2 {
        assert!(matches!(peer.next().await, Got::Response { code: StatusCode::Ok, .. }));
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_ends_the_service_and_is_answered_once() {
    for method in [method::GATE, method::GATE_SPAWNED, method::WATCHED, method::WATCHED_SPAWNED] {
        let harness = Harness::new();
        let mut peer = harness.peer().await;
        let request = if method == method::WATCHED || method == method::WATCHED_SPAWNED {
            Req::new(1, method, ())
        } else {
            Req::new(1, method, (1_u64,))
        };
        peer.send(&request.timeout(50 * MS).bytes()).await;
        harness.until_running(1).await;
        let began = tokio::time::Instant::now();
        let (status, _) = peer.answer(1).await;
        assert!(began.elapsed() <= 52 * MS, "{:?}", began.elapsed());
        assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Maybe));
        harness.until_running(0).await;
        harness.probe.open_gate();
        assert!(peer.peer.is_silent_for(1_000 * MS).await, "it was answered twice");
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_of_many_deadlines_passes_at_its_own_time() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let timeouts = [50, 10, 40, 20, 30];
    for (id, ms) in (1..).zip(timeouts) {
        peer.send(&Req::new(id, method::GATE, (id,)).timeout(ms * MS).bytes()).await;
    }
    let began = tokio::time::Instant::now();
    for (id, ms) in [(2, 10_u32), (4, 20), (5, 30), (3, 40), (1, 50)] {
        let (status, _) = peer.answer(id).await;
        assert_eq!(status.code(), StatusCode::DeadlineExceeded);
        let late = began.elapsed().checked_sub(ms * MS).expect("too early");
        assert!(late <= 2 * MS, "{late:?} late");
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_expired_on_its_way_is_never_executed() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let aged = |id, sent_at| Req::new(id, method::CONTEXT, ()).head(|head| head.sent_at_us = sent_at);
    // The first shows how far the clocks are apart, the others were sent a second before it.
    peer.send(&aged(1, 2_000_000).bytes()).await;
    let _: support::probe::Seen = peer.reply(1).await;
    peer.send(&aged(2, 1_000_000).timeout(500 * MS).bytes()).await;
    let (status, _) = peer.answer(2).await;
    assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Never));
    let info = status.error_info().unwrap();
    assert_eq!((&*info.reason, info.metadata.get_str("age_us")), ("DEADLINE_EXPIRED", Some("1000000")));
    assert_eq!((harness.probe.started(), harness.refused("DEADLINE_EXPIRED")), (1, 1));
    peer.send(&aged(3, 1_000_000).timeout(1_500 * MS).bytes()).await;
    let seen: support::probe::Seen = peer.reply(3).await;
    assert_eq!(seen.0, Some(500), "what is left is counted from when it was sent");
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_deadline_passes_is_told_in_time_and_the_service_is_ended() {
    let harness = Harness::new();
    let client = harness.client();
    for method in [method::GATE, method::GATE_SPAWNED] {
        let began = tokio::time::Instant::now();
        let error = client.call::<_, u64>(method, (1_u64,)).timeout(50 * MS).await.unwrap_err();
        assert!(began.elapsed() >= 50 * MS && began.elapsed() <= 52 * MS, "{:?}", began.elapsed());
        assert_eq!((error.code(), error.executed()), (StatusCode::DeadlineExceeded, Executed::Maybe));
        harness.until_running(0).await;
        harness.until_held(0).await;
    }
    let deadline = (tokio::time::Instant::now() + 20 * MS).into_std();
    let call = client.call::<_, u64>(method::GATE, (1_u64,)).deadline(deadline).timeout(1_000 * MS);
    assert_eq!(call.await.unwrap_err().code(), StatusCode::DeadlineExceeded);
    let past = client.call::<_, u64>(method::GATE, (1_u64,)).deadline(deadline);
    let error = past.await.unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { executed: Executed::Never, .. }), "{error:?}");
    assert_eq!(harness.probe.started(), 3);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn calls_end_with_their_connection_and_at_once() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let methods = [method::GATE, method::GATE_SPAWNED, method::SLEEP, method::SLEEP_SPAWNED];
    for (id, method) in (1..).zip(methods) {
        peer.send(&Req::new(id, method, (3_600_000_u64,)).bytes()).await;
    }
    harness.until_running(4).await;
    assert_eq!(harness.snapshot().calls.held, 4);
    let began = tokio::time::Instant::now();
    drop(peer);
    harness.assert_idle().await;
    assert!(began.elapsed() < 10 * MS, "{:?}", began.elapsed());
    assert_eq!(harness.probe.finished(), 0);
}

#[tokio::test(start_paused = true)]
async fn calls_end_when_the_future_that_serves_them_is_dropped() {
    let harness = Harness::new();
    let mut peer = harness.peer_through(1024);
    peer.shake_hands().await;
    for (id, method) in [(1, method::GATE), (2, method::GATE_SPAWNED), (3, method::SLEEP)] {
        peer.send(&Req::new(id, method, (3_600_000_u64,)).bytes()).await;
    }
    peer.send(&Req::new(4, method::LARGE, (LARGE,)).bytes()).await;
    harness.until_held(4).await;
    harness.network.cut();
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_of_the_service_arrives_with_all_its_parts() {
    let harness = Harness::new();
    let client = harness.client();
    for method in [method::FAIL, method::FAIL_SPAWNED] {
        let error = client.call::<_, ()>(method, ("book".to_owned(),)).await.unwrap_err();
        let status = error.status().unwrap();
        assert_eq!((status.code(), status.message()), (StatusCode::NotFound, "no book"));
        assert_eq!((status.executed(), status.retry_delay()), (Executed::Finished, Some(7 * MS)));
        assert_eq!((&*status.details()[0].type_url, &*status.details()[0].value), ("test/detail", &[1, 2][..]));
        assert_eq!(status.metadata().get_str("shelf"), Some("7"));
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn bytes_arrive_as_they_were() {
    let harness = Harness::new();
    let client = harness.client();
    for method in [method::BYTES, method::BYTES_SPAWNED] {
        for len in [0, 1, 255, 60_000] {
            let body: sluicegate::Bytes = (0..len).map(|n| n as u8).collect();
            assert_eq!(client.call_bytes(method, body.clone()).await.unwrap(), body);
        }
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_keeps_the_slot_behind_the_answer_until_it_is_dropped() {
    for method in [method::HOLD, method::HOLD_SPAWNED] {
        let harness = Harness::with(|builder| builder.max_concurrent_calls(1));
        let client = harness.client();
        client.call::<_, ()>(method, ()).await.unwrap();
        sleep(1_000 * MS).await;
        assert_eq!((harness.snapshot().calls.held, harness.probe.running()), (1, 0));
        let error = echo(&client).await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (StatusCode::ResourceExhausted, Executed::Never));
        harness.probe.drop_holds();
        harness.until_held(0).await;
        echo(&client).await.unwrap();
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_keeps_the_slot_when_its_connection_dies_first() {
    for method in [method::HOLD, method::HOLD_SPAWNED, method::HOLD_AND_WAIT, method::HOLD_AND_WAIT_SPAWNED] {
        let harness = Harness::new();
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method, ()).bytes()).await;
        harness.until("the call reached the service", |harness| harness.probe.started() == 1).await;
        drop(peer);
        harness.until("the connection is gone", |harness| harness.snapshot().connections == 0).await;
        sleep(1_000 * MS).await;
        assert_eq!((harness.snapshot().calls.held, harness.probe.running()), (1, 0));
        harness.probe.drop_holds();
        harness.until_held(0).await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_keeps_the_slot_of_a_call_that_was_cancelled_or_expired() {
    for method in [method::HOLD_AND_WAIT, method::HOLD_AND_WAIT_SPAWNED] {
        let harness = Harness::new();
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method, ()).bytes()).await;
        peer.send(&Req::new(2, method, ()).timeout(10 * MS).bytes()).await;
        harness.until_running(2).await;
        peer.send(&support::raw::cancel(1)).await;
        assert_eq!(peer.answer(2).await.0.code(), StatusCode::DeadlineExceeded);
        harness.until_running(0).await;
        assert_eq!(harness.snapshot().calls.held, 2);
        harness.probe.drop_holds();
        harness.until_held(0).await;
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_dropped_before_the_answer_keeps_nothing() {
    let harness = Harness::new();
    harness.probe.drop_holds();
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::HOLD_AND_WAIT, ()).bytes()).await;
    harness.until_running(1).await;
    harness.probe.open_gate();
    let () = peer.reply(1).await;
    harness.until_held(0).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_longer_than_the_client_takes_names_both_sizes() {
    let harness = Harness::new();
    let client = harness.client_builder().max_message(64 * 1024).build();
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let error = client.call::<_, String>(method, (100_000_u32,)).await.unwrap_err();
        let status = error.status().unwrap();
        assert_eq!((status.code(), status.executed()), (StatusCode::ResourceExhausted, Executed::Finished));
        assert!(status.message().contains("100005"), "{status}");
        assert!(status.message().contains("65"), "{status}");
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
        let fits: String = client.call(method, (1_000_u32,)).await.unwrap();
        assert_eq!(fits.len(), 1_000);
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_encoded_costs_its_call_only() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    for (id, method) in [(1, method::BAD_SERIALIZE), (2, method::BAD_SERIALIZE_SPAWNED)] {
        peer.send(&Req::new(id, method, ()).bytes()).await;
        let (status, body) = peer.answer(id).await;
        assert_eq!((status.code(), status.executed()), (StatusCode::Internal, Executed::Finished));
        assert!(body.is_empty(), "the half that was encoded is gone");
    }
    peer.send(&Req::new(3, method::ECHO, ("fine",)).bytes()).await;
    assert_eq!(peer.reply::<String>(3).await, "fine");
    peer.part().await;
    harness.assert_idle().await;
}

#[cfg(feature = "json")]
#[tokio::test(start_paused = true)]
async fn a_call_is_answered_in_the_codec_it_was_made_in() {
    let harness = Harness::new();
    let client = harness.client_builder().codec(CodecId::JSON).build();
    let reply: String = client.call(method::ECHO, ("grüße".to_owned(),)).await.unwrap();
    assert_eq!(reply, "grüße");
    let mut peer = harness.peer().await;
    let json = Req::new(1, method::ECHO, ()).head(|head| head.codec = CodecId::JSON).body(*b"[\"hi\"]");
    peer.send(&json.bytes()).await;
    let (status, body) = peer.answer(1).await;
    assert_eq!((status.code(), &body[..]), (StatusCode::Ok, &b"\"hi\""[..]));
    peer.part().await;
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wake_together_are_all_answered() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let calls: Vec<u64> = (1..=500).collect();
    let methods = [method::GATE, method::GATE_SPAWNED];
    let bytes: Vec<_> = calls.iter().map(|&id| Req::new(id, methods[id as usize % 2], (id,)).bytes()).collect();
    peer.send(&bytes.concat()).await;
    harness.until_running(500).await;
    harness.probe.open_gate();
    let mut answered: Vec<u64> = Vec::new();
    for _ in &calls {
        match peer.next().await {
            Got::Response { id, body, .. } => {
                assert_eq!(CodecId::BINCODE.decode::<u64>(&body).unwrap(), id.sequence());
                answered.push(id.sequence());
            }
            other => panic!("{other:?}"),
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, calls);
    peer.part().await;
    harness.assert_idle().await;
}

async fn echo(client: &sluicegate::Client) -> Result<String, CallError> {
    const ECHO: Method = method::ECHO;
    client.call(ECHO, ("echo".to_owned(),)).await
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_buffers_gives_the_permit_back_only_when_it_has_flushed() {
    let harness = Harness::new();
    let (ours, theirs) = tokio::io::duplex(1024);
    let (server, theirs) = (harness.server.clone(), Manner::of_this_run().wrap(theirs));
    tokio::spawn(async move { server.serve_connection(tokio::io::BufStream::new(theirs), None).await });
    let mut peer = support::RawClient::new(ours);
    peer.shake_hands().await;
    peer.send(&Req::new(1, method::LARGE, (5_000_u32,)).bytes()).await;
    harness.until_held(1).await;
    sleep(1_000 * MS).await;
    assert_eq!(harness.snapshot().calls.held, 1, "the bytes have left the server, but not the transport");
    assert_eq!(peer.reply::<String>(1).await.len(), 5_000);
    harness.until_held(0).await;
    peer.part().await;
    harness.assert_idle().await;
}
