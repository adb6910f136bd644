//! What connections keep of long frames that have begun is bounded for all together, and who finds no room is
//! not read until there is.

use std::{ops::Range, time::Duration};

use futures::FutureExt;
use rpc_codec::{GoAwayReason, encode_pong};
use rpc_core::CallId;
use sluicegate::{Server, limit::ConcurrencySnapshot, server::ServerBuilder};
use tokio::{
    io::AsyncWriteExt,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    Got, Harness, Req,
    bodies::{KIB, MIB, NARROW, bytes, is_alive, serve, wire},
    method,
    parts::{Pieces, RESPONSE, opening, part, untouched},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The length of the long frames here, with everything.
const LONG: usize = 250_000;
/// What no frame has to pay for.
const FREE: usize = 64 * KIB + 4;
const BEYOND: u64 = (LONG - FREE) as u64;

/// A server with room for one long frame and not for two.
fn one_at_a_time(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Harness {
    serve(|builder| configure(builder.frame_budget(256 * KIB as u64)))
}

/// A call whose frame has [`LONG`] bytes.
fn long(id: u64) -> Vec<u8> {
    whole(id, LONG)
}

/// A call in one frame of so many bytes, as this library would not send it.
fn whole(id: u64, len: usize) -> Vec<u8> {
    let mut frame = untouched(id, method::BYTES).body([]).bytes();
    let body_len = len - frame.len();
    frame[..4].copy_from_slice(&(len as u32 - 4).to_be_bytes());
    frame[BODY_LEN].copy_from_slice(&(body_len as u32).to_be_bytes());
    frame.resize(len, 7);
    frame
}

/// Where a REQUEST says the length of its body.
const BODY_LEN: Range<usize> = 36..40;

/// Reads the echo of a [`long`] call, or of another with a long body.
async fn answer(wire: &mut Pieces, id: u64) {
    let piece = wire.piece().await;
    assert_eq!(piece.id, CallId::new(id, 0), "{piece:?}");
    assert!(wire.whole(piece).await.len() >= 100_000);
}

fn budget(harness: &Harness) -> (ConcurrencySnapshot, u64) {
    let limits = harness.handle.limits().list();
    let frames = limits.iter().find(|limit| limit.name == "global frames").unwrap();
    assert_eq!(frames.figures.held, harness.snapshot().frame_bytes);
    (frames.figures, frames.waiting)
}

async fn until_waiting(harness: &Harness, connections: u64) {
    harness.until("they wait", |harness| budget(harness).1 == connections).await;
}

async fn until_begun(harness: &Harness) {
    harness.until("there is room", |harness| harness.snapshot().frame_bytes == BEYOND).await;
}

fn cut(harness: &Harness, name: &str) -> u64 {
    harness.snapshot().connections_cut.get(name).copied().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn a_long_frame_takes_room_when_much_of_it_has_come_and_gives_it_back_when_it_is_whole() {
    let harness = one_at_a_time(|builder| builder);
    let mut wire = wire(&harness, NARROW).await;
    for id in [1, 2] {
        let frame = long(id);
        wire.send(&frame[..FREE - 1]).await;
        harness.until("that has come", |harness| harness.snapshot().inbound_bytes == FREE as u64 - 1).await;
        assert_eq!(harness.snapshot().frame_bytes, 0);
        wire.send(&frame[FREE - 1..FREE]).await;
        until_begun(&harness).await;
        wire.send(&frame[FREE..LONG - 1]).await;
        harness.until("that has come", |harness| harness.snapshot().inbound_bytes == LONG as u64 - 1).await;
        assert_eq!(harness.snapshot().frame_bytes, BEYOND);
        // The beginning of another frame is not read with it.
        let next = Req::new(id + 10, method::ECHO, ("next",)).bytes();
        wire.send(&frame[LONG - 1..]).await;
        answer(&mut wire, id).await;
        assert_eq!(harness.snapshot().frame_bytes, 0);
        if id == 2 {
            wire.send(&next).await;
            assert_eq!(wire.piece().await.id, CallId::new(12, 0));
        }
    }
    drop(wire);
    harness.assert_idle().await;
    assert_eq!(budget(&harness).0.acquired, 2 * BEYOND);
}

#[tokio::test(start_paused = true)]
async fn long_frames_one_behind_the_other_with_others_between_are_all_read() {
    let harness = one_at_a_time(|builder| builder);
    let mut wire = wire(&harness, 4 * MIB).await;
    for id in (1..20).step_by(2) {
        wire.send(&long(id)).await;
        wire.send(&Req::new(id + 1, method::ECHO, ("short",)).bytes()).await;
    }
    let mut answered = Vec::new();
    while answered.len() < 20 {
        let piece = wire.piece().await;
        if piece.kind == RESPONSE {
            answered.push(piece.id.sequence());
        }
    }
    answered.sort_unstable();
    assert!(answered.into_iter().eq(1..=20));
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_room_is_not_read_until_there_is_and_its_calls_go_on() {
    let harness = one_at_a_time(|builder| builder);
    let (mut first, mut second) = (wire(&harness, NARROW).await, wire(&harness, NARROW).await);
    first.send(&long(1)[..FREE + 100]).await;
    until_begun(&harness).await;
    second.send(&Req::new(1, method::SLEEP, (300_u64,)).bytes()).await;
    let frame = long(2);
    second.send(&frame[..FREE]).await;
    until_waiting(&harness, 1).await;
    assert_eq!(second.piece().await.id, CallId::new(1, 0), "what it has asked before is answered");
    let sending = tokio::spawn(async move {
        second.send(&frame[FREE..]).await;
        second
    });
    sleep(5 * SECOND).await;
    let snapshot = harness.snapshot();
    assert!(!sending.is_finished(), "the pipe is full");
    assert_eq!((snapshot.frame_bytes, snapshot.inbound_bytes), (BEYOND, (2 * FREE + 100) as u64));
    first.send(&long(1)[FREE + 100..]).await;
    answer(&mut first, 1).await;
    let mut second = sending.await.unwrap();
    answer(&mut second, 2).await;
    is_alive(&mut second, 3).await;
    drop((first, second));
    harness.assert_idle().await;
    assert!(harness.snapshot().connections_cut.is_empty());
    assert_eq!(budget(&harness).0.high_water, BEYOND);
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_room_in_the_time_of_its_frame_is_told_so_and_closed() {
    let harness = one_at_a_time(|builder| builder);
    let (mut first, mut second) = (harness.peer().await, harness.peer().await);
    let began = Instant::now();
    second.send(&long(1)[..1_000]).await;
    sleep(5 * SECOND).await;
    first.send(&long(1)[..FREE]).await;
    until_begun(&harness).await;
    second.send(&long(1)[1_000..FREE]).await;
    until_waiting(&harness, 1).await;
    let (last, reason, message) = second.go_away().await;
    assert_eq!((last, reason), (0, GoAwayReason::Timeout));
    assert_eq!(message, "there was no room for so long a frame in time");
    let waited = began.elapsed();
    assert!(waited >= 10 * SECOND && waited <= 10 * SECOND + 20 * MS, "{waited:?}");
    assert_eq!((cut(&harness, "frame budget"), cut(&harness, "frame"), budget(&harness).1), (1, 0, 0));
    // The one that had its room does nothing with it.
    let (_, reason, message) = first.go_away().await;
    assert_eq!((reason, &*message), (GoAwayReason::Timeout, "a frame was not completed in time"));
    drop((first, second));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn time_without_room_is_not_counted_against_who_waited() {
    // Neither for the frame, nor for a body that stands behind it, nor for the PING.
    let harness = one_at_a_time(|builder| {
        builder.frame_timeout(12 * SECOND).keepalive_interval(3 * SECOND).keepalive_timeout(SECOND)
    });
    let (mut first, mut second) = (harness.peer().await, wire(&harness, NARROW).await);
    second.send(&opening(untouched(1, method::BYTES), 100_000, &[7; 10])).await;
    harness.until("it has begun", |harness| harness.snapshot().calls_parked == 1).await;
    first.send(&long(1)[..FREE]).await;
    until_begun(&harness).await;
    second.send(&long(2)[..FREE]).await;
    until_waiting(&harness, 1).await;
    // The first lives, and is silent about its frame.
    let answering = async {
        while let Got::Ping(opaque) = first.next().await {
            let mut frame = Vec::new();
            encode_pong(&mut frame, opaque);
            first.peer.io.write_all(&frame).await.unwrap();
        }
    };
    assert!(timeout(11 * SECOND, answering).await.is_err());
    assert_eq!(budget(&harness).1, 1, "{:?}", harness.snapshot().connections_cut);
    first.send(&long(1)[FREE..]).await;
    harness.until("it has its turn", |harness| budget(harness).1 == 0).await;
    sleep(2 * SECOND).await;
    second.send(&long(2)[FREE..]).await;
    let piece = second.up_to(|piece| piece.id == CallId::new(2, 0)).await.0;
    second.whole(piece).await;
    drop((first, second));
    harness.assert_idle().await;
}

/// Above the mark it gives up its place, and comes back for another when it is below.
#[tokio::test(start_paused = true)]
async fn time_without_room_is_not_counted_against_who_stopped_reading_its_answers_meanwhile() {
    let harness =
        one_at_a_time(|builder| builder.frame_timeout(12 * SECOND).write_high_water(1)).plain("it counts bytes");
    let (mut first, mut second) = (wire(&harness, NARROW).await, wire(&harness, NARROW).await);
    for id in 1..=1_000 {
        second.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
    }
    second.send(&opening(untouched(1_001, method::BYTES), 100_000, &[7; 10])).await;
    harness.until("it has begun", |harness| harness.snapshot().calls_parked == 1_001).await;
    second.send(&long(1_002)[..FREE - 1]).await;
    sleep(SECOND).await;
    first.send(&long(1)[..FREE]).await;
    until_begun(&harness).await;
    second.send(&long(1_002)[FREE - 1..FREE]).await;
    until_waiting(&harness, 1).await;
    sleep(9 * SECOND).await;
    harness.probe.open_gate();
    until_waiting(&harness, 0).await;
    for _ in 1..=1_000 {
        assert_eq!(second.piece().await.kind, RESPONSE);
    }
    until_waiting(&harness, 1).await;
    sleep(SECOND).await;
    first.send(&long(1)[FREE..]).await;
    answer(&mut first, 1).await;
    until_begun(&harness).await;
    // It has had a second of its twelve, and so has the body, of ten.
    sleep(8 * SECOND).await;
    second.send(&long(1_002)[FREE..]).await;
    answer(&mut second, 1_002).await;
    for n in 0..4 {
        let len = if n < 3 { 32_000 } else { 100_000 - 96_010 };
        second.send(&part(1_001, &vec![7; len], n < 3)).await;
    }
    answer(&mut second, 1_001).await;
    drop((first, second));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn many_that_stop_in_their_frames_keep_no_more_than_the_budget_beyond_their_own() {
    let harness = serve(|builder| builder.frame_budget(MIB as u64));
    let most = MIB as u64 / BEYOND;
    let mut peers = JoinSet::new();
    for _ in 0..100 {
        let mut wire = wire(&harness, NARROW).await;
        peers.spawn(async move {
            // Until its connection is closed, or all of it is taken.
            let _ = wire.io.write_all(&long(1)[..LONG - 1]).await;
            wire.rest().await
        });
    }
    until_waiting(&harness, 100 - most).await;
    let snapshot = harness.snapshot();
    assert_eq!(snapshot.frame_bytes, most * BEYOND);
    assert!(snapshot.inbound_bytes <= 100 * FREE as u64 + MIB as u64, "{}", snapshot.inbound_bytes);
    let mut quick = wire(&harness, NARROW).await;
    is_alive(&mut quick, 1).await;
    drop(quick);
    while let Some(said) = peers.join_next().await {
        assert!(said.unwrap().len() <= 1, "the GOAWAY");
    }
    harness.assert_idle().await;
    let (figures, _) = budget(&harness);
    assert!(figures.high_water <= MIB as u64);
    assert_eq!(cut(&harness, "frame budget") + cut(&harness, "frame"), 100);
}

#[tokio::test(start_paused = true)]
async fn ordinary_frames_need_no_room_however_they_are_split_and_how_many_there_are() {
    let harness = serve(|builder| builder.frame_budget(256 * KIB as u64));
    // The longest that is ordinary.
    let mut wire = wire(&harness, NARROW).await;
    let mut sent = Vec::new();
    for id in 1..=8 {
        sent.extend(whole(id, FREE));
    }
    let pieces: Vec<_> = sent.chunks(40_001).map(<[u8]>::to_vec).collect();
    let (mut to, mut from) = (pieces.into_iter(), 1);
    while from <= 8 {
        if let Some(piece) = to.next() {
            wire.send(&piece).await;
        }
        while let Ok(piece) = timeout(MS, wire.piece()).await {
            assert_eq!(piece.id, CallId::new(from, 0));
            wire.whole(piece).await;
            from += 1;
        }
    }
    drop(wire);
    let client = harness.client();
    let body = sluicegate::Bytes::from(bytes(4 * MIB));
    let echo = client.call_bytes(method::BYTES, body.clone()).await.unwrap();
    assert!(echo == body);
    drop(client);
    harness.assert_idle().await;
    assert_eq!(budget(&harness).0.acquired, 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_is_lost_leaves_its_room_or_its_place_to_others() {
    let harness = one_at_a_time(|builder| builder);
    let (mut first, mut second) = (wire(&harness, NARROW).await, wire(&harness, NARROW).await);
    let mut third = wire(&harness, NARROW).await;
    first.send(&long(1)[..FREE]).await;
    until_begun(&harness).await;
    for (n, wire) in [&mut second, &mut third].into_iter().enumerate() {
        wire.send(&long(1)[..FREE]).await;
        until_waiting(&harness, n as u64 + 1).await;
    }
    // Nobody reads of the second, so only writing finds that it has gone; the server's end does.
    drop(first);
    until_waiting(&harness, 1).await;
    until_begun(&harness).await;
    drop(second);
    until_waiting(&harness, 0).await;
    until_begun(&harness).await;
    third.send(&long(1)[FREE..]).await;
    answer(&mut third, 1).await;
    drop(third);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_its_answers_keeps_its_room_no_longer_than_a_frame_may_take() {
    // It takes a little now and then, so its writes make progress.
    let harness = one_at_a_time(|builder| builder.write_high_water(1)).plain("it counts bytes");
    let (mut slow, mut other) = (wire(&harness, 64).await, wire(&harness, NARROW).await);
    for id in 1..=1_000 {
        slow.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
    }
    harness.until_running(1_000).await;
    slow.send(&long(1_001)[..FREE]).await;
    until_begun(&harness).await;
    let began = Instant::now();
    harness.probe.open_gate();
    let taking = async {
        while slow.next().await.is_some_and(|piece| piece.kind == RESPONSE) {
            sleep(SECOND).await;
        }
    };
    let waiting = async {
        sleep(5 * SECOND).await;
        other.send(&long(1)).await;
        answer(&mut other, 1).await;
        began.elapsed()
    };
    let ((), waited) = tokio::join!(timeout(15 * SECOND, taking).map(drop), waiting);
    assert!(waited >= 10 * SECOND && waited <= 10 * SECOND + 20 * MS, "{waited:?}");
    assert_eq!(cut(&harness, "frame"), 1);
    drop((slow, other));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn who_waited_first_has_its_room_first_whoever_connected_first() {
    let harness = one_at_a_time(|builder| builder);
    let mut peers = Vec::new();
    for _ in 0..4 {
        peers.push(wire(&harness, NARROW).await);
    }
    let order = [3, 2, 1, 0];
    for (n, at) in order.into_iter().enumerate() {
        peers[at].send(&long(1)[..FREE]).await;
        until_begun(&harness).await;
        until_waiting(&harness, n as u64).await;
    }
    for at in order {
        // It would wait for ever, if another had the room.
        peers[at].send(&long(1)[FREE..]).await;
        answer(&mut peers[at], 1).await;
    }
    drop(peers);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_its_answers_keeps_nobody_from_the_room_it_waited_for() {
    let harness = one_at_a_time(|builder| builder.write_high_water(1)).plain("it counts bytes");
    let (mut first, mut second) = (wire(&harness, NARROW).await, wire(&harness, NARROW).await);
    first.send(&long(1)[..FREE]).await;
    until_begun(&harness).await;
    for id in 1..=1_000 {
        second.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
    }
    harness.until_running(1_000).await;
    second.send(&long(1_001)[..FREE]).await;
    until_waiting(&harness, 1).await;
    harness.probe.open_gate();
    until_waiting(&harness, 0).await;
    first.send(&long(1)[FREE..]).await;
    answer(&mut first, 1).await;
    first.send(&long(2)).await;
    answer(&mut first, 2).await;
    // It has its turn when it reads again.
    for _ in 1..=1_000 {
        assert_eq!(second.piece().await.kind, RESPONSE);
    }
    second.send(&long(1_001)[FREE..]).await;
    answer(&mut second, 1_001).await;
    drop((first, second));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_frames_that_wait_for_room() {
    let harness = one_at_a_time(|builder| builder);
    let (mut first, mut second) = (harness.peer().await, harness.peer().await);
    first.send(&long(1)[..FREE]).await;
    until_begun(&harness).await;
    second.send(&long(1)[..FREE]).await;
    until_waiting(&harness, 1).await;
    let began = Instant::now();
    harness.handle.shutdown();
    for peer in [&mut first, &mut second] {
        assert_eq!(peer.go_away().await.1, GoAwayReason::Drain);
    }
    drop((first, second));
    harness.assert_idle().await;
    assert!(began.elapsed() <= SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_was_made_smaller_than_a_frame_closes_its_connection_at_once() {
    let harness = one_at_a_time(|builder| builder);
    let limits = harness.handle.limits();
    assert!(limits.set_max("global frames", None).is_err());
    limits.set_max("global frames", Some(BEYOND - 1)).unwrap();
    let mut peer = harness.peer().await;
    let began = Instant::now();
    peer.send(&long(1)[..FREE]).await;
    assert_eq!(peer.go_away().await.1, GoAwayReason::Timeout);
    assert!(began.elapsed() <= SECOND && cut(&harness, "frame budget") == 1);
    drop(peer);
    limits.set_max("global frames", Some(BEYOND)).unwrap();
    let mut wire = wire(&harness, NARROW).await;
    wire.send(&long(1)).await;
    answer(&mut wire, 1).await;
    drop(wire);
    harness.assert_idle().await;
}

#[test]
fn a_budget_takes_any_frame_that_may_be_sent() {
    let error = Server::builder().max_frame(MIB as u32).frame_budget(MIB as u64 - 1).build().unwrap_err();
    assert!(error.to_string().contains("frame_budget"), "{error}");
    assert!(Server::builder().max_frame(MIB as u32).frame_budget(MIB as u64).build().is_ok());
}
