//! What a service that opens a stream of its own passes on, whenever it does.

use std::time::Duration;

use sluicegate::{Context, ItemSender, Status};
use tokio::{task::yield_now, time::sleep};

use crate::support::{Harness, no_call_runs, until_client_idle};

const MS: Duration = Duration::from_millis(1);

#[sluicegate::service(package = "test")]
trait Chain {
    /// An empty item, and then what the last of the chain has left of the time, in milliseconds.
    async fn left(&self, ctx: Context, out: ItemSender<Option<u64>>) -> Result<(), Status>;
    /// The same, in a task.
    #[rpc(spawn)]
    async fn left_spawned(&self, ctx: Context, out: ItemSender<Option<u64>>) -> Result<(), Status>;
}

struct Link(Option<ChainClient>);

impl Chain for Link {
    async fn left(&self, ctx: Context, mut out: ItemSender<Option<u64>>) -> Result<(), Status> {
        out.send(None).await?;
        yield_now().await;
        let Some(next) = &self.0 else {
            return out.send(ctx.remaining().map(|left| left.as_millis() as u64)).await;
        };
        sleep(100 * MS).await;
        let mut items = next.left();
        while let Some(item) = items.message().await? {
            out.send(item).await?;
        }
        Ok(())
    }

    async fn left_spawned(&self, ctx: Context, out: ItemSender<Option<u64>>) -> Result<(), Status> {
        self.left(ctx, out).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_a_streaming_method_opens_behind_items_inherits_what_is_left_of_the_time() {
    let inner = Harness::with(|builder| builder.service(ChainServer::new(Link(None))));
    let between = inner.client();
    let next: ChainClient = between.service();
    let outer = Harness::with(move |builder| builder.service(ChainServer::new(Link(Some(next)))));
    let client = outer.client();
    let chain: ChainClient = client.service();
    for spawned in [false, true] {
        let opened = || if spawned { chain.left_spawned() } else { chain.left() };
        let mut items = opened().timeout(500 * MS);
        assert_eq!((items.message().await.unwrap(), items.message().await.unwrap()), (Some(None), Some(None)));
        let left = items.message().await.unwrap().unwrap().expect("the deadline is inherited");
        assert!((380..400).contains(&left), "{left} ms are left");
        assert_eq!(items.message().await.unwrap(), None);
        let mut bare = opened();
        while let Some(left) = bare.message().await.unwrap() {
            assert_eq!(left, None);
        }
    }
    until_client_idle(&client).await;
    until_client_idle(&between).await;
    drop((chain, client));
    outer.assert_idle().await;
    no_call_runs(&inner.handle);
    inner.ends_busy("the service of the outer server still has its client");
}
