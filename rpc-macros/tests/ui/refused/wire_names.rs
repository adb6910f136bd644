#[sluicegate::service]
trait Library {
    async fn find(&self);
    #[rpc(name = "find")]
    async fn search(&self);
    async fn r#match(&self);
    #[rpc(name = "match")]
    async fn compare(&self);
}

fn main() {}
