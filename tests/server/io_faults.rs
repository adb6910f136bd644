//! A transport that fails at every single byte of a conversation, in every direction: each caller is
//! told once and truly how its call ended, and the server has nothing left.

use std::{
    io::ErrorKind,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use sluicegate::{CallError, Client, Executed, StatusCode, client::ClientBuilder};
use tokio::{net::TcpStream, sync::watch, time::sleep};

use crate::support::{
    Harness, assert_idle_soon,
    shims::{Direction, FailingAt, Fault, Manner},
    within,
};

const MS: Duration = Duration::from_millis(1);

/// A reset, and an end without a word.
pub(super) const FAULTS: [Fault; 2] = [Fault::Error(ErrorKind::ConnectionReset), Fault::End];

/// A text of which there are more bytes than in a frame, so that it travels in parts.
const LONG: usize = 300_000;

#[sluicegate::service]
trait Errands {
    /// Does it at once, and answers what it was given.
    async fn run(&self, errand: u64, text: String) -> String;
    /// Waits until it may, then answers which one it was.
    async fn wait(&self, errand: u64) -> u64;
}

/// Notes what was executed.
#[derive(Clone, Default)]
struct Runner {
    executed: Arc<Mutex<Vec<u64>>>,
    gate: watch::Sender<bool>,
}

impl Errands for Runner {
    async fn run(&self, errand: u64, text: String) -> String {
        self.executed.lock().unwrap().push(errand);
        text
    }

    async fn wait(&self, errand: u64) -> u64 {
        self.executed.lock().unwrap().push(errand);
        let _ = self.gate.subscribe().wait_for(|open| *open).await;
        errand
    }
}

/// Where a transport fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    ServerReads,
    ServerWrites,
    ClientReads,
    ClientWrites,
}

/// A client of which the first connection fails as `directions`, in the order of [`Place`], say.
pub(super) fn failing_client(
    harness: &Harness,
    directions: &[Direction; 4],
    manner: Manner,
    pipe: usize,
) -> ClientBuilder {
    let (network, is_first) = (harness.network.clone(), AtomicBool::new(true));
    let [server_reads, server_writes, client_reads, client_writes] = directions.clone();
    let (of_server, of_client) = ([server_reads, server_writes], [client_reads, client_writes]);
    let client = Client::with_connector("the server", move || {
        let connected = if is_first.swap(false, SeqCst) {
            let failing = network.connect_as(pipe, |io| manner.wrap(FailingAt::new(io, of_server.clone())));
            failing.map(|io| manner.wrap(FailingAt::new(io, of_client.clone())))
        } else {
            network.connect_as(pipe, |io| manner.wrap(io)).map(|io| manner.wrap(io))
        };
        async move { connected }
    });
    client.backoff(MS, MS)
}

/// A server that runs two errands at a time, and what goes wrong on its first connection in memory.
struct Stage {
    harness: Harness,
    runner: Runner,
    /// In the order of [`Place`].
    directions: [Direction; 4],
}

impl Stage {
    fn new(place: Place, fault: Option<(u64, Fault)>) -> Self {
        let (runner, mut directions) = (Runner::default(), <[Direction; 4]>::default());
        directions[place as usize].fault = fault;
        let service = ErrandsServer::new(runner.clone());
        let harness = Harness::with(|builder| builder.service(service).max_concurrent_calls(2));
        Self { harness, runner, directions }
    }

    fn client(&self, manner: Manner, pipe: usize) -> Client {
        failing_client(&self.harness, &self.directions, manner, pipe).build()
    }

    /// Two calls wait; a third is refused; the second is given up, and a fourth is answered like the
    /// first. So it goes where nothing fails; how each ended, `None` for the one that was given up.
    async fn play(&self, client: &Client, text: &str) -> Vec<Option<Result<(), CallError>>> {
        let errands: ErrandsClient = client.service();
        let [first, second] = [1, 2].map(|errand| {
            let call = errands.wait(errand);
            tokio::spawn(async move { call.await.map(|answer| assert_eq!(answer, errand)) })
        });
        sleep(10 * MS).await;
        let run = async |errand| {
            let answer = within(errands.run(errand, text.to_owned())).await;
            answer.map(|answer| assert!(answer == text, "another call's answer"))
        };
        let third = run(3).await;
        second.abort();
        sleep(10 * MS).await;
        self.runner.gate.send_replace(true);
        let second = within(second).await.ok();
        let first = within(first).await.unwrap();
        sleep(10 * MS).await;
        vec![Some(first), second, Some(third), Some(run(4).await)]
    }

