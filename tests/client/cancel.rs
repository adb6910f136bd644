//! Calls given up at any moment: no frame is torn, no answer reaches another caller, nothing is left.
//!
//! As many calls as a moment allows, the promised number with `SLUICEGATE_SIEGE=full`, or `SLUICEGATE_CLIENT_CALLS`.

use std::{
    collections::BTreeMap,
    env, io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::poll;
use rpc_codec::CodecId;
use rpc_core::CallId;
use sluicegate::{CallError, Client, StatusCode};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    sync::mpsc,
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, sleep_until},
};

use crate::support::{
    Got, Harness, RawServer, method, raw::response, scripted::scripted, shims::times_in, until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);

fn calls_or(promised: u64, usually: u64) -> u64 {
    let asked = env::var("SLUICEGATE_CLIENT_CALLS").ok().and_then(|calls| calls.parse().ok());
    asked.unwrap_or_else(|| times_in(promised, usually))
}

/// Random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn seeded(seed: u64) -> Self {
        Self(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed + 1))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Polls `call` up to so many times, with a turn of the others between one and the next, then drops it.
async fn poll_and_drop<R>(mut call: impl Future<Output = R> + Unpin, polls: u64) {
    for n in 0..polls {
        if n > 0 {
            yield_now().await;
        }
        if poll!(&mut call).is_ready() {
            return;
        }
    }
}

/// Takes one byte at a time, and now and then none.
struct Narrow {
    io: DuplexStream,
    random: Random,
}

