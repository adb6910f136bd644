//! Bodies in parts: they arrive whole, let others pass, and hold what they reserved as long as they
//! need it and no longer.
#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::{HashMap, hash_map::Entry},
    io::ErrorKind,
    pin::pin,
    sync::Mutex,
    time::Duration,
};

use futures::{future::join_all, poll};
use hdrhistogram::Histogram;
use rpc_codec::{Decoded, Frame, FrameDecoder, GoAwayReason, PART_LEN, encode_go_away, encode_status};
use rpc_core::CallId;
use sluicegate::{
    Bytes, CallError, Client, Executed, Refusal, RefusalReason, Status, StatusCode,
    client::{ClientBuilder, LostCause, Method},
    server::{Decision, ServerBuilder},
};
use support::{
    Got, Harness, RawServer, Req, assert_idle_soon,
    handlers::{Deciding, with_handler},
    harness::PIPE,
    method,
    parts::{
        CANCEL, CONT, GO_AWAY, PING, PONG, Piece, Pieces, REQUEST, RESPONSE, encoded, frames, opening, part,
        response_opening, response_part, untouched,
    },
    raw::{cancel, frame, hello_with, response, scripted_with},
    shims::{Direction, FailingAt, Fault, Manner, Random},
    within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{mpsc::UnboundedReceiver, watch},
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// So much of a long body may stand between a short message and the wire.
const MAX_AHEAD: usize = 128 * KIB;
/// A pipe that hides little of what is sent.
const NARROW: usize = 16 * KIB;
const BROKEN: ErrorKind = ErrorKind::ConnectionReset;

type Configure = fn(ServerBuilder) -> ServerBuilder;

type AnswerTo = fn(CallId) -> Vec<u8>;

fn serve(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Harness {
    // The peers here say nothing for minutes, and answer no PING.
    let configure = |builder| configure(builder).keepalive_interval(None);
    Harness::with(configure).unless(Manner::OneByte, "megabytes go by")
}

/// A server that takes and gives bodies of 64 MiB.
fn serve_huge() -> Harness {
    serve(huge)
}

fn huge(builder: ServerBuilder) -> ServerBuilder {
    builder.max_message(65 * MIB as u32).body_budget_per_connection(130 * MIB as u64)
}

/// A raw peer that has shaken hands and takes bodies of any length.
async fn wire(harness: &Harness, pipe: usize) -> Pieces {
    let mut wire = Pieces::from(harness.peer_through(pipe));
    wire.send(&hello_with(|hello| hello.max_message = u32::MAX)).await;
    assert!(wire.piece().await.id == CallId::CONNECTION, "the server's HELLO");
    wire
}

/// Everything is back, the bytes of bodies too.
async fn assert_idle(harness: &Harness) {
    harness.assert_idle().await;
    assert_eq!(harness.snapshot().body_bytes, 0);
}

/// Everything that calls hold is back, whoever is still connected.
async fn until_given_back(harness: &Harness) {
    let is_back = |harness: &Harness| {
        let snapshot = harness.snapshot();
        snapshot.body_bytes == 0 && snapshot.calls.held == 0 && snapshot.calls_parked == 0
    };
    harness.until("everything is given back", is_back).await;
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n / 4096) as u8).collect()
}

/// A text whose encoding in bincode has so many bytes.
fn text(body_len: usize) -> String {
    let prefix = match body_len {
        1..=251 => 1,
        254..=65_538 => 3,
        _ => 5,
    };
    "x".repeat(body_len - prefix)
}

fn status_of(piece: &Piece) -> Status {
    assert_eq!(piece.kind, RESPONSE, "{piece:?}");
    let bytes = frame(RESPONSE, 0, 1, &piece.head, &piece.body);
    match FrameDecoder::new(u32::MAX).decode(&bytes) {
        Ok(Decoded::Frame { frame: Frame::Response(response), .. }) => response.status().expect("it is well formed"),
        other => panic!("{other:?}"),
    }
}

fn assert_refused(status: &Status, code: StatusCode, reason: &str, figures: &[(&str, String)]) {
    assert_eq!((status.code(), status.executed()), (code, Executed::Never), "{status:?}");
    let info = status.error_info().unwrap_or_else(|| panic!("{status:?}"));
    assert_eq!(&*info.reason, reason);
    for (key, value) in figures {
        assert_eq!(info.metadata.get_str(key), Some(&**value), "{reason}: {key}");
    }
}

async fn is_alive(wire: &mut Pieces, id: u64) {
    wire.send(&Req::new(id, method::ECHO, ("alive",)).bytes()).await;
    let piece = wire.piece().await;
    assert_eq!((piece.kind, piece.id), (RESPONSE, CallId::new(id, 0)), "{piece:?}");
    assert_eq!(piece.body, encoded("alive"));
}

// Round trips.

const MAX: usize = 100_000;

/// Around every length at which something changes.
const LENS: [usize; 13] =
    [0, 1, 8_100, PART_LEN - 1, PART_LEN, PART_LEN + 1, 65_507, 65_536, 2 * PART_LEN + 1, 81_920, 98_304, MAX - 1, MAX];

