//! What is no method.

#[sluicegate::service]
trait Library {
    const SHELVES: u32;
    type Book;
    books!();
    pub async fn public(&self);
    async fn count(&self) -> u64 {
        0
    }
}

fn main() {}
