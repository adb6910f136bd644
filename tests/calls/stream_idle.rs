//! Streams on which nothing happens end after a time, if that is set, and say so.

use std::time::Duration;

use futures::StreamExt;
use sluicegate::{
    Bytes, CallError, Executed, StatusCode,
    server::{MethodLimits, ServerBuilder},
};
use tokio::time::{Instant, sleep};

use crate::support::{
    feed::{FeedClient, FeedServer},
    within,
};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(8);
/// It is looked at in eighths, and timers have milliseconds.
const LATEST: Duration = Duration::from_millis(9_100);

fn idle_after(builder: ServerBuilder) -> ServerBuilder {
    builder.stream_idle_timeout(TIMEOUT)
}

fn assert_idle_is_told(error: &CallError) {
    let status = error.status().expect("the server says it");
    let info = status.error_info().expect("it says why");
    assert_eq!((status.code(), status.executed()), (StatusCode::DeadlineExceeded, Executed::Maybe), "{status:?}");
    assert_eq!((&*info.reason, info.metadata.get_str("max_idle_us")), ("STREAM_IDLE", Some("8000000")));
    assert_eq!(status.retry_delay(), None);
    assert!(error.has_reason("sluicegate", "STREAM_IDLE") && error.refused().is_none(), "its service was called");
}