#[tokio::test(start_paused = true)]
async fn bytes_of_every_length_up_to_the_longest_arrive_both_ways() {
    for (server_frame, client_frame) in [(256 * KIB, 256 * KIB), (64 * KIB, 8 * KIB)] {
        let harness = serve(|builder| builder.max_message(MAX as u32).max_frame(server_frame as u32));
        let client = harness.client_builder().max_message(MAX as u32).max_frame(client_frame as u32).build();
        for len in LENS {
            let body = Bytes::from(bytes(len));
            for method in [method::BYTES, method::BYTES_SPAWNED] {
                for metadata in [false, true] {
                    let mut call = client.call_bytes(method, body.clone());
                    if metadata {
                        call = call.metadata("tenant", "acme").metadata("long", vec![7; 5_000]);
                    }
                    assert_eq!(within(call).await.unwrap(), body, "{len} bytes, {method}, metadata: {metadata}");
                }
            }
        }
        assert_eq!(harness.network.attempts(), 1);
        drop(client);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn values_of_every_length_up_to_the_longest_arrive_both_ways() {
    let harness = serve(|builder| builder.max_message(MAX as u32));
    let client = harness.client_builder().max_message(MAX as u32).build();
    for len in LENS.into_iter().filter(|&len| len > 0) {
        let text = text(len);
        for method in [method::ECHO, method::ECHO_SPAWNED] {
            let reply = within(client.call::<_, String>(method, (text.clone(),))).await.unwrap();
            assert!(reply == text, "{len} bytes, {method}");
        }
    }
    drop(client);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn many_long_calls_at_once_do_not_mix_their_parts() {
    let harness = serve(|builder| builder);
    let client = harness.client();
    let calls = (0..40_usize).map(|n| {
        let (method, len) = (if n % 2 == 0 { method::BYTES } else { method::BYTES_SPAWNED }, n * 7_000);
        let body = Bytes::from(vec![n as u8; len]);
        let call = client.call_bytes(method, body.clone());
        async move { (call.await, body) }
    });
    for (reply, body) in within(join_all(calls)).await {
        assert!(reply.unwrap() == body);
    }
    drop(client);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_one_byte_too_long_fails_at_the_client_with_both_lengths_and_nothing_is_sent() {
    for max in [100, PART_LEN, MAX, 5 * MIB] {
        let harness = serve(|builder| builder.max_message(max as u32)).plain("it counts bytes");
        let client = harness.client();
        // Before the server has said what it takes, and after.
        for _ in 0..2 {
            let error = client.call_bytes(method::BYTES, Bytes::from(vec![7; max + 1])).await.unwrap_err();
            let CallError::RequestTooLarge { len, max: limit, .. } = error else { panic!("{error:?}") };
            assert_eq!((len, limit, error.executed()), (max as u64 + 1, max as u64, Executed::Never));
            let error = client.call::<_, String>(method::ECHO, (text(max + 1),)).await.unwrap_err();
            assert!(matches!(error, CallError::RequestTooLarge { len, .. } if len == max as u64 + 1), "{error:?}");
            assert_eq!(harness.snapshot().calls.acquired, 0);
        }
        assert_eq!(client.call::<_, u64>(method::NONCE, (1_u64, 0_u32)).await.unwrap(), 1);
        assert_eq!((harness.network.attempts(), harness.probe.started()), (1, 1));
        drop(client);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_one_byte_too_long_fails_at_the_server_with_both_lengths_and_the_connection_goes_on() {
    for max in [100, PART_LEN, MAX, 5 * MIB] {
        let harness = serve(huge);
        let client = harness.client_builder().max_message(max as u32).build();
        let others = [(); 3].map(|()| tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,))));
        harness.until_running(3).await;
        for method in [method::LARGE, method::LARGE_SPAWNED] {
            let len = text(max).len() as u32;
            let fits = client.call::<_, String>(method, (len,)).await.unwrap();
            assert_eq!(fits.len(), len as usize);
            let error = client.call::<_, String>(method, (len + 1,)).await.unwrap_err();
            assert_eq!((error.code(), error.executed()), (StatusCode::ResourceExhausted, Executed::Finished));
            let message = error.status().unwrap().message();
            let (len, max) = ((max + 1).to_string(), max.to_string());
            assert!(message.contains(&len) && message.contains(&max), "{message}");
        }
        for method in [method::BYTES, method::BYTES_SPAWNED] {
            let error = client.call_bytes(method, Bytes::from(vec![7; max + 1])).await.unwrap_err();
            assert_eq!((error.code(), error.executed()), (StatusCode::ResourceExhausted, Executed::Finished));
        }
        harness.probe.open_gate();
        for other in others {
            assert_eq!(other.await.unwrap().unwrap(), 7);
        }
        assert_eq!(harness.network.attempts(), 1);
        drop(client);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_too_long_that_is_sent_all_the_same_is_refused_and_its_parts_are_ignored() {
    let harness = serve(|builder| builder.max_message(MAX as u32));
    let mut wire = wire(&harness, 64 * KIB).await;
    for (id, len) in [(1, MAX + 1), (2, u32::MAX as usize)] {
        wire.send(&opening(untouched(id, method::BYTES), len, &[7; 10])).await;
        for _ in 0..4 {
            wire.send(&part(id, &[7; PART_LEN], true)).await;
        }
        let figures = [("max_len", MAX.to_string()), ("len", len.to_string())];
        let status = status_of(&wire.piece().await);
        assert_refused(&status, StatusCode::ResourceExhausted, "MESSAGE_TOO_LARGE", &figures);
        assert_eq!(harness.snapshot().body_bytes, 0);
    }
    is_alive(&mut wire, 3).await;
    assert_eq!(harness.snapshot().frames_ignored, 8);
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn parts_are_as_long_as_frames_and_others_allow() {
    for (max_frame, longest) in [(8 * KIB, 8 * KIB - 12), (20_000, 20_000 - 12), (MIB, PART_LEN)] {
        let harness = serve(|builder| builder);
        let mut wire = Pieces::from(harness.peer_through(64 * KIB));
        wire.send(&hello_with(|hello| (hello.max_frame, hello.max_message) = (max_frame as u32, u32::MAX))).await;
        wire.piece().await;
        wire.send(&Req::new(1, method::LARGE, (300_000_u32,)).bytes()).await;
        let first = wire.piece().await;
        assert!(first.more && first.body_len() == 300_005);
        let mut left = first.body_len() - first.body.len();
        assert_eq!(first.body.len(), longest.min(max_frame - 12 - first.head.len()));
        while left > 0 {
            let piece = wire.piece().await;
            assert_eq!((piece.kind, piece.body.len()), (CONT, left.min(longest)));
            left -= piece.body.len();
            assert_eq!((piece.more, piece.head.len()), (left > 0, 0));
        }
        is_alive(&mut wire, 2).await;
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn parts_of_any_lengths_make_one_body() {
    let harness = serve(|builder| builder);
    let mut wire = wire(&harness, 64 * KIB).await;
    let body = bytes(200_000);
    let mut id = 0;
    for first in [0, 1, 4_095, PART_LEN] {
        for len in [4_096, 5_000, PART_LEN, 150_000, 200_000] {
            for method in [method::BYTES, method::BYTES_SPAWNED] {
                id += 1;
                wire.send(&frames(|| untouched(id, method), id, &body, first, len).concat()).await;
                let piece = wire.piece().await;
                assert!(wire.whole(piece).await == body, "first {first}, others {len}");
            }
        }
    }
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_gives_the_same_answers_however_its_bytes_are_split() {
    let (long, middle) = (bytes(70_000), bytes(20_000));
    let [mut first, mut second] = [(1, &long, 100), (2, &middle, 0)]
        .map(|(id, body, first)| frames(|| untouched(id, method::BYTES), id, body, first, 9_000).into_iter());
    let mut session = vec![first.next().unwrap(), second.next().unwrap()];
    session.push(Req::new(3, method::ECHO, ("short",)).bytes());
    // Both bodies by turns, one that is given up, one that is refused, one with too much.
    session.push(opening(untouched(4, method::BYTES), 50_000, &[4; 10]));
    session.push(opening(untouched(5, method::BYTES), u32::MAX as usize, &[5; 10]));
    session.push(opening(untouched(6, method::BYTES), 5_000, &[6; 10]));
    session.push(part(6, &[6; 5_000], false));
    session.push(part(4, &[4; 5_000], true));
    session.push(part(5, &[5; 5_000], true));
    session.push(cancel(4));
    session.push(part(4, &[4; 5_000], true));
    for frame in first {
        session.push(frame);
        session.extend(second.next());
    }
    session.push(Req::new(7, method::LARGE, (66_000_u32,)).bytes());
    let session = session.concat();
    let mut splits = Random::seeded(7);
    for round in 0..6_usize {
        let harness = serve(|builder| builder);
        let mut wire = wire(&harness, 512 * KIB).await;
        let mut rest = &session[..];
        while !rest.is_empty() {
            let len = match round {
                0 => rest.len(),
                1 => 1,
                _ => 1 + splits.below(10_u64.pow(round as u32 - 1)) as usize,
            };
            let (now, later) = rest.split_at(len.min(rest.len()));
            wire.send(now).await;
            yield_now().await;
            rest = later;
        }
        let mut answers = HashMap::new();
        let mut left = 6;
        while left > 0 {
            let piece = wire.piece().await;
            left -= usize::from(!piece.more);
            match answers.entry(piece.id.sequence()) {
                Entry::Vacant(answer) => {
                    answer.insert(piece);
                }
                Entry::Occupied(mut answer) => answer.get_mut().body.extend(piece.body),
            }
        }
        assert!(answers[&1].body == long && answers[&2].body == middle && answers[&3].body == encoded("short"));
        assert_refused(&status_of(&answers[&5]), StatusCode::ResourceExhausted, "MESSAGE_TOO_LARGE", &[]);
        assert_refused(&status_of(&answers[&6]), StatusCode::InvalidArgument, "MALFORMED_REQUEST", &[]);
        assert_eq!(answers[&7].body, encoded(text(66_005)));
        assert_eq!(harness.snapshot().frames_ignored, 2, "round {round}");
        drop(wire);
        assert_idle(&harness).await;
    }
}

// Others pass.

#[tokio::test(start_paused = true)]
async fn a_short_answer_waits_for_little_of_a_long_reply() {
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let harness = serve_huge().plain("it counts bytes");
        let mut wire = wire(&harness, NARROW).await;
        let len = 64 * MIB;
        wire.send(&Req::new(1, method, (len as u32,)).bytes()).await;
        let first = wire.piece().await;
        let (mut left, mut most) = (first.body_len() - first.body.len(), 0);
        for id in 2..300 {
            wire.send(&Req::new(id, method::ECHO, ("short",)).bytes()).await;
            let (answer, before) = wire.up_to(|piece| piece.kind == RESPONSE).await;
            assert_eq!(answer.id, CallId::new(id, 0));
            most = most.max(before);
            left -= before - before.div_ceil(PART_LEN + 16) * 16;
        }
        assert!(most <= MAX_AHEAD, "{most} bytes of the long reply came first");
        assert!(left > 0, "the long reply is still under way");
        while left > 0 {
            let piece = wire.piece().await;
            left -= piece.body.len();
            assert_eq!(piece.more, left > 0);
        }
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn long_replies_take_turns() {
    let harness = serve_huge().plain("it counts bytes");
    let mut wire = wire(&harness, NARROW).await;
    for id in 1..=3 {
        wire.send(&Req::new(id, method::LARGE, (4 * MIB as u32,)).bytes()).await;
    }
    let mut got = [0_usize; 4];
    loop {
        let piece = wire.piece().await;
        got[piece.id.sequence() as usize] += piece.body.len();
        if piece.kind == CONT && !piece.more {
            break;
        }
    }
    assert!(got[1..].iter().all(|&got| got + 4 * PART_LEN >= 4 * MIB), "{got:?}");
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_short_request_waits_for_little_of_a_long_one() {
    let (client, _servers, mut wire) = scripted(NARROW, |builder| builder).await;
    let body = Bytes::from(vec![7; 64 * MIB]);
    let long = tokio::spawn(client.call_bytes(method::BYTES, body));
    let first = wire.piece().await;
    assert!(first.kind == REQUEST && first.body_len() == 64 * MIB);
    let mut most = 0;
    for n in 0..200_u64 {
        let short = tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 0_u32)));
        yield_now().await;
        let (request, before) = wire.up_to(|piece| piece.kind == REQUEST).await;
        most = most.max(before);
        wire.send(&response(request.id, &n)).await;
        assert_eq!(short.await.unwrap().unwrap(), n);
    }
    assert!(most <= MAX_AHEAD, "{most} bytes of the long request came first");
    wire.up_to(|piece| piece.kind == CONT && !piece.more).await;
    wire.send(&response_opening(first.id, 3, b"al")).await;
    wire.send(&response_part(first.id, b"l", false)).await;
    assert_eq!(long.await.unwrap().unwrap(), "all");
}

#[tokio::test(start_paused = true)]
async fn short_calls_are_answered_while_a_long_request_is_under_way() {
    let harness = serve_huge();
    let mut wire = wire(&harness, 64 * KIB).await;
    let body = vec![7; 64 * MIB];
    for (n, frame) in frames(|| untouched(1, method::BYTES), 1, &body, 0, PART_LEN).iter().enumerate() {
        if n % 64 == 1 {
            is_alive(&mut wire, n as u64 + 1).await;
        }
        wire.send(frame).await;
    }
    let piece = wire.piece().await;
    assert!(wire.whole(piece).await == body);
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_calls_over_a_socket_hardly_feel_a_long_body_beside_them() {
    let harness = Harness::with(huge).plain("it measures");
    let sockets = harness.sockets().await;
    let client = sockets.client_builder().max_message(65 * MIB as u32).build();
    short_calls(&client, 200, || false).await;
    let solo = short_calls(&client, 2_000, || false).await;
    let reply = client.call::<_, String>(method::LARGE, (64 * MIB as u32,));
    let beside_reply = beside(&client, async move { reply.await.unwrap().len() }).await;
    let request = client.call_bytes(method::BYTES, Bytes::from(vec![7; 64 * MIB]));
    let beside_request = beside(&client, async move { request.await.unwrap().len() }).await;
    // As loose as a machine with other work needs.
    let most = 20 * solo.max(1_000);
    assert!(beside_reply < most && beside_request < most, "{solo}, {beside_reply}, {beside_request} us");
    drop(client);
    sockets.shut_down().await;
    assert_idle_soon(&harness.handle).await;
}

/// The p99 of short calls while `long` goes on, in microseconds.
async fn beside(client: &Client, long: impl Future<Output = usize> + Send + 'static) -> u64 {
    let long = tokio::spawn(long);
    let p99 = short_calls(client, 1_000_000, || long.is_finished()).await;
    assert!(within(long).await.unwrap() >= 64 * MIB);
    p99
}

async fn short_calls(client: &Client, calls: usize, enough: impl Fn() -> bool) -> u64 {
    let mut times = Histogram::<u64>::new(3).unwrap();
    for _ in 0..calls {
        let began = std::time::Instant::now();
        let reply = client.call::<_, String>(method::ECHO, ("x".repeat(KIB),)).await;
        assert_eq!(reply.unwrap().len(), KIB);
        times.saturating_record(began.elapsed().as_micros() as u64);
        if enough() {
            break;
        }
    }
    times.value_at_quantile(0.99)
}

#[tokio::test(start_paused = true)]
async fn long_calls_both_ways_through_a_narrow_pipe_end() {
    // Both ends want to write more than the pipe takes, and the server is above its mark.
    for pipe in [100, 1_000, 16 * KIB] {
        let harness = serve(|builder| builder.write_high_water(1_000)).plain("megabytes go by");
        let client = harness.client_through(pipe).build();
        let calls = (0..20_usize).map(|n| {
            let body = Bytes::from(vec![n as u8; 150_000]);
            let call = client.call_bytes(if n % 2 == 0 { method::BYTES } else { method::BYTES_SPAWNED }, body.clone());
            async move { (call.await, body) }
        });
        for (reply, body) in within(join_all(calls)).await {
            assert!(reply.unwrap() == body);
        }
        drop(client);
        assert_idle(&harness).await;
    }
}

// Permits: until the last byte has been written.

const REPLY: usize = 4 * MIB;

#[tokio::test(start_paused = true)]
async fn the_permit_of_a_long_reply_is_held_until_its_last_byte_is_written() {
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let harness = serve_huge().plain("it counts bytes");
        let mut wire = wire(&harness, NARROW).await;
        wire.send(&Req::new(1, method, (REPLY as u32,)).bytes()).await;
        let piece = wire.piece().await;
        let mut left = piece.body_len() - piece.body.len();
        while left > 0 {
            sleep(SECOND).await;
            assert_eq!(harness.snapshot().calls.held, u64::from(left > NARROW), "{left} bytes are left to be read");
            let (piece, _) = wire.up_to(|piece| piece.kind == CONT).await;
            left -= piece.body.len();
        }
        sleep(10 * MS).await;
        until_given_back(&harness).await;
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_read_a_long_reply_is_cut_at_the_write_timeout() {
    for read in [0, 1, 50_000, 3_000_000] {
        let harness = serve_huge();
        let mut wire = wire(&harness, NARROW).await;
        wire.send(&Req::new(1, method::LARGE, (REPLY as u32,)).bytes()).await;
        let mut buffer = vec![0; read];
        sleep(SECOND).await;
        wire.io.read_exact(&mut buffer).await.unwrap();
        yield_now().await;
        let began = Instant::now();
        let least = if read == 0 { 29 * SECOND } else { 30 * SECOND };
        sleep(least - 10 * MS).await;
        let still = harness.snapshot();
        assert_eq!((still.connections, still.calls.held), (1, 1), "{read} bytes were read");
        harness.until("it is cut", |harness| harness.snapshot().connections == 0).await;
        let waited = began.elapsed();
        assert!(waited >= least - 10 * MS && waited <= least + 10 * MS, "{read} bytes were read, then {waited:?}");
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_goes_in_the_middle_of_a_long_reply_leaves_nothing() {
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let harness = serve_huge();
        let mut wire = wire(&harness, NARROW).await;
        wire.send(&Req::new(1, method, (REPLY as u32,)).bytes()).await;
        wire.up_to(|piece| piece.kind == CONT).await;
        assert_eq!(harness.snapshot().calls.held, 1);
        let began = Instant::now();
        drop(wire);
        assert_idle(&harness).await;
        assert!(began.elapsed() <= 100 * MS);
    }
}

#[tokio::test]
async fn a_socket_that_is_reset_in_the_middle_of_a_long_reply_leaves_nothing() {
    let harness = serve_huge().plain("it is the kernel that resets");
    let sockets = harness.sockets().await;
    for _ in 0..5 {
        let mut socket = TcpStream::connect(sockets.address).await.unwrap();
        let mut bytes = hello_with(|hello| hello.max_message = u32::MAX);
        bytes.extend(Req::new(1, method::LARGE, (64 * MIB as u32,)).bytes());
        socket.write_all(&bytes).await.unwrap();
        socket.read_exact(&mut vec![0; 100_000]).await.unwrap();
        assert_eq!(harness.snapshot().calls.held, 1);
        // With bytes that were not read, the kernel resets.
        drop(socket);
        assert_idle_soon(&harness.handle).await;
    }
    sockets.shut_down().await;
}

// The budget of bytes.

const LEN: usize = 600_000;
const LEN64: u64 = LEN as u64;

/// A server whose budgets take one body of [`LEN`], not two.
fn serve_budget() -> Harness {
    serve(budget)
}

fn budget(builder: ServerBuilder) -> ServerBuilder {
    builder.max_message(MIB as u32).body_budget_per_connection(MIB as u64)
}

/// A peer of which 66,536 bytes of a body of [`LEN`] have arrived.
async fn begun(harness: &Harness, request: Req) -> Pieces {
    let mut wire = wire(harness, NARROW).await;
    wire.send(&opening(request, LEN, &[7; 1_000])).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    harness.until("the body is reserved", |harness| harness.snapshot().body_bytes == LEN64).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls.held, snapshot.calls_parked), (1, 1));
    wire
}

/// Sends what [`begun`] has left.
async fn complete(wire: &mut Pieces) {
    let left = LEN - 1_000 - 2 * PART_LEN;
    let count = left.div_ceil(PART_LEN);
    for n in 1..=count {
        let len = if n < count { PART_LEN } else { left - (count - 1) * PART_LEN };
        wire.send(&part(1, &vec![7; len], n < count)).await;
    }
}

async fn answer_of_begun(wire: &mut Pieces) {
    let piece = wire.piece().await;
    assert_eq!(piece.id, CallId::new(1, 0));
    assert!(wire.whole(piece).await == vec![7; LEN]);
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_its_budget_with_the_first_part_and_a_second_that_finds_too_little_is_refused() {
    let cases: [(&str, Configure, bool); 2] = [
        ("connection bodies", budget, false),
        ("global bodies", |builder| budget(builder).body_budget(MIB as u64), true),
    ];
    for (limit, configure, elsewhere) in cases {
        let harness = serve(|builder| configure(builder).concurrency_retry_delay(70 * MS));
        let mut first = begun(&harness, untouched(1, method::BYTES)).await;
        let mut other = if elsewhere { Some(wire(&harness, NARROW).await) } else { None };
        let second = other.as_mut().unwrap_or(&mut first);
        second.send(&opening(untouched(2, method::BYTES), LEN, &[7; 10])).await;
        let status = status_of(&second.piece().await);
        let figures = [("limit", limit.to_owned()), ("max_bytes", MIB.to_string()), ("bytes", LEN.to_string())];
        assert_refused(&status, StatusCode::ResourceExhausted, "BODY_BUDGET", &figures);
        let delay = status.retry_delay().unwrap();
        assert!(delay >= 35 * MS && delay <= 140 * MS, "{delay:?}");
        assert_eq!((harness.refused(limit), harness.snapshot().body_bytes), (1, LEN64));
        // What was under way is not an error; calls without parts need no budget, and what is left
        // serves a shorter body.
        for more in [true, true, false] {
            second.send(&part(2, &[7; PART_LEN], more)).await;
        }
        is_alive(second, 3).await;
        assert_eq!(harness.snapshot().frames_ignored, 3);
        let short = vec![8; MIB - LEN];
        second.send(&frames(|| untouched(4, method::BYTES), 4, &short, 0, PART_LEN).concat()).await;
        let piece = second.piece().await;
        assert!(second.whole(piece).await == short);
        complete(&mut first).await;
        answer_of_begun(&mut first).await;
        until_given_back(&harness).await;
        assert_eq!(harness.probe.started(), 3);
        drop((first, other));
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_given_back_when_the_last_part_of_the_response_is_written() {
    for method in [method::BYTES, method::BYTES_SPAWNED] {
        let harness = serve_budget().plain("it counts bytes");
        let mut wire = begun(&harness, untouched(1, method)).await;
        complete(&mut wire).await;
        let piece = wire.piece().await;
        let mut left = piece.body_len() - piece.body.len();
        while left > NARROW {
            sleep(MS).await;
            let snapshot = harness.snapshot();
            assert_eq!((snapshot.body_bytes, snapshot.calls.held), (LEN64, 1), "{left} bytes are left");
            left -= wire.piece().await.body.len();
        }
        until_given_back(&harness).await;
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_in_the_middle_of_its_request_gives_everything_back() {
    let harness = serve_budget();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    wire.send(&cancel(1)).await;
    until_given_back(&harness).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    wire.send(&part(1, &[7; 10], false)).await;
    is_alive(&mut wire, 2).await;
    assert_eq!((harness.snapshot().frames_ignored, harness.probe.started()), (2, 1));
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_reply_is_not_sent_to_a_caller_who_has_cancelled() {
    for method in [method::BYTES, method::BYTES_SPAWNED] {
        let harness = serve_budget().plain("it counts bytes");
        let mut wire = begun(&harness, untouched(1, method)).await;
        complete(&mut wire).await;
        assert!(wire.piece().await.more);
        wire.send(&cancel(1)).await;
        until_given_back(&harness).await;
        wire.send(&frame(PING, 0, 0, &[1; 8], &[])).await;
        let (_, before) = wire.up_to(|piece| piece.kind == PONG).await;
        assert!(before <= MAX_AHEAD, "{before} bytes came after the CANCEL");
        assert!(wire.is_silent_for(100 * SECOND).await);
        is_alive(&mut wire, 2).await;
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_in_the_middle_of_the_request_ends_the_call_unexecuted() {
    let harness = serve_budget();
    let began = Instant::now();
    let mut wire = begun(&harness, untouched(1, method::BYTES).timeout(2 * SECOND)).await;
    let status = status_of(&wire.piece().await);
    assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Never));
    let waited = began.elapsed();
    assert!(waited >= 2 * SECOND && waited <= 2 * SECOND + 20 * MS, "{waited:?}");
    until_given_back(&harness).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    is_alive(&mut wire, 2).await;
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_in_the_middle_of_a_request_gives_everything_back() {
    for ended in [false, true] {
        let harness = serve_budget();
        let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
        if ended {
            wire.io.shutdown().await.unwrap();
            assert!(wire.next().await.is_none());
        }
        drop(wire);
        assert_idle(&harness).await;
        assert_eq!(harness.probe.started(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_stream_behind_a_go_away_refuses_bodies_that_are_not_complete() {
    let harness = serve_budget();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    wire.send(&Req::new(2, method::SLEEP, (3_000_u64,)).bytes()).await;
    let mut farewell = Vec::new();
    encode_go_away(&mut farewell, CallId::CONNECTION, GoAwayReason::Drain, "bye");
    wire.send(&farewell).await;
    // GOAWAY alone ends nothing.
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    assert!(wire.is_silent_for(SECOND).await);
    wire.io.shutdown().await.unwrap();
    let status = status_of(&wire.piece().await);
    assert_refused(&status, StatusCode::InvalidArgument, "MALFORMED_REQUEST", &[]);
    let others = wire.rest().await;
    assert!(matches!(&others[..], [piece] if piece.id == CallId::new(2, 0)), "{others:?}");
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_call_is_finished_by_a_server_that_drains() {
    let harness = serve_budget();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    harness.handle.shutdown();
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    // One behind the GOAWAY is ignored with all its parts.
    wire.send(&opening(untouched(2, method::BYTES), LEN, &[7; 10])).await;
    wire.send(&part(2, &[7; PART_LEN], true)).await;
    complete(&mut wire).await;
    answer_of_begun(&mut wire).await;
    assert!(wire.next().await.is_none());
    drop(wire);
    assert_idle(&harness).await;
    assert_eq!(harness.probe.started(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_complete_at_the_end_of_a_drain_is_cut_off_unexecuted() {
    let harness = serve(|builder| budget(builder).drain_grace(5 * SECOND));
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    let handle = harness.handle.clone();
    let draining = tokio::spawn(async move { handle.drain().await });
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    let status = status_of(&wire.piece().await);
    assert_eq!((status.code(), status.executed()), (StatusCode::Unavailable, Executed::Never));
    drop(wire);
    let cut = draining.await.unwrap();
    assert!(format!("{cut:?}").contains("started: false"), "{cut:?}");
    assert_idle(&harness).await;
}

#[sluicegate::service]
trait Odd {
    async fn explode(&self, text: String) -> Result<usize, Status>;
    async fn explode_later(&self, text: String) -> Result<usize, Status>;
    async fn block(&self, ms: u64) -> Result<(), Status>;
}

struct OddOne;

impl Odd for OddOne {
    async fn explode(&self, text: String) -> Result<usize, Status> {
        assert!(text.is_empty(), "too long for it");
        Ok(0)
    }

    async fn explode_later(&self, text: String) -> Result<usize, Status> {
        yield_now().await;
        assert!(text.is_empty(), "too long for it");
        Ok(0)
    }

    /// Keeps the thread for so long, in virtual time.
    async fn block(&self, ms: u64) -> Result<(), Status> {
        let mut advance = pin!(tokio::time::advance(Duration::from_millis(ms)));
        let _ = poll!(&mut advance);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_panics_on_a_long_body_gives_everything_back() {
    let harness = serve(|builder| budget(builder).service(OddServer::new(OddOne)));
    let mut wire = wire(&harness, NARROW).await;
    let body = encoded((text(LEN),));
    for (id, name) in (1..).zip(["explode", "explode_later"]) {
        let request = || Req::new(id, Method::new("Odd", name), ());
        wire.send(&frames(request, id, &body, 10, PART_LEN).concat()).await;
        let status = status_of(&wire.piece().await);
        assert_eq!((status.code(), status.executed()), (StatusCode::Internal, Executed::Maybe));
        until_given_back(&harness).await;
    }
    assert_eq!(harness.snapshot().panics, 2);
    is_alive(&mut wire, 3).await;
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn arguments_of_many_parts_that_cannot_be_decoded_give_everything_back() {
    let harness = serve_budget();
    let mut wire = wire(&harness, NARROW).await;
    for (id, method) in (1..).zip([method::ECHO, method::ECHO_SPAWNED]) {
        wire.send(&frames(|| Req::new(id, method, ()), id, &[0xff; LEN], 0, PART_LEN).concat()).await;
        let status = status_of(&wire.piece().await);
        assert_eq!((status.code(), status.executed()), (StatusCode::InvalidArgument, Executed::Never));
        until_given_back(&harness).await;
    }
    drop(wire);
    assert_idle(&harness).await;
}

/// What a handler waits for, and what it then decides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    None,
    Pass,
    Refuse,
}

/// A server with a handler that makes calls of 'bytes' wait for a verdict.
fn serve_judged() -> (Harness, watch::Sender<Verdict>) {
    let (verdict, _) = watch::channel(Verdict::None);
    let sender = verdict.clone();
    let harness = with_handler(move || {
        let verdict = verdict.clone();
        Deciding(move |call: &mut sluicegate::server::Call<'_>| {
            if call.method().path() != "test.Probe/bytes" {
                return Decision::Pass;
            }
            let mut verdict = verdict.subscribe();
            Decision::Wait(Box::pin(async move {
                match *verdict.wait_for(|verdict| *verdict != Verdict::None).await.expect("a judge") {
                    Verdict::Refuse => Decision::Refuse(Refusal::new(RefusalReason::Draining)),
                    _ => Decision::Pass,
                }
            }))
        })
    });
    (harness.unless(Manner::OneByte, "megabytes go by"), sender)
}

#[tokio::test(start_paused = true)]
async fn parts_arrive_while_a_handler_waits() {
    for complete_first in [false, true] {
        for verdict in [Verdict::Pass, Verdict::Refuse] {
            let (harness, judge) = serve_judged();
            let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
            if complete_first {
                complete(&mut wire).await;
            }
            is_alive(&mut wire, 2).await;
            assert!(wire.is_silent_for(SECOND).await);
            judge.send_replace(verdict);
            if verdict == Verdict::Refuse {
                let status = status_of(&wire.piece().await);
                assert_refused(&status, StatusCode::Unavailable, "DRAINING", &[]);
                until_given_back(&harness).await;
            }
            if !complete_first {
                assert!(wire.is_silent_for(SECOND).await);
                complete(&mut wire).await;
            }
            if verdict == Verdict::Pass {
                answer_of_begun(&mut wire).await;
            }
            until_given_back(&harness).await;
            is_alive(&mut wire, 3).await;
            drop(wire);
            assert_idle(&harness).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_ends_with_its_call_while_a_handler_waits() {
    // Cancelled, malformed, lost, too slow.
    for how in 0..4 {
        let (harness, _judge) = serve_judged();
        let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
        match how {
            0 => wire.send(&cancel(1)).await,
            1 => {
                wire.send(&part(1, &vec![7; 100_000], false)).await;
                let status = status_of(&wire.piece().await);
                assert_refused(&status, StatusCode::InvalidArgument, "MALFORMED_REQUEST", &[]);
            }
            2 => wire.io.shutdown().await.unwrap(),
            _ => {
                let status = status_of(&wire.piece().await);
                assert_refused(&status, StatusCode::DeadlineExceeded, "BODY_TOO_SLOW", &[]);
            }
        }
        until_given_back(&harness).await;
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_complete_is_not_charged_for_the_time_in_which_its_handler_waits() {
    let (harness, judge) = serve_judged();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    complete(&mut wire).await;
    sleep(25 * SECOND).await;
    judge.send_replace(Verdict::Pass);
    answer_of_begun(&mut wire).await;
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_in_the_middle_of_a_long_reply_gives_everything_back() {
    let harness = serve_budget();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    complete(&mut wire).await;
    assert!(wire.piece().await.more);
    harness.handle.stop();
    // The peer reads no more; a second for it to take the rest is all it gets.
    assert_idle(&harness).await;
    drop(wire);
}

#[tokio::test(start_paused = true)]
async fn a_long_call_that_another_limit_refuses_gives_its_budget_back() {
    let harness = serve(|builder| builder.max_concurrent_calls(1));
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    for id in 2..100 {
        wire.send(&opening(untouched(id, method::BYTES), LEN, &[7; 10])).await;
        wire.send(&part(id, &[7; 5_000], true)).await;
        assert_refused(&status_of(&wire.piece().await), StatusCode::ResourceExhausted, "CONCURRENCY_LIMIT", &[]);
        assert_eq!(harness.snapshot().body_bytes, LEN64);
    }
    complete(&mut wire).await;
    answer_of_begun(&mut wire).await;
    drop(wire);
    assert_idle(&harness).await;
}

// Rules.

#[tokio::test(start_paused = true)]
async fn parts_that_do_not_add_up_cost_their_call() {
    let whole = |len: usize, first: &[u8], parts: &[(usize, bool)]| {
        let mut bytes = opening(untouched(1, method::BYTES), len, first);
        parts.iter().for_each(|&(len, more)| bytes.extend(part(1, &vec![7; len], more)));
        bytes
    };
    let cases = [
        ("one byte too much", whole(10_000, &[7; 100], &[(5_000, true), (4_901, false)])),
        ("one byte too little", whole(10_000, &[7; 100], &[(5_000, true), (4_899, false)])),
        ("complete, and more announced", whole(10_000, &[7; 100], &[(5_000, true), (4_900, true), (4_096, false)])),
        ("too much, and more announced", whole(10_000, &[7; 100], &[(20_000, true), (4_096, true)])),
        ("nothing more", whole(10_000, &[7; 100], &[(0, false)])),
        ("complete in the REQUEST", whole(100, &[7; 100], &[(4_096, true), (10, false)])),
        ("too much in the REQUEST", whole(50, &[7; 100], &[(0, false)])),
        ("an empty body that goes on", whole(0, &[], &[(0, false)])),
    ];
    for (what, bytes) in cases {
        let harness = serve(|builder| builder);
        let mut wire = wire(&harness, 64 * KIB).await;
        wire.send(&bytes).await;
        let status = status_of(&wire.piece().await);
        assert_refused(&status, StatusCode::InvalidArgument, "MALFORMED_REQUEST", &[]);
        until_given_back(&harness).await;
        is_alive(&mut wire, 2).await;
        assert_eq!((harness.refused("MALFORMED_REQUEST"), harness.probe.started()), (1, 1), "{what}");
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn parts_that_nobody_can_place_break_the_connection() {
    let nonce = encoded((u64::MAX,));
    let (head, tail) = nonce.split_at(4);
    let running = |method| {
        [opening(Req::new(1, method, ()), nonce.len(), head), part(1, tail, false), part(1, b"more", false)].concat()
    };
    let short =
        |len: usize| [opening(untouched(1, method::BYTES), 100_000, &[]), part(1, &vec![7; len], true)].concat();
    let in_frame = Req::new(1, method::GATE, (1_u64,)).bytes();
    let cases = [
        ("a part too short that is not the last", short(4_095), "too short"),
        ("an empty part that is not the last", short(0), "too short"),
        ("a part behind the last while the call runs", running(method::GATE), "after its last part"),
        ("the same of a task", running(method::GATE_SPAWNED), "after its last part"),
        ("a part of a body in a frame", [in_frame, part(1, b"more", false)].concat(), "after its last part"),
        ("a part of what never was", part(77, b"part", false), "CONT"),
        ("a part ahead of its call", [part(2, b"part", false), short(5_000)].concat(), "CONT"),
    ];
    for (what, bytes, names) in cases {
        let harness = serve(|builder| builder);
        let mut peer = harness.peer().await;
        peer.send(&bytes).await;
        let (_, reason, message) = peer.go_away().await;
        assert_eq!(reason, GoAwayReason::ProtocolError, "{what}");
        assert!(message.contains(names), "{what}: {message}");
        assert!(matches!(peer.next().await, Got::End), "{what}");
        drop(peer);
        assert_idle(&harness).await;
        assert_eq!(harness.snapshot().protocol_errors, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_behind_the_last_while_a_handler_waits_breaks_the_connection() {
    let (harness, _judge) = serve_judged();
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    complete(&mut wire).await;
    wire.send(&part(1, b"more", false)).await;
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_in_the_middle_of_a_reply_sends_no_more_of_it() {
    let harness = serve_huge().plain("it counts bytes");
    let mut wire = wire(&harness, NARROW).await;
    wire.send(&Req::new(1, method::LARGE, (REPLY as u32,)).bytes()).await;
    assert!(wire.piece().await.more);
    wire.send(&part(77, b"part", false)).await;
    let (_, before) = wire.up_to(|piece| piece.kind == GO_AWAY).await;
    assert!(before <= MAX_AHEAD, "{before} bytes");
    assert!(wire.next().await.is_none());
    drop(wire);
    assert_idle(&harness).await;
}

// Slow bodies.

fn assert_too_slow(status: &Status, received: usize) {
    let figures = [("min_bytes_per_second", "16384".to_owned()), ("bytes", received.to_string())];
    assert_refused(status, StatusCode::DeadlineExceeded, "BODY_TOO_SLOW", &figures);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_falls_behind_its_rate_is_refused_when_the_grace_is_over_and_not_before() {
    // What has come when, in bytes and milliseconds; and when it is too late.
    let cases: [(&[(u64, usize)], u64); 4] = [
        (&[], 10_000),
        (&[(5_000, 16_384)], 11_000),
        (&[(9_999, 32_768)], 12_000),
        (&[(0, 8_192), (1_000, 8_192), (10_500, 4_096)], 11_250),
    ];
    for (parts, due) in cases {
        let harness = serve(|builder| builder);
        let mut wire = wire(&harness, 64 * KIB).await;
        let began = Instant::now();
        wire.send(&opening(untouched(1, method::BYTES), LEN, &[7; 1_000])).await;
        for &(at, len) in parts {
            tokio::time::sleep_until(began + Duration::from_millis(at)).await;
            wire.send(&part(1, &vec![7; len], true)).await;
        }
        let status = status_of(&wire.piece().await);
        let (waited, due) = (began.elapsed(), Duration::from_millis(due));
        assert!(waited >= due && waited <= due + 5 * MS, "{parts:?}: {waited:?}");
        assert_too_slow(&status, 1_000 + parts.iter().map(|(_, len)| len).sum::<usize>());
        until_given_back(&harness).await;
        wire.send(&part(1, &[7; PART_LEN], false)).await;
        is_alive(&mut wire, 2).await;
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_at_its_rate_arrives_however_long_it_takes() {
    let harness = serve(|builder| builder);
    let mut wire = wire(&harness, 64 * KIB).await;
    let body = bytes(MIB);
    for frame in frames(|| untouched(1, method::BYTES), 1, &body, 0, 4_096) {
        wire.send(&frame).await;
        sleep(250 * MS).await;
    }
    let piece = wire.piece().await;
    assert!(wire.whole(piece).await == body);
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_rate_a_body_may_take_for_ever() {
    let harness = serve(|builder| builder.min_body_rate(None));
    let mut wire = begun(&harness, untouched(1, method::BYTES)).await;
    for _ in 0..100 {
        assert!(wire.is_silent_for(100 * SECOND).await);
    }
    complete(&mut wire).await;
    answer_of_begun(&mut wire).await;
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_is_not_charged_for_the_time_in_which_the_server_does_not_read() {
    let harness = serve(|builder| builder.write_high_water(1).write_timeout(1_000 * SECOND)).plain("it times");
    let mut wire = wire(&harness, NARROW).await;
    wire.send(&opening(untouched(1, method::BYTES), LEN, &[7; 1_000])).await;
    sleep(9 * SECOND).await;
    wire.send(&Req::new(2, method::LARGE, (200_000_u32,)).bytes()).await;
    sleep(100 * SECOND).await;
    assert_eq!(harness.snapshot().body_bytes, LEN64);
    let piece = wire.piece().await;
    assert_eq!(piece.id, CallId::new(2, 0));
    wire.whole(piece).await;
    // The server reads again from now on.
    let began = Instant::now();
    assert_too_slow(&status_of(&wire.piece().await), 1_000);
    let waited = began.elapsed();
    assert!(waited >= 10 * SECOND && waited <= 10 * SECOND + 5 * MS, "{waited:?}");
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn what_has_arrived_while_the_server_was_busy_counts() {
    let harness = serve(|builder| builder.service(OddServer::new(OddOne))).plain("it counts on one turn to read all");
    let mut wire = wire(&harness, 256 * KIB).await;
    wire.send(&opening(untouched(1, method::BYTES), LEN, &[7; 1_000])).await;
    // It blocks for longer than the grace, and the next parts come with it.
    let mut bytes = Req::new(2, Method::new("Odd", "block"), (12_000_u64,)).bytes();
    for _ in 0..4 {
        bytes.extend(part(1, &[7; PART_LEN], true));
    }
    wire.send(&bytes).await;
    assert_eq!(wire.piece().await.id, CallId::new(2, 0));
    is_alive(&mut wire, 3).await;
    let mut left = LEN - 1_000 - 4 * PART_LEN;
    while left > 0 {
        let len = left.min(PART_LEN);
        left -= len;
        wire.send(&part(1, &[7; PART_LEN][..len], left > 0)).await;
    }
    answer_of_begun(&mut wire).await;
    drop(wire);
    assert_idle(&harness).await;
}

// Memory.

/// Counts the bytes that each thread has allocated and not given back.
struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends may free after its counter is gone.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: it hands everything to the system's allocator and only counts beside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(len as i64 - layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, len) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[tokio::test(start_paused = true)]
async fn memory_grows_with_what_a_client_has_sent_and_not_with_what_it_claims() {
    const PEERS: usize = 1_000;
    let frame_len = 256 * KIB as u32;
    let body = opening(untouched(1, method::BYTES), 4 * MIB, &[7; 10]);
    let framed = [&frame_len.to_be_bytes()[..], &body[4..]].concat();
    let parted = [&body[..], &frame_len.to_be_bytes()[..], &part(1, &[7; 100], true)[4..]].concat();
    for (what, bytes) in [("a frame", framed), ("a body", body), ("a part", parted)] {
        let harness = serve(|builder| builder.body_budget(u64::MAX / 2));
        let mut peers = Vec::with_capacity(PEERS);
        // What all connections share is there.
        peers.push(wire(&harness, 4 * KIB).await);
        let before = LIVE.get();
        for _ in 0..PEERS {
            let mut peer = wire(&harness, 4 * KIB).await;
            peer.send(&bytes).await;
            peers.push(peer);
        }
        sleep(SECOND).await;
        let each = (LIVE.get() - before) / PEERS as i64;
        assert!(each <= 16 * KIB as i64, "{what}: {each} bytes for each connection, both ends and the pipe");
        assert_eq!(harness.snapshot().connections, PEERS as u64 + 1);
        drop(peers);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn memory_grows_with_what_a_server_has_sent_and_not_with_what_it_claims() {
    let (client, _servers, mut wire) = scripted(64 * KIB, |builder| builder.max_message(u32::MAX)).await;
    let call = tokio::spawn(client.call_bytes(method::BYTES, Bytes::new()));
    let id = wire.piece().await.id;
    sleep(SECOND).await;
    let before = LIVE.get();
    wire.send(&response_opening(id, u32::MAX as usize, &[7; 100])).await;
    sleep(SECOND).await;
    let grown = LIVE.get() - before;
    assert!(grown <= 16 * KIB as i64, "{grown} bytes");
    wire.send(&response_part(id, &[7; 8 * KIB], true)).await;
    sleep(SECOND).await;
    let grown = LIVE.get() - before;
    assert!(grown <= 64 * KIB as i64, "{grown} bytes");
    drop(wire);
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.executed(), Executed::Maybe);
}

#[tokio::test(start_paused = true)]
async fn peers_that_never_read_hold_little_and_are_cut() {
    const PEERS: u64 = 200;
    const MARK: u64 = 256 * 1024;
    let harness = serve(|builder| builder.max_concurrent_calls_per_connection(64));
    let requests: Vec<_> = (1..=64).map(|id| Req::new(id, method::LARGE, (64 * KIB as u32,)).bytes()).collect();
    let requests = requests.concat();
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let mut peer = wire(&harness, 8 * KIB).await;
        peer.send(&requests).await;
        peers.push(peer);
        yield_now().await;
        let buffered = harness.snapshot().buffered_bytes;
        assert!(buffered <= peers.len() as u64 * (MARK + 64 * 1024 + PART_LEN as u64), "{buffered} of {}", peers.len());
    }
    sleep(29 * SECOND).await;
    let snapshot = harness.snapshot();
    assert_eq!(snapshot.connections, PEERS);
    assert!(snapshot.buffered_bytes >= PEERS * MARK / 2, "{snapshot:#?}");
    let mut polite = wire(&harness, 8 * KIB).await;
    is_alive(&mut polite, 1).await;
    sleep(2 * SECOND).await;
    assert_eq!(harness.snapshot().connections, 1, "all the others are cut");
    is_alive(&mut polite, 2).await;
    drop((polite, peers));
    assert_idle(&harness).await;
}

// The client.

/// A client that has a connection, and the server's end of that.
async fn scripted(
    pipe: usize,
    configure: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> (Client, UnboundedReceiver<RawServer>, Pieces) {
    let (builder, mut servers) = scripted_with(Manner::plain("it counts bytes"), pipe);
    let client = configure(builder).build();
    let first = tokio::spawn(client.call::<_, u64>(method::NONCE, (0_u64, 0_u32)));
    let mut wire = greet(&mut servers).await;
    let id = wire.piece().await.id;
    wire.send(&response(id, &0_u64)).await;
    assert_eq!(first.await.unwrap().unwrap(), 0);
    (client, servers, wire)
}

/// The next connection, hands shaken, of a server that takes bodies of any length.
async fn greet(servers: &mut UnboundedReceiver<RawServer>) -> Pieces {
    let mut wire = Pieces::from(servers.recv().await.unwrap());
    assert_eq!(wire.piece().await.id, CallId::CONNECTION, "the client's HELLO");
    wire.send(&hello_with(|hello| hello.max_message = u32::MAX)).await;
    wire
}

/// A long request of which three parts have been read.
async fn uploading(client: &Client, wire: &mut Pieces) -> (JoinHandle<Result<Bytes, CallError>>, CallId) {
    let call = tokio::spawn(client.call_bytes(method::BYTES, Bytes::from(vec![7; 8 * MIB])));
    let first = wire.piece().await;
    assert!(first.kind == REQUEST && first.more);
    for _ in 0..2 {
        assert!(wire.piece().await.more);
    }
    (call, first.id)
}

/// The next call is answered, and of call `id` no more than `most` bytes come first; how many did.
async fn next_call_is_fine(client: &Client, wire: &mut Pieces, id: CallId, most: usize) -> CallId {
    let next = tokio::spawn(client.call::<_, u64>(method::NONCE, (5_u64, 0_u32)));
    let (request, before) = wire.up_to(|piece| piece.kind == REQUEST).await;
    assert!(before <= most, "{before} bytes of call {id} came first");
    wire.send(&response(request.id, &5_u64)).await;
    assert_eq!(next.await.unwrap().unwrap(), 5);
    assert!(wire.is_silent_for(SECOND).await);
    request.id
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_the_upload_and_leaves_the_slot_to_the_next_call() {
    let refused = |id| {
        let mut bytes = Vec::new();
        encode_status(&mut bytes, id, &Status::resource_exhausted("too much"), u32::MAX).unwrap();
        bytes
    };
    let replied = |id| {
        let mut bytes = response_opening(id, 4, b"ear");
        bytes.extend(response_part(id, b"l", false));
        bytes
    };
    let too_long = |id| response_opening(id, 100 * MIB, b"x");
    let answers: [(&str, AnswerTo); 3] = [("a status", refused), ("a reply", replied), ("too long", too_long)];
    for (what, answer) in answers {
        let (client, _servers, mut wire) = scripted(NARROW, |builder| builder).await;
        let (call, id) = uploading(&client, &mut wire).await;
        wire.send(&answer(id)).await;
        let outcome = call.await.unwrap();
        assert_eq!(outcome.is_ok(), what == "a reply", "{outcome:?}");
        let next = next_call_is_fine(&client, &mut wire, id, MAX_AHEAD + NARROW).await;
        assert_eq!(next.slot(), id.slot(), "{what}");
        assert_eq!(client.snapshot().calls, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_sends_cancel_and_no_part_behind_it() {
    for expires in [false, true] {
        let (client, _servers, mut wire) = scripted(NARROW, |builder| builder).await;
        let id = if expires {
            let call = client.call_bytes(method::BYTES, Bytes::from(vec![7; 8 * MIB])).timeout(SECOND);
            let call = tokio::spawn(call);
            let id = wire.piece().await.id;
            assert_eq!(call.await.unwrap().unwrap_err().code(), StatusCode::DeadlineExceeded);
            id
        } else {
            let (call, id) = uploading(&client, &mut wire).await;
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
            id
        };
        let (cancel, before) = wire.up_to(|piece| piece.kind == CANCEL).await;
        assert!(cancel.id == id && before <= MAX_AHEAD + NARROW, "{before} bytes came first");
        next_call_is_fine(&client, &mut wire, id, 0).await;
        assert_eq!(client.snapshot().calls, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_last_part_has_not_left_was_never_executed() {
    const PIPE: usize = 1_000;
    let request = Bytes::from(bytes(200_000));
    // How long all of it is.
    let (client, _servers, mut wire) = scripted(PIPE, |builder| builder).await;
    let call = tokio::spawn(client.call_bytes(method::BYTES, request.clone()));
    let (last, before) = wire.up_to(|piece| !piece.more).await;
    let whole = before + last.wire_len();
    drop((wire, call));
    for (read, executed) in [
        (0, Executed::Never),
        (40_000, Executed::Never),
        (whole - PIPE - 1, Executed::Never),
        (whole - PIPE, Executed::Maybe),
        (whole, Executed::Maybe),
    ] {
        let (client, mut servers, mut wire) = scripted(PIPE, |builder| builder).await;
        let call = tokio::spawn(client.call_bytes(method::BYTES, request.clone()));
        wire.io.read_exact(&mut vec![0; read]).await.unwrap();
        sleep(MS).await;
        drop(wire);
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Lost { .. }), "{error:?}");
        assert_eq!(error.executed(), executed, "{read} of {whole} bytes were read");
        // The next goes by a new connection.
        let next = tokio::spawn(client.call_bytes(method::BYTES, request.clone()));
        let mut wire = greet(&mut servers).await;
        let first = wire.piece().await;
        let id = first.id;
        assert!(wire.whole(first).await == request);
        wire.send(&response_opening(id, 2, b"o")).await;
        wire.send(&response_part(id, b"k", false)).await;
        assert_eq!(next.await.unwrap().unwrap(), "ok");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_at_any_byte_of_a_long_call_fails_it_and_the_next_is_fine() {
    let harness = serve_budget().plain("it counts bytes");
    let body = Bytes::from(bytes(LEN));
    let (mut never, mut maybe) = (0, 0);
    for at in (0..2 * LEN as u64).step_by(50_001) {
        let (network, fault) = (harness.network.clone(), Mutex::new(Some(at)));
        let client = Client::with_connector("the test server", move || {
            // The first of its connections breaks in one direction or the other.
            let fault = fault.lock().unwrap().take();
            let behind =
                |at: Option<u64>| Direction { fault: at.map(|at| (at, Fault::Error(BROKEN))), ..Direction::default() };
            let reading = fault.filter(|&at| at < LEN as u64);
            let writing = fault.filter(|&at| at >= LEN as u64).map(|at| at - LEN as u64);
            let directions = [behind(reading), behind(writing)];
            let io = network.connect_as(PIPE, |io| Box::new(FailingAt::new(io, directions)));
            async { io }
        });
        let client = client.backoff(MS, 10 * MS).build();
        let call = client.call_bytes(method::BYTES, body.clone());
        match within(call).await.unwrap_err().executed() {
            Executed::Never => never += 1,
            _ => maybe += 1,
        }
        sleep(20 * MS).await;
        until_given_back(&harness).await;
        assert!(within(client.call_bytes(method::BYTES, body.clone())).await.unwrap() == body);
        drop(client);
        assert_idle(&harness).await;
    }
    assert!(never >= 10 && maybe >= 10, "{never} never, {maybe} maybe");
}

#[tokio::test(start_paused = true)]
async fn what_comes_of_a_reply_behind_its_cancel_is_dropped() {
    let (client, _servers, mut wire) = scripted(64 * KIB, |builder| builder).await;
    let call = tokio::spawn(client.call::<_, String>(method::LARGE, (200_000_u32,)));
    let id = wire.piece().await.id;
    wire.send(&response_opening(id, 200_005, &[7; 100])).await;
    wire.send(&response_part(id, &[7; PART_LEN], true)).await;
    yield_now().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    let (cancel, _) = wire.up_to(|piece| piece.kind == CANCEL).await;
    assert_eq!(cancel.id, id);
    wire.send(&response_part(id, &[7; PART_LEN], true)).await;
    let next = next_call_is_fine(&client, &mut wire, id, 0).await;
    assert_eq!(next.slot(), id.slot());
    wire.send(&response_part(id, &[7; 10], false)).await;
    next_call_is_fine(&client, &mut wire, id, 0).await;
    assert!(client.snapshot().connected);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_given_up_is_given_up_by_the_server_as_well() {
    let harness = serve_huge().plain("it counts bytes");
    let client = harness.client_builder().max_message(65 * MIB as u32).build();
    assert_eq!(client.call::<_, u64>(method::NONCE, (1_u64, 0_u32)).await.unwrap(), 1);
    for method in [method::LARGE, method::LARGE_SPAWNED] {
        let call = tokio::spawn(client.call::<_, String>(method, (64 * MIB as u32,)));
        harness.until("it is under way", |harness| harness.snapshot().buffered_bytes > MIB as u64).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        until_given_back(&harness).await;
        harness.until("nothing is left to be sent", |harness| harness.snapshot().buffered_bytes == 0).await;
        assert_eq!(client.call::<_, u64>(method::NONCE, (2_u64, 0_u32)).await.unwrap(), 2);
    }
    assert_eq!(harness.network.attempts(), 1);
    drop(client);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drains_gets_the_rest_of_what_it_accepted() {
    let (client, _servers, mut wire) = scripted(NARROW, |builder| builder).await;
    let (call, id) = uploading(&client, &mut wire).await;
    let mut bytes = Vec::new();
    encode_go_away(&mut bytes, id, GoAwayReason::Drain, "draining");
    wire.send(&bytes).await;
    wire.up_to(|piece| piece.kind == CONT && !piece.more).await;
    wire.send(&response_opening(id, 2, b"o")).await;
    wire.send(&response_part(id, b"k", false)).await;
    assert_eq!(call.await.unwrap().unwrap(), "ok");
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    assert!(wire.next().await.is_none());
}

/// A client with two calls that want a text, and the server that has read them.
async fn two_calls() -> (Client, Pieces, [JoinHandle<Result<String, CallError>>; 2], [CallId; 2]) {
    let (client, _servers, mut wire) = scripted(64 * KIB, |builder| builder).await;
    let calls = [1_u32, 2].map(|n| tokio::spawn(client.call::<_, String>(method::LARGE, (n,))));
    let ids = [wire.piece().await.id, wire.piece().await.id];
    (client, wire, calls, ids)
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_parts_nobody_can_place_fails_the_calls_that_wait() {
    let never = CallId::new(99, 0);
    let begun = |id| response_opening(id, 100_000, &[7; 10]);
    type Break = Box<dyn Fn(CallId) -> Vec<u8>>;
    let cases: [(&str, Break, &str); 8] = [
        (
            "a part too short",
            Box::new(move |id| [begun(id), response_part(id, &[7; 4_095], true)].concat()),
            "too short",
        ),
        ("a part without an answer", Box::new(|id| response_part(id, b"part", false)), "without an answer"),
        ("a long one", Box::new(|id| response_part(id, &[7; 5_000], true)), "without an answer"),
        ("two answers in parts", Box::new(move |id| [begun(id), begun(id)].concat()), "twice"),
        ("an answer behind a part", Box::new(move |id| [begun(id), response(id, &"x")].concat()), "twice"),
        ("a part for what never was", Box::new(move |_| response_part(never, b"part", false)), "never was"),
        ("a part for the connection", Box::new(|_| response_part(CallId::CONNECTION, b"part", false)), "never was"),
        ("parts of what never was", Box::new(move |_| begun(never)), "never was"),
    ];
    for (what, broken, names) in cases {
        let (client, mut wire, calls, ids) = two_calls().await;
        wire.send(&broken(ids[0])).await;
        for call in calls {
            let error = within(call).await.unwrap().unwrap_err();
            let CallError::Lost { source: LostCause::Protocol(message), executed, .. } = error else {
                panic!("{what}: {error:?}")
            };
            assert!(message.contains(names), "{what}: {message}");
            assert_eq!(executed, Executed::Maybe, "{what}");
        }
        assert_eq!(client.snapshot().calls, 0);
        assert_eq!(wire.piece().await.kind, GO_AWAY, "{what}");
        assert!(wire.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_whose_parts_do_not_add_up_costs_its_call() {
    let parts = |id: CallId, parts: &[(usize, bool)]| {
        let mut bytes = response_opening(id, 10_000, &[7; 100]);
        parts.iter().for_each(|&(len, more)| bytes.extend(response_part(id, &vec![7; len], more)));
        bytes
    };
    let cases: [(&str, &[(usize, bool)]); 4] = [
        ("one byte too much", &[(5_000, true), (4_901, false)]),
        ("one byte too little", &[(5_000, true), (4_899, false)]),
        ("complete, and more announced", &[(5_000, true), (4_900, true), (4_096, true), (4_096, false)]),
        ("too much, and more announced", &[(20_000, true), (4_096, false)]),
    ];
    for (what, lens) in cases {
        let (client, mut wire, [bad, good], ids) = two_calls().await;
        wire.send(&parts(ids[0], lens)).await;
        let error = within(bad).await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::MalformedResponse { .. }), "{what}: {error:?}");
        assert_ne!(error.executed(), Executed::Never);
        wire.send(&response(ids[1], &"good")).await;
        assert_eq!(within(good).await.unwrap().unwrap(), "good", "{what}");
        assert_eq!(client.snapshot().calls, 0);
    }
    // MORE on a body that is complete, or empty.
    for (len, first) in [(4, &b"four"[..]), (3, b"four"), (0, b"")] {
        let (client, mut wire, [bad, good], ids) = two_calls().await;
        wire.send(&response_opening(ids[0], len, first)).await;
        wire.send(&response_part(ids[0], &[7; 5_000], true)).await;
        let error = within(bad).await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::MalformedResponse { .. }), "{error:?}");
        wire.send(&response(ids[1], &"good")).await;
        assert_eq!(within(good).await.unwrap().unwrap(), "good");
        assert_eq!(client.snapshot().calls, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_says_it_is_too_long_costs_its_call_at_once() {
    for len in [4 * MIB + 1, u32::MAX as usize] {
        let (client, mut wire, [bad, good], ids) = two_calls().await;
        wire.send(&response_opening(ids[0], len, &[7; 10])).await;
        let error = within(bad).await.unwrap().unwrap_err();
        let CallError::ResponseTooLarge { len: said, max, .. } = error else { panic!("{error:?}") };
        assert_eq!((said, max, error.executed()), (len as u64, 4 * MIB as u64, Executed::Finished));
        for _ in 0..10 {
            wire.send(&response_part(ids[0], &[7; PART_LEN], true)).await;
        }
        wire.send(&response(ids[1], &"good")).await;
        assert_eq!(within(good).await.unwrap().unwrap(), "good");
        assert!(client.snapshot().connected && client.snapshot().calls == 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_goes_on_in_parts_is_an_error() {
    let (client, mut wire, [bad, good], ids) = two_calls().await;
    let mut bytes = response_opening(ids[0], 10_000, &[7; 10]);
    bytes[16] = 5;
    wire.send(&bytes).await;
    assert_eq!(within(bad).await.unwrap().unwrap_err().code(), StatusCode::NotFound);
    wire.send(&response_part(ids[0], &[7; 9_990], false)).await;
    wire.send(&response(ids[1], &"good")).await;
    assert_eq!(within(good).await.unwrap().unwrap(), "good");
    assert!(client.snapshot().connected);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_answer_ends_the_upload() {
    let (client, _servers, mut wire) = scripted(NARROW, |builder| builder).await;
    let (call, id) = uploading(&client, &mut wire).await;
    let mut bytes = frame(RESPONSE, 0, 0, &[0; 3], b"");
    rpc_codec::patch_id(&mut bytes, id);
    wire.send(&bytes).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::MalformedResponse { .. }), "{error:?}");
    next_call_is_fine(&client, &mut wire, id, MAX_AHEAD + NARROW).await;
}

#[tokio::test(start_paused = true)]
async fn a_go_away_ends_the_uploads_of_calls_that_the_server_did_not_accept() {
    for others in [false, true] {
        let (client, _servers, mut wire) = scripted(NARROW, |builder| builder).await;
        let other = tokio::spawn(client.call::<_, u64>(method::NONCE, (0_u64, 0_u32)));
        let other_id = wire.piece().await.id;
        let (call, id) = uploading(&client, &mut wire).await;
        let mut bytes = Vec::new();
        encode_go_away(&mut bytes, CallId::new(id.sequence() - 1, 0xffff), GoAwayReason::Drain, "draining");
        wire.send(&bytes).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::GoingAway { .. }), "{error:?}");
        if others {
            sleep(SECOND).await;
        }
        wire.send(&response(other_id, &1_u64)).await;
        let mut sent = 0;
        let mut said = false;
        while let Some(piece) = wire.next().await {
            said |= piece.kind == GO_AWAY;
            assert!(!said || piece.kind == GO_AWAY, "{} behind GOAWAY", piece.kind);
            sent += piece.wire_len();
        }
        assert_eq!(other.await.unwrap().unwrap(), 1);
        assert!(sent <= MAX_AHEAD + NARROW, "{sent} bytes came after the GOAWAY");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_had_begun_may_have_been_executed() {
    let (client, _servers, mut wire) = scripted(NARROW, |builder| builder).await;
    let (call, id) = uploading(&client, &mut wire).await;
    wire.send(&response_opening(id, 100_000, &[7; 10])).await;
    sleep(SECOND).await;
    drop(wire);
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.executed(), Executed::Maybe, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_busy_does_not_charge_a_body_for_it() {
    let harness = serve(|builder| builder.service(OddServer::new(OddOne)));
    let mut wire = wire(&harness, 64 * KIB).await;
    wire.send(&opening(untouched(1, method::BYTES), LEN, &[7; 1_000])).await;
    sleep(SECOND).await;
    wire.send(&Req::new(2, Method::new("Odd", "block"), (30_000_u64,)).bytes()).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    assert_eq!(wire.piece().await.id, CallId::new(2, 0));
    is_alive(&mut wire, 3).await;
    drop(wire);
    assert_idle(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_takes_a_few_bytes_now_and_then_is_not_cut() {
    for step in [1_usize, 10, 17] {
        let harness = serve_huge().plain("it counts bytes");
        let mut wire = wire(&harness, 1_000).await;
        wire.send(&Req::new(1, method::LARGE, (REPLY as u32,)).bytes()).await;
        sleep(MS).await;
        wire.io.read_exact(&mut vec![0; 1_000 * 90]).await.unwrap();
        let mut buffer = vec![0; step];
        for n in 0..(40_000 / step) {
            sleep(20 * SECOND).await;
            assert!(wire.io.read_exact(&mut buffer).await.is_ok(), "cut after {n} steps of {step}");
            assert_eq!(harness.snapshot().connections, 1, "cut after {n} steps of {step}");
        }
        drop(wire);
        assert_idle(&harness).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_or_a_cancel_of_the_connection_breaks_it() {
    for kind in [CONT, CANCEL] {
        for opened in [false, true] {
            let harness = serve(|builder| builder);
            let mut wire = wire(&harness, 64 * KIB).await;
            if opened {
                is_alive(&mut wire, 1).await;
            }
            wire.send(&frame(kind, 0, 0, &[], b"")).await;
            wire.send(&frame(PING, 0, 0, &[1; 8], &[])).await;
            let piece = wire.piece().await;
            println!("kind {kind}, opened {opened}: answered by kind {}", piece.kind);
            assert_eq!(piece.kind, GO_AWAY, "kind {kind}, opened {opened}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hello_is_let_out_by_a_transport_whose_first_flush_is_pending() {
    let harness = Harness::new();
    let io = harness.network.connect_as(PIPE, |io| Box::new(support::shims::Withholding::new(io))).unwrap();
    let mut wire = Pieces::from(support::RawClient::new(io));
    wire.send(&hello_with(|_| ())).await;
    assert_eq!(wire.piece().await.id, CallId::CONNECTION);
    is_alive(&mut wire, 1).await;
    wire.send(&frame(PING, 0, 0, &[1; 8], &[])).await;
    assert_eq!(wire.piece().await.kind, PONG);
}
