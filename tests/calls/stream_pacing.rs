//! Pacing: a producer goes as fast as its consumer, and a stalled stream costs its window and nothing else.

use std::time::Duration;

use futures::{FutureExt, SinkExt, StreamExt, TryStreamExt, stream};
use sluicegate::{Bytes, Client, ItemSender};
use tokio::{
    task::{coop::unconstrained, yield_now},
    time::{Instant, sleep},
};

use crate::support::{
    feed::{FeedClient, FeedServer},
    shims::times_in,
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
const KIB: usize = 1024;
/// What a client takes before it consumes anything.
const WINDOW: usize = 128 * KIB;
/// What a server takes.
const SERVER_WINDOW: usize = 64 * KIB;
/// Frames are longer than what they are charged for by their headers, and short items shorter than their charge.
const SLACK: usize = 2 * KIB;

async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_producer_goes_as_fast_as_its_consumer_and_what_is_pending_is_bounded_on_both_sides() {
    let server = FeedServer::new();
    let client = server.client();
    let feed: FeedClient = client.service();
    let item = 1_000;
    let mut items = feed.bytes(100_000, item as u32).open().await.unwrap();
    let mut produced = 0;
    for taken in 1..200 {
        assert!(items.message().await.unwrap().is_some());
        sleep(100 * MS).await;
        produced = server.feeder.produced();
        // Each has its window, or its threshold, and one item.
        let ahead = (produced - taken) * item;
        assert!(ahead <= WINDOW + ItemSender::<Bytes>::DEFAULT_THRESHOLD + 2 * item, "{ahead} bytes ahead at {taken}");
        assert!(client.snapshot().inbound_bytes as usize <= WINDOW + item + SLACK, "{:?}", client.snapshot());
        let held = server.snapshot().stream_bytes as usize;
        assert!(held <= ItemSender::<Bytes>::DEFAULT_THRESHOLD + item + SLACK, "{held} bytes");
    }
    assert!(server.feeder.most_pending() <= ItemSender::<Bytes>::DEFAULT_THRESHOLD + item + SLACK);
    // It is suspended.
    settle().await;
    assert_eq!(server.feeder.produced(), produced);
    drop((items, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_goes_as_fast_as_the_service_takes() {
    let server = FeedServer::new();
    let client = server.client();
    let feed: FeedClient = client.service();
    let (mut numbers, sum) = feed.sum_slowly(100).open().await.unwrap();
    let mut sent = 0_usize;
    for taken in 1..50 {
        while numbers.is_ready() {
            numbers.send(1).await.unwrap();
            sent += 1;
            yield_now().await;
        }
        sleep(100 * MS).await;
        // An item counts as 64 bytes, and stands as 17 or fewer in the queue.
        let ahead = sent - server.feeder.consumed();
        assert!(ahead <= SERVER_WINDOW / 64 + 1, "{ahead} items ahead at {taken}");
        assert!(numbers.pending() <= SERVER_WINDOW + SLACK);
        let snapshot = server.snapshot();
        assert!(snapshot.stream_bytes as usize <= SERVER_WINDOW + SLACK, "{snapshot:?}");
        let kept = snapshot.body_bytes as usize;
        assert!(kept > SERVER_WINDOW / 2 && kept <= SERVER_WINDOW, "{kept} bytes are taken out of the budget");
    }
    assert!(numbers.ready().now_or_never().is_none(), "it waits for credit");
    numbers.end();
    drop(sum);
    drop((feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_empty_items_are_not_free() {
    let server = FeedServer::new();
    let client = server.client_builder().stream_window(64 * 100).build();
    let feed: FeedClient = client.service();
    let mut empty = feed.bytes(1_000_000, 0).open().await.unwrap();
    sleep(1_000 * MS).await;
    assert_eq!(server.feeder.produced(), 100, "100 times 64 bytes");
    for _ in 0..1_000 {
        assert_eq!(empty.message().await.unwrap(), Some(Bytes::new()));
    }
    sleep(1_000 * MS).await;
    let ahead = server.feeder.produced() - 1_000;
    assert!((50..=100).contains(&ahead), "{ahead}");
    drop((empty, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_may_ask_item_by_item() {
    let server = FeedServer::new();
    // One item at a time goes, whatever it weighs.
    let client = server.client_builder().stream_window(1).build();
    let feed: FeedClient = client.service();
    let mut items = feed.count_sent(1_000).open().await.unwrap();
    items.set_manual();
    assert_eq!(items.message().await.unwrap(), Some(0));
    for n in 1..100 {
        sleep(10 * MS).await;
        assert!(items.message().now_or_never().is_none(), "{n} was not asked for");
        assert_eq!(server.feeder.produced() as u64, n);
        items.request(1);
        assert_eq!(items.message().await.unwrap(), Some(n));
    }
    items.request(u64::MAX);
    assert_eq!(items.try_collect::<Vec<_>>().await.unwrap(), (100..1_000).collect::<Vec<_>>());
    drop((feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn readiness_is_told_below_the_threshold_and_the_threshold_can_be_set() {
    let server = FeedServer::with(|builder| builder.stream_window(1_000_000));
    let client = server.client();
    let feed: FeedClient = client.service();
    assert!(within(feed.sum(0).send_all(stream::iter([1]))).await.is_ok());
    let (mut blocks, measured) = feed.measure().open().await.unwrap();
    blocks.set_threshold(10 * KIB);
    assert!(blocks.is_ready() && blocks.pending() == 0);
    let mut sent = 0;
    // The connection's task has no turn in between.
    while let Some(sending) = blocks.send(Bytes::from(vec![0; KIB])).now_or_never() {
        sending.unwrap();
        sent += 1;
    }
    assert!((9..=10).contains(&sent), "{sent}");
    assert!(!blocks.is_ready() && blocks.pending() >= 10 * KIB);
    within(blocks.ready()).await.unwrap();
    assert!(blocks.is_ready() && blocks.pending() < 10 * KIB);
    blocks.set_threshold(100 * KIB);
    while let Some(sending) = blocks.feed(Bytes::from(vec![0; KIB])).now_or_never() {
        sending.unwrap();
        sent += 1;
    }
    assert!(sent > 90, "{sent}");
    blocks.close().await.unwrap();
    assert_eq!(within(measured).await.unwrap(), sent * KIB as u64);
    drop((blocks, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_stalled_stream_stops_nobody_else() {
    let server = FeedServer::new().large();
    let client = server.client();
    let feed: FeedClient = client.service();
    let mut stalled = Vec::new();
    for _ in 0..20 {
        stalled.push(feed.bytes(1_000, 10_000).open().await.unwrap());
    }
    let (mut blocks, measured) = feed.sum_slowly(1_000_000).open().await.unwrap();
    while blocks.is_ready() {
        blocks.send(1).await.unwrap();
    }
    sleep(100 * MS).await;
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(feed.hello("you".to_owned()).await.unwrap(), "hello, you");
    }
    assert_eq!(feed.count(100_000).count().await, 100_000);
    assert_eq!(feed.sum(0).send_all(stream::iter(0..10_000)).await.unwrap(), (0..10_000).sum::<u64>());
    assert!(began.elapsed() < 1_000 * MS, "{:?}", began.elapsed());
    let inbound = client.snapshot().inbound_bytes as usize;
    assert!(inbound <= 20 * (WINDOW + 10_000 + SLACK), "{inbound}");
    drop((stalled, blocks, measured));
    until_client_idle(&client).await;
    drop((feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn busy_streams_take_turns_and_calls_are_read_beside_them() {
    let server = FeedServer::new().large();
    let client = server.client();
    let feed: FeedClient = client.service();
    // More pending than the high-water mark.
    let mut streams: Vec<_> = (0..30).map(|_| Box::pin(feed.bytes(u64::MAX, 1_000))).collect();
    let mut counts = [0_usize; 30];
    for round in 0..200 {
        for (stream, count) in streams.iter_mut().zip(&mut counts) {
            // The budget of this task is shared by all of them.
            while let Some(Some(item)) = unconstrained(stream.next()).now_or_never() {
                item.unwrap();
                *count += 1;
            }
        }
        yield_now().await;
        if round % 10 == 9 {
            let hello = within(feed.hello("you".to_owned()));
            assert_eq!(hello.await.unwrap(), "hello, you");
        }
    }
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    // A turn is some thirty items here, and some streams are a turn or two ahead when it is counted.
    assert!(*least > 100 && least * 3 >= most * 2, "{counts:?}");
    drop((streams, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_proxy_holds_two_windows_of_a_fast_source_and_a_slow_consumer() {
    let (source, middle) = (FeedServer::new().large(), FeedServer::new().large());
    let (upstream, client): (Client, Client) = (source.client(), middle.client());
    let (upstream_feed, feed): (FeedClient, FeedClient) = (upstream.service(), client.service());
    let (mut up, mut down) = feed.echo().open().await.unwrap();
    let mut from = upstream_feed.bytes(100_000, 1_000).open().await.unwrap();
    let pump = tokio::spawn(async move {
        while let Some(item) = from.message().await? {
            up.send(item).await?;
        }
        Ok::<_, sluicegate::CallError>(())
    });
    for _ in 0..50 {
        down.message().await.unwrap();
        sleep(100 * MS).await;
    }
    // Of each hop: the receiver's window, the sender's threshold, and an item.
    let most = 2 * (WINDOW + SERVER_WINDOW) + 4 * (32 * KIB + 1_000);
    assert!(source.feeder.produced() * 1_000 <= most + 50_000, "{}", source.feeder.produced());
    drop(down);
    assert!(pump.await.unwrap().is_err(), "the source learns that the consumer has gone");
    drop((upstream_feed, upstream, feed, client));
    source.assert_idle().await;
    middle.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_or_doubled_when_waiting_for_an_item_is_given_up() {
    let server = FeedServer::new();
    let client = server.client();
    let feed: FeedClient = client.service();
    let (mut up, mut down) = feed.echo().open().await.unwrap();
    let (mut sent, mut got, items) = (0_u32, 0_u32, times_in(1_000_000, 20_000) as u32);
    while got < items {
        tokio::select! {
            biased;
            () = yield_now(), if fastrand::bool() => {}
            ready = up.ready(), if sent < items => {
                ready.unwrap();
                up.send(sent.to_be_bytes().to_vec().into()).await.unwrap();
                sent += 1;
            }
            item = down.message() => {
                assert_eq!(item.unwrap().unwrap()[..], got.to_be_bytes());
                got += 1;
            }
        }
    }
    up.end();
    assert_eq!(down.message().await.unwrap(), None);
    drop((feed, client, down));
    server.assert_idle().await;
}
