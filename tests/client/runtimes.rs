//! Clients outlive the runtimes on which their connections were.

use std::{
    future::Future,
    pin::Pin,
    sync::mpsc,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use sluicegate::{CallError, Executed, client::Call};
use tokio::{runtime::Builder, runtime::Runtime, sync::mpsc::UnboundedReceiver};

use crate::support::{RawServer, method, scripted::scripted, until_client_idle, within};

/// Nobody who waits for a part of it comes back in a test.
const FOR_EVER: Duration = Duration::from_secs(10_000 * 3_600);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// Serves one call on the next connection.
async fn serve_one(servers: &mut UnboundedReceiver<RawServer>) -> RawServer {
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    server.reply(id, 7_u64).await;
    server
}

#[test]
fn a_runtime_that_ends_takes_its_connections_and_not_the_client_however_far_they_had_come() {
    // Before the attempt is polled, while it is under way, before HELLO, behind it, behind an answer.
    for stage in 0..5 {
        let (builder, mut servers) = scripted(64 * 1024);
        let client = builder.backoff(FOR_EVER, FOR_EVER).build();
        let first = runtime();
        let kept = first.block_on(async {
            let call = client.call::<_, u64>(method::GATE, (1_u64,));
            match stage {
                0 => {
                    let mut call = call;
                    assert!(futures::poll!(&mut call).is_pending());
                    None
                }
                1 | 2 => {
                    let _calling = tokio::spawn(call);
                    if stage == 2 { servers.recv().await } else { None }
                }
                3 => {
                    let _calling = tokio::spawn(call);
                    let mut server = servers.recv().await.unwrap();
                    server.shake_hands(64).await;
                    server.request().await;
                    Some(server)
                }
                _ => {
                    let calling = tokio::spawn(call);
                    let server = serve_one(&mut servers).await;
                    assert_eq!(calling.await.unwrap().unwrap(), 7);
                    Some(server)
                }
            }
        });
        drop(first);
        drop(kept);
        while servers.try_recv().is_ok() {}
        runtime().block_on(async {
            let calling = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
            let server = within(serve_one(&mut servers)).await;
            assert_eq!(within(calling).await.unwrap().unwrap(), 7, "stage {stage}");
            until_client_idle(&client).await;
            drop(server);
        });
    }
}

/// Polls its call when it is dropped, as the last thing that its runtime does.
struct CallsAtTheEnd {
    call: Call<(u64,), u64>,
    told: mpsc::Sender<Poll<Result<u64, CallError>>>,
}

impl Future for CallsAtTheEnd {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for CallsAtTheEnd {
    fn drop(&mut self) {
        let polled = Pin::new(&mut self.call).poll(&mut Context::from_waker(Waker::noop()));
        let _ = self.told.send(polled);
    }
}

#[test]
fn a_call_on_a_runtime_that_shuts_down_fails_at_once_whether_it_waits_for_a_server_or_not() {
    for waits in [false, true] {
        let (told, polled) = mpsc::channel();
        thread::spawn(move || {
            let (builder, _servers) = scripted(64 * 1024);
            let client = builder.build();
            let runtime = runtime();
            let call = client.call(method::GATE, (1_u64,)).wait_for_ready(waits);
            runtime.block_on(async {
                tokio::spawn(CallsAtTheEnd { call, told });
                tokio::task::yield_now().await;
            });
            drop(runtime);
            assert!(client.snapshot().is_idle(), "{:?}", client.snapshot());
        });
        let Poll::Ready(Err(error)) = polled.recv_timeout(Duration::from_secs(30)).expect("it does not hang") else {
            panic!("there is nobody to answer")
        };
        assert!(matches!(error, CallError::NoRuntime), "{error:?}");
        assert_eq!(error.executed(), Executed::Never);
    }
}
