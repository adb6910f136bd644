//! Panics in everything of a stream that is user code, among many good streams and calls on the same connections.

use futures::{Stream, StreamExt, future::join_all, stream};
use serde::{Deserialize, Deserializer, Serialize};
use sluicegate::{CallError, ItemSender, Status, StatusCode, Streaming};
use tokio::task::yield_now;

use crate::support::{
    Harness, assert_idle_soon,
    feed::Fickle,
    probe::{PANIC_TEXT, silence_wanted_panics},
    shims::times_in,
};

#[sluicegate::service(package = "test")]
trait Mines {
    /// The poll of its stream, behind so many items.
    async fn polled(&self, good: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    /// The drop of its stream, behind the last item.
    async fn dropped(&self, good: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    /// The service's future, between two items.
    async fn between(&self, good: u64, out: ItemSender<u64>) -> Result<(), Status>;
    /// The same, in a task.
    #[rpc(spawn)]
    async fn between_spawned(&self, good: u64, out: ItemSender<u64>) -> Result<(), Status>;
    /// The encoding of an item.
    async fn encoded(&self, good: u64, out: ItemSender<Fickle>) -> Result<(), Status>;
    /// The same, in a task.
    #[rpc(spawn)]
    async fn encoded_spawned(&self, good: u64, out: ItemSender<Fickle>) -> Result<(), Status>;
    /// The decoding of an item.
    async fn decoded(&self, items: Streaming<Touchy>) -> Result<u64, Status>;
    /// The same, in a task.
    #[rpc(spawn)]
    async fn decoded_spawned(&self, items: Streaming<Touchy>) -> Result<u64, Status>;
    /// The method, before there is a stream.
    async fn made(&self, good: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    /// The drop of the service's future, whose caller has gone.
    async fn left(&self, good: u64, out: ItemSender<u64>) -> Result<(), Status>;
    /// The same, in a task.
    #[rpc(spawn)]
    async fn left_spawned(&self, good: u64, out: ItemSender<u64>) -> Result<(), Status>;
    /// The drop of its stream, whose caller has gone.
    async fn left_polled(&self, good: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    /// Nothing: sends back what it takes.
    async fn good(&self, items: Streaming<u64>, out: ItemSender<u64>) -> Result<(), Status>;
    /// Nothing, and no items.
    async fn plain(&self, n: u64) -> Result<u64, Status>;
}

/// Panics when it is decoded, if it is 7.
#[derive(Debug, Serialize)]
struct Touchy(u64);

impl<'de> Deserialize<'de> for Touchy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        assert!(number != 7, "{PANIC_TEXT}");
        Ok(Self(number))
    }
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("{PANIC_TEXT}");
    }
}

fn explode(when: bool) {
    assert!(!when, "{PANIC_TEXT}");
}

struct Mined;

impl Mines for Mined {
    async fn polled(&self, good: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        Ok(stream::iter(0..=good).map(move |n| {
            explode(n == good);
            Ok(n)
        }))
    }

    async fn dropped(&self, good: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        let bomb = Bomb;
        Ok(stream::iter(0..good).map(move |n| {
            let _ = &bomb;
            Ok(n)
        }))
    }

    async fn between(&self, good: u64, mut out: ItemSender<u64>) -> Result<(), Status> {
        for n in 0..=good {
            explode(n == good);
            out.send(n).await?;
            yield_now().await;
        }
        Ok(())
    }

    async fn between_spawned(&self, good: u64, out: ItemSender<u64>) -> Result<(), Status> {
        self.between(good, out).await
    }

    async fn encoded(&self, good: u64, mut out: ItemSender<Fickle>) -> Result<(), Status> {
        for n in 0..=good {
            out.send(Fickle(n == good)).await?;
        }
        Ok(())
    }

    async fn encoded_spawned(&self, good: u64, out: ItemSender<Fickle>) -> Result<(), Status> {
        self.encoded(good, out).await
    }

    async fn decoded(&self, mut items: Streaming<Touchy>) -> Result<u64, Status> {
        let mut sum = 0;
        while let Some(item) = items.message().await? {
            sum += item.0;
        }
        Ok(sum)
    }

    async fn decoded_spawned(&self, items: Streaming<Touchy>) -> Result<u64, Status> {
        self.decoded(items).await
    }

    async fn made(&self, good: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        explode(good < u64::MAX);
        Ok(stream::empty())
    }

    async fn left(&self, good: u64, mut out: ItemSender<u64>) -> Result<(), Status> {
        let _bomb = Bomb;
        for n in 0..good {
            out.send(n).await?;
        }
        std::future::pending().await
    }

