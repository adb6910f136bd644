//! Figures of what is in use: each counts what its words say, and comes back to zero.

use std::time::Duration;

use sluicegate::server::WaitQueue;

use crate::support::{Harness, Req, method, parts::opening};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn services_that_run_are_told_from_calls_that_wait_for_their_bodies_or_for_permits() {
    for gate in [method::GATE, method::GATE_SPAWNED] {
        let harness = Harness::with(|builder| builder.max_concurrent_calls(2).wait_queue(WaitQueue::of(2)));
        let figures = || {
            let snapshot = harness.snapshot();
            [snapshot.calls_parked, snapshot.calls_waiting, snapshot.services_running]
        };
        let mut peer = harness.peer().await;
        peer.send(&opening(Req::new(1, method::ECHO, ()), 100_000, &[0; 5_000])).await;
        harness.until("its body is coming", |_| figures() == [1, 0, 0]).await;
        for id in 2..=4 {
            peer.send(&Req::new(id, gate, (id,)).bytes()).await;
        }
        harness.until("two run, and one waits for a permit", |_| figures() == [4, 1, 2]).await;
        assert!(!harness.snapshot().is_idle());
        harness.probe.open_gate();
        for _ in 2..=4 {
            peer.next().await;
        }
        harness.until("one is left", |_| figures() == [1, 0, 0]).await;
        drop(peer);
        harness.assert_idle().await;
        assert_eq!(figures(), [0, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn of_each_connection_is_told_what_it_has_in_buffers_and_they_come_to_what_all_have() {
    const LEN: u32 = 100_000;
    let harness = Harness::new();
    let figures = || {
        let connections = harness.handle.connections();
        connections.iter().map(|connection| [connection.buffered_bytes, connection.inbound_bytes]).collect::<Vec<_>>()
    };
    let mut deaf = harness.peer_through(1_024);
    deaf.shake_hands().await;
    let mut slow = harness.peer().await;
    let _quiet = harness.peer().await;
    deaf.send(&Req::new(1, method::LARGE, (LEN,)).bytes()).await;
    slow.send(&Req::new(1, method::ECHO, ("hi",)).bytes()[..13]).await;
    harness.until("half a frame is there", |_| figures().get(1) == Some(&[0, 13])).await;
    let [[unread, 0], [0, 13], [0, 0]] = figures()[..] else { panic!("{:?}", figures()) };
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.buffered_bytes, snapshot.inbound_bytes), (unread, 13));
    assert!((u64::from(LEN) / 2..=u64::from(LEN) + 1_024).contains(&unread), "{unread} bytes");
    deaf.answer(1).await;
    harness.until("it has been read", |_| figures()[0] == [0, 0]).await;
    let known: Vec<_> = harness.handle.connections().iter().map(|connection| connection.id).collect();
    assert!(known.is_sorted() && known.len() == 3, "{known:?}");
    drop(slow);
    tokio::time::sleep(MS).await;
    assert_eq!(harness.handle.connections().len(), 2);
    drop((deaf, _quiet));
    harness.assert_idle().await;
    assert_eq!(harness.handle.connections(), []);
}
