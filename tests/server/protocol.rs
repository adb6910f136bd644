//! What the server makes of peers that keep the protocol, bend it, break it, or speak another.

use std::{collections::BTreeMap, sync::atomic::Ordering::SeqCst, time::Duration};

use rpc_codec::{GoAwayReason, encode_go_away, encode_ping};
use rpc_core::CallId;
use sluicegate::{Server, StatusCode, testing::assert_idle};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::support::{
    Got, Harness, RawClient, Req, assert_idle_soon,
    harness::PIPE,
    method, no_call_runs,
    raw::{Flood, cancel, frame, hello, hello_with, response, responses_in},
    shims::{Manner, Withholding, times_in},
    traces::Traces,
    within,
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn whoever_breaks_the_protocol_is_told_how_and_its_calls_are_cancelled() {
    let request = |id| Req::new(id, method::ECHO, ("hi",)).bytes();
    let too_long = 0x0100_0000_u32.to_be_bytes().to_vec();
    let cases: [(&str, Vec<u8>, &str); 14] = [
        ("an id twice", [request(5), request(5)].concat(), "5/0 does not come after call 5/0"),
        ("an id that goes back", [request(5), request(4)].concat(), "4/0 does not come after call 5/0"),
        ("the id 0", frame(2, 0, 0, &request(5)[16..45], &request(5)[45..]), "does not come after"),
        ("a RESPONSE", response(CallId::new(1, 0), &"hi"), "RESPONSE"),
        ("an unknown kind", frame(0x2a, 0, 0, &[], &[]), "0x2a"),
        ("an unknown flag", frame(9, 0x04, 0, &[0; 8], &[]), "0x04"),
        ("a second HELLO", hello(), "HELLO"),
        ("a CANCEL of what never was", cancel(77), "77/0"),
        ("a CONT of what never was", frame(4, 0, 77, &[], b"part"), "CONT"),
        ("an ITEM", frame(5, 0, 1, &[], b"item"), "ITEM"),
        ("a short PING", frame(9, 0, 0, &[0; 7], &[]), "PING"),
        ("a frame that is too long", too_long, "16777216"),
        ("a frame shorter than its header", 11_u32.to_be_bytes().to_vec(), "11 bytes"),
        ("a head longer than its frame", [0, 0, 0, 12, 9, 0, 0, 9].to_vec(), "9 bytes"),
    ];
    for (what, bytes, names) in cases {
        let logged = Traces::default();
        let _listening = tracing::subscriber::set_default(logged.clone());
        let harness = Harness::new();
        let mut peer = harness.peer().await;
        peer.send(
            &[Req::new(1, method::GATE, (1_u64,)).bytes(), Req::new(2, method::GATE_SPAWNED, (2_u64,)).bytes()]
                .concat(),
        )
        .await;
        harness.until_running(2).await;
        let began = Instant::now();
        peer.send(&bytes).await;
        let mut rest = peer.peer.rest().await;
        let Some(Got::GoAway { reason, message, .. }) = rest.pop() else { panic!("{what}: no GOAWAY came last") };
        assert_eq!(reason, GoAwayReason::ProtocolError, "{what}");
        assert!(message.contains(names), "{what}: {message}");
        let answers = rest.iter().filter(|got| matches!(got, Got::Response { code: StatusCode::Ok, .. })).count();
        assert_eq!(rest.len(), answers, "{what}: nothing but good answers may come before it, {rest:?}");
        harness.until_running(0).await;
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
        assert_eq!(harness.snapshot().protocol_errors, 1, "{what}");
        drop(peer);
        harness.assert_idle().await;
        assert!(began.elapsed() < 50 * MS, "{what}: {:?}", began.elapsed());
        assert_eq!(logged.troubles(), 1, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_broke_the_protocol_and_stays_is_gone_within_two_seconds() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    peer.send(&frame(0x2a, 0, 0, &[], &[])).await;
    let (_, reason, _) = peer.go_away().await;
    assert_eq!(reason, GoAwayReason::ProtocolError);
    // Still sending is not answered, and does not keep the connection.
    peer.send(&Req::new(1, method::ECHO, ("hi",)).bytes()).await;
    assert!(matches!(peer.next().await, Got::End));
    sleep(2_010 * MS).await;
    assert_eq!((harness.snapshot().connections, harness.probe.started()), (0, 0));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn another_protocol_on_the_port_is_told_so_in_one_go_away() {
    let cases: [(&[u8], &str); 6] = [
        (b"GET / HTTP/1.1\r\nHost: books.example\r\n\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"),
        (&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03], "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "Sluicegate"),
        (b"*1\r\n$4\r\nPING\r\n", "Sluicegate"),
        (&[0; 64], "Sluicegate"),
    ];
    for (bytes, names) in cases {
        for chunk in [bytes.len(), 1] {
            let traces = Traces::default();
            let _kept = tracing::subscriber::set_default(traces.clone());
            let harness = Harness::new();
            let mut peer = harness.silent_peer();
            let began = Instant::now();
            for part in bytes.chunks(chunk) {
                peer.send(part).await;
            }
            let rest = peer.peer.rest().await;
            let [Got::GoAway { last: CallId::CONNECTION, reason: GoAwayReason::ProtocolError, message }] = &rest[..]
            else {
                panic!("{names}: {rest:?}")
            };
            assert!(message.contains(names), "{message}");
            assert!(began.elapsed() <= 50 * MS, "{:?}", began.elapsed());
            drop(peer);
            harness.assert_idle().await;
            assert_eq!(traces.events("connection refused").len(), 1, "{names}: one line is logged");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hello_that_cannot_be_accepted_is_answered_by_a_go_away() {
    let future = hello_with(|hello| (hello.min_version, hello.max_version) = (2, 9));
    let small = hello_with(|hello| hello.max_frame = 100);
    for (bytes, names) in [(future, "2 to 9"), (small, "8,192")] {
        let harness = Harness::new();
        let mut peer = harness.silent_peer();
        peer.send(&bytes).await;
        let (last, reason, message) = peer.go_away().await;
        assert_eq!((last, reason), (0, GoAwayReason::ProtocolError));
        assert!(message.contains(names), "{message}");
        drop(peer);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hello_is_let_out_by_a_transport_whose_first_flush_is_pending() {
    let harness = Harness::new();
    let io = harness.network.connect_as(PIPE, |io| Box::new(Withholding::new(io))).unwrap();
    let mut peer = RawClient::new(io);
    peer.shake_hands().await;
    peer.send(&Req::new(1, method::ECHO, ("alive",)).bytes()).await;
    assert_eq!(peer.reply::<String>(1).await, "alive");
    peer.send(&frame(9, 0, 0, &[1; 8], &[])).await;
    assert!(matches!(peer.next().await, Got::Pong([1, 1, 1, 1, 1, 1, 1, 1])));
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_say_hello_in_time_is_told_and_closed() {
    for said in [0, 1, 20] {
        let harness = Harness::with(|builder| builder.handshake_timeout(3_000 * MS));
        let mut peer = harness.silent_peer();
        let began = Instant::now();
        if said > 0 {
            peer.send(&hello()[..said]).await;
        }
        let (last, reason, _) = peer.go_away().await;
        assert_eq!((last, reason), (0, GoAwayReason::HandshakeTimeout));
        assert!(began.elapsed() >= 3_000 * MS && began.elapsed() <= 3_005 * MS, "{:?}", began.elapsed());
        assert!(matches!(peer.next().await, Got::End));
        drop(peer);
        harness.assert_idle().await;
        assert_eq!(harness.snapshot().protocol_errors, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_goes_before_its_hello_leaves_nothing() {
    let harness = Harness::new();
    for said in [0, 3, 17] {
        let mut peer = harness.silent_peer();
        peer.send(&hello()[..said]).await;
        drop(peer);
        harness.assert_idle().await;
        let mut peer = harness.silent_peer();
        peer.send(&hello()[..said]).await;
        peer.peer.end().await;
        assert!(matches!(peer.next().await, Got::End));
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_connection_more_than_allowed_is_told_so_and_the_others_go_on() {
    let harness = Harness::with(|builder| builder.max_connections(2));
    let (mut first, second) = (harness.peer().await, harness.peer().await);
    for turned_away in 1..=100 {
        let mut third = harness.silent_peer();
        third.send(&hello()).await;
        let (last, reason, message) = third.go_away().await;
        assert_eq!((last, reason), (0, GoAwayReason::TooManyConnections), "{message}");
        assert!(matches!(third.next().await, Got::End));
        assert_eq!(harness.snapshot().connections, 2);
        assert_eq!(harness.snapshot().connections_turned_away, [("connections", turned_away)].into());
    }
    first.send(&Req::new(1, method::ECHO, ("fine",)).bytes()).await;
    assert_eq!(first.reply::<String>(1).await, "fine");
    drop(second);
    harness.until("one has gone", |harness| harness.snapshot().connections == 1).await;
    harness.peer().await.part().await;
    first.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn each_connection_that_is_too_many_counts_for_the_limit_that_it_met_even_if_nobody_can_tell_it() {
    let server = Server::builder().max_connections(2).max_connections_per_address(1).build().unwrap();
    let handle = server.handle();
    // Silent, so that who is told so takes its time to go.
    let mut near_ends = Vec::new();
    let mut connect = |address: [u8; 4]| {
        let (near, far) = tokio::io::duplex(1024);
        near_ends.push(near);
        let server = server.clone();
        tokio::spawn(async move { server.serve_connection(far, Some((address, 7000).into())).await });
    };
    // In virtual time: until every task waits.
    let settled = || tokio::time::sleep(Duration::from_millis(1));
    connect([10, 0, 0, 1]);
    settled().await;
    for _ in 0..3 {
        connect([10, 0, 0, 1]);
    }
    settled().await;
    connect([10, 0, 0, 2]);
    settled().await;
    assert_eq!(handle.snapshot().connections, 2);
    // More than are told so at once.
    for _ in 0..100 {
        connect([10, 0, 0, 3]);
    }
    settled().await;
    let expected = BTreeMap::from([("connections", 100), ("address connections", 3)]);
    assert_eq!(handle.snapshot().connections_turned_away, expected);
    assert_eq!(handle.snapshot().connections, 2);
    drop(near_ends);
    assert_idle(&handle).await;
    assert_eq!(handle.snapshot().connections_turned_away, expected);
}

#[tokio::test(start_paused = true)]
async fn connections_that_end_in_any_way_give_their_place_back() {
    let harness = Harness::with(|builder| builder.max_connections(3));
    for round in 0..300_u64 {
        let mut peer = harness.silent_peer();
        if round % 6 > 0 {
            peer.shake_hands().await;
            peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
        }
        match round % 6 {
            0 => peer.send(b"GET / HTTP/1.0\r\n").await,
            1 => {}
            2 => peer.peer.end().await,
            3 => peer.send(&cancel(99)).await,
            4 => peer.send(&[0, 0]).await,
            _ => {
                peer.send(&cancel(1)).await;
                peer.leave().await;
                assert!(matches!(peer.next().await, Got::End));
            }
        }
        drop(peer);
        harness.until("the connection is gone", |harness| harness.snapshot().connections == 0).await;
    }
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_stream_behind_a_go_away_lets_calls_finish_and_be_answered() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let requests: Vec<_> = (1..=200_u64)
        .map(|id| Req::new(id, if id % 2 == 0 { method::GATE } else { method::GATE_SPAWNED }, (id,)).bytes())
        .collect();
    peer.send(&requests.concat()).await;
    peer.leave().await;
    harness.until_running(200).await;
    sleep(1_000 * MS).await;
    harness.probe.open_gate();
    let rest = peer.peer.rest().await;
    let answers = rest.iter().filter(|got| matches!(got, Got::Response { code: StatusCode::Ok, .. })).count();
    assert_eq!((answers, rest.len()), (200, 200));
    harness.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_whose_write_side_ends_behind_a_go_away_gets_every_answer() {
    const CALLS: u64 = 1_000;
    let harness = Harness::new();
    let sockets = harness.sockets().await;
    let methods = [method::NONCE, method::NONCE_SPAWNED];
    let mut said: Vec<_> = hello();
    said.extend((1..=CALLS).flat_map(|id| Req::new(id, methods[id as usize % 2], (id, (id % 4) as u32)).bytes()));
    encode_go_away(&mut said, CallId::CONNECTION, GoAwayReason::Drain, "bye");
    for _ in 0..times_in(20, 1) {
        let mut socket = TcpStream::connect(sockets.address).await.unwrap();
        socket.write_all(&said).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut told = Vec::new();
        within(socket.read_to_end(&mut told)).await.unwrap();
        let mut answers = responses_in(&told);
        answers.sort_unstable_by_key(|(id, _)| *id);
        assert!(answers.iter().map(|(id, _)| *id).eq(1..=CALLS), "{} answers", answers.len());
        assert!(answers.iter().all(|(_, code)| *code == StatusCode::Ok), "{answers:?}");
    }
    sockets.shut_down().await;
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_with_a_farewell_in_one_write_is_answered_to_the_last_call() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let requests: Vec<_> = (1..=500_u64).map(|id| Req::new(id, method::ECHO, (id.to_string(),)).bytes()).collect();
    peer.send(&requests.concat()).await;
    peer.leave().await;
    for id in 1..=500_u64 {
        assert_eq!(peer.reply::<String>(id).await, id.to_string());
    }
    assert!(matches!(peer.next().await, Got::End));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_stream_without_a_farewell_cancels_the_calls() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::WATCHED, ()).bytes()).await;
    peer.send(&Req::new(2, method::WATCHED_SPAWNED, ()).bytes()).await;
    harness.until_running(2).await;
    peer.peer.end().await;
    assert!(matches!(peer.next().await, Got::End));
    harness.assert_idle().await;
    harness.until("their work is told", |harness| harness.probe.cancellations_seen() == 2).await;
    assert_eq!(harness.probe.finished(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_ping_is_answered_by_a_pong_of_the_same_bytes_whatever_runs() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    for n in 0..10 {
        let mut ping = Vec::new();
        encode_ping(&mut ping, [n; 8]);
        peer.send(&ping).await;
        assert!(matches!(peer.next().await, Got::Pong(opaque) if opaque == [n; 8]));
    }
    harness.probe.open_gate();
    assert_eq!(peer.reply::<u64>(1).await, 1);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn frames_are_the_same_however_their_bytes_are_split() {
    let bytes = [
        hello(),
        Req::new(1, method::ECHO, ("one",)).bytes(),
        frame(0x85, 0xf0, 9, b"of a later version", b"and its body"),
        Req::new(2, method::ECHO_SPAWNED, ("two",)).bytes(),
        Req::new(3, method::NONCE, (3_u64, 2_u32)).bytes(),
    ]
    .concat();
    for split in [1, 2, 3, 7, 16, 100] {
        let harness = Harness::new();
        let mut peer = harness.silent_peer();
        for part in bytes.chunks(split) {
            peer.send(part).await;
            tokio::task::yield_now().await;
        }
        assert!(matches!(peer.next().await, Got::Hello(_)));
        let mut answered = 0;
        for _ in 0..3 {
            match peer.next().await {
                Got::Response { id, code: StatusCode::Ok, .. } => answered += id.sequence(),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((answered, harness.snapshot().frames_ignored), (6, 1));
        peer.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_not_read_from_above_the_high_water_mark() {
    const MARK: u64 = 100_000;
    const REPLY: u64 = 50_000;
    let harness = Harness::with(|builder| builder.write_high_water(MARK as usize));
    let harness = harness.unless(Manner::OneByte, "megabytes go by");
    let mut peer = harness.peer_through(2_048);
    peer.shake_hands().await;
    let requests: Vec<_> = (1..=400_u64).map(|id| Req::new(id, method::LARGE, (REPLY as u32,)).bytes()).collect();
    let requests = requests.concat();
    let handle = harness.handle.clone();
    let (mut read, mut write) = tokio::io::split(peer.peer.io);
    let writes = tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut write, &requests).await });
    sleep(1_000 * MS).await;
    let buffered = handle.snapshot().buffered_bytes;
    assert!(!writes.is_finished(), "the server goes on reading");
    assert!(buffered <= MARK + 2 * REPLY, "{buffered} bytes wait for a peer that does not read");
    // As it reads, everything is answered, and no more than that ever waits.
    // Each reply is a RESPONSE and a CONT.
    let mut left = 400 * (REPLY as usize + 31 + 16);
    let mut buffer = vec![0; 64 * 1024];
    while left > 0 {
        left -= tokio::io::AsyncReadExt::read(&mut read, &mut buffer).await.unwrap();
        let buffered = handle.snapshot().buffered_bytes;
        assert!(buffered <= MARK + 2 * REPLY, "{buffered} bytes wait");
    }
    writes.await.unwrap().unwrap();
    drop(read);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_frames_that_open_no_call_does_not_keep_the_thread() {
    let mut ping = Vec::new();
    encode_ping(&mut ping, [7; 8]);
    let unknown = frame(0x85, 0, 0, &[], &[]);
    let late = [Req::new(1, method::ECHO, ("hi",)).bytes(), cancel(1)].concat();
    for (opening, frames) in [(vec![], unknown), (vec![], ping), (late, cancel(1))] {
        let harness = Harness::new().plain("it counts reads");
        let flood = Flood::new([hello(), opening].concat(), &frames);
        let reads = flood.reads();
        let server = harness.server.clone();
        tokio::spawn(async move { server.serve_connection(flood, None).await });
        tokio::task::yield_now().await;
        let in_one_turn = reads.load(SeqCst);
        assert!(in_one_turn < 100, "{in_one_turn} reads in one turn");
        harness.assert_idle().await;
    }
}
