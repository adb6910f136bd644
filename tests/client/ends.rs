//! Calls and clients that end at awkward moments: nothing hangs, and nothing goes on without them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use rpc_codec::{Decoded, Frame, FrameDecoder, GoAwayReason, Hello, encode_go_away};
use sluicegate::{CallError, Client, Executed, StatusCode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::yield_now,
    time::{Instant, sleep},
};

use crate::support::{
    Got, Harness, method,
    raw::{hello, response},
    scripted::{first_call, scripted, scripted_with},
    shims::{Manner, times_in},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn calls_that_had_expired_before_they_were_sent_leave_the_room_to_the_next() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, first_id) = first_call(&client, &mut servers, 10).await;
    let calls = times_in(100_000, 10_000);
    for n in 0..calls {
        if n % 1_000 == 0 {
            // The task takes back what was given up, before so much is queued that calls wait for room.
            yield_now().await;
        }
        let call = client.call::<_, u64>(method::GATE, (n,));
        if n % 2 == 0 {
            let error = call.deadline(Instant::now().into_std()).await.unwrap_err();
            assert_eq!(error.code(), StatusCode::DeadlineExceeded);
        } else {
            // Given up before it could leave.
            let mut call = call;
            assert!(futures::poll!(&mut call).is_pending());
        }
    }
    until_calls(&client, 1).await;
    let began = Instant::now();
    let good = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    let (id, _) = server.request().await;
    assert!(began.elapsed() <= 10 * MS);
    // None of the others was sent; those that were given up had an id, which nobody uses again.
    assert_eq!(id.sequence(), first_id.sequence() + 1 + calls / 2);
    server.reply(id, 2_u64).await;
    server.reply(first_id, 1_u64).await;
    assert_eq!((first.await.unwrap().unwrap(), good.await.unwrap().unwrap()), (1, 2));
    until_client_idle(&client).await;
}

