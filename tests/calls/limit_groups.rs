//! Limits of methods, of pools and of bytes beside those of the server and of connections; what calls
//! weigh.

use sluicegate::{
    CallError, Client, CodecId, Executed, Server, Status, StatusCode,
    limit::Rate,
    server::{Adaptive, BuildError, MethodLimits, ServerBuilder, TenantLimits, Tenants, WaitQueue},
};

use crate::support::{Got, Harness, RawClient, Req, method, probe::path};

async fn gate(peer: &mut RawClient, id: u64) {
    peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
}

fn figures(status: &Status) -> (String, Vec<(String, String)>) {
    assert_eq!(status.executed(), Executed::Never);
    let info = status.error_info().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let pairs = info.metadata.iter().map(|(key, value)| (key.to_owned(), text(value))).collect();
    (info.reason.to_string(), pairs)
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_method_has_its_limit_in_the_whole_server_and_others_pass_beside_it() {
    let harness = Harness::with(|builder| {
        builder.method_limits(path("gate"), MethodLimits::new().max_concurrent_calls(2)).max_concurrent_calls(4)
    });
    let (mut first, mut second) = (harness.peer().await, harness.peer().await);
    gate(&mut first, 1).await;
    gate(&mut second, 1).await;
    harness.until_running(2).await;
    gate(&mut second, 2).await;
    let (reason, told) = figures(&second.answer(2).await.0);
    let path = path("gate");
    let expected = pairs(&[("limit", &path), ("max_in_flight", "2"), ("in_flight", "2")]);
    assert_eq!((&*reason, told), ("CONCURRENCY_LIMIT", expected));
    second.send(&Req::new(3, method::ECHO, ("hi",)).bytes()).await;
    assert_eq!(second.reply::<String>(3).await, "hi");
    harness.until_held(2).await;
    let snapshot = harness.snapshot();
    assert_eq!((harness.refused(&path), snapshot.limits[&*path].held, snapshot.calls.acquired), (1, 2, 3));
    harness.probe.open_gate();
    first.answer(1).await;
    second.answer(1).await;
    first.part().await;
    second.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn methods_of_a_pool_share_it_under_the_limit_of_the_server() {
    let in_pool = |name: &'static str| MethodLimits::new().pool(name);
    let harness = Harness::with(|builder| {
        let builder = builder.max_concurrent_calls(4).pool("reads", 3).pool("writes", 2);
        let builder = builder.method_limits(path("gate"), in_pool("reads"));
        let builder = builder.method_limits(path("gate_spawned"), in_pool("reads"));
        builder.method_limits(path("watched"), in_pool("writes"))
    });
    let mut peer = harness.peer().await;
    let [read, other_read, write] = [method::GATE, method::GATE_SPAWNED, method::WATCHED];
    for (id, method) in [(1, read), (2, other_read), (3, read)] {
        peer.send(&Req::new(id, method, (id,)).bytes()).await;
    }
    harness.until_running(3).await;
    peer.send(&Req::new(4, other_read, (4_u64,)).bytes()).await;
    let expected = pairs(&[("limit", "reads"), ("max_in_flight", "3"), ("in_flight", "3")]);
    assert_eq!(figures(&peer.answer(4).await.0).1, expected);
    peer.send(&Req::new(5, write, ()).bytes()).await;
    harness.until_running(4).await;
    // There is room in the pool, but none in the server; the pool keeps nothing of the call.
    peer.send(&Req::new(6, write, ()).bytes()).await;
    let expected = pairs(&[("limit", "global"), ("max_in_flight", "4"), ("in_flight", "4")]);
    assert_eq!(figures(&peer.answer(6).await.0).1, expected);
    let held = |name: &str| harness.snapshot().limits[name].held;
    assert_eq!((held("reads"), held("writes")), (3, 1));
    harness.probe.open_gate();
    for _ in 0..4 {
        peer.next().await;
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_heavy_call_counts_for_several_in_all_limits_but_its_own() {
    let harness = Harness::with(|builder| {
        let heavy = MethodLimits::new().weight(4).max_concurrent_calls(2);
        builder.method_limits(path("gate"), heavy).max_concurrent_calls(10).max_concurrent_calls_per_connection(9)
    });
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    gate(&mut peer, 2).await;
    harness.until_held(8).await;
    assert_eq!(harness.snapshot().limits[&*path("gate")].held, 2);
    gate(&mut peer, 3).await;
    assert_eq!(figures(&peer.answer(3).await.0).1[0], ("limit".to_owned(), "connection".to_owned()));
    peer.send(&Req::new(4, method::ECHO, ("hi",)).bytes()).await;
    assert_eq!(peer.reply::<String>(4).await, "hi");
    // Lowered below what a call weighs, the limit can never let it in, and says so.
    harness.handle.set_max_concurrent_calls(Some(3)).unwrap();
    harness.probe.open_gate();
    peer.next().await;
    peer.next().await;
    harness.until_flushed(0).await;
    gate(&mut peer, 5).await;
    let (status, _) = peer.answer(5).await;
    let expected = pairs(&[("limit", "global"), ("max_in_flight", "3"), ("weight", "4")]);
    assert_eq!(figures(&status), ("CONCURRENCY_NEVER_PASSES".to_owned(), expected));
    assert_eq!((status.code(), status.retry_delay()), (StatusCode::FailedPrecondition, None));
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_charges_what_a_call_weighs() {
    let harness = Harness::with(|builder| {
        let builder = builder.method_limits(path("echo"), MethodLimits::new().weight(3));
        builder.rate(Rate::per_second(1.0).burst(7))
    });
    let client = harness.client();
    let echo = || client.call::<_, String>(method::ECHO, ("hi".to_owned(),));
    echo().await.unwrap();
    echo().await.unwrap();
    let error = echo().await.unwrap_err();
    assert!(error.retry_delay().is_some_and(|delay| delay.as_millis() >= 2_000), "one of three tokens is left");
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_calls_in_flight_are_charged_by_the_length_that_requests_claim() {
    let harness = Harness::with(|builder| builder.max_message(1_000).max_bytes_in_flight(1_500));
    let harness = harness.plain("what is written is in flight until it was flushed");
    // The answer does not fit into the pipe, so the call is in flight until it is read.
    let mut peer = harness.peer_through(256);
    peer.shake_hands().await;
    let call = |id: u64, len: usize| {
        let request = Req::new(id, method::BYTES, ()).head(|head| head.codec = CodecId::BYTES);
        request.body("x".repeat(len)).bytes()
    };
    let held = |bytes| move |harness: &Harness| harness.snapshot().limits["bytes"].held == bytes;
    peer.send(&call(1, 900)).await;
    harness.until("its bytes are in flight", held(900)).await;
    peer.send(&call(2, 700)).await;
    peer.send(&call(3, 600)).await;
    harness.until("the small one passed", held(1_500)).await;
    assert_eq!((peer.answer(1).await.1.len(), harness.refused("bytes")), (900, 1));
    let (status, _) = peer.answer(2).await;
    let expected = pairs(&[("limit", "bytes"), ("max_bytes", "1500"), ("bytes", "900")]);
    assert_eq!(figures(&status), ("BODY_BUDGET".to_owned(), expected));
    assert_eq!((peer.answer(3).await.1.len(), harness.probe.started()), (600, 2));
    harness.until("the bytes are back", held(0)).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[test]
fn settings_that_name_what_is_not_there_or_cannot_be_are_refused_at_the_start() {
    let build = |change: fn(ServerBuilder) -> ServerBuilder| {
        change(Server::builder().service(crate::support::Probe::default())).build().map(drop).unwrap_err()
    };
    assert_eq!(
        build(|builder| builder.method_limits("test.Nothing/gate", MethodLimits::new())).to_string(),
        "there is no method named test.Nothing/gate"
    );
    assert_eq!(
        build(|builder| builder.service_limits("test.Nothing", MethodLimits::new())).to_string(),
        "there is no service named test.Nothing"
    );
    assert_eq!(
        build(|builder| builder.method_limits(path("gate"), MethodLimits::new().pool("none"))).to_string(),
        "there is no pool named none"
    );
    let zero = build(|builder| builder.method_limits(path("gate"), MethodLimits::new().max_concurrent_calls(0)));
    assert!(matches!(zero, BuildError::Concurrency { .. }), "{zero}");
    let taken = build(|builder| builder.pool("global", 1));
    assert_eq!(taken.to_string(), "a limit named global is there already");
    assert!(matches!(build(|builder| builder.pool("a", 1).pool("a", 2)), BuildError::NameTaken { .. }));
    let weight = build(|builder| builder.method_limits(path("gate"), MethodLimits::new().weight(0)));
    assert_eq!(weight.to_string(), "the weight of a method must not be zero");
    let heavy =
        build(|builder| builder.method_limits(path("gate"), MethodLimits::new().weight(9).pool("a")).pool("a", 8));
    assert_eq!(heavy.to_string(), "the weight of a method (9) must not exceed a (8)");
    let weighs = |builder: ServerBuilder| builder.method_limits(path("gate"), MethodLimits::new().weight(9));
    let rate = Rate::per_second(100.0).burst(8);
    let too_heavy_for = [
        ("global rate", weighs(Server::builder()).rate(rate)),
        ("connection rate", weighs(Server::builder()).rate_per_connection(rate)),
        ("tenant rate", {
            let each = TenantLimits::new().rate(Rate::per_second(100.0).burst(9));
            let tenants = Tenants::by_metadata("tenant", each).tenant("acme", TenantLimits::new().rate(rate));
            weighs(Server::builder()).tenants(tenants)
        }),
        ("the floor of an adaptive limit", weighs(Server::builder()).adaptive_limit(Adaptive::gradient2().floor(8))),
    ];
    for (other, builder) in too_heavy_for {
        let error = builder.service(crate::support::Probe::default()).build().map(drop).unwrap_err();
        assert_eq!(error.to_string(), format!("the weight of a method (9) must not exceed {other} (8)"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_said_later_of_a_method_replaces_what_it_sets_and_leaves_the_rest() {
    let harness = Harness::with(|builder| {
        let first = MethodLimits::new().max_concurrent_calls(1).pool("gates");
        let builder = builder.pool("gates", 8).method_limits(path("gate"), first);
        let services = MethodLimits::new().max_concurrent_calls(5).weight(2);
        let builder = builder.service_limits("test.Probe", services);
        let builder = builder.service_limits("test.Probe", MethodLimits::new().max_concurrent_calls(3));
        builder.method_limits(path("gate"), MethodLimits::new().weight(4))
    });
    let limits = harness.snapshot().limits;
    assert_eq!([&*path("gate"), &*path("echo")].map(|name| limits[name].max), [Some(1), Some(3)]);
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls.held, snapshot.limits["gates"].held), (4, 4), "it weighs as much as was said later");
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn light_calls_do_not_pass_a_heavy_one_that_waits_in_front_of_them() {
    let harness = Harness::with(|builder| {
        let heavy = MethodLimits::new().weight(4);
        builder.method_limits(path("echo"), heavy).max_concurrent_calls(4).wait_queue(WaitQueue::of(100))
    });
    let mut peer = harness.peer().await;
    for id in 1..=4 {
        peer.send(&Req::new(id, method::SLEEP, (10 * id,)).bytes()).await;
    }
    harness.until_held(4).await;
    peer.send(&Req::new(5, method::ECHO, ("heavy",)).bytes()).await;
    for id in 6..=20 {
        peer.send(&Req::new(id, method::SLEEP, (1_u64,)).bytes()).await;
    }
    harness.until("they wait", |harness| harness.snapshot().calls_waiting == 16).await;
    let mut order = Vec::new();
    for _ in 1..=20 {
        let Got::Response { id, code: StatusCode::Ok, .. } = peer.next().await else { panic!("it was let in") };
        order.push(id.sequence());
    }
    assert_eq!(order[..5], [1, 2, 3, 4, 5]);
    peer.part().await;
    harness.assert_idle().await;
}

#[sluicegate::service(max_concurrent_calls = 2, pool = "all")]
trait Limited {
    async fn by_default(&self) -> Result<(), Status>;
    #[rpc(max_concurrent_calls = 1, weight = 3)]
    async fn by_itself(&self) -> Result<(), Status>;
    #[rpc(max_concurrent_calls = 1)]
    async fn by_configuration(&self) -> Result<(), Status>;
}

struct Forever;

impl Limited for Forever {
    async fn by_default(&self) -> Result<(), Status> {
        std::future::pending().await
    }

    async fn by_itself(&self) -> Result<(), Status> {
        std::future::pending().await
    }

    async fn by_configuration(&self) -> Result<(), Status> {
        std::future::pending().await
    }
}

/// How many calls run at once, started one after the other, until one is refused; and by which limit.
async fn until_refused(client: &Client, name: &'static str) -> (usize, String) {
    let mut running = Vec::new();
    loop {
        let call = client.call::<_, ()>(sluicegate::client::Method::new("Limited", name), ());
        let mut call = tokio::spawn(call.into_future());
        match tokio::time::timeout(std::time::Duration::from_millis(5), &mut call).await {
            Err(_) => running.push(call),
            Ok(ended) => {
                running.iter().for_each(|call| call.abort());
                let Err(CallError::Status(status)) = ended.unwrap() else { panic!("it waits for ever") };
                return (running.len(), status.error_info().unwrap().metadata.get_str("limit").unwrap().to_owned());
            }
        }
    }
}

/// As Dubbo's `executes` has it, which others read as a sum.
#[tokio::test(start_paused = true)]
async fn a_number_for_a_service_is_the_default_of_each_of_its_methods_and_the_most_specific_counts() {
    let server = Server::builder()
        .service(LimitedServer::new(Forever))
        .pool("all", 100)
        .service_limits("Limited", MethodLimits::new().max_concurrent_calls(3))
        .method_limits("Limited/by_configuration", MethodLimits::new().max_concurrent_calls(4))
        .build()
        .unwrap();
    let memory = sluicegate::testing::InMemory::new(server);
    let client = memory.client();
    for (name, max) in [("by_default", 3), ("by_itself", 1), ("by_configuration", 4), ("by_default", 3)] {
        assert_eq!(until_refused(&client, name).await, (max, format!("Limited/{name}")));
    }
    drop(client);
    memory.assert_idle().await;
}
