//! The example of tarpc: a greeting that names its caller's address, one connection for each address, ten in all, and a
//! client that asks twice and takes the answer that is there first.

use std::{error::Error, net::SocketAddr};

use sluicegate::{CallError, Client, Context, Executed, Server, StatusCode, server::BoundServer};

use crate::support::{assert_idle_soon, within};

#[sluicegate::service]
trait World {
    async fn hello(&self, ctx: Context, name: String) -> String;
}

struct Hello;

impl World for Hello {
    async fn hello(&self, ctx: Context, name: String) -> String {
        if name.ends_with("for ever") {
            std::future::pending::<()>().await;
        }
        format!("Hello, {name}! You are connected from {:?}.", ctx.peer())
    }
}

async fn server(per_address: u64) -> Result<BoundServer, Box<dyn Error>> {
    let server = Server::builder()
        .service(WorldServer::new(Hello))
        .max_connections(10)
        .max_connections_per_address(per_address)
        .build()?;
    Ok(server.bind("127.0.0.1:0").await?)
}

async fn client(address: SocketAddr) -> Result<String, CallError> {
    let world: WorldClient = Client::new(address).service();
    tokio::select! {
        greeting = world.hello("Stim".to_owned()) => greeting,
        greeting = world.hello("Stim, for ever".to_owned()) => greeting,
    }
}

#[tokio::test]
async fn a_greeting_names_its_caller_and_of_two_the_slower_is_given_up() {
    let bound = server(1).await.unwrap();
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());
    let greeting = within(client(address)).await.unwrap();
    assert!(greeting.starts_with("Hello, Stim! You are connected from Some(127.0.0.1:"), "{greeting}");
    assert_idle_soon(&handle).await;
    handle.shutdown();
    assert!(within(serving).await.unwrap().cut.is_empty());
}

#[tokio::test]
async fn one_address_has_one_connection_and_the_next_when_that_is_gone() {
    let bound = server(1).await.unwrap();
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());
    let first: WorldClient = Client::new(address).service();
    within(first.hello("one".to_owned())).await.unwrap();
    let second: WorldClient = Client::new(address).service();
    let error = within(second.hello("two".to_owned())).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Never), "{error}");
    assert!(error.to_string().contains("connections of this address"), "{error}");
    drop((first, second));
    assert_idle_soon(&handle).await;
    let third: WorldClient = Client::new(address).service();
    within(third.hello("three".to_owned())).await.unwrap();
    drop(third);
    assert_idle_soon(&handle).await;
    handle.shutdown();
    within(serving).await.unwrap();
}

#[tokio::test]
async fn the_eleventh_connection_is_told_that_there_are_enough() {
    let bound = server(20).await.unwrap();
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());
    let mut ten: Vec<WorldClient> = (0..10).map(|_| Client::new(address).service()).collect();
    for world in &ten {
        within(world.hello("somebody".to_owned())).await.unwrap();
    }
    let eleventh: WorldClient = Client::new(address).service();
    let error = within(eleventh.hello("me too".to_owned())).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Never), "{error}");
    ten.clear();
    drop(eleventh);
    assert_idle_soon(&handle).await;
    handle.shutdown();
    within(serving).await.unwrap();
}
