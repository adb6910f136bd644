//! An axum application that serves Sluicegate as well: on a second port, with the same state, and stopping
//! together.
//!
//! ```sh
//! cargo run --example embed
//! ```

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use sluicegate::{Health, Server, server::ServerHandle};
use tokio::{net::TcpListener, sync::watch};

/// What both have in common.
#[derive(Default)]
struct Visits(AtomicU64);

/// What the application served so far: pages, over HTTP.
fn pages(visits: Arc<Visits>, server: ServerHandle) -> Router {
    let page =
        |State(visits): State<Arc<Visits>>| async move { format!("visitor {}\n", visits.0.fetch_add(1, Relaxed) + 1) };
    // Whoever balances asks here whether to send us anything: both servers say the same.
    let ready = move || async move {
        match server.health("") {
            Some(Health::Serving) => (StatusCode::OK, "ready\n"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        }
    };
    Router::new().route("/", get(page)).route("/ready", get(ready)).with_state(visits)
}

/// What it serves as well: calls.
#[sluicegate::service]
trait Counter {
    /// How many visitors there were.
    async fn visitors(&self) -> u64;
}

// The trait is implemented for what is shared, and `from_arc` takes it as it is.
impl Counter for Visits {
    async fn visitors(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let visits = Arc::new(Visits::default());
    let service = CounterServer::from_arc(Arc::clone(&visits));
    let calls = Server::builder().service(service).max_concurrent_calls(64).health(true).build()?;
    let calls = calls.bind("127.0.0.1:0").await?;
    let app = pages(visits, calls.handle());
    let http = TcpListener::bind("127.0.0.1:0").await?;
    println!("pages on {}, calls on {}", http.local_addr()?, calls.local_addr());

    // One signal for both: each finishes what it has begun.
    let (stop, stopped) = watch::channel(false);
    let signal = |mut stopped: watch::Receiver<bool>| async move { drop(stopped.wait_for(|stop| *stop).await) };
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.send_replace(true);
        }
    });
    let serving_pages = axum::serve(http, app).with_graceful_shutdown(signal(stopped.clone())).into_future();
    let (served, drained) = tokio::join!(serving_pages, calls.serve_until(signal(stopped)));
    served?;
    println!("both have stopped, {} calls were cut off", drained.cut.len());
    Ok(())
}
