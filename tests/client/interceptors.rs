//! Interceptors of a client: what they see and change, and that each is told of every end once.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, StreamExt, poll, stream};
use serde::{Serialize, Serializer, ser::Error as _};
use sluicegate::{
    CallError, Executed, Status, StatusCode,
    client::{Coded, Finished, Interceptor, Outcome, Outgoing},
};

use crate::support::{
    Harness,
    feed::{FeedClient, FeedServer, named},
    method,
    probe::{PANIC_TEXT, Seen, silence_wanted_panics},
    shims::times_in,
    until_client_idle,
};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Notes what it sees, says who calls, and lets calls of `fail` not pass.
struct Noting(&'static str, Log);

impl Interceptor for Noting {
    fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status> {
        self.1.0.lock().unwrap().push(format!("{} before {}", self.0, call.method()));
        if call.method() == method::FAIL {
            return Err(Status::permission_denied("not this one"));
        }
        call.insert("tenant", self.0).map_err(|error| Status::internal(error.to_string()))?;
        call.limit_timeout(Duration::from_millis(500));
        Ok(())
    }

    fn after(&self, call: &Finished<'_>) {
        let outcome = match call.outcome {
            Outcome::Reply => "OK",
            Outcome::Error(error) => error.code().name(),
            _ => "dropped",
        };
        let what = format!("{} after {outcome} {}", self.0, call.elapsed.as_millis());
        self.1.0.lock().unwrap().push(what);
    }
}

#[tokio::test(start_paused = true)]
async fn interceptors_see_calls_first_to_last_and_ends_last_to_first() {
    let (harness, log) = (Harness::new(), Log::default());
    let builder = harness.client_builder();
    let client = builder.interceptor(Noting("a", log.clone())).interceptor(Noting("b", log.clone())).build();
    let seen: Seen = client.call(method::CONTEXT, ()).await.unwrap();
    assert_eq!((seen.0, seen.2.as_deref()), (Some(500), Some("a")), "time and metadata are theirs, the first first");
    let whole = ["a before test.Probe/context", "b before test.Probe/context", "b after OK 0", "a after OK 0"];
    assert_eq!(log.take(), whole);
    let response = client.call::<_, Seen>(method::CONTEXT, ()).timeout(Duration::from_millis(20)).response().await;
    assert_eq!(response.unwrap().value.0, Some(20), "a deadline is never put off");
    assert_eq!(log.take(), whole);
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_an_interceptor_refuses_is_not_sent() {
    let (harness, log) = (Harness::new(), Log::default());
    let client = harness.client_builder().interceptor(Noting("a", log.clone())).build();
    let error = client.call::<_, ()>(method::FAIL, ()).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::PermissionDenied, Executed::Never));
    assert_eq!(log.take(), ["a before test.Probe/fail", "a after PERMISSION_DENIED 0"]);
    assert_eq!(harness.network.attempts(), 0);
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn an_end_is_told_once_however_the_call_ends() {
    let (harness, log) = (Harness::new(), Log::default());
    let client = harness.client_builder().interceptor(Noting("a", log.clone())).build();
    // The deadline that the interceptor sets.
    let late = client.call::<_, u64>(method::GATE, (1_u64,)).await.unwrap_err();
    assert_eq!(late.code(), StatusCode::DeadlineExceeded);
    assert_eq!(log.take()[1..], ["a after DEADLINE_EXCEEDED 500"]);
    // Given up while it runs, and before it was ever polled.
    let call = tokio::spawn(client.call::<_, u64>(method::GATE, (1_u64,)));
    harness.until_running(1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    drop(client.call::<_, u64>(method::GATE, (1_u64,)));
    let told = log.take();
    assert_eq!((told.len(), told[1].starts_with("a after dropped ")), (2, true), "{told:?}");
    // And with nobody to call.
    harness.network.set_down(true);
    harness.network.cut();
    let lost = client.call::<_, u64>(method::GATE, (1_u64,)).await.unwrap_err();
    // It may have been under way when the connection was cut.
    assert_ne!(lost.executed(), Executed::Finished);
    assert_eq!(log.take().len(), 2);
    drop(client);
    harness.assert_idle().await;
}

/// Cannot be encoded.
struct Odd;

impl Serialize for Odd {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom("odd"))
    }
}