async fn until_calls(client: &Client, calls: u64) {
    while client.snapshot().calls != calls {
        sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_race_with_the_end_of_their_client_all_end() {
    for round in 0..20_u64 {
        let harness = Harness::new();
        let client = harness.client_builder().wait_for_ready(round % 2 == 0).build();
        let calls: Vec<_> = (0..1_000_u64)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move {
                    for _ in 0..n % 7 {
                        yield_now().await;
                    }
                    client.call::<_, u64>(method::NONCE, (n, (n % 3) as u32)).await
                })
            })
            .collect();
        for _ in 0..round {
            yield_now().await;
        }
        client.close();
        for (n, call) in (0..).zip(calls) {
            match within(call).await.unwrap() {
                Ok(answer) => assert_eq!(answer, n),
                Err(error) => assert!(matches!(error, CallError::Closed), "{error:?}"),
            }
        }
        until_client_idle(&client).await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_parts_after_each_answer_is_followed_and_keeps_no_connection_of_ours() {
    // Answer and farewell come in one read, or the next call is sent between them and fails.
    let (builder, mut servers) = scripted_with(Manner::Plain, 64 * 1024);
    let client = builder.build();
    let serving = tokio::spawn(async move {
        let mut open = Vec::new();
        let mut most = 0;
        while let Some(mut server) = servers.recv().await {
            server.shake_hands(64).await;
            let (id, _) = server.request().await;
            server.reply(id, 7_u64).await;
            server.go_away(id, GoAwayReason::Drain, "one each").await;
            open.push(tokio::spawn(async move { server.peer.rest().await }));
            open.retain(|peer| !peer.is_finished());
            most = most.max(open.len());
        }
        most
    });
    for _ in 0..3_000 {
        assert_eq!(within(client.call::<_, u64>(method::GATE, (1_u64,))).await.unwrap(), 7);
        yield_now().await;
    }
    until_client_idle(&client).await;
    assert_eq!((client.snapshot().connects, client.snapshot().lost_connections), (3_000, 0));
    drop(client);
    let most = serving.await.unwrap();
    assert!(most <= 3, "{most} connections were open at once");
}

#[tokio::test(start_paused = true)]
async fn each_client_gives_up_connecting_at_its_own_time() {
    let client = |limit: u32| {
        let hole = std::future::pending::<io::Result<tokio::io::DuplexStream>>;
        Client::with_connector("a black hole", hole).connect_timeout(limit * MS).build()
    };
    let began = Instant::now();
    let calls = [100, 5_000].map(|limit| {
        let client = client(limit);
        tokio::spawn(async move {
            let error = client.call::<_, u64>(method::GATE, (1_u64,)).await.unwrap_err();
            (limit * MS, Instant::now(), error)
        })
    });
    for call in calls {
        let (limit, ended, error) = call.await.unwrap();
        assert!(matches!(&error, CallError::Connect { source, .. } if source.kind() == io::ErrorKind::TimedOut));
        assert!(ended - began >= limit && ended - began <= limit + 50 * MS, "{:?} for {limit:?}", ended - began);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_tries_to_connect_for_a_client_that_has_gone() {
    for close in [true, false] {
        let harness = Harness::new();
        harness.network.set_down(true);
        let client = harness.client_builder().wait_for_ready(true).build();
        let waiting = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
        sleep(10_000 * MS).await;
        let attempts = harness.network.attempts();
        assert!(attempts >= 3);
        if close {
            client.close();
            assert!(matches!(within(waiting).await.unwrap(), Err(CallError::Closed)));
        } else {
            waiting.abort();
            assert!(waiting.await.is_err());
        }
        drop(client);
        sleep(60_000 * MS).await;
        assert_eq!(harness.network.attempts(), attempts);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_bare_end_of_an_idle_connection_is_noticed_within_a_second_and_the_next_call_connects() {
    for reset in [false, true] {
        let (builder, mut servers) = scripted(64 * 1024);
        let client = builder.build();
        let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
        server.reply(id, 1_u64).await;
        assert_eq!(call.await.unwrap().unwrap(), 1);
        sleep(1_000 * MS).await;
        assert!(client.snapshot().connected);
        let began = Instant::now();
        if !reset {
            server.peer.end().await;
            // A client that has noticed leaves as well.
            while !matches!(server.peer.next().await, Got::End) {}
        }
        drop(server);
        sleep(MS).await;
        let snapshot = client.snapshot();
        assert!(!snapshot.connected && snapshot.is_idle() && snapshot.lost_connections == 1, "{snapshot:?}");
        assert!(began.elapsed() <= 1_000 * MS, "{:?}", began.elapsed());
        let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
        server.reply(id, 2_u64).await;
        assert_eq!((call.await.unwrap().unwrap(), client.snapshot().connects), (2, 2));
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_idle_connection_is_noticed_without_a_call() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
    server.reply(id, 1_u64).await;
    assert_eq!(call.await.unwrap().unwrap(), 1);
    server.go_away(id, GoAwayReason::Drain, "closing for the night").await;
    assert!(matches!(server.peer.next().await, Got::GoAway { .. }));
    assert!(matches!(server.peer.next().await, Got::End), "it shuts down its side");
    drop(server);
    sleep(MS).await;
    let snapshot = client.snapshot();
    assert!(!snapshot.connected && snapshot.is_idle() && snapshot.lost_connections == 0, "{snapshot:?}");
}

/// The sockets of this process that lead to `address`, and how many of them wait for nothing but to be closed.
#[cfg(target_os = "linux")]
fn sockets_to(address: std::net::SocketAddrV4) -> (usize, usize) {
    const CLOSE_WAIT: &str = "08";
    let remote = format!("{:08X}:{:04X}", u32::from_le_bytes(address.ip().octets()), address.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let (mut open, mut waiting) = (0, 0);
    for line in table.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        // Those without an inode are the kernel's alone.
        if fields[2] == remote && fields[9] != "0" {
            open += 1;
            waiting += usize::from(fields[3] == CLOSE_WAIT);
        }
    }
    (open, waiting)
}

/// Answers one call, says goodbye in the same write, and closes.
#[cfg(target_os = "linux")]
async fn answer_once(mut socket: TcpStream) {
    let (mut read, mut greeted) = (Vec::new(), None);
    let id = loop {
        // A client that is idle may leave without a call.
        if socket.read_buf(&mut read).await.is_ok_and(|n| n > 0) {
            greeted = greeted.or_else(|| Hello::decode(&read).unwrap().map(|(_, len)| len));
            let decoded = greeted.map(|len| FrameDecoder::new(1 << 16).decode(&read[len..]).unwrap());
            if let Some(Decoded::Frame { frame: Frame::Request(request), .. }) = decoded {
                break request.id;
            }
        } else {
            return;
        }
    };
    let mut bytes = [hello(), response(id, &7_u64)].concat();
    encode_go_away(&mut bytes, id, GoAwayReason::Drain, "one each");
    socket.write_all(&bytes).await.unwrap();
    let _ = socket.shutdown().await;
    let _ = socket.read_to_end(&mut read).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_that_closes_after_each_answer_leaves_no_socket_of_the_clients_behind() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("no such address was asked for") };
    let serving = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(answer_once(socket));
        }
    });
    // Every connection is followed by another, and each would wait a while for the sake of other clients.
    let client = Client::builder(address).backoff(MS / 10, MS).build();
    for n in 0..times_in(10_000, 200) {
        match within(client.call::<_, u64>(method::GATE, (1_u64,))).await {
            Ok(answer) => assert_eq!(answer, 7),
            // It was sent between the answer and the farewell.
            Err(error) => assert_eq!(error.executed(), Executed::Never, "{error:?}"),
        }
        if n % 40 == 0 {
            let (open, _) = sockets_to(address);
            assert!(open <= 2, "{open} sockets at call {n}");
        }
    }
    until_client_idle(&client).await;
    within(async {
        while sockets_to(address).1 > 0 {
            yield_now().await;
        }
    })
    .await;
    drop(client);
    serving.abort();
}
