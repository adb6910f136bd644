//! The hello world of tonic: a request and a reply that are structs, and where the request comes from.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};
use sluicegate::{Client, Context, Server, Status};

use crate::support::{assert_idle_soon, within};

#[derive(Serialize, Deserialize)]
struct HelloRequest {
    name: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct HelloReply {
    message: String,
}

#[sluicegate::service(package = "helloworld")]
trait Greeter {
    async fn say_hello(&self, ctx: Context, request: HelloRequest) -> Result<HelloReply, Status>;
}

#[derive(Default)]
struct Guests(Mutex<Vec<SocketAddr>>);

impl Greeter for Guests {
    async fn say_hello(&self, ctx: Context, request: HelloRequest) -> Result<HelloReply, Status> {
        self.0.lock().unwrap().extend(ctx.peer());
        Ok(HelloReply { message: format!("Hello {}!", request.name) })
    }
}

#[tokio::test]
async fn a_hello_is_answered_and_where_it_came_from_is_known() {
    let guests = Arc::new(Guests::default());
    let bound = Server::builder().service(GreeterServer::from_arc(guests.clone())).build().unwrap();
    let bound = bound.bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());
    let greeter: GreeterClient = Client::new(address).service();
    let reply = within(greeter.say_hello(HelloRequest { name: "Tonic".to_owned() })).await.unwrap();
    assert_eq!(reply, HelloReply { message: "Hello Tonic!".to_owned() });
    assert!(matches!(guests.0.lock().unwrap()[..], [guest] if guest.ip().is_loopback()));
    drop(greeter);
    assert_idle_soon(&handle).await;
    handle.shutdown();
    within(serving).await.unwrap();
}
