#[sluicegate::service]
trait Library {
    fn count(&self) -> u64;
    fn future(&self) -> impl Future<Output = u64>;
    async unsafe fn trust(&self);
    async extern "C" fn foreign(&self);
    async fn put<T: Send>(&self, book: T);
    async fn borrow<'a>(&'a self);
    async fn filed(&self)
    where
        Self: Sized;
    async fn into(&self) -> u8;
    async fn r#try_into(&self) -> u8;
}

fn main() {}
