//! The ends of a stream: each is one outcome on both sides, and gives back all that the stream held. The
//! limit is one call throughout, so every next call shows that the permit has come back, and no earlier.

use std::{io, time::Duration};

use futures::{StreamExt, TryStreamExt, poll, stream};
use sluicegate::{
    CallError, Client, Executed, PayloadError, StatusCode,
    client::{ItemStream, LostCause},
};
use tokio::time::{Instant, sleep};

use crate::support::{
    feed::{FeedClient, FeedServer},
    probe::silence_wanted_panics,
    shims::times_in,
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);

fn limited() -> (FeedServer, Client, FeedClient) {
    silence_wanted_panics();
    let server = FeedServer::with(|builder| builder.max_concurrent_calls(1));
    let client = server.client();
    let feed = client.service();
    (server, client, feed)
}

/// The one permit is out: whatever else is called is refused.
async fn assert_taken(feed: &FeedClient) {
    let refused = feed.hello("you".to_owned()).await.unwrap_err();
    assert_eq!((refused.code(), refused.executed()), (StatusCode::ResourceExhausted, Executed::Never));
    let refused = feed.count(1).message().await.unwrap_err();
    assert_eq!((refused.code(), refused.executed()), (StatusCode::ResourceExhausted, Executed::Never));
    let refused = feed.sum(0).send_all(stream::iter(0..10_000)).await.unwrap_err();
    assert_eq!((refused.code(), refused.executed()), (StatusCode::ResourceExhausted, Executed::Never));
}

/// Also where the answer is read before its server knows that it was written.
async fn until_back(server: &FeedServer) {
    server.until("the permit is back", |server| server.snapshot().calls.held == 0).await;
}

/// Nothing is left of what went before, and the permit serves the next call.
async fn assert_back(server: &FeedServer, client: Client, feed: FeedClient) {
    until_back(server).await;
    assert_eq!(feed.hello("you".to_owned()).await.unwrap(), "hello, you");
    until_back(server).await;
    assert_eq!(feed.count(3).try_collect::<Vec<_>>().await.unwrap(), [0, 1, 2]);
    until_client_idle(&client).await;
    drop((feed, client));
    server.assert_idle().await;
    let snapshot = server.snapshot();
    assert_eq!(snapshot.protocol_errors, 0);
    assert_eq!(snapshot.calls.acquired, snapshot.calls.released);
}

