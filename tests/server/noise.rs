//! A connection's loop that is woken by everything at once: nothing of what it owes is lost on the way.

use rpc_codec::{CodecId, encode_end, encode_item, encode_ping};
use rpc_core::CallId;
use sluicegate::StatusCode;

use crate::support::{
    Got, Req,
    feed::{FeedServer, named},
    method,
    raw::{ANY, cancel},
    shims::{Random, times_in},
};

/// The least that a server may give.
const WINDOW: i64 = 64 * 1024;
/// What an item counts at least.
const CHARGE: i64 = 64;
/// Calls for each PING.
const CALLS: u64 = 10;

/// Frames in whatever order.
fn shuffled(mut frames: Vec<Vec<u8>>, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !frames.is_empty() {
        bytes.extend(frames.swap_remove(random.below(frames.len() as u64) as usize));
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn every_ping_is_answered_and_every_credit_returned_whatever_else_wakes_the_connection() {
    let server = FeedServer::with(|builder| builder.stream_window(WINDOW as u32).control_frame_rate(None));
    let mut peer = server.harness.peer().await;
    peer.send(&Req::new(1, named("sum"), (0_u64,)).sends().bytes()).await;
    let (mut random, mut next, mut credit, mut items) = (Random::seeded(55), 2, WINDOW, 0_i64);
    for round in 0..times_in(1_000_000, 4_000) / CALLS {
        // Calls come in their order, since ids increase; what else there is comes anywhere between them.
        let mut bytes = Vec::new();
        let mut answers = 0;
        for id in next..next + CALLS {
            let mut others = Vec::new();
            if id == next + round % CALLS {
                let mut ping = Vec::new();
                encode_ping(&mut ping, round.to_be_bytes());
                others.push(ping);
            }
            for _ in 0..random.below(8) {
                if credit > 0 {
                    let mut item = Vec::new();
                    let one = |out: &mut Vec<u8>| CodecId::BINCODE.encode(&1_u64, out);
                    encode_item(&mut item, CallId::new(1, 0), ANY, one).unwrap();
                    (credit, items) = (credit - CHARGE, items + 1);
                    others.push(item);
                }
            }
            // Some wake the loop from their slots, some from tasks.
            let spawned = random.below(2) == 0;
            let method = if spawned { method::NONCE_SPAWNED } else { method::NONCE };
            bytes.extend(Req::new(id, method, (id, random.below(4) as u32)).bytes());
            answers += 1;
            bytes.extend(shuffled(others, &mut random));
        }
        // One that is cancelled owes nothing.
        let given_up = next + CALLS;
        bytes.extend([Req::new(given_up, method::GATE, (given_up,)).bytes(), cancel(given_up)].concat());
        next = given_up + 1;
        peer.send(&bytes).await;
        let mut ponged = false;
        while answers > 0 || !ponged {
            match peer.next().await {
                Got::Response { code: StatusCode::Ok, .. } => answers -= 1,
                Got::Pong(opaque) => {
                    assert!(!ponged && opaque == round.to_be_bytes(), "round {round}");
                    ponged = true;
                }
                Got::Credit { bytes, .. } => credit += i64::from(bytes),
                other => panic!("round {round}: {other:?}"),
            }
        }
    }
    // What is not returned is less than half a window, which is when it is.
    while credit <= WINDOW / 2 {
        match peer.next().await {
            Got::Credit { bytes, .. } => credit += i64::from(bytes),
            other => panic!("{credit} of {WINDOW}: {other:?}"),
        }
    }
    let mut end = Vec::new();
    encode_end(&mut end, CallId::new(1, 0));
    peer.send(&end).await;
    let sum: u64 = loop {
        match peer.next().await {
            Got::Credit { .. } => {}
            Got::Response { body, .. } => break CodecId::BINCODE.decode(&body).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(sum as i64, items);
    peer.part().await;
    server.assert_idle().await;
}
