//! The table of states in `docs/protocol.md`, walked at the server: every frame in every state.

use rpc_codec::{CallKind, GoAwayReason, PART_LEN, encode_credit, encode_end, encode_item, encode_ping};
use rpc_core::CallId;

use crate::support::{
    Got, RawClient, Req,
    feed::{FeedServer, named},
    method,
    raw::{ANY, cancel, frame},
    states::{Fate, table},
};

const CALL: u64 = 1;
const ID: CallId = CallId::new(CALL, 0);
const ITEM_LEN: usize = 2 * PART_LEN;

/// Brings a call into the state.
async fn enter(state: &str, server: &FeedServer, peer: &mut RawClient) {
    let (kind, within) = match state.split_once(", ") {
        Some((kind, within)) => (kind, within),
        None => (state, ""),
    };
    let request = match kind {
        "never opened" => return,
        "unary" => Req::new(CALL, method::GATE, (1_u64,)),
        "server stream" => Req::new(CALL, named("stall"), (1_u64,)).takes(),
        "client stream" => Req::new(CALL, named("measure"), ()).sends(),
        "both ways" => Req::new(CALL, named("echo"), ()).of_kind(CallKind::BothWays),
        "ended: answered" => Req::new(CALL, named("hello"), ("you",)),
        other => panic!("{other} is no kind"),
    };
    peer.send(&request.bytes()).await;
    match kind {
        "unary" => server.harness.until_running(1).await,
        "ended: answered" => assert_eq!(peer.reply::<String>(CALL).await, "hello, you"),
        _ => server.until_running(1).await,
    }
    if kind == "server stream" {
        assert!(matches!(peer.next().await, Got::Item { .. }));
    }
    match within {
        "within an item" => peer.send(&frame(5, 1, CALL, &(ITEM_LEN as u32).to_be_bytes(), &[7; PART_LEN])).await,
        "behind END" => {
            // Something keeps the service from ending with its client's items.
            peer.send(&end()).await;
        }
        _ => {}
    }
}

fn end() -> Vec<u8> {
    let mut out = Vec::new();
    encode_end(&mut out, ID);
    out
}

fn sent(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match name {
        "ITEM" => {
            let item = encode_item::<()>(&mut out, ID, ANY, |out| {
                out.push(7);
                Ok(())
            });
            assert_eq!(item, Ok(1));
        }
        "CONT" => out = frame(4, 0, CALL, &[], &[7; PART_LEN]),
        "END" => encode_end(&mut out, ID),
        "CREDIT" => encode_credit(&mut out, ID, 100),
        "CANCEL" => out = cancel(CALL),
        other => panic!("{other} is no frame"),
    }
    out
}

#[tokio::test(start_paused = true)]
async fn every_frame_in_every_state_meets_the_fate_that_the_specification_says() {
    let rows = table("state of the call at the server");
    assert_eq!(rows.len(), 10);
    for (state, fates) in rows {
        for (name, fate) in fates {
            let server = FeedServer::new().plain("two frames must be read at once");
            let mut peer = server.harness.peer().await;
            // A service that has all its items returns at once, so END and the frame come in one piece.
            let behind_end = state.ends_with("behind END");
            let entered = if behind_end { state.replace("behind END", "open") } else { state.clone() };
            enter(&entered, &server, &mut peer).await;
            let ignored = server.snapshot().frames_ignored;
            let mut bytes = if behind_end { end() } else { Vec::new() };
            bytes.extend_from_slice(&sent(&name));
            encode_ping(&mut bytes, [9; 8]);
            peer.send(&bytes).await;
            let fate_was = loop {
                match peer.next().await {
                    Got::GoAway { reason, message, .. } => {
                        assert_eq!(reason, GoAwayReason::ProtocolError, "{state}, {name}: {message}");
                        break Fate::Error;
                    }
                    Got::Pong(_) if server.snapshot().frames_ignored > ignored => break Fate::Late,
                    Got::Pong(_) => break Fate::Yes,
                    Got::End => panic!("{state}, {name}: ended without a word"),
                    _ => {}
                }
            };
            assert_eq!(fate_was, fate, "{name} in the state {state}");
            drop(peer);
            server.assert_idle().await;
        }
    }
}
