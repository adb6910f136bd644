//! A service whose methods have items, each with one behaviour, and counters that watch its producers.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize, Serializer};
use sluicegate::{
    Bytes, Client, Context, ItemSender, Status, Stream, Streaming,
    client::{ClientBuilder, Method},
    server::{ServerBuilder, Snapshot},
};
use tokio::{
    sync::{mpsc, watch},
    task::yield_now,
    time::sleep,
};

use super::{Harness, probe::PANIC_TEXT, shims::Manner};

/// What the methods do.
#[sluicegate::service(package = "test", server = "FeedService")]
pub(crate) trait Feed {
    /// The numbers below `count`, from a stream.
    async fn count(&self, count: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;

    /// The same, sent one by one.
    async fn count_sent(&self, count: u64, out: ItemSender<u64>) -> Result<(), Status>;

    /// The same in tasks.
    #[rpc(spawn)]
    async fn count_spawned(&self, count: u64, out: ItemSender<u64>) -> Result<(), Status>;

    /// `count` items of `len` bytes each.
    async fn bytes(&self, count: u64, len: u32, out: ItemSender<Bytes>) -> Result<(), Status>;

    /// `count` items, then an error; with `later` it is pending in between.
    async fn fail(&self, count: u64, later: bool) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;

    /// `count` items, then a panic.
    async fn panic(&self, count: u64, out: ItemSender<u64>) -> Result<(), Status>;

    /// A value that panics in the middle of its encoding behind `count` that do not.
    async fn panic_in_serialize(&self, count: u64, out: ItemSender<Fickle>) -> Result<(), Status>;

    /// Refuses before there is a stream.
    async fn refuse(&self) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;

    /// `count` items, then nothing until the gate opens.
    async fn stall(&self, count: u64, out: ItemSender<u64>) -> Result<(), Status>;

    /// Hands its sender to a task and returns when the gate opens.
    async fn leak(&self, out: ItemSender<u64>) -> Result<(), Status>;

    /// The sum of the client's numbers.
    async fn sum(&self, plus: u64, numbers: Streaming<u64>) -> Result<u64, Status>;

    /// Answers when it has seen `first` numbers.
    async fn sum_first(&self, first: u64, numbers: Streaming<u64>) -> Result<u64, Status>;

    /// Takes one number, wants no more, and answers with it when the gate opens.
    async fn one_and_work(&self, numbers: Streaming<u64>) -> Result<u64, Status>;

    /// Sends what it is sent first, looks for a second whether there is room for more, then works until the gate opens or
    /// the stream is closed.
    async fn echo_one_and_work(&self, items: Streaming<Bytes>, out: ItemSender<Bytes>) -> Result<(), Status>;

    /// How many of the client's numbers it has taken when the gate opens.
    async fn count_until_gate(&self, numbers: Streaming<u64>) -> Result<u64, Status>;

    /// Takes numbers, and in the same loop sends a KiB every ten milliseconds.
    async fn count_while_sending(&self, numbers: Streaming<u64>, out: ItemSender<Bytes>) -> Result<(), Status>;

    /// Takes a number every so many milliseconds.
    async fn sum_slowly(&self, ms: u64, numbers: Streaming<u64>) -> Result<u64, Status>;

    /// Hands its numbers to a task, which takes one and then the others when the gate opens.
    async fn sum_elsewhere(&self, numbers: Streaming<u64>) -> Result<u64, Status>;

    /// How many bytes there are.
    async fn measure(&self, blocks: Streaming<Bytes>) -> Result<u64, Status>;

    /// What the client sends, as it comes.
    async fn echo(&self, items: Streaming<Bytes>, out: ItemSender<Bytes>) -> Result<(), Status>;

    /// What the client sends, plus something, from a stream.
    async fn add(
        &self,
        context: Context,
        plus: u64,
        items: Streaming<u64>,
    ) -> Result<impl Stream<Item = Result<u64, Status>> + Send, Status>;

    /// What a unary call says.
    async fn hello(&self, name: String) -> Result<String, Status>;
}

/// A value whose encoding may panic.
#[derive(Debug, Deserialize, PartialEq)]
pub(crate) struct Fickle(pub(crate) bool);

impl Serialize for Fickle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!self.0, "{PANIC_TEXT}");
        serializer.serialize_newtype_struct("Fickle", &self.0)
    }
}

/// Watches and steers the service; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Feeder(Arc<Inner>);

#[derive(Default)]
struct Inner {
    running: AtomicUsize,
    produced: AtomicUsize,
    consumed: AtomicUsize,
    most_pending: AtomicUsize,
    gate: watch::Sender<bool>,
    ends: std::sync::Mutex<Vec<Status>>,
}

impl Feeder {
    /// Producers and consumers that live.
    pub(crate) fn running(&self) -> usize {
        self.0.running.load(SeqCst)
    }

    /// Items that producers have made.
    pub(crate) fn produced(&self) -> usize {
        self.0.produced.load(SeqCst)
    }

    /// Items that services have taken.
    pub(crate) fn consumed(&self) -> usize {
        self.0.consumed.load(SeqCst)
    }

