#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub struct Context;

#[sluicegate::service]
pub trait Library {
    async fn count(&self, ctx: Context) -> u64;
}

fn main() {}
