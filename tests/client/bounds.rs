//! A hostile server is bounded: what it may send that ends no call, how long it may take, and what it
//! makes a client keep.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use rpc_codec::{CodecId, GoAwayReason, encode_credit, patch_id};
use rpc_core::CallId;
use sluicegate::{
    CallError, Client, Executed,
    client::{Coded, LostCause},
};
use tokio::{
    io::AsyncWriteExt,
    sync::mpsc::UnboundedReceiver,
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};

use crate::support::{
    Got, RawServer, method,
    raw::{frame, hello, hello_with, response},
    scripted::{Calling, first_call, scripted, scripted_with},
    shims::{Manner, times},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const RESPONSE: u8 = 3;
const CONT: u8 = 4;
const ITEM: u8 = 5;
const PING: u8 = 9;
const PONG: u8 = 10;
const GO_AWAY: u8 = 11;

/// A client with one call out, and the server that has read it.
async fn one_call() -> (Client, UnboundedReceiver<RawServer>, RawServer, Calling, CallId) {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (call, server, id) = first_call(&client, &mut servers, 64).await;
    (client, servers, server, call, id)
}

async fn cause(call: Calling) -> LostCause {
    match within(call).await.unwrap().unwrap_err() {
        CallError::Lost { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

/// Sends `bytes` over and over until the client hangs up, or far too often; how often that was.
fn flood(server: RawServer, bytes: Vec<u8>) -> (Arc<AtomicU64>, JoinHandle<()>) {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let (mut read, mut write) = tokio::io::split(server.peer.io);
    tokio::spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
    let task = tokio::spawn(async move {
        while counted.load(SeqCst) < 1_000_000 && write.write_all(&bytes).await.is_ok() {
            counted.fetch_add(1, SeqCst);
            yield_now().await;
        }
    });
    (sent, task)
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_frames_that_end_no_call_ends_the_connection_and_says_why() {
    let answered = |id: CallId| {
        let mut bytes = response(CallId::CONNECTION, &1_u64);
        patch_id(&mut bytes, id);
        bytes
    };
    for what in [PING, PONG, CONT, 0x85, RESPONSE, GO_AWAY] {
        let (client, mut servers, mut server, call, _) = one_call().await;
        let done = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
        let done_id = server.request().await.0;
        server.reply(done_id, 2_u64).await;
        assert_eq!(done.await.unwrap().unwrap(), 2);
        let bytes = match what {
            PING | PONG => frame(what, 0, 0, &[7; 8], &[]),
            RESPONSE => answered(done_id),
            GO_AWAY => {
                let mut head = done_id.to_wire().to_be_bytes().to_vec();
                head.extend([0; 4]);
                frame(what, 0, 0, &head, &[])
            }
            _ => {
                let mut bytes = frame(what, 0, 0, &[], &[]);
                patch_id(&mut bytes, done_id);
                bytes
            }
        };
        let (sent, flooding) = flood(server, bytes);
        let cause = cause(call).await;
        assert!(matches!(cause, LostCause::Flooded { .. }), "{what}: {cause}");
        flooding.await.unwrap();
        let weight = if what == GO_AWAY { 100 } else { 1 };
        let sent = sent.load(SeqCst) * weight;
        // What is in the pipe when it ends comes on top.
        assert!((10_000..10_000 + 8_000 * weight).contains(&sent), "{what}: {sent} frames");
        let snapshot = client.snapshot();
        assert_eq!((snapshot.protocol_errors, snapshot.lost_connections), (1, 1));
        assert_eq!(snapshot.late_answers > 9_000, what == RESPONSE);
        until_client_idle(&client).await;
        assert!(servers.try_recv().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_late_items_or_of_credit_for_nothing_ends_the_connection_and_says_why() {
    for what in ["late items", "late credit", "credit for nothing"] {
        let (client, mut servers, mut server, call, _) = one_call().await;
        let (mut bytes, mut kept) = (Vec::new(), None);
        let free = if what == "late items" {
            let items = client.server_stream::<_, u8, Coded>(method::GATE, (2_u64,)).open().await.unwrap();
            let (id, _) = server.request().await;
            drop(items);
            assert!(matches!(server.peer.next().await, Got::Cancel(cancelled) if cancelled == id));
            bytes = frame(ITEM, 0, 0, &[], &[7]);
            patch_id(&mut bytes, id);
            // What its window had left, at 64 bytes each.
            128 * 1024 / 64
        } else {
            let numbers = client.client_stream::<_, u64, u64, Coded, Coded>(method::GATE, (2_u64,));
            let numbers = numbers.open().await.unwrap();
            let (id, _) = server.request().await;
            encode_credit(&mut bytes, id, 1);
            if what == "late credit" {
                drop(numbers);
                assert!(matches!(server.peer.next().await, Got::Cancel(cancelled) if cancelled == id));
            } else {
                kept = Some(numbers);
            }
            0
        };
        let (sent, flooding) = flood(server, bytes);
        let cause = cause(call).await;
        assert!(matches!(cause, LostCause::Flooded { .. }), "{what}: {cause}");
        flooding.await.unwrap();
        let sent = sent.load(SeqCst);
        // What is in the pipe when it ends comes on top.
        assert!((10_000 + free..18_000 + free).contains(&sent), "{what}: {sent} frames, of which {free} are free");
        let snapshot = client.snapshot();
        assert_eq!((snapshot.protocol_errors, snapshot.lost_connections), (1, 1), "{what}");
        assert_eq!(snapshot.late_items >= 10_000, what.starts_with("late"), "{what}: {snapshot:?}");
        if let Some((mut numbers, reply)) = kept {
            let error = within(reply).await.unwrap_err();
            assert!(matches!(error, CallError::Lost { source: LostCause::Flooded { .. }, .. }), "{error:?}");
            assert!(matches!(numbers.send(1).await, Err(CallError::Ended { .. })));
        }
        until_client_idle(&client).await;
        assert!(servers.try_recv().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_sends_a_thousand_such_frames_a_second_is_served_for_ever() {
    let (client, _servers, mut server, call, id) = one_call().await;
    let frames = frame(0x85, 0, 0, &[], &[]).repeat(100);
    for _ in 0..600 {
        server.peer.send(&frames).await;
        sleep(100 * MS).await;
    }
    server.reply(id, 1_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 1);
    assert_eq!(client.snapshot().lost_connections, 0);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_often_keeps_its_connection_however_many_answers_come_late() {
    let (client, _servers, mut server, call, id) = one_call().await;
    let calls_in_all = times(240_000) / 50 * 50;
    for _ in 0..calls_in_all / 50 {
        let calls: Vec<_> = (0..50_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
        let mut answers = Vec::new();
        for _ in 0..50 {
            answers.extend(response(server.request().await.0, &1_u64));
        }
        calls.iter().for_each(JoinHandle::abort);
        for _ in 0..50 {
            assert!(matches!(server.peer.next().await, Got::Cancel(_)));
        }
        server.peer.send(&answers).await;
    }
    server.reply(id, 1_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 1);
    let snapshot = client.snapshot();
    assert_eq!((snapshot.late_answers, snapshot.connects, snapshot.lost_connections), (calls_in_all, 1, 0));
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_does_not_end_is_a_loss_however_its_bytes_dribble() {
    for dribble in [None, Some(100 * MS), Some(900 * MS)] {
        let (client, _servers, mut server, call, id) = one_call().await;
        let mut bytes = response(CallId::CONNECTION, &"x".repeat(10_000));
        patch_id(&mut bytes, id);
        let began = Instant::now();
        match dribble {
            None => server.peer.send(&bytes[..5_000]).await,
            Some(every) => {
                let mut sent = bytes.iter();
                while !call.is_finished() {
                    server.peer.send(&[*sent.next().unwrap()]).await;
                    sleep(every).await;
                }
            }
        }
        let cause = cause(call).await;
        assert!(matches!(cause, LostCause::FrameTimeout { after } if after == 10 * SECOND), "{cause}");
        assert!(began.elapsed() >= 10 * SECOND && began.elapsed() <= 11 * SECOND, "{:?}", began.elapsed());
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn frames_that_end_in_time_may_follow_each_other_slowly_without_end() {
    let (client, _servers, mut server, call, id) = one_call().await;
    let ignorable = frame(0x85, 0, 0, &[7; 30], &[]);
    // The end of one frame and the beginning of the next come together: none of them is late.
    server.peer.send(&ignorable[..10]).await;
    for _ in 0..100 {
        sleep(8 * SECOND).await;
        server.peer.send(&[&ignorable[10..], &ignorable[..10]].concat()).await;
    }
    server.peer.send(&ignorable[10..]).await;
    server.reply(id, 1_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 1);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_greet_is_given_up_after_the_time_to_connect() {
    for part in [0, 1, 20, 60] {
        // A farewell is written only as far as it can be without waiting.
        let (builder, mut servers) = scripted_with(Manner::Plain, 64 * 1024);
        let client = builder.connect_timeout(3 * SECOND).build();
        let began = Instant::now();
        let call = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
        let mut server = servers.recv().await.unwrap();
        server.peer.send(&hello()[..part]).await;
        let cause = cause(call).await;
        assert!(matches!(cause, LostCause::HandshakeTimeout { after } if after == 3 * SECOND), "{cause}");
        assert!(began.elapsed() >= 3 * SECOND && began.elapsed() <= 3_100 * MS, "{:?}", began.elapsed());
        let rest = server.peer.rest().await;
        assert!(matches!(rest.last(), Some(Got::GoAway { reason: GoAwayReason::HandshakeTimeout, .. })), "{rest:?}");
        // It did not prove good: the next call fails fast.
        let error = client.call::<_, u64>(method::GATE, (1_u64,)).await.unwrap_err();
        assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_nothing_is_given_up_although_it_sends() {
    let (builder, mut servers) = scripted(1_000);
    let client = builder.build();
    let call = tokio::spawn(client.call::<_, String>(method::ECHO, ("x".repeat(50_000),)));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let began = Instant::now();
    let alive = frame(0x85, 0, 0, &[], &[]);
    while !call.is_finished() {
        server.peer.send(&alive).await;
        assert!(client.snapshot().outbound_bytes <= 51_000);
        sleep(100 * MS).await;
    }
    let error = call.await.unwrap().unwrap_err();
    let CallError::Lost { executed, source: LostCause::WriteTimeout { .. }, .. } = error else { panic!("{error:?}") };
    assert_eq!(executed, Executed::Never);
    assert!(began.elapsed() >= 29 * SECOND && began.elapsed() <= 31 * SECOND, "{:?}", began.elapsed());
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn absurd_greetings_are_taken_as_far_as_they_make_sense_or_refused_by_name() {
    let cases: [(&str, Vec<u8>, Result<(), &str>); 8] = [
        (
            "everything",
            hello_with(|h| (h.max_frame, h.max_message, h.advised_calls) = (u32::MAX, u32::MAX, u32::MAX)),
            Ok(()),
        ),
        ("windows and features", hello_with(|h| (h.stream_window, h.features) = (u32::MAX, u64::MAX)), Ok(())),
        ("no codec and no window", hello_with(|h| (h.codecs, h.stream_window) = ([].into_iter().collect(), 0)), Ok(())),
        ("the least frame", hello_with(|h| h.max_frame = 8_192), Ok(())),
        ("no call", hello_with(|h| h.advised_calls = 0), Ok(())),
        ("no frame", hello_with(|h| h.max_frame = 0), Err("8,192")),
        ("versions the wrong way round", hello_with(|h| (h.min_version, h.max_version) = (2, 0)), Err("2 to 0")),
        ("a HELLO without end", 0x0000_ffff_u32.to_be_bytes().to_vec(), Err("Sluicegate")),
    ];
    for (what, greeting, outcome) in cases {
        // The calls that left with the HELLO are read before it fails.
        let (builder, mut servers) = scripted_with(Manner::Plain, 64 * 1024);
        let client = builder.build();
        let call = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
        let mut server = servers.recv().await.unwrap();
        server.peer.send(&greeting).await;
        assert!(matches!(server.peer.next().await, Got::Hello(_)));
        let (id, _) = server.request().await;
        match outcome {
            Ok(()) => {
                server.reply(id, 1_u64).await;
                assert_eq!(call.await.unwrap().unwrap(), 1, "{what}");
            }
            Err(names) => {
                let cause = cause(call).await;
                assert!(
                    matches!(cause, LostCause::Protocol(_)) && cause.to_string().contains(names),
                    "{what}: {cause}"
                );
            }
        }
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_malformed_answer_to_what_never_was_is_an_error_of_the_protocol_and_a_late_one_is_not() {
    let (client, _servers, mut server, call, id) = one_call().await;
    let late = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)).timeout(MS));
    let (late_id, _) = server.request().await;
    assert!(late.await.unwrap().is_err());
    let malformed = |id: CallId| {
        let mut bytes = frame(RESPONSE, 0, 0, &[0; 3], &[]);
        patch_id(&mut bytes, id);
        bytes
    };
    server.peer.send(&malformed(late_id)).await;
    sleep(MS).await;
    assert_eq!((client.snapshot().late_answers, client.snapshot().connected), (1, true));
    server.peer.send(&malformed(CallId::new(id.sequence() + 100, 0))).await;
    let cause = cause(call).await;
    assert!(matches!(&cause, LostCause::Protocol(why) if why.contains("never was")), "{cause}");
    assert_eq!(client.snapshot().protocol_errors, 1);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_buffered_is_counted_and_bounded_and_gone_with_its_cause() {
    let (builder, mut servers) = scripted(2_000);
    let client = builder.max_frame(64 * 1024).build();
    let call = tokio::spawn(client.call::<_, String>(method::ECHO, ("hi".to_owned(),)));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(10_000).await;
    let (id, _) = server.request().await;
    // Answers are kept until they are fetched, part of a frame until it is whole.
    let mut bytes = response(CallId::CONNECTION, &"x".repeat(30_000));
    patch_id(&mut bytes, id);
    let (last, most) = bytes.split_last().unwrap();
    server.peer.send(most).await;
    sleep(MS).await;
    assert_eq!(client.snapshot().inbound_bytes, most.len() as u64);
    server.peer.send(&[*last]).await;
    assert_eq!(call.await.unwrap().unwrap().len(), 30_000);
    until_client_idle(&client).await;
    // A server that reads nothing: a mebibyte of calls, and one more.
    let stop = Arc::new(AtomicBool::new(false));
    let calls: Vec<_> = (0..3_000_u64)
        .map(|_| tokio::spawn(client.call::<_, String>(method::ECHO, ("y".repeat(1_000),)).timeout(20 * SECOND)))
        .collect();
    sleep(MS).await;
    let snapshot = client.snapshot();
    assert!(snapshot.outbound_bytes > 500_000 && snapshot.outbound_bytes < (2 << 20) + 4_000, "{snapshot:?}");
    assert!(snapshot.waiting_for_room > 0 && snapshot.calls + snapshot.waiting_for_room == 3_000, "{snapshot:?}");
    // Pings that it does not read the answers of are answered only so far.
    let (read, mut write) = tokio::io::split(server.peer.io);
    let (stopped, ping) = (Arc::clone(&stop), frame(PING, 0, 0, &[7; 8], &[]).repeat(10));
    let pings = tokio::spawn(async move {
        while !stopped.load(SeqCst) && write.write_all(&ping).await.is_ok() {
            sleep(20 * MS).await;
        }
    });
    for call in calls {
        call.await.unwrap().unwrap_err();
    }
    let snapshot = client.snapshot();
    assert!(snapshot.outbound_bytes < (2 << 20) + 200_000, "{snapshot:?}");
    assert_eq!((snapshot.calls, snapshot.waiting_for_room), (0, 0));
    stop.store(true, SeqCst);
    pings.await.unwrap();
    drop(read);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn bodies_that_travel_in_parts_are_counted_until_they_have_left_or_were_fetched() {
    const LEN: usize = 200_000;
    let (builder, mut servers) = scripted(10_000);
    let client = builder.build();
    let call = tokio::spawn(client.call::<_, String>(method::ECHO, ("x".repeat(LEN),)));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let id = CallId::new(1, 0);
    sleep(MS).await;
    let outbound = client.snapshot().outbound_bytes;
    assert!(outbound > 100_000 && outbound < LEN as u64 + 1_000, "{outbound} of {LEN}");
    // An answer before the request has left ends the upload, and comes in parts itself.
    let mut body = Vec::new();
    CodecId::BINCODE.encode(&"y".repeat(LEN), &mut body).unwrap();
    let head = [&[0; 4], &(body.len() as u32).to_be_bytes()[..], &[0; 4]].concat();
    let mut first = frame(RESPONSE, 1, 0, &head, &body[..50_000]);
    patch_id(&mut first, id);
    let (mut read, mut write) = tokio::io::split(server.peer.io);
    tokio::spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
    write.write_all(&first).await.unwrap();
    sleep(MS).await;
    let snapshot = client.snapshot();
    assert_eq!((snapshot.inbound_bytes, snapshot.outbound_bytes), (50_000, 0));
    let mut last = frame(CONT, 0, 0, &[], &body[50_000..]);
    patch_id(&mut last, id);
    write.write_all(&last).await.unwrap();
    assert_eq!(call.await.unwrap().unwrap().len(), LEN);
    assert!(client.snapshot().is_idle(), "{:?}", client.snapshot());
}
