//! Every way in which a call can fail after somebody has counted it, a thousand times: the figures
//! are exact afterwards.

use std::time::{Duration, Instant};

use rpc_codec::CallKind;
use sluicegate::{
    Executed, Status, StatusCode,
    client::Method,
    server::{Call, CallInfo, Decision, Handler, MethodOptions, Outbound, Service, ServiceMethods},
};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::yield_now, time::sleep};

use crate::support::{
    Got, Harness, RawClient, Req, assert_idle_soon,
    feed::{FeedServer, named},
    method, no_call_runs,
    probe::{PANIC_TEXT, silence_wanted_panics},
    raw::{cancel, goodbye, hello},
    shims::{is_full, times, times_in},
    within,
};

const TIMES: u64 = 1_000;

/// A service with one method that blocks, for as little time as can be.
struct Quick;

impl Service for Quick {
    fn name(&self) -> &str {
        "test.Quick"
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        methods.blocking("block", MethodOptions::default(), |_, (n,): (u64,)| Ok(n));
    }
}

const BLOCK: Method = Method::new("test.Quick", "block");

/// The codes of the next `count` answers, in the order in which they come.
async fn answers(peer: &mut RawClient, count: u64) -> Vec<(StatusCode, Executed)> {
    let mut answers = Vec::new();
    for _ in 0..count {
        match peer.next().await {
            Got::Response { code, executed, .. } => answers.push((code, executed)),
            other => panic!("instead of an answer came {other:?}"),
        }
    }
    answers
}

