//! A server that leaves while clients connect to it.

use std::{thread, time::Duration};

use futures::future::join_all;
use sluicegate::{Client, Executed};
use tokio::time::sleep;

use crate::support::{Harness, method};

/// Its thread is busy while they connect and send, so none of them has been accepted when it is told
/// to shut down. Reset together with the listener, they could not know that nothing was executed.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the server's thread shall be busy")]
async fn calls_that_wait_in_the_listener_are_told_that_they_were_not_executed() {
    for _ in 0..20 {
        let (tell, told) = std::sync::mpsc::channel();
        let server = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let harness = Harness::new();
                let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
                tell.send(bound.local_addr()).unwrap();
                let serving = tokio::spawn(bound.serve());
                sleep(Duration::from_millis(1)).await;
                thread::sleep(Duration::from_millis(8));
                harness.handle.shutdown();
                let drained = serving.await.unwrap();
                assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
                assert!(harness.snapshot().is_idle(), "{:#?}", harness.snapshot());
            });
        });
        let address = told.recv().unwrap().to_string();
        sleep(Duration::from_millis(3)).await;
        let calls = (0..8_u64).map(|n| {
            let client = Client::new(&*address);
            async move { client.call::<_, String>(method::ECHO, (n.to_string(),)).timeout(Duration::from_secs(5)).await }
        });
        for outcome in join_all(calls).await {
            match outcome {
                Ok(_) => {}
                Err(error) => assert_eq!(error.executed(), Executed::Never, "{error:?}"),
            }
        }
        server.join().unwrap();
    }
}
