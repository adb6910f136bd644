//! Credit: what is given up early takes nothing along, whoever waits is woken, and floods have bounds.

use std::time::Duration;

use futures::{FutureExt, SinkExt, StreamExt, future::join_all, stream};
use rpc_codec::{encode_credit, encode_end, encode_item};
use rpc_core::CallId;
use sluicegate::{
    Bytes, CallError, ItemSender, Status, StatusCode,
    client::{Coded, LostCause},
};
use tokio::time::{Instant, sleep};

use crate::support::{
    Got, Harness, Req,
    feed::{FeedClient, FeedServer, named},
    harness::PIPE,
    raw::{ANY, cancel},
    scripted::scripted_with,
    shims::{Manner, times_in},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);

/// Opens streams of a hundred items and gives each up behind two.
async fn drop_early(feed: &FeedClient, streams: usize, read: usize) {
    for n in 0..streams {
        let mut items = feed.bytes(100, 1_000);
        for _ in 0..read {
            assert!(items.message().await.unwrap().is_some(), "{n}");
        }
    }
}

/// Sends without asking whether it may.
#[sluicegate::service(package = "test")]
trait Hasty {
    async fn hasty(&self, out: ItemSender<Bytes>) -> Result<(), Status>;

    async fn calm(&self) -> u64;
}

struct Sends;

impl Hasty for Sends {
    async fn hasty(&self, mut out: ItemSender<Bytes>) -> Result<(), Status> {
        loop {
            out.start_send_unpin(Bytes::from(vec![7; 1_000]))?;
        }
    }

