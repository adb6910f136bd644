//! Panics wherever user code runs: each costs its call, or its connection, and nothing else.

use std::{
    panic::{self, AssertUnwindSafe, panic_any},
    pin::Pin,
    task::{self, Poll},
    thread,
    time::Duration,
};

use futures::{FutureExt, future::join_all, stream};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sluicegate::{
    CallError, CallId, Client, ConnectionInfo, Context, Executed, Status, StatusCode,
    client::{Coded, Method},
    server::{Call, CallInfo, Decision, Handler, MethodOptions, Outbound, Pipeline, Service, ServiceMethods},
};

use crate::support::{
    self, Got, Harness, RawClient, Req, assert_idle_soon,
    feed::{FeedClient, FeedServer, Fickle, named},
    method,
    probe::{PANIC_TEXT, Unencodable, silence_wanted_panics},
    scripted::scripted,
    shims::times,
    until_client_idle, within,
};

/// One place in which user code panics.
struct Mine {
    name: &'static str,
    method: Method,
    /// Metadata that tells a handler to panic.
    handler: Option<&'static str>,
    /// Whether the call is lost: not if its answer is made, or has left, when it happens.
    costs_the_call: bool,
}

const fn mine(name: &'static str) -> Mine {
    Mine { name, method: Method::new("test.Minefield", name), handler: None, costs_the_call: true }
}

const fn of_probe(method: Method) -> Mine {
    Mine { name: "a method of the probe", method, handler: None, costs_the_call: true }
}

const fn in_handler(place: &'static str, costs_the_call: bool) -> Mine {
    Mine { name: place, method: Method::new("test.Minefield", "quiet"), handler: Some(place), costs_the_call }
}

/// Every place. In a service: making the future, its polls, its drop, what it returns, what it takes.
const MINES: [Mine; 29] = [
    of_probe(method::PANIC_AT_ONCE),
    of_probe(method::PANIC_AT_ONCE_SPAWNED),
    of_probe(method::PANIC_INLINE),
    of_probe(method::PANIC_INLINE_SPAWNED),
    of_probe(method::PANIC_LATER),
    of_probe(method::PANIC_LATER_SPAWNED),
    of_probe(method::PANIC_IN_DROP),
    of_probe(method::PANIC_IN_DROP_SPAWNED),
    of_probe(method::PANIC_IN_SERIALIZE),
    of_probe(method::PANIC_IN_SERIALIZE_SPAWNED),
    mine("arguments"),
    mine("arguments_spawned"),
    mine("arguments_blocking"),
    mine("argument_drop"),
    mine("argument_drop_spawned"),
    mine("argument_drop_blocking"),
    mine("reply_drop"),
    mine("reply_drop_spawned"),
    mine("reply_drop_blocking"),
    mine("payload"),
    mine("payload_spawned"),
    mine("payload_blocking"),
    mine("reply_blocking"),
    mine("outbound"),
    Mine { costs_the_call: false, ..mine("written") },
    in_handler("inbound", true),
    in_handler("wait", true),
    in_handler("wait_payload", true),
    in_handler("wait_drop", false),
];

/// Panics when it is decoded.
struct Undecodable;

impl<'de> Deserialize<'de> for Undecodable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u8::deserialize(deserializer)?;
        assert!(value == 255, "{PANIC_TEXT}");
        Ok(Self)
    }
}

/// Panics when it is dropped.
struct Loaded;

impl<'de> Deserialize<'de> for Loaded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u8::deserialize(deserializer).map(|_| Self)
    }
}

impl Serialize for Loaded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(7)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        panic!("{PANIC_TEXT}");
    }
}

/// What a panic throws: it panics when it is dropped, with another of its kind.
struct Endless;

impl Drop for Endless {
    fn drop(&mut self) {
        panic_any(Self);
    }
}

fn throw_endless(nothing: u8) -> u8 {
    if nothing == 7 { panic_any(Endless) } else { nothing }
}

