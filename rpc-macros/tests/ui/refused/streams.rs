use sluicegate::{Context, ItemSender, Status, Stream, Streaming};

#[sluicegate::service]
trait Feed {
    async fn plain(&self) -> Result<impl Stream<Item = u64> + Send, Status>;
    async fn twice(&self, one: Streaming<u64>, other: Streaming<u64>) -> Result<(), Status>;
    async fn both(&self, out: ItemSender<u64>) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    async fn behind(&self, numbers: Streaming<u64>, name: String) -> Result<(), Status>;
    async fn borrowed(&self, names: Streaming<&str>) -> Result<(), Status>;
    async fn context(&self, numbers: Streaming<u64>, ctx: Context) -> Result<(), Status>;
    async fn counts(&self, out: ItemSender<u64>) -> Result<u64, Status>;
    async fn alone(&self, out: ItemSender<u64>) -> u64;
    #[rpc(blocking)]
    fn blocks(&self, numbers: Streaming<u64>) -> Result<(), Status>;
}

fn main() {}
