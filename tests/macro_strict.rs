//! A service in a crate that allows nothing.
#![forbid(
    unused_mut,
    unreachable_patterns,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    unsafe_code,
    unused_qualifications
)]
#![deny(warnings, unused, rust_2018_idioms, single_use_lifetimes, unnameable_types, unused_results)]

use sluicegate::{Bytes, Context, Status};

/// The books.
#[sluicegate::service(package = "acme.v1")]
pub trait Library {
    /// Finds a book.
    async fn get_book(&self, isbn: String) -> Result<u16, Status>;
    /// Finds books.
    async fn search(&self, ctx: Context, text: String, limit: u32) -> Result<Vec<u16>, Status>;
    /// Bytes.
    async fn blob(&self, body: Bytes) -> Result<Bytes, Status>;
    /// Nothing.
    #[rpc(spawn)]
    async fn nothing(&self);
    /// Blocks.
    #[rpc(blocking)]
    fn index(&self, ctx: Context, depth: u8) -> Result<u64, Status>;
    /// Bytes, and blocks.
    #[rpc(blocking, name = "scan")]
    fn scan_pages(&self, body: Bytes) -> Bytes;
}

/// What can go wrong.
#[derive(Debug, sluicegate::DomainError)]
#[rpc(domain = "library.example")]
pub enum LibraryError {
    /// Nothing is told but that it is.
    #[rpc(code = NotFound)]
    Missing,
    /// All is told.
    #[rpc(code = Unavailable)]
    Busy(#[rpc(metadata = "desk")] u8, #[rpc(retry_delay)] std::time::Duration),
}

impl std::fmt::Display for LibraryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing",
            Self::Busy(..) => "busy",
        })
    }
}

impl std::error::Error for LibraryError {}

/// It cannot go wrong.
#[derive(Debug, sluicegate::DomainError)]
#[rpc(domain = "library.example")]
pub enum Nothing {}

impl std::fmt::Display for Nothing {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {}
    }
}

impl std::error::Error for Nothing {}

/// The books.
#[derive(Clone, Copy, Debug)]
pub struct Shelf;

impl Library for Shelf {
    async fn get_book(&self, isbn: String) -> Result<u16, Status> {
        isbn.parse().map_err(|_| Status::new(sluicegate::StatusCode::NotFound, "no such book"))
    }

    async fn search(&self, ctx: Context, _text: String, _limit: u32) -> Result<Vec<u16>, Status> {
        let remaining = ctx.remaining();
        Ok(Vec::from_iter(remaining.is_none().then_some(1)))
    }

    async fn blob(&self, body: Bytes) -> Result<Bytes, Status> {
        Ok(body)
    }

    async fn nothing(&self) {}

    fn index(&self, ctx: Context, depth: u8) -> Result<u64, Status> {
        if ctx.is_cancelled() { Err(Status::cancelled("nobody waits")) } else { Ok(u64::from(depth)) }
    }

    fn scan_pages(&self, body: Bytes) -> Bytes {
        body
    }
}

mod unused {
    // Neither served nor called: no warning about either.
    #[sluicegate::service]
    trait Private {
        async fn one(&self) -> u8;
    }
}

mod only_called {
    #[sluicegate::service]
    pub(crate) trait Remote {
        async fn one(&self) -> u8;
    }

    pub(crate) fn client() -> RemoteClient {
        sluicegate::Client::new("127.0.0.1:1").service()
    }
}

#[test]
fn it_compiles_without_a_warning_and_can_be_served_and_called() {
    let _server = LibraryServer::new(Shelf);
    let _client = only_called::client();
}
