//! Sluicegate in one process: a service, its limits, its clients, and what they are told when they
//! want too much.
//!
//! ```text
//! cargo run --release --example quickstart
//! ```

mod library;

use std::{collections::BTreeMap, error::Error, net::SocketAddr, time::Duration};

use futures::future::join_all;
use sluicegate::{CallError, Client, Executed, Server, Status, StatusCode, limit::Rate};

use crate::library::{Book, LibraryClient, LibraryServer, Shelf};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The service: a trait with `#[sluicegate::service]` and a type that implements it, both in
    // `library/mod.rs`. Every call takes 10 ms there, as if it asked a database.
    let shelf = Shelf::load()?.with_delay(Duration::from_millis(10));
    println!("A library of {} books", shelf.len());

    // The server, with three limits. They are asked in this order, the cheapest first.
    let server = Server::builder()
        .service(LibraryServer::new(shelf))
        // One client cannot take what is meant for all. A new connection may begin with 10 calls.
        .rate_per_connection(Rate::per_second(2.0).burst(10))
        // All clients together ask no more than the database behind us can stand.
        .rate(Rate::per_second(10.0).burst(40))
        // Nothing is begun that would only wait for what was begun before it.
        .max_concurrent_calls(8)
        .build()?;
    let bound = server.bind("127.0.0.1:0").await?; // Port 0 is any that is free.
    let address = bound.local_addr();
    let handle = bound.handle();
    let serving = tokio::spawn(bound.serve());

    // What our clients are told is counted here, and must be what the server counted in the end.
    let mut told = Told::default();

    println!("\nLooking up and searching");
    let library = connect(address);
    let book = told.hear(library.get_book(C_BOOK.to_owned()).await)?;
    println!("  get {C_BOOK}: {book}");
    // A call is a future, and has options. The server knows the deadline, too, and drops what
    // nobody waits for any more.
    let found = told.hear(library.search("kernighan".to_owned()).timeout(Duration::from_secs(1)).await)?;
    println!("  search kernighan: {} books", found.len());
    found.iter().for_each(|book| println!("    {} {book}", book.isbn));
    check(found.contains(&book), "a search finds what a look-up finds")?;
    // An error of the service is a status: a code and a message. It is an answer, not a refusal.
    let missing = told.hear(library.get_book(NO_BOOK.to_owned()).await);
    let Err(CallError::Status(status)) = missing else { return Err("a book that is not there was found".into()) };
    println!("  get {NO_BOOK}: {status}");
    check(status.code() == StatusCode::NotFound, "the status says that there is no such book")?;

    println!("\nOne client makes 64 calls at once; 8 may be in flight");
    let library = connect(address);
    let outcomes = join_all((0..64).map(|_| library.get_book(C_BOOK.to_owned()))).await;
    let refusal = told.hear_burst(outcomes, "global")?;
    told.come_back(&library, refusal).await?;

    println!("\nOne client makes 20 calls in a row; each may begin with 10, and then make 2 per second");
    let library = connect(address);
    let refusal = told.hear_burst(in_a_row(&library, 20).await, "connection rate")?;
    told.come_back(&library, refusal).await?;

    println!("\nSix clients make 10 calls each; all together may begin with 40, of which some are spent by now");
    let clients: Vec<_> = (0..6).map(|_| connect(address)).collect();
    let outcomes = join_all(clients.iter().map(|library| in_a_row(library, 10))).await;
    let refusal = told.hear_burst(outcomes.into_iter().flatten().collect(), "global rate")?;
    told.come_back(&clients[0], refusal).await?;

    // Shutting down lets running calls finish. A permit is given back when its answer has been
    // written, and answers reach us a moment earlier; so the books are balanced only now.
    handle.shutdown();
    let drained = serving.await?;
    let figures = handle.snapshot();
    let calls = figures.calls;
    println!("\nThe server has stopped, and every permit is back");
    println!("  permits: {} acquired, {} released, {} held", calls.acquired, calls.released, calls.held);
    println!("  at most {} calls were in flight at once", calls.high_water);
    println!("  refused: {}", list(&figures.refused));
    check(drained.cut.is_empty() && figures.connections == 0, "the server ended in peace")?;
    check(calls.held == 0 && calls.acquired == calls.released, "every permit is back")?;
    check(calls.high_water <= 8, "the limit of calls in flight held")?;
    check(calls.acquired == told.answered, "whatever was admitted was answered")?;
    check(figures.refused.iter().map(|(limit, count)| (*limit, *count)).eq(told.refused()), "refusals add up")
}

