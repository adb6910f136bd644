#![deny(deprecated, unused_must_use)]

#[sluicegate::service]
trait Library {
    #[deprecated = "use `search`"]
    async fn find(&self) -> u64;
    #[must_use = "it cost a lot"]
    async fn count(&self) -> u64;
}

async fn call(client: &LibraryClient) {
    let _ = client.find();
    client.count();
}

fn main() {}
