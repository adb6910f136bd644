//! A transport that fails at every single byte of a conversation in items, in every direction: each stream has one end on
//! both sides, half of one looks whole to nobody, and nothing is left.

use std::{
    future::pending,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    time::Duration,
};

use futures::{Stream, StreamExt, stream};
use sluicegate::{CallError, Client, Executed, ItemSender, Status, Streaming};
use tokio::time::sleep;

use super::io_faults::{FAULTS, Place, failing_client};
use crate::support::{
    Harness,
    shims::{Direction, Fault, Manner},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
/// Of each stream: to a client some go at once, and some when the first have been taken.
const ITEMS: u64 = 6;
const WINDOW: u32 = 4 * 64;

#[sluicegate::service(package = "test")]
trait Convoys {
    /// Sends what [`cargo`] is.
    async fn deliver(&self, convoy: u64, out: ItemSender<u64>) -> Result<(), Status>;
    /// Takes what [`cargo`] is, and says how much that was.
    async fn collect(&self, convoy: u64, items: Streaming<u64>) -> Result<u64, Status>;
    /// Sends back what it takes.
    async fn turn(&self, convoy: u64, items: Streaming<u64>, out: ItemSender<u64>) -> Result<(), Status>;
    /// Sends what [`cargo`] is, and never ends.
    async fn linger(&self, convoy: u64, out: ItemSender<u64>) -> Result<(), Status>;
}

/// What a convoy carries.
fn cargo(convoy: u64) -> impl Iterator<Item = u64> {
    (0..ITEMS).map(move |n| 1_000 * convoy + n)
}

/// Notes which convoys came, and those of which half looked whole.
#[derive(Clone, Default)]
struct Depot {
    executed: Arc<Mutex<Vec<u64>>>,
    torn: Arc<Mutex<Vec<u64>>>,
}

impl Depot {
    fn note(&self, convoy: u64) {
        self.executed.lock().unwrap().push(convoy);
    }

    /// The client has sent its last.
    fn arrived(&self, convoy: u64, items: u64) {
        if items != ITEMS {
            self.torn.lock().unwrap().push(convoy);
        }
    }
}

impl Convoys for Depot {
    async fn deliver(&self, convoy: u64, mut out: ItemSender<u64>) -> Result<(), Status> {
        self.note(convoy);
        for item in cargo(convoy) {
            out.send(item).await?;
        }
        Ok(())
    }

    async fn collect(&self, convoy: u64, mut items: Streaming<u64>) -> Result<u64, Status> {
        self.note(convoy);
        let mut expected = cargo(convoy);
        let mut taken = 0;
        while let Some(item) = items.message().await? {
            assert_eq!(Some(item), expected.next(), "of {convoy}");
            taken += 1;
        }
        self.arrived(convoy, taken);
        Ok(taken)
    }

    async fn turn(&self, convoy: u64, mut items: Streaming<u64>, mut out: ItemSender<u64>) -> Result<(), Status> {
        self.note(convoy);
        let mut taken = 0;
        while let Some(item) = items.message().await? {
            out.send(item).await?;
            taken += 1;
        }
        self.arrived(convoy, taken);
        Ok(())
    }

    async fn linger(&self, convoy: u64, out: ItemSender<u64>) -> Result<(), Status> {
        self.deliver(convoy, out).await?;
        pending().await
    }
}

/// Takes items to their end; `Ok` says that they were all.
async fn all_of(convoy: u64, items: impl Stream<Item = Result<u64, CallError>>) -> Result<(), CallError> {
    let (mut items, mut expected) = (std::pin::pin!(items), cargo(convoy));
    while let Some(item) = items.next().await {
        assert_eq!(Some(item?), expected.next(), "of {convoy}");
    }
    assert_eq!(expected.next(), None, "half of {convoy} looks whole");
    Ok(())
}

/// How the convoys ended that came one after the other; `None` for what was given up.
type Outcomes = Vec<Option<Result<(), CallError>>>;

/// A convoy of each kind at once, of which the last is given up.
async fn play(client: &Client) -> Outcomes {
    let convoys: ConvoysClient = client.service();
    let lingering = async {
        let mut items = convoys.linger(4);
        let mut taken = 0;
        while taken < ITEMS && matches!(items.message().await, Ok(Some(_))) {
            taken += 1;
        }
    };
    let deliver = all_of(1, convoys.deliver(1));
    let collect = convoys.collect(2).send_all(stream::iter(cargo(2)));
    let turn = all_of(3, convoys.turn(3).send_all(stream::iter(cargo(3))));
    let (deliver, collect, turn, ()) = within(async { tokio::join!(deliver, collect, turn, lingering) }).await;
    let collect = collect.map(|taken| assert_eq!(taken, ITEMS));
    sleep(10 * MS).await;
    vec![Some(deliver), Some(collect), Some(turn), None]
}

/// The next convoy arrives, soon if not at once, and all that was told is true.
async fn heal(client: &Client, depot: &Depot, mut outcomes: Outcomes) {
    while !matches!(outcomes[4..], [.., Some(Ok(()))]) {
        assert!(outcomes.len() < 4 + 3, "it does not heal: {outcomes:?}");
        sleep(10 * MS).await;
        let convoy = outcomes.len() as u64 + 1;
        let turned = client.service::<ConvoysClient>().turn(convoy).send_all(stream::iter(cargo(convoy)));
        outcomes.push(Some(within(all_of(convoy, turned)).await));
    }
    let executed = depot.executed.lock().unwrap();
    for (convoy, outcome) in (1..).zip(&outcomes) {
        let times = executed.iter().filter(|&&other| other == convoy).count();
        assert!(times <= 1, "{convoy} was executed {times} times");
        match outcome {
            Some(Ok(())) => assert_eq!(times, 1, "{convoy} has arrived"),
            Some(Err(error)) if error.executed() == Executed::Never => {
                assert_eq!(times, 0, "{convoy} was executed, and its caller told: {error:?}");
            }
            Some(Err(_)) | None => {}
        }
    }
    let torn = depot.torn.lock().unwrap();
    assert!(torn.is_empty(), "half of these looked whole: {torn:?}");
}

/// The whole conversation; the bytes that went by at `place`.
async fn converse(place: Place, fault: Option<(u64, Fault)>, manner: Manner, pipe: usize) -> u64 {
    let (depot, mut directions) = (Depot::default(), <[Direction; 4]>::default());
    directions[place as usize].fault = fault;
    let service = ConvoysServer::new(depot.clone());
    let harness = Harness::with(|builder| builder.service(service));
    let client = failing_client(&harness, &directions, manner, pipe).stream_window(WINDOW).build();
    let outcomes = play(&client).await;
    if fault.is_none() {
        assert!(matches!(outcomes[..], [Some(Ok(())), Some(Ok(())), Some(Ok(())), None]), "{outcomes:?}");
    }
    heal(&client, &depot, outcomes).await;
    // One that cannot write any more reads for a second yet.
    until_client_idle(&client).await;
    drop(client);
    harness.assert_idle().await;
    assert_eq!((harness.snapshot().panics, harness.snapshot().streams), (0, 0));
    directions[place as usize].bytes.load(SeqCst)
}

macro_rules! every_byte {
    ($($name:ident $place:ident,)*) => {
        $(#[tokio::test(start_paused = true)]
        async fn $name() {
            let manner = Manner::of_this_run();
            // Every byte where nothing else is wrong; narrow pipes and unkind transports make runs long.
            let steps = if manner == Manner::Plain { [(64 * 1024, 1), (7, 7)] } else { [(64 * 1024, 11), (7, 23)] };
            for (pipe, step) in steps {
                let bytes = converse(Place::$place, None, manner, pipe).await;
                assert!(bytes > 300, "{bytes} bytes");
                // One fault and the other in turn.
                for (at, fault) in (0..=bytes).step_by(step).zip(FAULTS.into_iter().cycle()) {
                    assert!(converse(Place::$place, Some((at, fault)), manner, pipe).await <= at);
                }
            }
        })*
    };
}

every_byte! {
    whatever_byte_a_server_cannot_read_every_stream_ends_once_and_half_of_none_looks_whole ServerReads,
    whatever_byte_a_server_cannot_write_every_stream_ends_once_and_half_of_none_looks_whole ServerWrites,
    whatever_byte_a_client_cannot_read_every_stream_ends_once_and_half_of_none_looks_whole ClientReads,
    whatever_byte_a_client_cannot_write_every_stream_ends_once_and_half_of_none_looks_whole ClientWrites,
}
