//! The services that every server can have: how it is, and what it has.

use std::time::Duration;

use std::future::IntoFuture;

use sluicegate::{
    Bytes, Client, Context, Health, ItemSender, Server, Status, StatusCode, Stream, Streaming,
    client::{DescribeClient, HealthClient},
    limit::Rate,
    server::{MethodLimits, TenantLimits, Tenants, WaitQueue},
    testing::InMemory,
};
use tokio::{sync::oneshot, time::Instant};

use crate::support::{Harness, Req, assert_idle, assert_idle_soon, method, parts::opening, raw::cancel};

const SERVICE: &str = "test.Probe";
const HOUR: Duration = Duration::from_secs(3_600);

fn code<T: std::fmt::Debug>(outcome: Result<T, sluicegate::CallError>) -> StatusCode {
    outcome.expect_err("an error").code()
}

#[tokio::test(start_paused = true)]
async fn the_health_of_the_server_and_of_each_service_is_told_as_it_is_set() {
    let harness = Harness::with(|builder| builder.health(true));
    let client = harness.client();
    let health: HealthClient = client.service();
    assert_eq!(health.check("").await.unwrap(), Health::Serving);
    assert_eq!(health.check(SERVICE).await.unwrap(), Health::Serving);
    assert_eq!(code(health.check("test.Other").await), StatusCode::NotFound);

    assert!(harness.handle.set_health(SERVICE, Health::NotServing));
    assert!(!harness.handle.set_health("test.Other", Health::NotServing));
    let expected = [(String::new(), Health::Serving), (SERVICE.to_owned(), Health::NotServing)];
    assert_eq!(health.list().await.unwrap(), expected);
    let served: String = client.call(method::ECHO, ("hi".to_owned(),)).await.unwrap();
    assert_eq!(served, "hi", "it is only told");
    assert!(harness.handle.set_health(SERVICE, Health::Serving));
    assert_eq!(health.check(SERVICE).await.unwrap(), Health::Serving);
    drop((client, health));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_without_the_service_knows_its_health_all_the_same() {
    let harness = Harness::new();
    let client = harness.client();
    assert_eq!(code(client.service::<HealthClient>().check("").await), StatusCode::Unimplemented);
    assert_eq!(harness.handle.health(SERVICE), Some(Health::Serving));
    harness.handle.shutdown();
    assert_eq!(harness.handle.health(SERVICE), Some(Health::Draining));
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_server_is_not_ill() {
    // Each of the limits is used up by one call.
    let harness = Harness::with(|builder| {
        let rate = Rate::per_second(0.001).burst(1);
        builder.health(true).spawn_calls(true).max_concurrent_calls(1).rate(rate).rate_per_connection(rate)
    });
    let client = harness.client();
    let gated = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    harness.until_running(1).await;
    assert_eq!(code(client.call::<_, String>(method::ECHO, ("hi",)).await), StatusCode::ResourceExhausted);
    let health: HealthClient = client.service();
    for _ in 0..100 {
        assert_eq!(health.check(SERVICE).await.unwrap(), Health::Serving);
    }
    let calls = harness.snapshot().calls;
    assert_eq!((calls.held, calls.acquired), (1, 1), "limits do not count its calls");
    harness.probe.open_gate();
    gated.await.unwrap().unwrap();
    drop((client, health));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn no_limit_of_load_whatever_it_is_turns_away_who_asks_for_the_health() {
    let harness = Harness::with(|builder| {
        let few = TenantLimits::new().max_concurrent_calls(1).rate(Rate::per_second(0.001).burst(2));
        builder
            .health(true)
            .max_concurrent_calls(1)
            .max_message(64)
            .max_bytes_in_flight(64)
            .tenants(Tenants::by_metadata("tenant", few))
            .wait_queue(WaitQueue::of(1).max_wait(HOUR))
            .shed_by_priority(true)
            .refuse_late_calls(true)
    });
    let client = harness.client();
    let gated = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    harness.until_running(1).await;
    let waiting = tokio::spawn(client.call::<_, String>(method::ECHO, ("hi",)).into_future());
    harness.until("it waits", |harness| harness.snapshot().calls_waiting == 1).await;
    assert_eq!(code(client.call::<_, String>(method::ECHO, ("hi",)).await), StatusCode::ResourceExhausted);
    let check = sluicegate::client::Method::new("sluicegate.Health", "check");
    // With its length it takes all bytes that may be in flight.
    let long = "n".repeat(63);
    for dry_run in [false, true] {
        harness.handle.limits().set_dry_run(dry_run);
        for class in 0..4 {
            let asked = client.call::<_, Health>(check, (SERVICE,)).priority(class);
            assert_eq!(asked.timeout(Duration::from_millis(1)).await.unwrap(), Health::Serving);
            assert_eq!(code(client.call::<_, Health>(check, (long.clone(),)).await), StatusCode::NotFound);
        }
    }
    harness.handle.limits().set_dry_run(false);
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls.held, snapshot.calls.acquired), (1, 1), "limits do not count its calls");
    assert!(snapshot.would_refuse.is_empty());
    harness.probe.open_gate();
    gated.await.unwrap().unwrap();
    waiting.await.unwrap().unwrap();
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_as_many_calls_as_it_may_have_is_told_the_health_too() {
    let harness = Harness::with(|builder| builder.health(true).max_concurrent_calls_per_connection(1));
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    peer.send(&Req::new(2, method::ECHO, ("hi",)).bytes()).await;
    assert_eq!(peer.answer(2).await.0.code(), StatusCode::ResourceExhausted);
    let check = sluicegate::client::Method::new("sluicegate.Health", "check");
    peer.send(&Req::new(3, check, ("",)).bytes()).await;
    assert_eq!(peer.reply::<Health>(3).await, Health::Serving);
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.part().await;
    harness.assert_idle().await;
}

/// No limit counts them, but each that waits for its body costs memory.
#[tokio::test(start_paused = true)]
async fn calls_of_the_health_service_whose_bodies_do_not_come_are_bounded() {
    let harness = Harness::with(|builder| builder.health(true).max_concurrent_calls_per_connection(2));
    let mut peer = harness.peer().await;
    let check = |id| Req::new(id, sluicegate::client::Method::new("sluicegate.Health", "check"), ("",));
    for id in 1..=100 {
        peer.send(&opening(check(id).body([]), 1, &[])).await;
    }
    for id in 67..=100 {
        let (status, _) = peer.answer(id).await;
        let info = status.error_info().unwrap();
        assert_eq!((&*info.reason, info.metadata.get_str("limit")), ("CONCURRENCY_LIMIT", Some("connection")));
        assert!(status.retry_delay().unwrap() > Duration::from_millis(10), "with jitter, so not all at once");
    }
    assert_eq!(harness.snapshot().calls_parked, 66);
    // One whose body is there ends in its own turn, and room is made by ending others.
    peer.send(&cancel(1)).await;
    peer.send(&check(101).bytes()).await;
    assert_eq!(peer.reply::<Health>(101).await, Health::Serving);
    for id in 2..=66 {
        peer.send(&cancel(id)).await;
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn handlers_of_the_user_see_the_calls_of_the_health_service() {
    use crate::support::handlers::Deciding;
    use sluicegate::server::{Call, Decision};

    let harness = Harness::with(|builder| {
        builder.health(true).pipeline(|pipeline, _| {
            let nobody = |_: &mut Call<'_>| Decision::Answer(Status::unauthenticated("who are you?"));
            pipeline.add_first("nobody", Deciding(nobody));
        })
    });
    let client = harness.client();
    assert_eq!(code(client.service::<HealthClient>().check("").await), StatusCode::Unauthenticated);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test]
async fn the_health_flips_with_the_notice_while_calls_are_served() {
    let harness = Harness::with(|builder| builder.health(true).shutdown_notice(HOUR));
    let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
    let address = bound.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(bound.serve_until(async { drop(stopped.await) }));
    let client = Client::new(address);
    let health: HealthClient = client.service();
    assert_eq!(health.check("").await.unwrap(), Health::Serving);
    stop.send(()).unwrap();
    while health.check("").await.unwrap() != Health::Draining {}
    assert_eq!(health.check(SERVICE).await.unwrap(), Health::Draining);
    // By the connection that is there, and by a new one.
    for client in [&client, &Client::new(address)] {
        assert_eq!(client.call::<_, String>(method::ECHO, ("hi".to_owned(),)).await.unwrap(), "hi");
    }
    harness.handle.shutdown();
    assert!(serving.await.unwrap().cut.is_empty());
    drop((client, health));
    assert_idle_soon(&harness.handle).await;
}

#[tokio::test(start_paused = true)]
async fn the_notice_ends_and_then_the_server_drains() {
    for notice in [Duration::ZERO, HOUR] {
        let server = Server::builder().shutdown_notice(notice).build().unwrap();
        let bound = server.bind("127.0.0.1:0").await.unwrap();
        let handle = bound.handle();
        let began = Instant::now();
        let drained = bound.serve_until(async {}).await;
        assert!(drained.cut.is_empty());
        let took = began.elapsed();
        assert!(notice <= took && took < notice + Duration::from_secs(1), "{took:?}");
        assert_eq!(handle.health(""), Some(Health::Draining));
        assert_idle(&handle).await;
    }
}

mod described {
    use super::*;

    #[sluicegate::service(package = "acme.v1")]
    trait Library {
        async fn find(&self, ctx: Context, text: String, limit: Option<u32>) -> Result<Vec<(String, u16)>, Status>;
        #[rpc(name = "take", alias = "fetch", alias = "acme.v0.Shelf/get")]
        async fn take_book(&self, body: Bytes) -> Bytes;
        #[rpc(blocking)]
        fn index(&self);
    }

    struct Books;

    impl Library for Books {
        async fn find(&self, _: Context, text: String, limit: Option<u32>) -> Result<Vec<(String, u16)>, Status> {
            Ok(vec![(text, limit.is_some().into())])
        }

        async fn take_book(&self, body: Bytes) -> Bytes {
            body
        }

        fn index(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_describes_itself_where_that_is_switched_on() {
        let server = Server::builder()
            .service(LibraryServer::new(Books))
            .describe(true)
            .health(true)
            .max_concurrent_calls(64)
            .codecs([sluicegate::CodecId::BINCODE]);
        let server = InMemory::new(server.build().unwrap());
        let client = server.client();
        let description = client.service::<DescribeClient>().describe().await.unwrap();
        assert_eq!(description.codecs, ["bytes", "bincode"]);
        assert_eq!(description.limits.get("max_concurrent_calls"), Some(&64));
        assert_eq!(description.limits.get("keepalive_interval"), Some(&30_000));
        assert_eq!(description.limits.get("idle_timeout"), None, "it is not set");
        let [library] = &description.services[..] else { panic!("{description:#?}") };
        assert_eq!(library.name, "acme.v1.Library");
        let written: Vec<_> = library
            .methods
            .iter()
            .map(|method| {
                let arguments: Vec<_> = method.arguments.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
                let kind = (method.untouched, method.blocking);
                (format!("{}({}) -> {}", method.name, arguments.join(", "), method.returns), kind, &method.aliases[..])
            })
            .collect();
        let aliases = ["acme.v1.Library/fetch".to_owned(), "acme.v0.Shelf/get".to_owned()];
        let expected = [
            ("find(text: String, limit: Option<u32>) -> Vec<(String, u16)>".to_owned(), (false, false), &[][..]),
            ("take(body: Bytes) -> Bytes".to_owned(), (true, false), &aliases[..]),
            ("index() -> ()".to_owned(), (false, true), &[][..]),
        ];
        assert_eq!(written, expected);
        drop(client);
        server.assert_idle().await;
    }

    #[sluicegate::service(package = "acme.v1", weight = 2)]
    trait Feed {
        #[rpc(max_concurrent_calls = 8, pool = "long")]
        async fn news(&self, topic: String) -> Result<impl Stream<Item = Result<String, Status>>, Status>;
        async fn read(&self, out: ItemSender<Bytes>) -> Result<(), Status>;
        async fn sum(&self, numbers: Streaming<u64>) -> u64;
        async fn chat(&self, lines: Streaming<Vec<u8>>, out: ItemSender<Option<u8>>) -> Result<(), Status>;
        #[rpc(weight = 1)]
        async fn plain(&self);
    }

    struct Quiet;

    impl Feed for Quiet {
        async fn news(&self, _: String) -> Result<impl Stream<Item = Result<String, Status>>, Status> {
            Ok(futures::stream::empty())
        }

        async fn read(&self, _: ItemSender<Bytes>) -> Result<(), Status> {
            Ok(())
        }

        async fn sum(&self, _: Streaming<u64>) -> u64 {
            0
        }

        async fn chat(&self, _: Streaming<Vec<u8>>, _: ItemSender<Option<u8>>) -> Result<(), Status> {
            Ok(())
        }

        async fn plain(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_items_and_limits_of_methods_are_described_as_they_are_configured() {
        let server = Server::builder()
            .service(FeedServer::new(Quiet))
            .describe(true)
            .pool("long", 4)
            .rate(Rate::per_second(99.6).burst(3))
            .wait_queue(WaitQueue::of(16).max_wait(Duration::from_millis(250)))
            .stream_idle_timeout(Duration::from_secs(60))
            .service_limits("acme.v1.Feed", MethodLimits::new().stream_idle_timeout(Duration::from_millis(7_500)))
            .method_limits("acme.v1.Feed/chat", MethodLimits::new().stream_idle_timeout(Duration::MAX))
            .method_limits("acme.v1.Feed/sum", MethodLimits::new().weight(3).pool("long"));
        let server = InMemory::new(server.build().unwrap());
        let client = server.client();
        let description = client.service::<DescribeClient>().describe().await.unwrap();
        let limit = |name| description.limits.get(name).copied();
        let limits = [limit("rate"), limit("max_waiting"), limit("max_wait"), limit("rate_per_connection")];
        assert_eq!(limits, [Some(100), Some(16), Some(250), None]);
        assert_eq!(limit("stream_idle_timeout"), Some(60_000));
        assert!(limit("stream_window").is_some());
        assert_eq!(description.pools.into_iter().collect::<Vec<_>>(), [("long".to_owned(), 4)]);
        let [feed] = &description.services[..] else { panic!("{:#?}", description.services) };
        let written = feed.methods.iter().map(|method| {
            let items = format!("{} > {}", method.items_from_client, method.items_from_server);
            let limits = format!("{} {:?} {:?}", method.weight, method.max_concurrent_calls, method.pool.as_deref());
            let whole = format!("{}/{} {} -> {}", method.kind, method.name, method.arguments.len(), method.returns);
            [whole, items, limits]
        });
        let idle = feed.methods.iter().map(|method| method.stream_idle_timeout);
        let own = Some(7_500);
        assert_eq!(idle.collect::<Vec<_>>(), [own, own, own, Some(u64::MAX), None], "a unary call cannot be idle");
        let expected = [
            ["server stream/news 1 -> ()", " > String", "2 Some(8) Some(\"long\")"],
            ["server stream/read 0 -> ()", " > Bytes", "2 None None"],
            ["client stream/sum 0 -> u64", "u64 > ", "3 None Some(\"long\")"],
            ["stream both ways/chat 0 -> ()", "Vec<u8> > Option<u8>", "2 None None"],
            ["unary/plain 0 -> ()", " > ", "1 None None"],
        ];
        assert_eq!(written.collect::<Vec<_>>(), expected);
        drop(client);
        server.assert_idle().await;
    }

    #[tokio::test(start_paused = true)]
    async fn by_default_it_tells_nobody_anything() {
        let server = InMemory::new(Server::builder().service(LibraryServer::new(Books)).build().unwrap());
        let client = server.client();
        assert_eq!(code(client.service::<DescribeClient>().describe().await), StatusCode::Unimplemented);
        drop(client);
        server.assert_idle().await;
    }
}
