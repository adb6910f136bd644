//! Connections that are aborted wherever they are.

use std::{env, net::SocketAddr, time::Duration};

use fastrand::Rng;
use sluicegate::Client;
use tokio::{io::AsyncWriteExt, task::JoinSet, time::sleep};

use crate::{
    LIMIT, TURN, farewell,
    kit::{Besiegers, Figures, Server, connect_from, figure, is_full, size},
    support::{Req, method, raw::hello_with},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_aborted_at_any_byte_cost_no_permit_and_give_none_away() {
    const WAVE: u64 = 500;
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let (seeds, waves) = (seeds(), size(1, 20));
    let mut server = Server::start("aborts").await;
    println!("\n{seeds} times {} connections aborted", waves * WAVE);
    let mut net = 0;
    // What is in use when the server is warm is what it may have in the end.
    for _ in 0..size(0, waves) {
        abort_many(&besiegers, &server, WAVE, u64::MAX, &mut net).await;
    }
    server.until_idle().await;
    server.trim().await;
    let (warm, mut slowest) = (server.memory(), Duration::ZERO);
    for seed in 0..seeds {
        for _ in 0..waves {
            abort_many(&besiegers, &server, WAVE, seed, &mut net).await;
        }
        slowest = slowest.max(server.until_idle().await);
        server.trim().await;
        println!("    memory after seed {seed}: {:.1} MiB, warm {warm:.1} MiB", server.memory());
    }
    figure("from the last close until idle", slowest.as_secs_f64(), "s", 1.0);
    figure("memory above warm", server.memory() - warm, "MiB", 8.0);
    let figures = server.figures().await;
    let (calls, most, refused) = (figures.of("acquired"), figures.of("most_held"), figures.of("refused_global"));
    println!("    {calls} calls admitted, {most} at once, {refused} refused, none held; peak {:.0} MiB", server.peak());
    assert!(calls > 0 && most <= LIMIT && figures.of("panics") == 0, "{figures:?}");
    assert!(!is_full() || refused > 0, "the limit was never reached");
    admits_as_many_as_its_limit(&mut server).await;
    assert!(server.shut_down().await.is_empty());
}

/// Twenty in a siege of full size, or as many as are asked for.
fn seeds() -> u64 {
    match env::var("SLUICEGATE_SIEGE_SEEDS") {
        Ok(seeds) => seeds.parse().expect("a number of seeds"),
        Err(_) => size(1, 20),
    }
}

/// Connections that are all aborted, each somewhere else.
async fn abort_many(besiegers: &Besiegers, server: &Server, peers: u64, seed: u64, net: &mut u16) {
    *net += 1;
    let (net, address, mut wave) = (*net, server.address, JoinSet::new());
    let all = async move {
        for n in 0..peers {
            wave.spawn(abort(address, net, Rng::with_seed(seed << 32 | u64::from(net) << 16 | n)));
        }
        wave.join_all().await;
    };
    besiegers.run(all).await;
    // Connections are accepted in turn: whoever is told anything behind them shows that all of them were. Until
    // then a server may be idle and still have them before it.
    let _ = Client::new(address).call::<_, String>(method::ECHO, ("the last",)).await;
}

/// Goes away in the midst of whatever it does.
async fn abort(server: SocketAddr, net: u16, mut random: Rng) {
    let place = random.u8(..7);
    let mut socket = connect_from(net, server, (place == 5).then_some(4_096)).await;
    let call = Req::new(1, method::ECHO, ("x".repeat(random.usize(100..40_000)),)).bytes();
    // Of the call that is cut, none of its length, some of it, some of its header, or some of its body.
    let cut = match place {
        1 => random.usize(1..4),
        2 => random.usize(4..16),
        3 => random.usize(60..call.len()),
        _ => 0,
    };
    let greeting = hello_with(|hello| hello.max_message = 2 << 20);
    let said = match place {
        0 => Vec::new(),
        1..=3 => [&greeting, &call[..cut]].concat(),
        // More than is taken by all that lies between.
        5 => [greeting, (1..4).flat_map(|id| Req::new(id, method::LARGE, (1_u32 << 20,)).bytes()).collect()].concat(),
        6 => [greeting, Req::new(1, method::SLEEP, (random.u64(..20),)).bytes()].concat(),
        _ => [greeting, Req::new(1, method::SLEEP, (60_000_u64,)).bytes()].concat(),
    };
    // A server that had enough may have closed.
    let _ = socket.write_all(&said).await;
    if place == 6 {
        if random.bool() {
            let _ = socket.write_all(&farewell()).await;
        }
        let _ = socket.shutdown().await;
    }
    sleep(Duration::from_micros(random.u64(..30_000))).await;
    if place == 5 || random.bool() {
        let _ = socket.set_zero_linger();
    }
}

/// So many calls pass at once, and not one more.
async fn admits_as_many_as_its_limit(server: &mut Server) {
    let refused = server.figures().await.of("refused_global");
    let client = Client::new(server.address);
    let mut calls = JoinSet::new();
    for n in 0..LIMIT + 16 {
        let client = client.clone();
        calls.spawn(async move { client.call::<_, u64>(method::GATE, (n,)).await });
    }
    let all = |figures: &Figures| figures.of("held") == LIMIT && figures.of("refused_global") == refused + 16;
    server.until("the limit is met exactly", all).await;
    drop(calls);
    drop(client);
    server.until_idle().await;
}
