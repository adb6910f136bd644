//! Streams that never come to anything end at their deadline, whatever they wait for.

use std::{future::pending, io, time::Duration};

use futures::{StreamExt, stream};
use sluicegate::{Client, Executed, StatusCode, client::Coded};
use tokio::{
    io::DuplexStream,
    time::{Instant, sleep},
};

use crate::support::{
    method,
    scripted::{first_call, scripted},
    until_client_idle,
};

const MS: Duration = Duration::from_millis(1);

/// A stream each way, and one that is opened first: each ends by its deadline before anything has come of it.
async fn in_vain(client: &Client, executed: Executed) {
    let began = Instant::now();
    let sum = || client.client_stream::<_, u64, u64, Coded, Coded>(method::GATE, (1_u64,)).timeout(50 * MS);
    let mut items = client.server_stream::<_, u64, Coded>(method::GATE, (1_u64,)).timeout(50 * MS);
    let chat = client.both_ways::<_, u64, u64, Coded, Coded>(method::GATE, (1_u64,)).timeout(50 * MS);
    let mut chat = chat.send_all(stream::iter(0..));
    let opened = async {
        match sum().open().await {
            Ok((_numbers, sum)) => sum.await.unwrap_err(),
            Err(error) => error,
        }
    };
    let all = sum().send_all(stream::iter(0..));
    let (items, all, opened, chat) = tokio::join!(items.message(), all, opened, chat.next());
    for error in [items.unwrap_err(), all.unwrap_err(), opened, chat.unwrap().unwrap_err()] {
        assert_eq!((error.code(), error.executed()), (StatusCode::DeadlineExceeded, executed), "{error:?}");
    }
    assert!(began.elapsed() >= 50 * MS && began.elapsed() <= 52 * MS, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn streams_end_at_their_deadline_while_their_client_connects() {
    let client = Client::with_connector("a black hole", pending::<io::Result<DuplexStream>>).build();
    in_vain(&client, Executed::Never).await;
    // The attempt goes on without them, as long as it may.
    sleep(6_000 * MS).await;
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn streams_end_at_their_deadline_at_a_server_that_does_not_greet() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    // They are out, and nobody knows what became of them.
    in_vain(&client, Executed::Maybe).await;
    until_client_idle(&client).await;
    assert!(servers.try_recv().is_ok());
}

#[tokio::test(start_paused = true)]
async fn streams_end_at_their_deadline_while_they_wait_for_room() {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let (first, mut server, id) = first_call(&client, &mut servers, 1).await;
    sleep(MS).await;
    in_vain(&client, Executed::Never).await;
    assert_eq!(client.snapshot().waiting_for_room, 0);
    server.reply(id, 1_u64).await;
    assert_eq!(first.await.unwrap().unwrap(), 1);
    assert!(server.peer.is_silent_for(1_000 * MS).await, "nothing of them has left");
    until_client_idle(&client).await;
}
