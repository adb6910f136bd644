//! Calls the library that `server` serves.
//!
//! ```text
//! cargo run --release --example client -- --addr 127.0.0.1:7000 get 9780131103627
//! cargo run --release --example client -- --addr 127.0.0.1:7000 search tolstoy
//! cargo run --release --example client -- --addr 127.0.0.1:7000 load --calls 1000000 --connections 4 --in-flight 64
//! ```

mod library;
mod load;

use std::{error::Error, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use sluicegate::{CallError, Client, Executed};

use crate::{
    library::{Book, COVER_SIDE, LibraryClient},
    load::Load,
};

/// Calls a library of books.
#[derive(Debug, Parser)]
struct Args {
    /// Where the library is.
    #[arg(long, global = true, default_value = "127.0.0.1:7000")]
    addr: String,
    /// How long a call may take; 0 is as long as it wants.
    #[arg(long, global = true, value_name = "MILLISECONDS", default_value_t = 10_000)]
    timeout_ms: u64,
    /// Prints results as JSON, on one line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Looks up one book.
    Get {
        /// Its ISBN, 13 digits without hyphens.
        isbn: String,
    },
    /// Finds books by a part of title or author.
    Search {
        /// The part, in any case of letters.
        text: String,
    },
    /// Makes many calls, and says how long they took and what became of them.
    Load(Load),
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let succeeded = match &args.command {
        Command::Get { isbn } => {
            let found = connect(&args).service::<LibraryClient>().get_book(isbn.clone()).await;
            show(&args, found, print_book)
        }
        Command::Search { text } => {
            let found = connect(&args).service::<LibraryClient>().search(text.clone()).await;
            show(&args, found, |books| print_books(text, books))
        }
        Command::Load(load) => load.run(|| connect(&args), args.json).await,
    };
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A client; it connects when there is a call to send.
fn connect(args: &Args) -> Client {
    let client = Client::builder(&args.addr);
    match args.timeout_ms {
        0 => client.build(),
        timeout => client.timeout(Duration::from_millis(timeout)).build(),
    }
}

/// Prints the reply, or why there is none; whether there is one.
fn show<T: serde::Serialize>(args: &Args, reply: Result<T, CallError>, print: impl Fn(&T)) -> bool {
    match &reply {
        Ok(reply) if args.json => println!("{}", serde_json::to_string(reply).expect("books are plain data")),
        Ok(reply) => print(reply),
        Err(error) => eprintln!("{}", explain(error)),
    }
    reply.is_ok()
}

fn print_book(book: &Book) {
    let shades = [' ', '░', '▒', '▓'];
    let text = [&*book.title, &*book.author, &book.year.to_string(), "", &book.isbn].map(str::to_owned);
    let lines = text.iter().map(|line| &**line).chain(std::iter::repeat(""));
    for (row, line) in book.cover.chunks(COVER_SIDE).zip(lines) {
        let pixels = row.iter().flat_map(|&shade| [shades[usize::from(shade & 3)]; 2]);
        println!("{}", format!("{}   {line}", pixels.collect::<String>()).trim_end());
    }
}

fn print_books(text: &str, books: &[Book]) {
    match books {
        [] => println!("no title and no author has {text:?} in it"),
        books => books.iter().for_each(|book| println!("{}  {book}", book.isbn)),
    }
}

/// What went wrong, all causes of it, and whether and when to try again.
fn explain(error: &CallError) -> String {
    let what = match error.status() {
        Some(status) => format!("{}: {}", status.code(), status.message()),
        None => error.to_string(),
    };
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let mut text = causes.fold(what, |text, cause| format!("{text}: {cause}"));
    if let Some(info) = error.status().and_then(|status| status.error_info()) {
        let figures = info.metadata.iter().map(|(key, value)| format!("{key} {}", String::from_utf8_lossy(value)));
        text += &format!(" ({}; {})", info.reason, figures.collect::<Vec<_>>().join(", "));
    }
    let advice = match error.executed() {
        Executed::Never => "The call was never executed, so it is safe to make it again",
        Executed::Finished if error.retry_delay().is_none() => {
            "The service has run, so to ask the same again is no use"
        }
        Executed::Finished => "The service has run, and wants to be asked again",
        _ => "The call may have been executed, so make it again only if that does no harm",
    };
    let delay = error.retry_delay().map(|delay| format!(", in {delay:.1?}"));
    text + ".\n" + advice + &delay.unwrap_or_default() + "."
}