// In virtual time a turn ends by what it has done and not by how long that took.
#[tokio::test(start_paused = true)]
async fn work_that_its_executor_refuses_is_told_and_leaves_nothing_behind() {
    let rounds = times(100_000 / 3 + 1);
    let harness = Harness::with(|builder| builder.service(Quick).max_blocking_calls(2));
    let harness = harness.plain("what is written at once has to be read at once");
    let mut peer = harness.peer().await;
    for round in 0..rounds {
        // Three in one write are looked at in one turn, and two find room in it.
        let calls = [1, 2, 3].map(|n| Req::new(round * 3 + n, BLOCK, (n,)).bytes());
        peer.send(&calls.concat()).await;
        let mut outcome = answers(&mut peer, 3).await;
        assert_eq!(outcome.remove(0), (StatusCode::ResourceExhausted, Executed::Never));
        assert!(outcome.iter().all(|(code, _)| *code == StatusCode::Ok), "{outcome:?}");
        no_call_runs(&harness.handle);
    }
    let blocking = harness.snapshot().blocking;
    assert_eq!((harness.refused("blocking"), blocking.acquired, blocking.high_water), (rounds, 2 * rounds, 2));
    peer.part().await;
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test]
async fn calls_whose_connection_is_reset_leave_nothing_behind_whether_their_client_had_said_goodbye() {
    // No PING shall find it.
    let harness = Harness::with(|builder| builder.max_concurrent_calls(TIMES).keepalive_interval(None));
    let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
    let address = bound.local_addr();
    let serving = tokio::spawn(bound.serve());
    for wave in 0..TIMES / 50 {
        let mut sockets = Vec::new();
        for _ in 0..50 {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(&[hello(), Req::new(1, method::GATE, (1_u64,)).bytes()].concat()).await.unwrap();
            if wave % 2 == 1 {
                socket.write_all(&goodbye()).await.unwrap();
                socket.shutdown().await.unwrap();
            }
            sockets.push(socket);
        }
        harness.until_running(50).await;
        let reset = Instant::now();
        for socket in sockets {
            socket.set_zero_linger().unwrap();
        }
        within(async {
            while harness.probe.running() > 0 {
                yield_now().await;
                assert!(!is_full() || reset.elapsed() <= Duration::from_millis(100), "{:?}", reset.elapsed());
            }
        })
        .await;
        assert_idle_soon(&harness.handle).await;
    }
    assert_eq!((harness.probe.started() as u64, harness.probe.running()), (TIMES, 0));
    harness.handle.shutdown();
    serving.await.unwrap();
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_client_has_said_goodbye_and_gone_is_dropped_within_a_tenth_of_a_second() {
    for after in [0, 1, 49, 50, 51, 20_000] {
        let harness = Harness::with(|builder| builder.keepalive_interval(None));
        let harness =
            harness.plain("a transport that hesitates or holds back does not tell at once that its peer has gone");
        let mut peer = harness.peer().await;
        peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
        peer.leave().await;
        sleep(Duration::from_millis(after)).await;
        harness.until_running(1).await;
        drop(peer);
        sleep(Duration::from_millis(100)).await;
        assert_eq!((harness.probe.running(), harness.snapshot().calls.held), (0, 0), "{after} ms");
        harness.assert_idle().await;
    }
}

#[tokio::test]
async fn streams_whose_connection_is_reset_leave_nothing_behind() {
    let server = FeedServer::with(|builder| builder.max_concurrent_calls(TIMES));
    let sockets = server.harness.sockets().await;
    for _ in 0..times(TIMES) / 50 {
        let mut open = Vec::new();
        for n in 0..50 {
            let request = match n % 4 {
                0 => Req::new(1, named("stall"), (1_u64,)).takes(),
                1 => Req::new(1, named("count_sent"), (u64::MAX,)).takes(),
                2 => Req::new(1, named("sum"), (0_u64,)).sends(),
                _ => Req::new(1, named("echo"), ()).of_kind(CallKind::BothWays),
            };
            let mut socket = TcpStream::connect(sockets.address).await.unwrap();
            socket.write_all(&[hello(), request.bytes()].concat()).await.unwrap();
            open.push(socket);
        }
        server.until_running(50).await;
        let reset = Instant::now();
        for socket in open {
            socket.set_zero_linger().unwrap();
        }
        while server.feeder.running() > 0 {
            yield_now().await;
            assert!(!is_full() || reset.elapsed() <= Duration::from_millis(100), "{:?}", reset.elapsed());
        }
        assert_idle_soon(&server.harness.handle).await;
        assert_eq!((server.snapshot().streams, server.snapshot().stream_bytes), (0, 0));
    }
    sockets.shut_down().await;
    assert_idle_soon(&server.harness.handle).await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_expire_or_are_cancelled_or_cut_off_by_a_drain_leave_nothing_behind() {
    for gate in [method::GATE, method::GATE_SPAWNED] {
        let harness = Harness::with(|builder| builder.max_concurrent_calls(TIMES));
        let mut peer = harness.peer().await;
        for id in 1..=TIMES {
            peer.send(&Req::new(id, gate, (id,)).timeout(Duration::from_millis(id)).bytes()).await;
        }
        let expired = answers(&mut peer, TIMES).await;
        assert!(expired.iter().all(|(code, _)| *code == StatusCode::DeadlineExceeded));
        harness.until_held(0).await;

        for id in TIMES + 1..=2 * TIMES {
            peer.send(&[Req::new(id, gate, (id,)).bytes(), cancel(id)].concat()).await;
        }
        harness.until("they are all back", |harness| harness.snapshot().calls.released == 2 * TIMES).await;

        for id in 2 * TIMES + 1..=3 * TIMES {
            peer.send(&Req::new(id, gate, (id,)).bytes()).await;
        }
        harness.until_running(TIMES as usize).await;
        harness.handle.stop();
        let Got::GoAway { .. } = peer.next().await else { panic!("the server stops") };
        let cut = answers(&mut peer, TIMES).await;
        assert!(cut.iter().all(|answer| *answer == (StatusCode::Unavailable, Executed::Maybe)));
        drop(peer);
        assert_eq!(within(harness.handle.drain()).await.cut.len() as u64, TIMES);
        harness.assert_idle().await;
        assert_eq!(harness.snapshot().calls.acquired, 3 * TIMES);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_whose_service_panics_leave_nothing_behind() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(8));
    let client = harness.client();
    for _ in 0..TIMES / 2 {
        for panics in [method::PANIC_LATER, method::PANIC_LATER_SPAWNED] {
            assert_eq!(client.call::<_, ()>(panics, ()).await.unwrap_err().code(), StatusCode::Internal);
        }
    }
    assert_eq!((harness.snapshot().panics, harness.snapshot().calls.acquired), (TIMES, TIMES));
    drop(client);
    harness.assert_idle().await;
}

/// A handler that spoils every call in one way.
#[derive(Clone, Copy, Debug)]
struct Spoiler {
    inbound: bool,
    panics: bool,
}

impl Spoiler {
    fn spoil(self) -> Status {
        assert!(!self.panics, "{PANIC_TEXT}");
        Status::permission_denied("a handler that always answers")
    }
}

impl Handler for Spoiler {
    fn inbound(&mut self, _: &mut Call<'_>) -> Decision {
        if self.inbound { Decision::Answer(self.spoil()) } else { Decision::Pass }
    }

    fn outbound(&mut self, _: &CallInfo<'_>, response: &mut Outbound<'_>) {
        if !self.inbound {
            response.replace(self.spoil());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn handlers_before_and_behind_the_limit_that_fail_leave_nothing_behind() {
    silence_wanted_panics();
    for (before, inbound, panics) in (0..8).map(|case| (case & 1 != 0, case & 2 != 0, case & 4 != 0)) {
        let spoiler = Spoiler { inbound, panics };
        let harness = Harness::with(|builder| {
            builder.max_concurrent_calls(16).pipeline(move |pipeline, _| {
                if before {
                    pipeline.add_before("concurrency", "spoiler", spoiler);
                } else {
                    pipeline.add_after("concurrency", "spoiler", spoiler);
                }
            })
        });
        let mut peer = harness.peer().await;
        for id in 1..=TIMES {
            peer.send(&Req::new(id, method::ECHO, ("hi",)).bytes()).await;
            let code = if panics { StatusCode::Internal } else { StatusCode::PermissionDenied };
            assert_eq!(peer.answer(id).await.0.code(), code, "{before} {spoiler:?}");
        }
        let snapshot = harness.snapshot();
        assert_eq!(snapshot.panics, if panics { TIMES } else { 0 });
        assert_eq!(snapshot.calls.acquired, if before && inbound { 0 } else { TIMES }, "{before} {spoiler:?}");
        assert_eq!(harness.probe.started() as u64, if inbound { 0 } else { TIMES });
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_found_wrong_leave_nothing_behind_and_cost_no_permit_where_that_is_cheap() {
    let harness = Harness::with(|builder| builder.service(Quick).max_concurrent_calls(16).max_message(1_000));
    let mut peer = harness.peer().await;
    let echo = |id| Req::new(id, method::ECHO, ("hi",));
    // The least that metadata can be wrong by: a pair that ends too early.
    let bad_metadata = |id: u64| {
        let mut bytes = echo(id).bytes();
        let head_len = usize::from(u16::from_be_bytes([bytes[6], bytes[7]]));
        bytes[16 + head_len - 1] = 1;
        bytes
    };
    let late = |id: u64| {
        let late = echo(id).timeout(Duration::from_micros(10));
        late.head(|head| head.sent_at_us = 0).bytes()
    };
    type Make<'a> = &'a dyn Fn(u64) -> Vec<u8>;
    let cases: [(Make<'_>, StatusCode, u64); 6] = [
        (&|id| Req::new(id, method::UNKNOWN, ("hi",)).bytes(), StatusCode::Unimplemented, 0),
        (&|id| echo(id).body(vec![0; 2_000]).bytes(), StatusCode::ResourceExhausted, 0),
        (&bad_metadata, StatusCode::InvalidArgument, 0),
        (&|id| echo(id).body(*b"\xff\xff").bytes(), StatusCode::InvalidArgument, 1),
        (&|id| Req::new(id, method::ECHO_SPAWNED, ()).bytes(), StatusCode::InvalidArgument, 1),
        (&late, StatusCode::DeadlineExceeded, 0),
    ];
    // The first call is what later ones are late against.
    peer.send(&echo(1).bytes()).await;
    assert_eq!(peer.reply::<String>(1).await, "hi");
    tokio::time::advance(Duration::from_millis(100)).await;
    let (times, mut id, mut acquired) = (times_in(TIMES, TIMES), 1, 1);
    for (number, (make, code, permits)) in cases.into_iter().enumerate() {
        for _ in 0..times {
            id += 1;
            peer.send(&make(id)).await;
            let (status, _) = peer.answer(id).await;
            assert_eq!((status.code(), status.executed()), (code, Executed::Never), "case {number}: {status}");
        }
        acquired += permits * times;
        harness.until_held(0).await;
        assert_eq!(harness.snapshot().calls.acquired, acquired, "case {number}");
    }
    assert_eq!(harness.probe.started(), 1);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test]
async fn arguments_that_do_not_decode_on_the_blocking_pool_leave_nothing_behind() {
    let harness = Harness::with(|builder| builder.service(Quick).max_blocking_calls(1));
    let mut peer = harness.peer().await;
    for id in 1..=TIMES {
        peer.send(&Req::new(id, BLOCK, ()).bytes()).await;
        let (status, _) = peer.answer(id).await;
        assert_eq!((status.code(), status.executed()), (StatusCode::InvalidArgument, Executed::Never));
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
    }
    peer.part().await;
    assert_idle_soon(&harness.handle).await;
}
