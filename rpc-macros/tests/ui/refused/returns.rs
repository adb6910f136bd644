use sluicegate::Status;

type Result<T = (), E = Status> = std::result::Result<T, E>;

#[sluicegate::service]
trait Library {
    async fn title(&self) -> &str;
    async fn titles(&self) -> std::result::Result<Vec<&'static str>, Status>;
    async fn cow(&self) -> Result<std::borrow::Cow<'_, str>>;
    async fn shown(&self) -> impl ToString;
    async fn boxed(&self) -> Result<Box<dyn ToString>, Status>;
    async fn same(&self) -> Option<Self>;
    async fn unclear(&self) -> Result;
}

fn main() {}
