//! Items both ways, in every kind of call: they arrive as they were sent, and the end behind them.

use futures::{SinkExt, StreamExt, TryStreamExt, stream};
use sluicegate::{Bytes, CallError, CodecId, StatusCode};

use crate::support::{
    feed::{FeedClient, FeedServer},
    shims::times_in,
    until_client_idle,
};

#[tokio::test(start_paused = true)]
async fn a_server_stream_arrives_in_order_and_ends() {
    let server = FeedServer::new().large();
    let client = server.client();
    let feed: FeedClient = client.service();
    for count in [0, 1, 2, 1_000, 100_000] {
        let expected: Vec<u64> = (0..count).collect();
        assert_eq!(feed.count(count).try_collect::<Vec<_>>().await.unwrap(), expected);
        assert_eq!(feed.count_sent(count).try_collect::<Vec<_>>().await.unwrap(), expected);
        assert_eq!(feed.count_spawned(count).try_collect::<Vec<_>>().await.unwrap(), expected);
    }
    until_client_idle(&client).await;
    drop((feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_stream_arrives_in_order_and_is_answered_once() {
    let server = FeedServer::new().large();
    let client = server.client();
    let feed: FeedClient = client.service();
    for count in [0_u64, 1, 1_000, 100_000] {
        let sum = feed.sum(5).send_all(stream::iter(0..count)).await.unwrap();
        assert_eq!(sum, 5 + (0..count).sum::<u64>());
    }
    let (mut numbers, sum) = feed.sum(0).open().await.unwrap();
    for n in 0..10 {
        numbers.send(n).await.unwrap();
    }
    numbers.close().await.unwrap();
    assert_eq!(sum.await.unwrap(), 45);
    until_client_idle(&client).await;
    drop((numbers, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn items_go_both_ways_at_once() {
    let server = FeedServer::new().large();
    let client = server.client();
    let feed: FeedClient = client.service();
    for count in [0, 1, 1_000, times_in(50_000, 20_000)] {
        let added = feed.add(3).send_all(stream::iter(0..count)).try_collect::<Vec<_>>().await.unwrap();
        assert_eq!(added, (3..count + 3).collect::<Vec<_>>());
    }
    // One by one: an item comes back before the next one goes.
    let (mut up, mut down) = feed.echo().open().await.unwrap();
    for n in 0..100_u8 {
        let item = Bytes::from(vec![n; usize::from(n) * 100]);
        up.send(item.clone()).await.unwrap();
        assert_eq!(down.message().await.unwrap(), Some(item));
    }
    up.end();
    assert_eq!(down.message().await.unwrap(), None);
    assert_eq!(down.message().await.unwrap(), None, "it stays at its end");
    until_client_idle(&client).await;
    drop((down, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_item_longer_than_window_frame_and_part_gets_through_both_ways() {
    let server = FeedServer::new().large();
    let client = server.client();
    let feed: FeedClient = client.service();
    for len in [32 * 1024, 32 * 1024 + 1, 300_000, 4 * 1024 * 1024] {
        let items: Vec<_> = (0..5).map(|n| Bytes::from(vec![n; len])).collect();
        let back: Vec<_> = feed.echo().send_all(stream::iter(items.clone())).try_collect().await.unwrap();
        assert!(back == items, "{len}");
    }
    let error = feed.measure().send_all(stream::iter([Bytes::from(vec![0; 4 * 1024 * 1024 + 1])])).await.unwrap_err();
    assert!(matches!(error, CallError::ItemTooLarge { len: 4_194_305, max: 4_194_304, .. }), "{error}");
    let mut large = feed.bytes(3, 4 * 1024 * 1024 + 1);
    assert_eq!(large.message().await.unwrap_err().code(), StatusCode::ResourceExhausted);
    until_client_idle(&client).await;
    drop((large, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn arguments_longer_than_a_part_go_before_the_first_item() {
    let server = FeedServer::with(|builder| builder.service(TextsServer::new(Long))).large();
    let client = server.client();
    let long: TextsClient = client.service();
    for codec in [
        CodecId::BINCODE,
        #[cfg(feature = "json")]
        CodecId::JSON,
    ] {
        let client = server.client_builder().codec(codec).build();
        let feed: FeedClient = client.service();
        assert_eq!(feed.count(10).count().await, 10);
    }
    let text = "x".repeat(1_000_000);
    let lens = long.lens(text.clone()).send_all(stream::iter([text.clone(), text])).await.unwrap();
    assert_eq!(lens, [1_000_000; 3]);
    drop((long, client));
    server.assert_idle().await;
}

#[sluicegate::service]
trait Texts {
    async fn lens(&self, first: String, texts: sluicegate::Streaming<String>)
    -> Result<Vec<usize>, sluicegate::Status>;
}

struct Long;

impl Texts for Long {
    async fn lens(
        &self,
        first: String,
        texts: sluicegate::Streaming<String>,
    ) -> Result<Vec<usize>, sluicegate::Status> {
        let rest: Vec<String> = texts.try_collect().await?;
        Ok(std::iter::once(first).chain(rest).map(|text| text.len()).collect())
    }
}