/// A client of its own connection. It connects when there is a call to send; clones share it.
fn connect(address: SocketAddr) -> LibraryClient {
    Client::new(address).service()
}

/// Makes calls one after the other.
async fn in_a_row(library: &LibraryClient, calls: usize) -> Vec<Result<Book, CallError>> {
    let mut outcomes = Vec::new();
    for _ in 0..calls {
        outcomes.push(library.get_book(C_BOOK.to_owned()).await);
    }
    outcomes
}

/// What the clients were told.
#[derive(Default)]
struct Told {
    answered: u64,
    refused: BTreeMap<String, u64>,
}

impl Told {
    /// Counts an answer, or by which limit it was refused.
    fn hear<T>(&mut self, outcome: Result<T, CallError>) -> Result<T, CallError> {
        match outcome.as_ref().map_err(refusal) {
            Err(Some(refusal)) => *self.refused.entry(figure(refusal, "limit").to_owned()).or_default() += 1,
            _ => self.answered += 1,
        }
        outcome
    }

    /// Prints how a burst went, and gives a refusal of `limit`, of which there must be one.
    fn hear_burst(&mut self, outcomes: Vec<Result<Book, CallError>>, limit: &str) -> Result<Status, Box<dyn Error>> {
        let calls = outcomes.len();
        let (mut refused, mut example) = (BTreeMap::<String, u64>::new(), None);
        for outcome in outcomes {
            let Err(error) = self.hear(outcome) else { continue };
            // Whatever is no refusal is a failure, and there should be none.
            let Some(status) = refusal(&error) else { return Err(error.into()) };
            *refused.entry(figure(status, "limit").to_owned()).or_default() += 1;
            if figure(status, "limit") == limit {
                example = Some(status.clone());
            }
        }
        let served = calls as u64 - refused.values().sum::<u64>();
        println!("  served {served}, refused {}", list(&refused));
        example.ok_or_else(|| format!("the limit {limit:?} refused nothing").into())
    }

    /// Does what a refusal says: waits as long as it wants us to, and makes the call again.
    ///
    /// That is safe whatever the call does, for a call that was refused was never executed.
    async fn come_back(&mut self, library: &LibraryClient, mut refusal: Status) -> Result<(), Box<dyn Error>> {
        let info = refusal.error_info().ok_or("a refusal says why")?;
        let figures = info.metadata.iter().map(|(key, value)| format!("{key} {}", String::from_utf8_lossy(value)));
        println!("  it says {}: {}", info.reason, figures.collect::<Vec<_>>().join(", "));
        for _ in 0..5 {
            let delay = refusal.retry_delay().ok_or("a refusal says when to come back")?;
            println!("  it says to come back in {delay:.1?}");
            tokio::time::sleep(delay).await;
            match self.hear(library.get_book(C_BOOK.to_owned()).await) {
                Ok(_) => {
                    println!("  we did, and were served");
                    return Ok(());
                }
                Err(CallError::Status(again)) => refusal = again,
                Err(error) => return Err(error.into()),
            }
        }
        Err("we came back when we were told to, and were refused again and again".into())
    }

    fn refused(&self) -> impl Iterator<Item = (&str, u64)> {
        self.refused.iter().map(|(limit, count)| (&**limit, *count))
    }
}

/// The status of a refusal, if that is what the error is: a call that never reached the service.
fn refusal(error: &CallError) -> Option<&Status> {
    error.status().filter(|status| status.executed() == Executed::Never)
}

/// What a refusal says about `key`.
fn figure<'a>(refusal: &'a Status, key: &str) -> &'a str {
    refusal.error_info().and_then(|info| info.metadata.get_str(key)).unwrap_or("?")
}

fn list(refused: &BTreeMap<impl AsRef<str>, u64>) -> String {
    let parts = refused.iter().map(|(limit, count)| format!("{count} by the limit \"{}\"", limit.as_ref()));
    parts.collect::<Vec<_>>().join(", ")
}

fn check(holds: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("this does not hold: {what}").into()) }
}

const C_BOOK: &str = "9780131103627";
/// An ISBN with a valid check digit that no book of ours has.
const NO_BOOK: &str = "9780000000002";
