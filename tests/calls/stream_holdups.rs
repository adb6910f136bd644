//! Streams that are held up: by a reader that has stopped, by credit that is used up, and given up meanwhile. Whoever
//! waits holds little, an item goes whole or not at all, and the others do not notice.

use std::time::Duration;

use futures::{
    StreamExt, TryStreamExt, poll,
    stream::{self, FuturesUnordered},
};
use rpc_codec::encode_credit;
use rpc_core::CallId;
use sluicegate::{Bytes, ItemSender, StatusCode};
use tokio::time::{Instant, sleep};

use crate::support::{
    Got, Req,
    feed::{FeedClient, FeedServer, named},
    raw::{cancel, hello_with, response},
    scripted::scripted_with,
    shims::{Manner, times_in},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
const MIB: usize = 1024 * 1024;

#[tokio::test(start_paused = true)]
async fn a_producer_of_megabytes_is_paused_behind_one_of_them_by_a_reader_that_has_stopped() {
    let server = FeedServer::new().plain("pipes that hold little show where the items are");
    // A peer whose window is nearly endless stops reading its socket, so the high-water mark has to hold.
    let mut endless = server.harness.peer_through(4 * 1024);
    let hello = hello_with(|hello| (hello.stream_window, hello.max_message) = (u32::MAX, MIB as u32));
    endless.send(&hello).await;
    let Got::Hello(_) = endless.next().await else { panic!("a HELLO comes first") };
    endless.send(&Req::new(1, named("bytes"), (100_000_u64, MIB as u32)).takes().bytes()).await;
    sleep(1_000 * MS).await;
    let produced = server.feeder.produced();
    let held = (server.snapshot().stream_bytes + server.snapshot().buffered_bytes) as usize;
    // One that is on its way, and one that waits behind the mark of 256 KiB or its threshold.
    assert!((1..=3).contains(&produced), "{produced} items were taken from it");
    let bound = 2 * (MIB + 8 * 1024) + ItemSender::<Bytes>::DEFAULT_THRESHOLD + 256 * 1024;
    assert!(held <= bound, "{held} bytes wait");
    // One that reads, and takes none of the items.
    let client = server.client_builder().stream_window(1).build();
    let feed: FeedClient = client.service();
    let mut items = feed.bytes(100_000, MIB as u32).open().await.unwrap();
    sleep(1_000 * MS).await;
    assert!(client.snapshot().inbound_bytes as usize <= MIB + 64 * 1024, "{:?}", client.snapshot());
    let before = server.feeder.produced();
    for _ in 0..10 {
        assert_eq!(items.message().await.unwrap().unwrap().len(), MIB);
        sleep(10 * MS).await;
    }
    let more = server.feeder.produced() - before;
    assert!((9..=11).contains(&more), "{more} items for ten that were taken");
    drop((endless, items, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_producer_of_empty_items_is_paused_by_a_reader_that_has_stopped_whatever_its_window() {
    /// The header of a frame.
    const EMPTY: usize = 16;
    let server = FeedServer::new().plain("pipes that hold little show where the items are");
    let mut endless = server.harness.peer_through(4 * 1024);
    endless.send(&hello_with(|hello| hello.stream_window = u32::MAX)).await;
    let Got::Hello(_) = endless.next().await else { panic!("a HELLO comes first") };
    endless.send(&Req::new(1, named("bytes"), (100_000_000_u64, 0_u32)).takes().bytes()).await;
    sleep(1_000 * MS).await;
    let (produced, snapshot) = (server.feeder.produced(), server.snapshot());
    let held = (snapshot.stream_bytes + snapshot.buffered_bytes) as usize;
    // Its threshold, and what is on its way below the mark.
    let bound = ItemSender::<Bytes>::DEFAULT_THRESHOLD + 256 * 1024 + 8 * 1024;
    assert!(held <= bound && produced * EMPTY <= bound, "{produced} items, {held} bytes wait");
    sleep(10_000 * MS).await;
    assert_eq!(server.feeder.produced(), produced, "it is paused");
    // Who reads again has all of them, and more.
    for n in 0..2 * produced {
        assert!(matches!(endless.next().await, Got::Item { body, .. } if body.is_empty()), "{n}");
    }
    drop(endless);
    server.assert_idle().await;
}

/// The credit that an item of a mebibyte leaves its sender: none.
#[tokio::test(start_paused = true)]
async fn a_long_item_that_is_given_up_while_it_waits_is_sent_whole_or_not_at_all() {
    let server = FeedServer::with(|builder| builder.max_message(2 * MIB as u32)).plain("megabytes go by");
    let client = server.client_builder().max_message(2 * MIB as u32).build();
    let feed: FeedClient = client.service();
    for polls in 0..12 {
        let (mut blocks, mut back) = feed.echo().open().await.unwrap();
        let (mut sent, item) = (Vec::new(), |n: u8| Bytes::from(vec![n; MIB]));
        for n in 0..6 {
            let mut sending = Box::pin(blocks.send(item(n)));
            let mut polled = poll!(&mut sending);
            for _ in 0..polls {
                if polled.is_ready() {
                    break;
                }
                // Some parts of what went before are taken, or all of it.
                if n % 2 == 0 {
                    tokio::task::yield_now().await;
                } else {
                    sleep(MS).await;
                }
                polled = poll!(&mut sending);
            }
            if polled.is_ready() {
                sent.push(n);
            }
        }
        blocks.end();
        for n in &sent {
            let came = back.message().await.unwrap().unwrap();
            assert!(came.len() == MIB && came.iter().all(|byte| byte == n), "{polls}: {} bytes for {n}", came.len());
        }
        assert_eq!(back.message().await.unwrap(), None, "{polls}: one that was given up has come");
        assert!(!sent.is_empty(), "the window covers one");
    }
    until_client_idle(&client).await;
    drop((feed, client));
    server.assert_idle().await;
    assert_eq!(server.snapshot().protocol_errors, 0);
}

/// The sender's call is given up while parts of a long item are under way.
#[tokio::test(start_paused = true)]
async fn a_long_item_whose_call_is_given_up_within_it_spoils_no_other() {
    let server = FeedServer::with(|builder| builder.max_message(2 * MIB as u32)).plain("megabytes go by");
    let client = server.harness.client_through(1_000).max_message(2 * MIB as u32).build();
    let feed: FeedClient = client.service();
    for turns in 0..30 {
        let (mut blocks, measured) = feed.measure().open().await.unwrap();
        blocks.send(Bytes::from(vec![7; MIB])).await.unwrap();
        for _ in 0..turns * 3 {
            tokio::task::yield_now().await;
        }
        if turns % 2 == 0 {
            drop(blocks);
            assert_eq!(measured.await.unwrap_err().code(), StatusCode::Cancelled);
        } else {
            drop(measured);
        }
        assert_eq!(feed.count(10).count().await, 10, "{turns}");
    }
    until_client_idle(&client).await;
    assert_eq!(client.snapshot().connects, 1);
    drop((feed, client));
    server.assert_idle().await;
    assert_eq!(server.snapshot().protocol_errors, 0);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_producers_without_credit_survive_resets_of_half_of_them_that_come_with_it() {
    let server = FeedServer::new();
    let mut peer = server.harness.silent_peer();
    peer.send(&hello_with(|hello| hello.stream_window = 1_000)).await;
    let Got::Hello(_) = peer.next().await else { panic!("a HELLO comes first") };
    let opened: Vec<_> =
        (1..=100).flat_map(|id| Req::new(id, named("count_sent"), (40_u64,)).takes().bytes()).collect();
    peer.send(&opened).await;
    server.until_running(100).await;
    // 64 bytes each: sixteen items and no more.
    let mut items = [0; 101];
    for _ in 0..100 * 16 {
        let Got::Item { id, .. } = peer.next().await else { panic!("an item is missing") };
        items[id.sequence() as usize] += 1;
    }
    assert!(peer.peer.is_silent_for(100 * MS).await, "nobody has credit");
    // In one read: half are reset, before their credit or behind it, and the others get it.
    let mut bytes = Vec::new();
    for id in 1..=100 {
        match id % 4 {
            0 => bytes.extend(cancel(id)),
            1 => {
                encode_credit(&mut bytes, CallId::new(id, 0), 10_000);
                bytes.extend(cancel(id));
            }
            _ => encode_credit(&mut bytes, CallId::new(id, 0), 10_000),
        }
    }
    peer.send(&bytes).await;
    let mut answered = 0;
    while answered < 50 {
        match peer.next().await {
            Got::Item { id, .. } => items[id.sequence() as usize] += 1,
            Got::Response { id, code, .. } => {
                assert!(id.sequence() % 4 >= 2 && code == StatusCode::Ok, "{id}: {code:?}");
                assert_eq!(items[id.sequence() as usize], 40, "{id}");
                answered += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    server.until_running(0).await;
    peer.part().await;
    server.assert_idle().await;
    assert_eq!((server.snapshot().protocol_errors, server.snapshot().panics), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_hundred_callers_without_credit_survive_when_half_are_answered_and_a_quarter_given_up_with_it() {
    let (builder, mut servers) = scripted_with(Manner::plain("the order of what is read is the point"), 1 << 20);
    let client = builder.build();
    let feed: FeedClient = client.service();
    let mut open = Vec::new();
    let opening = async {
        for _ in 0..100 {
            open.push(Some(feed.measure().open().await.unwrap()));
        }
    };
    let (mut server, ids) = {
        let serving = async {
            let mut server = servers.recv().await.unwrap();
            server.shake_hands(200).await;
            let mut ids = Vec::new();
            while ids.len() < 100 {
                ids.push(server.request().await.0);
            }
            (server, ids)
        };
        let ((), served) = futures::join!(opening, serving);
        served
    };
    // Each has used up its window.
    for stream in open.iter_mut().flatten() {
        stream.0.send(Bytes::from(vec![7; 64 * 1024])).await.unwrap();
    }
    for _ in &ids {
        let Got::Item { body, .. } = server.peer.next().await else { panic!("an item is missing") };
        assert_eq!(body.len(), 64 * 1024);
    }
    let waiting: Vec<_> = open
        .iter_mut()
        .enumerate()
        .map(|(n, stream)| {
            let (mut blocks, measured) = stream.take().unwrap();
            tokio::spawn(async move {
                let sent = blocks.send(Bytes::from_static(b"the last one")).await;
                blocks.end();
                (n, sent, measured.await)
            })
        })
        .collect();
    sleep(MS).await;
    // We give a quarter up, and in one read half are answered, and all get credit.
    for call in waiting.iter().skip(3).step_by(4) {
        call.abort();
    }
    let mut bytes = Vec::new();
    for (n, id) in ids.iter().enumerate() {
        if n % 4 == 0 {
            bytes.extend(response(*id, &1_u64));
        }
        encode_credit(&mut bytes, *id, 100_000);
        if n % 4 == 1 {
            bytes.extend(response(*id, &1_u64));
        }
    }
    server.peer.send(&bytes).await;
    // Those that are left send what they have, and are answered then.
    let mut finished = 0;
    while finished < 25 {
        match server.peer.next().await {
            Got::LastItem(id) => {
                let n = ids.iter().position(|of| *of == id).unwrap();
                if n % 4 == 2 {
                    server.reply(id, 2_u64).await;
                    finished += 1;
                }
            }
            Got::Item { .. } | Got::Cancel(_) => {}
            other => panic!("{other:?}"),
        }
    }
    for call in waiting {
        let Ok((n, sent, measured)) = call.await else { continue };
        match n % 4 {
            2 => assert_eq!((sent.is_ok(), measured.unwrap()), (true, 2), "{n}"),
            0 | 1 => assert_eq!(measured.unwrap(), 1, "{n}"),
            _ => panic!("{n} was given up"),
        }
    }
    until_client_idle(&client).await;
    let snapshot = client.snapshot();
    assert_eq!((snapshot.connects, snapshot.protocol_errors), (1, 0), "{snapshot:?}");
    // And so does an item of the next stream.
    let next = tokio::spawn(feed.measure().send_all(stream::iter([Bytes::from_static(b"hi")])));
    let mut asked = None;
    while !next.is_finished() {
        match server.peer.next().await {
            Got::Request { id, .. } => asked = Some(id),
            Got::LastItem(id) if Some(id) == asked => {
                server.reply(id, 3_u64).await;
                sleep(MS).await;
            }
            Got::Item { .. } | Got::LastItem(_) | Got::Cancel(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next.await.unwrap().unwrap(), 3);
    drop((feed, client));
}

#[tokio::test(start_paused = true)]
async fn streams_of_long_items_that_begin_at_once_all_end_however_small_their_windows_and_none_waits_for_the_clock() {
    const LEN: usize = 100 * 1024;
    // Less than a long item is promised to a client, or more than all of them; back goes one at a time.
    for window in [64 * 1024, MIB as u32] {
        let server = FeedServer::with(|builder| {
            let builder = builder.body_budget(u64::MAX / 2).body_budget_per_connection(u64::MAX / 2);
            builder.stream_window(window).max_concurrent_calls_per_connection(64).write_high_water(64 * 1024)
        })
        .plain("megabytes go by");
        let client = server.harness.client_through(4 * 1024).stream_window(1).build();
        let feed: FeedClient = client.service();
        let mut ending: FuturesUnordered<_> = (0..times_in(2_500, 60))
            .map(|n| {
                let lens = [LEN, LEN].into_iter().chain([10; 20]);
                let items: Vec<_> = lens.map(|len| Bytes::from(vec![n as u8; len])).collect();
                let echo = feed.echo().send_all(stream::iter(items.clone()));
                async move { echo.try_collect::<Vec<_>>().await.unwrap() == items }
            })
            .collect();
        let mut last = Instant::now();
        while let Some(whole) = within(ending.next()).await {
            let gap = last.elapsed();
            assert!(whole && gap <= 100 * MS, "nothing came for {gap:?}");
            last = Instant::now();
        }
        drop((ending, feed));
        until_client_idle(&client).await;
        assert_eq!(client.snapshot().connects, 1);
        drop(client);
        server.assert_idle().await;
        assert_eq!(server.snapshot().protocol_errors, 0);
    }
}