#[tokio::test(start_paused = true)]
async fn calls_with_items_are_seen_from_their_arguments_to_their_end() {
    let (server, log) = (FeedServer::new(), Log::default());
    let client = server.client_builder().interceptor(Noting("a", log.clone())).build();
    let feed: FeedClient = client.service();
    let ends = |method: &str, end: &str| {
        assert_eq!(log.take(), [format!("a before test.Feed/{method}"), format!("a after {end} 0")], "{method}");
    };
    // From the server: to its end, to an error behind items, and refused.
    assert_eq!(feed.count(10).count().await, 10);
    ends("count", "OK");
    assert_eq!(feed.fail(3, false).filter(|item| std::future::ready(item.is_ok())).count().await, 3);
    assert_eq!(log.take().len(), 2);
    assert!(feed.refuse().message().await.is_err());
    assert_eq!(log.take().len(), 2);
    // From the client, and both ways.
    assert_eq!(feed.sum(1).send_all(stream::iter([1, 2])).await.unwrap(), 4);
    ends("sum", "OK");
    assert_eq!(feed.add(1).send_all(stream::iter([1, 2])).count().await, 2);
    ends("add", "OK");
    // Ended by an item that cannot be sent, which its caller is told.
    let sum = client.client_stream::<_, Odd, u64, Coded, Coded>(named("sum"), (1_u64,));
    assert!(matches!(sum.send_all(stream::iter([Odd])).await, Err(CallError::EncodeItem(_))));
    ends("sum", "INTERNAL");
    let add = client.both_ways::<_, Odd, u64, Coded, Coded>(named("add"), (1_u64,));
    let mut added = add.send_all(stream::iter([Odd]));
    assert!(matches!(added.next().await, Some(Err(CallError::EncodeItem(_)))));
    ends("add", "INTERNAL");
    drop(added);
    assert!(log.take().is_empty(), "it is told once");
    // Given up while there are items, while the reply is awaited, and before the call was made.
    let mut items = feed.count(u64::MAX).open().await.unwrap();
    items.message().await.unwrap();
    assert_eq!(log.take().len(), 1, "it goes on");
    drop(items);
    assert_eq!(log.take(), ["a after dropped 0"]);
    let (sink, reply) = feed.sum(0).open().await.unwrap();
    drop(reply);
    ends("sum", "dropped");
    drop((sink, feed.count(1)));
    assert!(log.take().is_empty());
    // The deadline that the interceptor sets.
    let mut items = feed.stall(0);
    assert_eq!(items.message().await.unwrap_err().code(), StatusCode::DeadlineExceeded);
    assert_eq!(log.take()[1..], ["a after DEADLINE_EXCEEDED 500"]);
    // One that does not pass is not sent.
    let mut refused = client.server_stream::<_, u64, Coded>(method::FAIL, ());
    let error = refused.message().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::PermissionDenied, Executed::Never));
    assert_eq!(log.take(), ["a before test.Probe/fail", "a after PERMISSION_DENIED 0"]);
    until_client_idle(&client).await;
    drop((items, refused, feed, client));
    server.assert_idle().await;
}

/// Panics where the call's metadata says so.
struct Touchy;

impl Touchy {
    fn touch(call: Option<&str>, place: &str) {
        assert!(call != Some(place), "{PANIC_TEXT}");
    }
}

impl Interceptor for Touchy {
    fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status> {
        Self::touch(call.metadata().get_str("mine"), "before");
        Ok(())
    }

    fn after(&self, call: &Finished<'_>) {
        Self::touch(call.metadata.get_str("mine"), "after");
    }
}

/// What a caller sees of a call that its interceptor makes panic at one place, and whether it did.
async fn panics(call: impl Future<Output = ()>) -> bool {
    AssertUnwindSafe(call).catch_unwind().await.is_err()
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_that_panics_costs_its_call_whatever_the_end_and_leaves_nothing() {
    silence_wanted_panics();
    let server = FeedServer::with(|builder| builder.max_concurrent_calls_per_connection(8));
    let client = server.client_builder().interceptor(Touchy).build();
    let feed: FeedClient = client.service();
    let unary = |method, place| client.call::<_, u64>(method, (7_u64, 1_u32)).metadata("mine", place);
    let rounds = times_in(1_000, 60);
    for n in 0..rounds {
        // Before it is sent, after its reply, after an error, at its deadline, and when it is dropped.
        assert!(panics(async { drop(unary(method::NONCE, "before").await) }).await);
        assert!(panics(async { drop(unary(method::NONCE, "after").await) }).await);
        assert!(panics(async { drop(unary(method::UNKNOWN, "after").await) }).await);
        let late = unary(method::NONCE, "after").timeout(Duration::ZERO);
        assert!(panics(async { drop(late.await) }).await);
        let mut dropped = unary(method::NONCE, "after");
        assert!(poll!(&mut dropped).is_pending());
        assert!(panics(async { drop(dropped) }).await);
        // With items: before it is sent, behind the last of them, after the reply, and given up.
        assert!(panics(async { drop(feed.count(3).metadata("mine", "before").message().await) }).await);
        assert!(panics(async { drop(feed.count(3).metadata("mine", "after").collect::<Vec<_>>().await) }).await);
        let sum = feed.sum(1).metadata("mine", "after").send_all(stream::iter([1, 2]));
        assert!(panics(async { drop(sum.await) }).await);
        let mut items = feed.count(u64::MAX).metadata("mine", "after").open().await.unwrap();
        items.message().await.unwrap();
        assert!(panics(async { drop(items) }).await);
        // And those beside them are served.
        assert_eq!(client.call::<_, u64>(method::NONCE, (n, 1_u32)).await.unwrap(), n);
        assert_eq!(feed.count(3).count().await, 3);
    }
    until_client_idle(&client).await;
    let snapshot = client.snapshot();
    assert_eq!((snapshot.connects, snapshot.protocol_errors), (1, 0), "{snapshot:?}");
    drop((feed, client));
    server.assert_idle().await;
    assert_eq!((server.snapshot().panics, server.snapshot().protocol_errors), (0, 0));
}