#[tokio::test(start_paused = true)]
async fn a_stream_on_which_nothing_happens_ends_after_its_time_and_says_so() {
    let server = FeedServer::with(idle_after);
    let client = server.client();
    let feed: FeedClient = client.service();
    let began = Instant::now();
    let (numbers, sum) = feed.sum(0).open().await.unwrap();
    let (blocks, mut echoes) = feed.echo().open().await.unwrap();
    let mut stalled = feed.stall(3).open().await.unwrap();
    assert_eq!(stalled.by_ref().take(3).count().await, 3, "what it has sent comes first");
    assert_idle_is_told(&within(sum).await.unwrap_err());
    assert_idle_is_told(&within(echoes.message()).await.unwrap_err());
    assert_idle_is_told(&within(stalled.message()).await.unwrap_err());
    let took = began.elapsed();
    assert!(TIMEOUT <= took && took <= LATEST, "{took:?}");
    assert_eq!(server.harness.refused("STREAM_IDLE"), 3);
    assert_eq!(feed.hello("you".to_owned()).await.unwrap(), "hello, you", "the connection goes on");
    drop((numbers, blocks, echoes, stalled, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_item_either_way_keeps_a_stream() {
    let server = FeedServer::with(idle_after);
    let client = server.client();
    let feed: FeedClient = client.service();
    let (mut blocks, mut echoes) = feed.echo().open().await.unwrap();
    let (mut numbers, sum) = feed.sum(0).open().await.unwrap();
    for _ in 0..20 {
        sleep(7 * SECOND).await;
        blocks.send(Bytes::from_static(b"still here")).await.unwrap();
        assert!(echoes.message().await.unwrap().is_some());
        numbers.send(1).await.unwrap();
    }
    let last = Instant::now();
    assert_idle_is_told(&within(echoes.message()).await.unwrap_err());
    assert_idle_is_told(&within(sum).await.unwrap_err());
    assert!(TIMEOUT <= last.elapsed() && last.elapsed() <= LATEST, "{:?}", last.elapsed());
    drop((blocks, echoes, numbers, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_at_work_is_not_idle_and_a_producer_without_a_consumer_is() {
    let server = FeedServer::with(idle_after);
    let client = server.client();
    let feed: FeedClient = client.service();
    let (mut numbers, sum) = feed.sum_slowly(30_000).open().await.unwrap();
    for _ in 0..5 {
        numbers.send(1).await.unwrap();
    }
    numbers.end();
    let mut full = feed.bytes(1_000, 1_000).open().await.unwrap();
    sleep(TIMEOUT - SECOND / 10).await;
    assert_eq!(server.harness.refused("STREAM_IDLE"), 0);
    sleep(LATEST - TIMEOUT + SECOND / 10).await;
    assert_eq!(server.harness.refused("STREAM_IDLE"), 1, "nobody takes what it sends");
    assert_eq!(sum.await.unwrap(), 5, "it took half a minute for each");
    let mut left = 0;
    let why = loop {
        match full.message().await {
            Ok(Some(_)) => left += 1,
            Ok(None) => panic!("it looks whole"),
            Err(why) => break why,
        }
    };
    assert!((100..200).contains(&left), "what was under way is there: {left}");
    assert_idle_is_told(&why);
    drop((full, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_waits_for_its_client_to_take_what_it_sends_is_idle_whatever_else_it_has() {
    let server = FeedServer::with(idle_after);
    let client = server.client_builder().stream_window(1).build();
    let feed: FeedClient = client.service();
    // It has sent one, and cannot send the second; the third waits.
    let (mut blocks, mut echoes) = feed.echo().open().await.unwrap();
    for _ in 0..3 {
        blocks.send(Bytes::from_static(b"a")).await.unwrap();
    }
    // This one has sent one, has waited in vain for room for another, and works.
    let (mut others, mut other) = feed.echo_one_and_work().open().await.unwrap();
    for _ in 0..2 {
        others.send(Bytes::from_static(b"b")).await.unwrap();
    }
    sleep(TIMEOUT - SECOND / 10).await;
    assert_eq!(server.harness.refused("STREAM_IDLE"), 0);
    sleep(LATEST - TIMEOUT + SECOND / 10).await;
    assert_eq!(server.harness.refused("STREAM_IDLE"), 1);
    assert_eq!(echoes.message().await.unwrap().as_deref(), Some(&b"a"[..]));
    assert_idle_is_told(&within(echoes.message()).await.unwrap_err());
    sleep(10 * TIMEOUT).await;
    server.feeder.open_gate();
    assert!(within(other.message()).await.unwrap().is_some(), "it was at work");
    assert!(within(other.message()).await.unwrap().is_none());
    drop((blocks, echoes, others, other, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_wants_no_more_items_and_owes_its_answer_is_at_work() {
    let server = FeedServer::with(idle_after);
    let client = server.client();
    let feed: FeedClient = client.service();
    let (mut numbers, sum) = feed.one_and_work().open().await.unwrap();
    numbers.send(7).await.unwrap();
    sleep(10 * TIMEOUT).await;
    assert_eq!(server.harness.refused("STREAM_IDLE"), 0, "its client has not ended");
    server.feeder.open_gate();
    assert_eq!(within(sum).await.unwrap(), 7);
    drop((numbers, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_has_the_stream_of_a_call_is_told_that_it_may_have_been_executed() {
    let server = FeedServer::with(idle_after);
    let client = server.client();
    let feed: FeedClient = client.service();
    let (mut numbers, sum) = feed.sum_elsewhere().open().await.unwrap();
    numbers.send(7).await.unwrap();
    // It has that one, and asks for the next.
    server.feeder.open_gate();
    assert_idle_is_told(&within(sum).await.unwrap_err());
    server.until("the task hears of it", |server| server.feeder.ends().len() == 1).await;
    let why = &server.feeder.ends()[0];
    assert_eq!((why.code(), why.executed()), (StatusCode::DeadlineExceeded, Executed::Maybe), "{why:?}");
    drop((numbers, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn methods_have_times_of_their_own_and_without_any_a_stream_may_be_idle_for_days() {
    let server = FeedServer::with(|builder| {
        let never = MethodLimits::new().stream_idle_timeout(Duration::MAX);
        let builder = builder.stream_idle_timeout(3_600 * SECOND);
        builder
            .method_limits("test.Feed/sum", MethodLimits::new().stream_idle_timeout(TIMEOUT))
            .method_limits("test.Feed/stall", never)
    });
    let client = server.client();
    let feed: FeedClient = client.service();
    let (numbers, sum) = feed.sum(0).open().await.unwrap();
    let (blocks, measured) = feed.measure().open().await.unwrap();
    let mut stalled = feed.stall(1).open().await.unwrap();
    let began = Instant::now();
    assert_idle_is_told(&within(sum).await.unwrap_err());
    assert!(TIMEOUT <= began.elapsed() && began.elapsed() <= LATEST);
    assert!(measured.await.is_err());
    assert!(3_600 * SECOND <= began.elapsed());
    sleep(48 * 3_600 * SECOND).await;
    server.feeder.open_gate();
    assert_eq!(stalled.message().await.unwrap(), Some(0));
    assert_eq!(stalled.message().await.unwrap(), None);
    drop((numbers, blocks, stalled, feed, client));
    server.assert_idle().await;
}
