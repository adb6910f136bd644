//! Calls of programs without a runtime, which wait.

use std::{sync::mpsc, thread, time::Duration};

use sluicegate::{Client, Context, Executed, Server, Status, StatusCode};
use tokio::sync::oneshot;

#[sluicegate::service]
trait Blocks {
    async fn greet(&self, name: String) -> Result<String, Status>;
    async fn never(&self);
    /// A method that blocks, and waits for a call of its own.
    #[rpc(blocking)]
    fn relay(&self, ctx: Context, name: String) -> Result<(String, bool), Status>;
}

struct Polite(Option<BlocksClient>);

impl Blocks for Polite {
    async fn greet(&self, name: String) -> Result<String, Status> {
        if name.is_empty() { Err(Status::invalid_argument("whom?")) } else { Ok(format!("hello {name}")) }
    }

    async fn never(&self) {
        std::future::pending().await
    }

    fn relay(&self, ctx: Context, name: String) -> Result<(String, bool), Status> {
        let inner = self.0.as_ref().expect("there is another");
        let late = inner.never().wait().unwrap_err();
        let inherited = late.code() == StatusCode::DeadlineExceeded && ctx.remaining().is_some();
        Ok((
            inner.greet(name).timeout(Duration::from_secs(60)).wait().or_else(|_| Ok::<_, Status>("late".into()))?,
            inherited,
        ))
    }
}

/// A server in a thread of its own, with a runtime of its own.
struct Served {
    address: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Served {
    fn start(inner: Option<BlocksClient>) -> Self {
        let ((told, address), (stop, stopped)) = (mpsc::channel(), oneshot::channel());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let server = Server::builder().service(BlocksServer::new(Polite(inner))).build().unwrap();
                let bound = server.bind("127.0.0.1:0").await.unwrap();
                told.send(bound.local_addr().to_string()).unwrap();
                let handle = bound.handle();
                bound.serve_until(async { drop(stopped.await) }).await;
                crate::support::assert_idle_soon(&handle).await;
            });
        });
        Self { address: address.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    fn client(&self) -> BlocksClient {
        Client::new(self.address.clone()).service()
    }

    fn stop(mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().expect("the server ended well");
    }
}

#[test]
fn a_program_without_a_runtime_waits_for_its_calls() {
    let served = Served::start(None);
    let client = served.client();
    assert_eq!(client.greet("Ada".to_owned()).wait().unwrap(), "hello Ada");
    assert_eq!(client.greet(String::new()).wait().unwrap_err().code(), StatusCode::InvalidArgument);
    assert_eq!(client.greet("Bob".to_owned()).wait_response().unwrap().value, "hello Bob");
    let late = client.never().timeout(Duration::from_millis(20)).wait().unwrap_err();
    assert_eq!(late.code(), StatusCode::DeadlineExceeded);
    // From many threads at once, over the one connection.
    let calls: Vec<_> = (0..8)
        .map(|n| {
            let client = client.clone();
            thread::spawn(move || client.greet(n.to_string()).wait().unwrap())
        })
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.join().unwrap(), format!("hello {n}"));
    }
    drop(client);
    served.stop();
}

#[test]
fn a_method_that_blocks_may_wait_and_its_calls_inherit_the_deadline() {
    let inner = Served::start(None);
    let outer = Served::start(Some(inner.client()));
    let client = outer.client();
    let relayed = client.relay("Ada".to_owned()).timeout(Duration::from_millis(300)).wait();
    // The inner call takes all of the time, less what is left for the answer.
    match relayed {
        Ok((_, inherited)) => assert!(inherited),
        Err(error) => assert_eq!((error.code(), error.executed()), (StatusCode::DeadlineExceeded, Executed::Maybe)),
    }
    drop(client);
    outer.stop();
    inner.stop();
}

#[test]
fn nobody_to_call_is_an_error_and_no_hang() {
    let client: BlocksClient = Client::new("127.0.0.1:1").service();
    let error = client.greet("Ada".to_owned()).wait().unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Never));
}
