//! Limits of tenants, whatever connections their calls come by.

use std::time::Duration;

use sluicegate::{
    CallError, Client, Executed, Status,
    limit::Rate,
    server::{TenantLimits, Tenants},
};
use tokio::time::advance;

use crate::support::{Harness, RawClient, Req, method};

fn each() -> TenantLimits {
    TenantLimits::new()
}

fn by_metadata(limits: TenantLimits) -> Tenants {
    Tenants::by_metadata("tenant", limits)
}

fn call_of(tenant: &str, id: u64) -> Vec<u8> {
    let mut request = Req::new(id, method::GATE, (id,));
    request.metadata.insert("tenant", tenant).unwrap();
    request.bytes()
}

async fn echo(client: &Client, tenant: &str) -> Result<String, CallError> {
    client.call(method::ECHO, ("hi".to_owned(),)).metadata("tenant", tenant).await
}

fn told(status: &Status) -> [Option<&str>; 3] {
    assert_eq!(status.executed(), Executed::Never);
    let info = status.error_info().unwrap();
    [Some(&*info.reason), info.metadata.get_str("limit"), info.metadata.get_str("tenant")]
}

async fn refused(peer: &mut RawClient, id: u64) -> Status {
    peer.answer(id).await.0
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_its_share_on_all_of_its_connections_together_and_others_have_theirs() {
    let harness = Harness::with(|builder| {
        let tenants = by_metadata(each().max_concurrent_calls(2)).tenant("acme", each().max_concurrent_calls(3));
        builder.tenants(tenants).max_concurrent_calls(6)
    });
    let (mut one, mut other) = (harness.peer().await, harness.peer().await);
    one.send(&call_of("polite", 1)).await;
    other.send(&call_of("polite", 1)).await;
    harness.until_running(2).await;
    other.send(&call_of("polite", 2)).await;
    let status = refused(&mut other, 2).await;
    assert_eq!(told(&status), [Some("CONCURRENCY_LIMIT"), Some("tenant"), Some("polite")]);
    for id in 2..=4 {
        one.send(&call_of("acme", id)).await;
    }
    harness.until_running(5).await;
    one.send(&call_of("acme", 5)).await;
    assert_eq!(told(&refused(&mut one, 5).await)[2], Some("acme"));
    // Calls that name nobody share what one tenant has.
    for id in 6..=7 {
        one.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
    }
    harness.until_running(6).await;
    assert_eq!(told(&refused(&mut one, 7).await), [Some("CONCURRENCY_LIMIT"), Some("global"), None]);
    let tenants = harness.snapshot().tenants;
    assert_eq!((tenants.known, tenants.held, harness.refused("tenant")), (2, 6, 2));
    harness.probe.open_gate();
    for _ in 0..5 {
        one.next().await;
    }
    other.answer(1).await;
    one.part().await;
    other.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn who_connects_anew_does_not_escape_the_rate_of_its_tenant() {
    let rate = Rate::per_second(10.0).burst(2);
    let harness = Harness::with(|builder| builder.tenants(by_metadata(each().rate(rate))).rate_per_connection(rate));
    for _ in 0..2 {
        let client = harness.client();
        echo(&client, "greedy").await.unwrap();
    }
    let client = harness.client();
    let Err(CallError::Status(status)) = echo(&client, "greedy").await else { panic!("it has no token") };
    assert_eq!(told(&status), [Some("RATE_LIMIT"), Some("tenant rate"), Some("greedy")]);
    echo(&client, "polite").await.unwrap();
    advance(status.retry_delay().unwrap()).await;
    echo(&client, "greedy").await.unwrap();
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_of_a_tenant_comes_back_when_a_later_limit_refuses() {
    let harness = Harness::with(|builder| {
        let rate = Rate::per_second(0.001).burst(2);
        builder.tenants(by_metadata(each().rate(rate))).max_concurrent_calls(1)
    });
    let mut peer = harness.peer().await;
    peer.send(&call_of("a", 1)).await;
    harness.until_running(1).await;
    for id in 2..=20 {
        peer.send(&call_of("a", id)).await;
        assert_eq!(told(&refused(&mut peer, id).await)[1], Some("global"));
    }
    harness.probe.open_gate();
    peer.answer(1).await;
    harness.until_flushed(0).await;
    peer.send(&call_of("a", 21)).await;
    assert_eq!(peer.reply::<u64>(21).await, 21);
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_tenant_of_a_connection_is_asked_for_once() {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let harness = Harness::with(|builder| {
        let asked = std::sync::Arc::clone(&asked);
        let tenants = Tenants::by_connection(
            move |connection| {
                asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                Some(format!("{} is one", connection.id))
            },
            each().max_concurrent_calls(1),
        );
        builder.tenants(tenants)
    });
    let (mut one, mut other) = (harness.peer().await, harness.peer().await);
    one.send(&call_of("what it says", 1)).await;
    harness.until_running(1).await;
    other.send(&call_of("what it says", 1)).await;
    harness.until_running(2).await;
    one.send(&call_of("something else", 2)).await;
    let status = refused(&mut one, 2).await;
    assert_eq!(told(&status)[2], Some("#1 is one"));
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2);
    harness.probe.open_gate();
    one.answer(1).await;
    other.answer(1).await;
    one.part().await;
    other.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn names_without_end_share_one_set_of_limits_and_cost_no_more_places() {
    let harness = Harness::with(|builder| builder.tenants(by_metadata(each().max_concurrent_calls(1)).max_tenants(3)));
    let mut peer = harness.peer().await;
    for id in 1..=3 {
        peer.send(&call_of(&format!("tenant {id}"), id)).await;
    }
    harness.until_running(3).await;
    for id in 4..=20 {
        peer.send(&call_of(&format!("tenant {id}"), id)).await;
    }
    for id in 5..=20 {
        assert_eq!(told(&refused(&mut peer, id).await)[2], Some("(others)"));
    }
    let tenants = harness.snapshot().tenants;
    assert_eq!((tenants.known, tenants.forgotten, tenants.held), (3, 0, 4));
    assert_eq!(tenants.shared, 17, "each call once");
    harness.probe.open_gate();
    for _ in 1..=4 {
        peer.next().await;
    }
    peer.part().await;
    // Nobody is known any more who would have to be kept, so those who come have places of their own.
    let client = harness.client();
    for n in 0..50 {
        echo(&client, &format!("late {n}")).await.unwrap();
    }
    harness.until_flushed(0).await;
    let tenants = harness.snapshot().tenants;
    assert_eq!((tenants.known, tenants.held), (3, 0));
    assert!(tenants.forgotten >= 40, "{tenants:?}");
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_tenant_keeps_no_other_waiting() {
    let harness = Harness::with(|builder| {
        let queue = sluicegate::server::WaitQueue::of(5).max_wait(Duration::from_millis(50));
        builder.tenants(by_metadata(each().max_concurrent_calls(1))).wait_queue(queue).max_concurrent_calls(9)
    });
    let mut peer = harness.peer().await;
    for id in 1..=2 {
        peer.send(&call_of("busy", id)).await;
    }
    harness.until("one waits", |harness| harness.snapshot().calls_waiting == 1).await;
    peer.send(&call_of("quiet", 3)).await;
    harness.until_running(2).await;
    let status = refused(&mut peer, 2).await;
    assert_eq!(told(&status), [Some("QUEUE_TIMEOUT"), Some("tenant"), Some("busy")]);
    harness.probe.open_gate();
    peer.next().await;
    peer.next().await;
    peer.part().await;
    harness.assert_idle().await;
}
