use std::sync::Arc;

use sluicegate::{Client, Server};

#[sluicegate::service]
trait Library {
    async fn count(&self) -> u64;
}

struct Shelf;

impl Library for Shelf {
    async fn count(&self) -> u64 {
        12
    }
}

fn main() {
    // The implementation in place of the server type.
    let _ = Server::builder().service(Shelf);
    let _ = Server::builder().service(Arc::new(Shelf));
    // The same for the client.
    let _: Shelf = Client::new("127.0.0.1:7000").service();
    // A function where a handler, or an interceptor, goes.
    let _ = Server::builder().service(LibraryServer::new(Shelf)).pipeline(|pipeline, _| {
        pipeline.add_last("nothing", Shelf);
    });
    let _ = Client::builder("127.0.0.1:7000").interceptor(Shelf);
}
