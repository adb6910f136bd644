//! Errors: of one's own, by `?`, with reasons and typed details, and what a caller makes of each.
//!
//! ```sh
//! cargo run --example errors
//! ```

use std::{error::Error, fmt, io, time::Duration};

use serde::{Deserialize, Serialize};
use sluicegate::{
    CallError, Client, Detail, DomainError, Executed, OrStatus, Server, Status, StatusCode, TypedDetails,
};

/// What can go wrong with a book. The derive says what a caller is told of it: a code, a reason for programs,
/// and the fields that are marked. `thiserror` would write the two other implementations.
#[derive(Debug, DomainError)]
#[rpc(domain = "library.example")]
enum LibraryError {
    #[rpc(code = NotFound)]
    NoSuchBook {
        #[rpc(metadata)]
        isbn: String,
    },
    #[rpc(code = Unavailable, reason = "DESK_BUSY")]
    Busy {
        #[rpc(retry_delay)]
        come_back_in: Duration,
        /// For our logs; no caller hears of it.
        cause: io::Error,
    },
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchBook { isbn } => write!(f, "no book has the ISBN {isbn}"),
            Self::Busy { .. } => f.write_str("nobody is at the desk"),
        }
    }
}

impl Error for LibraryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Busy { cause, .. } => Some(cause),
            Self::NoSuchBook { .. } => None,
        }
    }
}

/// What a caller's program needs to know of a wrong request. It travels as it is.
#[derive(Debug, Serialize, Deserialize)]
struct Invalid {
    field: String,
    expected: String,
}

impl Detail for Invalid {
    const TYPE_URL: &'static str = "library.example/Invalid";
}

#[sluicegate::service]
trait Library {
    /// Any error that converts into a `Status` will do.
    async fn title(&self, isbn: String) -> Result<String, LibraryError>;
    async fn cover(&self, isbn: String) -> Result<Vec<u8>, Status>;
}

struct Shelf;

impl Library for Shelf {
    async fn title(&self, isbn: String) -> Result<String, LibraryError> {
        match &*isbn {
            "9780131103627" => Ok("The C Programming Language".to_owned()),
            "busy" => Err(LibraryError::Busy {
                come_back_in: Duration::from_millis(100),
                cause: io::Error::other("desk 7 does not answer"),
            }),
            _ => Err(LibraryError::NoSuchBook { isbn }),
        }
    }

    async fn cover(&self, isbn: String) -> Result<Vec<u8>, Status> {
        if isbn.len() != 13 {
            let invalid = Invalid { field: "isbn".to_owned(), expected: "13 digits".to_owned() };
            return Err(Status::invalid_argument("this is no ISBN").with_typed(&invalid).or_internal("encoding")?);
        }
        // An error of the domain becomes a status by `?`.
        let title = self.title(isbn).await?;
        // One that concerns nobody outside keeps its cause at home.
        std::fs::read(format!("/nowhere/{title}")).or_internal("the cover cannot be read")
    }
}

/// What to do about an error, as far as a program can tell.
fn advice(error: &CallError) -> String {
    if error.has_reason(LibraryError::DOMAIN, "NO_SUCH_BOOK") {
        return "look for another book".to_owned();
    }
    if let Some(Ok(invalid)) = error.status().and_then(|status| status.typed::<Invalid>()) {
        return format!("correct {}: {}", invalid.field, invalid.expected);
    }
    match (error.retry_delay(), error.executed(), error.code()) {
        (_, Executed::Never, StatusCode::Unavailable) => "try elsewhere; nothing happened here".to_owned(),
        (Some(delay), ..) => format!("come back in {delay:?}"),
        _ => "tell a person".to_owned(),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = Server::builder().service(LibraryServer::new(Shelf)).build()?.bind("127.0.0.1:0").await?;
    let (address, handle) = (server.local_addr(), server.handle());
    let serving = tokio::spawn(server.serve());

    let library: LibraryClient = Client::new(address).service();
    println!("{}", library.title("9780131103627".to_owned()).await?);
    for isbn in ["9780000000002", "busy"] {
        let error = library.title(isbn.to_owned()).await.expect_err("it goes wrong");
        println!("{error}\n  -> {}", advice(&error));
    }
    for isbn in ["1", "9780131103627"] {
        let error = library.cover(isbn.to_owned()).await.expect_err("it goes wrong");
        println!("{error}\n  -> {}", advice(&error));
    }
    drop(library);
    handle.shutdown();
    serving.await?;

    // Nobody is there any more.
    let library: LibraryClient = Client::new(address).service();
    let error = library.title("9780131103627".to_owned()).await.expect_err("it goes wrong");
    let causes = std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string);
    println!("{error}: {}\n  -> {}", causes.collect::<Vec<_>>().join(": "), advice(&error));
    Ok(())
}
