//! Calls of lower classes are turned away first, and nested calls have the class of the one around them.

use std::time::Duration;

use sluicegate::{
    CallError, Client, Executed,
    server::{MethodLimits, TenantLimits, Tenants, WaitQueue},
};
use tokio::time::{advance, sleep};

use crate::support::{Harness, Req, method};

const CRITICAL: u8 = 1;
const BACKGROUND: u8 = 3;

async fn call(client: &Client, class: u8, ms: u64) -> Result<u64, CallError> {
    client.call(method::SLEEP, (ms,)).priority(class).await
}

#[tokio::test(start_paused = true)]
async fn critical_calls_pass_beside_ten_times_as_many_of_the_background_as_there_is_room_for() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(8).shed_by_priority(true));
    let harness = harness.plain("how long a write takes");
    let (clients, critical) = ([(); 4].map(|()| harness.client()), harness.client());
    let flood: Vec<_> = (0..80)
        .map(|n| {
            let client = clients[n % 4].clone();
            tokio::spawn(async move {
                let (mut served, mut shed) = (0_u32, 0_u32);
                for _ in 0..300 {
                    match call(&client, BACKGROUND, 10).await {
                        Ok(_) => served += 1,
                        Err(error) => {
                            assert_eq!(error.executed(), Executed::Never);
                            let CallError::Status(status) = &error else { panic!("{error}") };
                            shed += u32::from(&*status.error_info().unwrap().reason == "PRIORITY_SHED");
                            sleep(Duration::from_millis(10)).await;
                        }
                    }
                }
                (served, shed)
            })
        })
        .collect();
    // It takes a moment to find out.
    let mut failed = 0;
    for n in 0..290 {
        sleep(Duration::from_millis(10)).await;
        failed += u32::from(call(&critical, CRITICAL, 5).await.is_err() && n >= 10);
    }
    assert!(failed <= 20, "{failed} of 280");
    let mut all = (0, 0);
    for caller in flood {
        let (served, shed) = caller.await.unwrap();
        all = (all.0 + served, all.1 + shed);
    }
    assert!(all.0 > 0 && u64::from(all.1) == harness.refused("priority"), "{all:?}");
    drop((clients, critical));
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn without_calls_of_a_higher_class_nobody_is_shed_and_peace_lets_everybody_in() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(2).shed_by_priority(true));
    let client = harness.client();
    let calls: Vec<_> = (0..20).map(|_| tokio::spawn(call_owned(client.clone(), BACKGROUND))).collect();
    for call in calls {
        let _ = call.await.unwrap();
    }
    assert_eq!((harness.refused("priority"), harness.refused("global")), (0, 18));
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(call_owned(client.clone(), CRITICAL))).collect();
    for call in calls {
        let _ = call.await.unwrap();
    }
    let Err(CallError::Status(status)) = call(&client, BACKGROUND, 1).await else { panic!("it is shed") };
    let info = status.error_info().unwrap();
    let told = ["limit", "classes_shed", "class"].map(|key| info.metadata.get_str(key));
    assert_eq!((&*info.reason, told), ("PRIORITY_SHED", [Some("priority"), Some("1"), Some("3")]));
    advance(status.retry_delay().unwrap()).await;
    call(&client, BACKGROUND, 1).await.unwrap();
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_in_vain_show_that_there_is_no_room_whichever_was_the_last() {
    let harness = Harness::with(|builder| {
        let queue = WaitQueue::of(32).max_wait(Duration::from_millis(50));
        builder.max_concurrent_calls(1).shed_by_priority(true).wait_queue(queue)
    });
    let mut peer = harness.peer().await;
    let request = |id: u64, class| Req::new(id, method::GATE, (id,)).head(|head| head.priority = class);
    for id in 1..=3 {
        peer.send(&request(id, CRITICAL).bytes()).await;
    }
    for id in 2..=3 {
        assert_eq!(&*peer.answer(id).await.0.error_info().unwrap().reason, "QUEUE_TIMEOUT");
    }
    peer.send(&request(4, BACKGROUND).bytes()).await;
    assert_eq!(&*peer.answer(4).await.0.error_info().unwrap().reason, "PRIORITY_SHED");
    assert_eq!(harness.snapshot().classes_shed, 1);
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_above_the_share_of_its_tenant_or_connection_sheds_nobodys_calls() {
    for limit in ["tenant", "connection"] {
        let harness = Harness::with(|builder| {
            let builder = builder.max_concurrent_calls(100).shed_by_priority(true);
            match limit {
                "tenant" => {
                    builder.tenants(Tenants::by_metadata("tenant", TenantLimits::new().max_concurrent_calls(1)))
                }
                // Calls are few there, and heavy.
                _ => builder
                    .max_concurrent_calls_per_connection(4)
                    .method_limits("test.Probe/gate", MethodLimits::new().weight(3)),
            }
        });
        let (mut greedy, mut other) = (harness.peer().await, harness.peer().await);
        let request = |id: u64, tenant: &str, class| {
            let mut request = Req::new(id, method::GATE, (id,)).head(|head| head.priority = class);
            request.metadata.insert("tenant", tenant).unwrap();
            request.bytes()
        };
        for id in 1..=2 {
            greedy.send(&request(id, "a", CRITICAL)).await;
        }
        let refused = greedy.answer(2).await.0;
        assert_eq!(refused.error_info().unwrap().metadata.get_str("limit"), Some(limit));
        other.send(&request(1, "b", BACKGROUND)).await;
        harness.until_running(2).await;
        assert_eq!((harness.snapshot().classes_shed, harness.refused(limit)), (0, 1));
        harness.probe.open_gate();
        greedy.answer(1).await;
        other.answer(1).await;
        greedy.part().await;
        other.part().await;
        harness.assert_idle().await;
    }
}

async fn call_owned(client: Client, class: u8) -> Result<u64, CallError> {
    call(&client, class, 10).await
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_has_the_class_of_the_call_it_is_made_in_unless_it_says_otherwise() {
    use std::sync::{Arc, Mutex};

    use crate::support::handlers::Deciding;

    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let harness = Harness::with(move |builder| {
        builder.pipeline(move |pipeline, _| {
            let noted = Arc::clone(&noted);
            pipeline.add_last(
                "note",
                Deciding(move |call: &mut sluicegate::server::Call<'_>| {
                    noted.lock().unwrap().push(call.priority());
                    sluicegate::server::Decision::Pass
                }),
            );
        })
    });
    let client = harness.client();
    harness.probe.set_inner_client(harness.client());
    let nested = |class| client.call::<_, crate::support::probe::Seen>(method::NESTED, ()).priority(class);
    nested(CRITICAL).await.unwrap();
    nested(BACKGROUND).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [CRITICAL, CRITICAL, BACKGROUND, BACKGROUND]);
    drop(client);
    harness.probe.drop_inner_client();
    harness.assert_idle().await;
}
