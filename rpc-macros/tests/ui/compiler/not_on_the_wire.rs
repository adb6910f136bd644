struct Book;

#[sluicegate::service]
trait Library {
    async fn put_book(&self, shelf: u32, book: Book);
    async fn get_book(&self) -> Book;
}

fn main() {}
