//! Errors of the user's own that know what a peer is told of them.

use std::{borrow::Cow, error::Error, fmt::Display, time::Duration};

use crate::{ErrorInfo, Metadata, Status, StatusCode};

/// An error of a service's own domain: a code, a reason for programs, and what belongs to it.
///
/// A method may return it as its error, and `?` makes it of whatever converts into it. The caller gets
/// a [`Status`] with an [`ErrorInfo`]: what the error displays as message, and nothing of its sources,
/// which stay here for logs, see [`Status::with_source`].
///
/// `#[derive(sluicegate::DomainError)]` writes the implementation. By hand:
///
/// ```
/// use rpc_core::{DomainError, Metadata, Status, StatusCode};
///
/// #[derive(Debug, thiserror::Error)]
/// #[error("no book has the ISBN {0}")]
/// struct NoSuchBook(String);
///
/// impl DomainError for NoSuchBook {
///     const DOMAIN: &'static str = "library.example";
///
///     fn code(&self) -> StatusCode {
///         StatusCode::NotFound
///     }
///
///     fn reason(&self) -> &'static str {
///         "NO_SUCH_BOOK"
///     }
/// }
///
/// fn get_book(isbn: &str) -> Result<(), Status> {
///     Err(NoSuchBook(isbn.to_owned()))?
/// }
///
/// let status = get_book("9780131103627").unwrap_err();
/// assert_eq!(status.message(), "no book has the ISBN 9780131103627");
/// assert!(status.has_reason(NoSuchBook::DOMAIN, "NO_SUCH_BOOK"));
/// ```
pub trait DomainError: Error + Send + Sync + Sized + 'static {
    /// Who defines the reasons: a name that is unlikely to be anybody else's, such as that of a host.
    /// At most 255 bytes.
    const DOMAIN: &'static str;

    /// The code of this error.
    fn code(&self) -> StatusCode;

    /// The reason, a constant in upper snake case; at most 255 bytes.
    fn reason(&self) -> &'static str;

    /// What belongs to the reason: names and figures, as text. Nothing by default.
    fn metadata(&self) -> Metadata {
        Metadata::new()
    }

    /// How long the caller should wait before it tries again. `None`, the default, if that is no use.
    fn retry_delay(&self) -> Option<Duration> {
        None
    }
}

impl<E: DomainError> From<E> for Status {
    fn from(error: E) -> Self {
        let info = ErrorInfo {
            reason: Cow::Borrowed(error.reason()),
            domain: Cow::Borrowed(E::DOMAIN),
            metadata: error.metadata(),
        };
        let delay = error.retry_delay();
        let status = Self::new(error.code(), error.to_string()).with_error_info(info).with_source(error);
        match delay {
            Some(delay) => status.with_retry_delay(delay),
            None => status,
        }
    }
}

/// Makes a status of an error that nobody outside needs to know about.
///
/// ```
/// use rpc_core::{OrStatus, Status, StatusCode};
///
/// fn shelf(path: &str) -> Result<String, Status> {
///     std::fs::read_to_string(path).or_internal("the shelf cannot be read")
/// }
///
/// let status = shelf("/nowhere").unwrap_err();
/// assert_eq!(status.to_string(), "internal: the shelf cannot be read");
/// // For our own logs; the caller is told nothing of it.
/// assert!(std::error::Error::source(&status).is_some());
/// ```
pub trait OrStatus<T> {
    /// An error as a status of `code` that says `message`. The error becomes its source.
    ///
    /// # Errors
    ///
    /// The result is an error.
    fn or_status(self, code: StatusCode, message: impl Into<Cow<'static, str>>) -> Result<T, Status>;

    /// As [`OrStatus::or_status`], with [`StatusCode::Internal`].
    ///
    /// # Errors
    ///
    /// The result is an error.
    fn or_internal(self, message: impl Into<Cow<'static, str>>) -> Result<T, Status>
    where
        Self: Sized,
    {
        self.or_status(StatusCode::Internal, message)
    }
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> OrStatus<T> for Result<T, E> {
    fn or_status(self, code: StatusCode, message: impl Into<Cow<'static, str>>) -> Result<T, Status> {
        self.map_err(|error| Status::new(code, message).with_source(error))
    }
}

/// Notes `value` as text, as far as it fits; for what the derive writes.
#[doc(hidden)]
pub fn note(metadata: &mut Metadata, key: &str, value: impl Display) {
    // The error is told without it: it must not fail for want of room.
    let _ = metadata.insert(key, value.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Executed;

    #[derive(Debug, thiserror::Error)]
    #[error("the desk is busy")]
    struct Busy(#[source] std::io::Error);

    impl DomainError for Busy {
        const DOMAIN: &'static str = "library.example";

        fn code(&self) -> StatusCode {
            StatusCode::Unavailable
        }

        fn reason(&self) -> &'static str {
            "BUSY"
        }

        fn metadata(&self) -> Metadata {
            let mut metadata = Metadata::new();
            note(&mut metadata, "desk", 7);
            note(&mut metadata, "not a key", 8);
            note(&mut metadata, "long", "x".repeat(70_000));
            metadata
        }

        fn retry_delay(&self) -> Option<Duration> {
            Some(Duration::from_secs(1))
        }
    }

    #[test]
    fn a_domain_error_becomes_a_status_that_keeps_its_sources_at_home() {
        let status = Status::from(Busy(std::io::Error::other("secret")));
        assert_eq!((status.code(), status.executed()), (StatusCode::Unavailable, Executed::Finished));
        assert_eq!(status.message(), "the desk is busy");
        assert_eq!(status.retry_delay(), Some(Duration::from_secs(1)));
        let info = status.error_info().unwrap();
        assert_eq!((&*info.domain, &*info.reason), ("library.example", "BUSY"));
        assert_eq!(info.metadata.iter().collect::<Vec<_>>(), [("desk", &b"7"[..])], "what cannot be told is left out");
        let source = status.source().expect("the error itself");
        assert_eq!(source.source().unwrap().to_string(), "secret");
        assert!(!format!("{status}").contains("secret"));
    }

    #[test]
    fn equal_are_statuses_that_a_caller_could_not_tell_apart() {
        let told = Status::internal("x");
        assert_eq!(told.clone().with_source("a"), told);
        assert_ne!(told.clone().with_retry_delay(Duration::ZERO), told);
    }
}
