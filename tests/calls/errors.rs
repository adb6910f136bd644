//! Errors from a service to its caller: what is told, how it is found again, and what stays at home.

use std::{error::Error, fmt, io, time::Duration};

use serde::{Deserialize, Serialize};
use sluicegate::{
    CallError, Detail, DomainError, Executed, Metadata, OrStatus, RefusalReason, Server, Status, StatusCode,
    TypedDetails, testing::InMemory,
};

#[derive(Debug, DomainError)]
#[rpc(domain = "library.example")]
enum LibraryError {
    #[rpc(code = NotFound)]
    NoSuchBook {
        #[rpc(metadata)]
        isbn: String,
    },
    #[rpc(code = Unavailable, reason = "DESK_BUSY")]
    Busy(#[rpc(metadata = "desk")] u8, #[rpc(retry_delay)] Duration, io::Error),
    #[rpc(code = FailedPrecondition)]
    Closed(#[rpc(retry_delay)] Option<Duration>),
    #[cfg(any())]
    #[rpc(code = Internal)]
    Never(NoSuchType),
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchBook { isbn } => write!(f, "no book has the ISBN {isbn}"),
            Self::Busy(desk, ..) => write!(f, "desk {desk} is busy"),
            Self::Closed(_) => f.write_str("the library is closed"),
        }
    }
}

impl Error for LibraryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Busy(_, _, source) => Some(source),
            _ => None,
        }
    }
}

/// A struct, and one that another error converts into.
#[derive(Debug, DomainError)]
#[rpc(domain = "library.example", code = DataLoss, reason = "TORN")]
struct Torn<T: fmt::Debug + Send + Sync + 'static> {
    #[rpc(metadata)]
    page: u32,
    of: T,
}

impl<T: fmt::Debug + Send + Sync + 'static> fmt::Display for Torn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of {:?} is torn", self.page, self.of)
    }
}

impl<T: fmt::Debug + Send + Sync + 'static> Error for Torn<T> {}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Invalid {
    field: String,
    allowed: Vec<u16>,
}

impl Detail for Invalid {
    const TYPE_URL: &'static str = "library.example/Invalid";
}

#[sluicegate::service]
trait Library {
    async fn get(&self, isbn: String) -> Result<String, LibraryError>;
    async fn page(&self, number: u32) -> Result<String, Status>;
    async fn read(&self, path: String) -> Result<String, Status>;
    async fn year(&self, year: u16) -> Result<u16, Status>;
    async fn relay(&self) -> Result<String, Status>;
}

struct Shelf(Option<LibraryClient>);

impl Library for Shelf {
    async fn get(&self, isbn: String) -> Result<String, LibraryError> {
        match &*isbn {
            "1" => Err(LibraryError::NoSuchBook { isbn }),
            "2" => Err(LibraryError::Busy(7, Duration::from_secs(1), io::Error::other("secret"))),
            "3" => Err(LibraryError::Closed(None)),
            _ => Ok(isbn),
        }
    }

    async fn page(&self, number: u32) -> Result<String, Status> {
        if number > 1 {
            Err(Torn { page: number, of: "Emma" })?;
        }
        Ok(self.get(number.to_string()).await?)
    }

    async fn read(&self, path: String) -> Result<String, Status> {
        std::fs::read_to_string(path).or_internal("the book cannot be read")
    }

    async fn year(&self, year: u16) -> Result<u16, Status> {
        let invalid = Invalid { field: "year".to_owned(), allowed: vec![1815, 1922] };
        if invalid.allowed.contains(&year) {
            return Ok(year);
        }
        Err(Status::invalid_argument("no such year").with_typed(&invalid).or_internal("a detail is not encoded")?)
    }

    async fn relay(&self) -> Result<String, Status> {
        let inner = self.0.as_ref().expect("there is another library");
        Ok(inner.get("1".to_owned()).await?)
    }
}

fn library(inner: Option<LibraryClient>) -> InMemory {
    let server = Server::builder().service(LibraryServer::new(Shelf(inner)));
    InMemory::new(server.max_concurrent_calls(8).build().expect("a server"))
}

