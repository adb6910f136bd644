//! What becomes of calls that wait for a server's HELLO, and what callers are told of a call's end.

use std::{error::Error, io, sync::mpsc, time::Duration};

use futures::future::join_all;
use rpc_codec::GoAwayReason;
use rpc_core::CallId;
use sluicegate::{
    CallError, Client, Executed, Status, StatusCode,
    client::LostCause,
    server::{Call, Decision, Handler},
};
use tokio::{
    io::DuplexStream,
    time::{Instant, sleep},
};

use crate::support::{
    Got, Harness, RawServer, method,
    raw::hello_with,
    scripted::{first_call, scripted, scripted_with},
    shims::Manner,
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);

/// More than may be sent to a server that has not said what it takes.
const LONG: usize = 100_000;
/// Why some transports are plain.
const ONE_BY_ONE: &str = "too many bytes to go one by one";
const LENS: [usize; 5] = [10, LONG, 60_000, LONG, 3 * LONG];

/// Runs a test in virtual time, and fails where a task keeps the thread for ever.
fn unless_it_spins(test: impl Future<Output = ()> + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(within(test));
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(20)).expect("it failed, or a task spins");
}

async fn echo(client: &Client, len: usize) -> Result<usize, CallError> {
    let reply = client.call::<_, String>(method::ECHO, ("x".repeat(len),)).await?;
    Ok(reply.len())
}

/// Calls of such lengths that wait for a HELLO until `end`; how the long ones of them ended.
async fn calls_until(lens: &[usize], end: impl AsyncFnOnce(&Client, RawServer)) -> Vec<(usize, CallError)> {
    let (builder, mut servers) = scripted_with(Manner::unless(Manner::OneByte, ONE_BY_ONE), 1024 * 1024);
    let client = builder.build();
    let calls = lens.iter().map(|&len| {
        let client = client.clone();
        tokio::spawn(async move { echo(&client, len).await })
    });
    let calls: Vec<_> = calls.collect();
    let mut server = servers.recv().await.unwrap();
    assert!(matches!(server.peer.next().await, Got::Hello(_)));
    // The calls wait, and keep nobody from doing anything.
    sleep(100 * MS).await;
    let began = Instant::now();
    end(&client, server).await;
    let mut errors = Vec::new();
    for (&len, call) in lens.iter().zip(calls) {
        let error = call.await.unwrap().unwrap_err();
        // What fits had been sent.
        if len >= LONG {
            errors.push((len, error));
        }
    }
    assert!(began.elapsed() <= 10 * MS, "they were told {:?} late", began.elapsed());
    assert!(servers.try_recv().is_err(), "it connected again");
    errors
}

#[test]
fn a_long_request_fails_when_the_server_ends_before_it_greets() {
    unless_it_spins(async {
        for (len, error) in calls_until(&LENS, async |_, server| drop(server)).await {
            assert_eq!(
                (error.code(), error.executed()),
                (StatusCode::Unavailable, Executed::Never),
                "{len}: {error:?}"
            );
            assert!(matches!(error, CallError::Lost { .. } | CallError::Connect { .. }), "{len}: {error:?}");
        }
    });
}

#[test]
fn a_long_request_fails_when_the_server_turns_its_client_away() {
    for reason in [GoAwayReason::Drain, GoAwayReason::TooManyConnections, GoAwayReason::Other(77)] {
        unless_it_spins(async move {
            let errors = calls_until(&LENS, async |_, mut server: RawServer| {
                server.go_away(CallId::CONNECTION, reason, "the house is full").await;
            });
            for (len, error) in errors.await {
                let told = (error.code(), error.executed());
                assert_eq!(told, (StatusCode::Unavailable, Executed::Never), "{len}: {error:?}");
                assert!(words(&error).contains("the house is full"), "{len}: {error:?}");
            }
        });
    }
}

