//! A waker is its owner's code. Its drop may do what its owner may do anywhere, with the same connection, too.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use futures::{FutureExt, SinkExt, future::BoxFuture};
use sluicegate::{
    CallError, Client,
    client::{Coded, ItemSink, Reply},
};
use tokio::runtime;

use crate::support::{RawServer, method, scripted::scripted, until_client_idle, within};

type Call = BoxFuture<'static, Result<u32, CallError>>;

/// A task that is kept by its wakers alone, as hand-made executors have them.
struct Task {
    _kept: Mutex<Call>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

fn kept_by_wakers(task: Call) -> Waker {
    Waker::from(Arc::new(Task { _kept: Mutex::new(task) }))
}

fn is_pending<F: Future + Unpin>(future: &mut F, waker: &Waker) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(waker)).is_pending()
}

/// Runs a test on a thread of its own with all that is in it, for it never comes back from a lock that it has already.
fn comes_back<T: Future<Output = ()>>(test: impl FnOnce() -> T + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
        sender.send(())
    });
    receiver.recv_timeout(Duration::from_secs(60)).expect("it waits for its own lock, or has panicked");
}

/// A client of a server that has greeted it, takes so many calls at once, and answers none.
async fn greeted(calls_at_once: u32) -> (Client, RawServer) {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let first = tokio::spawn(call(&client));
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(calls_at_once).await;
    let (id, _) = server.request().await;
    server.reply(id, 0_u32).await;
    within(first).await.unwrap().unwrap();
    (client, server)
}

fn call(client: &Client) -> Call {
    client.call::<_, u32>(method::ECHO, (1_u32,)).into_future().boxed()
}

/// A call that is out, for a task to have in it.
fn sent(client: &Client) -> Call {
    let mut sent = call(client);
    assert!(is_pending(&mut sent, Waker::noop()));
    sent
}

#[test]
fn the_drop_of_a_waker_may_drop_a_call_whether_its_place_is_taken_or_its_call_dropped() {
    comes_back(|| async {
        for replaced in [true, false] {
            for calls_at_once in [1, 10] {
                let (client, server) = greeted(calls_at_once).await;
                // Where that is all there is room for, the other one waits for room, and else for its answer.
                let (parked, mut waits) = (sent(&client), call(&client));
                assert!(is_pending(&mut waits, &kept_by_wakers(parked)));
                // The place of the task may have gone to this one meanwhile.
                assert!(!replaced || is_pending(&mut waits, Waker::noop()));
                drop(waits);
                until_client_idle(&client).await;
                drop((client, server));
            }
        }
    });
}

#[test]
fn the_drop_of_a_waker_of_a_stream_may_drop_a_call() {
    comes_back(|| async {
        for replaced in [true, false] {
            let (client, mut server) = greeted(10).await;
            let opening = client.client_stream::<_, u64, u64, Coded, Coded>(method::GATE, (1_u64,)).open();
            let (mut sink, mut reply): (ItemSink<u64, Coded>, Reply<u64, Coded>) = within(opening).await.unwrap();
            server.request().await;
            let (one, other) = (sent(&client), sent(&client));
            // Until the window is used up.
            while sink.feed(1).now_or_never().is_some() {}
            assert!(is_pending(&mut sink.feed(1), &kept_by_wakers(one)));
            assert!(is_pending(&mut reply, &kept_by_wakers(other)));
            assert!(!replaced || is_pending(&mut sink.feed(1), Waker::noop()) && is_pending(&mut reply, Waker::noop()));
            drop((sink, reply));
            until_client_idle(&client).await;
            drop((client, server));
        }
    });
}
