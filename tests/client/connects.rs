//! How a client comes to its connection, keeps it, gets another, and parts with it.

use std::{
    io,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::poll;
use rpc_codec::GoAwayReason;
use sluicegate::{CallError, Client, Executed, StatusCode, client::LostCause};
use tokio::time::{Instant, sleep};

use crate::support::{
    self, Got, Harness, assert_idle_soon, method,
    scripted::{first_call, scripted},
    shims::times_in,
    until_client_idle,
};

const MS: Duration = Duration::from_millis(1);

async fn echo(client: &Client) -> Result<String, CallError> {
    support::within(client.call(method::ECHO, ("hi".to_owned(),))).await
}

#[tokio::test(start_paused = true)]
async fn a_client_connects_when_there_is_a_call_and_once() {
    let harness = Harness::new();
    let client = harness.client();
    let unused = client.call::<_, String>(method::ECHO, ("hi".to_owned(),));
    sleep(1_000 * MS).await;
    drop(unused);
    assert_eq!((harness.network.attempts(), client.snapshot().connected), (0, false));
    for _ in 0..10 {
        echo(&client.clone()).await.unwrap();
    }
    let snapshot = client.snapshot();
    assert_eq!((harness.network.attempts(), snapshot.connects, snapshot.connected), (1, 1, true));
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn any_number_of_calls_at_once_on_a_cold_client_connect_once() {
    let harness = Harness::new();
    let client = harness.client();
    let many = times_in(10_000, 2_000);
    let calls: Vec<_> = (0..many).map(|n| tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 1_u32)))).collect();
    for (n, call) in (0..).zip(calls) {
        assert_eq!(call.await.unwrap().unwrap(), n);
    }
    assert_eq!((harness.network.attempts(), harness.probe.finished() as u64), (1, many));
    drop(client);
    harness.assert_idle().await;
    // An attempt that fails wakes all of them.
    harness.network.set_down(true);
    let client = harness.client();
    let calls: Vec<_> = (0..many).map(|n| tokio::spawn(client.call::<_, u64>(method::NONCE, (n, 1_u32)))).collect();
    for call in calls {
        let error = support::within(call).await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
    }
    assert_eq!(harness.network.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_lost_its_connection_gets_another_after_a_short_delay() {
    let harness = Harness::new();
    let client = harness.client_builder().backoff(100 * MS, 1_000 * MS).build();
    echo(&client).await.unwrap();
    for round in 2..10 {
        harness.network.cut();
        sleep(MS).await;
        let began = Instant::now();
        echo(&client).await.unwrap();
        assert!(began.elapsed() <= 105 * MS, "{:?}", began.elapsed());
        assert_eq!(harness.network.attempts(), round);
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn calls_fail_fast_while_the_next_attempt_is_not_due_and_name_peer_and_cause() {
    let harness = Harness::new();
    harness.network.set_down(true);
    let client = harness.client_builder().backoff(100 * MS, 10_000 * MS).build();
    let mut attempts = Vec::new();
    let began = Instant::now();
    while began.elapsed() < 60_000 * MS {
        let before = harness.network.attempts();
        let asked = Instant::now();
        let error = echo(&client).await.unwrap_err();
        assert_eq!(asked.elapsed(), Duration::ZERO, "it failed slowly");
        if harness.network.attempts() > before {
            attempts.push(began.elapsed());
        }
        assert!(attempts.len() >= harness.network.attempts(), "an attempt that no call asked for");
        let CallError::Connect { ref peer, retry_after, ref source } = error else { panic!("{error:?}") };
        assert_eq!((&**peer, source.to_string().as_str()), ("the test server", "the network is down"));
        assert_eq!((error.executed(), error.code()), (Executed::Never, StatusCode::Unavailable));
        assert!(retry_after > Duration::ZERO && retry_after <= 10_000 * MS, "{retry_after:?}");
        assert_eq!(error.retry_delay(), Some(retry_after));
        sleep(5 * MS).await;
    }
    for (n, pair) in attempts.windows(2).enumerate() {
        let (gap, most) = (pair[1] - pair[0], (100 * MS * (1 << n.min(10))).min(10_000 * MS));
        assert!(gap >= most / 2 && gap <= most + 10 * MS, "attempt {n} after {gap:?}");
    }
    assert_eq!(client.snapshot().failed_connects, attempts.len() as u64);
    harness.network.set_down(false);
    sleep(10_000 * MS).await;
    echo(&client).await.unwrap();
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn coming_back_when_a_failed_attempt_says_is_an_attempt() {
    let harness = Harness::new();
    harness.network.set_down(true);
    let client = harness.client();
    let delay = echo(&client).await.unwrap_err().retry_delay().unwrap();
    harness.network.set_down(false);
    sleep(delay).await;
    echo(&client).await.unwrap();
    assert_eq!(harness.network.attempts(), 2);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_for_an_attempt_fail_with_it() {
    let client = Client::with_connector("nowhere", || async {
        sleep(10 * MS).await;
        Err::<tokio::io::DuplexStream, _>(io::Error::other("no route"))
    });
    let client = client.build();
    let began = Instant::now();
    let calls: Vec<_> = (0..100_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(&error, CallError::Connect { source, .. } if source.to_string() == "no route"), "{error:?}");
    }
    assert!(began.elapsed() <= 11 * MS);
    assert_eq!(client.snapshot().failed_connects, 1);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_fails_and_a_caller_may_leave_before() {
    let client = Client::with_connector("a black hole", std::future::pending::<io::Result<tokio::io::DuplexStream>>);
    let client = client.connect_timeout(3_000 * MS).build();
    let began = Instant::now();
    let error = client.call::<_, u64>(method::GATE, (1_u64,)).timeout(50 * MS).await.unwrap_err();
    assert!(began.elapsed() >= 50 * MS && began.elapsed() <= 52 * MS, "{:?}", began.elapsed());
    assert!(matches!(error, CallError::DeadlineExceeded { executed: Executed::Never, .. }), "{error:?}");
    let error = echo(&client).await.unwrap_err();
    assert!(began.elapsed() >= 3_000 * MS && began.elapsed() <= 3_005 * MS, "it is the same attempt");
    let CallError::Connect { source, .. } = error else { panic!("{error:?}") };
    assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_timeout_passes_while_the_server_is_silent_is_told_and_tells_the_server() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.timeout(100 * MS).build();
    let began = Instant::now();
    let call = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    let mut server = servers.recv().await.unwrap();
    let error = call.await.unwrap().unwrap_err();
    assert!(began.elapsed() >= 100 * MS && began.elapsed() <= 102 * MS, "{:?}", began.elapsed());
    assert!(matches!(error, CallError::DeadlineExceeded { executed: Executed::Maybe, .. }), "{error:?}");
    server.shake_hands(64).await;
    let Got::Request { id, timeout_us, .. } = server.peer.next().await else { panic!("no request came") };
    assert_eq!(timeout_us, 100_000);
    assert!(matches!(server.peer.next().await, Got::Cancel(cancelled) if cancelled == id));
    server.reply(id, 1_u64).await;
    sleep(MS).await;
    assert_eq!((client.snapshot().late_answers, client.snapshot().calls), (1, 0));
    let next = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    let (id, _) = server.request().await;
    server.reply(id, 2_u64).await;
    assert_eq!(next.await.unwrap().unwrap(), 2);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_greets_is_sent_no_more_than_it_must_take() {
    let (builder, mut servers) = scripted(1024 * 1024);
    let client = builder.build();
    let calls: Vec<_> = (0..100_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    let too_large_for_now = tokio::spawn(client.call::<_, String>(method::ECHO, ("x".repeat(100_000),)));
    let mut server = servers.recv().await.unwrap();
    assert!(matches!(server.peer.next().await, Got::Hello(_)));
    for _ in 0..64 {
        server.request().await;
    }
    assert!(server.peer.is_silent_for(1_000 * MS).await, "more than 64 calls came");
    let greeting = support::raw::hello_with(|hello| hello.advised_calls = 1_000);
    server.peer.send(&greeting).await;
    let mut bodies = Vec::new();
    for _ in 0..37 {
        bodies.push(server.request().await.1.len());
    }
    assert_eq!(bodies.iter().filter(|&&len| len > 100_000).count(), 1);
    drop(server);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().code(), StatusCode::Unavailable);
    }
    too_large_for_now.await.unwrap().unwrap_err();
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_turned_away_learns_why_and_that_nothing_was_executed() {
    let harness = Harness::with(|builder| builder.max_connections(1));
    let (first, second) = (harness.client(), harness.client());
    echo(&first).await.unwrap();
    let error = echo(&second).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Never), "{error:?}");
    let told = format!("{error} {error:?}");
    assert!(told.contains("as many connections"), "{told}");
    // It does not come back at once and again.
    for _ in 0..1_000 {
        assert_eq!(echo(&second).await.unwrap_err().executed(), Executed::Never);
    }
    assert!(harness.network.attempts() <= 3, "{} attempts", harness.network.attempts());
    drop(first);
    harness.until("there is room", |harness| harness.snapshot().connections == 0).await;
    sleep(10_000 * MS).await;
    echo(&second).await.unwrap();
    drop(second);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_up_on_everybody_is_not_called_in_a_tight_loop() {
    let (builder, mut servers) = scripted(1024);
    let client = builder.backoff(50 * MS, 1_000 * MS).build();
    let hang_up = tokio::spawn(async move {
        let mut connections = 0;
        while servers.recv().await.is_some() {
            connections += 1;
        }
        connections
    });
    let began = Instant::now();
    let mut failed = 0;
    while began.elapsed() < 10_000 * MS {
        assert_eq!(echo(&client).await.unwrap_err().code(), StatusCode::Unavailable);
        failed += 1;
        sleep(MS).await;
    }
    drop(client);
    let connections = hang_up.await.unwrap();
    assert!(failed > 5_000, "{failed} calls failed fast");
    assert!((10..40).contains(&connections), "{connections} connections in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn after_a_farewell_the_next_call_goes_by_a_new_connection_at_once() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut old, first_id) = first_call(&client, &mut servers, 64).await;
    old.go_away(first_id, GoAwayReason::Drain, "moving house").await;
    sleep(MS).await;
    let began = Instant::now();
    let (second, mut new, id) = first_call(&client, &mut servers, 64).await;
    assert!(began.elapsed() <= MS, "a farewell is no failure");
    new.reply(id, 2_u64).await;
    assert_eq!(second.await.unwrap().unwrap(), 2);
    old.reply(first_id, 1_u64).await;
    assert_eq!(first.await.unwrap().unwrap(), 1);
    // With its last answer the client leaves the old connection.
    assert!(matches!(old.peer.next().await, Got::GoAway { .. }));
    assert!(matches!(old.peer.next().await, Got::End));
    drop(old);
    sleep(MS).await;
    let third = tokio::spawn(client.call::<_, u64>(method::GATE, (3_u64,)));
    let (id, _) = new.request().await;
    new.reply(id, 3_u64).await;
    assert_eq!(third.await.unwrap().unwrap(), 3);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_old_connection_does_not_make_calls_fail_when_the_new_one_is_lost_later() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.backoff(100 * MS, 100 * MS).build();
    // The old one never answered a call, so it never proved good.
    let (first, mut old, first_id) = first_call(&client, &mut servers, 64).await;
    old.go_away(first_id, GoAwayReason::Drain, "moving house").await;
    sleep(MS).await;
    let (second, mut new, id) = first_call(&client, &mut servers, 64).await;
    drop(old);
    assert!(first.await.unwrap().is_err());
    new.reply(id, 2_u64).await;
    assert_eq!(second.await.unwrap().unwrap(), 2);
    drop(new);
    sleep(MS).await;
    // The new one was good; after its loss a call waits for the next, and does not fail.
    let third = tokio::spawn(client.call::<_, u64>(method::GATE, (3_u64,)));
    let mut next = tokio::select! {
        next = servers.recv() => next.unwrap(),
        () = sleep(200 * MS) => panic!("no new connection: {:?}", third.await),
    };
    next.shake_hands(64).await;
    let (id, _) = next.request().await;
    next.reply(id, 3_u64).await;
    assert_eq!(third.await.unwrap().unwrap(), 3);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_takes_no_calls_and_waits_for_those_that_are_out() {
    let harness = Harness::new();
    let client = harness.client();
    let running = tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,)));
    harness.until_running(1).await;
    client.close();
    client.close();
    let error = echo(&client).await.unwrap_err();
    assert!(matches!(error, CallError::Closed), "{error:?}");
    assert_eq!((error.code(), error.executed()), (StatusCode::Cancelled, Executed::Never));
    sleep(1_000 * MS).await;
    assert_eq!(harness.snapshot().connections, 1);
    harness.probe.open_gate();
    assert_eq!(running.await.unwrap().unwrap(), 7);
    harness.assert_idle().await;
    assert!(matches!(echo(&client).await, Err(CallError::Closed)));
    assert_eq!(harness.network.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_connection_fail_when_the_client_is_closed() {
    let client = Client::with_connector("a black hole", std::future::pending::<io::Result<tokio::io::DuplexStream>>);
    let client = client.build();
    let waiting: Vec<_> = (0..10_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    sleep(MS).await;
    let began = Instant::now();
    client.close();
    for call in waiting {
        assert!(matches!(call.await.unwrap(), Err(CallError::Closed)));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_room_fail_when_the_client_is_closed() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let calls: Vec<_> = (0..3_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(1).await;
    // All three may have come before the greeting; the others come behind it.
    sleep(MS).await;
    let more: Vec<_> = (0..10_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    sleep(MS).await;
    client.close();
    for call in more {
        assert!(matches!(call.await.unwrap(), Err(CallError::Closed)));
    }
    for _ in 0..3 {
        let (id, _) = server.request().await;
        server.reply(id, 5_u64).await;
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 5);
    }
    assert!(matches!(server.peer.next().await, Got::GoAway { .. }));
    assert!(matches!(server.peer.next().await, Got::End));
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_says_goodbye_once_the_last_call_has_its_answer() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let clone = client.clone();
    let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
    drop(client);
    drop(clone);
    assert!(server.peer.is_silent_for(1_000 * MS).await, "a call is a handle, too");
    server.reply(id, 1_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 1);
    let Got::GoAway { last, reason, .. } = server.peer.next().await else { panic!("no farewell") };
    assert_eq!((last.to_wire(), reason), (0, GoAwayReason::Drain));
    assert!(matches!(server.peer.next().await, Got::End));
}

#[tokio::test(start_paused = true)]
async fn a_client_dropped_while_it_connects_hangs_up() {
    let harness = Harness::new();
    for yields in 0..20 {
        let client = harness.client();
        let mut call = Box::pin(client.call::<_, String>(method::ECHO, ("hi".to_owned(),)));
        assert!(poll!(&mut call).is_pending());
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        drop(call);
        drop(client);
    }
    sleep(MS).await;
    assert!(harness.network.attempts() < 20, "an attempt is not begun for nobody");
    harness.assert_idle().await;
}

#[test]
fn a_call_polled_outside_of_a_runtime_says_so() {
    let client = Client::new("127.0.0.1:1");
    let plain = client.call::<_, String>(method::ECHO, ("hi".to_owned(),));
    let with_timeout = client.call::<_, String>(method::ECHO, ("hi".to_owned(),)).timeout(MS);
    for mut call in [plain, with_timeout] {
        let polled = std::pin::Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Err(error)) = polled else { panic!("it is pending") };
        assert!(matches!(error, CallError::NoRuntime), "{error:?}");
        assert_eq!(error.executed(), Executed::Never);
    }
}

#[test]
fn a_client_outlives_the_runtime_that_drove_its_connection() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let harness = {
        let _guard = runtime().enter();
        Harness::new()
    };
    let client = harness.client();
    let first = runtime();
    first.block_on(async { echo(&client).await.unwrap() });
    let mut pending = client.call::<_, u64>(method::GATE, (1_u64,));
    first.block_on(async {
        assert!(poll!(&mut pending).is_pending());
        harness.until_running(1).await;
    });
    drop(first);
    let second = runtime();
    second.block_on(async {
        let error = pending.await.unwrap_err();
        assert!(matches!(error, CallError::Lost { source: LostCause::RuntimeEnded, .. }), "{error:?}");
        echo(&client).await.unwrap();
        drop(client);
        harness.assert_idle().await;
    });
}

#[test]
fn a_client_outlives_the_runtime_that_connected_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let attempts = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&attempts);
    let client = Client::with_connector("the second time", move || {
        let attempt = {
            let mut attempts = counted.lock().unwrap();
            *attempts += 1;
            *attempts
        };
        async move {
            if attempt == 1 {
                std::future::pending::<()>().await;
            }
            Err::<tokio::io::DuplexStream, _>(io::Error::other("it was asked again"))
        }
    });
    let client = client.build();
    let mut call = client.call::<_, u64>(method::GATE, (1_u64,));
    let first = runtime();
    first.block_on(async {
        assert!(poll!(&mut call).is_pending());
        sleep(MS).await;
    });
    drop(first);
    runtime().block_on(async {
        assert_eq!(call.await.unwrap_err().code(), StatusCode::Unavailable);
        sleep(3_000 * MS).await;
        assert_eq!(echo(&client).await.unwrap_err().code(), StatusCode::Unavailable);
    });
    assert_eq!(*attempts.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_client_reaches_a_server_by_name_over_a_socket_and_names_it_when_it_cannot() {
    let harness = Harness::new().plain("it is about the sockets that client and server open themselves");
    let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
    let (handle, address) = (bound.handle(), bound.local_addr());
    let serving = tokio::spawn(bound.serve());
    let client = Client::new(format!("localhost:{}", address.port()));
    assert_eq!(echo(&client).await.unwrap(), "hi");
    drop(client);
    handle.shutdown();
    serving.await.unwrap();
    assert_idle_soon(&handle).await;
    let client = Client::new(address);
    let error = echo(&client).await.unwrap_err();
    let CallError::Connect { peer, source, .. } = error else { panic!("{error:?}") };
    assert_eq!((&*peer, source.kind()), (&*address.to_string(), io::ErrorKind::ConnectionRefused));
}
