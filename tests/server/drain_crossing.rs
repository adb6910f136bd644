//! Calls that cross the farewell of a server that leaves: each is executed once, here or elsewhere.

use futures::stream;
use sluicegate::{Client, Executed};
use tokio::task::yield_now;

use crate::support::{
    Harness,
    bodies::MIB,
    feed::{FeedClient, FeedServer},
    method,
    shims::{Manner, Random, times_in},
    until_client_idle,
};

/// Calls of a round that come while the server begins to leave.
const CALLS: u64 = 8;
/// A reply as long as a client takes by default.
const LONG: u32 = 4 * MIB as u32 - 16;

/// Makes a call, and makes it again elsewhere if it is known not to have been executed. Whether it had to.
async fn insist(client: Client, elsewhere: Client, n: u64, turns: u64) -> bool {
    for _ in 0..turns {
        yield_now().await;
    }
    let args = (n, (n % 3) as u32);
    match client.call::<_, u64>(method::NONCE, args).await {
        Ok(answer) => {
            assert_eq!(answer, n);
            false
        }
        Err(error) => {
            assert_eq!(error.executed(), Executed::Never, "{error:?}");
            assert_eq!(elsewhere.call::<_, u64>(method::NONCE, args).await.unwrap(), n);
            true
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_crosses_the_farewell_is_executed_once_and_a_long_reply_is_seen_through() {
    let (mut random, mut moved, mut stayed) = (Random::seeded(63), 0, 0);
    let rounds = times_in(10_000 / CALLS, 24);
    for _ in 0..rounds {
        let [leaving, other] = [(); 2].map(|()| Harness::new().unless(Manner::OneByte, "megabytes go by"));
        let (client, elsewhere) = (leaving.client(), other.client());
        let long = tokio::spawn(client.call::<_, String>(method::LARGE, (LONG,)));
        leaving.until("the long reply is on its way", |leaving| leaving.probe.finished() == 1).await;
        let calls: Vec<_> =
            (0..CALLS).map(|n| tokio::spawn(insist(client.clone(), elsewhere.clone(), n, random.below(24)))).collect();
        for _ in 0..random.below(24) {
            yield_now().await;
        }
        leaving.handle.shutdown();
        for call in calls {
            let elsewhere = call.await.unwrap();
            (moved, stayed) = (moved + u64::from(elsewhere), stayed + u64::from(!elsewhere));
        }
        assert_eq!(long.await.unwrap().unwrap().len(), LONG as usize);
        let drained = leaving.handle.drain().await;
        assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
        let executed = [&leaving, &other].map(|harness| harness.probe.started() as u64);
        assert_eq!(executed.iter().sum::<u64>(), CALLS + 1);
        until_client_idle(&client).await;
        drop((client, elsewhere));
        leaving.assert_idle().await;
        other.assert_idle().await;
    }
    assert!(moved > rounds / 4 && stayed > rounds / 4, "{moved} went elsewhere, {stayed} stayed");
}

/// Items of a stream.
const ITEMS: u64 = 20;

/// As [`insist`], with items.
async fn insist_with_items(client: Client, elsewhere: Client, n: u64, turns: u64) -> bool {
    for _ in 0..turns {
        yield_now().await;
    }
    let sum = |client: &Client| client.service::<FeedClient>().sum(n).send_all(stream::iter(0..ITEMS));
    let expected = n + (0..ITEMS).sum::<u64>();
    match sum(&client).await {
        Ok(answer) => {
            assert_eq!(answer, expected);
            false
        }
        Err(error) => {
            assert_eq!(error.executed(), Executed::Never, "{error:?}");
            assert_eq!(sum(&elsewhere).await.unwrap(), expected);
            true
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_crosses_the_farewell_is_seen_through_or_was_never_executed() {
    let (mut random, mut moved, mut stayed) = (Random::seeded(63), 0, 0);
    let rounds = times_in(10_000 / CALLS, 24);
    for _ in 0..rounds {
        let [leaving, other] = [(); 2].map(|()| FeedServer::new());
        let (client, elsewhere) = (leaving.client(), other.client());
        let feed: FeedClient = client.service();
        let mut long = feed.stall(1).open().await.unwrap();
        assert_eq!(long.message().await.unwrap(), Some(0));
        let streams: Vec<_> = (0..CALLS)
            .map(|n| tokio::spawn(insist_with_items(client.clone(), elsewhere.clone(), n, random.below(24))))
            .collect();
        for _ in 0..random.below(24) {
            yield_now().await;
        }
        leaving.harness.handle.shutdown();
        for stream in streams {
            let elsewhere = stream.await.unwrap();
            (moved, stayed) = (moved + u64::from(elsewhere), stayed + u64::from(!elsewhere));
        }
        // One that was open before goes on to its own end.
        leaving.feeder.open_gate();
        assert_eq!(long.message().await.unwrap(), None);
        let drained = leaving.harness.handle.drain().await;
        assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
        // Each item was taken once, by one of them.
        let taken = [&leaving, &other].map(|server| server.feeder.consumed() as u64);
        assert_eq!(taken.iter().sum::<u64>(), CALLS * ITEMS, "{taken:?}");
        until_client_idle(&client).await;
        drop((long, feed, client, elsewhere));
        for server in [leaving, other] {
            server.assert_idle().await;
            assert_eq!(server.snapshot().protocol_errors, 0);
        }
    }
    assert!(moved > rounds / 4 && stayed > rounds / 4, "{moved} went elsewhere, {stayed} stayed");
}
