//! Streams beside calls, and streams that nobody takes to their end, between two processes.

use std::time::Instant;

use futures::StreamExt;
use sluicegate::{Bytes, Client, RefusalReason, StatusCode};

use crate::{
    MS, TURN,
    kit::{Polite, Server, figure, size},
    support::{feed::FeedClient, until_client_idle},
};

/// The items of a long stream, and their length.
const ITEMS: u64 = 1_024;
const ITEM_LEN: u32 = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beside_a_long_stream_of_their_connection_are_quick() {
    let _turn = TURN.lock().await;
    let (items, rounds) = size((ITEMS / 8, 1), (ITEMS, 40));
    println!(
        "\ncalls beside a stream of {} MiB on their connection, {rounds} times",
        (items * u64::from(ITEM_LEN)) >> 20
    );
    let mut server = Server::start("streams").await;
    let client = Client::new(server.address);
    let polite = Polite::sharing(client.clone());
    let calm = polite.calm().await;
    let feed: FeedClient = client.service();
    let began = Instant::now();
    let ((), beside) = polite
        .beside(async {
            for _ in 0..rounds {
                let mut stream = feed.bytes(items, ITEM_LEN).open().await.unwrap();
                let mut taken = 0;
                while stream.message().await.unwrap().is_some() {
                    taken += 1;
                }
                assert_eq!(taken, items);
            }
        })
        .await;
    let bytes = (rounds * items * u64::from(ITEM_LEN)) as f64;
    println!("    the stream: {:.0} MiB/s", bytes / f64::from(1 << 20) / began.elapsed().as_secs_f64());
    println!("    calls alone: {calm}; beside it: {beside}");
    assert_eq!(server.figures().await.of("connections"), 1, "they share it");
    figure("their p99, of that alone", beside.calls.p99.as_secs_f64() / calm.calls.p99.as_secs_f64(), "times", 3.0);
    polite.leave();
    drop((feed, client));
    server.until_idle().await;
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_given_up_leave_nothing_and_the_next_one_is_as_fast() {
    let _turn = TURN.lock().await;
    let streams = size(300, 10_000);
    println!(
        "\n{streams} streams each way of which two items of a hundred go, and some that end by an error and in time"
    );
    let mut server = Server::start("streams").await;
    let client = Client::new(server.address);
    let feed: FeedClient = client.service();
    let count = size(20_000, 1_000_000);
    // The first one finds everything cold.
    seconds_of(&feed, count).await;
    let before = seconds_of(&feed, count).await;
    for n in 0..streams {
        let mut items = feed.bytes(100, 4_096).open().await.unwrap();
        assert!(items.message().await.unwrap().is_some() && items.message().await.unwrap().is_some());
        drop(items);
        let (mut blocks, measured) = feed.measure().open().await.unwrap();
        for _ in 0..2 {
            blocks.send(Bytes::from_static(&[7; 4_096])).await.unwrap();
        }
        drop((blocks, measured));
        if n % 10 == 0 {
            let error = feed.fail(3, false).collect::<Vec<_>>().await.pop().unwrap().unwrap_err();
            assert_eq!(error.code(), StatusCode::DataLoss);
            let late = feed.stall(2).timeout(MS).collect::<Vec<_>>().await.pop().unwrap().unwrap_err();
            assert_eq!(late.code(), StatusCode::DeadlineExceeded);
        }
    }
    let nothing = ["held", "running", "streams", "stream_bytes", "body_bytes"];
    let took = server.until("nothing is in flight", |figures| nothing.iter().all(|name| figures.of(name) == 0)).await;
    println!("    the last of them was gone within {took:?}");
    until_client_idle(&client).await;
    let figures = server.figures().await;
    assert_eq!((figures.of("connections"), figures.of("protocol_errors")), (1, 0), "{figures:?}");
    assert_eq!(figures.of("acquired"), figures.of("released"));
    let after = seconds_of(&feed, count).await;
    figure("the time of the next one, of that before them", after / before, "times", 1.5);
    all_windows_are_there(&feed, &mut server).await;
    drop((feed, client));
    server.until_idle().await;
    server.shut_down().await;
}

/// How long a stream of so many numbers takes.
async fn seconds_of(feed: &FeedClient, count: u64) -> f64 {
    let began = Instant::now();
    assert_eq!(feed.count(count).count().await as u64, count);
    began.elapsed().as_secs_f64()
}

/// As many streams as the connection has windows for are open at once, and no more.
async fn all_windows_are_there(feed: &FeedClient, server: &mut Server) {
    let mut open = Vec::new();
    for _ in 0..WINDOWS {
        open.push(feed.measure().open().await.unwrap());
    }
    server.until("all are open", |figures| figures.of("streams") == WINDOWS).await;
    let (_blocks, refused) = feed.measure().open().await.unwrap();
    let error = refused.await.unwrap_err();
    assert_eq!(error.refused().map(|refused| refused.reason()), Some(RefusalReason::BodyBudget), "{error:?}");
    drop(open);
    server.until("none is open", |figures| figures.of("streams") == 0).await;
}

/// The windows of 64 KiB that the budget of a connection has.
const WINDOWS: u64 = 256;
