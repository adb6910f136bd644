//! Servers that break the protocol: the client fails what waits, says why, and never panics.

use std::{
    io,
    sync::{Mutex, atomic::Ordering::SeqCst},
    time::Duration,
};

use rpc_codec::{CodecId, GoAwayReason};
use rpc_core::CallId;
use sluicegate::{CallError, Client, Executed, StatusCode, client::LostCause};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep},
};

use crate::support::{
    self, Got, RawServer, method,
    raw::{Flood, cancel, frame, hello, hello_with, response},
    scripted::{Calling, first_call, scripted, scripted_with},
    shims::Manner,
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
const RESPONSE: u8 = 3;

type Calls = [Calling; 2];

/// A client with two calls out, and the server that has read them.
async fn two_calls() -> (Client, UnboundedReceiver<RawServer>, RawServer, Calls, [CallId; 2]) {
    two_calls_through(Manner::of_this_run()).await
}

async fn two_calls_through(manner: Manner) -> (Client, UnboundedReceiver<RawServer>, RawServer, Calls, [CallId; 2]) {
    let (builder, mut servers) = scripted_with(manner, 64 * 1024);
    let client = builder.build();
    let calls = [1_u64, 2].map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,))));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let ids = [server.request().await.0, server.request().await.0];
    (client, servers, server, calls, ids)
}

