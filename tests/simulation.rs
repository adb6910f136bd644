//! Servers and clients on a simulated network with latency, partitions, crashes and restarts, each
//! scenario with many seeds. Every run ends with nothing left on any host.
//!
//! A run that fails names its seed. `SLUICEGATE_SIMULATION_SEED` repeats that run alone, and
//! `SLUICEGATE_SIMULATION_SEEDS` says how many seeds there are to be. Time is virtual. The one thing
//! that does not come from the seed is the order in which a server that drains wakes its connections.

#[path = "support/simulation.rs"]
mod simulation;

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use simulation::{
    Kernel, Ledger, MS, Outcome, Site, WorkClient, between, client, finish, leave, network, one_in, over_seeds, pass,
};
use sluicegate::{CallError, Client, Executed, StatusCode};
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};
use turmoil::Sim;

const CLIENTS: [&str; 3] = ["ada", "grace", "edsger"];

#[test]
fn on_a_calm_network_every_call_is_answered_with_its_own_answer() {
    over_seeds(16, |seed| {
        let mut sim = network(seed, between(0, 30));
        let ledger = Ledger::default();
        let site = Site::start(&mut sim, "server", &ledger, |builder| builder);
        for name in CLIENTS {
            let (ledger, kernel) = (ledger.clone(), Kernel::default());
            sim.client(name, async move {
                let client = client("server", &kernel).build();
                eighty_times(&client, &ledger, |ledger, work| async move {
                    ledger.call(&work, fastrand::u64(..20), None).await.unwrap();
                })
                .await;
                assert_eq!((client.snapshot().connects, client.snapshot().late_answers), (1, 0));
                leave([client], &kernel).await;
                Ok(())
            });
        }
        finish(&mut sim);
        settle(&mut sim, &[&site]);
        ledger.check();
        assert_eq!(ledger.executed(), 8 * 10 * CLIENTS.len());
    });
}

#[test]
fn after_a_partition_is_repaired_calls_succeed_and_those_it_hit_have_ended_in_time() {
    let (lost, late) = (Cell::new(0), Cell::new(0));
    over_seeds(16, |seed| {
        let mut sim = network(seed, between(1, 20));
        let ledger = Ledger::default();
        let site = Site::start(&mut sim, "server", &ledger, |builder| builder);
        let load = Load::start(&mut sim, &ledger, Patience::Limited);
        for _ in 0..3 {
            pass(&mut sim, between(20, 200));
            let name = CLIENTS[fastrand::usize(..CLIENTS.len())];
            match fastrand::u32(..4) {
                0 => {
                    // Nothing is lost, all of it is late.
                    sim.hold(name, "server");
                    pass(&mut sim, between(1, 400));
                    sim.release(name, "server");
                    continue;
                }
                1 => sim.partition(name, "server"),
                2 => sim.partition_oneway(name, "server"),
                _ => sim.partition_oneway("server", name),
            }
            // Either end may give up while the other still hopes.
            let kernels = [load.kernel(name), &site.kernel];
            pass(&mut sim, between(1, 200));
            if one_in(2) {
                time_out(kernels[fastrand::usize(..2)]);
                pass(&mut sim, between(1, 200));
            }
            sim.repair(name, "server");
            let cut = kernels.map(Kernel::lines);
            for lines in cut {
                pass(&mut sim, between(0, 150));
                lines.iter().for_each(|line| line.time_out());
            }
        }
        load.finish(&mut sim);
        settle(&mut sim, &[&site]);
        ledger.check();
        lost.set(lost.get() + ledger.count(|outcome| failed(outcome, StatusCode::Unavailable)));
        late.set(late.get() + ledger.count(|outcome| failed(outcome, StatusCode::DeadlineExceeded)));
    });
    assert!(lost.get() > 0 && late.get() > 0, "{} calls were lost, {} were late", lost.get(), late.get());
}

#[test]
fn a_call_that_a_crash_ended_was_not_executed_if_it_says_so_and_never_twice() {
    let (never, maybe) = (Cell::new(0), Cell::new(0));
    over_seeds(16, |seed| {
        let ledger = run_with_crashes(seed);
        let lost = |executed| {
            ledger.count(|outcome| {
                matches!(&outcome.result, Some(Err(error @ CallError::Lost { .. })) if error.executed() == executed)
            })
        };
        never.set(never.get() + lost(Executed::Never));
        maybe.set(maybe.get() + lost(Executed::Maybe));
    });
    assert!(never.get() > 0 && maybe.get() > 0, "{} never, {} maybe", never.get(), maybe.get());
}

#[test]
fn a_run_with_the_same_seed_goes_the_same_way() {
    over_seeds(3, |seed| {
        let [first, second] = [(); 2].map(|()| {
            fastrand::seed(seed);
            run_with_crashes(seed).outcomes()
        });
        assert!(first.len() > 100, "{} calls", first.len());
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(first, second);
        }
        assert_eq!(first.len(), second.len());
    });
}

