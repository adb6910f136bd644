//! Layers of `tower` around services and around clients.
#![cfg(feature = "tower")]

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use futures::{StreamExt, stream};
use sluicegate::{
    Bytes, CallError, Client, Context, Executed, Server, Status, StatusCode,
    client::{self, HealthClient},
    server::{self, BuildError, tower::Layered},
    testing::InMemory,
};
use tower::{
    Layer, ServiceBuilder, limit::GlobalConcurrencyLimitLayer, service_fn, timeout::TimeoutLayer,
    util::BoxCloneSyncService,
};

use crate::support::{
    feed::{FeedClient, FeedService, Feeder},
    shims::times_in,
};

#[sluicegate::service(package = "test")]
trait Greeter {
    async fn greet(&self, ctx: Context, name: String) -> Result<String, Status>;
    async fn bytes(&self, body: Bytes) -> Bytes;
    async fn forever(&self) -> Result<(), Status>;
    #[rpc(spawn)]
    async fn spawned(&self) -> Result<u8, Status>;
}

#[derive(Clone, Default)]
struct Polite;

impl Greeter for Polite {
    async fn greet(&self, ctx: Context, name: String) -> Result<String, Status> {
        match &*name {
            "" => Err(Status::invalid_argument("whom?")),
            "panics" => panic!("{}", crate::support::probe::PANIC_TEXT),
            _ => Ok(format!("hello {name} of {}", ctx.metadata().get_str("tenant").unwrap_or("nobody"))),
        }
    }

    async fn bytes(&self, body: Bytes) -> Bytes {
        body
    }

    async fn forever(&self) -> Result<(), Status> {
        std::future::pending().await
    }

    async fn spawned(&self) -> Result<u8, Status> {
        tokio::task::yield_now().await;
        Ok(7)
    }
}

/// A layer that counts what passes it, on either side.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

#[derive(Clone)]
struct Counted<S>(S, Arc<AtomicUsize>);

impl<S> Layer<S> for Count {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted(inner, Arc::clone(&self.0))
    }
}

impl<S: tower::Service<R>, R> tower::Service<R> for Counted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.1.fetch_add(1, SeqCst);
        self.0.call(request)
    }
}

fn in_memory(service: impl server::Service) -> InMemory {
    InMemory::new(Server::builder().service(service).max_concurrent_calls(8).build().expect("a server"))
}

fn code<T: std::fmt::Debug>(outcome: Result<T, CallError>) -> StatusCode {
    outcome.expect_err("an error").code()
}