/// The next call gets a new connection, and its answer.
async fn next_call_is_fine(client: &Client, servers: &mut UnboundedReceiver<RawServer>) {
    sleep(20_000 * MS).await;
    let (next, mut server, id) = first_call(client, servers, 64).await;
    server.reply(id, 3_u64).await;
    assert_eq!(next.await.unwrap().unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_breaks_the_protocol_fails_the_calls_that_wait_and_is_told_why() {
    let cases: [(&str, Vec<u8>, &str); 10] = [
        ("an answer to what never was", response(CallId::new(99, 0), &1_u64), "99/0"),
        ("an answer to the connection", response(CallId::CONNECTION, &1_u64), "0/0"),
        ("an answer in a slot that never was", response(CallId::new(1, 60_000), &1_u64), "1/60000"),
        ("a request", support::Req::new(1, method::GATE, (1_u64,)).bytes(), "client"),
        ("a cancel", cancel(1), "client"),
        ("a second HELLO", hello(), "HELLO"),
        ("an unknown kind", frame(0x2a, 0, 0, &[], &[]), "0x2a"),
        ("an unknown flag", frame(RESPONSE, 0x04, 1, &[0; 12], &[]), "0x04"),
        ("a frame that is too long", 0x0100_0000_u32.to_be_bytes().to_vec(), "16777216"),
        ("a GOAWAY cut short", frame(11, 0, 0, &[0; 5], &[]), "GOAWAY"),
    ];
    for (what, bytes, names) in cases {
        let manner = Manner::plain("the client says why only where that can be written at once");
        let (client, mut servers, mut server, calls, _) = two_calls_through(manner).await;
        let began = Instant::now();
        server.peer.send(&bytes).await;
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            let CallError::Lost { executed, source: LostCause::Protocol(message), .. } = error else {
                panic!("{what}: {error:?}")
            };
            assert!(message.contains(names), "{what}: {message}");
            assert_eq!(executed, Executed::Maybe);
        }
        assert!(began.elapsed() < 50 * MS, "{what}");
        assert_eq!(client.snapshot().calls, 0);
        next_call_is_fine(&client, &mut servers).await;
        let told = server.peer.next().await;
        let Got::GoAway { reason: GoAwayReason::ProtocolError, message, .. } = told else { panic!("{what}: {told:?}") };
        assert!(message.contains(names), "{what}: {message}");
        assert!(matches!(server.peer.next().await, Got::End));
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn something_that_is_no_server_of_ours_is_named_and_not_called_in_a_loop() {
    let cases: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (&[0; 40], "Sluicegate"),
        (&hello_with(|hello| (hello.min_version, hello.max_version) = (2, 3)), "2 to 3"),
    ];
    for (bytes, names) in cases {
        let (builder, mut servers) = scripted(64 * 1024);
        let client = builder.build();
        let call = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
        let mut server = servers.recv().await.unwrap();
        server.peer.send(bytes).await;
        let error = call.await.unwrap().unwrap_err();
        let CallError::Lost { source: LostCause::Protocol(ref message), .. } = error else { panic!("{error:?}") };
        assert!(message.contains(names), "{message}");
        for _ in 0..100 {
            let error = client.call::<_, u64>(method::GATE, (1_u64,)).await.unwrap_err();
            let CallError::Connect { source, .. } = error else { panic!("{error:?}") };
            assert!(source.to_string().contains(names), "{source}");
        }
        assert!(servers.try_recv().is_err(), "it was called again at once");
        next_call_is_fine(&client, &mut servers).await;
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_malformed_response_costs_its_call_and_the_others_go_on() {
    let wrong_length: Vec<u8> = [&[0, 0, 0, 0][..], &9_u32.to_be_bytes(), &[0, 0, 0, 0]].concat();
    let compressed = vec![0, 0, 7, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let bad_text = vec![5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0];
    let cases: [(&str, u8, Vec<u8>, &[u8]); 4] = [
        ("a head cut short", 0, vec![0; 3], b""),
        ("a body of another length", 0, wrong_length, b"x"),
        ("a body that is compressed", 0, compressed, b"x"),
        ("a message that is not text", 0, bad_text, b""),
    ];
    for (what, flags, head, body) in cases {
        let (client, _servers, mut server, [bad, good], ids) = two_calls().await;
        let mut bytes = frame(RESPONSE, flags, 0, &head, body);
        rpc_codec::patch_id(&mut bytes, ids[0]);
        server.peer.send(&bytes).await;
        let error = bad.await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::MalformedResponse { .. }), "{what}: {error:?}");
        assert_ne!(error.executed(), Executed::Never, "{what}");
        server.reply(ids[1], 2_u64).await;
        assert_eq!(good.await.unwrap().unwrap(), 2, "{what}");
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_not_what_was_asked_for_costs_its_call() {
    let (client, _servers, mut server, [bad, good], ids) = two_calls().await;
    server.reply(ids[0], "a text instead of a number".to_owned()).await;
    let error = bad.await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Decode { .. }), "{error:?}");
    server.reply(ids[1], 2_u64).await;
    assert_eq!(good.await.unwrap().unwrap(), 2);
    assert_eq!(client.snapshot().calls, 0);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn frames_that_may_be_ignored_are() {
    let (client, _servers, mut server, [first, second], ids) = two_calls().await;
    let ignorable = [
        frame(0x85, 0xf3, 7, b"of a later version", b"whatever"),
        frame(10, 0, 0, &[7; 8], &[]),
        // A code that this version does not know, on a head with a tail that it does not know.
        {
            let mut bytes = frame(RESPONSE, 0xf0, 0, &[99, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'?'], &[]);
            rpc_codec::patch_id(&mut bytes, ids[0]);
            bytes
        },
    ];
    server.peer.send(&ignorable.concat()).await;
    let error = first.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unknown, Executed::Never));
    server.reply(ids[1], 2_u64).await;
    assert_eq!(second.await.unwrap().unwrap(), 2);
    assert!(client.snapshot().connected);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_ping_of_the_server_is_answered() {
    let (client, _servers, mut server, calls, ids) = two_calls().await;
    server.peer.send(&frame(9, 0, 0, b"anyone\r\n", &[])).await;
    assert!(matches!(server.peer.next().await, Got::Pong(opaque) if &opaque == b"anyone\r\n"));
    for (n, id) in (1_u64..).zip(ids) {
        server.reply(id, n).await;
    }
    for (n, call) in (1..).zip(calls) {
        assert_eq!(call.await.unwrap().unwrap(), n);
    }
    drop(client);
    assert!(matches!(server.peer.next().await, Got::GoAway { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_welcomes_no_call_at_once_is_still_called_one_by_one() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let calls = [1_u64, 2, 3].map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,))));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(0).await;
    for _ in 0..3 {
        let (id, _) = server.request().await;
        server.reply(id, 7_u64).await;
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 7);
    }
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn answers_are_the_same_however_their_bytes_are_split() {
    for split in [1, 3, 16, 50] {
        let (builder, mut servers) = scripted(64 * 1024);
        let client = builder.build();
        let calls: Vec<_> = (0..20_u64).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
        let mut server = servers.recv().await.unwrap();
        assert!(matches!(server.peer.next().await, Got::Hello(_)));
        let mut bytes = hello();
        for n in 0..20_u64 {
            bytes.extend(response(server.request().await.0, &n));
        }
        for part in bytes.chunks(split) {
            server.peer.send(part).await;
            tokio::task::yield_now().await;
        }
        for (n, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap().unwrap(), n);
            until_client_idle(&client).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_frames_that_answer_nothing_does_not_keep_the_thread() {
    let ping = frame(9, 0, 0, &[7; 8], &[]);
    let unknown = frame(0x85, 0, 0, &[], &[]);
    for frames in [ping, unknown] {
        let flood = Flood::new(hello(), &frames);
        let (reads, flood) = (flood.reads(), Mutex::new(Some(flood)));
        let client = Client::with_connector("the flood", move || {
            let flood = flood.lock().unwrap().take();
            async { flood.ok_or_else(|| io::Error::other("once is enough")) }
        });
        let client = client.build();
        let call = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
        while reads.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let in_one_turn = reads.load(SeqCst);
        // A runtime of one thread looks at tasks 61 times before it looks at the test.
        assert!(in_one_turn < 61 * 10, "{in_one_turn} reads in one turn");
        assert!(call.await.unwrap().is_err());
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_come_right_before_the_connection_breaks_reach_their_callers() {
    for breaking in [frame(0x3c, 0, 1, b"", b""), response(CallId::new(1_000, 9), &1_u64), Vec::new()] {
        // Few answers wake their callers at once, many in a turn of their own.
        for calls in [1_u64, 2, 23, 24, 60] {
            let (builder, mut servers) = scripted(64 * 1024);
            let client = builder.build();
            let callers: Vec<_> = (0..calls).map(|n| tokio::spawn(client.call::<_, u64>(method::GATE, (n,)))).collect();
            let mut server = servers.recv().await.unwrap();
            server.shake_hands(64).await;
            let mut answers = Vec::new();
            for _ in 0..calls {
                let (id, body) = server.request().await;
                let (n,): (u64,) = CodecId::BINCODE.decode(&body).unwrap();
                answers.extend(response(id, &n));
            }
            answers.extend(&breaking);
            server.peer.send(&answers).await;
            drop(server);
            for (n, caller) in callers.into_iter().enumerate() {
                assert_eq!(within(caller).await.unwrap().unwrap(), n as u64, "of {calls}");
            }
            until_client_idle(&client).await;
        }
    }
}

/// Two calls are out, to a server that has sent `farewell` and gone, and a third is about to be written. How they end.
async fn when_writes_fail_first(farewell: impl FnOnce([CallId; 2]) -> Vec<u8>) -> [Result<u64, CallError>; 3] {
    let plain = Manner::plain("all that was sent before the end is there in one turn");
    let (client, _servers, mut server, out, ids) = two_calls_through(plain).await;
    let farewell = farewell(ids);
    sleep(MS).await;
    server.peer.send(&farewell).await;
    drop(server);
    let mut late = client.call::<_, u64>(method::GATE, (3_u64,));
    assert!(futures::poll!(&mut late).is_pending());
    let [first, second] = out;
    let ends = [within(first).await.unwrap(), within(second).await.unwrap(), within(late).await];
    until_client_idle(&client).await;
    ends
}

#[tokio::test(start_paused = true)]
async fn answers_that_have_come_reach_their_callers_when_a_write_fails_before_they_are_read() {
    let ends = when_writes_fail_first(|ids| [response(ids[0], &7_u64), response(ids[1], &8_u64)].concat()).await;
    let [Ok(7), Ok(8), Err(CallError::Lost { .. })] = ends else { panic!("{ends:?}") };
}

#[tokio::test(start_paused = true)]
async fn a_farewell_that_has_come_is_believed_when_a_write_fails_before_it_is_read() {
    let ends = when_writes_fail_first(|ids| {
        let mut out = Vec::new();
        rpc_codec::encode_go_away(&mut out, ids[0], GoAwayReason::ProtocolError, "frame 7 is bad");
        out
    })
    .await;
    let [Err(accepted), Err(above), Err(late)] = ends else { panic!("{ends:?}") };
    let CallError::Lost { source: LostCause::GoneAway(why), executed: Executed::Maybe, .. } = accepted else {
        panic!("{accepted:?}")
    };
    assert_eq!(&*why, "frame 7 is bad");
    for error in [above, late] {
        assert!(matches!(error, CallError::GoingAway { .. }), "{error:?}");
        assert_eq!(error.executed(), Executed::Never);
    }
}
