//! What a deadline leaves behind when its call has ended long before it: nothing.

use std::time::Duration;

use futures::future::join_all;

use crate::{
    counting::LIVE,
    support::{Harness, method, shims::times, until_client_idle},
};

/// Far beyond the end of the test.
const DEADLINE: Duration = Duration::from_secs(60);
const AT_ONCE: u64 = 100;

#[tokio::test(flavor = "current_thread")]
async fn calls_that_end_long_before_their_deadlines_leave_nothing_that_waits_for_these() {
    let harness = Harness::new();
    let client = harness.client();
    let a_hundred = || async {
        let call = |n: u64| client.call::<_, String>(method::ECHO, (n.to_string(),)).timeout(DEADLINE);
        for (n, echo) in join_all((0..AT_ONCE).map(call)).await.into_iter().enumerate() {
            assert_eq!(echo.unwrap(), n.to_string());
        }
    };
    for _ in 0..10 {
        a_hundred().await;
    }
    let before = LIVE.get();
    let hundreds = times(1_000_000 / AT_ONCE);
    for _ in 0..hundreds {
        a_hundred().await;
    }
    let kept = LIVE.get() - before;
    assert!(kept <= 16 << 10, "{kept} bytes are kept of {} calls", hundreds * AT_ONCE);
    until_client_idle(&client).await;
    drop(client);
    harness.assert_idle().await;
}
