//! The age of calls in a process whose runtimes do not agree about the time, as those of tests with
//! a virtual clock do not.

use std::time::Duration;

use tokio::{
    runtime::{Builder, Runtime},
    time::{advance, sleep},
};

use crate::support::{self, Harness, method, probe::Seen};

const MS: Duration = Duration::from_millis(1);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

#[test]
fn a_runtime_whose_clock_is_behind_that_of_the_first_call_ages_no_call() {
    // Client and server meet their clocks for the first time an hour and two hours ahead.
    let ahead = runtime();
    ahead.block_on(async {
        // Nobody is there for an hour, and nobody shall be missed.
        let harness = Harness::with(|builder| builder.keepalive_interval(None));
        advance(Duration::from_secs(3_600)).await;
        let mut peer = harness.peer().await;
        peer.send(&support::Req::new(1, method::CONTEXT, ()).bytes()).await;
        let _: Seen = peer.reply(1).await;
        harness.until_flushed(0).await;
        advance(Duration::from_secs(3_600)).await;
        let client = harness.client();
        let _: Seen = client.call(method::CONTEXT, ()).await.unwrap();
        peer.part().await;
        drop(client);
        harness.assert_idle().await;
    });
    for start in [Duration::ZERO, Duration::from_secs(3_500), Duration::from_secs(5_000)] {
        runtime().block_on(async {
            advance(start).await;
            let harness = Harness::new();
            let client = harness.client();
            for _ in 0..200 {
                let (left, ..) = client.call::<_, Seen>(method::CONTEXT, ()).timeout(50 * MS).await.unwrap();
                assert_eq!(left, Some(50), "nothing of its time was spent on the way");
                sleep(1_000 * MS).await;
            }
            drop(client);
            harness.assert_idle().await;
        });
    }
}
