//! Settings of other frameworks, and what they come to here; and the page that says so.

use std::{sync::Arc, time::Duration};

use sluicegate::{
    RefusalReason, StatusCode,
    limit::{Rate, RateLimit},
    server::{WaitQueue, handlers::RateHandler},
};
use tokio::time::advance;

use crate::support::{Got, Harness, RawClient, Req, method};

async fn gate(peer: &mut RawClient, id: u64) {
    peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
}

fn refused_by(got: &Got) -> (String, String) {
    let Got::Response { status, .. } = got else { panic!("{got:?}") };
    let info = status.error_info().unwrap_or_else(|| panic!("{got:?} is no refusal"));
    (info.reason.to_string(), info.metadata.get_str("limit").unwrap_or_default().to_owned())
}

/// Semaphore first, then the connection's bucket with a tolerance of one second.
fn as_in_netty(permits: u64, per_second: u32) -> Harness {
    Harness::with(|builder| {
        builder.max_concurrent_calls(permits).pipeline(move |pipeline, _| {
            let rate = Rate::per_second(per_second.into()).burst(per_second);
            let bucket = RateLimit::new("bucket", rate).unwrap();
            pipeline.add_after("concurrency", "bucket", RateHandler::new(Arc::new(bucket)));
        })
    })
}

#[tokio::test(start_paused = true)]
async fn the_handler_of_netty_takes_the_semaphore_first_and_gives_it_back_when_the_bucket_refuses() {
    let harness = as_in_netty(3, 4);
    let mut peer = harness.peer().await;
    // A second's worth at once, and then one in a quarter of a second.
    for id in 1..=4 {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(peer.reply::<String>(id).await, "hi");
        harness.until_flushed(0).await;
    }
    for id in 5..=20 {
        gate(&mut peer, id).await;
        assert_eq!(refused_by(&peer.next().await), ("RATE_LIMIT".to_owned(), "bucket".to_owned()));
    }
    let calls = harness.snapshot().calls;
    assert_eq!((calls.held, calls.acquired, calls.released), (0, 20, 20), "each had a permit, and gave it back");
    advance(Duration::from_millis(250)).await;
    gate(&mut peer, 21).await;
    harness.until_running(1).await;
    // Another connection has a bucket of its own, and the same semaphore.
    let mut other = harness.peer().await;
    for id in 1..=3 {
        gate(&mut other, id).await;
    }
    harness.until_running(3).await;
    assert_eq!(refused_by(&other.next().await), ("CONCURRENCY_LIMIT".to_owned(), "global".to_owned()));
    // On write, and on close.
    drop(other);
    harness.until_running(1).await;
    harness.until_held(1).await;
    harness.probe.open_gate();
    peer.answer(21).await;
    harness.until_flushed(0).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn three_lines_are_sixty_four_at_once_128_that_wait_and_200_a_second_behind_a_burst_of_400() {
    let harness = Harness::with(|builder| {
        builder.max_concurrent_calls(64).wait_queue(WaitQueue::of(128)).rate(Rate::per_second(200.0).burst(400))
    });
    let harness = harness.plain("how long it takes to send");
    let mut peer = harness.peer().await;
    for id in 1..=192 {
        gate(&mut peer, id).await;
    }
    harness.until("they run and wait", |harness| harness.snapshot().calls_waiting == 128).await;
    assert_eq!(harness.probe.running(), 64);
    gate(&mut peer, 193).await;
    assert_eq!(refused_by(&peer.next().await), ("QUEUE_FULL".to_owned(), "global".to_owned()));
    harness.probe.open_gate();
    for _ in 1..=192 {
        assert!(matches!(peer.next().await, Got::Response { code: StatusCode::Ok, .. }));
    }
    assert_eq!(harness.probe.high_water(), 64);
    // What the queue had refused gave its token back, so 208 are left, and what came meanwhile.
    let mut passed = 0;
    for id in 194.. {
        peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
        match peer.next().await {
            Got::Response { code: StatusCode::Ok, .. } => passed += 1,
            refused => {
                assert_eq!(refused_by(&refused), ("RATE_LIMIT".to_owned(), "global rate".to_owned()));
                break;
            }
        }
    }
    assert!((208..=220).contains(&passed), "{passed}");
    peer.part().await;
    harness.assert_idle().await;
}

#[test]
fn the_page_on_limits_leads_to_the_one_table_of_reasons() {
    let limits = include_str!("../../docs/limits.md");
    let heading = include_str!("../../docs/errors.md")
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .find(|heading| heading.starts_with("Reasons"))
        .expect("errors.md has the table");
    let anchor = heading.to_lowercase().replace(' ', "-");
    assert!(limits.contains(&format!("(errors.md#{anchor})")), "{anchor}");
    assert!(RefusalReason::ALL.iter().all(|reason| !limits.contains(&format!("| {} |", reason.name()))));
}
