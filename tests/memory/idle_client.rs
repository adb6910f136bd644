//! What a client keeps when it has nothing to do.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use crate::{
    counting::LIVE,
    support::{Harness, method, until_client_idle},
};

#[tokio::test(start_paused = true)]
async fn a_connection_without_calls_gives_its_buffers_back_within_two_intervals_of_its_keepalive_and_goes_on() {
    let harness = Harness::new();
    let client = harness.client_builder().keepalive_interval(Duration::from_secs(30)).build();
    let echo = |n: usize| client.call::<_, String>(method::ECHO, ("x".repeat(n),));
    let calls = || async {
        for answer in join_all((0..40).map(|_| echo(4_000))).await {
            assert_eq!(answer.unwrap().len(), 4_000);
        }
        until_client_idle(&client).await;
    };
    calls().await;
    let busy = LIVE.get();
    sleep(Duration::from_secs(61)).await;
    let freed = busy - LIVE.get();
    assert!(freed > 100_000, "{freed} bytes are given back");
    // Late answers still find their slots, and new calls theirs.
    calls().await;
    assert_eq!((client.snapshot().connects, client.snapshot().lost_connections), (1, 0));
    drop(client);
    harness.assert_idle().await;
}
