//! Sieges over real sockets: a thousand who never read, five thousand who dribble, floods, junk, and
//! servers that are restarted under load. Whatever peers do costs them, and nobody else.
//!
//! They are small, and measure little, unless `SLUICEGATE_SIEGE=full` asks for the sizes that the
//! figures are about; that takes some minutes, optimised:
//!
//! ```sh
//! SLUICEGATE_SIEGE=full cargo test --release --test siege -- --nocapture
//! ```
//!
//! Time is real here, and peers are sockets whatever transports the run asks for.
#![cfg(target_os = "linux")]

#[path = "support/siege.rs"]
mod siege;
mod support;

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use rpc_codec::{CodecId, Decoded, Frame, FrameDecoder, GoAwayReason, Hello, encode_go_away, encode_ping, encode_pong};
use rpc_core::CallId;
use siege::{Besiegers, Ledger, Polite, Server, connect_from, figure, is_full, latencies, serve_if_child, size};
use sluicegate::{Client, Executed, server::ServerBuilder};
use support::{
    Req, method,
    raw::{cancel, frame, hello, hello_with},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

/// Sieges wait for each other, since they measure.
static TURN: Mutex<()> = Mutex::const_new(());

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Longer than any peer has to wait for anything.
const FOR_EVER: Duration = Duration::from_secs(60);

/// The server itself, when it is started by one of the others.
#[test]
fn a_siege_has_a_server_in_a_process_of_its_own() {
    serve_if_child(configure);
}

/// The settings of each siege's server.
fn configure(siege: &str, builder: ServerBuilder) -> ServerBuilder {
    match siege {
        "aborts" => builder.max_concurrent_calls(LIMIT),
        "stalls" => builder.write_timeout(stall_time()),
        "dribbles" => {
            let time = dribble_time();
            builder.first_byte_timeout(time).handshake_timeout(time).frame_timeout(time)
        }
        "cancels" => builder.max_concurrent_calls(LIMIT).max_concurrent_calls_per_connection(LIMIT / 2),
        "unbounded floods" => builder.control_frame_rate(None),
        _ => builder,
    }
}

const LIMIT: u64 = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_aborted_at_any_byte_cost_no_permit_and_give_none_away() {
    const WAVE: u64 = 500;
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let (seeds, waves) = size((1, 1), (20, 20));
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
    let _ = Client::new(address.to_string()).call::<_, String>(method::ECHO, ("the last",)).await;
}

/// Goes away in the midst of whatever it does.
async fn abort(server: std::net::SocketAddr, net: u16, mut random: Rng) {
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

fn farewell() -> Vec<u8> {
    let mut out = Vec::new();
    encode_go_away(&mut out, CallId::CONNECTION, GoAwayReason::Drain, "bye");
    out
}

/// So many calls pass at once, and not one more.
async fn admits_as_many_as_its_limit(server: &mut Server) {
    let refused = server.figures().await.of("refused_global");
    let client = Client::new(server.address.to_string());
    let mut calls = JoinSet::new();
    for n in 0..LIMIT + 16 {
        let client = client.clone();
        calls.spawn(async move { client.call::<_, u64>(method::GATE, (n,)).await });
    }
    let all = |figures: &siege::Figures| figures.of("held") == LIMIT && figures.of("refused_global") == refused + 16;
    server.until("the limit is met exactly", all).await;
    drop(calls);
    drop(client);
    server.until_idle().await;
}

fn stall_time() -> Duration {
    size(SECOND, 10 * SECOND)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_ask_and_never_read_cost_what_they_are_allowed_until_they_are_cut() {
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let peers = size(50, 1_000_u32);
    println!("\n{peers} peers that ask for 64 KiB replies and never read");
    let mut server = Server::start("stalls").await;
    let polite = Polite::start(&server);
    let calm = polite.calm().await;
    let before = server.memory();
    let ((), besieged) = polite.beside(stall(&besiegers, &mut server, peers)).await;
    let peak = server.peak() - before;
    let figures = server.figures().await;
    assert_eq!(figures.of("cut_write"), u64::from(peers), "{figures:?}");
    let kept = server.memory() - before;
    server.trim().await;
    let in_use = server.memory() - before;
    polite.leave();
    server.until_idle().await;
    println!("    memory that the allocator keeps above calm: {kept:.2} MiB");
    figure("memory in use above calm, when they are cut", in_use, "MiB", 32.0);
    // The mark and a message; of tasks, one more on its way from the task into the buffer.
    let messages = if figures.of("demoted") > 0 { 2.0 } else { 1.0 };
    figure("peak above calm", peak, "MiB", f64::from(peers) * (256.0 + 64.0 * messages) / 1024.0);
    latencies(&calm, &besieged);
    server.shut_down().await;
}

/// Lets so many peers stall until all are cut.
async fn stall(besiegers: &Besiegers, server: &mut Server, peers: u32) {
    let (address, mut stalled) = (server.address, JoinSet::new());
    let asking = async move {
        for _ in 0..peers {
            stalled.spawn(ask_and_never_read(address));
            // What one asks for is work, and a polite client shares the server with who is being served.
            sleep(size(Duration::ZERO, 4 * MS)).await;
        }
        stalled.join_all().await;
    };
    let looking = async {
        sleep(stall_time() * 3 / 4).await;
        let figures = server.figures().await;
        let [answers, requests] = ["buffered", "inbound"].map(|name| figures.of(name) >> 20);
        let (calls, demoted) = (figures.of("held"), figures.of("demoted"));
        println!(
            "    stalled: {calls} calls, {answers} MiB of answers, {requests} of requests; {demoted} methods demoted"
        );
    };
    tokio::join!(besiegers.run(asking), looking);
    server.until("the others are gone", |figures| figures.of("connections") == 1).await;
}

/// Sends calls until it cannot any more, and reads nothing.
async fn ask_and_never_read(server: std::net::SocketAddr) {
    /// More than the kernel takes; made once, so that to ask costs less than to answer.
    static ASKED: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let requests = (1..20_000).flat_map(|id| Req::new(id, method::LARGE, (64_u32 << 10,)).bytes());
        hello().into_iter().chain(requests).collect()
    });
    let mut socket = connect_from(1, server, Some(4_096)).await;
    let written = timeout(FOR_EVER, socket.write_all(&ASKED)).await.expect("it is never cut");
    assert!(written.is_err(), "all was taken");
}

fn dribble_time() -> Duration {
    size(SECOND, 8 * SECOND)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_say_nothing_or_dribble_are_gone_in_time() {
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let peers = size(100, 5_000);
    let time = dribble_time();
    println!("\n{peers} peers that say nothing, or a byte a second, within {time:?}");
    let mut server = Server::start("dribbles").await;
    let polite = Polite::start(&server);
    let calm = polite.calm().await;
    let before = server.memory();
    let siege = async {
        let (address, mut slow) = (server.address, JoinSet::new());
        let all = async move {
            for n in 0..peers {
                let socket = connect_from((n / 500) as u16, address, None).await;
                slow.spawn(dribble(socket, Slow::of(n)));
            }
            slow.join_all().await
        };
        let sitting = async {
            server.until("all are connected", |figures| figures.of("connections") == peers + 1).await;
            let (cpu, began) = (server.cpu(), Instant::now());
            sleep(time / 2).await;
            (server.cpu() - cpu) / began.elapsed().as_secs_f64() * 100.0
        };
        tokio::join!(sitting, besiegers.run(all))
    };
    let ((busy, gone), besieged) = polite.beside(siege).await;
    println!("    peak above calm {:.1} MiB", server.peak() - before);
    // The polite client's thousand calls a second are in it.
    figure("a core is busy while they sit", busy, "%", 5.0 + POLITE_SHARE);
    let (first, last) = (gone.iter().min().unwrap(), gone.iter().max().unwrap());
    println!("    gone between {first:.2?} and {last:.2?}");
    assert!(*first >= time - 100 * MS, "one was cut after {first:?}");
    figure("the last is gone after", last.as_secs_f64(), "s", time.as_secs_f64() + 1.0);
    latencies(&calm, &besieged);
    let figures = server.figures().await;
    let cut: u64 = ["cut_first_byte", "cut_handshake", "cut_frame"].iter().map(|name| figures.of(name)).sum();
    assert_eq!(cut, peers, "{figures:?}");
    polite.leave();
    server.until_idle().await;
    server.shut_down().await;
}

/// What a polite client may take of a core in hundredths.
const POLITE_SHARE: f64 = 10.0;

/// What a slow peer says at once, and what it says byte by byte.
struct Slow {
    at_once: Vec<u8>,
    dribbled: Vec<u8>,
}

impl Slow {
    /// The `n`th kind.
    fn of(n: u64) -> Self {
        let whole = match n % 6 {
            0 => return Self { at_once: Vec::new(), dribbled: Vec::new() },
            1 => return Self::split(hello(), 1),
            _ => Req::new(1, method::ECHO, ("z".repeat(1_000),)).bytes(),
        };
        let mut greeted = hello();
        let begins = greeted.len();
        match n % 6 {
            // In the header, in the body, and without another byte.
            2 => Self::split([greeted, whole].concat(), begins + 1),
            3 => Self::split([greeted, whole].concat(), begins + 500),
            4 => Self { at_once: [&greeted, &whole[..600]].concat(), dribbled: Vec::new() },
            // The second part of a body.
            _ => {
                greeted.extend_from_slice(&first_part(100_000));
                let begins = greeted.len();
                Self::split([greeted, frame(4, 1, 1, &[], &[0; 8_192])].concat(), begins + 1)
            }
        }
    }

    fn split(mut at_once: Vec<u8>, at: usize) -> Self {
        let dribbled = at_once.split_off(at);
        Self { at_once, dribbled }
    }
}

/// The first part of a body that has so many bytes.
fn first_part(body_len: u32) -> Vec<u8> {
    let mut part = Req::new(1, method::BYTES, ()).head(|head| head.codec = CodecId::BYTES).body([0; 8_192]).bytes();
    // The flag MORE, and the length in the head.
    part[5] = 1;
    part[36..40].copy_from_slice(&body_len.to_be_bytes());
    part
}

/// Says it, and tells how long the server had patience.
async fn dribble(mut socket: TcpStream, slow: Slow) -> Duration {
    let began = Instant::now();
    let pause = size(SECOND / 5, SECOND);
    socket.write_all(&slow.at_once).await.expect("the server listens");
    let mut dribbled = slow.dribbled.into_iter();
    let mut received = [0; 512];
    while began.elapsed() < FOR_EVER {
        match timeout(pause, socket.read(&mut received)).await {
            Ok(Ok(0) | Err(_)) => return began.elapsed(),
            Ok(Ok(_)) => {}
            // A server that has closed may have been told more than it wanted.
            Err(_) => drop(match dribbled.next() {
                Some(byte) => socket.write_all(&[byte]).await,
                None => Ok(()),
            }),
        }
    }
    panic!("a slow peer is still there");
}

/// PING, a PONG that nobody asked for, an ignorable frame, and CANCEL of a call that has ended.
fn nuisances() -> Vec<u8> {
    let mut out = Vec::new();
    encode_ping(&mut out, *b"are you?");
    encode_pong(&mut out, *b"nonsense");
    out.extend(frame(0xc0, 0, 0, &[], &[]));
    out.extend(cancel(1));
    out
}

const NUISANCES: u64 = 4;

/// What flooding came to.
#[derive(Debug, Default)]
struct Flood {
    sent: u64,
    /// Frames that the server has taken, going by its PONGs.
    taken: u64,
    cut: bool,
}

/// Sends up to so many frames on one connection, as fast as they are taken, and reads the answers.
async fn flood(server: std::net::SocketAddr, frames: u64) -> Flood {
    let (reading, mut writing) = connect_from(2, server, None).await.into_split();
    let reader = tokio::spawn(count_pongs(reading));
    let opening = [hello(), Req::new(1, method::ECHO, ("ended",)).bytes()].concat();
    let (batch, mut sent) = (nuisances().repeat(250), 0);
    let mut good = writing.write_all(&opening).await.is_ok();
    while good && sent < frames {
        good = timeout(FOR_EVER, writing.write_all(&batch)).await.expect("the flood stands still").is_ok();
        sent += 250 * NUISANCES;
    }
    // In peace, unless the server had enough.
    let _ = writing.write_all(&farewell()).await;
    let _ = writing.shutdown().await;
    let (pongs, cut) = timeout(FOR_EVER, reader).await.expect("it is not closed").unwrap();
    Flood { sent, taken: pongs * NUISANCES, cut }
}

/// Reads to the end: the PONGs, and whether a farewell said that it was too much.
async fn count_pongs(mut reading: impl AsyncRead + Unpin) -> (u64, bool) {
    let (mut greeted, mut pongs, mut cut) = (false, 0, false);
    let (decoder, mut bytes) = (FrameDecoder::new(1 << 20), Vec::new());
    while reading.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        let mut at = 0;
        if !greeted && let Some((_, len)) = Hello::decode(&bytes).expect("the server greets first") {
            (greeted, at) = (true, len);
        }
        while let Ok(Decoded::Frame { frame, len }) = decoder.decode(&bytes[at..]) {
            at += len;
            match frame {
                Frame::Pong(_) => pongs += 1,
                Frame::GoAway(away) => cut |= away.reason == GoAwayReason::TooManyFrames,
                _ => {}
            }
        }
        bytes.drain(..at);
    }
    (pongs, cut)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_frames_that_open_no_call_are_cut_and_who_stays_below_the_rate_is_served() {
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let frames = size(50_000, 10_000_000);
    println!("\n{frames} control frames of a peer that comes back whenever it was cut, and four below the rate");
    let mut server = Server::start("floods").await;
    let polite = Polite::start(&server);
    let calm = polite.calm().await;
    besiegers.run(flood(server.address, 20_000)).await;
    let (before, began, cpu) = (server.memory(), Instant::now(), server.cpu());
    server.forget_peak();
    let (address, ends) = (server.address, Arc::new(AtomicBool::new(false)));
    let siege = async move {
        let below: Vec<_> = (0..4).map(|_| tokio::spawn(stay_below(address, Arc::clone(&ends)))).collect();
        let (mut taken, mut cuts, mut most) = (0, 0_u64, 0);
        while taken < frames {
            let began = Instant::now();
            let flood = flood(address, frames).await;
            assert!(flood.cut, "{flood:?}");
            let allowed = 10_000.0 + 1_000.0 * began.elapsed().as_secs_f64();
            assert!(flood.taken as f64 <= allowed + 4.0, "{flood:?} of {allowed}");
            (taken, cuts, most) = (taken + flood.taken, cuts + 1, most.max(flood.taken));
        }
        ends.store(true, SeqCst);
        let mut quiet = 0;
        for peer in below {
            quiet += peer.await.unwrap();
        }
        (taken, cuts, most, quiet)
    };
    let ((taken, cuts, most, quiet), besieged) = polite.beside(besiegers.run(siege)).await;
    let (elapsed, cpu) = (began.elapsed(), server.cpu() - cpu);
    println!("    {taken} frames taken in {elapsed:.2?}, at most {most} on a connection, cut {cuts} times");
    println!("    {quiet} frames of those below the rate");
    let share = cpu / taken as f64 * 1e9;
    figure("CPU per frame, with connections and polite calls", share, "ns", 500.0);
    figure("peak above calm", server.peak() - before, "MiB", 1.0);
    latencies(&calm, &besieged);
    assert_eq!(server.figures().await.of("cut_flood"), cuts + 1, "who stays below the rate was cut");
    polite.leave();
    server.until_idle().await;
    server.shut_down().await;
}

/// Sends 800 frames a second that open no call, until it is over, and is served then; how many.
async fn stay_below(server: std::net::SocketAddr, over: Arc<AtomicBool>) -> u64 {
    let (reading, mut writing) = connect_from(3, server, None).await.into_split();
    let reader = tokio::spawn(count_pongs(reading));
    writing.write_all(&[hello(), Req::new(1, method::ECHO, ("ended",)).bytes()].concat()).await.unwrap();
    let (mut ticks, mut sent) = (interval(100 * MS), 0);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !over.load(SeqCst) {
        ticks.tick().await;
        writing.write_all(&nuisances().repeat(20)).await.unwrap();
        sent += 20 * NUISANCES;
    }
    writing.write_all(&farewell()).await.unwrap();
    writing.shutdown().await.unwrap();
    let (pongs, cut) = timeout(FOR_EVER, reader).await.expect("it is not closed").unwrap();
    assert_eq!((pongs, cut), (sent / NUISANCES, false), "not every PING was answered");
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_that_is_let_costs_little_and_nothing_that_stays() {
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let frames = size(50_000, 10_000_000);
    println!("\n{frames} control frames of one peer, without a rate");
    let mut server = Server::start("unbounded floods").await;
    let polite = Polite::start(&server);
    let calm = polite.calm().await;
    // Fills all that may be filled.
    besiegers.run(flood(server.address, frames / 20)).await;
    let before = server.memory();
    server.forget_peak();
    let cpu = server.cpu();
    let (flood, besieged) = polite.beside(besiegers.run(flood(server.address, frames))).await;
    let cpu = server.cpu() - cpu;
    assert!(!flood.cut && flood.sent == frames && flood.taken == frames, "{flood:?}");
    figure("CPU per frame, with polite calls", cpu / frames as f64 * 1e9, "ns", 500.0);
    figure("peak above calm", server.peak() - before, "MiB", 1.0);
    latencies(&calm, &besieged);
    polite.leave();
    server.until_idle().await;
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_cancelled_at_once_end_at_once() {
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let pairs = size(5_000, 1_000_000);
    println!("\n{pairs} calls, each cancelled");
    let mut server = Server::start("cancels").await;
    let polite = Polite::start(&server);
    let calm = polite.calm().await;
    let before = server.memory();
    let (address, cpu, began) = (server.address, server.cpu(), Instant::now());
    let siege = async move {
        let mut socket = connect_from(4, address, None).await;
        let (mut reading, mut writing) = socket.split();
        let answers = async {
            let mut bytes = vec![0; 64 << 10];
            while reading.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
        };
        let calls = async {
            let (mut next, mut random) = (1, Rng::with_seed(37));
            let mut send = hello();
            while next <= pairs {
                // Up to twice as many at once as there is room for.
                let group = next..=(next + random.u64(..LIMIT)).min(pairs);
                next = group.end() + 1;
                send.extend(group.clone().flat_map(|id| Req::new(id, method::GATE, (id,)).bytes()));
                send.extend(group.flat_map(cancel));
                writing.write_all(&send).await.expect("the server reads");
                send.clear();
            }
            writing.write_all(&farewell()).await.expect("the server reads");
            writing.shutdown().await.expect("it is open");
        };
        timeout(2 * FOR_EVER, async { tokio::join!(answers, calls) }).await.expect("they do not end");
    };
    let ((), besieged) = polite.beside(besiegers.run(siege)).await;
    let (elapsed, cpu) = (began.elapsed(), server.cpu() - cpu);
    let figures = server.figures().await;
    let (refused, running) = (figures.of("refused_connection"), figures.of("running"));
    println!("    in {elapsed:.2?}, {:.0} ns of CPU for each; {refused} found no room", cpu / pairs as f64 * 1e9);
    println!("    at most {} ran at once, of {}", figures.of("most_running"), LIMIT / 2);
    // One may be the polite client's.
    assert!(running <= 1 && figures.of("most_running") <= LIMIT / 2 + 1, "{figures:?}");
    assert!(figures.of("refused_global") == 0, "{figures:?}");
    figure("peak above calm", server.peak() - before, "MiB", 32.0);
    latencies(&calm, &besieged);
    polite.leave();
    server.until_idle().await;
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_on_the_port_cost_their_connections_and_nothing_else() {
    const JUNKERS: u64 = 16;
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let bytes = size(1_000_000, 100_000_000);
    println!("\n{bytes} random bytes on the port");
    let mut server = Server::start("junk").await;
    let polite = Polite::start(&server);
    let calm = polite.calm().await;
    let (before, sent, mut junkers) = (server.memory(), Arc::new(AtomicU64::new(0)), JoinSet::new());
    let address = server.address;
    let siege = async move {
        for seed in 0..JUNKERS {
            let sent = Arc::clone(&sent);
            junkers.spawn(async move {
                let (mut random, mut connections) = (Rng::with_seed(seed), 0_u64);
                while sent.load(SeqCst) < bytes {
                    sent.fetch_add(talk_junk(address, &mut random).await, SeqCst);
                    connections += 1;
                }
                connections
            });
        }
        junkers.join_all().await
    };
    let (connections, besieged) = polite.beside(besiegers.run(siege)).await;
    println!("    on {} connections", connections.iter().sum::<u64>());
    latencies(&calm, &besieged);
    println!("    peak above calm {:.1} MiB", server.peak() - before);
    polite.leave();
    server.until_idle().await;
    let figures = server.figures().await;
    println!("    {} errors of the protocol", figures.of("protocol_errors"));
    assert!(figures.of("panics") == 0 && figures.of("protocol_errors") > 0, "{figures:?}");
    server.shut_down().await;
}

/// Sends random bytes in random pieces on one connection until the server has closed it; how many. Half
/// of them come behind a greeting, and some look like frames.
async fn talk_junk(server: std::net::SocketAddr, random: &mut Rng) -> u64 {
    let mut socket = connect_from(random.u16(5..200), server, None).await;
    let _ = match random.bool() {
        true => socket.write_all(&hello()).await,
        false => Ok(()),
    };
    let (mut sent, looks_right) = (0, random.bool());
    let mut piece = vec![0; 8 << 10];
    loop {
        let piece = &mut piece[..1 << random.u8(..14)];
        random.fill(piece);
        if looks_right && piece.len() > 16 {
            let len = (piece.len() - 4) as u32;
            piece[..4].copy_from_slice(&len.to_be_bytes());
            piece[4] %= 12;
            piece[5] &= 0xf1;
            piece[6] = 0;
        }
        if timeout(FOR_EVER, socket.write_all(piece)).await.expect("nobody reads it").is_err() {
            return sent;
        }
        sent += piece.len() as u64;
        // Ends by itself where the bytes are all ignorable, or begin a frame that never ends.
        if sent > 64 << 10 {
            return sent;
        }
    }
}

#[test]
fn random_bytes_cost_the_decoder_nothing_but_time() {
    let bytes = size(1_000_000, 100_000_000_usize);
    let (mut random, decoder) = (Rng::with_seed(100), FrameDecoder::new(256 << 10));
    let (mut buffer, mut fed, mut at) = (Vec::new(), 0, 0);
    let (mut frames, mut errors) = (0_u64, 0_u64);
    while fed < bytes {
        buffer.drain(..std::mem::take(&mut at));
        let piece: usize = 1 << random.u8(..16);
        let old = buffer.len();
        buffer.resize(old + piece, 0);
        random.fill(&mut buffer[old..]);
        fed += piece;
        loop {
            match decoder.decode(&buffer[at..]) {
                Ok(Decoded::Frame { len, .. }) => (at, frames) = (at + len, frames + 1),
                // Whatever a length claims, it is waited for within the bound.
                Ok(Decoded::Incomplete { frame_len }) => {
                    assert!(frame_len.is_none_or(|len| len <= (256 << 10) + 4), "{frame_len:?}");
                    break;
                }
                Err(_) => (at, errors) = (at + 1, errors + 1),
            }
            let _ = Hello::decode(&buffer[at..]);
        }
    }
    println!("\n{fed} random bytes through the decoder: {frames} frames, {errors} errors");
    assert!(errors > bytes as u64 / 100, "most of them are no frames");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_restarted_in_turn_fail_no_call_and_execute_none_twice() {
    let _turn = TURN.lock().await;
    let restarts = size(4, 100);
    println!("\n{restarts} restarts of two servers in turn, under 2,000 calls a second");
    // Addresses that nobody else has, so that they are free again.
    let mut servers = Vec::new();
    for host in [1, 2] {
        servers.push(Server::start_at("restarts", ([127, 1, 0, host], 0).into()).await);
    }
    let clients: Vec<_> = servers
        .iter()
        .map(|server| Client::builder(server.address.to_string()).backoff(10 * MS, 100 * MS).build())
        .collect();
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