    /// The most bytes that were ever pending in a sender.
    pub(crate) fn most_pending(&self) -> usize {
        self.0.most_pending.load(SeqCst)
    }

    /// Lets `stall` and `leak` end, and `sum_elsewhere` go on.
    pub(crate) fn open_gate(&self) {
        self.0.gate.send_replace(true);
    }

    /// Why senders, and the task of `sum_elsewhere`, were told that their calls have ended.
    pub(crate) fn ends(&self) -> Vec<Status> {
        self.0.ends.lock().unwrap().clone()
    }

    fn run(&self) -> Running {
        self.0.running.fetch_add(1, SeqCst);
        Running(self.clone())
    }

    async fn pass_gate(&self) {
        let mut gate = self.0.gate.subscribe();
        let _ = gate.wait_for(|open| *open).await;
    }

    async fn send<T>(&self, out: &mut ItemSender<T>, item: T) -> Result<(), Status> {
        let sent = out.send(item).await;
        if let Err(why) = &sent {
            self.0.ends.lock().unwrap().push(why.clone());
        }
        self.0.produced.fetch_add(usize::from(sent.is_ok()), SeqCst);
        self.0.most_pending.fetch_max(out.pending(), SeqCst);
        sent
    }
}

struct Running(Feeder);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, SeqCst);
    }
}

impl Feed for Feeder {
    async fn count(&self, count: u64) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        let running = self.run();
        // It borrows from the service.
        Ok(stream::iter(0..count).map(move |n| {
            let _ = &running;
            self.0.produced.fetch_add(1, SeqCst);
            Ok(n)
        }))
    }

    async fn count_sent(&self, count: u64, mut out: ItemSender<u64>) -> Result<(), Status> {
        let _running = self.run();
        for n in 0..count {
            self.send(&mut out, n).await?;
        }
        Ok(())
    }

    async fn count_spawned(&self, count: u64, out: ItemSender<u64>) -> Result<(), Status> {
        self.count_sent(count, out).await
    }

    async fn bytes(&self, count: u64, len: u32, mut out: ItemSender<Bytes>) -> Result<(), Status> {
        let _running = self.run();
        for n in 0..count {
            self.send(&mut out, Bytes::from(vec![n as u8; len as usize])).await?;
        }
        Ok(())
    }

    async fn fail(&self, count: u64, later: bool) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        let running = self.run();
        let error = stream::once(async move {
            let _running = running;
            if later {
                sleep(Duration::from_millis(5)).await;
            }
            let mut metadata = sluicegate::Metadata::new();
            metadata.insert("shelf", "7").unwrap();
            Err(Status::data_loss("the shelf is broken").with_metadata(metadata))
        });
        Ok(stream::iter((0..count).map(Ok)).chain(error))
    }

    async fn panic(&self, count: u64, mut out: ItemSender<u64>) -> Result<(), Status> {
        let running = self.run();
        for n in 0..count {
            self.send(&mut out, n).await?;
        }
        assert!(running.0.running() == usize::MAX, "{PANIC_TEXT}");
        Ok(())
    }

    async fn panic_in_serialize(&self, count: u64, mut out: ItemSender<Fickle>) -> Result<(), Status> {
        let _running = self.run();
        for n in 0..=count {
            self.send(&mut out, Fickle(n == count)).await?;
        }
        Ok(())
    }

    async fn refuse(&self) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        Err::<stream::Empty<_>, _>(Status::permission_denied("not for you"))
    }

    async fn stall(&self, count: u64, mut out: ItemSender<u64>) -> Result<(), Status> {
        let _running = self.run();
        for n in 0..count {
            self.send(&mut out, n).await?;
        }
        self.pass_gate().await;
        Ok(())
    }

    async fn leak(&self, mut out: ItemSender<u64>) -> Result<(), Status> {
        let feeder = self.clone();
        tokio::spawn(async move {
            let running = feeder.run();
            let why = out.closed().await;
            feeder.0.ends.lock().unwrap().push(why);
            let late = out.send(7).await;
            feeder.0.ends.lock().unwrap().push(late.unwrap_err());
            drop(running);
        });
        self.pass_gate().await;
        Ok(())
    }

    async fn sum(&self, plus: u64, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let _running = self.run();
        let mut sum = plus;
        while let Some(number) = numbers.message().await? {
            self.0.consumed.fetch_add(1, SeqCst);
            sum += number;
        }
        Ok(sum)
    }

    async fn sum_first(&self, first: u64, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let _running = self.run();
        let mut sum = 0;
        for _ in 0..first {
            sum += numbers.message().await?.unwrap_or_default();
        }
        Ok(sum)
    }

    async fn one_and_work(&self, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let _running = self.run();
        let one = numbers.message().await?.unwrap_or_default();
        drop(numbers);
        self.pass_gate().await;
        Ok(one)
    }

    async fn echo_one_and_work(&self, mut items: Streaming<Bytes>, mut out: ItemSender<Bytes>) -> Result<(), Status> {
        let _running = self.run();
        if let Some(item) = items.message().await? {
            self.send(&mut out, item).await?;
        }
        if let Ok(room) = tokio::time::timeout(Duration::from_secs(1), out.ready()).await {
            room?;
        }
        tokio::select! {
            () = self.pass_gate() => Ok(()),
            why = out.closed() => Err(why),
        }
    }

    async fn count_while_sending(&self, mut numbers: Streaming<u64>, mut out: ItemSender<Bytes>) -> Result<(), Status> {
        let _running = self.run();
        let mut lines = tokio::time::interval(Duration::from_millis(10));
        loop {
            tokio::select! {
                number = numbers.message() => match number? {
                    Some(_) => {}
                    None => return Ok(()),
                },
                _ = lines.tick() => out.send(Bytes::from(vec![0; 1_024])).await?,
            }
        }
    }

    async fn count_until_gate(&self, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let _running = self.run();
        let (mut count, mut gate) = (0, pin!(self.pass_gate()));
        loop {
            tokio::select! {
                biased;
                () = &mut gate => return Ok(count),
                number = numbers.message() => count += u64::from(number?.is_some()),
            }
        }
    }

    async fn sum_slowly(&self, ms: u64, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let _running = self.run();
        let mut sum = 0;
        while let Some(number) = numbers.message().await? {
            self.0.consumed.fetch_add(1, SeqCst);
            sum += number;
            sleep(Duration::from_millis(ms)).await;
        }
        Ok(sum)
    }

    async fn sum_elsewhere(&self, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let feeder = self.clone();
        let summing = tokio::spawn(async move {
            let _running = feeder.run();
            let mut sum = 0;
            loop {
                match numbers.message().await {
                    Ok(Some(number)) => sum += number,
                    Ok(None) => return sum,
                    Err(why) => {
                        feeder.0.ends.lock().unwrap().push(why);
                        return sum;
                    }
                }
                feeder.0.consumed.fetch_add(1, SeqCst);
                feeder.pass_gate().await;
            }
        });
        summing.await.map_err(|error| Status::internal(error.to_string()))
    }

    async fn measure(&self, mut blocks: Streaming<Bytes>) -> Result<u64, Status> {
        let _running = self.run();
        let mut bytes = 0;
        while let Some(block) = blocks.message().await? {
            self.0.consumed.fetch_add(1, SeqCst);
            bytes += block.len() as u64;
        }
        Ok(bytes)
    }

    async fn echo(&self, mut items: Streaming<Bytes>, mut out: ItemSender<Bytes>) -> Result<(), Status> {
        let _running = self.run();
        while let Some(item) = items.message().await? {
            self.send(&mut out, item).await?;
        }
        Ok(())
    }

    async fn add(
        &self,
        context: Context,
        plus: u64,
        items: Streaming<u64>,
    ) -> Result<impl Stream<Item = Result<u64, Status>> + Send, Status> {
        let running = self.run();
        let (tx, rx) = mpsc::channel(4);
        tokio::spawn(context.scope(async move {
            let (_running, mut items) = (running, items);
            while let Some(item) = items.next().await {
                yield_now().await;
                if tx.send(item.map(|n| n + plus)).await.is_err() {
                    break;
                }
            }
        }));
        Ok(stream::unfold(rx, async |mut rx| rx.recv().await.map(|item| (item, rx))))
    }

    async fn hello(&self, name: String) -> Result<String, Status> {
        Ok(format!("hello, {name}"))
    }
}

