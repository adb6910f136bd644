//! Limits that are read, changed and tried out while calls run.

use std::time::Duration;

use sluicegate::{
    StatusCode,
    limit::Rate,
    server::{ChangeError, HolderState, MethodLimits, TenantLimits, Tenants, WaitQueue},
};

use crate::support::{Got, Harness, RawClient, Req, method, probe::path};

async fn gate(peer: &mut RawClient, id: u64) {
    peer.send(&Req::new(id, method::GATE, (id,)).bytes()).await;
}

fn refused_by(got: &Got) -> String {
    match got {
        Got::Response { status, .. } if status.error_info().is_some() => {
            status.error_info().unwrap().metadata.get_str("limit").unwrap_or("none").to_owned()
        }
        other => panic!("{other:?} is no refusal"),
    }
}

/// With every kind of limit there is.
fn everything() -> Harness {
    Harness::with(|builder| {
        builder
            .max_concurrent_calls(100)
            .pool("reads", 90)
            .method_limits(path("gate"), MethodLimits::new().max_concurrent_calls(80).pool("reads"))
            .max_bytes_in_flight(100_000_000)
            .tenants(Tenants::by_metadata("tenant", TenantLimits::new().max_concurrent_calls(70)))
            .rate(Rate::per_second(1e6))
            .rate_per_connection(Rate::per_second(1e6))
    })
}

