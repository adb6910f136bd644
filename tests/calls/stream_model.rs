//! Random calls with items, against a model of what either end may see: whatever happens at either end, and
//! in whatever order, both come to outcomes that fit together, and nothing is left.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use sluicegate::{
    CallError, Client, ItemSender, Status, StatusCode, Streaming,
    client::{Coded, ItemSink, ItemStream},
    testing::assert_client_idle,
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::yield_now,
    time::{sleep, timeout},
};

use crate::support::{
    Harness,
    shims::{Manner, times_in},
};

/// What an end does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Sends so many items, as far as it may without waiting.
    Send(u8),
    /// Takes so many items, as far as they are there.
    Take(u8),
    /// Says that there are no more: END, or to return.
    End,
    /// Fails, or drops what it sends with.
    Fail,
    /// Drops what it receives with.
    Deafen,
    /// Drops all it has.
    Drop,
    /// Asks for items one by one from now on.
    Manual,
    /// Lets others run.
    Yield(u8),
}

fn random_steps(longest: usize) -> VecDeque<Step> {
    let count = fastrand::usize(1..longest);
    let mut steps: VecDeque<_> = (0..count)
        .map(|_| match fastrand::u8(..100) {
            0..35 => Step::Send(fastrand::u8(1..60)),
            35..70 => Step::Take(fastrand::u8(1..60)),
            70..90 => Step::Yield(fastrand::u8(1..10)),
            90..93 => Step::Manual,
            93..95 => Step::Deafen,
            95..97 => Step::Fail,
            _ => Step::End,
        })
        .collect();
    steps.push_back(if fastrand::u8(..4) == 0 { Step::Drop } else { Step::End });
    steps
}

/// What an end has seen of one call.
#[derive(Debug, Default)]
struct View {
    sent: u64,
    received: u64,
    /// The other end has ended, and how.
    end: Option<End>,
}

#[derive(Clone, Debug, PartialEq)]
enum End {
    Whole,
    Failed(StatusCode),
}

#[sluicegate::service(package = "test")]
trait Model {
    async fn play(&self, call: u64, items: Streaming<Item>, out: ItemSender<Item>) -> Result<(), Status>;
}

/// A number in order, and something that makes items of all lengths.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Item(u64, Vec<u8>);

impl Item {
    fn new(number: u64) -> Self {
        let len = match fastrand::u8(..50) {
            0 => fastrand::usize(..100_000),
            1..5 => fastrand::usize(..5_000),
            _ => fastrand::usize(..100),
        };
        Self(number, vec![number as u8; len])
    }

    fn check(&self, number: u64) {
        assert_eq!(self.0, number, "an item is lost, doubled or out of order");
        assert!(self.1.iter().all(|&byte| byte == number as u8), "an item is not as it was sent");
    }
}

#[derive(Clone, Default)]
struct Player(Arc<Mutex<Vec<(u64, View)>>>);

impl Model for Player {
    async fn play(&self, call: u64, items: Streaming<Item>, mut out: ItemSender<Item>) -> Result<(), Status> {
        let mut noted = Noted { player: self, call, view: View::default() };
        let view = &mut noted.view;
        let mut items = Some(items);
        for step in random_steps(30) {
            match step {
                Step::Send(count) => {
                    for _ in 0..count {
                        // It may wait for as long as it likes.
                        match timeout(Duration::from_millis(3), out.ready()).await {
                            Err(_) => break,
                            Ok(ready) => ready?,
                        }
                        out.send(Item::new(view.sent)).await?;
                        view.sent += 1;
                    }
                }
                Step::Take(count) => {
                    for _ in 0..count {
                        let Some(items) = items.as_mut().filter(|_| view.end.is_none()) else { break };
                        match timeout(Duration::from_millis(3), items.message()).await {
                            Err(_) => break,
                            Ok(Ok(Some(item))) => {
                                item.check(view.received);
                                view.received += 1;
                            }
                            Ok(Ok(None)) => view.end = Some(End::Whole),
                            Ok(Err(error)) => view.end = Some(End::Failed(error.code())),
                        }
                        items.request(1);
                    }
                }
                Step::Manual => {
                    if let Some(items) = &mut items {
                        items.set_manual();
                    }
                }
                Step::Deafen => items = None,
                Step::Yield(turns) => {
                    for _ in 0..turns {
                        yield_now().await;
                    }
                }
                Step::Fail | Step::Drop => return Err(Status::aborted("enough")),
                Step::End => break,
            }
        }
        Ok(())
    }
}

/// A view that is kept however its call ends.
struct Noted<'a> {
    player: &'a Player,
    call: u64,
    view: View,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.player.0.lock().unwrap().push((self.call, std::mem::take(&mut self.view)));
    }
}

