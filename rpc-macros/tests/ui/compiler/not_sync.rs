#[sluicegate::service]
trait Library {
    async fn count(&self) -> u64;
}

struct Shelf(std::cell::Cell<u64>);

impl Library for Shelf {
    async fn count(&self) -> u64 {
        self.0.get()
    }
}

fn main() {}
