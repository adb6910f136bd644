//! Servers that are restarted under load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use sluicegate::{Client, Executed};
use tokio::{
    task::JoinSet,
    time::{interval, sleep, timeout},
};

use crate::{
    FOR_EVER, MS, SECOND, TURN,
    kit::{Ledger, Server, is_full, size},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_restarted_in_turn_fail_no_call_and_execute_none_twice() {
    let _turn = TURN.lock().await;
    let restarts = size(4, 1_000);
    println!("\n{restarts} restarts of two servers in turn, under 2,000 calls a second");
    // Addresses that nobody else has, so that they are free again.
    let mut servers = Vec::new();
    for host in [1, 2] {
        servers.push(Server::start_at("restarts", ([127, 1, 0, host], 0).into()).await);
    }
    let clients: Vec<_> =
        servers.iter().map(|server| Client::builder(server.address).backoff(10 * MS, 100 * MS).build()).collect();
    let (over, retries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = tokio::spawn(load(clients.clone(), Arc::clone(&over), Arc::clone(&retries)));
    let (began, mut counted) = (Instant::now(), Vec::new());
    for n in 0..restarts {
        sleep(100 * MS).await;
        let server = servers.remove(0);
        let (server, calls) = server.restart().await;
        assert!(n == 0 || !calls.is_empty(), "a server was restarted before anybody called it");
        counted.extend(calls);
        servers.push(server);
    }
    sleep(100 * MS).await;
    over.store(true, SeqCst);
    let (calls, failed) = timeout(FOR_EVER, load).await.expect("a call does not end").unwrap();
    let elapsed = began.elapsed();
    drop(clients);
    for mut server in servers {
        server.until_idle().await;
        counted.extend(server.shut_down().await);
    }
    counted.sort_unstable();
    let (rate, retries) = (calls as f64 / elapsed.as_secs_f64(), retries.load(SeqCst));
    println!("    {calls} calls, {rate:.0} a second, {retries} tried again, {} failed", failed.len());
    assert!(failed.is_empty(), "{} of {calls} failed: {:#?}", failed.len(), &failed[..failed.len().min(5)]);
    let twice = counted.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!((counted.len() as u64, twice), (calls, 0), "not every call was executed once");
    assert!(!is_full() || rate > 1_500.0, "there was too little load");
}

/// Two calls every millisecond; how many there were, and how some failed.
async fn load(clients: Vec<Client>, over: Arc<AtomicBool>, retries: Arc<AtomicU64>) -> (u64, Vec<String>) {
    let (mut calls, mut failed) = (JoinSet::new(), Vec::new());
    let (mut next, mut ticks) = (0, interval(MS));
    while !over.load(SeqCst) {
        ticks.tick().await;
        for _ in 0..2 {
            calls.spawn(insist(clients.clone(), next, Arc::clone(&retries)));
            next += 1;
        }
        while let Some(ended) = calls.try_join_next() {
            failed.extend(ended.unwrap().err());
        }
    }
    failed.extend(calls.join_all().await.into_iter().filter_map(Result::err));
    (next, failed)
}

/// Makes a call, and makes it again at the other server if, and only if, it is known not to have been
/// executed.
async fn insist(clients: Vec<Client>, n: u64, retries: Arc<AtomicU64>) -> Result<(), String> {
    let began = Instant::now();
    for attempt in 0.. {
        let client = &clients[(n + attempt) as usize % clients.len()];
        let call = client.call::<_, u64>(Ledger::COUNT, (n, n % 5));
        match timeout(FOR_EVER, call).await.map_err(|_| format!("{n} was never answered"))? {
            Ok(answer) => return if answer == n { Ok(()) } else { Err(format!("{n} got the answer to {answer}")) },
            Err(error) if error.executed() == Executed::Never && began.elapsed() < 10 * SECOND => {
                retries.fetch_add(1, SeqCst);
                // Both may be away for a moment.
                sleep(attempt as u32 * MS).await;
            }
            Err(error) => return Err(format!("{n}, attempt {attempt}: {error:?}")),
        }
    }
    unreachable!("it goes on for ever or returns")
}
