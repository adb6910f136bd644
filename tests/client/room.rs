//! Calls that wait for room on their connection go in the order in which they came.

use std::pin::pin;

use futures::{FutureExt, poll};
use rpc_codec::CodecId;
use sluicegate::Client;

use crate::support::{RawServer, method, raw::response, scripted::scripted, until_client_idle, within};

/// A client of a server that has greeted it and takes so many calls at once.
async fn greeted(calls_at_once: u32) -> (Client, RawServer) {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let first = tokio::spawn(client.call::<_, u32>(method::ECHO, (0_u32,)).into_future());
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(calls_at_once).await;
    answer(&mut server).await;
    within(first).await.unwrap().unwrap();
    (client, server)
}

async fn answer(server: &mut RawServer) -> u32 {
    let (id, body) = server.request().await;
    let (nonce,) = CodecId::BINCODE.decode::<(u32,)>(&body).unwrap();
    server.peer.send(&response(id, &nonce)).await;
    nonce
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_calls_again_at_once_gets_behind_those_that_wait() {
    let (client, mut server) = greeted(1).await;
    let again = {
        let client = client.clone();
        async move {
            for round in 0..4_u32 {
                client.call::<_, u32>(method::ECHO, (round,)).await.unwrap();
            }
        }
    };
    let mut again = pin!(again);
    assert!(poll!(again.as_mut()).is_pending(), "the first of them has taken the room");
    let mut waiting: Vec<_> =
        (100..103_u32).map(|nonce| client.call::<_, u32>(method::ECHO, (nonce,)).boxed()).collect();
    for call in &mut waiting {
        assert!(poll!(call).is_pending());
    }
    assert_eq!(client.snapshot().waiting_for_room, 3);
    let served = async {
        let mut order = Vec::new();
        for _ in 0..7 {
            order.push(answer(&mut server).await);
        }
        order
    };
    let (order, ..) = within(futures::future::join3(served, again, futures::future::join_all(waiting))).await;
    assert_eq!(order, [0, 100, 101, 102, 1, 2, 3]);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_line_leaves_the_turn_to_those_behind() {
    let (client, mut server) = greeted(1).await;
    let first = tokio::spawn(client.call::<_, u32>(method::ECHO, (1_u32,)).into_future());
    let (id, _) = server.request().await;
    let mut impatient = client.call::<_, u32>(method::ECHO, (2_u32,)).boxed();
    let mut patient = client.call::<_, u32>(method::ECHO, (3_u32,)).boxed();
    assert!(poll!(&mut impatient).is_pending() && poll!(&mut patient).is_pending());
    server.peer.send(&response(id, &1_u32)).await;
    within(first).await.unwrap().unwrap();
    // It was woken, and goes without a look.
    drop(impatient);
    let (nonce, answered) = within(futures::future::join(answer(&mut server), patient)).await;
    assert_eq!((nonce, answered.unwrap()), (3, 3));
    until_client_idle(&client).await;
}
