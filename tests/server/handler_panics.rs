//! Handlers that panic: each panic costs its call, and nobody else notices.

use std::time::Duration;

use sluicegate::{
    ConnectionInfo, Executed, StatusCode,
    server::{Call, CallInfo, Decision, Handler, Outbound},
};

use crate::support::{
    Harness, Req,
    handlers::{Changing, Deciding, waiting, with_handler},
    method, no_call_runs,
    raw::cancel,
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_on_the_way_in_costs_its_call() {
    for name in ["deadline", "concurrency"] {
        let harness = Harness::with(|builder| {
            builder.pipeline(move |pipeline, _| {
                let handler = Deciding(|call: &mut Call<'_>| {
                    assert!(call.metadata().get("bad").is_none(), "secret of the handler");
                    Decision::Pass
                });
                pipeline.add_after(name, "test", handler);
            })
        });
        panicking_handler(&harness, Executed::Never, 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_on_the_way_out_costs_its_call() {
    for name in ["deadline", "concurrency"] {
        let harness = Harness::with(|builder| {
            builder.pipeline(move |pipeline, _| {
                let mut calls = 0;
                let handler = Changing(move |_: &CallInfo<'_>, _: &mut Outbound<'_>| {
                    calls += 1;
                    assert!(calls > 3, "secret of the handler");
                });
                pipeline.add_after(name, "test", handler);
            })
        });
        panicking_handler(&harness, Executed::Finished, 3).await;
    }
}

/// Three calls meet a panicking handler, a fourth does not.
async fn panicking_handler(harness: &Harness, executed: Executed, started: usize) {
    let mut peer = harness.peer().await;
    for id in 1..=3 {
        let mut request = Req::new(id, method::ECHO, ("hi",));
        request.metadata.insert("bad", "").unwrap();
        peer.send(&request.bytes()).await;
        let (status, body) = peer.answer(id).await;
        assert_eq!((status.code(), status.executed()), (StatusCode::Internal, executed));
        assert!(body.is_empty() && !format!("{status:?}").contains("secret"));
        harness.until_flushed(0).await;
        no_call_runs(&harness.handle);
    }
    assert_eq!((harness.snapshot().panics, harness.probe.started()), (3, started));
    peer.send(&Req::new(4, method::ECHO, ("hi",)).bytes()).await;
    assert_eq!(peer.reply::<String>(4).await, "hi");
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_panics_costs_its_call() {
    let harness = with_handler(|| {
        Deciding(|call: &mut Call<'_>| {
            let bad = call.metadata().get("bad").is_some();
            Decision::Wait(Box::pin(async move {
                assert!(!bad, "secret of the handler");
                Decision::Pass
            }))
        })
    });
    panicking_handler(&harness, Executed::Never, 0).await;
}

/// Panics in what it is told and cannot answer.
struct BadListener {
    told: &'static str,
}

impl Handler for BadListener {
    fn connected(&mut self, _: &ConnectionInfo) {
        assert_ne!(self.told, "connected");
    }

    fn written(&mut self, _: &CallInfo<'_>) {
        assert_ne!(self.told, "written");
    }

    fn closed(&mut self) {
        assert_ne!(self.told, "closed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_when_it_is_told_something_harms_no_call() {
    for told in ["connected", "written", "closed"] {
        let harness = with_handler(move || BadListener { told });
        let client = harness.client();
        let sibling = tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,)));
        harness.until_running(1).await;
        for _ in 0..3 {
            let echo = client.call::<_, String>(method::ECHO, ("hi".to_owned(),)).await;
            assert_eq!(echo.unwrap_or_else(|error| panic!("{told}: {error}")), "hi");
        }
        harness.probe.open_gate();
        assert_eq!(sibling.await.unwrap().unwrap(), 7, "{told}");
        drop(client);
        harness.assert_idle().await;
        assert!(harness.snapshot().panics > 0, "{told}");
    }
}

/// Panics when it is dropped before it is over.
struct FragileWait(bool);

impl Future for FragileWait {
    type Output = Decision;

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Decision> {
        std::task::Poll::Pending
    }
}

impl Drop for FragileWait {
    fn drop(&mut self) {
        assert!(self.0 || std::thread::panicking(), "secret of the handler");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_panics_when_it_is_dropped_harms_no_other_call() {
    let harness = with_handler(|| {
        Deciding(|call: &mut Call<'_>| match call.metadata().get("wait") {
            Some(_) => Decision::Wait(Box::pin(FragileWait(false))),
            None => Decision::Pass,
        })
    });
    let mut peer = harness.peer().await;
    peer.send(&[waiting(1).bytes(), waiting(2).timeout(10 * MS).bytes(), waiting(3).bytes()].concat()).await;
    peer.send(&Req::new(4, method::GATE, (4_u64,)).bytes()).await;
    harness.until_held(4).await;
    peer.send(&cancel(1)).await;
    assert_eq!(peer.answer(2).await.0.code(), StatusCode::DeadlineExceeded);
    harness.probe.open_gate();
    assert_eq!(peer.reply::<u64>(4).await, 4);
    harness.until_held(1).await;
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_that_cannot_be_built_costs_its_connection() {
    let harness = Harness::with(|builder| {
        let connections = std::sync::atomic::AtomicU32::new(0);
        builder.pipeline(move |_, _| {
            let before = connections.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            assert!(before > 0, "the first connection is unlucky");
        })
    });
    let unlucky = harness.client();
    let error = unlucky.call::<_, String>(method::ECHO, ("hi",)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Never), "{error:?}");
    drop(unlucky);
    harness.peer().await.part().await;
    harness.assert_idle().await;
}
