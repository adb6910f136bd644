use sluicegate::Status;

#[sluicegate::service]
trait Library {
    fn count(&self) -> u64;
    #[rpc(blocking)]
    async fn index(&self, depth: u8) -> Result<u64, Status>;
    #[rpc(spawn, blocking)]
    fn scan(&self);
    #[rpc(blocking, blocking)]
    fn twice(&self);
    #[rpc(blocking)]
    fn later(&self) -> impl Future<Output = u64>;
}

fn main() {}
