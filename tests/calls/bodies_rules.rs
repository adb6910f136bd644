//! Parts that do not add up cost their call, and those that nobody can place the connection.

use rpc_codec::GoAwayReason;
use sluicegate::StatusCode;

use crate::support::{
    Got, Req,
    bodies::{
        KIB, MAX_AHEAD, NARROW, REPLY, assert_refused, is_alive, serve, serve_huge, status_of, until_given_back, wire,
    },
    method,
    parts::{CANCEL, CONT, GO_AWAY, PING, encoded, opening, part, untouched},
    raw::frame,
};

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
        harness.assert_idle().await;
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
        harness.assert_idle().await;
        assert_eq!(harness.snapshot().protocol_errors, 1);
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
            assert_eq!(piece.kind, GO_AWAY, "kind {kind}, opened {opened}");
            drop(wire);
            harness.assert_idle().await;
        }
    }
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
    harness.assert_idle().await;
}
