//! A crate that knows `sluicegate` as `wire`, and says so nowhere but in its `Cargo.toml`.
#![forbid(unsafe_code)]

/// Counts.
#[wire::service]
pub trait Counter {
    /// The next number.
    async fn next(&self, number: u64) -> Result<u64, wire::Status>;
}

/// Counts upwards.
#[derive(Clone, Copy, Debug)]
pub struct Upwards;

impl Counter for Upwards {
    async fn next(&self, number: u64) -> Result<u64, wire::Status> {
        number.checked_add(1).ok_or_else(|| wire::Status::out_of_range("there is no greater number"))
    }
}

#[cfg(test)]
mod tests {
    use wire::{Server, testing::InMemory};

    use super::*;

    #[tokio::test]
    async fn the_macro_finds_a_facade_of_another_name() {
        let server = InMemory::new(Server::builder().service(CounterServer::new(Upwards)).build().unwrap());
        let counter: CounterClient = server.client().service();
        assert_eq!(counter.next(41).await.unwrap(), 42);
        drop(counter);
        server.assert_idle().await;
    }
}
