#[sluicegate::service]
pub struct Library;

#[sluicegate::service]
impl Library {}

#[sluicegate::service]
async fn library() {}

fn main() {}
