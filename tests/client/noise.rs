//! A connection's loop that is woken by everything at once: nothing of what the client owes is lost on the way.

use rpc_codec::{CodecId, Kind, encode_ping, patch_id};
use sluicegate::client::Coded;
use tokio::{
    task::yield_now,
    time::{Duration, sleep},
};

use crate::support::{
    Got, method,
    raw::frame,
    scripted::scripted,
    shims::{Random, times_in},
    until_client_idle, within,
};

/// Of the one stream, and what an item takes of it.
const WINDOW: i64 = 6_400;
const CHARGE: i64 = 64;

#[tokio::test(start_paused = true)]
async fn every_ping_is_answered_and_every_credit_given_whatever_else_wakes_the_connection() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.stream_window(WINDOW as u32).build();
    let mut items = client.server_stream::<_, u8, Coded>(method::GATE, (1_u64,));
    let consumer = tokio::spawn(async move {
        let mut taken = 0_i64;
        while items.message().await.unwrap().is_some() {
            taken += 1;
        }
        taken
    });
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    let mut item = frame(Kind::Item as u8, 0, 0, &[], &[7]);
    patch_id(&mut item, id);
    let (mut random, mut credit, mut sent) = (Random::seeded(55), WINDOW, 0_i64);
    for round in 0..times_in(100_000, 1_000) {
        let calls: Vec<_> =
            (0..random.below(4)).map(|n| tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 0_u32)))).collect();
        // One is given up, in whichever moment that is.
        let given_up = tokio::spawn(client.call::<_, u64>(method::GATE, (round,)));
        for _ in 0..random.below(4) {
            yield_now().await;
        }
        given_up.abort();
        let (mut bytes, items, at) = (Vec::new(), random.below(9), random.below(9));
        for n in 0..9 {
            if n == at {
                encode_ping(&mut bytes, round.to_be_bytes());
            }
            if n < items && credit > 0 {
                (credit, sent) = (credit - CHARGE, sent + 1);
                bytes.extend_from_slice(&item);
            }
        }
        server.peer.send(&bytes).await;
        let (mut ponged, mut left) = (false, calls.len());
        while !ponged || left > 0 {
            match server.peer.next().await {
                // The one that is given up has one argument, the others have two.
                Got::Request { id, body, .. } => {
                    if let Ok((n, _)) = CodecId::BINCODE.decode::<(u64, u32)>(&body) {
                        server.reply(id, n).await;
                        left -= 1;
                    }
                }
                Got::Pong(opaque) => {
                    assert!(!ponged && opaque == round.to_be_bytes(), "round {round}");
                    ponged = true;
                }
                Got::Credit { bytes, .. } => credit += i64::from(bytes),
                Got::Cancel(_) => {}
                other => panic!("round {round}: {other:?}"),
            }
        }
        for (n, call) in (0..).zip(calls) {
            assert_eq!(within(call).await.unwrap().unwrap(), n);
        }
        // A thousand PINGs a second are what a client takes.
        sleep(Duration::from_millis(1)).await;
    }
    // What is not given back is less than half a window, which is when it is.
    while credit <= WINDOW / 2 {
        match server.peer.next().await {
            Got::Credit { bytes, .. } => credit += i64::from(bytes),
            Got::Request { .. } | Got::Cancel(_) => {}
            other => panic!("{credit} of {WINDOW}: {other:?}"),
        }
    }
    server.reply(id, ()).await;
    assert_eq!(within(consumer).await.unwrap(), sent);
    until_client_idle(&client).await;
    assert_eq!((client.snapshot().connects, client.snapshot().protocol_errors), (1, 0));
}
