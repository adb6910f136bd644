//! The permit of a stream: it goes when its last byte has left, or nobody can be written to any more, and not
//! when its service returns. A stream that waits for one waits with its items.

use std::time::Duration;

use futures::{FutureExt, TryStreamExt};
use rpc_codec::{CallKind, encode_end, encode_ping};
use rpc_core::CallId;
use sluicegate::{StatusCode, server::WaitQueue};
use tokio::time::sleep;

use crate::support::{
    Got, Req,
    feed::{FeedClient, FeedServer, named},
    raw::cancel,
    shims::times_in,
    within,
};

const MS: Duration = Duration::from_millis(1);

/// Waits until no permit is out.
async fn until_back(server: &FeedServer) {
    server.until("the permit is back", |server| server.snapshot().calls.held == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_has_returned_leaves_its_permit_with_what_it_sent_until_that_is_written() {
    // Less than a window, and than what may be pending.
    const ITEMS: usize = 1_000;
    for how in ["read", "reset", "never read"] {
        let server = FeedServer::with(|builder| builder.max_concurrent_calls(1).write_timeout(5_000 * MS))
            .plain("pipes that hold little show what is unwritten");
        let client = server.client();
        let feed: FeedClient = client.service();
        let mut peer = server.harness.peer_through(1_024);
        peer.shake_hands().await;
        peer.send(&Req::new(1, named("count_sent"), (ITEMS as u64,)).takes().bytes()).await;
        let has_returned = |server: &FeedServer| server.feeder.produced() == ITEMS && server.feeder.running() == 0;
        server.until("the service has returned", has_returned).await;
        sleep(1_000 * MS).await;
        assert_eq!(server.snapshot().calls.held, 1, "{how}");
        let refused = feed.hello("you".to_owned()).await.unwrap_err();
        assert_eq!(refused.code(), StatusCode::ResourceExhausted, "{how}");
        match how {
            "read" => {
                for n in 0..ITEMS {
                    assert!(matches!(peer.next().await, Got::Item { .. }), "{n}");
                }
                peer.reply::<()>(1).await;
                until_back(&server).await;
                peer.part().await;
            }
            "reset" => {
                drop(peer);
                until_back(&server).await;
            }
            // The time counts from the last byte that was taken, which is when the service returned.
            _ => {
                sleep(3_900 * MS).await;
                assert_eq!(server.snapshot().calls.held, 1);
                sleep(200 * MS).await;
                until_back(&server).await;
                assert_eq!(server.snapshot().connections_cut.get("write"), Some(&1));
                drop(peer);
            }
        }
        assert_eq!(feed.hello("you".to_owned()).await.unwrap(), "hello, you");
        drop((feed, client));
        server.assert_idle().await;
        assert_eq!(server.snapshot().protocol_errors, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_waits_for_a_permit_opens_when_another_ends_and_its_items_have_waited_with_it() {
    let server =
        FeedServer::with(|builder| builder.max_concurrent_calls(4).wait_queue(WaitQueue::of(8).max_wait(60_000 * MS)));
    let client = server.client();
    let feed: FeedClient = client.service();
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut items = feed.stall(1).open().await.unwrap();
        assert_eq!(items.message().await.unwrap(), Some(0));
        open.push(items);
    }
    let waiting = |calls| move |server: &FeedServer| server.snapshot().calls_waiting == calls;
    let mut fifth = feed.count(3).open().await.unwrap();
    server.until("it waits", waiting(1)).await;
    let (mut numbers, sum) = feed.sum(0).open().await.unwrap();
    for n in 0..10 {
        numbers.send(n).await.unwrap();
    }
    numbers.end();
    server.until("both wait", waiting(2)).await;
    sleep(1_000 * MS).await;
    assert!(fifth.message().now_or_never().is_none());
    assert_eq!((server.snapshot().calls.held, server.feeder.running(), server.feeder.consumed()), (4, 4, 0));
    open.pop();
    assert_eq!(fifth.try_collect::<Vec<_>>().await.unwrap(), [0, 1, 2]);
    assert_eq!(within(sum).await.unwrap(), 45);
    assert_eq!(server.snapshot().calls.high_water, 4);
    // One that is given up while it waits leaves its place.
    open.push(feed.stall(0).open().await.unwrap());
    server.until_running(4).await;
    let given_up = feed.echo().open().await.unwrap();
    server.until("it waits", waiting(1)).await;
    drop(given_up);
    server.until("it has left", waiting(0)).await;
    drop((open, feed, client));
    server.assert_idle().await;
    assert_eq!(server.snapshot().protocol_errors, 0);
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_cancelled_at_once_run_no_more_than_the_limit_and_leave_nothing() {
    const LIMIT: u64 = 8;
    let server = FeedServer::with(|builder| builder.max_concurrent_calls(LIMIT).control_frame_rate(None)).large();
    let mut peer = server.harness.peer().await;
    let mut id = 0;
    for _ in 0..times_in(100_000, 300) {
        let (mut bytes, first) = (Vec::new(), id + 1);
        // Two more than there is room for.
        for _ in 0..LIMIT + 2 {
            id += 1;
            bytes.extend(match id % 3 {
                0 => Req::new(id, named("count_sent"), (u64::MAX,)).takes().bytes(),
                1 => Req::new(id, named("sum"), (0_u64,)).sends().bytes(),
                _ => Req::new(id, named("echo"), ()).of_kind(CallKind::BothWays).bytes(),
            });
        }
        (first..=id).for_each(|id| bytes.extend(cancel(id)));
        encode_ping(&mut bytes, [7; 8]);
        peer.send(&bytes).await;
        while !matches!(peer.next().await, Got::Pong(_)) {}
        assert!(server.feeder.running() <= LIMIT as usize, "{} run", server.feeder.running());
    }
    server
        .until("nothing is left", |server| {
            let snapshot = server.snapshot();
            (snapshot.calls.held, snapshot.streams, snapshot.body_bytes, server.feeder.running()) == (0, 0, 0, 0)
        })
        .await;
    let snapshot = server.snapshot();
    assert!(snapshot.calls.high_water == LIMIT && snapshot.connections_cut.is_empty(), "{snapshot:#?}");
    assert!(server.harness.refused("global") > 0);
    // There is a window for the next, behind what was refused or left before it was cancelled.
    let mut bytes = Req::new(id + 1, named("sum"), (7_u64,)).sends().bytes();
    encode_end(&mut bytes, CallId::new(id + 1, 0));
    peer.send(&bytes).await;
    loop {
        match peer.next().await {
            Got::Response { id: of, status, body, .. } if of == CallId::new(id + 1, 0) => {
                break assert_eq!(body, [7], "{status:?}");
            }
            Got::Response { .. } | Got::Item { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    drop(peer);
    server.assert_idle().await;
}