fn run_with_crashes(seed: u64) -> Ledger {
    let mut sim = network(seed, between(0, 20));
    let ledger = Ledger::default();
    let site = Site::start(&mut sim, "server", &ledger, |builder| builder);
    let load = Load::start(&mut sim, &ledger, Patience::Endless);
    for _ in 0..4 {
        pass(&mut sim, between(10, 200));
        match fastrand::u32(..3) {
            // The process dies, and another is there at once.
            0 => sim.bounce("server"),
            1 => {
                sim.crash("server");
                pass(&mut sim, between(1, 200));
                sim.bounce("server");
            }
            // The machine loses its power, so nobody is told.
            _ => {
                CLIENTS.iter().for_each(|name| sim.partition("server", *name));
                sim.crash("server");
                pass(&mut sim, between(1, 200));
                CLIENTS.iter().for_each(|name| sim.repair("server", *name));
                sim.bounce("server");
                let cut: Vec<_> = CLIENTS.iter().map(|name| load.kernel(name).lines()).collect();
                pass(&mut sim, between(0, 150));
                cut.iter().flatten().for_each(|line| line.time_out());
            }
        }
    }
    load.finish(&mut sim);
    settle(&mut sim, &[&site]);
    ledger.check();
    ledger
}

#[test]
fn no_call_fails_while_two_servers_restart_in_turn_if_callers_retry_what_is_safe() {
    let retried = Cell::new(0);
    over_seeds(10, |seed| {
        let ledger = run_with_restarts(seed);
        let good = ledger.count(|outcome| matches!(outcome.result, Some(Ok(_))));
        assert_eq!(ledger.executed(), good, "something was executed in vain");
        retried.set(retried.get() + ledger.count(|outcome| outcome.result.is_some()) - good);
    });
    assert!(retried.get() > 0, "no restart was in the way of any call");
}

fn run_with_restarts(seed: u64) -> Ledger {
    let mut sim = network(seed, between(0, 10));
    let ledger = Ledger::default();
    let sites = ["left", "right"].map(|name| Site::start(&mut sim, name, &ledger, |builder| builder));
    let over = Arc::new(AtomicBool::new(false));
    let callers = ["ada", "grace", "edsger", "barbara"];
    for name in callers {
        let (ledger, over) = (ledger.clone(), Arc::clone(&over));
        sim.client(name, async move {
            let kernel = Kernel::default();
            let clients = ["left", "right"].map(|site| client(site, &kernel).build());
            let mut calls = JoinSet::new();
            // All of them together make 2,000 calls a second.
            let mut next = interval(callers.len() as u32 * MS / 2);
            while !over.load(SeqCst) {
                next.tick().await;
                let works = clients.each_ref().map(Client::service::<WorkClient>);
                calls.spawn(call_either(works, ledger.clone()));
                while let Some(ended) = calls.try_join_next() {
                    ended?;
                }
            }
            calls.join_all().await;
            leave(clients, &kernel).await;
            Ok(())
        });
    }
    for _ in 0..2 {
        for site in &sites {
            pass(&mut sim, between(50, 150));
            site.shut_down(&mut sim);
            pass(&mut sim, between(1, 50));
            sim.bounce(site.name);
        }
    }
    pass(&mut sim, 50 * MS);
    over.store(true, SeqCst);
    finish(&mut sim);
    settle(&mut sim, &sites.each_ref());
    ledger.check();
    ledger
}

/// Makes a call by either client, and again by the other one while that is safe.
async fn call_either(works: [WorkClient; 2], ledger: Ledger) {
    let first = fastrand::usize(..2);
    for attempt in 0..100 {
        let work = &works[(first + attempt) % 2];
        match ledger.call(work, fastrand::u64(..10), Some(5_000 * MS)).await {
            Ok(_) => return,
            Err(error) => assert_eq!(error.executed(), Executed::Never, "it is not safe to retry: {error:?}"),
        }
        if attempt > 0 {
            sleep(between(1, 10)).await;
        }
    }
    panic!("a call was turned away a hundred times");
}

