//! Services that put items into their stream without asking whether there is room.

use std::pin::Pin;

use futures::{Sink, SinkExt};
use sluicegate::{Client, Executed, ItemSender, Server, Status, StatusCode, testing::InMemory};

use crate::support::until_client_idle;

#[sluicegate::service]
trait Heedless {
    /// Puts items where they go until that is refused, and says how many there were.
    async fn pour(&self, out: ItemSender<u64>) -> Result<(), Status>;
    async fn asks(&self, count: u64, out: ItemSender<u64>) -> Result<(), Status>;
}

struct Hasty;

impl Heedless for Hasty {
    async fn pour(&self, mut out: ItemSender<u64>) -> Result<(), Status> {
        for n in 0.. {
            Pin::new(&mut out).start_send(n)?;
        }
        Ok(())
    }

    async fn asks(&self, count: u64, mut out: ItemSender<u64>) -> Result<(), Status> {
        for n in 0..count {
            SinkExt::send(&mut out, n).await?;
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn items_beyond_the_credit_are_refused_and_the_connection_stays() {
    let server = Server::builder().service(HeedlessServer::new(Hasty)).build().unwrap();
    let memory = InMemory::new(server);
    let client: Client = memory.client_builder().stream_window(640).build();
    let heedless: HeedlessClient = client.service();
    let mut poured = heedless.pour();
    let mut taken = 0;
    let error = loop {
        match poured.message().await {
            Ok(Some(n)) => {
                assert_eq!(n, taken);
                taken += 1;
            }
            Ok(None) => panic!("it never ends well"),
            Err(error) => break error,
        }
    };
    assert_eq!((taken, error.code(), error.executed()), (10, StatusCode::Internal, Executed::Finished), "{error}");
    let mut asked = heedless.asks(100);
    for n in 0..100 {
        assert_eq!(asked.message().await.unwrap(), Some(n));
    }
    assert_eq!(asked.message().await.unwrap(), None);
    assert_eq!((client.snapshot().connects, client.snapshot().protocol_errors), (1, 0));
    until_client_idle(&client).await;
    drop((poured, asked, heedless, client));
    memory.assert_idle().await;
}
