#[sluicegate::service]
trait Library {
    async fn count(&self, shelf: u32) -> u64;
    async fn titles(&self) -> Vec<String>;
}

struct Shelf;

impl Library for Shelf {
    async fn count(&self, shelf: u64) -> u64 {
        shelf
    }
}

fn main() {
    let client = sluicegate::Client::new("127.0.0.1:1").service::<LibraryClient>();
    let _ = client.count("first");
}