#[test]
fn a_long_request_fails_when_its_client_is_closed() {
    unless_it_spins(async {
        let mut kept = None;
        let errors = calls_until(&[LONG, 3 * LONG], async |client: &Client, server| {
            // The server stays, and never says a word.
            kept = Some(server);
            client.close();
        });
        for (len, error) in errors.await {
            assert_eq!(error.executed(), Executed::Never, "{len}: {error:?}");
            assert!(matches!(error, CallError::Closed), "{len}: {error:?}");
        }
    });
}

#[test]
fn a_long_request_waits_for_a_server_that_takes_it() {
    unless_it_spins(async {
        let (builder, mut servers) = scripted_with(Manner::unless(Manner::OneByte, ONE_BY_ONE), 1024 * 1024);
        let client = builder.build();
        let call = tokio::spawn(async move { echo(&client, LONG).await });
        let mut server = servers.recv().await.unwrap();
        assert!(matches!(server.peer.next().await, Got::Hello(_)));
        assert!(server.peer.is_silent_for(1_000 * MS).await, "it was sent before the server said it takes it");
        server.peer.send(&hello_with(|_| ())).await;
        let (id, body) = server.request().await;
        assert!(body.len() > LONG);
        server.reply(id, "y".repeat(3)).await;
        assert_eq!(call.await.unwrap().unwrap(), 3);
        // With a server of ours, too, however many wait.
        let harness = Harness::new().unless(Manner::OneByte, ONE_BY_ONE);
        let client = harness.client();
        for reply in join_all((0..20).map(|n| echo(&client, LONG + n))).await {
            assert!(reply.unwrap() >= LONG);
        }
        drop(client);
        harness.assert_idle().await;
    });
}

#[tokio::test(start_paused = true)]
async fn a_call_that_expires_when_it_has_begun_to_leave_may_be_executed_and_one_that_has_not_is_not() {
    let expires = async |client: &Client| {
        let call = client.call::<_, String>(method::ECHO, ("x".repeat(1_000),)).timeout(100 * MS);
        let error = within(call).await.unwrap_err();
        assert_eq!(error.code(), StatusCode::DeadlineExceeded, "{error:?}");
        error.executed()
    };
    // A pipe of 64 bytes does not take the whole HELLO. One of 512 takes a part of the request as well; the
    // rest of that leaves later, and a server executes it.
    for (pipe, executed, arrive) in [(64, Executed::Never, 0), (512, Executed::Maybe, 1)] {
        let harness = Harness::new();
        let server = harness.server.clone();
        let manner = Manner::unless(Manner::Withholding, "it takes everything");
        let client = Client::with_connector("a slow server", move || {
            let ((ours, theirs), server) = (tokio::io::duplex(pipe), server.clone());
            let (ours, theirs) = (manner.wrap(ours), manner.wrap(theirs));
            tokio::spawn(async move {
                sleep(200 * MS).await;
                server.serve_connection(theirs, None).await;
            });
            async move { Ok(ours) }
        })
        .build();
        assert_eq!(expires(&client).await, executed);
        // Behind it another, so that all that is to come has come.
        let next = client.call::<_, u64>(method::NONCE, (7_u64, 0_u32));
        assert_eq!(within(next).await.unwrap(), 7);
        assert_eq!(harness.snapshot().calls.acquired, arrive + 1);
        drop(client);
        harness.assert_idle().await;
    }
    // No connection.
    let never = Client::with_connector("nobody", std::future::pending::<io::Result<DuplexStream>>).build();
    assert_eq!(expires(&never).await, Executed::Never);
    // No room.
    let (builder, mut servers) = scripted(1024 * 1024);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 1).await;
    sleep(MS).await;
    assert_eq!(expires(&client).await, Executed::Never);
    server.reply(id, 1_u64).await;
    assert_eq!(first.await.unwrap().unwrap(), 1);
}