/// A server of a [`Feeder`], beside the probe that every server of the tests has.
pub(crate) struct FeedServer {
    pub(crate) feeder: Feeder,
    pub(crate) harness: Harness,
}

impl FeedServer {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        let feeder = Feeder::default();
        let harness = Harness::with(|builder| configure(builder.service(FeedService::new(feeder.clone()))));
        Self { feeder, harness }
    }

    /// For what would take minutes a byte at a time.
    pub(crate) fn large(self) -> Self {
        Self { harness: self.harness.unless(Manner::OneByte, "megabytes go by"), ..self }
    }

    /// With plain transports in every run, because of `reason`.
    pub(crate) fn plain(self, reason: &str) -> Self {
        Self { harness: self.harness.plain(reason), ..self }
    }

    pub(crate) fn client(&self) -> Client {
        self.harness.client()
    }

    pub(crate) fn client_builder(&self) -> ClientBuilder {
        self.harness.client_builder()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.harness.snapshot()
    }

    /// Nothing is left at the server. Clients must have been dropped.
    pub(crate) async fn assert_idle(&self) {
        self.harness.assert_idle().await;
        assert_eq!(self.feeder.running(), 0, "a producer or consumer lives on");
    }

    /// Waits, in virtual time, until `condition` holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        self.harness.until(what, |_| condition(self)).await;
    }

    /// Waits until so many producers and consumers live.
    pub(crate) async fn until_running(&self, count: usize) {
        self.until("they run", |server| server.feeder.running() == count).await;
    }
}

/// The methods of [`Feed`] as a raw client names them.
pub(crate) const fn named(name: &'static str) -> Method {
    Method::new("test.Feed", name)
}