impl AsyncRead for Narrow {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Narrow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.random.below(20) == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_write(cx, &buf[..1])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn calls_dropped_at_any_poll_over_a_transport_that_takes_single_bytes_tear_no_frame() {
    let (send, mut servers) = mpsc::unbounded_channel();
    let client = Client::with_connector("the narrow server", move || {
        let (ours, theirs) = tokio::io::duplex(256);
        send.send(RawServer::new(theirs)).unwrap();
        async { Ok(Narrow { io: ours, random: Random::seeded(3) }) }
    });
    let client = client.build();
    let caller = client.clone();
    let calls = calls_or(1_000_000, 3_750);
    let calling = tokio::spawn(async move {
        let mut random = Random::seeded(5);
        for nonce in 0..calls {
            let (polls, text) = (random.below(5), "x".repeat(random.below(40) as usize));
            let text = format!("{nonce} {polls} {}{text}", text.len());
            poll_and_drop(caller.call::<_, String>(method::ECHO, (text,)), polls).await;
        }
        let last = caller.call::<_, String>(method::ECHO, (format!("{calls} 2 0"),));
        assert_eq!(last.await.unwrap(), "the last one");
    });
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(1_000).await;
    // A frame that is torn or out of step makes the peer panic.
    let (mut last, mut last_id, mut requests, mut cancels) = (None, CallId::CONNECTION, 0, 0_u64);
    while last != Some(calls) || cancels + 1 < requests {
        match server.peer.next().await {
            Got::Request { id, body, .. } => {
                let (text,): (String,) = CodecId::BINCODE.decode(&body).unwrap();
                let [nonce, polls, rest] = text.split(' ').collect::<Vec<_>>().try_into().unwrap();
                assert!(polls.parse::<u64>().unwrap() > 1, "it was dropped before anybody could write it: {text}");
                let (nonce, len) = (nonce.parse::<u64>().unwrap(), rest.trim_end_matches('x'));
                assert_eq!(len.parse::<usize>().unwrap(), rest.len() - len.len(), "{text}");
                assert!(last < Some(nonce) && last_id < id, "whole, once, and in order");
                (last, last_id, requests) = (Some(nonce), id, requests + 1);
            }
            Got::Cancel(id) => {
                assert!(id <= last_id);
                cancels += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    server.reply(last_id, "the last one".to_owned()).await;
    calling.await.unwrap();
    assert!(requests > calls / 2 && cancels + 1 == requests, "{requests} requests, {cancels} cancels");
    assert_eq!(client.snapshot().connects, 1);
    until_client_idle(&client).await;
}

/// Answers each call with what it was asked, late and in any order, and hangs up now and then.
async fn reorder(mut server: RawServer, mut random: Random) {
    let mut due: BTreeMap<(Instant, u64), (CallId, u64)> = BTreeMap::new();
    server.shake_hands(40).await;
    let lifetime = 200 + random.below(3_000);
    for n in 0..lifetime {
        let next = due.first_key_value().map_or(Instant::now() + 1_000 * MS, |(&(at, _), _)| at);
        tokio::select! {
            got = server.peer.next() => match got {
                Got::Request { id, body, .. } => {
                    let (nonce, _): (u64, u32) = CodecId::BINCODE.decode(&body).unwrap();
                    due.insert((Instant::now() + random.below(6) as u32 * MS, random.below(1 << 40) << 20 | n), (id, nonce));
                }
                Got::End => return,
                // Cancelled or not: it answers.
                _ => {}
            },
            () = sleep_until(next) => {
                let mut answers = Vec::new();
                while let Some(entry) = due.first_entry().filter(|entry| entry.key().0 <= Instant::now()) {
                    let (id, nonce) = entry.remove();
                    answers.extend(response(id, &nonce));
                    if random.below(50) == 0 {
                        answers.extend(response(id, &nonce));
                    }
                }
                // The client may have gone.
                let _ = tokio::io::AsyncWriteExt::write_all(&mut server.peer.io, &answers).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_reaches_another_caller_whatever_is_cancelled_late_twice_reordered_or_lost() {
    let (builder, mut servers) = scripted(16 * 1024);
    let client = builder.backoff(MS, 5 * MS).build();
    let serving = tokio::spawn(async move {
        let mut connections = 0;
        while let Some(server) = servers.recv().await {
            connections += 1;
            tokio::spawn(reorder(server, Random::seeded(connections)));
        }
        connections
    });
    const CALLERS: u64 = 100;
    let calls = calls_or(10_000_000, 7_500) / CALLERS;
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let (client, mut random) = (client.clone(), Random::seeded(1_000 + n));
            tokio::spawn(async move {
                let mut answered = 0_u64;
                for call in 0..calls {
                    let nonce = n << 32 | call;
                    let call =
                        client.call::<_, u64>(method::NONCE, (nonce, 0_u32)).wait_for_ready(random.below(4) == 0);
                    let answer = match random.below(5) {
                        0 => {
                            poll_and_drop(call, random.below(8)).await;
                            continue;
                        }
                        1 => call.timeout((1 + random.below(6)) as u32 * MS).await,
                        _ => call.await,
                    };
                    match answer {
                        Ok(answer) => {
                            assert_eq!(answer, nonce, "an answer for somebody else");
                            answered += 1;
                        }
                        Err(CallError::DeadlineExceeded { .. }) => {}
                        Err(error) => {
                            assert_eq!(error.code(), StatusCode::Unavailable, "{error:?}");
                            sleep(MS).await;
                        }
                    }
                }
                answered
            })
        })
        .collect();
    let mut answered = 0;
    for caller in callers {
        answered += caller.await.unwrap();
    }
    until_client_idle(&client).await;
    let snapshot = client.snapshot();
    assert!(answered > calls * CALLERS / 3, "{answered} answers");
    assert!(snapshot.late_answers > answered / 50 && snapshot.protocol_errors == 0, "{snapshot:?}");
    drop(client);
    let connections = serving.await.unwrap();
    assert!(connections > calls * CALLERS / 12_000, "{connections} connections");
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_dropped_leave_nothing_however_the_server_answers() {
    for answers_after in [Some(0), None, Some(5_000)] {
        let (builder, mut servers) = scripted(16 * 1024);
        let client = builder.build();
        let caller = client.clone();
        let calls = calls_or(100_000, 2_500);
        let calling: JoinHandle<()> = tokio::spawn(async move {
            let mut random = Random::seeded(11);
            for n in 0..calls {
                poll_and_drop(caller.call::<_, u64>(method::GATE, (n,)), random.below(6)).await;
            }
        });
        let mut server = servers.recv().await.unwrap();
        server.shake_hands(64).await;
        let (mut requests, mut cancels, mut late) = (0, 0, Vec::new());
        let mut calling = Some(calling);
        loop {
            tokio::select! {
                biased;
                got = server.peer.next() => match got {
                    Got::Request { id, .. } => {
                        requests += 1;
                        match answers_after {
                            Some(0) => server.reply(id, 1_u64).await,
                            Some(_) => late.push(id),
                            None => {}
                        }
                    }
                    Got::Cancel(_) => cancels += 1,
                    other => panic!("{other:?}"),
                },
                called = async { calling.as_mut().unwrap().await }, if calling.is_some() => {
                    called.unwrap();
                    calling = None;
                }
                () = sleep(100 * MS), if calling.is_none() => break,
            }
        }
        let snapshot = client.snapshot();
        assert!(snapshot.is_idle() && snapshot.connected, "{answers_after:?}: {snapshot:?}");
        // Some are dropped before they leave; over a transport that takes little at once, many.
        assert!(requests > calls / 4, "{requests} requests");
        if answers_after.is_none() {
            assert_eq!(cancels, requests, "the server knows of each");
        }
        sleep(5_000 * MS).await;
        for ids in late.chunks(100) {
            let answers: Vec<u8> = ids.iter().flat_map(|&id| response(id, &1_u64)).collect();
            server.peer.send(&answers).await;
        }
        sleep(MS).await;
        let snapshot = client.snapshot();
        assert!(snapshot.is_idle() && snapshot.connects == 1 && snapshot.connected, "{snapshot:?}");
        assert!(snapshot.late_answers >= late.len() as u64, "{snapshot:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_services_of_calls_that_were_dropped_are_dropped_soon_after() {
    let harness = Harness::new();
    let client = harness.client();
    let mut random = Random::seeded(17);
    let (mut reached, calls) = (0, calls_or(100_000, 1_500));
    for n in 0..calls {
        let method = [method::GATE, method::GATE_SPAWNED, method::SLEEP][random.below(3) as usize];
        poll_and_drop(client.call::<_, u64>(method, (5_000 + n % 2,)), random.below(12)).await;
        if n.is_multiple_of(1_000) {
            reached = reached.max(harness.probe.high_water());
        }
    }
    // Within a hundred milliseconds, and nobody has waited for an answer.
    harness.until("none runs", |harness| harness.probe.running() == 0 && harness.snapshot().calls.held == 0).await;
    let (started, finished) = (harness.probe.started() as u64, harness.probe.finished());
    assert!(started > calls / 4 && finished == 0 && reached <= 100, "{started} of {calls}, {finished}, {reached}");
    until_client_idle(&client).await;
    let snapshot = client.snapshot();
    assert!(snapshot.connects == 1 && snapshot.connected, "{snapshot:?}");
    drop(client);
    harness.assert_idle().await;
    assert_eq!(harness.snapshot().protocol_errors, 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_while_its_answer_is_delivered_gives_its_room_back() {
    let (builder, mut servers) = scripted(16 * 1024);
    let client = builder.build();
    let server = tokio::spawn(async move {
        let mut server = servers.recv().await.unwrap();
        server.shake_hands(16).await;
        loop {
            match server.peer.next().await {
                Got::Request { id, body, .. } => {
                    let (n,): (u64,) = CodecId::BINCODE.decode(&body).unwrap();
                    server.reply(id, n).await;
                }
                Got::Cancel(_) => {}
                _ => return,
            }
        }
    });
    let mut random = Random::seeded(13);
    let (mut answered, calls) = (0, calls_or(100_000, 2_500));
    for n in 0..calls {
        let mut call = client.call::<_, u64>(method::GATE, (n,));
        assert!(poll!(&mut call).is_pending());
        // About as many turns as the way there and back takes.
        for _ in 0..random.below(8) {
            yield_now().await;
        }
        if random.below(2) == 0 {
            answered += u64::from(poll!(&mut call).is_ready());
        }
    }
    assert!(answered > calls / 20 && answered < calls / 2, "{answered} of {calls} were answered before");
    until_client_idle(&client).await;
    // All of the room is there: sixteen at once, and no buffered answer is anybody else's.
    let calls: Vec<_> = (0..16_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
    for (n, call) in (0..).zip(calls) {
        assert_eq!(within(call).await.unwrap().unwrap(), n);
    }
    until_client_idle(&client).await;
    drop(client);
    server.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn when_ids_are_used_up_the_connection_is_left_in_peace_and_calls_go_on_by_another() {
    let harness = Harness::new();
    let client = harness.client_builder().ids_used(CallId::MAX_SEQUENCE - 50).build();
    let long = tokio::spawn(client.call::<_, u64>(method::GATE, (77_u64,)));
    harness.until_running(1).await;
    for nonce in 0..1_000_u64 {
        let answer = within(client.call::<_, u64>(method::NONCE, (nonce, 1_u32))).await;
        assert_eq!(answer.unwrap(), nonce);
    }
    harness.until("old connections are left", |harness| harness.snapshot().connections == 2).await;
    assert!(!long.is_finished());
    harness.probe.open_gate();
    assert_eq!(within(long).await.unwrap().unwrap(), 77);
    let snapshot = client.snapshot();
    assert_eq!((snapshot.connects, snapshot.lost_connections), (1_001_u64.div_ceil(50), 0));
    assert_eq!(harness.snapshot().protocol_errors, 0);
    until_client_idle(&client).await;
    drop(client);
    harness.assert_idle().await;
}
