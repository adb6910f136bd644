//! A transport that fails at every single byte of a conversation that ends with a drain: of calls with metadata and details,
//! that block, that have a task of their own, and that expire, and of PINGs between them. Each caller is told once and truly
//! how its call ended, the drain ends in peace, and nothing is left.

use std::{
    future::pending,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    time::Duration,
};

use sluicegate::{CallError, Client, Context, Executed, Status, StatusCode};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::io_faults::{FAULTS, Place, failing_client};
use crate::support::{
    Harness,
    shims::{Direction, Fault, Manner},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[sluicegate::service(package = "test")]
trait Desk {
    /// Fails with what the call was given as metadata, and with details.
    async fn fail(&self, context: Context, errand: u64) -> Result<u64, Status>;
    #[rpc(blocking)]
    fn block(&self, errand: u64) -> u64;
    #[rpc(spawn)]
    async fn spawned(&self, errand: u64) -> u64;
    /// Never answers.
    async fn forget(&self, errand: u64) -> u64;
    /// Answers when it may.
    async fn wait(&self, errand: u64) -> u64;
}

/// Notes what was executed.
#[derive(Clone, Default)]
struct Clerk {
    executed: Arc<Mutex<Vec<u64>>>,
    gate: watch::Sender<bool>,
}

impl Clerk {
    fn note(&self, errand: u64) -> u64 {
        self.executed.lock().unwrap().push(errand);
        errand
    }
}

impl Desk for Clerk {
    async fn fail(&self, context: Context, errand: u64) -> Result<u64, Status> {
        self.note(errand);
        let status = Status::data_loss("no ink").with_detail("desk.test/Ink", *b"none is left");
        Err(status.with_metadata(context.metadata().clone()))
    }

    fn block(&self, errand: u64) -> u64 {
        self.note(errand)
    }

    async fn spawned(&self, errand: u64) -> u64 {
        self.note(errand)
    }

    async fn forget(&self, errand: u64) -> u64 {
        self.note(errand);
        pending().await
    }

    async fn wait(&self, errand: u64) -> u64 {
        self.note(errand);
        let _ = self.gate.subscribe().wait_for(|open| *open).await;
        errand
    }
}

type Outcomes = [Result<u64, CallError>; 6];

/// Whether it is the status that the service has made, all of it.
fn is_whole(error: &CallError) -> bool {
    error.status().is_some_and(|status| {
        assert_eq!((status.code(), status.message()), (StatusCode::DataLoss, "no ink"));
        assert_eq!(status.details().iter().map(|detail| &*detail.value).collect::<Vec<_>>(), [b"none is left"]);
        assert_eq!(status.metadata().get_str("drawer"), Some("seven"));
        true
    })
}

/// One call after the other, then silence in which both ends ask for a sign of life; at last a drain that a call holds up,
/// and behind which there is no other.
async fn play(harness: &Harness, clerk: &Clerk, client: &Client) -> Outcomes {
    let desk: DeskClient = client.service();
    let fail = within(desk.fail(1).metadata("drawer", "seven")).await;
    let block = within(desk.block(2)).await;
    let spawned = within(desk.spawned(3)).await;
    let forget = within(desk.forget(4).timeout(20 * MS)).await;
    sleep(20 * SECOND).await;
    let waiting = desk.wait(5);
    let waiting = tokio::spawn(async move { within(waiting).await });
    sleep(10 * MS).await;
    let (handle, began) = (harness.handle.clone(), Instant::now());
    let draining = tokio::spawn(async move { handle.drain().await });
    sleep(10 * MS).await;
    clerk.gate.send_replace(true);
    let wait = waiting.await.unwrap();
    let drained = within(draining).await.unwrap();
    assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
    // A second to write the farewell, and one to linger.
    assert!(began.elapsed() <= 2 * SECOND + 100 * MS, "{:?}", began.elapsed());
    [fail, block, spawned, forget, wait, within(desk.wait(6)).await]
}

/// What each caller was told is true, and no call ran twice.
fn check(clerk: &Clerk, outcomes: &Outcomes) {
    let executed = clerk.executed.lock().unwrap();
    for (errand, outcome) in (1..).zip(outcomes) {
        let times = executed.iter().filter(|&&other| other == errand).count();
        assert!(times <= 1, "{errand} was executed {times} times");
        match outcome {
            Ok(answer) => assert_eq!((*answer, times), (errand, 1), "another call's answer"),
            Err(error) if error.executed() == Executed::Never => {
                assert_eq!(times, 0, "{errand} was executed, and its caller told: {error:?}");
            }
            Err(error) if error.executed() == Executed::Finished => {
                assert!(errand == 1 && is_whole(error) && times == 1, "{errand}: {error:?}");
            }
            Err(_) => {}
        }
    }
    let Err(error) = &outcomes[5] else { panic!("it was served behind the drain") };
    assert_eq!(error.executed(), Executed::Never, "{error:?}");
}

/// The whole conversation; the bytes that went by at `place`.
async fn converse(place: Place, fault: Option<(u64, Fault)>, manner: Manner, pipe: usize) -> u64 {
    let (clerk, mut directions) = (Clerk::default(), <[Direction; 4]>::default());
    directions[place as usize].fault = fault;
    let service = DeskServer::new(clerk.clone());
    let harness = Harness::with(|builder| builder.service(service).keepalive_interval(4 * SECOND));
    let client = failing_client(&harness, &directions, manner, pipe).keepalive_interval(5 * SECOND).build();
    let outcomes = play(&harness, &clerk, &client).await;
    check(&clerk, &outcomes);
    if fault.is_none() {
        let [Err(failed), Ok(2), Ok(3), Err(forgotten), Ok(5), Err(_)] = &outcomes else { panic!("{outcomes:?}") };
        assert!(is_whole(failed) && forgotten.code() == StatusCode::DeadlineExceeded, "{outcomes:?}");
    }
    until_client_idle(&client).await;
    drop(client);
    harness.assert_idle().await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.panics, snapshot.calls.acquired), (0, snapshot.calls.released));
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
    whatever_byte_a_server_cannot_read_calls_before_a_drain_end_once_and_it_ends_in_peace ServerReads,
    whatever_byte_a_server_cannot_write_calls_before_a_drain_end_once_and_it_ends_in_peace ServerWrites,
    whatever_byte_a_client_cannot_read_calls_before_a_drain_end_once_and_it_ends_in_peace ClientReads,
    whatever_byte_a_client_cannot_write_calls_before_a_drain_end_once_and_it_ends_in_peace ClientWrites,
}
