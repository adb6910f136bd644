//! What is given up leaves nothing: calls that are dropped at any moment, and places in a queue.

use std::{collections::VecDeque, time::Instant};

use futures::poll;
use rpc_core::limit::{Admission, ConcurrencyLimit};
use tokio::task::yield_now;

use crate::{
    counting::LIVE,
    support::{
        Harness, method,
        shims::{is_full, times_in},
        until_client_idle,
    },
};

#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_at_any_moment_leave_no_memory_taken() {
    let harness = Harness::new();
    let client = harness.client();
    let rounds = times_in(100_000, 1_600);
    let mut before = 0;
    let mut open = VecDeque::new();
    for n in 0..rounds {
        let mut call = client.call::<_, u64>(method::GATE, (n,));
        for _ in 0..n % 5 {
            if poll!(&mut call).is_ready() {
                break;
            }
            yield_now().await;
        }
        open.push_back(call);
        // Some are out while others come and go.
        if open.len() > n as usize % 17 {
            open.clear();
        }
        if n == rounds / 4 {
            before = LIVE.get();
        }
    }
    drop(open);
    until_client_idle(&client).await;
    harness.until("none runs", |harness| harness.probe.running() == 0).await;
    let kept = LIVE.get() - before;
    assert!(kept <= 64 << 10, "{kept} bytes are kept of {rounds} calls");
    drop(client);
    harness.assert_idle().await;
}

/// F08: the promise in milliseconds is one of the long form.
#[test]
fn a_hundred_thousand_who_gave_up_waiting_leave_no_memory_and_no_delay() {
    let many = times_in(100_000, 10_000);
    let limit = ConcurrencyLimit::with_queue("test", Some(1), 100_000).unwrap();
    let Admission::Pass(permit) = limit.acquire_or_wait(0) else { panic!("it is free") };
    let before = LIVE.get();
    let turns: Vec<_> = (0..many).map(|call| limit.acquire_or_wait(call % 10)).collect();
    assert_eq!(limit.waiting(), many);
    drop(turns);
    assert_eq!(limit.waiting(), 0);
    let kept = LIVE.get() - before;
    assert!(kept <= 4 << 20, "{kept} bytes are kept of {many} who waited");
    let Admission::Wait(turn) = limit.acquire_or_wait(1) else { panic!("it is taken") };
    let mut turn = Box::pin(turn);
    let began = Instant::now();
    drop(permit);
    let passed = futures::FutureExt::now_or_never(turn.as_mut());
    let took = began.elapsed();
    assert!(passed.is_some_and(|turn| turn.is_ok()), "its turn has come");
    if is_full() {
        println!("served {took:?} after the release, behind {many} who gave up");
        assert!(took.as_micros() <= 1_000, "{took:?}");
    }
}
