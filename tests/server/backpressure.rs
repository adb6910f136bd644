//! A server that stops reading until its peer has read, reads on afterwards; and few writes for many
//! answers.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{future::join_all, poll};
use sluicegate::{CallError, Client, Status, server::ServerBuilder};
use tokio::{
    io::{AsyncWrite, DuplexStream, Join, ReadHalf, WriteHalf, join, split},
    time::sleep,
};

use crate::support::{Got, Harness, RawClient, Req, assert_idle_soon, method, no_call_runs, shims::Manner, within};

const MS: Duration = Duration::from_millis(1);

/// A pipe that takes everything in these tests.
const WIDE: usize = 16 * 1024 * 1024;

async fn large(client: &Client, len: u32) -> Result<usize, CallError> {
    let call = client.call::<_, String>(method::LARGE, (len,)).timeout(10_000 * MS);
    call.await.map(|reply| reply.len())
}

/// A server that reads no more while so many bytes wait for its peer.
fn with_mark(mark: usize) -> Harness {
    Harness::with(|builder: ServerBuilder| builder.write_high_water(mark))
}

#[tokio::test]
async fn answers_above_the_mark_that_a_socket_takes_whole_do_not_stop_the_reading() {
    let harness = Harness::new().unless(Manner::OneByte, "megabytes go by");
    let sockets = harness.sockets().await;
    let client = sockets.client();
    assert_eq!(large(&client, 1).await.unwrap(), 1);
    for round in 0..50 {
        let replies = tokio::join!(large(&client, 140_000), large(&client, 140_000));
        assert_eq!((replies.0.unwrap(), replies.1.unwrap()), (140_000, 140_000));
        let third = large(&client, 5).await;
        assert!(third.is_ok(), "round {round}: {third:?}");
    }
    drop(client);
    sockets.shut_down().await;
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test(start_paused = true)]
async fn answers_above_the_mark_that_a_pipe_takes_whole_do_not_stop_the_reading() {
    for mark in [1, 1_000, 20_000] {
        let harness = with_mark(mark).unless(Manner::OneByte, "megabytes go by");
        let client = harness.client_through(WIDE).build();
        for round in 0..200_u32 {
            // From one call above the mark to many that only together are.
            let (calls, len) = (1 + round % 20, round * 37);
            let replies = join_all((0..calls).map(|_| large(&client, len))).await;
            assert!(replies.iter().all(|reply| *reply.as_ref().unwrap() == len as usize));
            let next = large(&client, 5).await;
            assert!(next.is_ok(), "mark {mark}, round {round}: {next:?}");
        }
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_while_the_server_is_above_the_mark_and_reads_on_gets_all_answers() {
    const REPLY: u32 = 5_000;
    let harness = with_mark(12_000);
    let mut peer = harness.peer_through(16 * 1024);
    peer.shake_hands().await;
    let mut next_id = 1;
    for _ in 0..10 {
        // They fit into the pipe; their answers do not.
        let ids = next_id..next_id + 100_u64;
        next_id = ids.end;
        let requests: Vec<_> = ids.clone().map(|id| Req::new(id, method::LARGE, (REPLY,)).bytes()).collect();
        peer.send(&requests.concat()).await;
        sleep(1_000 * MS).await;
        let snapshot = harness.snapshot();
        assert!(snapshot.buffered_bytes > 12_000 - u64::from(REPLY), "it is not above the mark: {snapshot:#?}");
        assert!(harness.probe.started() < ids.end as usize - 50, "it takes on more than the peer reads");
        for id in ids {
            assert_eq!(peer.reply::<String>(id).await.len(), REPLY as usize);
            if id % 30 == 0 {
                sleep(1_000 * MS).await;
            }
        }
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_read_already_when_the_mark_was_reached_is_handled_afterwards() {
    const CALLS: u64 = 400;
    for mark in [1, 3_000, 100_000] {
        for pipe in [24 * 1024, WIDE] {
            for farewell in [false, true] {
                let harness = with_mark(mark).unless(Manner::OneByte, "megabytes go by");
                let mut peer = harness.peer_through(pipe);
                peer.shake_hands().await;
                let requests: Vec<_> =
                    (1..=CALLS).map(|id| Req::new(id, method::LARGE, (2_000_u32,)).bytes()).collect();
                peer.send(&requests.concat()).await;
                if farewell {
                    peer.leave().await;
                }
                for id in 1..=CALLS {
                    assert_eq!(peer.reply::<String>(id).await.len(), 2_000, "mark {mark}, pipe {pipe}");
                }
                if farewell {
                    assert!(matches!(peer.next().await, Got::End));
                } else {
                    peer.send(&Req::new(CALLS + 1, method::ECHO, ("hi",)).bytes()).await;
                    assert_eq!(peer.reply::<String>(CALLS + 1).await, "hi");
                    peer.part().await;
                }
                harness.assert_idle().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn parked_calls_that_end_one_after_the_other_share_writes() {
    const CALLS: u32 = 16;
    let harness = Harness::with(|builder| builder.service(WakingServer::new(Woken)));
    let harness = harness.plain("it counts writes");
    let (writes, plain) = counted(&harness);
    let client: WakingClient = plain.service();
    client.wake(0).await.unwrap();
    let before = writes.load(SeqCst);
    // Each is ready one turn after the one before it.
    let answers = join_all((1..=CALLS).map(|n| client.wake(n))).await;
    assert!((1..=CALLS).zip(answers).all(|(n, answer)| answer.unwrap() == n));
    let writes = writes.load(SeqCst) - before;
    assert!(writes <= CALLS as usize / 2 + 1, "{writes} writes for {CALLS} calls");
    drop((plain, client));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_lone_parked_call_is_written_in_the_turn_it_ends_and_one_of_several_a_turn_later_at_most() {
    let harness = Harness::new().plain("it counts turns and writes");
    let (ours, theirs) = tokio::io::duplex(WIDE);
    let writes = Arc::new(AtomicUsize::new(0));
    let count = || writes.load(SeqCst);
    let counted = counting(theirs, &writes);
    let mut peer = RawClient::new(ours);
    {
        let mut serving = pin!(harness.server.serve_connection(counted, None));
        tokio::select! {
            _ = peer.shake_hands() => {}
            () = &mut serving => panic!("it serves no more"),
        }
        for (turns, others) in [(1, 0), (2, 3), (2, 40)] {
            let first = 1_000 * (others + 1);
            harness.probe.close_gate();
            peer.send(&Req::new(first, method::GATE, (7_u64,)).bytes()).await;
            // These stay when the first one ends.
            for id in first + 1..=first + others {
                peer.send(&Req::new(id, method::SLEEP, (1_000_u64,)).bytes()).await;
            }
            for _ in 0..5 {
                assert!(poll!(&mut serving).is_pending());
            }
            assert_eq!(harness.snapshot().calls_parked, others + 1);
            let before = count();
            harness.probe.open_gate();
            for turn in 1..=turns {
                assert!(poll!(&mut serving).is_pending());
                assert!(turn == turns || count() == before, "it was written early, in turn {turn}");
            }
            assert_eq!(count(), before + 1, "it was not written in turn {turns} of its end");
            let rest = async {
                assert_eq!(peer.reply::<u64>(first).await, 7);
                for id in first + 1..=first + others {
                    peer.reply::<u64>(id).await;
                }
            };
            tokio::select! {
                () = within(rest) => {}
                () = &mut serving => panic!("it serves no more"),
            }
        }
        tokio::join!(peer.part(), serving);
    }
    harness.assert_idle().await;
}

/// Calls that wake themselves, without waiting for the runtime.
#[sluicegate::service]
trait Waking {
    async fn wake(&self, times: u32) -> Result<u32, Status>;
}

struct Woken;

impl Waking for Woken {
    async fn wake(&self, times: u32) -> Result<u32, Status> {
        for _ in 0..times {
            let mut pending = true;
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::take(&mut pending) { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
        }
        Ok(times)
    }
}

/// A client of the server, and how often the server has written to it.
fn counted(harness: &Harness) -> (Arc<AtomicUsize>, Client) {
    let (server, writes) = (harness.server.clone(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&writes);
    let client = Client::with_connector("the counted server", move || {
        let (ours, theirs) = tokio::io::duplex(WIDE);
        let (server, counted) = (server.clone(), counting(theirs, &counter));
        tokio::spawn(async move { server.serve_connection(counted, None).await });
        async move { Ok(ours) }
    });
    (writes, client.build())
}

fn counting(io: DuplexStream, writes: &Arc<AtomicUsize>) -> Join<ReadHalf<DuplexStream>, Counted> {
    let (read, write) = split(io);
    join(read, Counted { io: write, writes: Arc::clone(writes) })
}

/// Counts the writes to a transport.
struct Counted {
    io: WriteHalf<DuplexStream>,
    writes: Arc<AtomicUsize>,
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, SeqCst);
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