#[test]
fn never_more_calls_than_the_limit_are_in_flight_and_what_is_refused_is_not_executed() {
    over_seeds(16, |seed| {
        let mut sim = network(seed, between(0, 30));
        let ledger = Ledger::default();
        let site = Site::start(&mut sim, "server", &ledger, |builder| builder.max_concurrent_calls(8));
        let mut kernels = Vec::new();
        for name in CLIENTS {
            let (ledger, kernel) = (ledger.clone(), Kernel::default());
            kernels.push(kernel.clone());
            sim.client(name, async move {
                let client = client("server", &kernel).build();
                eighty_times(&client, &ledger, |ledger, work| async move {
                    let Err(error) = ledger.call(&work, fastrand::u64(..60), None).await else { return };
                    assert_eq!(error.code(), StatusCode::ResourceExhausted, "{error:?}");
                    assert_eq!(error.executed(), Executed::Never, "{error:?}");
                    sleep(error.retry_delay().expect("a refusal says when to come back")).await;
                })
                .await;
                leave([client], &kernel).await;
                Ok(())
            });
        }
        while !pass(&mut sim, MS) {
            let calls = site.snapshot().calls;
            assert!(calls.held <= 8 && calls.acquired == calls.released + calls.held, "{calls:?}");
        }
        settle(&mut sim, &[&site]);
        ledger.check();
        let (figures, refused) = (site.snapshot(), ledger.count(|outcome| matches!(outcome.result, Some(Err(_)))));
        assert!(refused > 0 && ledger.high_water() <= 8, "{refused} were refused, {} ran", ledger.high_water());
        assert_eq!(figures.calls.high_water, 8, "{figures:#?}");
        assert_eq!((figures.calls.acquired, figures.refused["global"]), (ledger.executed() as u64, refused as u64));
        assert_eq!(figures.calls.acquired, figures.calls.released);
    });
}

/// Eight workers at once do `job` ten times each.
async fn eighty_times<F>(client: &Client, ledger: &Ledger, job: fn(Ledger, WorkClient) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let (ledger, work) = (ledger.clone(), client.service::<WorkClient>());
        workers.spawn(async move {
            for _ in 0..10 {
                job(ledger.clone(), work.clone()).await;
            }
        });
    }
    workers.join_all().await;
}

fn failed(outcome: &Outcome, code: StatusCode) -> bool {
    matches!(&outcome.result, Some(Err(error)) if error.code() == code)
}

fn time_out(kernel: &Kernel) {
    kernel.lines().iter().for_each(|line| line.time_out());
}

/// Waits until the servers have noticed that everybody has left, and checks that nothing is left.
fn settle(sim: &mut Sim<'_>, sites: &[&Site]) {
    // Clients have ended, and turmoil does not run them any more: they have closed all of their sockets.
    pass(sim, 2_000 * MS);
    let until = sim.elapsed() + 3_000 * MS;
    while sites.iter().any(|site| site.kernel.open() > 0) && sim.elapsed() < until {
        sim.step().expect("no host fails");
    }
    sites.iter().for_each(|site| site.assert_idle());
}

/// Whether calls have timeouts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// All have.
    Limited,
    /// Some have none.
    Endless,
}

/// Clients that call the host "server" until they are told to stop.
struct Load {
    kernels: Vec<Kernel>,
    over: Arc<AtomicBool>,
}

impl Load {
    fn start(sim: &mut Sim<'_>, ledger: &Ledger, patience: Patience) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut kernels = Vec::new();
        for name in CLIENTS {
            let (ledger, kernel, over) = (ledger.clone(), Kernel::default(), Arc::clone(&over));
            kernels.push(kernel.clone());
            sim.client(name, async move {
                let client = client("server", &kernel).build();
                let mut workers = JoinSet::new();
                for _ in 0..6 {
                    let work = client.service::<WorkClient>();
                    workers.spawn(call_again_and_again(work, ledger.clone(), patience, Arc::clone(&over)));
                }
                workers.join_all().await;
                until_one_succeeds(&client, &ledger).await;
                leave([client], &kernel).await;
                Ok(())
            });
        }
        Self { kernels, over }
    }

    fn kernel(&self, name: &str) -> &Kernel {
        let at = CLIENTS.iter().position(|client| *client == name).expect("one of the clients");
        &self.kernels[at]
    }

    /// Lets every client see its last calls through.
    fn finish(self, sim: &mut Sim<'_>) {
        self.over.store(true, SeqCst);
        finish(sim);
    }
}

async fn call_again_and_again(work: WorkClient, ledger: Ledger, patience: Patience, over: Arc<AtomicBool>) {
    while !over.load(SeqCst) {
        let endless = patience == Patience::Endless && one_in(3);
        let limit = (!endless).then(|| between(1, 250));
        let call = ledger.call(&work, fastrand::u64(..40), limit);
        // Now and then a caller leaves.
        if one_in(8) {
            let _ = timeout(between(0, 60), call).await;
        } else {
            let _ = call.await;
        }
        sleep(between(0, 15)).await;
    }
}

/// When nothing is broken any more, calls must succeed soon.
async fn until_one_succeeds(client: &Client, ledger: &Ledger) {
    let (work, began) = (client.service::<WorkClient>(), Instant::now());
    loop {
        match ledger.call(&work, 1, Some(1_000 * MS)).await {
            Ok(_) => return,
            Err(error) => {
                assert!(began.elapsed() < 1_500 * MS, "still after {:?}: {error:?}", began.elapsed());
                sleep(error.retry_delay().unwrap_or(5 * MS).max(Duration::from_millis(1))).await;
            }
        }
    }
}
