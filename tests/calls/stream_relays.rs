//! A service between a source of items and whoever calls it.

use std::time::Duration;

use sluicegate::{Bytes, ItemSender, Status};
use tokio::time::sleep;

use crate::support::{
    Harness,
    bodies::KIB,
    feed::{FeedClient, FeedServer},
    shims::Manner,
    until_client_idle,
};

const MS: Duration = Duration::from_millis(1);
/// What a client takes before it consumes anything.
const WINDOW: usize = 128 * KIB;
const ITEM: usize = 1_000;
/// Frames are longer than what they are charged for by their headers.
const SLACK: usize = 4 * KIB;

#[sluicegate::service(package = "test")]
trait Relay {
    /// What the source sends.
    async fn relay(&self, out: ItemSender<Bytes>) -> Result<(), Status>;
}

struct Between(FeedClient);

impl Relay for Between {
    async fn relay(&self, mut out: ItemSender<Bytes>) -> Result<(), Status> {
        let mut items = self.0.bytes(100_000, ITEM as u32);
        while let Some(item) = items.message().await? {
            out.send(item).await?;
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_relays_holds_a_window_and_a_threshold_of_each_stream_and_ends_with_its_caller() {
    const STREAMS: usize = 20;
    const THRESHOLD: usize = ItemSender::<Bytes>::DEFAULT_THRESHOLD;
    let source = FeedServer::new().large();
    let upstream = source.client();
    let between = Between(upstream.service());
    let middle =
        Harness::with(|builder| builder.service(RelayServer::new(between))).unless(Manner::OneByte, "megabytes go by");
    let client = middle.client();
    let relay: RelayClient = client.service();
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        open.push(relay.relay().open().await.unwrap());
    }
    for taken in 1..20 {
        for items in &mut open {
            assert!(items.message().await.unwrap().is_some());
        }
        sleep(100 * MS).await;
        let inbound = upstream.snapshot().inbound_bytes as usize;
        assert!(inbound <= STREAMS * (WINDOW + ITEM + SLACK), "{inbound} bytes from the source");
        let snapshot = middle.snapshot();
        let outbound = (snapshot.stream_bytes + snapshot.buffered_bytes) as usize;
        assert!(outbound <= STREAMS * (THRESHOLD + ITEM + SLACK) + 256 * KIB, "{outbound} bytes for the clients");
        let ahead = source.feeder.produced() - taken * STREAMS;
        let most = STREAMS * 2 * (WINDOW + THRESHOLD + 2 * ITEM);
        assert!(ahead * ITEM <= most, "{ahead} items ahead of their consumers");
    }
    drop(open);
    source.until_running(0).await;
    until_client_idle(&upstream).await;
    drop((relay, client));
    middle.assert_idle().await;
    assert_eq!((source.snapshot().calls.held, source.snapshot().stream_bytes), (0, 0));
    source.harness.ends_busy("the service in between still has its client");
}
