struct NoSuchBook;

type Outcome<T> = Result<T, NoSuchBook>;

mod shelf {
    pub type Result<T> = super::Outcome<T>;
}

#[sluicegate::service]
trait Library {
    async fn get_book(&self) -> Result<String, NoSuchBook>;
    async fn find_book(&self) -> shelf::Result<String>;
}

fn main() {}
