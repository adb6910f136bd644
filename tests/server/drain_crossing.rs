//! Calls that cross the farewell of a server that leaves: each is executed once, here or elsewhere.

use sluicegate::{Client, Executed};
use tokio::task::yield_now;

use crate::support::{
    Harness,
    bodies::MIB,
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
