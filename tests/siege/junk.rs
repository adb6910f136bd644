//! Peers that do not speak the protocol.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use fastrand::Rng;
use rpc_codec::{Decoded, Frame, FrameDecoder, Hello};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    FOR_EVER, MS, SECOND, TURN,
    kit::{Besiegers, Polite, Server, connect_from, figure, size},
    support::raw::hello,
};

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
    besieged.judge(&calm);
    // Each may have one frame under way, of 256 KiB at most.
    figure("peak above calm", server.peak() - before, "MiB", 4.0 + JUNKERS as f64 / 4.0);
    polite.leave();
    server.until_idle().await;
    let figures = server.figures().await;
    println!("    {} errors of the protocol", figures.of("protocol_errors"));
    assert!(figures.of("panics") == 0 && figures.of("protocol_errors") > 0, "{figures:?}");
    server.shut_down().await;
}

/// Sends random bytes in random pieces on one connection until the server has closed it; how many. Half
/// of them come behind a greeting, and some look like frames.
async fn talk_junk(server: SocketAddr, random: &mut Rng) -> u64 {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_of_another_protocol_that_stay_are_told_so_once_and_keep_nobody_busy() {
    let (_turn, besiegers) = (TURN.lock().await, Besiegers::gather());
    let peers = size(50, 1_000_u64);
    println!("\n{peers} peers that begin with bytes that are no greeting, and stay");
    let mut server = Server::start("strangers").await;
    let address = server.address;
    let all = async move {
        let mut strangers = JoinSet::new();
        for n in 0..peers {
            strangers.spawn(be_a_stranger(address, 200 + (n / 500) as u16));
        }
        // They have been told when they are joined, and still have their sockets.
        strangers.join_all().await
    };
    let strangers = besiegers.run(all).await;
    let (cpu, began) = (server.cpu(), Instant::now());
    sleep(size(MS * 300, SECOND * 3)).await;
    let busy = (server.cpu() - cpu) / began.elapsed().as_secs_f64() * 100.0;
    figure("a core is busy with those who stay", busy, "%", 5.0);
    server.until_idle().await;
    assert_eq!(server.figures().await.of("protocol_errors"), peers);
    drop(strangers);
    server.shut_down().await;
}

/// Speaks another protocol, and is told so once.
async fn be_a_stranger(server: SocketAddr, net: u16) -> TcpStream {
    let mut socket = connect_from(net, server, None).await;
    socket.write_all(&[0; 64]).await.expect("the server reads");
    let mut told = Vec::new();
    let read = async { while socket.read_buf(&mut told).await.is_ok_and(|read| read > 0) {} };
    timeout(FOR_EVER, read).await.expect("it is not told");
    let Ok(Decoded::Frame { frame: Frame::GoAway(_), len }) = FrameDecoder::new(1 << 16).decode(&told) else {
        panic!("{told:?} is no farewell")
    };
    assert_eq!(told.len(), len, "it was told more than once");
    socket
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
