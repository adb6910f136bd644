#[sluicegate::service]
pub trait Generic<'a, T: Send, const N: usize> {
    async fn count(&self) -> u64;
}

#[sluicegate::service]
trait Bounded
where
    Self: Send,
{
    async fn count(&self) -> u64;
}

#[sluicegate::service]
unsafe trait Dangerous {
    async fn count(&self) -> u64;
}

fn main() {}