#[test]
fn calls_without_a_timeout_all_fail_when_every_connection_is_turned_away() {
    unless_it_spins(async {
        let harness = Harness::with(|builder| builder.max_connections(1));
        let (first, second) = (harness.client(), harness.client());
        echo(&first, 1).await.unwrap();
        for _ in 0..3 {
            let calls = (0..40).map(|n| (second.clone(), if n % 4 == 0 { LONG } else { n }));
            let calls = calls.map(|(client, len)| tokio::spawn(async move { echo(&client, len).await }));
            for call in calls.collect::<Vec<_>>() {
                let error = call.await.unwrap().unwrap_err();
                assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Never), "{error:?}");
            }
        }
        assert!(harness.network.attempts() <= 1 + 3, "{} attempts", harness.network.attempts());
        assert_eq!(harness.probe.started(), 1);
        drop((first, second));
        harness.assert_idle().await;
    });
}

/// A service with an odd idea of an error.
#[sluicegate::service]
trait Odd {
    async fn fail_with_ok(&self) -> Result<(), Status>;
}

struct Fails;

impl Odd for Fails {
    async fn fail_with_ok(&self) -> Result<(), Status> {
        Err(Status::new(StatusCode::Ok, "odd"))
    }
}

/// Answers or closes, as the call's metadata says.
struct Deciding;

impl Handler for Deciding {
    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        match call.metadata().get_str("do") {
            Some("answer") => Decision::Answer(Status::unauthenticated("who are you?")),
            Some(words) => Decision::Close(words.to_owned()),
            None => Decision::Pass,
        }
    }
}

fn odd() -> Harness {
    Harness::with(|builder| {
        builder.service(OddServer::new(Fails)).pipeline(|pipeline, _| {
            pipeline.add_last("deciding", Deciding);
        })
    })
}

#[tokio::test(start_paused = true)]
async fn an_error_that_says_ok_is_an_internal_one() {
    let harness = odd();
    let client = harness.client();
    let error = client.service::<OddClient>().fail_with_ok().await.unwrap_err();
    assert_eq!(error.code(), StatusCode::Internal, "{error:?}");
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_answers_in_place_of_the_service_was_never_executed() {
    let harness = odd();
    let client = harness.client();
    let answered = client.call::<_, u64>(method::NONCE, (1_u64, 0_u32)).metadata("do", "answer").await.unwrap_err();
    assert_eq!((answered.code(), answered.executed()), (StatusCode::Unauthenticated, Executed::Never));
    assert_eq!(harness.probe.started(), 0);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn why_a_handler_closed_the_connection_stands_in_the_error_of_each_call_that_ended_with_it() {
    let harness = odd();
    let client = harness.client();
    let gated = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    harness.until_running(1).await;
    let evil = within(client.call::<_, u64>(method::GATE, (2_u64,)).metadata("do", "out with you")).await;
    for error in [gated.await.unwrap().unwrap_err(), evil.unwrap_err()] {
        assert_eq!(error.code(), StatusCode::Unavailable, "{error:?}");
        assert!(words(&error).contains("out with you"), "{error:?}");
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn why_a_server_broke_off_is_told_to_the_calls_that_were_out() {
    for (reason, said) in
        [(GoAwayReason::ProtocolError, true), (GoAwayReason::Other(64), true), (GoAwayReason::Drain, false)]
    {
        let (builder, mut servers) = scripted(64 * 1024);
        let client = builder.build();
        let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
        server.go_away(id, reason, "frame 7 is bad").await;
        drop(server);
        let error = within(call).await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Maybe), "{error:?}");
        let CallError::Lost { ref source, .. } = error else { panic!("{error:?}") };
        // One that drains had promised to finish.
        assert_eq!((matches!(source, LostCause::GoneAway(_)), words(&error).contains("frame 7 is bad")), (said, said));
        until_client_idle(&client).await;
    }
}

/// The error and its causes.
fn words(error: &CallError) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
