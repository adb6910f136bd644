//! Memory grows with the bytes of a body that have been sent, not with those that are claimed.

use std::time::Duration;

use futures::poll;
use rpc_codec::PART_LEN;
use sluicegate::{Bytes, Executed};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

use crate::{
    counting::LIVE,
    support::{
        Req,
        bodies::{KIB, MIB, connected, is_alive, serve, wire},
        method,
        parts::{GO_AWAY, opening, part, response_opening, response_part, untouched},
        raw::{Got, hello_with},
        scripted::scripted_with,
        shims::Manner,
    },
};

const SECOND: Duration = Duration::from_secs(1);

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
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lengths_beyond_the_limit_are_told_at_once_and_nothing_is_reserved_for_them() {
    const PEERS: usize = 1_000;
    let max_frame = 256 * KIB as u32;
    for claimed in [max_frame + 1, 1 << 31, u32::MAX] {
        let harness = serve(|builder| builder);
        let mut peers = Vec::with_capacity(PEERS);
        for _ in 0..PEERS {
            peers.push(wire(&harness, 4 * KIB).await);
        }
        // What the first needs, all may share.
        let mut told = 0;
        let mut before = LIVE.get();
        for peer in &mut peers {
            let sent = Instant::now();
            peer.send(&[&claimed.to_be_bytes()[..], &[7; 100]].concat()).await;
            let farewell = peer.piece().await;
            assert_eq!(farewell.kind, GO_AWAY, "{claimed}");
            let text = String::from_utf8_lossy(&farewell.head);
            assert!(text.contains(&claimed.to_string()) && text.contains(&max_frame.to_string()), "{text}");
            assert!(peer.next().await.is_none() && sent.elapsed() <= SECOND / 20, "{:?}", sent.elapsed());
            told += 1;
            if told == 1 {
                before = LIVE.get();
            }
        }
        let each = (LIVE.get() - before) / PEERS as i64;
        assert!(each <= KIB as i64, "{claimed}: {each} bytes for each, its peer's buffer included");
        assert_eq!(harness.snapshot().protocol_errors, PEERS as u64);
        drop(peers);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn memory_grows_with_what_a_server_has_sent_and_not_with_what_it_claims() {
    let (client, _servers, mut wire) = connected(64 * KIB, |builder| builder.max_message(u32::MAX)).await;
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
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_queued_calls_were_all_given_up_does_not_keep_the_queue() {
    let manner = Manner::unless(Manner::Withholding, "it takes everything");
    let (builder, mut servers) = scripted_with(manner, 256);
    let client = builder.build();
    let first = tokio::spawn(client.call::<_, u64>(method::GATE, (0_u64,)));
    let mut server = servers.recv().await.unwrap();
    assert!(matches!(server.peer.next().await, Got::Hello(_)));
    server.peer.send(&hello_with(|hello| (hello.advised_calls, hello.max_message) = (10_000, 1024 * 1024))).await;
    let (id, _) = server.request().await;
    server.reply(id, 0_u64).await;
    first.await.unwrap().unwrap();
    let before = LIVE.get();
    // The first begins to leave; the others wait behind it.
    let begun = tokio::spawn(client.call::<_, String>(method::ECHO, ("x".repeat(1_000),)));
    sleep(SECOND).await;
    let mut calls = Vec::new();
    for _ in 0..30 {
        let mut call = client.call::<_, String>(method::ECHO, ("x".repeat(30_000),));
        assert!(poll!(&mut call).is_pending());
        calls.push(call);
    }
    drop(calls);
    sleep(SECOND).await;
    let (id, _) = server.request().await;
    server.reply(id, "an answer".to_owned()).await;
    begun.await.unwrap().unwrap();
    sleep(SECOND).await;
    let kept = LIVE.get() - before;
    assert!(kept < 300_000, "{kept} bytes are kept");
}