    async fn calm(&self) -> u64 {
        7
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_sends_without_asking_ends_its_own_call_when_there_is_no_credit_and_no_other() {
    let harness = Harness::with(|builder| builder.service(HastyServer::new(Sends)));
    let client = harness.client();
    let service: HastyClient = client.service();
    for _ in 0..3 {
        let mut items = service.hasty();
        let (mut received, mut last) = (0, Ok(()));
        while let Some(item) = items.next().await {
            match item {
                Ok(_) => received += 1,
                Err(error) => last = Err(error.code()),
            }
        }
        assert_eq!((received, last), (132, Err(StatusCode::Internal)), "a window of 128 KiB");
        assert_eq!(service.calm().await.unwrap(), 7);
    }
    assert_eq!(harness.network.attempts(), 1);
    drop((service, client));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn thousands_of_streams_that_were_given_up_leave_the_next_at_full_speed() {
    let server = FeedServer::new().large();
    let client = server.client();
    let feed: FeedClient = client.service();
    drop_early(&feed, times_in(10_000, 4_000) as usize, 2).await;
    until_client_idle(&client).await;
    server.until("nothing is in flight", |server| server.snapshot().streams == 0).await;
    let snapshot = server.snapshot();
    assert_eq!((snapshot.calls.held, snapshot.stream_bytes, snapshot.body_bytes), (0, 0, 0));
    assert_eq!(feed.count(10_000).count().await, 10_000);
    assert_eq!(
        (client.snapshot().connects, client.snapshot().protocol_errors),
        (1, 0),
        "no flood, though items were late"
    );
    drop((feed, client));
    server.assert_idle().await;
    assert_eq!(server.snapshot().protocol_errors, 0);
}

#[tokio::test(start_paused = true)]
async fn streams_of_the_clients_that_were_given_up_give_their_windows_back() {
    // Room for four windows.
    let window = 64 * 1024;
    let server = FeedServer::with(|builder| {
        builder.body_budget(4 * window).body_budget_per_connection(4 * window).max_message(window as u32)
    })
    .large();
    let client = server.client();
    let feed: FeedClient = client.service();
    for n in 0..2_000_u32 {
        let mut open = Vec::new();
        for _ in 0..4 {
            let (mut blocks, measured) = feed.measure().open().await.unwrap();
            // As much as may be sent, or none.
            while n % 2 == 0 && blocks.is_ready() {
                blocks.send(Bytes::from_static(&[7; 1_000])).await.unwrap();
            }
            open.push((blocks, measured));
        }
        if n == 0 {
            server.until_running(4).await;
            assert_eq!(server.snapshot().body_bytes, 0, "windows are the connection's");
            let error = feed.measure().send_all(stream::iter([Bytes::new()])).await.unwrap_err();
            let info = error.status().unwrap().error_info().unwrap();
            assert_eq!((&*info.reason, info.metadata.get_str("limit")), ("BODY_BUDGET", Some("connection bodies")));
        }
        drop(open);
        until_client_idle(&client).await;
        server.until("the windows are back", |server| server.snapshot().body_bytes == 0).await;
    }
    assert_eq!(feed.measure().send_all(stream::iter([Bytes::from_static(&[7; 50_000])])).await.unwrap(), 50_000);
    assert_eq!(client.snapshot().connects, 1);
    drop((feed, client));
    server.assert_idle().await;
    assert_eq!(server.snapshot().protocol_errors, 0);
}

#[tokio::test(start_paused = true)]
async fn whatever_ends_the_streams_of_a_client_their_windows_are_there_for_the_next() {
    const WINDOWS: usize = 4;
    let window = 64 * 1024;
    let server = FeedServer::with(|builder| {
        let budget = WINDOWS as u64 * window;
        builder.body_budget(budget).body_budget_per_connection(budget).max_message(window as u32)
    })
    .large();
    let client = server.client();
    let feed: FeedClient = client.service();
    for n in 0..times_in(6_000, 300) {
        let streams = (0..WINDOWS).map(|_| async {
            match n % 3 {
                // An answer before the last item, with many under way.
                0 => {
                    let (mut numbers, sum) = feed.sum_first(1).open().await.unwrap();
                    while numbers.is_ready() && numbers.send(1).await.is_ok() {}
                    assert_eq!(sum.await.unwrap(), 1);
                }
                // An error of the service: text is no number.
                1 => {
                    let sum = client.client_stream::<_, Vec<String>, u64, Coded, Coded>(named("sum"), (0_u64,));
                    let texts = stream::iter((0..100).map(|_| vec!["no number".to_owned()]));
                    assert_eq!(sum.send_all(texts).await.unwrap_err().code(), StatusCode::InvalidArgument);
                }
                _ => {
                    let late = feed.sum_slowly(1_000).timeout(5 * MS).send_all(stream::iter(0..));
                    assert_eq!(late.await.unwrap_err().code(), StatusCode::DeadlineExceeded);
                }
            }
        });
        join_all(streams).await;
        until_client_idle(&client).await;
        server
            .until("all is back", |server| {
                let snapshot = server.snapshot();
                (snapshot.calls.held, snapshot.streams, snapshot.body_bytes) == (0, 0, 0)
            })
            .await;
    }
    // As many as there are windows for, and not one more.
    let mut open = Vec::new();
    for _ in 0..WINDOWS {
        open.push(feed.measure().open().await.unwrap());
    }
    server.until_running(WINDOWS).await;
    let error = feed.measure().send_all(stream::iter([Bytes::new()])).await.unwrap_err();
    assert_eq!(&*error.status().unwrap().error_info().unwrap().reason, "BODY_BUDGET");
    drop((open, feed));
    until_client_idle(&client).await;
    assert_eq!((client.snapshot().connects, client.snapshot().protocol_errors), (1, 0));
    drop(client);
    server.assert_idle().await;
    assert_eq!(server.snapshot().protocol_errors, 0);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_streams_that_wait_for_credit_survive_the_resets_of_half_of_them() {
    let server = FeedServer::new();
    let client = server.client_builder().stream_window(1_000).build();
    let feed: FeedClient = client.service();
    let mut streams = Vec::new();
    for n in 0..100_u64 {
        streams.push(Some((n, feed.count_sent(1_000).open().await.unwrap())));
    }
    server.until_running(100).await;
    sleep(10 * MS).await;
    for (n, stream) in streams.iter_mut().enumerate() {
        if n % 2 == 0 {
            *stream = None;
        } else if let Some((_, items)) = stream {
            items.message().await.unwrap();
        }
    }
    for (_, items) in streams.iter_mut().flatten() {
        assert_eq!(items.count().await, 999);
    }
    drop((streams, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_credit_is_woken_by_the_end_of_the_call_and_of_the_connection() {
    let server = FeedServer::new();
    for how in ["answer", "cancel", "connection"] {
        let client = server.client();
        let feed: FeedClient = client.service();
        // Only one of them ends by its deadline.
        let patience = if how == "answer" { 100 * MS } else { 3_600_000 * MS };
        let (mut numbers, sum) = feed.sum_slowly(200).timeout(patience).open().await.unwrap();
        while let Some(sent) = numbers.send(1).now_or_never() {
            sent.unwrap();
        }
        let waiting = tokio::spawn(async move {
            loop {
                if let Err(error) = numbers.send(1).await {
                    return error;
                }
            }
        });
        sleep(10 * MS).await;
        assert!(!waiting.is_finished());
        let began = Instant::now();
        match how {
            "cancel" => drop(sum),
            "answer" => assert_eq!(sum.await.unwrap_err().code(), StatusCode::DeadlineExceeded),
            _ => {
                server.harness.network.cut();
                let error = sum.await.unwrap_err();
                assert!(matches!(error, CallError::Lost { .. }), "{error}");
            }
        }
        let error = within(waiting).await.unwrap();
        assert!(matches!(error, CallError::Ended { .. }), "{how}: {error}");
        assert!(began.elapsed() <= 100 * MS, "{how}: {:?}", began.elapsed());
        drop((feed, client));
    }
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn late_items_of_a_cancelled_stream_are_ignored_and_more_of_them_are_a_flood() {
    let server = FeedServer::new();
    let mut peer = server.harness.peer().await;
    let mut out = Req::new(1, named("sum"), (0_u64,)).sends().bytes();
    let item = |out: &mut Vec<u8>| {
        encode_item::<()>(out, CallId::new(1, 0), ANY, |out| {
            out.push(7);
            Ok(())
        })
        .unwrap();
    };
    item(&mut out);
    out.extend_from_slice(&cancel(1));
    // As many as the window had left, and an END: no flood, and the burst is left for others.
    for _ in 0..1_023 {
        item(&mut out);
    }
    encode_end(&mut out, CallId::new(1, 0));
    peer.send(&out).await;
    server.until("they were ignored", |server| server.snapshot().frames_ignored == 1_024).await;
    out.clear();
    for _ in 0..10_000 {
        item(&mut out);
    }
    peer.send(&out).await;
    peer.send(&Req::new(2, named("hello"), ("you",)).bytes()).await;
    assert_eq!(peer.reply::<String>(2).await, "hello, you");
    out.clear();
    (0..100).for_each(|_| item(&mut out));
    peer.send(&out).await;
    let (_, reason, message) = peer.go_away().await;
    assert_eq!(reason, rpc_codec::GoAwayReason::TooManyFrames, "{message}");
    drop(peer);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn credit_for_which_no_item_was_sent_is_charged() {
    let server = FeedServer::new();
    let mut peer = server.harness.peer().await;
    peer.send(&Req::new(1, named("stall"), (1_u64,)).takes().bytes()).await;
    assert!(matches!(peer.next().await, Got::Item { .. }));
    let mut out = Vec::new();
    for _ in 0..10_001 {
        encode_credit(&mut out, CallId::new(1, 0), 1);
    }
    peer.send(&out).await;
    peer.send(&Req::new(2, named("hello"), ("you",)).bytes()).await;
    assert_eq!(peer.reply::<String>(2).await, "hello, you", "one was paid for, and ten thousand are the burst");
    peer.send(&out).await;
    let (_, reason, _) = peer.go_away().await;
    assert_eq!(reason, rpc_codec::GoAwayReason::TooManyFrames);
    drop(peer);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_at_the_last_ids_of_its_connection_works_and_the_next_goes_by_another() {
    let server = FeedServer::new().large();
    let client = server.client_builder().ids_used(CallId::MAX_SEQUENCE - 2).build();
    let feed: FeedClient = client.service();
    let (mut up, mut down) = feed.echo().open().await.unwrap();
    let mut other = feed.count(1_000_000);
    assert_eq!(other.message().await.unwrap(), Some(0));
    assert_eq!(feed.sum(1).send_all(stream::iter([2])).await.unwrap(), 3);
    assert_eq!(client.snapshot().connects, 2);
    up.send(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(down.message().await.unwrap().unwrap(), "still here");
    assert_eq!(other.by_ref().count().await, 999_999);
    up.end();
    assert_eq!(down.message().await.unwrap(), None);
    drop((down, other, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_ends_a_connection_whose_server_sends_beyond_its_credit() {
    let (builder, mut servers) =
        scripted_with(Manner::unless(Manner::OneByte, "it counts on what is read at once"), PIPE);
    let client = builder.build();
    let feed: FeedClient = client.service();
    let items = tokio::spawn(async move { feed.count(5).collect::<Vec<_>>().await });
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    let mut out = Vec::new();
    // 2,048 times 64 bytes are the window.
    for _ in 0..2_049 {
        encode_item::<()>(&mut out, id, ANY, |out| {
            out.push(7);
            Ok(())
        })
        .unwrap();
    }
    server.peer.send(&out).await;
    let got = items.await.unwrap();
    let error = got.last().unwrap().as_ref().unwrap_err();
    let CallError::Lost { source: LostCause::Protocol(why), .. } = error else { panic!("{error}") };
    assert!(why.contains("credit of the stream is used up"), "{why}");
    assert_eq!(got.len(), 2_049);
    until_client_idle(&client).await;
}
