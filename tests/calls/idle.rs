//! What the checks at the end of a test say when something is left: what it is, and what that comes of.

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use sluicegate::{
    Context, Server,
    limit::CallHold,
    testing::{InMemory, assert_client_idle},
};
use tokio::time::timeout;

#[sluicegate::service]
trait Reports {
    async fn yearly(&self) -> u32;
    async fn later(&self, ctx: Context);
}

#[derive(Default)]
struct Office(Mutex<Vec<CallHold>>);

impl Reports for Office {
    async fn yearly(&self) -> u32 {
        pending().await
    }

    async fn later(&self, ctx: Context) {
        self.0.lock().unwrap().push(ctx.hold());
    }
}

fn served() -> (InMemory, Arc<Office>, ReportsClient) {
    let office = Arc::new(Office::default());
    let service = ReportsServer::from_arc(Arc::clone(&office));
    let server = InMemory::new(Server::builder().service(service).build().unwrap());
    let reports = server.client().service();
    (server, office, reports)
}

/// With what it panics.
async fn panic_of(check: impl Future<Output = ()> + Send + 'static) -> String {
    let panic = tokio::spawn(check).await.expect_err("something is left").into_panic();
    *panic.downcast::<String>().expect("a panic with figures")
}

#[tokio::test(start_paused = true)]
async fn a_call_that_goes_on_is_named() {
    let (server, _office, reports) = served();
    let mut call = Box::pin(reports.yearly().into_future());
    assert!(timeout(Duration::from_secs(1), &mut call).await.is_err());
    let check = server.clone();
    let told = panic_of(async move { check.assert_idle().await }).await;
    assert!(told.starts_with("the server is not idle: a call goes on"), "{told}");
    assert!(told.contains(r#"calls: ["Reports/yearly"]"#), "{told}");
    assert!(told.contains(r#"left: [("calls", 1), "#), "{told}");
    drop((call, reports));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_was_not_dropped_is_suspected() {
    let (server, office, reports) = served();
    reports.later().await.unwrap();
    office.0.lock().unwrap().clear();
    let check = server.clone();
    let told = panic_of(async move { check.assert_idle().await }).await;
    assert!(told.starts_with("the server is not idle: somebody is connected: drop every client"), "{told}");
    assert!(told.contains("calls: []\n  left: [(\"connections\", 1)]\n"), "{told}");
    drop(reports);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_kept_is_suspected_when_everybody_has_gone() {
    let (server, office, reports) = served();
    reports.later().await.unwrap();
    drop(reports);
    let check = server.clone();
    let told = panic_of(async move { check.assert_idle().await }).await;
    assert!(told.contains("such as a `Context::hold`"), "{told}");
    assert!(told.contains(r#"left: [("calls", 1)"#), "{told}");
    office.0.lock().unwrap().clear();
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_says_of_itself_what_is_under_way() {
    let (server, _office, _) = served();
    let client = server.client();
    let reports: ReportsClient = client.service();
    let mut call = Box::pin(reports.yearly().into_future());
    assert!(timeout(Duration::from_secs(1), &mut call).await.is_err());
    let check = client.clone();
    let told = panic_of(async move { assert_client_idle(&check).await }).await;
    assert!(told.starts_with("the client is not idle: a call was not awaited to its end"), "{told}");
    assert!(told.contains(r#"left: [("calls", 1)]"#), "{told}");
    drop(call);
    assert_client_idle(&client).await;
    drop((client, reports));
    server.assert_idle().await;
}