fn status<T: fmt::Debug>(outcome: Result<T, CallError>) -> Status {
    outcome.expect_err("an error").status().expect("of the server").clone()
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_domain_is_told_with_reason_and_metadata_and_found_again() {
    let server = library(None);
    let library: LibraryClient = server.client().service();
    let error = library.get("1".to_owned()).await.unwrap_err();
    assert!(error.has_reason(LibraryError::DOMAIN, "NO_SUCH_BOOK"), "{error:?}");
    assert!(!error.has_reason("another.example", "NO_SUCH_BOOK") && !error.has_reason(LibraryError::DOMAIN, "BUSY"));
    assert_eq!((error.code(), error.executed()), (StatusCode::NotFound, Executed::Finished));
    assert_eq!(error.to_string(), "not found: no book has the ISBN 1 [library.example/NO_SUCH_BOOK: isbn 1]");
    let info = error.status().unwrap().error_info().unwrap();
    assert_eq!(info.metadata.get_str("isbn"), Some("1"));

    let busy = status(library.get("2".to_owned()).await);
    assert_eq!(busy.retry_delay(), Some(Duration::from_secs(1)));
    assert_eq!(busy.to_string(), "unavailable: desk 7 is busy [library.example/DESK_BUSY: desk 7] (try again in 1s)");
    assert!(busy.source().is_none(), "what stays at home does not arrive");
    assert!(!format!("{busy:?}").contains("secret"));
    let closed = status(library.get("3".to_owned()).await);
    assert_eq!((closed.code(), closed.retry_delay()), (StatusCode::FailedPrecondition, None));
    drop(library);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn question_marks_make_statuses_of_errors_of_the_domain_of_others_and_of_calls() {
    let inner = library(None);
    let outer = library(Some(inner.client().service()));
    let library: LibraryClient = outer.client().service();
    let torn = status(library.page(2).await);
    assert_eq!(torn.to_string(), r#"data loss: page 2 of "Emma" is torn [library.example/TORN: page 2]"#);
    assert!(status(library.page(1).await).has_reason(LibraryError::DOMAIN, "NO_SUCH_BOOK"));
    let unread = status(library.read("/nowhere".to_owned()).await);
    assert_eq!(unread.to_string(), "internal: the book cannot be read");
    let relayed = status(library.relay().await);
    assert!(relayed.has_reason(LibraryError::DOMAIN, "NO_SUCH_BOOK"), "{relayed}");
    assert_eq!(relayed.executed(), Executed::Finished);
    drop(library);
    outer.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn details_travel_as_types_in_any_codec_of_the_call() {
    let server = library(None);
    for &codec in sluicegate::CodecId::supported() {
        let library: LibraryClient = server.client_builder().codec(codec).build().service();
        assert_eq!(library.year(1815).await.unwrap(), 1815);
        let invalid = status(library.year(2000).await).typed::<Invalid>().expect("a detail").expect("of this type");
        assert_eq!(invalid, Invalid { field: "year".to_owned(), allowed: vec![1815, 1922] });
    }
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_recognised_and_an_error_of_the_service_is_none() {
    let server = InMemory::new(
        Server::builder()
            .service(LibraryServer::new(Shelf(None)))
            .rate(sluicegate::limit::Rate::per_second(1.0).burst(1))
            .build()
            .expect("a server"),
    );
    let library: LibraryClient = server.client().service();
    let error = library.get("1".to_owned()).await.unwrap_err();
    assert!(error.refused().is_none());
    let error = library.get("1".to_owned()).await.unwrap_err();
    let refused = error.refused().expect("it comes too fast");
    assert_eq!((refused.reason(), refused.limit()), (RefusalReason::RateLimit, Some("global rate")));
    assert_eq!((refused.figure("max_per_second"), refused.figure("burst")), (Some(1), Some(1)));
    assert!(refused.is_overload() && refused.retry_delay() == error.retry_delay());
    drop(library);
    server.assert_idle().await;
}

#[test]
fn causes_of_a_failed_call_are_a_chain_that_ends_with_the_first() {
    let cause = io::Error::from(io::ErrorKind::ConnectionRefused);
    let error = CallError::Connect { peer: "db:7000".into(), retry_after: Duration::ZERO, source: cause.into() };
    let status = Status::from(error);
    let mut chain = vec![status.to_string()];
    let mut next = status.source();
    while let Some(error) = next {
        chain.push(error.to_string());
        next = error.source();
    }
    let expected =
        ["unavailable: a call that the service depends on failed", "cannot connect to db:7000", "connection refused"];
    assert_eq!(chain, expected);
    assert_eq!(status.metadata(), &Metadata::new());
}

mod the_page {
    use super::*;

    const PAGE: &str = include_str!("../../docs/errors.md");

    /// The rows of the table under `heading`, cell by cell.
    fn table(heading: &str) -> Vec<Vec<&'static str>> {
        let lines = PAGE.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
        let rows = lines.take_while(|line| line.starts_with('|'));
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
    }

    #[test]
    fn tells_of_every_code_once_and_in_order() {
        let codes: Vec<_> = table("| code | sent by |").into_iter().map(|row| row[0]).collect();
        assert_eq!(codes, StatusCode::ALL.iter().map(|code| code.name()).collect::<Vec<_>>());
    }

    #[test]
    fn tells_of_every_reason_with_its_code_and_figures() {
        let rows = table("| reason | code |");
        assert_eq!(rows.len(), RefusalReason::ALL.len());
        for (row, &reason) in rows.iter().zip(RefusalReason::ALL) {
            assert_eq!(row[..2], [reason.name(), reason.code().name()]);
            let refusal = sluicegate::Refusal::new(reason);
            let figures: Vec<_> = refusal.figures().map(|(name, _)| format!("`{name}`")).collect();
            assert_eq!(row[2], figures.join(" "), "{row:?}");
            assert!(row[3].ends_with('.'));
        }
    }

    #[test]
    fn tells_of_every_error_of_the_client_with_its_code_and_whether_it_was_executed() {
        let source = include_str!("../../rpc-client/src/error.rs");
        let variants = source.split("pub enum CallError {").nth(1).and_then(|rest| rest.split("\n}\n").next());
        let names: Vec<_> = variants
            .expect("the variants")
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
            .map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default())
            .collect();
        let rows = table("| `CallError` | code |");
        assert_eq!(rows.iter().map(|row| row[0].trim_matches('`')).collect::<Vec<_>>(), names);
        let peer = || std::sync::Arc::from("db:7000");
        for (name, error) in [
            ("Closed", CallError::Closed),
            ("Ended", CallError::Ended { peer: peer() }),
            ("SinkDropped", CallError::SinkDropped { peer: peer() }),
            ("SinkMisused", CallError::SinkMisused { peer: peer(), how: "twice" }),
            ("ItemTooLarge", CallError::ItemTooLarge { peer: peer(), len: 2, max: 1 }),
            ("EncodeItem", CallError::EncodeItem(sluicegate::PayloadError::TooDeep { max: 128 })),
            ("NoRuntime", CallError::NoRuntime),
            ("RequestTooLarge", CallError::RequestTooLarge { peer: peer(), len: 2, max: 1 }),
            ("ResponseTooLarge", CallError::ResponseTooLarge { peer: peer(), len: 2, max: 1 }),
            ("Encode", CallError::Encode(sluicegate::PayloadError::TooDeep { max: 128 })),
            ("Decode", CallError::Decode { peer: peer(), source: sluicegate::PayloadError::TooDeep { max: 128 } }),
        ] {
            let row = rows.iter().find(|row| row[0].trim_matches('`') == name).expect("a row");
            assert_eq!(row[1], error.code().name(), "{name}");
            assert_eq!(row[2], format!("{:?}", error.executed()).to_lowercase(), "{name}");
        }
    }
}
