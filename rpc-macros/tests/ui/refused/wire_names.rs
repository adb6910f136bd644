#[sluicegate::service]
trait Library {
    async fn find(&self);
    #[rpc(name = "find")]
    async fn search(&self);
    async fn r#match(&self);
    #[rpc(name = "match")]
    async fn compare(&self);
    #[rpc(alias = "find")]
    async fn look(&self);
    #[rpc(alias = "watch", alias = "Library/watch", alias = "watch")]
    async fn watch(&self);
}

fn main() {}