    /// What each caller was told is true, and no call ran twice.
    fn check(&self, outcomes: &[Option<Result<(), CallError>>]) {
        let executed = self.runner.executed.lock().unwrap();
        for (errand, outcome) in (1..).zip(outcomes) {
            let times = executed.iter().filter(|&&other| other == errand).count();
            assert!(times <= 1, "{errand} was executed {times} times");
            match outcome {
                Some(Ok(())) => assert_eq!(times, 1, "{errand} was answered"),
                Some(Err(error)) if error.executed() == Executed::Never => {
                    assert_eq!(times, 0, "{errand} was executed, and its caller told: {error:?}");
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    /// The client gets a new connection if it lost the first; the next call may yet meet the fault.
    async fn heal(&self, client: &Client, mut outcomes: Vec<Option<Result<(), CallError>>>) {
        while !matches!(outcomes[4..], [.., Some(Ok(()))]) {
            assert!(outcomes.len() < 4 + 3, "it does not heal: {outcomes:?}");
            sleep(10 * MS).await;
            let errand = outcomes.len() as u64 + 1;
            let answer = within(client.service::<ErrandsClient>().run(errand, String::new())).await;
            outcomes.push(Some(answer.map(|text| assert_eq!(text, ""))));
        }
        self.check(&outcomes);
        sleep(10 * MS).await;
        assert_eq!((client.snapshot().calls, self.harness.snapshot().panics), (0, 0));
    }
}

/// The transport fails behind every `step`th byte of what goes by at `place`.
async fn fails_everywhere(place: Place, manner: Manner, text_len: usize, pipe: usize, step: usize) {
    let text = "x".repeat(text_len);
    let stage = Stage::new(place, None);
    let client = stage.client(manner, pipe);
    let outcomes = stage.play(&client, &text).await;
    let [Some(Ok(())), None, Some(Err(refused)), Some(Ok(()))] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!((refused.code(), refused.executed()), (StatusCode::ResourceExhausted, Executed::Never));
    stage.heal(&client, outcomes).await;
    drop(client);
    stage.harness.assert_idle().await;
    let bytes = stage.directions[place as usize].bytes.load(SeqCst);
    assert!(bytes > 100 + text_len as u64, "{bytes} bytes");
    for at in (0..=bytes).step_by(step) {
        for fault in FAULTS {
            let stage = Stage::new(place, Some((at, fault)));
            let client = stage.client(manner, pipe);
            let outcomes = stage.play(&client, &text).await;
            stage.heal(&client, outcomes).await;
            drop(client);
            stage.harness.assert_idle().await;
            assert!(stage.directions[place as usize].bytes.load(SeqCst) <= at);
        }
    }
}

macro_rules! every_byte {
    ($($name:ident $place:ident,)*) => {
        $(#[tokio::test(start_paused = true)]
        async fn $name() {
            let manner = Manner::of_this_run();
            // Every byte where nothing else is wrong; unkind transports make runs long.
            let step = if manner == Manner::Plain { 1 } else { 11 };
            for pipe in [64 * 1024, 7] {
                fails_everywhere(Place::$place, manner, 2, pipe, step).await;
            }
            let manner = Manner::unless(Manner::OneByte, "megabytes go by");
            fails_everywhere(Place::$place, manner, LONG, 64 * 1024, 19_997).await;
        })*
    };
}

every_byte! {
    whatever_byte_a_server_cannot_read_every_call_ends_once_and_nothing_is_left ServerReads,
    whatever_byte_a_server_cannot_write_every_call_ends_once_and_nothing_is_left ServerWrites,
    whatever_byte_a_client_cannot_read_every_call_ends_once_and_nothing_is_left ClientReads,
    whatever_byte_a_client_cannot_write_every_call_ends_once_and_nothing_is_left ClientWrites,
}

#[tokio::test]
async fn whatever_byte_a_socket_is_reset_at_every_call_ends_once_and_nothing_is_left() {
    for at in (0..400).step_by(23) {
        for reading in [true, false] {
            let stage = Stage::new(Place::ClientReads, None);
            let sockets = stage.harness.sockets().await;
            let (address, is_first) = (sockets.address, AtomicBool::new(true));
            let client = Client::with_connector("the server", move || {
                let [mut reads, mut writes] = <[Direction; 2]>::default();
                if is_first.swap(false, SeqCst) {
                    let fault = if reading { &mut reads.fault } else { &mut writes.fault };
                    *fault = Some((at, FAULTS[0]));
                }
                async move {
                    let socket = TcpStream::connect(address).await?;
                    // Dropped after its fault, it resets the connection.
                    socket.set_zero_linger()?;
                    Ok(Manner::of_this_run().wrap(FailingAt::new(socket, [reads, writes])))
                }
            });
            let client = client.backoff(MS, MS).build();
            let outcomes = stage.play(&client, "hi").await;
            stage.heal(&client, outcomes).await;
            drop(client);
            assert_idle_soon(&stage.harness.handle).await;
            let drained = sockets.shut_down().await;
            assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
        }
    }
}
