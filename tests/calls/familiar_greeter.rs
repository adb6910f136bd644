//! The hello world of tonic: a request and a reply that are structs, and where the request comes from.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};
use sluicegate::{CallError, Client, Context, Server, Status, server::BoundServer};

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

async fn server(guests: &Arc<Guests>) -> Result<BoundServer, Box<dyn Error>> {
    let service = GreeterServer::from_arc(Arc::clone(guests));
    Ok(Server::builder().service(service).build()?.bind("127.0.0.1:0").await?)
}

async fn client(address: SocketAddr) -> Result<HelloReply, CallError> {
    let greeter: GreeterClient = Client::new(address).service();
    greeter.say_hello(HelloRequest { name: "Tonic".to_owned() }).await
}

#[tokio::test]
async fn a_hello_is_answered_and_where_it_came_from_is_known() {
    let guests = Arc::default();
    let bound = server(&guests).await.unwrap();
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());
    let reply = within(client(address)).await.unwrap();
    assert_eq!(reply, HelloReply { message: "Hello Tonic!".to_owned() });
    assert!(matches!(guests.0.lock().unwrap()[..], [guest] if guest.ip().is_loopback()));
    assert_idle_soon(&handle).await;
    handle.shutdown();
    within(serving).await.unwrap();
}
