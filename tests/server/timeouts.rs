//! Peers that say nothing, begin and do not end, or have nothing to do: each is told in its time, and
//! nothing of it stays.
//!
//! The crowd has 400 peers, or `SLUICEGATE_CROWD`.

use std::{env, time::Duration};

use rpc_codec::{GoAwayReason, encode_ping};
use sluicegate::{
    Server,
    server::{BuildError, ServerBuilder},
};
use tokio::time::{Instant, sleep, sleep_until};

use crate::support::{Got, Harness, RawClient, Req, method, no_call_runs, raw::hello};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn cuts(harness: &Harness, name: &str) -> u64 {
    harness.snapshot().connections_cut.get(name).copied().unwrap_or(0)
}

fn echo(id: u64) -> Vec<u8> {
    Req::new(id, method::ECHO, ("hello there",)).bytes()
}

fn ping() -> Vec<u8> {
    let mut out = Vec::new();
    encode_ping(&mut out, *b"are you?");
    out
}

/// Sends one byte of `bytes` after the other, every `pause`, until all are sent or the server has closed.
async fn dribble(peer: &mut RawClient, bytes: &[u8], pause: Duration) {
    use tokio::io::AsyncWriteExt;
    for byte in bytes {
        if peer.peer.io.write_all(&[*byte]).await.is_err() {
            return;
        }
        sleep(pause).await;
    }
}

