//! A service in a crate that allows nothing.
//!
//! `test.sh` has clippy look at it as well. One thing cannot be: `forbid(deprecated)` beside a service with a `#[deprecated]`
//! method or name, which the server speaks of all the same, under an `allow`. `deny(deprecated)` can.
#![forbid(unsafe_code, missing_docs, dead_code, unused, unreachable_pub, missing_debug_implementations)]
#![forbid(unused_qualifications, unreachable_patterns)]
#![deny(warnings, clippy::all, clippy::pedantic)]
#![deny(rust_2018_idioms, single_use_lifetimes, unnameable_types, unused_results)]

use sluicegate::{Bytes, Context, ItemSender, Status, Stream, Streaming};

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
    /// What it was called once.
    #[deprecated = "it is `get_book` now"]
    async fn find_book(&self, isbn: String) -> Result<u16, Status>;
    /// Items from the server.
    async fn list(&self) -> Result<impl Stream<Item = Result<u16, Status>> + Send, Status>;
    /// Items from the client.
    async fn add(&self, books: Streaming<u16>) -> Result<u64, Status>;
    /// Both ways.
    async fn trade(&self, ctx: Context, books: Streaming<u16>, out: ItemSender<Bytes>) -> Result<(), Status>;
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

    async fn find_book(&self, isbn: String) -> Result<u16, Status> {
        self.get_book(isbn).await
    }

    async fn list(&self) -> Result<impl Stream<Item = Result<u16, Status>> + Send, Status> {
        Ok(futures::stream::empty())
    }

    async fn add(&self, mut books: Streaming<u16>) -> Result<u64, Status> {
        let mut count = 0;
        while books.message().await?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    async fn trade(&self, _ctx: Context, books: Streaming<u16>, out: ItemSender<Bytes>) -> Result<(), Status> {
        drop((books, out));
        Ok(())
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

mod only_named {
    #[sluicegate::service]
    pub(crate) trait Remote {
        async fn one(&self) -> u8;
        #[rpc(blocking)]
        fn two(&self) -> u8;
    }

    struct Real;

    impl Remote for Real {
        async fn one(&self) -> u8 {
            1
        }

        fn two(&self) -> u8 {
            2
        }
    }

    fn len_of<R: Remote>(_: &R) -> usize {
        size_of::<R>()
    }

    pub(crate) fn real() -> usize {
        len_of(&Real)
    }
}

#[test]
fn it_compiles_without_a_warning_and_can_be_served_and_called() {
    let _server = LibraryServer::new(Shelf);
    let _client = only_called::client();
    assert_eq!(only_named::real(), 0);
}
