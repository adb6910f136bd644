use std::rc::Rc;

#[sluicegate::service]
trait Library {
    async fn count(&self) -> u64;
}

struct Shelf;

impl Library for Shelf {
    async fn count(&self) -> u64 {
        let count = Rc::new(0);
        std::future::ready(()).await;
        *count
    }
}

fn main() {}