/// Waits for ever, and panics when it is dropped.
struct Fused(#[allow(dead_code, reason = "goes off when dropped")] Loaded);

impl Future for Fused {
    type Output = Result<u8, Status>;

    fn poll(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

struct Minefield;

impl Service for Minefield {
    fn name(&self) -> &str {
        "test.Minefield"
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        for (suffix, spawn) in [("", false), ("_spawned", true)] {
            let options = MethodOptions::default().spawn(spawn);
            let name = |name| format!("{name}{suffix}");
            methods.unary(&name("arguments"), options, |_: &Context, (_,): (Undecodable,)| async { Ok(7_u8) });
            methods.unary(&name("argument_drop"), options, |_: &Context, (loaded,): (Loaded,)| async move {
                drop(loaded);
                Ok(7_u8)
            });
            methods.unary(&name("reply_drop"), options, |_: &Context, (_,): (u8,)| async { Ok(Loaded) });
            methods.unary(&name("payload"), options, |_: &Context, (n,): (u8,)| async move { Ok(throw_endless(n)) });
            methods.unary(&name("fused"), options, |_: &Context, (_,): (u8,)| Fused(Loaded));
        }
        let options = MethodOptions::default();
        methods.blocking("arguments_blocking", options, |_, (_,): (Undecodable,)| Ok(7_u8));
        methods.blocking("argument_drop_blocking", options, |_, (_,): (Loaded,)| Ok(7_u8));
        methods.blocking("reply_drop_blocking", options, |_, (_,): (u8,)| Ok(Loaded));
        methods.blocking("payload_blocking", options, |_, (n,): (u8,)| Ok(throw_endless(n)));
        methods.blocking("reply_blocking", options, |_, (_,): (u8,)| Ok(Unencodable::Panics));
        methods.blocking("quiet_blocking", options, |_, (n,): (u8,)| Ok(n));
        for name in ["quiet", "outbound", "written"] {
            methods.unary(name, options, |_: &Context, (n,): (u8,)| async move { Ok(n) });
        }
    }
}

/// A handler that panics when a call tells it to.
struct Minelayer;

impl Handler for Minelayer {
    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        match call.metadata().get_str("mine") {
            Some("inbound") => panic!("{PANIC_TEXT}"),
            Some("wait") => Decision::Wait(Box::pin(async { panic!("{PANIC_TEXT}") })),
            Some("wait_payload") => Decision::Wait(Box::pin(async { panic_any(Endless) })),
            Some("wait_drop") => Decision::Wait(Box::pin(Passing(Loaded))),
            _ => Decision::Pass,
        }
    }

    fn outbound(&mut self, call: &CallInfo<'_>, _: &mut Outbound<'_>) {
        assert!(!is_of(call, "outbound"), "{PANIC_TEXT}");
    }

    fn written(&mut self, call: &CallInfo<'_>) {
        assert!(!is_of(call, "written"), "{PANIC_TEXT}");
    }
}

/// Lets the call pass, and panics when it is dropped.
struct Passing(#[allow(dead_code, reason = "goes off when dropped")] Loaded);

impl Future for Passing {
    type Output = Decision;

    fn poll(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<Decision> {
        Poll::Ready(Decision::Pass)
    }
}

fn is_of(call: &CallInfo<'_>, name: &str) -> bool {
    call.method.is_some_and(|method| method.path().ends_with(name))
}

fn mined() -> Harness {
    silence_wanted_panics();
    Harness::with(|builder| {
        builder.service(Minefield).max_concurrent_calls(256).max_blocking_calls(64).pipeline(|pipeline, _| {
            pipeline.add_first("minelayer", Minelayer);
        })
    })
}

async fn step_on(client: &Client, mine: &Mine) -> Result<(), CallError> {
    if mine.method == Method::new("test.Minefield", mine.name) || mine.handler.is_some() {
        let call = client.call::<_, u8>(mine.method, (7_u8,));
        return match mine.handler {
            Some(place) => call.metadata("mine", place).await.map(drop),
            None => call.await.map(drop),
        };
    }
    client.call::<_, String>(mine.method, ()).await.map(drop)
}

fn assert_cost(mine: &Mine, outcome: Result<(), CallError>) {
    let place = format!("{} {}", mine.method, mine.name);
    match outcome {
        Ok(()) => assert!(!mine.costs_the_call, "{place}"),
        Err(error) => {
            assert!(mine.costs_the_call && error.code() == StatusCode::Internal, "{place}: {error:?}");
            assert!(!format!("{error:?}").contains(PANIC_TEXT), "{place} told its text");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_place_costs_its_call_is_counted_once_and_gives_the_permit_back() {
    let harness = mined();
    let client = harness.client();
    for (before, mine) in MINES.iter().enumerate() {
        assert_cost(mine, step_on(&client, mine).await);
        // A response has left before anybody is told so.
        harness.until("it is counted", |harness| harness.snapshot().panics == before as u64 + 1).await;
        harness.until_flushed(0).await;
        support::no_call_runs(&harness.handle);
        assert_eq!(client.call::<_, u8>(Method::new("test.Minefield", "quiet"), (9_u8,)).await.unwrap(), 9);
    }
    assert_eq!(harness.network.attempts(), 1);
    drop(client);
    harness.assert_idle().await;
}

/// A call that nothing is wrong with.
async fn good(client: &Client, n: usize) {
    match n % 4 {
        0 => {
            let method = Method::new("test.Minefield", "quiet_blocking");
            assert_eq!(client.call::<_, u8>(method, (n as u8,)).await.unwrap(), n as u8);
        }
        1 => assert_eq!(client.call::<_, String>(method::ECHO_SPAWNED, (n.to_string(),)).await.unwrap(), n.to_string()),
        2 => assert_eq!(client.call::<_, u64>(method::NONCE, (n as u64, 2_u32)).await.unwrap(), n as u64),
        _ => assert_eq!(client.call::<_, String>(method::ECHO, (n.to_string(),)).await.unwrap(), n.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_panics_among_many_good_calls_harm_none_of_these() {
    const CALLERS: usize = 40;
    let calls = times(2_800) as usize;
    let harness = mined();
    let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
    let address = bound.local_addr();
    let serving = tokio::spawn(bound.serve());
    let clients: Vec<_> = (0..4).map(|_| Client::new(address)).collect();
    let callers = (0..CALLERS).map(|caller| {
        let client = clients[caller % clients.len()].clone();
        tokio::spawn(async move {
            for n in 0..calls {
                if n % 10 == caller % 10 {
                    let mine = &MINES[(caller * calls + n) / 10 % MINES.len()];
                    assert_cost(mine, step_on(&client, mine).await);
                } else {
                    good(&client, caller * calls + n).await;
                }
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    assert_eq!(harness.snapshot().connections, 4);
    drop(clients);
    within(async { harness.handle.drain().await }).await;
    serving.await.unwrap();
    assert_idle_soon(&harness.handle).await;
    let snapshot = harness.snapshot();
    // One call in ten, and a refused one would be missing.
    let panics = (CALLERS * calls / 10) as u64;
    assert_eq!((snapshot.panics, snapshot.calls.acquired), (panics, snapshot.calls.released));
}

#[tokio::test(start_paused = true)]
async fn futures_that_panic_one_after_the_other_when_they_are_dropped_end_one_by_one() {
    silence_wanted_panics();
    for suffix in ["fused", "fused_spawned"] {
        let method = Method::new("test.Minefield", suffix);
        let calls = || (1..=20_u64).flat_map(|id| Req::new(id, method, (7_u8,)).bytes()).collect::<Vec<_>>();
        // The peer goes away.
        let harness = Harness::with(|builder| builder.service(Minefield));
        let mut peer = harness.peer().await;
        peer.send(&calls()).await;
        harness.until("they wait", |harness| harness.snapshot().calls_parked == 20).await;
        drop(peer);
        harness.assert_idle().await;
        assert_eq!(harness.snapshot().panics, 20, "{suffix}");

        // Nobody serves the connection any more.
        let mut peer = harness.peer().await;
        peer.send(&calls()).await;
        harness.until("they wait", |harness| harness.snapshot().calls_parked == 20).await;
        harness.network.cut();
        harness.assert_idle().await;
    }
}

/// Panics where a connection begins or ends.
struct AtTheEdge(Edge);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    Initializer,
    Connected,
    Closed,
    Drop,
}

impl AtTheEdge {
    fn panic_at(&self, edge: Edge) {
        assert!(self.0 != edge, "{PANIC_TEXT}");
    }
}

impl Handler for AtTheEdge {
    fn connected(&mut self, _: &ConnectionInfo) {
        self.panic_at(Edge::Connected);
    }

    fn closed(&mut self) {
        self.panic_at(Edge::Closed);
    }
}

impl Drop for AtTheEdge {
    fn drop(&mut self) {
        self.panic_at(Edge::Drop);
    }
}

fn add_three(pipeline: &mut Pipeline, edge: Edge) {
    for name in ["one", "two", "three"] {
        pipeline.add_last(name, AtTheEdge(edge));
    }
    assert!(edge != Edge::Initializer, "{PANIC_TEXT}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_where_a_connection_begins_or_ends_costs_that_connection_at_most() {
    silence_wanted_panics();
    for (edge, panics) in [(Edge::Initializer, 1), (Edge::Connected, 1), (Edge::Closed, 3), (Edge::Drop, 3)] {
        // The first connection is mined.
        let harness = Harness::with(|builder| {
            builder.pipeline(move |pipeline, connection| {
                if connection.id.to_string().ends_with('1') {
                    add_three(pipeline, edge);
                }
            })
        });
        let mut mined = harness.silent_peer();
        mined.send(&[support::raw::hello(), Req::new(1, method::ECHO, ("hi",)).bytes()].concat()).await;
        match edge {
            Edge::Initializer => {
                let (last, _, message) = mined.go_away().await;
                assert!(last == 0 && !message.contains(PANIC_TEXT), "{message}");
                drop(mined);
            }
            _ => serve_one(mined).await,
        }
        let mut other = harness.peer().await;
        other.send(&Req::new(1, method::ECHO, ("hi",)).bytes()).await;
        assert_eq!(other.reply::<String>(1).await, "hi");
        other.part().await;
        harness.assert_idle().await;
        assert_eq!(harness.snapshot().panics, panics, "{edge:?}");
    }
}

async fn serve_one(mut peer: RawClient) {
    let Got::Hello(_) = peer.next().await else { panic!("a HELLO comes first") };
    assert_eq!(peer.reply::<String>(1).await, "hi");
    peer.part().await;
}

/// A caller's own type that panics.
struct Careless;

impl Serialize for Careless {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeTuple;
        let mut tuple = serializer.serialize_tuple(2)?;
        tuple.serialize_element(&"half of a request")?;
        panic!("{PANIC_TEXT}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_callers_own_encoding_reaches_that_caller_only() {
    silence_wanted_panics();
    let harness = Harness::new();
    let client = harness.client();
    for n in 0..1_000_u64 {
        let careless = async {
            if n % 2 == 0 {
                client.call::<_, String>(method::ECHO, (Careless,)).await.map(drop)
            } else {
                client.call::<_, Undecodable>(method::NONCE, (n, 0_u32)).await.map(drop)
            }
        };
        let sibling = client.call::<_, u64>(method::NONCE, (n, 1_u32));
        let (careless, sibling) = futures::join!(AssertUnwindSafe(careless).catch_unwind(), sibling);
        assert!(careless.is_err());
        assert_eq!(sibling.unwrap(), n);
    }
    let snapshot = harness.snapshot();
    assert_eq!((harness.network.attempts(), snapshot.protocol_errors, snapshot.panics), (1, 0, 0));
    // What could not be encoded was never sent.
    assert_eq!(snapshot.calls.acquired, 1_500);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_callers_own_item_reaches_that_caller_only() {
    silence_wanted_panics();
    let server = FeedServer::new();
    let client = server.client();
    let feed: FeedClient = client.service();
    let sum = || client.client_stream::<_, Fickle, u64, Coded, Coded>(named("sum"), (7_u64,));
    for _ in 0..times(800) {
        // The sink goes on: nothing is left of what it had of that item.
        let (mut items, reply) = sum().open().await.unwrap();
        items.send(Fickle(false)).await.unwrap();
        assert!(AssertUnwindSafe(items.send(Fickle(true))).catch_unwind().await.is_err());
        items.send(Fickle(false)).await.unwrap();
        items.end();
        assert_eq!(within(reply).await.unwrap(), 7);
        // All at once: the call is given up, with what went before.
        let all = sum().send_all(stream::iter([Fickle(false), Fickle(true)]));
        assert!(AssertUnwindSafe(all).catch_unwind().await.is_err());
        // What it is sent.
        let mut items = client.server_stream::<_, Undecodable, Coded>(named("count"), (10_u64,));
        assert!(AssertUnwindSafe(items.message()).catch_unwind().await.is_err());
        drop(items);
        assert_eq!(feed.hello("you".to_owned()).await.unwrap(), "hello, you");
    }
    until_client_idle(&client).await;
    assert_eq!((client.snapshot().connects, client.snapshot().protocol_errors), (1, 0));
    drop((feed, client));
    server.assert_idle().await;
    assert_eq!((server.snapshot().panics, server.snapshot().protocol_errors), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panicked_never_gets_the_answer_of_another() {
    silence_wanted_panics();
    let (builder, mut servers) = scripted(support::harness::PIPE);
    let client = builder.build();
    let mut careless = client.call::<_, Undecodable>(method::NONCE, (1_u64, 0_u32));
    let script = async {
        let mut server = servers.recv().await.unwrap();
        server.shake_hands(1).await;
        let (id, _) = server.request().await;
        server.reply(id, 1_u64).await;
        server
    };
    let (panicked, mut server) = futures::join!(AssertUnwindSafe(&mut careless).catch_unwind(), script);
    assert!(panicked.is_err());
    // The next call has its slot.
    let next = tokio::spawn(client.call::<_, u64>(method::NONCE, (2_u64, 0_u32)));
    let (id, _) = server.request().await;
    assert_eq!(id.slot(), CallId::new(1, 0).slot());
    let again = thread::scope(|scope| {
        scope.spawn(|| panic::catch_unwind(AssertUnwindSafe(|| (&mut careless).now_or_never()))).join().unwrap()
    });
    assert!(again.is_err(), "it has ended");
    drop(careless);
    server.reply(id, 2_u64).await;
    assert_eq!(within(next).await.unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waited_for_room_and_panics_passes_it_on() {
    silence_wanted_panics();
    let harness = Harness::with(|builder| builder.max_concurrent_calls_per_connection(1));
    let client = harness.client();
    client.call::<_, String>(method::ECHO, ("hi",)).await.unwrap();
    let first = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    harness.until_running(1).await;
    let careless: Vec<_> = (0..10)
        .map(|_| {
            let call = client.call::<_, String>(method::ECHO, (Careless,));
            tokio::spawn(AssertUnwindSafe(call).catch_unwind())
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let last = tokio::spawn(client.call::<_, u64>(method::NONCE, (2_u64, 0_u32)));
    tokio::time::sleep(Duration::from_millis(1)).await;
    harness.probe.open_gate();
    assert_eq!(within(first).await.unwrap().unwrap(), 1);
    for call in careless {
        assert!(within(call).await.unwrap().is_err());
    }
    assert_eq!(within(last).await.unwrap().unwrap(), 2);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_panicked_call_says_whether_it_was_executed() {
    let harness = mined();
    let client = harness.client();
    for (place, executed) in [("inbound", Executed::Never), ("wait", Executed::Never)] {
        let quiet = Method::new("test.Minefield", "quiet");
        let error = client.call::<_, u8>(quiet, (7_u8,)).metadata("mine", place).await.unwrap_err();
        assert_eq!(error.executed(), executed, "{place}");
    }
    for (name, executed) in [("payload", Executed::Maybe), ("outbound", Executed::Finished)] {
        let error = client.call::<_, u8>(Method::new("test.Minefield", name), (7_u8,)).await.unwrap_err();
        assert_eq!(error.executed(), executed, "{name}");
    }
    drop(client);
    harness.assert_idle().await;
}
