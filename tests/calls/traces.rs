//! What `tracing` is told of calls, and the trace that they carry along.

use std::time::Duration;

use sluicegate::{Client, Context, Server, Status, TraceParent, testing::InMemory};

use crate::support::traces::Traces;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT_ID: &str = "00f067aa0ba902b7";

#[sluicegate::service(package = "test")]
trait Steps {
    async fn step(&self, ctx: Context, wait: bool) -> Result<Option<String>, Status>;
    #[rpc(spawn)]
    async fn step_spawned(&self, ctx: Context, wait: bool) -> Result<Option<String>, Status>;
    #[rpc(blocking)]
    fn step_blocking(&self, ctx: Context) -> Result<Option<String>, Status>;
    async fn fail(&self) -> Result<(), Status>;
    async fn nested(&self) -> Result<Option<String>, Status>;
}

struct Walker(Option<StepsClient>);

fn traceparent(ctx: &Context) -> Option<String> {
    tracing::info!("a step");
    ctx.metadata().get_str(TraceParent::KEY).map(str::to_owned)
}

impl Steps for Walker {
    async fn step(&self, ctx: Context, wait: bool) -> Result<Option<String>, Status> {
        if wait {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(traceparent(&ctx))
    }

    async fn step_spawned(&self, ctx: Context, wait: bool) -> Result<Option<String>, Status> {
        self.step(ctx, wait).await
    }

    fn step_blocking(&self, ctx: Context) -> Result<Option<String>, Status> {
        Ok(traceparent(&ctx))
    }

    async fn fail(&self) -> Result<(), Status> {
        Err(Status::not_found("no way"))
    }

    async fn nested(&self) -> Result<Option<String>, Status> {
        Ok(self.0.as_ref().expect("there is another").step(true).await?)
    }
}

fn server(inner: Option<StepsClient>) -> InMemory {
    let server = Server::builder().service(StepsServer::new(Walker(inner))).trace_calls(true);
    InMemory::new(server.max_concurrent_calls(4).build().expect("a server"))
}

#[tokio::test(start_paused = true)]
async fn a_service_runs_within_the_span_of_its_call_wherever_it_runs() {
    let traces = Traces::default();
    let _kept = tracing::subscriber::set_default(traces.clone());
    let server = server(None);
    let steps: StepsClient = server.client().service();
    for wait in [false, true] {
        for call in [steps.step(wait), steps.step_spawned(wait)] {
            call.metadata(TraceParent::KEY, PARENT).timeout(Duration::from_secs(1)).await.unwrap();
        }
    }
    drop(steps);
    server.assert_idle().await;
    let events = traces.events("a step");
    assert_eq!(events.len(), 4);
    for (span, _) in events {
        let span = span.expect("it is within a span");
        assert_eq!((span.name, &*span.fields["code"]), ("call", "OK"));
        assert!(span.fields["method"].starts_with("test.Steps/step"), "{span:?}");
        assert_eq!((&*span.fields["trace_id"], &*span.fields["parent_id"]), (TRACE_ID, PARENT_ID));
        assert_eq!(span.fields["remaining_ms"], "1000");
        assert_eq!(span.handles, 0, "it has ended: {span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_span_says_how_its_call_ended_and_is_silent_about_one_that_was_given_up() {
    let traces = Traces::default();
    let _kept = tracing::subscriber::set_default(traces.clone());
    let server = server(None);
    let steps: StepsClient = server.client().service();
    steps.fail().await.unwrap_err();
    let given_up = tokio::time::timeout(Duration::from_millis(10), steps.step(true)).await;
    assert!(given_up.is_err());
    steps.step_blocking().await.unwrap();
    drop(steps);
    server.assert_idle().await;
    let spans = traces.spans("call");
    let codes: Vec<_> = spans.iter().map(|span| span.fields.get("code").map(String::as_str)).collect();
    assert_eq!(codes, [Some("NOT_FOUND"), None, Some("OK")]);
    assert!(spans.iter().all(|span| span.handles == 0), "{spans:?}");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_and_get_no_span_of_a_service() {
    let traces = Traces::default();
    let _kept = tracing::subscriber::set_default(traces.clone());
    let server = server(None);
    let steps: StepsClient = server.client().service();
    let running: Vec<_> = (0..6).map(|_| tokio::spawn(steps.step(true))).collect();
    for call in running {
        let _ = call.await.unwrap();
    }
    let refused = traces.events("call refused");
    assert_eq!(refused.len(), 2);
    assert!(refused.iter().all(|(_, fields)| fields["reason"] == "CONCURRENCY_LIMIT" && fields["limit"] == "global"));
    drop(steps);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_carries_the_trace_one_step_further() {
    let inner = server(None);
    let outer = server(Some(inner.client().service()));
    let steps: StepsClient = outer.client().service();
    let call = steps.nested().metadata(TraceParent::KEY, PARENT).metadata(TraceParent::STATE_KEY, "vendor=1");
    let carried: TraceParent = call.await.unwrap().expect("a trace").parse().unwrap();
    let given: TraceParent = PARENT.parse().unwrap();
    assert_eq!((carried.trace_id(), carried.is_sampled()), (given.trace_id(), true));
    assert_ne!(carried.parent_id(), given.parent_id(), "the parent is the span of the outer call");
    // What is no trace is not passed on, and no trace is not made up.
    for none in ["00-zz", ""] {
        assert_eq!(steps.nested().metadata(TraceParent::KEY, none).await.unwrap(), None);
    }
    assert_eq!(steps.nested().await.unwrap(), None);
    drop(steps);
    outer.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_traces_begins_traces_and_tells_how_calls_ended() {
    let traces = Traces::default();
    let _kept = tracing::subscriber::set_default(traces.clone());
    let server = server(None);
    let client: Client = server.client_builder().trace_calls(true).build();
    let steps: StepsClient = client.service();
    let begun: TraceParent = steps.step(false).await.unwrap().expect("it began a trace").parse().unwrap();
    assert!(begun.is_sampled());
    let other: TraceParent = steps.step(false).await.unwrap().expect("it began another").parse().unwrap();
    assert_ne!(begun.trace_id(), other.trace_id());
    let given = steps.step(false).metadata(TraceParent::KEY, PARENT).await.unwrap();
    assert_eq!(given.as_deref(), Some(PARENT), "one that is there is left as it is");
    steps.fail().await.unwrap_err();
    drop(tokio::time::timeout(Duration::from_millis(10), steps.step(true)).await);
    let told = traces.events("call");
    assert_eq!(told.len(), 3);
    assert_eq!((&*told[2].1["method"], &*told[2].1["traceparent"]), ("test.Steps/step", PARENT));
    let failed = traces.events("call failed");
    assert_eq!((failed.len(), &*failed[0].1["code"], &*failed[0].1["executed"]), (1, "NOT_FOUND", "Finished"));
    assert_eq!(traces.events("call given up").len(), 1);
    drop((client, steps));
    server.assert_idle().await;
}
