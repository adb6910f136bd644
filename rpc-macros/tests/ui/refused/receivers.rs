#[sluicegate::service]
trait Library {
    async fn missing(isbn: String) -> u64;
    async fn none() -> u64;
    async fn exclusive(&mut self);
    async fn by_value(self);
    async fn shared(self: std::sync::Arc<Self>);
    async fn lifetime(&'static self);
}

fn main() {}
