//! What becomes of items that are too long for a server that has not said yet what it takes.

use std::time::Duration;

use futures::{SinkExt, StreamExt, poll, stream};
use rpc_codec::GoAwayReason;
use rpc_core::CallId;
use sluicegate::{
    Bytes, CallError, Client,
    client::{ClientStream, Coded, ItemSink, Plain, Reply},
};
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{
    Got, RawServer, method, raw::hello_with, scripted::scripted_with, shims::Manner, until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
/// More than may be sent to a server that has not said what it takes.
const LONG: usize = 100_000;
const ONE_BY_ONE: &str = "too many bytes to go one by one";

/// How items are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Send,
    SendAsSink,
    FeedAsSink,
    SendAll,
    SendAllBothWays,
}

const ALL: [Way; 5] = [Way::Send, Way::SendAsSink, Way::FeedAsSink, Way::SendAll, Way::SendAllBothWays];

fn lens() -> [usize; 3] {
    [3, LONG, 5]
}

fn items() -> impl stream::Stream<Item = Bytes> {
    stream::iter(lens().map(|len| Bytes::from(vec![7; len])))
}

async fn send_one_by_one(sink: &mut ItemSink<Bytes, Plain>, way: Way) -> Result<(), CallError> {
    let mut items = items();
    while let Some(item) = items.next().await {
        match way {
            Way::Send => sink.send(item).await?,
            Way::SendAsSink => SinkExt::send(sink, item).await?,
            _ => sink.feed(item).await?,
        }
    }
    Ok(())
}

/// Sends a short item, a long one and a short one.
async fn send(client: Client, way: Way) -> Result<(), CallError> {
    match way {
        Way::SendAll => {
            let call: ClientStream<_, Bytes, u64, Plain, Coded> = client.client_stream(method::GATE, (1_u64,));
            assert_eq!(call.send_all(items()).await?, 7);
        }
        Way::SendAllBothWays => {
            let call = client.both_ways::<_, Bytes, Bytes, Plain, Plain>(method::GATE, (1_u64,));
            let mut back = call.send_all(items());
            while let Some(item) = back.next().await {
                item?;
            }
        }
        one_by_one => {
            let call: ClientStream<_, Bytes, u64, Plain, Coded> = client.client_stream(method::GATE, (1_u64,));
            let (mut sink, reply) = call.open().await?;
            send_one_by_one(&mut sink, one_by_one).await?;
            SinkExt::close(&mut sink).await?;
            assert_eq!(reply.await?, 7);
        }
    }
    Ok(())
}

/// Items on their way to a server that has read all that came, and says nothing.
async fn waiting(way: Way) -> (Client, RawServer, CallId, JoinHandle<Result<(), CallError>>) {
    let (builder, mut servers) = scripted_with(Manner::unless(Manner::OneByte, ONE_BY_ONE), 1024 * 1024);
    let client = builder.build();
    let sending = tokio::spawn(send(client.clone(), way));
    let mut server = servers.recv().await.unwrap();
    assert!(matches!(server.peer.next().await, Got::Hello(_)));
    let (id, _) = server.request().await;
    assert!(matches!(server.peer.next().await, Got::Item { body, .. } if body.len() == 3));
    assert!(server.peer.is_silent_for(1_000 * MS).await, "it was sent before the server said it takes it");
    assert!(!sending.is_finished(), "{way:?}: {:?}", sending.await);
    (client, server, id, sending)
}

/// Takes an item of this length, and the next, which there is no credit for before.
async fn takes_long_and_short(server: &mut RawServer, id: CallId, long: usize) {
    assert!(matches!(server.peer.next().await, Got::Item { body, .. } if body.len() == long));
    let mut credit = Vec::new();
    rpc_codec::encode_credit(&mut credit, id, long as u32);
    server.peer.send(&credit).await;
    assert!(matches!(server.peer.next().await, Got::Item { body, .. } if body.len() == 5));
}

