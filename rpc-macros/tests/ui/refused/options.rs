#[sluicegate::service(packge = "acme.v1", name = "Books", name = "Books", server = 1)]
trait Misspelt {
    #[rpc(rename = "find", spawn, spawn)]
    async fn search(&self);
    #[rpc]
    async fn bare(&self);
    #[rpc(inline(true), name = "a/b")]
    async fn slashed(&self);
    #[rpc(name = "")]
    async fn empty(&self);
    #[rpc(alias = "a.b", alias = "/b", alias = "a..b/c", alias = 3)]
    async fn aliases(&self);
}

#[sluicegate::service(package = "acme..v1", name = "acme.Library", client = "Library Client", crate = "+")]
trait Misnamed {}

#[sluicegate::service("acme.v1")]
trait Literal {}

fn main() {}
