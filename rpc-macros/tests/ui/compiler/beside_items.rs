use sluicegate::{ItemSender, Status};

type Done = ();
type Count = u64;

#[sluicegate::service]
trait Library {
    async fn read(&self, pages: ItemSender<String>) -> Result<Done, Status>;
    async fn list(&self, books: ItemSender<String>) -> Result<Count, Status>;
}

fn main() {}
