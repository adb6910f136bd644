//! Peers that do not read, and peers that hardly say anything.

use std::{
    net::SocketAddr,
    sync::LazyLock,
    time::{Duration, Instant},
};

use rpc_codec::CodecId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    FOR_EVER, MS, SECOND, TURN,
    kit::{BARE, Besiegers, Polite, Server, connect_from, figure, size},
    support::{
        Req,
        feed::named,
        method,
        raw::{frame, hello},
    },
};

pub(crate) fn stall_time() -> Duration {
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
    let ((), besieged) = polite.beside(stall(&besiegers, &mut server, &polite, peers)).await;
    let peak = server.peak() - before;
    let figures = server.figures().await;
    assert_eq!(figures.of("cut_write"), u64::from(peers), "{figures:?}");
    let kept = server.memory() - before;
    server.trim().await;
    let in_use = server.memory() - before;
    besieged.judge(&calm);
    polite.leave();
    server.until_idle().await;
    println!("    memory that the allocator keeps above calm: {kept:.2} MiB");
    figure("memory in use above calm, when they are cut", in_use, "MiB", 32.0);
    // The mark and a message; of tasks, one more on its way from the task into the buffer.
    let messages = if figures.of("demoted") > 0 { 2.0 } else { 1.0 };
    figure("peak above calm", peak, "MiB", f64::from(peers) * (256.0 + 64.0 * messages) / 1024.0);
    server.shut_down().await;
}

/// Lets so many peers stall until all are cut.
async fn stall(besiegers: &Besiegers, server: &mut Server, polite: &Polite, peers: u32) {
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
        assert_eq!(figures.of("connections"), u64::from(peers) + 1, "not all have come, or some have gone");
        polite.begin_anew();
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
async fn ask_and_never_read(server: SocketAddr) {
    /// More than the kernel takes; made once, so that to ask costs less than to answer.
    static ASKED: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let requests = (1..20_000).flat_map(|id| Req::new(id, method::LARGE, (64_u32 << 10,)).bytes());
        hello().into_iter().chain(requests).collect()
    });
    let mut socket = connect_from(1, server, Some(4_096)).await;
    let written = timeout(FOR_EVER, socket.write_all(&ASKED)).await.expect("it is never cut");
    assert!(written.is_err(), "all was taken");
}

/// Within it all of them have to be connected.
pub(crate) fn dribble_time() -> Duration {
    size(2 * SECOND, 8 * SECOND)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_say_nothing_or_dribble_are_gone_in_time() {
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let peers = size(100, 5_000);
    let time = dribble_time();
    println!("\n{peers} peers that say nothing, or a byte a second, within {time:?}");
    let bare = busy_barely(&besiegers, peers, time).await;
    let mut server = Server::start("dribbles").await;
    let polite = Polite::start(&server);
    let (cpu, began) = (server.cpu(), Instant::now());
    let calm = polite.calm().await;
    let polite_share = (server.cpu() - cpu) / began.elapsed().as_secs_f64() * 100.0;
    let before = server.memory();
    let siege = async {
        let address = server.address;
        let all = async move { besiege(address, peers).await.join_all().await };
        let sitting = async {
            server.until("all are connected", |figures| figures.of("connections") == peers + 1).await;
            polite.begin_anew();
            busy(&server, time / 2).await
        };
        tokio::join!(sitting, besiegers.run(all))
    };
    let ((busy, gone), besieged) = polite.beside(siege).await;
    // Of two kinds, parts are kept that have come.
    let sent = (0..peers).map(|n| Slow::of(n).at_once.len()).sum::<usize>() as f64 / peers as f64 / 1024.0;
    let peak = (server.peak() - before) * 1024.0 / peers as f64;
    println!("    peak above calm for each: {peak:.2} KiB, of which it has sent {sent:.2}");
    figure("peak above calm for each, beyond what it has sent", peak - sent, "KiB", 7.0);
    println!("    a core is busy while they sit: {busy:.1} %; with the polite client alone: {polite_share:.1} %");
    println!("    a core is busy where all that they say is only read: {bare:.1} %");
    // To wake up for a byte, and to find what is known of its peer in cold memory, costs what the machine has it cost:
    // where that alone is much, it is held against that.
    figure("a core is busy because of those who sit", busy - polite_share, "%", f64::max(5.0, 3.5 * bare));
    let (first, last) = (gone.iter().min().unwrap(), gone.iter().max().unwrap());
    println!("    gone between {first:.2?} and {last:.2?}");
    assert!(*first >= time - 100 * MS, "one was cut after {first:?}");
    figure("the last is gone after", last.as_secs_f64(), "s", time.as_secs_f64() + 1.0);
    besieged.judge(&calm);
    let figures = server.figures().await;
    let cut: u64 = ["cut_first_byte", "cut_handshake", "cut_frame"].iter().map(|name| figures.of(name)).sum();
    assert_eq!(cut, peers, "{figures:?}");
    polite.leave();
    server.until_idle().await;
    server.shut_down().await;
}

/// So many slow peers, once all are connected; what comes of each is how long the server had patience.
async fn besiege(server: SocketAddr, peers: u64) -> JoinSet<Duration> {
    let mut slow = JoinSet::new();
    for n in 0..peers {
        let socket = connect_from((n / 500) as u16, server, None).await;
        slow.spawn(dribble(socket, Slow::of(n)));
    }
    slow
}

/// How much of a core, in per cent, a server is busy during `time`.
async fn busy(server: &Server, time: Duration) -> f64 {
    let (cpu, began) = (server.cpu(), Instant::now());
    sleep(time).await;
    (server.cpu() - cpu) / began.elapsed().as_secs_f64() * 100.0
}

/// As [`busy`], of a server that only reads what as many slow peers say.
async fn busy_barely(besiegers: &Besiegers, peers: u64, time: Duration) -> f64 {
    let server = Server::start(BARE).await;
    let address = server.address;
    let _slow = besiegers.run(async move { besiege(address, peers).await }).await;
    busy(&server, time / 2).await
}

/// What a slow peer says at once, and what it says byte by byte.
struct Slow {
    at_once: Vec<u8>,
    dribbled: Vec<u8>,
}

impl Slow {
    /// The `n`th kind.
    fn of(n: u64) -> Self {
        let whole = match n % 7 {
            0 => return Self { at_once: Vec::new(), dribbled: Vec::new() },
            1 => return Self::split(hello(), 1),
            _ => Req::new(1, method::ECHO, ("z".repeat(1_000),)).bytes(),
        };
        let mut greeted = hello();
        let begins = greeted.len();
        match n % 7 {
            // In the header, in the body, and without another byte.
            2 => Self::split([greeted, whole].concat(), begins + 1),
            3 => Self::split([greeted, whole].concat(), begins + 500),
            4 => Self { at_once: [&greeted, &whole[..600]].concat(), dribbled: Vec::new() },
            // The second part of a body, and of an item.
            5 => {
                greeted.extend_from_slice(&first_part(100_000));
                let begins = greeted.len();
                Self::split([greeted, frame(4, 1, 1, &[], &[0; 8_192])].concat(), begins + 1)
            }
            _ => {
                greeted.extend(Req::new(1, named("measure"), ()).sends().bytes());
                greeted.extend(frame(5, 1, 1, &100_000_u32.to_be_bytes(), &[0; 8_192]));
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
