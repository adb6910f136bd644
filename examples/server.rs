//! The library as a process of its own; `client` is the other end.
//!
//! ```text
//! cargo run --release --example server -- --addr 127.0.0.1:7000 --max-concurrent 64 --rate 5000
//! ```
//!
//! A limit that is not named is not set, but for the bounds that every server has. SIGTERM and SIGINT (on Windows Ctrl-C)
//! let running calls finish; the second of them does not wait for anything.

mod library;

use std::{collections::BTreeMap, error::Error, io, io::Write, net::SocketAddr, pin::pin, time::Duration};

use clap::Parser;
use futures::future::{Either, select};
use serde::Serialize;
use sluicegate::{
    Server,
    limit::Rate,
    server::{BoundServer, ServerHandle},
};
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::library::{LibraryServer, Shelf};

/// Serves a library of books.
#[derive(Debug, Parser)]
struct Args {
    /// Where to listen; port 0 is any that is free.
    #[arg(long, default_value = "127.0.0.1:7000")]
    addr: String,
    /// Calls that may be in flight at once.
    #[arg(long, value_name = "CALLS")]
    max_concurrent: Option<u64>,
    /// Calls per second, of all clients together.
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Calls that may come at once before the rate bites [default: the rate's share of 10 ms].
    #[arg(long, value_name = "CALLS", requires = "rate")]
    burst: Option<u32>,
    /// Calls per second on each connection.
    #[arg(long, value_name = "PER_SECOND")]
    connection_rate: Option<f64>,
    /// As --burst, for the rate of a connection.
    #[arg(long, value_name = "CALLS", requires = "connection_rate")]
    connection_burst: Option<u32>,
    /// How long each call takes at least, as if it waited for a database.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    delay_us: u64,
    /// How long running calls may go on after the first signal.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 30_000)]
    drain_grace_ms: u64,
    /// Prints events as JSON, one a line.
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    if let Err(error) = run(&args).await {
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let causes: String = causes.map(|cause| format!(": {cause}")).collect();
        eprintln!("{error}{causes}");
        std::process::exit(1);
    }
}

async fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    // Before anything is served: a signal that comes early is not lost then.
    let mut signals = Signals::new()?;
    let bound = build(args)?.bind(&args.addr).await?;
    let handle = bound.handle();
    report(args.json, &Event::Ready { addr: bound.local_addr() });
    let cut = serve(bound, &mut signals).await;
    report(args.json, &Event::stopped(&handle, cut));
    Ok(())
}

fn build(args: &Args) -> Result<Server, Box<dyn Error>> {
    let shelf = Shelf::load()?.with_delay(Duration::from_micros(args.delay_us));
    let mut server =
        Server::builder().service(LibraryServer::new(shelf)).drain_grace(Duration::from_millis(args.drain_grace_ms));
    if let Some(max) = args.max_concurrent {
        server = server.max_concurrent_calls(max);
    }
    if let Some(per_second) = args.rate {
        server = server.rate(rate(per_second, args.burst));
    }
    if let Some(per_second) = args.connection_rate {
        server = server.rate_per_connection(rate(per_second, args.connection_burst));
    }
    if args.delay_us > 0 {
        // The best guess at when a slot will be free is the time that a call takes.
        server = server.concurrency_retry_delay(Duration::from_micros(args.delay_us));
    }
    Ok(server.build()?)
}

fn rate(per_second: f64, burst: Option<u32>) -> Rate {
    let rate = Rate::per_second(per_second);
    burst.map_or(rate, |burst| rate.burst(burst))
}

/// Serves until a first signal, then drains until all is done or a second one comes; how many calls
/// were cut off.
async fn serve(bound: BoundServer, signals: &mut Signals) -> usize {
    let handle = bound.handle();
    let serving = pin!(bound.serve());
    let serving = match select(serving, pin!(signals.next())).await {
        Either::Left((drained, _)) => return drained.cut.len(),
        Either::Right(((), serving)) => serving,
    };
    handle.shutdown();
    let serving = match select(serving, pin!(signals.next())).await {
        Either::Left((drained, _)) => return drained.cut.len(),
        Either::Right(((), serving)) => serving,
    };
    handle.stop();
    serving.await.cut.len()
}

/// The signals that ask for an end.
#[cfg(unix)]
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Where there are no signals, Ctrl-C asks for an end.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        // If it cannot be listened to, nobody asks.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}

/// What is worth a line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    Ready {
        addr: SocketAddr,
    },
    Stopped {
        acquired: u64,
        released: u64,
        held: u64,
        max_in_flight: u64,
        refused: BTreeMap<&'static str, u64>,
        /// Calls that did not finish in time.
        cut: usize,
    },
}

impl Event {
    fn stopped(handle: &ServerHandle, cut: usize) -> Self {
        let snapshot = handle.snapshot();
        let calls = snapshot.calls;
        Self::Stopped {
            acquired: calls.acquired,
            released: calls.released,
            held: calls.held,
            max_in_flight: calls.high_water,
            refused: snapshot.refused,
            cut,
        }
    }
}

fn report(json: bool, event: &Event) {
    let line = if json { serde_json::to_string(event).expect("an event is plain data") } else { describe(event) };
    // Whoever closed our output does not care, and that is no reason to stop serving.
    let _ = writeln!(io::stdout(), "{line}");
}

fn describe(event: &Event) -> String {
    match event {
        Event::Ready { addr } => format!("serving on {addr}; Ctrl-C lets running calls finish"),
        Event::Stopped { acquired, released, held, max_in_flight, refused, cut } => {
            let mut text = format!(
                "stopped\n  permits        {acquired} acquired, {released} released, {held} held\n  \
                 most in flight {max_in_flight}"
            );
            for (limit, count) in refused {
                text += &format!("\n  refused        {count} by \"{limit}\"");
            }
            if *cut > 0 {
                text += &format!("\n  cut off        {cut} calls, which did not finish in time");
            }
            text
        }
    }
}
