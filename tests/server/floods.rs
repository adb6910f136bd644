//! Peers that send much and read nothing, or send what is no call without end.
//!
//! The floods have 50,000 frames (a quarter over unkind transports) and the stalled readers are 60, or as many as `SLUICEGATE_FLOOD` and
//! `SLUICEGATE_STALLED` say.

use std::{env, time::Duration};

use rpc_codec::{GoAwayReason, encode_ping, encode_pong};
use rpc_core::limit::Rate;
use sluicegate::StatusCode;
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, sleep},
};

use crate::support::{
    Got, Harness, RawClient, Req, method, no_call_runs,
    raw::{cancel, frame},
    shims::times_in,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn number(name: &str, usual: u64) -> u64 {
    env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(usual)
}

fn cuts(harness: &Harness, name: &str) -> u64 {
    harness.snapshot().connections_cut.get(name).copied().unwrap_or(0)
}

fn ping() -> Vec<u8> {
    let mut out = Vec::new();
    encode_ping(&mut out, *b"are you?");
    out
}

fn pong() -> Vec<u8> {
    let mut out = Vec::new();
    encode_pong(&mut out, *b"nonsense");
    out
}

/// A REQUEST without a head.
fn malformed(id: u64) -> Vec<u8> {
    frame(2, 0, id, &[], &[])
}

/// Sends `frames` until the server has closed, reading meanwhile; the farewell and how many PONGs and
/// answers came.
async fn flood(peer: RawClient, frames: Vec<u8>) -> (Option<(GoAwayReason, String)>, u64) {
    let (read, mut write) = tokio::io::split(peer.peer.io);
    let writing = tokio::spawn(async move { while write.write_all(&frames).await.is_ok() {} });
    let mut reading = tokio::io::BufReader::new(read);
    let (mut received, mut farewell) = (0, None);
    let mut bytes = Vec::new();
    while tokio::io::AsyncReadExt::read_buf(&mut reading, &mut bytes).await.is_ok_and(|read| read > 0) {
        let decoder = rpc_codec::FrameDecoder::new(1 << 20);
        let mut at = 0;
        while let Ok(rpc_codec::Decoded::Frame { frame, len }) = decoder.decode(&bytes[at..]) {
            at += len;
            match frame {
                rpc_codec::Frame::GoAway(away) => farewell = Some((away.reason, away.message.to_owned())),
                _ => received += 1,
            }
        }
        bytes.drain(..at);
    }
    writing.abort();
    (farewell, received)
}

#[tokio::test(start_paused = true)]
async fn whoever_floods_with_frames_that_open_no_call_is_cut_and_told_why() {
    let some = 200;
    let late_cancel = cancel(1).repeat(some);
    let short_part = frame(4, 0, 1, &[], b"late").repeat(some);
    let ignorable = frame(0xc0, 0, 0, &[], &[]).repeat(some);
    let mut out = Vec::new();
    rpc_codec::encode_go_away(&mut out, rpc_core::CallId::CONNECTION, GoAwayReason::Drain, "");
    let kinds: [(&str, Vec<u8>, u64); 6] = [
        ("PINGs", ping().repeat(some), 10_000),
        ("PONGs", pong().repeat(some), 0),
        ("CANCELs of a call that has ended", late_cancel, 0),
        ("late parts", short_part, 0),
        ("ignorable frames", ignorable, 0),
        ("GOAWAYs", out.repeat(some), 0),
    ];
    for (what, frames, answers) in kinds {
        let harness = Harness::new();
        let client = harness.client();
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method::ECHO, ("hi",)).bytes()).await;
        peer.reply::<String>(1).await;
        let (farewell, received) = flood(peer, frames).await;
        let message = "there are more frames that open no call than the server takes".to_owned();
        assert_eq!(farewell, Some((GoAwayReason::TooManyFrames, message)), "{what}");
        assert!(received >= answers && received <= answers + 100, "{what}: {received} answers");
        assert_eq!(cuts(&harness, "flood"), 1, "{what}");
        let echo: String = client.call(method::ECHO, ("polite".to_owned(),)).await.unwrap();
        assert_eq!(echo, "polite");
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_requests_are_refused_up_to_the_rate_and_then_cut() {
    let harness = Harness::with(|builder| builder.control_frame_rate(Rate::per_second(10.0).burst(100)));
    let mut peer = harness.peer().await;
    let requests: Vec<u8> = (1..=200).flat_map(malformed).collect();
    peer.send(&requests).await;
    for id in 1..=100 {
        assert_eq!(peer.answer(id).await.0.code(), StatusCode::InvalidArgument);
    }
    assert_eq!(peer.go_away().await.1, GoAwayReason::TooManyFrames);
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_a_polite_peer_is_never_reached_and_without_a_rate_anything_goes() {
    let frames = number("SLUICEGATE_FLOOD", times_in(50_000, 50_000));
    for limited in [true, false] {
        let harness = if limited {
            Harness::new()
        } else {
            Harness::with(|builder| builder.control_frame_rate(None).keepalive_interval(None))
        };
        let mut peer = harness.peer().await;
        for _ in 0..frames / 500 {
            peer.send(&ping().repeat(500)).await;
            for _ in 0..500 {
                assert!(matches!(peer.next().await, Got::Pong(_)));
            }
            if limited {
                sleep(500 * MS).await;
            }
        }
        peer.part().await;
        harness.assert_idle().await;
        assert!(harness.snapshot().connections_cut.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_cancels_every_call_keeps_its_connection_however_many_they_are() {
    let harness = Harness::with(|builder| builder.control_frame_rate(Rate::per_second(1.0).burst(1)));
    let mut peer = harness.peer().await;
    // Some are cancelled in time, some have been answered.
    for id in 1..=5_000 {
        let method = if id % 2 == 0 { method::GATE } else { method::ECHO };
        let request =
            if id % 2 == 0 { Req::new(id, method, (id,)).bytes() } else { Req::new(id, method, ("hi",)).bytes() };
        peer.send(&[request, cancel(id)].concat()).await;
        if id % 2 == 1 {
            peer.reply::<String>(id).await;
        }
    }
    harness.until_running(0).await;
    assert!(harness.snapshot().connections_cut.is_empty());
    // But each only once.
    peer.send(&cancel(77).repeat(3)).await;
    assert_eq!(peer.go_away().await.1, GoAwayReason::TooManyFrames);
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_owed_to_a_peer_that_does_not_read_is_bounded_and_then_the_peer_is_cut() {
    const MARK: u64 = 20_000;
    const PIPE: usize = 4_096;
    let unknown = |id| Req::new(id, method::UNKNOWN, ()).bytes();
    let requests = |request: &dyn Fn(u64) -> Vec<u8>| (1..=50_000).flat_map(request).collect::<Vec<u8>>();
    let kinds = [
        ("PONGs", ping().repeat(50_000), 24),
        ("refusals", requests(&unknown), 300),
        ("refusals of malformed requests", requests(&malformed), 300),
        ("refusals by a limit", requests(&|id| Req::new(id, method::ECHO, ("hi",)).bytes()), 300),
    ];
    for (what, frames, longest) in kinds {
        let harness = Harness::with(|builder| {
            let builder = builder.write_high_water(MARK as usize).write_timeout(30 * SECOND);
            builder.rate(Rate::per_second(0.001).burst(1)).control_frame_rate(None)
        });
        let mut peer = harness.peer_through(PIPE);
        peer.shake_hands().await;
        let began = Instant::now();
        let sent = frames.len();
        let writing = tokio::spawn(async move {
            let mut left = &frames[..];
            while !left.is_empty() {
                match peer.peer.io.write(left).await {
                    Ok(written) => left = &left[written..],
                    Err(_) => break,
                }
            }
            left.len()
        });
        while began.elapsed() < 29 * SECOND {
            let snapshot = harness.snapshot();
            assert!(snapshot.buffered_bytes <= MARK + longest, "{what}: {}", snapshot.buffered_bytes);
            assert!(snapshot.inbound_bytes <= 64 * 1024 + 1_000, "{what}: {}", snapshot.inbound_bytes);
            sleep(if began.elapsed() < SECOND { MS } else { SECOND }).await;
        }
        let snapshot = harness.snapshot();
        assert!(snapshot.connections == 1 && snapshot.buffered_bytes > MARK - longest, "{what}: {snapshot:#?}");
        sleep(1_100 * MS).await;
        assert_eq!((harness.snapshot().connections, cuts(&harness, "write")), (0, 1), "{what}");
        let left = writing.await.unwrap();
        assert!(left > sent / 2, "{what}: {left} of {sent} bytes were not read");
        no_call_runs(&harness.handle);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn many_readers_that_stall_hold_what_they_may_and_nothing_when_they_are_cut() {
    const MARK: u64 = 256 * 1024;
    const REPLY: u32 = 64 * 1024;
    let peers = number("SLUICEGATE_STALLED", 60);
    let harness = Harness::with(|builder| builder.max_connections(peers + 1));
    let client = harness.client();
    let mut stalled = Vec::new();
    for _ in 0..peers {
        let mut peer = harness.peer_through(16 * 1024);
        peer.shake_hands().await;
        let requests: Vec<u8> = (1..=100).flat_map(|id| Req::new(id, method::LARGE, (REPLY,)).bytes()).collect();
        peer.send(&requests).await;
        stalled.push(peer);
    }
    let began = Instant::now();
    sleep(SECOND).await;
    // Of the next reply half is thought to come.
    let (least, most) = (peers * (MARK - u64::from(REPLY)), peers * (MARK + u64::from(REPLY) / 2 + 1_000));
    while began.elapsed() < 29 * SECOND {
        let snapshot = harness.snapshot();
        assert!((least..most).contains(&snapshot.buffered_bytes), "{snapshot:#?}");
        let asked = Instant::now();
        let echo: String = client.call(method::ECHO, ("polite".to_owned(),)).timeout(SECOND).await.unwrap();
        assert!(echo == "polite" && asked.elapsed() <= 10 * MS, "{:?}", asked.elapsed());
        sleep(500 * MS).await;
    }
    sleep(2 * SECOND).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.connections, snapshot.buffered_bytes, snapshot.calls.held), (1, 0, 0), "{snapshot:#?}");
    assert_eq!(cuts(&harness, "write"), peers);
    drop((client, stalled));
    harness.assert_idle().await;
}