#[tokio::test(start_paused = true)]
async fn the_permit_is_held_until_the_last_item_has_been_written() {
    let (server, client, feed) = limited();
    let mut items = feed.stall(2).open().await.unwrap();
    assert_eq!((items.message().await.unwrap(), items.message().await.unwrap()), (Some(0), Some(1)));
    assert_taken(&feed).await;
    server.feeder.open_gate();
    assert_eq!(items.message().await.unwrap(), None);
    assert_eq!(items.trailers().map(|metadata| metadata.len()), Some(0));
    drop(items);
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_comes_behind_the_items_that_were_before_it() {
    let (server, client, feed) = limited();
    for (count, later) in [(0, false), (3, false), (3, true), (5_000, false)] {
        let mut items = feed.fail(count, later);
        for n in 0..count {
            assert_eq!(items.message().await.unwrap(), Some(n));
        }
        let error = items.message().await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (StatusCode::DataLoss, Executed::Finished));
        assert_eq!(error.status().unwrap().metadata().get_str("shelf"), Some("7"));
        assert_eq!(items.message().await.unwrap(), None, "there is one outcome");
    }
    let error = feed.refuse().message().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::PermissionDenied, Executed::Finished));
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_drops_a_stream_ends_its_producer() {
    let (server, client, feed) = limited();
    for taken in [0, 1, 5] {
        let mut items = feed.count_sent(u64::MAX).open().await.unwrap();
        for n in 0..taken {
            assert_eq!(items.message().await.unwrap(), Some(n));
        }
        server.until_running(1).await;
        assert_taken(&feed).await;
        drop(items);
        server.until_running(0).await;
    }
    // From a stream, in a task, both ways; and one that was never sent.
    drop(feed.count(u64::MAX));
    let mut counted = feed.count(u64::MAX);
    counted.message().await.unwrap();
    drop(counted);
    server.until("the permit is back", |server| server.snapshot().calls.held == 0).await;
    let mut spawned = feed.count_spawned(u64::MAX);
    spawned.message().await.unwrap();
    drop(spawned);
    server.until("the permit is back", |server| server.snapshot().calls.held == 0).await;
    let (sink, heard) = feed.echo().open().await.unwrap();
    drop(heard);
    server.until("the permit is back", |server| server.snapshot().calls.held == 0).await;
    drop(sink);
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn half_a_stream_of_the_clients_does_not_look_like_a_whole_one() {
    let (server, client, feed) = limited();
    let (mut numbers, sum) = feed.sum(0).open().await.unwrap();
    numbers.send(1).await.unwrap();
    server.until("the number was taken", |server| server.feeder.consumed() == 1).await;
    drop(numbers);
    let error = sum.await.unwrap_err();
    assert!(matches!(error, CallError::SinkDropped { .. }), "{error}");
    assert_eq!((error.code(), error.executed()), (StatusCode::Cancelled, Executed::Maybe));
    server.until_running(0).await;
    // The answer's future goes, while the sink stays.
    let (mut numbers, sum) = feed.sum(0).open().await.unwrap();
    drop(sum);
    server.until_running(0).await;
    let error = numbers.send(1).await.unwrap_err();
    assert!(matches!(error, CallError::Ended { .. }), "{error}");
    assert!(!numbers.is_ready() && numbers.ready().await.is_err());
    drop(numbers);
    // All at once.
    let mut sending = Box::pin(feed.sum(0).send_all(stream::iter(0..).chain(stream::pending())));
    assert!(poll!(&mut sending).is_pending());
    server.until_running(1).await;
    drop(sending);
    server.until_running(0).await;
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_before_the_last_item_ends_the_sending() {
    let (server, client, feed) = limited();
    let sum = feed.sum_first(3).send_all(stream::iter(1..)).await.unwrap();
    assert_eq!(sum, 6);
    let (mut numbers, sum) = feed.sum_first(1).open().await.unwrap();
    numbers.send(5).await.unwrap();
    assert_eq!(sum.await.unwrap(), 5);
    let error = numbers.send(6).await.unwrap_err();
    assert!(matches!(error, CallError::Ended { .. }), "{error}");
    drop(numbers);
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_covers_the_whole_stream_on_both_sides() {
    let (server, client, feed) = limited();
    let began = Instant::now();
    let mut items = feed.stall(2).timeout(50 * MS);
    assert_eq!((items.message().await.unwrap(), items.message().await.unwrap()), (Some(0), Some(1)));
    let error = items.message().await.unwrap_err();
    assert_eq!(error.code(), StatusCode::DeadlineExceeded);
    assert!(began.elapsed() >= 50 * MS && began.elapsed() < 70 * MS, "{:?}", began.elapsed());
    assert_eq!(items.message().await.unwrap(), None);
    drop(items);
    until_back(&server).await;
    // Also one that flows.
    let error = feed.sum_slowly(1).timeout(20 * MS).send_all(stream::iter(0..)).await.unwrap_err();
    assert_eq!(error.code(), StatusCode::DeadlineExceeded);
    until_back(&server).await;
    // And one whose consumer does not look: what came is there, and the end behind it.
    let mut items = feed.count(u64::MAX).timeout(20 * MS).open().await.unwrap();
    items.message().await.unwrap();
    sleep(50 * MS).await;
    let (mut got, error) = (0, take_rest(&mut items, &mut 0).await);
    got += 1;
    assert_eq!((error.unwrap_err().code(), got), (StatusCode::DeadlineExceeded, 1));
    let error = feed.count(5).timeout(Duration::ZERO).message().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::DeadlineExceeded, Executed::Never));
    drop(items);
    assert_back(&server, client, feed).await;
}

/// Takes items to the end, and says what that was.
async fn take_rest<W: sluicegate::client::DecodeItem<u64>>(
    items: &mut ItemStream<u64, W>,
    taken: &mut u64,
) -> Result<(), CallError> {
    while items.message().await?.is_some() {
        *taken += 1;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_panic_costs_its_stream_and_says_nothing() {
    let (server, client, feed) = limited();
    for count in [0, 3] {
        let mut items = feed.panic(count);
        for n in 0..count {
            assert_eq!(items.message().await.unwrap(), Some(n));
        }
        let error = items.message().await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (StatusCode::Internal, Executed::Maybe));
        assert!(!error.to_string().contains("secret"), "{error}");
        let mut items = feed.panic_in_serialize(count);
        for _ in 0..count {
            assert!(!items.message().await.unwrap().unwrap().0);
        }
        assert_eq!(items.message().await.unwrap_err().code(), StatusCode::Internal);
    }
    assert_eq!(server.snapshot().panics, 4);
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_ends_both_ends_of_every_stream() {
    let server = FeedServer::with(|builder| builder.max_concurrent_calls(3));
    let mut network = Breakable::new(&server);
    let feed: FeedClient = network.client.service();
    let mut items = feed.stall(1);
    items.message().await.unwrap();
    let (mut numbers, sum) = feed.sum(0).open().await.unwrap();
    let (mut up, mut down) = feed.echo().open().await.unwrap();
    up.send(b"x"[..].into()).await.unwrap();
    down.message().await.unwrap();
    server.until_running(3).await;
    network.cut().await;
    for error in [items.message().await.unwrap_err(), sum.await.unwrap_err(), down.message().await.unwrap_err()] {
        assert!(
            matches!(
                error,
                CallError::Lost { executed: Executed::Maybe, source: LostCause::ServerClosed | LostCause::Io(_), .. }
            ),
            "{error:?}"
        );
    }
    assert!(matches!(numbers.send(1).await, Err(CallError::Ended { .. })));
    assert!(matches!(up.send(b"y"[..].into()).await, Err(CallError::Ended { .. })));
    assert_eq!(items.message().await.unwrap(), None);
    server.until_running(0).await;
    until_client_idle(&network.client).await;
    // The permits serve the next ones, by a new connection.
    let mut next = Vec::new();
    for _ in 0..3 {
        let mut items = feed.stall(1).open().await.unwrap();
        assert_eq!(items.message().await.unwrap(), Some(0));
        next.push(items);
    }
    assert_eq!(feed.hello("you".to_owned()).await.unwrap_err().code(), StatusCode::ResourceExhausted);
    drop((next, items, numbers, up, down, feed));
    drop(network);
    server.assert_idle().await;
}

/// A client whose only connection can be cut.
struct Breakable {
    client: Client,
    serving: std::sync::Arc<std::sync::Mutex<Option<tokio::task::JoinHandle<()>>>>,
}

impl Breakable {
    fn new(server: &FeedServer) -> Self {
        let (inner, serving) = (server.harness.server.clone(), std::sync::Arc::<std::sync::Mutex<_>>::default());
        let task = std::sync::Arc::clone(&serving);
        let client = Client::with_connector("a line that is cut", move || {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let inner = inner.clone();
            *task.lock().unwrap() = Some(tokio::spawn(async move { inner.serve_connection(far, None).await }));
            async move { io::Result::Ok(near) }
        });
        Self { client: client.stream_window(1_000).build(), serving }
    }

    async fn cut(&mut self) {
        let task = self.serving.lock().unwrap().take().expect("connected once");
        task.abort();
        let _ = task.await;
    }
}

#[tokio::test(start_paused = true)]
async fn streams_get_the_grace_of_a_drain_and_then_a_status_that_says_so() {
    let server = FeedServer::with(|builder| builder.drain_grace(5_000 * MS));
    let client = server.client();
    let feed: FeedClient = client.service();
    let mut ending = feed.stall(1).open().await.unwrap();
    ending.message().await.unwrap();
    let mut endless = feed.count_sent(u64::MAX).open().await.unwrap();
    endless.message().await.unwrap();
    let (mut numbers, sum) = feed.sum(0).open().await.unwrap();
    numbers.send(5).await.unwrap();
    server.until_running(3).await;
    let (began, handle) = (Instant::now(), server.harness.handle.clone());
    let drain = tokio::spawn(async move { handle.drain().await });
    sleep(1_000 * MS).await;
    // They go on meanwhile.
    server.feeder.open_gate();
    assert_eq!(ending.message().await.unwrap(), None);
    assert!(endless.message().await.unwrap().is_some());
    numbers.send(6).await.unwrap();
    let error = within(sum).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Maybe));
    assert!(error.to_string().contains("shutting down"), "{error}");
    assert!(began.elapsed() >= 5_000 * MS && began.elapsed() < 6_000 * MS);
    let error = take_rest(&mut endless, &mut 0).await.unwrap_err();
    assert!(error.to_string().contains("shutting down"), "{error}");
    let drained = drain.await.unwrap();
    assert_eq!((drained.cut.len(), drained.stuck_connections), (2, 0), "{drained:?}");
    drop((ending, endless, numbers, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_whole_stream_that_is_ended_before_it_was_taken_does_not_look_whole_to_who_keeps_it() {
    let (server, client, feed) = limited();
    let (mut numbers, sum) = feed.sum_elsewhere().timeout(50 * MS).open().await.unwrap();
    numbers.send(1).await.unwrap();
    server.until("the first was taken", |server| server.feeder.consumed() == 1).await;
    for n in 2..=10 {
        numbers.send(n).await.unwrap();
    }
    numbers.end();
    server.until("the others have come", |server| server.snapshot().stream_bytes == 9 * 5).await;
    assert_eq!(sum.await.unwrap_err().code(), StatusCode::DeadlineExceeded);
    until_back(&server).await;
    server.feeder.open_gate();
    server.until_running(0).await;
    // Of the deadline, or of the CANCEL of the client, which knows of it as well.
    assert_eq!((server.feeder.ends().len(), server.feeder.consumed()), (1, 1));
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_ends_its_streams_in_peace() {
    let (server, client, feed) = limited();
    let mut items = feed.stall(1).open().await.unwrap();
    items.message().await.unwrap();
    client.close();
    assert!(matches!(feed.count(1).message().await.unwrap_err(), CallError::Closed));
    server.feeder.open_gate();
    assert_eq!(items.message().await.unwrap(), None);
    drop((items, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_outlives_its_method_is_told_and_sends_nothing() {
    let (server, client, feed) = limited();
    let mut items = feed.leak().open().await.unwrap();
    server.until_running(1).await;
    server.feeder.open_gate();
    assert_eq!(items.message().await.unwrap(), None);
    server.until_running(0).await;
    let ends = server.feeder.ends();
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|end| end.code() == StatusCode::FailedPrecondition), "{ends:?}");
    drop(items);
    // One whose caller goes learns that, even if it never sends.
    let (server, client, feed) = {
        drop((feed, client));
        server.assert_idle().await;
        limited()
    };
    let items = feed.leak().open().await.unwrap();
    server.until_running(1).await;
    drop(items);
    server.until_running(0).await;
    assert!(server.feeder.ends().iter().all(|end| end.code() == StatusCode::Cancelled));
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn an_item_that_cannot_be_decoded_ends_the_stream_with_that() {
    let (server, client, feed) = limited();
    // A number is no pair, and text is no number.
    let mut items = client
        .server_stream::<_, (u64, u64), sluicegate::client::Coded>(crate::support::feed::named("count"), (3_u64,));
    assert!(matches!(items.message().await.unwrap_err(), CallError::Decode { .. }));
    assert!(items.message().await.unwrap().is_none());
    drop(items);
    let sum = client.client_stream::<_, Vec<String>, u64, sluicegate::client::Coded, sluicegate::client::Coded>(
        crate::support::feed::named("sum"),
        (3_u64,),
    );
    let error = sum.send_all(stream::iter([vec!["no number".to_owned()]])).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::InvalidArgument, Executed::Finished));
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn bytes_behind_the_value_of_an_item_end_the_stream_either_way() {
    use sluicegate::client::Coded;

    let named = crate::support::feed::named;
    let (server, client, feed) = limited();
    let mut items = client.server_stream::<_, u8, Coded>(named("bytes"), (1_u64, 3_u32));
    let error = items.message().await.unwrap_err();
    assert!(
        matches!(error, CallError::Decode { source: PayloadError::TrailingBytes { left: 2, .. }, .. }),
        "{error:?}"
    );
    assert!(items.message().await.unwrap().is_none());
    drop(items);
    until_back(&server).await;
    let sum = client.client_stream::<_, (u64, u8), u64, Coded, Coded>(named("sum"), (3_u64,));
    let error = sum.send_all(stream::iter([(5, 0)])).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::InvalidArgument, Executed::Finished));
    assert!(error.to_string().contains("1 byte"), "{error}");
    assert_eq!(server.feeder.consumed(), 0);
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_of_another_kind_costs_that_call() {
    let (server, client, feed) = limited();
    let named = crate::support::feed::named;
    let error = client.call::<_, u64>(named("count"), (3_u64,)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unimplemented, Executed::Never));
    assert_eq!(error.to_string(), "unimplemented: the method is a server stream (never executed)");
    let mut items = client.server_stream::<_, u64, sluicegate::client::Coded>(named("hello"), ("you",));
    assert_eq!(items.message().await.unwrap_err().to_string(), "unimplemented: the method is unary (never executed)");
    let chat =
        client.both_ways::<_, u64, u64, sluicegate::client::Coded, sluicegate::client::Coded>(named("sum"), (3_u64,));
    let mut chat = chat.send_all(stream::iter(0..2_000));
    let error = chat.next().await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "unimplemented: the method is a client stream (never executed)");
    drop((items, chat));
    assert_back(&server, client, feed).await;
}

#[tokio::test(start_paused = true)]
async fn of_nine_endless_streams_one_is_refused_until_another_ends_in_whichever_way() {
    const LIMIT: usize = 8;
    // More than a window.
    const ITEMS: u64 = 40;
    let server = FeedServer::with(|builder| builder.max_concurrent_calls(LIMIT as u64));
    for how in ["completion", "cancel", "error", "deadline", "connection"].repeat(times_in(2_000, 2) as usize) {
        // The one that ends has a connection of its own.
        let mut network = Breakable::new(&server);
        let ending: FeedClient = network.client.service();
        let client = server.client_builder().stream_window(1_000).build();
        let feed: FeedClient = client.service();
        let mut open = Vec::new();
        for _ in 1..LIMIT {
            let mut items = feed.count_sent(u64::MAX).open().await.unwrap();
            assert_eq!(items.message().await.unwrap(), Some(0));
            open.push(items);
        }
        let mut items = match how {
            "completion" => ending.count_sent(ITEMS).open().await,
            "error" => ending.fail(ITEMS, false).open().await,
            "deadline" => ending.stall(1).timeout(50 * MS).open().await,
            _ => ending.stall(1).open().await,
        }
        .unwrap();
        assert_eq!(items.message().await.unwrap(), Some(0));
        server.until_running(LIMIT).await;
        let refused = feed.count(1).message().await.unwrap_err();
        assert_eq!((refused.code(), refused.executed()), (StatusCode::ResourceExhausted, Executed::Never), "{how}");
        let (ended, mut taken) = (Instant::now(), 1);
        match how {
            "completion" => take_rest(&mut items, &mut taken).await.unwrap(),
            "cancel" => drop(items),
            "connection" => {
                network.cut().await;
                let error = take_rest(&mut items, &mut taken).await.unwrap_err();
                assert!(matches!(error, CallError::Lost { .. }), "{error:?}");
            }
            _ => {
                let code = if how == "error" { StatusCode::DataLoss } else { StatusCode::DeadlineExceeded };
                assert_eq!(take_rest(&mut items, &mut taken).await.unwrap_err().code(), code);
            }
        }
        assert_eq!(taken, if matches!(how, "completion" | "error") { ITEMS } else { 1 }, "{how}");
        server.until("its permit is back", |server| server.snapshot().calls.held == LIMIT as u64 - 1).await;
        let most = if how == "deadline" { 100 * MS } else { 50 * MS };
        assert!(ended.elapsed() <= most, "{how}: {:?}", ended.elapsed());
        let mut ninth = feed.count_sent(u64::MAX).open().await.unwrap();
        assert_eq!(ninth.message().await.unwrap(), Some(0), "{how}");
        assert_eq!(server.snapshot().calls.held, LIMIT as u64);
        assert_eq!(feed.count(1).message().await.unwrap_err().code(), StatusCode::ResourceExhausted, "{how}");
        drop((open, ninth, feed, client, ending, network));
        server.until("all are gone", |server| server.snapshot().connections == 0).await;
    }
    server.assert_idle().await;
    assert_eq!(server.snapshot().calls.high_water, LIMIT as u64);
}