/// What a client does with one call: its view, and whether it dropped its sink before its end.
async fn drive(model: &ModelClient, call: u64, deadline: Option<Duration>) -> (View, bool) {
    let chat = model.play(call);
    let chat = match deadline {
        Some(deadline) => chat.timeout(deadline),
        None => chat,
    };
    let (up, mut down): (ItemSink<Item, Coded>, ItemStream<Item, Coded>) = match chat.open().await {
        Ok(opened) => opened,
        Err(error) => return (View { end: Some(End::Failed(error.code())), ..View::default() }, true),
    };
    let (mut up, mut view) = (Some(up), View::default());
    for step in random_steps(30) {
        if view.end.is_some() {
            break;
        }
        match step {
            Step::Send(count) => {
                for _ in 0..count {
                    let Some(sink) = &mut up else { break };
                    match timeout(Duration::from_millis(3), sink.ready()).await {
                        Ok(Ok(())) if sink.send(Item::new(view.sent)).await.is_ok() => view.sent += 1,
                        // It has ended; what it was the other half says.
                        Ok(_) => up = None,
                        Err(_) => break,
                    }
                }
            }
            Step::Take(count) => {
                for _ in 0..count {
                    let Ok(item) = timeout(Duration::from_millis(3), down.message()).await else { break };
                    if !take(item, &mut view) {
                        break;
                    }
                    down.request(1);
                }
            }
            Step::Manual => down.set_manual(),
            Step::Yield(turns) => {
                for _ in 0..turns {
                    yield_now().await;
                }
            }
            Step::End => {
                if let Some(up) = up.take() {
                    up.end();
                }
            }
            Step::Fail => {
                let cut_short = up.take().is_some();
                if cut_short {
                    break;
                }
            }
            Step::Deafen | Step::Drop => return (view, up.is_some()),
        }
    }
    let cut_short = up.is_some();
    drop(up);
    // To the end; one that asks item by item asks for all.
    down.request(u64::MAX);
    while view.end.is_none() {
        let item = timeout(Duration::from_secs(60), down.message()).await.expect("every call comes to an end");
        take(item, &mut view);
    }
    assert!(matches!(down.next().now_or_never(), Some(None)), "there is one outcome");
    (view, cut_short)
}

fn take(item: Result<Option<Item>, CallError>, view: &mut View) -> bool {
    match item {
        Ok(Some(item)) => {
            item.check(view.received);
            view.received += 1;
            return true;
        }
        Ok(None) => view.end = Some(End::Whole),
        Err(error) => view.end = Some(End::Failed(error.code())),
    }
    false
}

/// One round: some calls at once on one connection, of which some are given up.
async fn round(seed: u64) {
    fastrand::seed(seed);
    let player = Player::default();
    let (window, high_water) = (fastrand::u32(1..200_000), fastrand::usize(1_000..100_000));
    let harness = Harness::with(|builder| {
        builder.service(ModelServer::new(player.clone())).write_high_water(high_water).max_concurrent_calls(100)
    })
    .unless(Manner::OneByte, "megabytes go by");
    let client: Client = harness.client_builder().stream_window(window).build();
    let model: ModelClient = client.service();
    let (done, mut ended): (UnboundedSender<_>, UnboundedReceiver<_>) = mpsc::unbounded_channel();
    let calls = fastrand::u64(1..8);
    for call in 0..calls {
        let (model, done) = (model.clone(), done.clone());
        let deadline = (fastrand::u8(..5) == 0).then(|| Duration::from_millis(fastrand::u64(1..30)));
        tokio::spawn(async move {
            let (view, cut_short) = drive(&model, call, deadline).await;
            let _ = done.send((call, view, cut_short));
        });
    }
    drop(done);
    let mut views = Vec::new();
    while let Some(ended) = ended.recv().await {
        views.push(ended);
    }
    assert_eq!(views.len() as u64, calls, "a caller panicked");
    assert_client_idle(&client).await;
    drop((model, client));
    harness.assert_idle().await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.protocol_errors, snapshot.panics), (0, 0), "{snapshot:#?}");
    assert_eq!(snapshot.calls.acquired, snapshot.calls.released);
    let served = player.0.lock().unwrap();
    for (call, client, cut_short) in &views {
        let found: Vec<_> = served.iter().filter(|(id, _)| id == call).collect();
        assert!(found.len() <= 1, "a call was executed twice");
        let Some((_, server)) = found.first() else { continue };
        assert!(client.received <= server.sent && server.received <= client.sent, "{call}: {client:?}, {server:?}");
        if client.end == Some(End::Whole) {
            assert_eq!(client.received, server.sent, "all items come before an end that is none of an error");
        }
        if server.end == Some(End::Whole) {
            assert_eq!(server.received, client.sent, "END is behind the last item");
            assert!(!cut_short, "half a stream looked like a whole one");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn random_calls_end_with_views_that_fit_together_and_leave_nothing() {
    let rounds = std::env::var("SLUICEGATE_STREAM_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or_else(|| times_in(600, 60));
    for seed in 1..=rounds {
        timeout(Duration::from_secs(600), round(seed)).await.unwrap_or_else(|_| panic!("round {seed} hangs"));
        sleep(Duration::from_millis(1)).await;
    }
}