#[tokio::test(start_paused = true)]
async fn a_service_within_layers_is_served_as_before_in_every_codec() {
    let (outer, inner) = (Count::default(), Count::default());
    let layered = Layered::new(Layered::new(GreeterServer::new(Polite), inner.clone()), outer.clone());
    let server = in_memory(layered);
    for &codec in sluicegate::CodecId::supported() {
        let greeter: GreeterClient = server.client_builder().codec(codec).build().service();
        let greeted = greeter.greet("Ada".to_owned()).metadata("tenant", "acme").await;
        assert_eq!(greeted.unwrap(), "hello Ada of acme", "{codec}");
        assert_eq!(greeter.bytes(Bytes::from_static(b"\0\xff")).await.unwrap(), b"\0\xff"[..]);
        assert_eq!(greeter.spawned().await.unwrap(), 7);
        let error = greeter.greet(String::new()).await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (StatusCode::InvalidArgument, Executed::Finished));
    }
    let calls = 4 * sluicegate::CodecId::supported().len();
    assert_eq!((outer.0.load(SeqCst), inner.0.load(SeqCst)), (calls, calls));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn calls_whose_layer_gives_their_futures_up_are_told_at_once_and_leave_nothing() {
    let layer = ServiceBuilder::new().layer(TimeoutLayer::new(Duration::from_millis(10))).into_inner();
    let server = in_memory(Layered::new(GreeterServer::new(Polite), layer));
    let greeter: GreeterClient = server.client().service();
    let rounds = times_in(100_000 / 8, 25);
    for _ in 0..rounds {
        let began = tokio::time::Instant::now();
        let calls = (0..8).map(|_| greeter.forever().timeout(Duration::from_secs(60)));
        for outcome in futures::future::join_all(calls).await {
            assert_eq!(code(outcome), StatusCode::Internal);
        }
        let told = began.elapsed();
        assert!(told <= Duration::from_millis(10 + 100), "{told:?}");
        let snapshot = server.handle().snapshot();
        assert_eq!((snapshot.calls_parked, snapshot.calls.held), (0, 0));
    }
    assert_eq!(server.handle().snapshot().calls.acquired, 8 * rounds);
    drop(greeter);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_layer_of_a_service_says_is_told_and_permits_come_back() {
    crate::support::probe::silence_wanted_panics();
    let layer = ServiceBuilder::new().layer(TimeoutLayer::new(Duration::from_millis(10))).into_inner();
    let server = in_memory(Layered::new(GreeterServer::new(Polite), layer));
    let greeter: GreeterClient = server.client().service();
    let late = greeter.forever().await.unwrap_err();
    assert_eq!((late.code(), late.executed()), (StatusCode::Internal, Executed::Maybe));
    assert_eq!(late.to_string(), "internal: a layer failed (perhaps executed)");
    // Given up while it is within the layer, and panicking there.
    let given_up = tokio::spawn(greeter.forever());
    tokio::time::sleep(Duration::from_millis(1)).await;
    given_up.abort();
    assert_eq!(code(greeter.greet("panics".to_owned()).await), StatusCode::Internal);
    assert_eq!(greeter.spawned().await.unwrap(), 7);
    drop(greeter);
    server.assert_idle().await;

    let refuse = tower::layer::layer_fn(|_next: server::tower::Next| {
        service_fn(|request: server::tower::Request| async move {
            let who = request.context.metadata().get_str("user").map(str::to_owned);
            let status = Status::permission_denied(format!("{} is not for {who:?}", request.method));
            Err::<server::tower::Response, _>(status.with_executed(Executed::Never))
        })
    });
    let server = in_memory(Layered::new(GreeterServer::new(Polite), refuse));
    let greeter: GreeterClient = server.client().service();
    let refused = greeter.spawned().metadata("user", "eve").await.unwrap_err();
    assert_eq!((refused.code(), refused.executed()), (StatusCode::PermissionDenied, Executed::Never));
    assert!(refused.to_string().contains("test.Greeter/spawned is not for Some(\"eve\")"), "{refused}");
    drop(greeter);
    server.assert_idle().await;
}

#[test]
fn a_method_that_blocks_cannot_be_within_a_layer() {
    #[sluicegate::service]
    trait Blocks {
        #[rpc(blocking)]
        fn block(&self);
    }

    struct Here;

    impl Blocks for Here {
        fn block(&self) {}
    }

    let error = Server::builder().service(Layered::new(BlocksServer::new(Here), Count::default())).build();
    let Err(error @ BuildError::LayeredBlocking { .. }) = error else { panic!("{error:?}") };
    assert!(error.to_string().starts_with("the method Blocks/block blocks"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_items_of_a_call_go_past_the_layers_around_it() {
    let (feeder, passed) = (Feeder::default(), Count::default());
    let layers = ServiceBuilder::new().layer(passed.clone()).layer(TimeoutLayer::new(Duration::from_millis(50)));
    let server = in_memory(Layered::new(FeedService::new(feeder.clone()), layers.into_inner()));
    let of_client = Count::default();
    let client = server.client_builder().layer(of_client.clone()).build();
    let feed: FeedClient = client.service();
    let items: Vec<_> = feed.count(10_000).map(Result::unwrap).collect().await;
    assert_eq!(items, (0..10_000).collect::<Vec<_>>());
    assert_eq!(feed.count_spawned(3).count().await, 3);
    assert_eq!(feed.sum(1).send_all(stream::iter(0..1_000)).await.unwrap(), (0..1_000).sum::<u64>() + 1);
    assert_eq!(feed.add(1).send_all(stream::iter([1, 2])).map(Result::unwrap).collect::<Vec<_>>().await, [2, 3]);
    assert_eq!(feed.refuse().message().await.unwrap_err().executed(), Executed::Finished);
    // The layer gives the producer up, behind the items that were there.
    let mut stalled = feed.stall(2).open().await.unwrap();
    assert_eq!((stalled.message().await.unwrap(), stalled.message().await.unwrap()), (Some(0), Some(1)));
    let late = stalled.message().await.unwrap_err();
    assert_eq!((late.code(), late.executed()), (StatusCode::Internal, Executed::Maybe));
    assert_eq!(feeder.running(), 0);
    assert_eq!((passed.0.load(SeqCst), of_client.0.load(SeqCst)), (6, 0), "they go past the client's layers");
    drop((stalled, feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_makes_a_call_again_finds_its_items_gone() {
    let twice = tower::layer::layer_fn(|next: server::tower::Next| {
        service_fn(move |request: server::tower::Request| {
            let mut next = next.clone();
            async move {
                let _ = tower::Service::call(&mut next, request.clone()).await;
                tower::Service::call(&mut next, request).await
            }
        })
    });
    let feeder = Feeder::default();
    let server = in_memory(Layered::new(FeedService::new(feeder.clone()), twice));
    let feed: FeedClient = server.client().service();
    assert_eq!(feed.hello("you".to_owned()).await.unwrap(), "hello, you");
    let mut items = feed.count(2);
    assert_eq!((items.message().await.unwrap(), items.message().await.unwrap()), (Some(0), Some(1)));
    let gone = items.message().await.unwrap_err();
    assert_eq!((gone.code(), gone.executed()), (StatusCode::Internal, Executed::Maybe));
    assert!(gone.to_string().contains("whose items are gone"), "{gone}");
    drop((items, feed));
    server.assert_idle().await;
    assert_eq!(feeder.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_client_pass_its_layers_first_to_last_and_keep_what_they_are() {
    let server = in_memory(GreeterServer::new(Polite));
    let (first, second) = (Count::default(), Count::default());
    let builder = server.client_builder().timeout(Duration::from_secs(9));
    let client = builder.layer(first.clone()).layer(second.clone()).build();
    let greeter: GreeterClient = client.service();
    assert_eq!(greeter.greet("Ada".to_owned()).metadata("tenant", "acme").await.unwrap(), "hello Ada of acme");
    assert_eq!(greeter.bytes(Bytes::from_static(b"\0\xff")).await.unwrap(), b"\0\xff"[..]);
    assert_eq!(code(greeter.greet(String::new()).await), StatusCode::InvalidArgument);
    let late = greeter.forever().timeout(Duration::from_millis(5)).await;
    assert_eq!(code(late), StatusCode::DeadlineExceeded);
    assert_eq!(code(client.service::<HealthClient>().check("").await), StatusCode::Unimplemented);
    assert_eq!((first.0.load(SeqCst), second.0.load(SeqCst)), (5, 5));
    // The layers do not keep the client: with its last handle the connection ends.
    drop((client, greeter));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_layer_may_hold_calls_back_make_them_again_and_give_them_up() {
    let server = in_memory(GreeterServer::new(Polite));
    let limit = GlobalConcurrencyLimitLayer::new(1);
    let client = server.client_builder().layer(TimeoutLayer::new(Duration::from_millis(20))).layer(limit).build();
    let greeter: GreeterClient = client.service();
    // One at a time, so the second never gets its turn, and both run into the timeout of the layer outside.
    let (one, two) = tokio::join!(greeter.forever(), greeter.forever());
    for late in [one, two] {
        let late = late.unwrap_err();
        assert_eq!((late.code(), late.executed()), (StatusCode::Unknown, Executed::Maybe));
        assert!(std::error::Error::source(&late).is_some(), "{late}");
    }
    assert_eq!(greeter.spawned().await.unwrap(), 7, "what was given up gave its place back");
    drop((client, greeter));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_call_holds_however_long_a_layer_keeps_it() {
    let never = tower::layer::layer_fn(|_next: client::tower::Next| {
        service_fn(|_: client::tower::Request| std::future::pending::<Result<client::tower::Response, Infallible>>())
    });
    let client = Client::builder("127.0.0.1:1").layer(never).build();
    let began = tokio::time::Instant::now();
    let late = client.service::<GreeterClient>().spawned().timeout(Duration::from_millis(30)).await.unwrap_err();
    assert_eq!((late.code(), late.executed()), (StatusCode::DeadlineExceeded, Executed::Maybe));
    assert!(began.elapsed() <= Duration::from_millis(31), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_layer_may_answer_itself() {
    type Answering = Pin<Box<dyn Future<Output = Result<client::tower::Response, Infallible>> + Send>>;

    let cached = tower::layer::layer_fn(|_next: client::tower::Next| {
        BoxCloneSyncService::new(service_fn(|_: client::tower::Request| -> Answering {
            Box::pin(async { Ok(client::tower::Response::new(Bytes::from_static(&[9]))) })
        }))
    });
    let client = Client::builder("127.0.0.1:1").layer(cached).build();
    assert_eq!(client.service::<GreeterClient>().spawned().await.unwrap(), 9, "nobody was connected to");
    let error = client.service::<GreeterClient>().greet("Ada".to_owned()).await.unwrap_err();
    assert!(matches!(error, CallError::Decode { .. }), "{error}");
}
