//! Frames of calls that have ended: what honest peers have under way is free, and nothing is free without end.

use std::time::Duration;

use rpc_codec::{CallKind, GoAwayReason, MIN_PART_LEN, PART_LEN, encode_end};
use rpc_core::{CallId, limit::Rate};
use sluicegate::{Executed, StatusCode};
use tokio::time::sleep;

use crate::support::{
    Harness, Req,
    bodies::{LEN, is_alive, wire},
    feed::{FeedServer, named},
    method,
    parts::{GO_AWAY, RESPONSE, opening, part, untouched},
    raw::{cancel, frame},
    shims::Manner,
};

const ITEM: u8 = 5;

#[tokio::test(start_paused = true)]
async fn late_items_that_streams_have_paid_for_are_a_flood_above_a_million_a_second() {
    let server = FeedServer::new().plain("it takes millions of frames");
    let mut peer = server.harness.peer().await;
    let mut id = 0;
    // A stream that is opened and cancelled at once, and what its window would have let its client send.
    let mut stream = || {
        id += 1;
        let open = Req::new(id, named("sum"), (0_u64,)).sends().bytes();
        [open, cancel(id), frame(ITEM, 0, id, &[], &[]).repeat(1_000)].concat()
    };
    for second in 1..=2 {
        for _ in 0..900 {
            peer.send(&stream()).await;
        }
        let so_far = second * 900_000;
        server.until("they were ignored", |server| server.snapshot().frames_ignored == so_far).await;
        sleep(Duration::from_secs(1)).await;
    }
    let mut more = 0;
    while more < 1_100 && tokio::io::AsyncWriteExt::write_all(&mut peer.peer.io, &stream()).await.is_ok() {
        more += 1;
    }
    assert!((1_000..=1_020).contains(&more), "{more}");
    assert_eq!(peer.go_away().await.1, GoAwayReason::TooManyFrames);
    assert_eq!(server.snapshot().connections_cut.get("flood"), Some(&1));
    drop(peer);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_refused_body_are_free_however_short_and_more_of_them_are_a_flood() {
    let harness = Harness::with(|builder| builder.control_frame_rate(Rate::per_second(0.001).burst(10)))
        .unless(Manner::OneByte, "megabytes go by");
    let mut wire = wire(&harness, 1 << 20).await;
    let count = (LEN - 1_000).div_ceil(MIN_PART_LEN) as u64;
    for id in 1..=50 {
        wire.send(&opening(untouched(id, method::UNKNOWN), LEN, &[7; 1_000])).await;
        assert_eq!(wire.piece().await.kind, RESPONSE);
        // The last is short.
        for n in 1..=count {
            wire.send(&part(id, &[7; MIN_PART_LEN][..if n < count { MIN_PART_LEN } else { 9 }], n < count)).await;
        }
    }
    is_alive(&mut wire, 51).await;
    assert_eq!(harness.snapshot().frames_ignored, 50 * count);
    // Those of a body that was complete were used up.
    let body = vec![7; 3 * PART_LEN];
    wire.send(&opening(untouched(52, method::BYTES), body.len(), &body[..PART_LEN])).await;
    wire.send(&part(52, &body[..PART_LEN], true)).await;
    wire.send(&part(52, &body[..PART_LEN], false)).await;
    let piece = wire.piece().await;
    assert!(wire.whole(piece).await == body);
    let left = 2 * PART_LEN / MIN_PART_LEN - 2;
    for _ in 0..left + 10 {
        wire.send(&part(1, &[7; MIN_PART_LEN], true)).await;
    }
    is_alive(&mut wire, 53).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    let farewell = wire.piece().await;
    assert_eq!((farewell.kind, farewell.head[8..10].to_vec()), (GO_AWAY, vec![0, 5]), "{farewell:?}");
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_late_item_are_free_whatever_their_number() {
    let server = FeedServer::with(|builder| builder.control_frame_rate(Rate::per_second(0.001).burst(10))).large();
    let mut wire = wire(&server.harness, 1 << 20).await;
    // Within an item when it is cancelled, and with one on the way.
    wire.send(&Req::new(1, named("measure"), ()).sends().bytes()).await;
    let begun = |len: u32| frame(ITEM, 1, 1, &len.to_be_bytes(), &[7; 10]);
    wire.send(&begun(10 + 40 * MIN_PART_LEN as u32 + 7)).await;
    wire.send(&cancel(1)).await;
    for alive in 2..=3 {
        for n in 0..=40 {
            wire.send(&part(1, &[7; MIN_PART_LEN][..if n < 40 { MIN_PART_LEN } else { 7 }], n < 40)).await;
        }
        is_alive(&mut wire, alive).await;
        wire.send(&begun(10 + 40 * MIN_PART_LEN as u32 + 7)).await;
    }
    assert!(server.snapshot().connections_cut.is_empty());
    drop(wire);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn streams_that_expired_on_their_way_are_never_executed_and_their_items_are_free() {
    let server = FeedServer::with(|builder| builder.control_frame_rate(Rate::per_second(0.001).burst(10)));
    let mut peer = server.harness.peer().await;
    // The first call is what later ones are late against.
    peer.send(&Req::new(1, named("hello"), ("you",)).bytes()).await;
    assert_eq!(peer.reply::<String>(1).await, "hello, you");
    tokio::time::advance(Duration::from_millis(100)).await;
    let late = [
        Req::new(2, named("count_sent"), (5_u64,)).takes(),
        Req::new(3, named("sum"), (0_u64,)).sends(),
        Req::new(4, named("echo"), ()).of_kind(CallKind::BothWays),
    ];
    for (id, request) in (2..).zip(late) {
        let mut bytes = request.timeout(Duration::from_micros(10)).bytes();
        if id > 2 {
            bytes.extend(frame(ITEM, 0, id, &[], &[7]).repeat(1_000));
            encode_end(&mut bytes, CallId::new(id, 0));
        }
        peer.send(&bytes).await;
        let (status, _) = peer.answer(id).await;
        assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Never), "{id}");
    }
    peer.send(&Req::new(5, named("hello"), ("me",)).bytes()).await;
    assert_eq!(peer.reply::<String>(5).await, "hello, me", "the items were no flood");
    let snapshot = server.snapshot();
    assert_eq!((snapshot.frames_ignored, snapshot.streams), (2 * 1_001, 0));
    assert_eq!((server.feeder.produced(), server.feeder.consumed()), (0, 0));
    peer.part().await;
    server.assert_idle().await;
}
