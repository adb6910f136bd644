// What the compiler refuses too, in its own words.
#[sluicegate::service]
trait Library {
    const fn count(&self) -> u64;
    async fn many(&self, isbns: ...);
}

#[sluicegate::service]
auto trait Automatic {}

fn main() {}
