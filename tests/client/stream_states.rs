//! The table of states in `docs/protocol.md`, walked at the client: every frame in every state.

use futures::StreamExt;
use rpc_codec::{Kind, PART_LEN, encode_credit, encode_item, encode_ping};
use rpc_core::CallId;
use sluicegate::{Bytes, Client};
use tokio::task::JoinHandle;

use crate::support::{
    Got, RawServer,
    feed::FeedClient,
    harness::PIPE,
    raw::{ANY, frame, response},
    scripted::scripted,
    states::{Fate, table},
    until_client_idle,
};

/// Brings a call into the state: its id, and the caller that waits if one does.
async fn enter(state: &str, client: &Client, server: &mut RawServer) -> (CallId, Option<JoinHandle<()>>) {
    let feed: FeedClient = client.service();
    let (kind, within) = match state.split_once(", ") {
        Some((kind, within)) => (kind, within),
        None => (state, ""),
    };
    let waiting = match kind {
        "never opened" => return (CallId::new(77, 0), None),
        "unary" => tokio::spawn(async move { drop(feed.hello(String::new()).await) }),
        "client stream" => tokio::spawn(async move {
            let (_numbers, sum) = feed.sum(0).open().await.unwrap();
            let _ = sum.await;
        }),
        "both ways" => tokio::spawn(async move {
            let (_up, down) = feed.echo().open().await.unwrap();
            down.map(drop).collect::<()>().await;
        }),
        _ => tokio::spawn(async move { feed.bytes(1, 1).map(drop).collect::<()>().await }),
    };
    let (id, _) = server.request().await;
    if kind == "ended: answered" {
        waiting.abort();
        let _ = waiting.await;
        assert!(matches!(server.peer.next().await, Got::Cancel(cancelled) if cancelled == id));
        return (id, None);
    }
    if within == "within an item" {
        let len = (2 * PART_LEN as u32).to_be_bytes();
        server.peer.send(&with_id(frame(Kind::Item as u8, 1, 0, &len, &[7; PART_LEN]), id)).await;
    }
    (id, Some(waiting))
}

fn with_id(mut frame: Vec<u8>, id: CallId) -> Vec<u8> {
    rpc_codec::patch_id(&mut frame, id);
    frame
}

fn sent(name: &str, state: &str, id: CallId) -> Vec<u8> {
    let mut out = Vec::new();
    match name {
        "ITEM" => {
            let item = encode_item::<()>(&mut out, id, ANY, |out| {
                out.extend_from_slice(&Bytes::from_static(b"item"));
                Ok(())
            });
            assert_eq!(item, Ok(4));
        }
        "CONT" => out = with_id(frame(Kind::Cont as u8, 0, 0, &[], &[7; PART_LEN]), id),
        "CREDIT" => encode_credit(&mut out, id, 100),
        // In the middle of an item, only one that is not OK.
        "RESPONSE" if state.ends_with("within an item") => {
            let status = sluicegate::Status::aborted("enough");
            rpc_codec::encode_status(&mut out, id, &status, u32::MAX).unwrap();
        }
        "RESPONSE" => out = response(id, &0_u64),
        other => panic!("{other} is no frame"),
    }
    out
}

#[tokio::test(start_paused = true)]
async fn every_frame_in_every_state_meets_the_fate_that_the_specification_says() {
    let rows = table("state of the call at the client");
    assert_eq!(rows.len(), 8);
    for (state, fates) in rows {
        for (name, fate) in fates {
            let (builder, mut servers) = scripted(PIPE);
            let client = builder.build();
            let first = client.service::<FeedClient>();
            let first = tokio::spawn(async move { first.hello("you".to_owned()).await });
            let mut server = servers.recv().await.unwrap();
            server.shake_hands(64).await;
            let (hello, _) = server.request().await;
            server.reply(hello, "hello").await;
            first.await.unwrap().unwrap();
            let (id, waiting) = enter(&state, &client, &mut server).await;
            let late = |client: &Client| client.snapshot().late_items + client.snapshot().late_answers;
            let before = late(&client);
            let mut bytes = sent(&name, &state, id);
            encode_ping(&mut bytes, [9; 8]);
            server.peer.send(&bytes).await;
            let fate_was = loop {
                match server.peer.next().await {
                    Got::GoAway { .. } | Got::End => break Fate::Error,
                    // A late CONT is not counted: it is the rest of what was.
                    Got::Pong(_) if late(&client) > before || (name == "CONT" && fate == Fate::Late) => {
                        break Fate::Late;
                    }
                    Got::Pong(_) => break Fate::Yes,
                    _ => {}
                }
            };
            assert_eq!(fate_was, fate, "{name} in the state {state}");
            assert_eq!(
                client.snapshot().protocol_errors,
                u64::from(fate == Fate::Error),
                "{name} in the state {state}"
            );
            drop(server);
            if let Some(waiting) = waiting {
                waiting.await.unwrap();
            }
            until_client_idle(&client).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_says_ok_in_the_middle_of_an_item_breaks_the_protocol() {
    let (builder, mut servers) = scripted(PIPE);
    let client = builder.build();
    let feed: FeedClient = client.service();
    let waiting = tokio::spawn(async move { feed.bytes(1, 1).collect::<Vec<_>>().await });
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    let len = (2 * PART_LEN as u32).to_be_bytes();
    server.peer.send(&with_id(frame(Kind::Item as u8, 1, 0, &len, &[7; PART_LEN]), id)).await;
    server.peer.send(&response(id, &())).await;
    let got = waiting.await.unwrap();
    assert!(got.len() == 1 && got[0].is_err(), "{got:?}");
    assert_eq!(client.snapshot().protocol_errors, 1);
    until_client_idle(&client).await;
}
