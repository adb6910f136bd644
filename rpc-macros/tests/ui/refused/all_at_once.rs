// Every error of a trait is told, and nothing about the implementation.
#[sluicegate::service(colour = "red")]
pub trait Library<T> {
    fn get_book(&self, isbn: &str) -> u64;
    async fn count() -> u64;
    #[rpc(slow)]
    async fn slow(&mut self);
}

struct Shelf;

impl Library<u8> for Shelf {
    fn get_book(&self, _: &str) -> u64 {
        0
    }

    async fn count() -> u64 {
        0
    }

    async fn slow(&mut self) {}
}

fn main() {}