/// Whether `time` is what was set, and no more than a timer is late.
fn assert_took(began: Instant, time: Duration, what: &str) {
    let took = began.elapsed();
    assert!(took >= time && took <= time + 50 * MS, "{what}: {took:?} instead of {time:?}");
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_at_all_is_told_after_the_first_byte_timeout() {
    let harness = Harness::with(|builder| builder.first_byte_timeout(2 * SECOND).handshake_timeout(8 * SECOND));
    let began = Instant::now();
    let mut peer = harness.silent_peer();
    harness.until("it is connected", |harness| harness.snapshot().handshakes == 1).await;
    let (_, reason, message) = peer.go_away().await;
    assert_took(began, 2 * SECOND, "the first byte");
    assert_eq!((reason, &*message), (GoAwayReason::HandshakeTimeout, "nothing was said in time"));
    assert_eq!(harness.snapshot().handshakes, 0);
    drop(peer);
    harness.assert_idle().await;
    assert_eq!(cuts(&harness, "first byte"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hello_that_dribbles_has_the_time_of_a_handshake_and_no_more() {
    let harness = Harness::with(|builder| builder.first_byte_timeout(2 * SECOND).handshake_timeout(8 * SECOND));
    let began = Instant::now();
    let mut peer = harness.silent_peer();
    dribble(&mut peer, &hello()[..8], 900 * MS).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.handshakes, snapshot.inbound_bytes), (1, 8));
    assert_eq!(peer.go_away().await.1, GoAwayReason::HandshakeTimeout);
    assert_took(began, 8 * SECOND, "the handshake");
    assert_eq!(harness.snapshot().inbound_bytes, 0);
    drop(peer);
    harness.assert_idle().await;
    assert_eq!(cuts(&harness, "handshake"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_stops_or_dribbles_anywhere_ends_the_connection_and_its_calls() {
    let frame = echo(3);
    for (stop, pause) in [(1, MS), (10, MS), (40, MS), (frame.len() - 1, MS), (frame.len() - 1, 800 * MS)] {
        let harness = Harness::with(|builder| builder.frame_timeout(10 * SECOND));
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
        peer.send(&Req::new(2, method::GATE_SPAWNED, (2_u64,)).bytes()).await;
        harness.until_running(2).await;
        let began = Instant::now();
        dribble(&mut peer, &frame[..stop], pause).await;
        let (last, reason, message) = peer.go_away().await;
        assert!(stop as u32 * pause > 10 * SECOND || began.elapsed() <= 10_050 * MS, "{stop}: {:?}", began.elapsed());
        assert!(began.elapsed() >= 10 * SECOND);
        assert_eq!((last, reason, &*message), (2, GoAwayReason::Timeout, "a frame was not completed in time"));
        harness.until_running(0).await;
        no_call_runs(&harness.handle);
        assert_eq!((cuts(&harness, "frame"), harness.snapshot().inbound_bytes), (1, 0));
        drop(peer);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn frames_that_are_slow_but_whole_in_time_go_on_for_ever() {
    let harness = Harness::with(|builder| builder.frame_timeout(10 * SECOND));
    let mut peer = harness.peer().await;
    let mut next = echo(1);
    let (first, rest) = next.split_at(20);
    peer.send(first).await;
    next = rest.to_vec();
    for id in 2..30 {
        sleep(9 * SECOND).await;
        // The end of one frame, and the beginning of the next.
        let frame = echo(id);
        next.extend_from_slice(&frame[..20]);
        peer.send(&next).await;
        next = frame[20..].to_vec();
        assert_eq!(peer.reply::<String>(id - 1).await, "hello there");
    }
    peer.send(&next).await;
    assert_eq!(peer.reply::<String>(29).await, "hello there");
    peer.part().await;
    harness.assert_idle().await;
    assert!(harness.snapshot().connections_cut.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_frame_does_not_count_while_the_server_does_not_read() {
    let harness =
        Harness::with(|builder| builder.frame_timeout(10 * SECOND).write_timeout(600 * SECOND).write_high_water(2_000));
    for read_on in [true, false] {
        let mut peer = harness.peer_through(1_024);
        peer.shake_hands().await;
        let frame = echo(2);
        peer.send(&[&Req::new(1, method::LARGE, (20_000_u32,)).bytes(), &frame[..20]].concat()).await;
        harness.until("it is above the mark", |harness| harness.snapshot().buffered_bytes > 2_000).await;
        sleep(100 * SECOND).await;
        assert_eq!(harness.snapshot().connections, 1, "it was cut while it was not read");
        assert_eq!(peer.reply::<String>(1).await.len(), 20_000);
        if read_on {
            sleep(9 * SECOND).await;
            peer.send(&frame[20..]).await;
            assert_eq!(peer.reply::<String>(2).await, "hello there");
            peer.part().await;
        } else {
            let began = Instant::now();
            assert_eq!(peer.go_away().await.1, GoAwayReason::Timeout);
            assert_took(began, 10 * SECOND, "from when it is read again");
            drop(peer);
        }
        harness.assert_idle().await;
    }
    assert_eq!(cuts(&harness, "frame"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_calls_is_told_and_closed_whatever_else_it_says() {
    let harness = Harness::with(|builder| builder.idle_timeout(60 * SECOND).keepalive_interval(None));
    let mut peer = harness.peer().await;
    sleep(50 * SECOND).await;
    peer.send(&echo(1)).await;
    peer.reply::<String>(1).await;
    let began = Instant::now();
    for _ in 0..5 {
        sleep(10 * SECOND).await;
        peer.send(&ping()).await;
        assert!(matches!(peer.next().await, Got::Pong(_)));
    }
    let (last, reason, message) = peer.go_away().await;
    assert_took(began, 60 * SECOND, "idle");
    assert_eq!((last, reason, &*message), (1, GoAwayReason::Timeout, "there was no call for too long"));
    assert!(matches!(peer.next().await, Got::End));
    drop(peer);
    harness.assert_idle().await;
    assert_eq!(cuts(&harness, "idle"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_running_call_keeps_its_connection_from_being_idle_and_the_next_call_takes_a_new_one() {
    let harness = Harness::with(|builder| builder.idle_timeout(5 * SECOND));
    let client = harness.client();
    for method in [method::SLEEP, method::SLEEP_SPAWNED] {
        assert_eq!(client.call::<_, u64>(method, (60_000_u64,)).await.unwrap(), 60_000);
    }
    assert_eq!((harness.network.attempts(), cuts(&harness, "idle")), (1, 0));
    sleep(6 * SECOND).await;
    harness.assert_idle().await;
    assert_eq!(cuts(&harness, "idle"), 1);
    assert_eq!(client.call::<_, u64>(method::SLEEP, (1_u64,)).await.unwrap(), 1);
    assert_eq!(harness.network.attempts(), 2);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_slow_and_silent_peers_is_gone_in_time_and_the_polite_do_not_notice() {
    let crowd = env::var("SLUICEGATE_CROWD").ok().and_then(|peers| peers.parse().ok()).unwrap_or(400);
    let harness = Harness::with(|builder| builder.max_connections(crowd + 1));
    let client = harness.client();
    let began = Instant::now();
    let hostile: Vec<_> = (0..crowd)
        .map(|n| {
            let mut peer = harness.peer_through(256);
            tokio::spawn(async move {
                let stream = [hello(), echo(1)].concat();
                let hello_len = hello().len();
                match n % 5 {
                    0 => {}
                    1 => dribble(&mut peer, &stream, SECOND).await,
                    2 => peer.send(&stream[..hello_len + 7]).await,
                    3 => peer.send(&stream[..hello_len + 50]).await,
                    _ => {
                        peer.send(&stream[..hello_len + 4]).await;
                        dribble(&mut peer, &stream[hello_len + 4..], SECOND).await;
                    }
                }
                // Nobody hangs up before the server does.
                sleep_until(began + 60 * SECOND).await;
            })
        })
        .collect();
    harness.until("all are there", |harness| harness.snapshot().connections == crowd).await;
    while began.elapsed() < 11_100 * MS {
        let asked = Instant::now();
        let reply: String = client.call(method::ECHO, ("polite".to_owned(),)).timeout(SECOND).await.unwrap();
        assert!(reply == "polite" && asked.elapsed() <= 10 * MS, "{:?}", asked.elapsed());
        sleep(100 * MS).await;
    }
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.connections, snapshot.inbound_bytes, snapshot.handshakes), (1, 0, 0), "{snapshot:#?}");
    assert_eq!(snapshot.connections_cut.values().sum::<u64>(), crowd, "{snapshot:#?}");
    for peer in hostile {
        peer.await.unwrap();
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_is_idle_when_nothing_of_anybody_is_left_and_not_before() {
    let harness = Harness::new();
    let is_idle = || harness.snapshot().is_idle();
    assert!(is_idle());
    let mut peer = harness.silent_peer();
    harness.until("it is connected", |harness| harness.snapshot().handshakes == 1).await;
    assert!(!is_idle());
    peer.shake_hands().await;
    assert!(harness.snapshot().handshakes == 0 && !is_idle());
    peer.send(&echo(1)[..13]).await;
    harness.until("half a frame is there", |harness| harness.snapshot().inbound_bytes == 13).await;
    peer.send(&echo(1)[13..]).await;
    peer.reply::<String>(1).await;
    assert_eq!(harness.snapshot().inbound_bytes, 0);
    peer.send(&Req::new(2, method::HOLD, ()).bytes()).await;
    peer.reply::<()>(2).await;
    peer.part().await;
    harness.until("it is gone", |harness| harness.snapshot().connections == 0).await;
    assert!(!is_idle(), "work that outlives its call still holds its permit");
    harness.probe.drop_holds();
    harness.assert_idle().await;
    assert!(is_idle());
}

#[tokio::test(start_paused = true)]
async fn the_longest_times_are_no_limits_and_no_time_is_refused() {
    let harness = Harness::with(|builder| {
        let builder = builder.first_byte_timeout(Duration::MAX).handshake_timeout(Duration::MAX);
        let builder = builder.frame_timeout(Duration::MAX).idle_timeout(Duration::MAX).write_timeout(Duration::MAX);
        let builder = builder.keepalive_interval(Duration::MAX).keepalive_timeout(Duration::MAX);
        let builder = builder.max_connection_age(Duration::MAX).max_connection_age_grace(Duration::MAX);
        builder.drain_grace(Duration::MAX)
    });
    let mut peer = harness.silent_peer();
    sleep(100_000 * SECOND).await;
    peer.shake_hands().await;
    let frame = echo(1);
    peer.send(&frame[..20]).await;
    sleep(100_000 * SECOND).await;
    peer.send(&frame[20..]).await;
    assert_eq!(peer.reply::<String>(1).await, "hello there");
    peer.part().await;
    harness.assert_idle().await;
    let zeros: [fn(ServerBuilder) -> ServerBuilder; 6] = [
        |builder| builder.first_byte_timeout(Duration::ZERO),
        |builder| builder.frame_timeout(Duration::ZERO),
        |builder| builder.idle_timeout(Duration::ZERO),
        |builder| builder.keepalive_interval(Duration::ZERO),
        |builder| builder.keepalive_timeout(Duration::ZERO),
        |builder| builder.max_connection_age(Duration::ZERO),
    ];
    for zero in zeros {
        assert!(matches!(zero(Server::builder()).build(), Err(BuildError::Zero { .. })));
    }
}
