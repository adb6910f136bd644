//! The longest times as settings of a client and of its calls: each is no limit, and none is a panic.

use std::time::Duration;

use futures::{StreamExt, stream};
use sluicegate::{CallError, server::WaitQueue};
use tokio::time::sleep;

use crate::support::{
    Harness, assert_idle_soon,
    feed::{FeedClient, FeedServer},
    method, until_client_idle, within,
};

const LONG: Duration = Duration::from_secs(100_000);

#[tokio::test(start_paused = true)]
async fn a_client_with_the_longest_times_works_and_waits_as_long_as_its_server_takes() {
    let server = FeedServer::with(|builder| {
        builder
            .max_concurrent_calls(1)
            .wait_queue(WaitQueue::of(8).max_wait(Duration::MAX))
            .concurrency_retry_delay(Duration::MAX)
            .shutdown_notice(Duration::MAX)
            .keepalive_interval(None)
    });
    let client = server
        .client_builder()
        .timeout(Duration::MAX)
        .connect_timeout(Duration::MAX)
        .keepalive_interval(Duration::MAX)
        .keepalive_timeout(Duration::MAX)
        .frame_timeout(Duration::MAX)
        .write_timeout(Duration::MAX)
        .backoff(Duration::from_millis(1), Duration::MAX)
        .build();
    let feed: FeedClient = client.service();
    assert_eq!(client.call::<_, u64>(method::NONCE, (1_u64, 1_u32)).timeout(Duration::MAX).await.unwrap(), 1);
    assert_eq!(feed.count(3).timeout(Duration::MAX).count().await, 3);
    assert_eq!(feed.sum(0).timeout(Duration::MAX).send_all(stream::iter([1, 2])).await.unwrap(), 3);
    // One runs and one waits for its permit, for a day and more.
    let calls = [1_u64, 2].map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)).timeout(Duration::MAX)));
    server.until("one waits", |server| server.snapshot().calls_waiting == 1).await;
    sleep(LONG).await;
    assert!(calls.iter().all(|call| !call.is_finished()));
    server.harness.probe.open_gate();
    for (n, call) in (1..).zip(calls) {
        assert_eq!(within(call).await.unwrap().unwrap(), n);
    }
    until_client_idle(&client).await;
    drop((feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_backoff_without_end_still_lets_calls_fail_and_the_client_go() {
    let harness = Harness::new();
    let client = harness.client_builder().backoff(Duration::MAX, Duration::MAX).build();
    harness.network.set_down(true);
    let error = within(client.call::<_, u64>(method::NONCE, (1_u64, 1_u32))).await.unwrap_err();
    assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
    let waiting = client.call::<_, u64>(method::NONCE, (1_u64, 1_u32)).wait_for_ready(true).timeout(LONG);
    let error = waiting.await.unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded { .. }), "{error:?}");
    let snapshot = client.snapshot();
    // The next attempt is not made, but it is waited for.
    assert_eq!((harness.network.attempts(), snapshot.waiting_for_connection, snapshot.connecting), (1, 0, 1));
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test]
async fn a_notice_without_end_is_followed_by_no_shutdown_until_the_server_is_told_again() {
    let harness = Harness::with(|builder| builder.shutdown_notice(Duration::MAX).drain_grace(Duration::MAX))
        .plain("it is the server that accepts");
    let sockets = harness.sockets().await;
    let client = sockets.client();
    assert_eq!(client.call::<_, u64>(method::NONCE, (1_u64, 1_u32)).await.unwrap(), 1);
    let serving = sockets.stop();
    for n in 0..100_u64 {
        assert_eq!(within(client.call::<_, u64>(method::NONCE, (n, 1_u32))).await.unwrap(), n);
    }
    assert!(!serving.is_finished(), "it goes on as before");
    harness.handle.shutdown();
    within(serving).await.unwrap();
    drop(client);
    assert_idle_soon(&harness.handle).await;
}
