//! What a call has taken is released when it has ended, long before its deadline: its body, and its answer's.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::poll_fn;
use sluicegate::Bytes;

use crate::{
    counting::LIVE,
    support::{Harness, method, shims::times_in, until_client_idle},
};

const MIB: usize = 1024 * 1024;
const DEADLINE: Duration = Duration::from_secs(60);

/// A body of which one can tell whether anybody still has it.
struct Owned(Arc<Vec<u8>>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn body() -> (Bytes, Weak<Vec<u8>>) {
    let owner = Arc::new(vec![7; MIB]);
    let weak = Arc::downgrade(&owner);
    (Bytes::from_owner(Owned(owner)), weak)
}

#[tokio::test(flavor = "current_thread")]
async fn bodies_are_gone_when_their_calls_have_ended_and_not_when_these_would_expire() {
    let harness = Harness::new().plain("megabytes go by");
    let client = harness.client();
    let mut before = 0;
    let calls = times_in(10_000, 40);
    for n in 0..calls {
        let (body, weak) = body();
        let mut call = client.call_bytes(method::BYTES, body).timeout(DEADLINE);
        let answer = poll_fn(|cx| std::pin::Pin::new(&mut call).poll(cx)).await.unwrap();
        assert_eq!(answer.len(), MIB);
        // The call's future is still there, and so is the connection.
        assert!(weak.upgrade().is_none(), "somebody keeps the body");
        drop((answer, call));
        if n == calls / 4 {
            before = LIVE.get();
        }
    }
    let kept = LIVE.get() - before;
    assert!(kept <= 64 << 10, "{kept} bytes are kept of {calls} calls");
    until_client_idle(&client).await;
    drop(client);
    harness.assert_idle().await;
}
