//! Calls in tasks of their own, and a peer that asks for much and reads little.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use futures::future::join_all;
use rpc_codec::CodecId;
use rpc_core::CallId;
use sluicegate::{Status, StatusCode, client::Method};
use tokio::{task::yield_now, time::sleep};

use crate::support::{
    self, Got, Harness, RawClient, Req, no_call_runs,
    raw::hello,
    shims::{Manner, times},
};

const SECOND: Duration = Duration::from_secs(1);
const MARK: usize = 100_000;
const REPLY: u32 = 40_000;
const CALLS: u64 = 64;

#[sluicegate::service(package = "test")]
trait Tasks {
    /// Replies so many bytes at once.
    #[rpc(spawn)]
    async fn large(&self, len: u32) -> String;

    /// Replies so many bytes after a second.
    #[rpc(spawn)]
    async fn late(&self, len: u32) -> String;

    /// Replies so many bytes when it is polled again.
    #[rpc(spawn)]
    async fn soon(&self, len: u32) -> String;

    /// Never ends by itself.
    #[rpc(spawn)]
    async fn never(&self) -> Result<String, Status>;
}

#[derive(Clone)]
struct Service;

impl Tasks for Service {
    async fn large(&self, len: u32) -> String {
        "x".repeat(len as usize)
    }

    async fn late(&self, len: u32) -> String {
        sleep(SECOND).await;
        "x".repeat(len as usize)
    }

    async fn soon(&self, len: u32) -> String {
        yield_now().await;
        "x".repeat(len as usize)
    }

    async fn never(&self) -> Result<String, Status> {
        std::future::pending().await
    }
}

const LARGE: Method = Method::new("test.Tasks", "large");
const LATE: Method = Method::new("test.Tasks", "late");
const SOON: Method = Method::new("test.Tasks", "soon");

fn stingy_server() -> Harness {
    Harness::with(|builder| builder.write_high_water(MARK).service(TasksServer::new(Service)))
}

/// A server that reads no more above the mark, and a peer that has a small pipe to it.
async fn stingy() -> (Harness, RawClient) {
    let harness = stingy_server();
    let mut peer = harness.peer_through(16 * 1024);
    peer.shake_hands().await;
    (harness, peer)
}

/// Tasks run in any order.
async fn all_reply(peer: &mut RawClient, ids: Range<u64>) {
    let mut left: BTreeSet<_> = ids.map(|id| CallId::new(id, 0)).collect();
    while !left.is_empty() {
        match peer.next().await {
            Got::Response { id, status, body, .. } => {
                assert!(left.remove(&id) && status.code() == StatusCode::Ok, "{id:?}: {status}");
                let reply: String = CodecId::BINCODE.decode(&body).unwrap();
                assert_eq!(reply.len(), REPLY as usize);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_has_no_more_tasks_than_what_they_reply_fits_under_the_mark() {
    let (harness, mut peer) = stingy().await;
    peer.send(&Req::new(1, LARGE, (REPLY,)).bytes()).await;
    assert_eq!(peer.reply::<String>(1).await.len(), REPLY as usize);
    for round in 0..times(80) {
        let ids = 2 + round * CALLS..2 + (round + 1) * CALLS;
        let requests: Vec<_> = ids.clone().map(|id| Req::new(id, LARGE, (REPLY,)).bytes()).collect();
        peer.send(&requests.concat()).await;
        sleep(SECOND).await;
        let snapshot = harness.snapshot();
        assert!(snapshot.calls.held <= (MARK / REPLY as usize) as u64 + 2, "{snapshot:#?}");
        all_reply(&mut peer, ids).await;
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_for_something_run_at_once_whatever_they_will_reply() {
    let (harness, mut peer) = stingy().await;
    peer.send(&Req::new(1, LATE, (REPLY,)).bytes()).await;
    assert_eq!(peer.reply::<String>(1).await.len(), REPLY as usize);
    let requests: Vec<_> = (2..2 + CALLS).map(|id| Req::new(id, LATE, (REPLY,)).bytes()).collect();
    peer.send(&requests.concat()).await;
    sleep(SECOND / 2).await;
    assert_eq!(harness.snapshot().calls.held, CALLS);
    all_reply(&mut peer, 2..2 + CALLS).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test]
async fn who_reads_gets_all_that_tasks_reply_from_many_connections_on_few_threads() {
    let harness = stingy_server().unless(Manner::OneByte, "megabytes go by");
    let sockets = harness.sockets().await;
    let clients: Vec<_> = (0..4).map(|_| sockets.client().service::<TasksClient>()).collect();
    for len in [10, 5_000, 100_000] {
        let calls = clients.iter().flat_map(|client| (0..CALLS).map(move |_| client.large(len)));
        for reply in join_all(calls).await {
            assert_eq!(reply.unwrap().len(), len as usize);
        }
    }
    drop(clients);
    sockets.shut_down().await;
    support::assert_idle_soon(&harness.handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_cancelled_before_it_has_begun_makes_room_again() {
    let (harness, peer) = stingy().await;
    drop(peer);
    let tasks: TasksClient = harness.client().service();
    for _ in 0..1_000 {
        let call = tasks.never();
        assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
    }
    assert_eq!(tasks.large(REPLY).await.unwrap().len(), REPLY as usize);
    drop(tasks);
    harness.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn frames_that_wait_for_tasks_to_begin_are_all_handled_however_the_threads_meet() {
    const LEN: u32 = 400;
    const ROUNDS: usize = 1_000;
    // A few tasks reach the mark, and other threads take them below it at any moment.
    let harness = Harness::with(|builder| builder.write_high_water(1_000).service(TasksServer::new(Service)));
    let harness = harness.plain("what is read at once has to be more than is begun at once");
    for round in 0..ROUNDS {
        let mut peer = harness.silent_peer();
        let requests = (1..=CALLS).flat_map(|id| Req::new(id, SOON, (LEN,)).bytes());
        peer.send(&hello().into_iter().chain(requests).collect::<Vec<_>>()).await;
        peer.leave().await;
        let rest = peer.peer.rest().await;
        let replies = rest.iter().filter(|got| matches!(got, Got::Response { .. })).count();
        assert_eq!(replies as u64, CALLS, "round {round}");
    }
    harness.assert_idle().await;
}
