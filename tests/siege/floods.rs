//! Peers that say much and want nothing.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Instant,
};

use fastrand::Rng;
use rpc_codec::{Decoded, Frame, FrameDecoder, GoAwayReason, Hello, encode_credit, encode_ping, encode_pong};
use rpc_core::CallId;
use sluicegate::{Bytes, Client};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    FOR_EVER, LIMIT, MS, TURN, farewell,
    kit::{Besiegers, Polite, Server, connect_from, figure, size},
    support::{
        Req,
        feed::{FeedClient, named},
        method,
        raw::{cancel, frame, hello},
    },
};

/// What comes first: a call that ends, one whose items wait for nothing but credit, and one with items that is
/// given up.
fn opening() -> Vec<u8> {
    let ended = Req::new(1, method::ECHO, ("ended",)).bytes();
    let stalled = Req::new(STALLED, named("stall"), (0_u64,)).takes().bytes();
    let given_up = Req::new(3, named("sum"), (0_u64,)).sends().bytes();
    [hello(), ended, stalled, given_up, cancel(3)].concat()
}

/// The stream that has to be given up before its connection can end in peace.
const STALLED: u64 = 2;

fn parting() -> Vec<u8> {
    [cancel(STALLED), farewell()].concat()
}

/// PING, a PONG that nobody asked for, an ignorable frame; CANCEL, a part and an empty item of calls that have
/// ended; and credit that nobody needs.
fn nuisances() -> Vec<u8> {
    let mut out = Vec::new();
    encode_ping(&mut out, *b"are you?");
    encode_pong(&mut out, *b"nonsense");
    out.extend(frame(0xc0, 0, 0, &[], &[]));
    out.extend(cancel(1));
    out.extend(frame(4, 0, 1, &[], &[]));
    out.extend(frame(5, 0, 3, &[], &[]));
    encode_credit(&mut out, CallId::new(STALLED, 0), 1);
    out
}

const NUISANCES: u64 = 7;
/// Empty items that the window of a stream has room for are no nuisance.
const WINDOW_ITEMS: f64 = 1_024.0;

/// What flooding came to.
#[derive(Debug, Default)]
struct Flood {
    sent: u64,
    /// Frames that the server has taken, going by its PONGs.
    taken: u64,
    cut: bool,
}

/// Sends up to so many frames on one connection, as fast as they are taken, and reads the answers.
async fn flood(server: SocketAddr, frames: u64) -> Flood {
    let (reading, mut writing) = connect_from(2, server, None).await.into_split();
    let reader = tokio::spawn(count_pongs(reading));
    let (batch, mut sent) = (nuisances().repeat(250), 0);
    let mut good = writing.write_all(&opening()).await.is_ok();
    while good && sent < frames {
        good = timeout(FOR_EVER, writing.write_all(&batch)).await.expect("the flood stands still").is_ok();
        sent += 250 * NUISANCES;
    }
    // In peace, unless the server had enough.
    let _ = writing.write_all(&parting()).await;
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
            let allowed = 10_000.0 + WINDOW_ITEMS + 1_000.0 * began.elapsed().as_secs_f64();
            // Of the first of a batch it is known whether it was taken, and not of the others.
            assert!(flood.taken as f64 <= allowed + 2.0 * NUISANCES as f64, "{flood:?} of {allowed}");
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
    besieged.judge(&calm);
    assert_eq!(server.figures().await.of("cut_flood"), cuts + 1, "who stays below the rate was cut");
    polite.leave();
    server.until_idle().await;
    server.shut_down().await;
}

/// Sends 770 frames a second that open no call, until it is over, and is served then; how many.
async fn stay_below(server: SocketAddr, over: Arc<AtomicBool>) -> u64 {
    let (reading, mut writing) = connect_from(3, server, None).await.into_split();
    let reader = tokio::spawn(count_pongs(reading));
    writing.write_all(&opening()).await.unwrap();
    let (mut ticks, mut sent) = (interval(100 * MS), 0);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !over.load(SeqCst) {
        ticks.tick().await;
        writing.write_all(&nuisances().repeat(11)).await.unwrap();
        sent += 11 * NUISANCES;
    }
    writing.write_all(&parting()).await.unwrap();
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
    // Fills all that may be filled, on every thread of the server.
    let address = server.address;
    let several = async move { (0..4).map(|_| flood(address, frames / 20)).collect::<JoinSet<_>>().join_all().await };
    besiegers.run(several).await;
    let before = server.memory();
    server.forget_peak();
    let cpu = server.cpu();
    let (flood, besieged) = polite.beside(besiegers.run(flood(server.address, frames))).await;
    let cpu = server.cpu() - cpu;
    assert!(!flood.cut && flood.sent >= frames && flood.taken == flood.sent, "{flood:?}");
    figure("CPU per frame, with polite calls", cpu / frames as f64 * 1e9, "ns", 500.0);
    figure("peak above calm", server.peak() - before, "MiB", 1.0);
    besieged.judge(&calm);
    polite.leave();
    server.until_idle().await;
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_items_that_are_taken_cost_little_and_nothing_that_stays() {
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let items = size(20_000, 10_000_000_u64);
    println!("\n{items} empty items of one stream");
    let mut server = Server::start("items").await;
    let address = server.address.to_string();
    let send = move |items| {
        let feed: FeedClient = Client::new(&*address).service();
        async move {
            let (mut blocks, measured) = feed.measure().open().await.expect("there is room");
            for _ in 0..items {
                blocks.send(Bytes::new()).await.expect("the service takes them");
            }
            blocks.end();
            assert_eq!(measured.await.expect("they are counted"), 0);
        }
    };
    besiegers.run(send(items / 20)).await;
    let (before, cpu) = (server.memory(), server.cpu());
    server.forget_peak();
    besiegers.run(send(items)).await;
    figure("CPU per item", (server.cpu() - cpu) / items as f64 * 1e9, "ns", 500.0);
    figure("peak above calm", server.peak() - before, "MiB", 1.0);
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
    besieged.judge(&calm);
    polite.leave();
    server.until_idle().await;
    server.shut_down().await;
}
