//! Clients that send calls for as long as anything is taken of them, and never read an answer.

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench_kit::BoxError;
use bench_kit::overload::Work;
use clap::Args;

use super::{Template, Wire};

/// How to be clients that never read.
#[derive(Debug, Args)]
pub(crate) struct DeafArgs {
    /// Where the server listens.
    #[arg(long)]
    addr: SocketAddr,
    /// Their number.
    #[arg(long)]
    clients: usize,
}

/// Calls that are written at once.
const BATCH: usize = 64;

/// Sends until standard input ends; prints how many bytes were taken.
pub(crate) fn deaf(args: &DeafArgs) -> Result<(), BoxError> {
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    thread::spawn(move || {
        io::stdin().lock().lines().for_each(drop);
        told.store(true, Ordering::Relaxed);
    });
    let echo = Template::new(Work::default(), 0)?;
    let connect = || Wire::connect(args.addr);
    let mut clients = (0..args.clients).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    let mut taken = 0;
    while !over.load(Ordering::Relaxed) {
        for client in &mut clients {
            match batch(client, &echo) {
                Ok(bytes) => taken += bytes,
                // One that the server has cut off comes back, as an abuser would.
                Err(_lost) => {
                    if let Ok(again) = connect() {
                        *client = again;
                    }
                }
            }
        }
        pause();
    }
    println!("{taken}");
    Ok(())
}

/// Sends a batch, or what is left of one; nothing if the socket is full.
fn batch(client: &mut Wire, echo: &Template) -> io::Result<usize> {
    let now = Instant::now();
    if client.unsent() == 0 {
        for _ in 0..BATCH {
            client.call(echo, Duration::ZERO, now);
        }
    }
    client.send()
}

/// Short enough for each to send some megabytes a second, if they are taken.
#[expect(clippy::disallowed_methods, reason = "this program has no runtime")]
fn pause() {
    thread::sleep(Duration::from_millis(5));
}