#[tokio::test(start_paused = true)]
async fn every_limit_of_calls_in_flight_can_be_lowered_below_what_is_in_flight_and_raised_again() {
    let gate_path = path("gate");
    for name in ["global", "connection", "reads", &gate_path] {
        let harness = everything();
        let limits = harness.handle.limits();
        let mut peer = harness.peer().await;
        for id in 1..=4 {
            gate(&mut peer, id).await;
        }
        harness.until_running(4).await;
        limits.set_max(name, Some(2)).unwrap();
        gate(&mut peer, 5).await;
        assert_eq!(refused_by(&peer.next().await), name);
        assert_eq!(harness.probe.running(), 4, "whoever is in, stays");
        limits.set_max(name, Some(5)).unwrap();
        gate(&mut peer, 6).await;
        harness.until_running(5).await;
        gate(&mut peer, 7).await;
        assert_eq!(refused_by(&peer.next().await), name);
        // So it is for those who come.
        let mut late = harness.peer().await;
        limits.set_max("global", None).unwrap();
        gate(&mut late, 1).await;
        let taken_in = name == "connection" || name == "global";
        if taken_in {
            harness.until_running(6).await;
        } else {
            assert_eq!(refused_by(&late.next().await), name);
        }
        harness.probe.open_gate();
        for _ in 0..5 {
            peer.next().await;
        }
        if taken_in {
            late.next().await;
        }
        peer.part().await;
        late.part().await;
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_list_has_every_limit_with_exact_figures() {
    let harness = everything();
    let mut peer = harness.peer().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    let list = harness.handle.limits().list();
    let held: Vec<_> = list.iter().map(|limit| (limit.name, limit.figures.max, limit.figures.held)).collect();
    let gate_path = path("gate");
    let expected = [
        ("global", Some(100), 1),
        ("blocking", Some(64), 0),
        ("connections", Some(10_000), 1),
        ("global bodies", Some(256 << 20), 0),
        ("global frames", Some(256 << 20), 0),
        ("reads", Some(90), 1),
        (&gate_path, Some(80), 1),
        ("bytes", Some(100_000_000), 1),
    ];
    assert_eq!(held, expected);
    assert!(list.iter().all(|limit| limit.figures.acquired == limit.figures.released + limit.figures.held));
    harness.probe.open_gate();
    peer.answer(1).await;
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_changed_says_why_and_nothing_changes() {
    let limits = Harness::new().handle.limits();
    let not_there = |result: Result<(), ChangeError>| match result {
        Err(ChangeError::NotThere(what)) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(not_there(limits.set_max("reads", Some(1))), "reads");
    assert_eq!(not_there(limits.set_rate("global rate", Rate::per_second(1.0))), "global rate");
    assert_eq!(not_there(limits.set_wait_queue(WaitQueue::of(1))), "queues");
    assert_eq!(not_there(limits.set_each_tenant(TenantLimits::new())), "tenants");
    for name in ["global", "connection", "connections", "connection bodies"] {
        assert!(matches!(limits.set_max(name, Some(0)), Err(ChangeError::Concurrency(_))), "{name}");
    }
    for name in ["connection", "connections", "global bodies", "connection bodies", "global frames"] {
        assert!(matches!(limits.set_max(name, None), Err(ChangeError::Unlimited(_))), "{name}");
    }
    assert!(matches!(limits.set_rate("global rate", Rate::per_second(0.0)), Err(ChangeError::Rate(_))));
    limits.set_max("blocking", Some(3)).unwrap();
    limits.set_max("connections", Some(3)).unwrap();
    limits.set_max("connection bodies", Some(30)).unwrap();
    assert_eq!(limits.list().iter().filter(|limit| limit.figures.max == Some(3)).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn rates_of_open_connections_and_of_those_to_come_are_changed() {
    let harness = Harness::with(|builder| builder.rate_per_connection(Rate::per_second(1.0).burst(1)));
    let limits = harness.handle.limits();
    let open = harness.client();
    let echo = |client: sluicegate::Client| async move {
        client.call::<_, String>(method::ECHO, ("hi".to_owned(),)).await.is_ok()
    };
    assert!(echo(open.clone()).await && !echo(open.clone()).await);
    limits.set_rate("connection rate", Rate::per_second(1_000.0).burst(5)).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for client in [open.clone(), harness.client()] {
        let mut passed = 0;
        while echo(client.clone()).await {
            passed += 1;
        }
        assert!(passed >= 5, "{passed}");
    }
    drop(open);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_made_shorter_or_whose_limit_is_raised_lets_nobody_down() {
    let harness = Harness::with(|builder| builder.max_concurrent_calls(1).wait_queue(WaitQueue::of(8)));
    let limits = harness.handle.limits();
    let mut peer = harness.peer().await;
    for id in 1..=4 {
        gate(&mut peer, id).await;
    }
    harness.until("three wait", |harness| harness.snapshot().calls_waiting == 3).await;
    limits.set_wait_queue(WaitQueue::of(1).max_wait(Duration::from_millis(5))).unwrap();
    gate(&mut peer, 5).await;
    assert_eq!(refused_by(&peer.next().await), "global");
    let global = |harness: &Harness| harness.handle.limits().list()[0];
    assert_eq!((global(&harness).waiting, global(&harness).max_waiting), (3, Some(1)));
    limits.set_max("global", Some(4)).unwrap();
    harness.until_running(4).await;
    harness.probe.open_gate();
    for _ in 0..4 {
        assert!(matches!(peer.next().await, Got::Response { code: StatusCode::Ok, .. }));
    }
    peer.part().await;
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_holds_a_permit_is_listed_with_method_peer_age_and_what_for() {
    let harness = Harness::with(|builder| {
        let gate = MethodLimits::new().max_concurrent_calls(2);
        builder.method_limits(path("gate"), gate).wait_queue(WaitQueue::of(8))
    });
    let harness = harness.plain("a write that is not taken");
    let (mut peer, mut slow) = (harness.peer().await, harness.peer_through(64));
    slow.shake_hands().await;
    gate(&mut peer, 1).await;
    harness.until_running(1).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    peer.send(&Req::new(2, method::GATE_SPAWNED, (2_u64,)).bytes()).await;
    gate(&mut peer, 3).await;
    gate(&mut peer, 4).await;
    slow.send(&Req::new(1, method::LARGE, (1_000_u32,)).bytes()).await;
    harness
        .until("all are there", |harness| {
            let snapshot = harness.snapshot();
            (snapshot.calls_waiting, snapshot.calls.held) == (1, 4)
        })
        .await;
    let mut holders = harness.handle.limits().holders().await;
    holders.sort_by_key(|holder| (holder.connection.id, holder.call));
    let told: Vec<_> = holders
        .iter()
        .map(|holder| (holder.connection.id.as_u64(), holder.call.sequence(), &*holder.method, holder.state))
        .collect();
    let [gate_path, spawned, large] = ["gate", "gate_spawned", "large"].map(path);
    let expected = [
        (1, 1, &*gate_path, HolderState::Running),
        (1, 2, &*spawned, HolderState::Running),
        (1, 3, &*gate_path, HolderState::Running),
        (1, 4, &*gate_path, HolderState::Waiting),
        (2, 1, &*large, HolderState::Writing),
    ];
    assert_eq!(told, expected);
    let [first, second] = [0, 1].map(|n| holders[n].received.unwrap());
    assert!(second - first >= Duration::from_millis(20));
    assert!(holders[4].received.is_none());
    harness.probe.open_gate();
    for _ in 0..4 {
        peer.next().await;
    }
    slow.answer(1).await;
    peer.part().await;
    slow.part().await;
    assert!(harness.handle.limits().holders().await.is_empty());
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_stuck_holds_up_no_list() {
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    harness.network.cut();
    // Its task was aborted with the question unanswered.
    assert!(harness.handle.limits().holders().await.is_empty());
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_refuses_nobody_and_counts_what_it_would_have_refused() {
    let harness = Harness::with(|builder| {
        let rate = Rate::per_second(0.001).burst(6);
        builder.max_concurrent_calls(2).rate(rate).wait_queue(WaitQueue::of(1))
    });
    let limits = harness.handle.limits();
    limits.set_dry_run(true);
    let mut peer = harness.peer().await;
    for id in 1..=8 {
        gate(&mut peer, id).await;
    }
    harness.until_running(8).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls.held, snapshot.calls_waiting), (2, 0), "what would be refused has no permit");
    let would: Vec<_> = snapshot.would_refuse.into_iter().collect();
    assert_eq!(would, [("global", 6), ("global rate", 2)]);
    assert!(snapshot.refused.is_empty());
    limits.set_dry_run(false);
    gate(&mut peer, 9).await;
    assert_eq!(refused_by(&peer.next().await), "global rate");
    harness.probe.open_gate();
    for _ in 0..8 {
        assert!(matches!(peer.next().await, Got::Response { code: StatusCode::Ok, .. }));
    }
    peer.part().await;
    harness.assert_idle().await;
}
