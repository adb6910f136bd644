//! A search that streams its results to a consumer who is slow: the producer pauses, and memory stays where it
//! was.
//!
//! ```text
//! cargo run --release --example search
//! ```

mod library;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use sluicegate::{Client, ItemSender, Server, Status, server::ServerHandle};

use crate::library::{Book, Shelf};

#[sluicegate::service]
trait Catalogue {
    /// Every copy of every book with `text` in title or author, as it is found.
    async fn search(&self, text: String, hits: ItemSender<Book>) -> Result<(), Status>;
}

/// A library with many copies of each book.
struct Stacks {
    shelf: Shelf,
    copies: usize,
    watch: Arc<Watch>,
}

/// What the producer has done.
#[derive(Default)]
struct Watch {
    found: AtomicUsize,
    pauses: AtomicUsize,
    paused_ms: AtomicUsize,
    most_pending: AtomicUsize,
}

impl Catalogue for Stacks {
    async fn search(&self, text: String, mut hits: ItemSender<Book>) -> Result<(), Status> {
        let watch = &self.watch;
        for _ in 0..self.copies {
            for book in self.shelf.matching(&text) {
                if !hits.is_ready() {
                    let since = Instant::now();
                    hits.ready().await?;
                    watch.pauses.fetch_add(1, Relaxed);
                    watch.paused_ms.fetch_add(since.elapsed().as_millis() as usize, Relaxed);
                }
                hits.send(book.clone()).await?;
                watch.found.fetch_add(1, Relaxed);
                watch.most_pending.fetch_max(hits.pending(), Relaxed);
            }
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let watch = Arc::new(Watch::default());
    let stacks = Stacks { shelf: Shelf::load()?, copies: 1_000, watch: Arc::clone(&watch) };
    let server = Server::builder().service(CatalogueServer::new(stacks)).max_concurrent_calls(64).build()?;
    let bound = server.bind("127.0.0.1:0").await?;
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());

    let client = Client::new(address);
    let catalogue: CatalogueClient = client.service();
    println!("A search with 148,000 hits, and a consumer who takes 100 a second");
    let mut hits = catalogue.search(String::new()).open().await?;
    let (mut taken, mut bytes) = (0, 0);
    for second in 1..=3 {
        for _ in 0..100 {
            let Some(book) = hits.message().await? else { return Err("that cannot have been all".into()) };
            (taken, bytes) = (taken + 1, bytes + book.cover.len());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        report(&format!("after {second} s, {taken} taken"), &watch, &client, &handle);
    }
    println!("The consumer is quick now");
    while let Some(book) = hits.message().await? {
        (taken, bytes) = (taken + 1, bytes + book.cover.len());
    }
    report(&format!("all {taken} taken, {} MB of covers", bytes / 1_000_000), &watch, &client, &handle);

    println!("A consumer who has seen enough behind two hits");
    let found = watch.found.load(Relaxed);
    let mut hits = catalogue.search(String::new());
    hits.message().await?;
    hits.message().await?;
    drop(hits);
    while handle.snapshot().calls.held > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("  the producer was stopped behind {} more", watch.found.load(Relaxed) - found);
    drop((catalogue, client));
    handle.shutdown();
    serving.await?;
    let figures = handle.snapshot();
    println!("  permits: {} acquired, {} released", figures.calls.acquired, figures.calls.released);
    if figures.is_idle() { Ok(()) } else { Err(format!("something is left: {figures:?}").into()) }
}

fn report(when: &str, watch: &Watch, client: &Client, server: &ServerHandle) {
    println!("  {when}");
    let (found, pauses, paused) =
        (watch.found.load(Relaxed), watch.pauses.load(Relaxed), watch.paused_ms.load(Relaxed));
    println!("    the producer has found {found}, and paused {pauses} times for {paused} ms in all");
    println!(
        "    waiting: {} KiB at the client, {} KiB at the server, never more than {} KiB; the process has {} MiB",
        client.snapshot().inbound_bytes / 1024,
        server.snapshot().stream_bytes / 1024,
        watch.most_pending.load(Relaxed) / 1024,
        resident_mib(),
    );
}

/// What the process has in memory; 0 where that cannot be read.
fn resident_mib() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096 / (1024 * 1024)
}