    async fn left_spawned(&self, good: u64, out: ItemSender<u64>) -> Result<(), Status> {
        self.left(good, out).await
    }

    async fn left_polled(&self, good: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        let bomb = Bomb;
        Ok(stream::iter(0..good).chain(stream::pending()).map(move |n| {
            let _ = &bomb;
            Ok(n)
        }))
    }

    async fn good(&self, mut items: Streaming<u64>, mut out: ItemSender<u64>) -> Result<(), Status> {
        while let Some(item) = items.message().await? {
            out.send(item).await?;
        }
        Ok(())
    }

    async fn plain(&self, n: u64) -> Result<u64, Status> {
        Ok(n)
    }
}

const PLACES: usize = 12;

/// Takes items to their end: how many came before the error that it was.
async fn to_the_end<T>(items: impl Stream<Item = Result<T, CallError>>) -> (u64, CallError) {
    let mut items = std::pin::pin!(items);
    for came in 0.. {
        match items.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => return (came, error),
            None => panic!("half a stream looks like a whole one"),
        }
    }
    unreachable!("an end comes")
}

/// Takes so many items and goes.
async fn leave(items: impl Stream<Item = Result<u64, CallError>>, good: u64) {
    let mut items = std::pin::pin!(items);
    for n in 0..good {
        assert_eq!(items.next().await.unwrap().unwrap(), n);
    }
}

async fn step_on(mines: &MinesClient, place: usize, good: u64) {
    let touchy = || stream::iter((0..good).map(|_| Touchy(1)).chain([Touchy(7), Touchy(1)]));
    let (came, error) = match place {
        0 => to_the_end(mines.polled(good)).await,
        1 => to_the_end(mines.dropped(good)).await,
        2 => to_the_end(mines.between(good)).await,
        3 => to_the_end(mines.between_spawned(good)).await,
        4 => to_the_end(mines.encoded(good)).await,
        5 => to_the_end(mines.encoded_spawned(good)).await,
        6 => (good, mines.decoded().send_all(touchy()).await.unwrap_err()),
        7 => (good, mines.decoded_spawned().send_all(touchy()).await.unwrap_err()),
        8 => to_the_end(mines.made(good)).await,
        // One item at least, so that there is a future to be dropped.
        9 => return leave(mines.left(good + 1), good + 1).await,
        10 => return leave(mines.left_spawned(good + 1), good + 1).await,
        _ => return leave(mines.left_polled(good + 1), good + 1).await,
    };
    assert_eq!(error.code(), StatusCode::Internal, "{place}: {error:?}");
    assert!(!format!("{error:?}").contains(PANIC_TEXT), "{place} told its text");
    assert!(came <= good, "{place}: {came} of {good}");
}

/// A stream, or a call, that nothing is wrong with.
async fn good(mines: &MinesClient, n: u64) {
    if n.is_multiple_of(3) {
        return assert_eq!(mines.plain(n).await.unwrap(), n);
    }
    let back: Vec<_> = mines.good().send_all(stream::iter(n..n + 4)).map(Result::unwrap).collect().await;
    assert_eq!(back, [n, n + 1, n + 2, n + 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panics_in_streams_among_good_ones_harm_none_of_these() {
    const CALLERS: u64 = 16;
    silence_wanted_panics();
    // One in ten panics.
    let calls = times_in(6_250, 100).next_multiple_of(10);
    let harness = Harness::with(|builder| builder.service(MinesServer::new(Mined)).max_concurrent_calls(64));
    let sockets = harness.sockets().await;
    let clients: Vec<_> = (0..4).map(|_| sockets.client()).collect();
    let callers = (0..CALLERS).map(|caller| {
        let mines: MinesClient = clients[caller as usize % clients.len()].service();
        tokio::spawn(async move {
            for n in 0..calls {
                let number = caller * calls + n;
                if n % 10 == caller % 10 {
                    step_on(&mines, (number / 10) as usize % PLACES, number % 5).await;
                } else {
                    good(&mines, number).await;
                }
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    assert_eq!(harness.snapshot().connections, 4);
    drop(clients);
    sockets.shut_down().await;
    assert_idle_soon(&harness.handle).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.panics, snapshot.protocol_errors), (CALLERS * calls / 10, 0));
    assert_eq!((snapshot.calls.acquired, snapshot.streams, snapshot.stream_bytes), (snapshot.calls.released, 0, 0));
}