#[tokio::test(start_paused = true)]
async fn a_long_item_waits_for_a_server_that_takes_it_whichever_way_it_goes() {
    for way in ALL {
        let (client, mut server, id, sending) = waiting(way).await;
        server.peer.send(&hello_with(|hello| hello.max_message = 1 << 20)).await;
        takes_long_and_short(&mut server, id, LONG).await;
        assert!(matches!(server.peer.next().await, Got::LastItem(_)), "{way:?}");
        server.reply(id, 7_u64).await;
        within(sending).await.unwrap().unwrap();
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_item_is_too_long_when_the_server_says_so() {
    for way in ALL {
        let (client, mut server, _, sending) = waiting(way).await;
        server.peer.send(&hello_with(|hello| hello.max_message = 65_536)).await;
        let error = within(sending).await.unwrap().unwrap_err();
        let CallError::ItemTooLarge { len, max, .. } = error else { panic!("{way:?}: {error:?}") };
        assert_eq!((len, max), (LONG as u64, 65_536));
        assert!(matches!(server.peer.next().await, Got::Cancel(_)), "half a stream is none");
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_item_waits_for_no_server_that_leaves_before_it_greets() {
    for way in ALL {
        for says_why in [true, false] {
            let (client, mut server, _, sending) = waiting(way).await;
            if says_why {
                server.go_away(CallId::CONNECTION, GoAwayReason::TooManyConnections, "the house is full").await;
            } else {
                drop(server);
            }
            let error = within(sending).await.unwrap().unwrap_err();
            match way {
                Way::SendAll | Way::SendAllBothWays => {
                    assert!(matches!(error, CallError::Lost { .. } | CallError::GoingAway { .. }), "{way:?}: {error:?}")
                }
                _ => assert!(matches!(error, CallError::Ended { .. }), "{way:?}: {error:?}"),
            }
            until_client_idle(&client).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_still_sends_a_long_item_of_a_call_that_is_out() {
    let (client, mut server, id, sending) = waiting(Way::Send).await;
    client.close();
    sleep(MS).await;
    server.peer.send(&hello_with(|hello| hello.max_message = 1 << 20)).await;
    takes_long_and_short(&mut server, id, LONG).await;
    assert!(matches!(server.peer.next().await, Got::LastItem(_)));
    server.reply(id, 7_u64).await;
    within(sending).await.unwrap().unwrap();
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_item_whose_future_is_dropped_is_gone_and_one_that_was_fed_is_sent_before_the_next() {
    let (builder, mut servers) = scripted_with(Manner::unless(Manner::OneByte, ONE_BY_ONE), 1024 * 1024);
    let client = builder.build();
    let call: ClientStream<_, Bytes, u64, Plain, Coded> = client.client_stream(method::GATE, (1_u64,));
    let (mut sink, reply) = call.open().await.unwrap();
    {
        let mut dropped = Box::pin(sink.send(vec![1; LONG].into()));
        assert!(poll!(&mut dropped).is_pending());
    }
    assert_eq!((sink.pending(), sink.is_ready()), (0, true));
    within(sink.feed(vec![2; LONG + 1].into())).await.unwrap();
    assert_eq!((sink.pending(), sink.is_ready()), (LONG + 1, false));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    let next = tokio::spawn(async move {
        sink.send(Bytes::from_static(b"three")).await.unwrap();
        sink
    });
    takes_long_and_short(&mut server, id, LONG + 1).await;
    let sink = within(next).await.unwrap();
    sink.end();
    assert!(matches!(server.peer.next().await, Got::LastItem(_)));
    server.reply(id, 7_u64).await;
    assert_eq!(within(reply).await.unwrap(), 7);
    drop(server);
    until_client_idle(&client).await;
}

/// A sink that has taken a long item and is not flushed, of a call that a server has read which says nothing yet.
async fn fed() -> (Client, RawServer, CallId, ItemSink<Bytes, Plain>, Reply<u64, Coded>) {
    let (builder, mut servers) = scripted_with(Manner::unless(Manner::OneByte, ONE_BY_ONE), 1024 * 1024);
    let client = builder.build();
    let call: ClientStream<_, Bytes, u64, Plain, Coded> = client.client_stream(method::GATE, (1_u64,));
    let (mut sink, reply) = call.open().await.unwrap();
    within(sink.feed(vec![2; LONG].into())).await.unwrap();
    let mut server = servers.recv().await.unwrap();
    assert!(matches!(server.peer.next().await, Got::Hello(_)));
    let (id, _) = server.request().await;
    (client, server, id, sink, reply)
}

fn takes(max: u32) -> Vec<u8> {
    hello_with(|hello| hello.max_message = max)
}

#[tokio::test(start_paused = true)]
async fn to_flush_and_to_close_behind_a_long_item_wait_for_the_servers_word_and_for_no_credit() {
    for closes_at_once in [false, true] {
        let (client, mut server, id, mut sink, reply) = fed().await;
        let finishing = tokio::spawn(async move {
            if !closes_at_once {
                sink.flush().await?;
            }
            sink.close().await.map(|()| sink)
        });
        assert!(server.peer.is_silent_for(1_000 * MS).await && !finishing.is_finished());
        server.peer.send(&takes(1 << 20)).await;
        // It has used up the credit, and never gets any.
        let sink = within(finishing).await.unwrap().unwrap();
        assert!(matches!(server.peer.next().await, Got::Item { body, .. } if body.len() == LONG));
        assert!(matches!(server.peer.next().await, Got::LastItem(_)));
        assert_eq!(sink.pending(), 0, "what has come has been taken");
        server.reply(id, 7_u64).await;
        assert_eq!(within(reply).await.unwrap(), 7);
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_ended_behind_a_long_item_has_sent_it_whenever_the_server_says_that_it_takes_it() {
    for greets_first in [false, true] {
        let (client, mut server, id, sink, reply) = fed().await;
        if greets_first {
            server.peer.send(&takes(1 << 20)).await;
            sleep(MS).await;
            sink.end();
        } else {
            assert!(client.snapshot().outbound_bytes >= LONG as u64, "{:?}", client.snapshot());
            sink.end();
            server.peer.send(&takes(1 << 20)).await;
        }
        assert!(matches!(server.peer.next().await, Got::Item { body, .. } if body.len() == LONG));
        assert!(matches!(server.peer.next().await, Got::LastItem(_)));
        server.reply(id, 7_u64).await;
        assert_eq!(within(reply).await.unwrap(), 7);
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_sink_was_ended_behind_an_item_that_is_too_long_fails_with_both_lengths() {
    for greets_first in [false, true] {
        let (client, mut server, _, sink, reply) = fed().await;
        if greets_first {
            server.peer.send(&takes(65_536)).await;
            sleep(MS).await;
            sink.end();
        } else {
            sink.end();
            server.peer.send(&takes(65_536)).await;
        }
        let error = within(reply).await.unwrap_err();
        let CallError::ItemTooLarge { len, max, .. } = error else { panic!("{error:?}") };
        assert_eq!((len, max), (LONG as u64, 65_536));
        assert!(matches!(server.peer.next().await, Got::Cancel(_)), "half a stream is none");
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_whose_long_item_was_too_long_is_told_so_once_and_goes_on() {
    let (client, mut server, id, mut sink, reply) = fed().await;
    let error = sink.start_send_unpin(Bytes::from_static(b"behind")).unwrap_err();
    assert!(matches!(error, CallError::SinkMisused { .. }), "nothing goes before it: {error:?}");
    server.peer.send(&takes(65_536)).await;
    let error = within(sink.flush()).await.unwrap_err();
    assert!(matches!(error, CallError::ItemTooLarge { .. }), "{error:?}");
    within(sink.feed(Bytes::from_static(b"next"))).await.unwrap();
    within(sink.close()).await.unwrap();
    assert!(matches!(server.peer.next().await, Got::Item { body, .. } if body == b"next"[..]));
    assert!(matches!(server.peer.next().await, Got::LastItem(_)));
    server.reply(id, 7_u64).await;
    assert_eq!(within(reply).await.unwrap(), 7);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_dropped_behind_a_long_item_cancels_its_call() {
    let (client, mut server, _, sink, reply) = fed().await;
    drop(sink);
    server.peer.send(&takes(1 << 20)).await;
    assert!(matches!(within(reply).await, Err(CallError::SinkDropped { .. })));
    assert!(matches!(server.peer.next().await, Got::Cancel(_)), "half a stream is none");
    until_client_idle(&client).await;
}
