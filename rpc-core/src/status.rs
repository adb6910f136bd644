//! What a peer is told: a code, a message, details, and whether the call was executed.

use std::{borrow::Cow, error::Error, fmt, sync::Arc, time::Duration};

use crate::Metadata;

/// The outcome of a call as its caller is told.
///
/// A service returns it as its error; a refusal becomes one. The codes are gRPC's. A status never
/// carries internals by itself: only what a service puts into it leaves the process.
///
/// ```
/// # use rpc_core::{Status, StatusCode};
/// let status = Status::not_found("no book has ISBN 9780131103627");
/// assert_eq!(status.code(), StatusCode::NotFound);
/// assert_eq!(status.to_string(), "not found: no book has ISBN 9780131103627");
/// ```
/// Two are equal if a caller could not tell them apart: where one came from, its source, is not looked at.
#[derive(Clone, PartialEq, Eq)]
pub struct Status(Box<Inner>);

/// In a box, so that a result that carries a status is no larger for it.
#[derive(Clone, PartialEq, Eq)]
struct Inner {
    code: StatusCode,
    executed: Executed,
    message: Cow<'static, str>,
    details: Option<Box<Details>>,
    source: Source,
}

impl Status {
    /// A status of `code` that says `message`.
    ///
    /// It says [`Executed::Finished`]: the service ran and this is its answer.
    pub fn new(code: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            code,
            executed: Executed::Finished,
            message: message.into(),
            details: None,
            source: Source(None),
        }))
    }

    /// Sets whether the service ran.
    #[must_use]
    pub fn with_executed(mut self, executed: Executed) -> Self {
        self.0.executed = executed;
        self
    }

    /// Adds the machine-readable reason.
    #[must_use]
    pub fn with_error_info(mut self, info: ErrorInfo) -> Self {
        self.details_mut().error_info = Some(info);
        self
    }

    /// Adds how long the caller should wait before it tries again.
    #[must_use]
    pub fn with_retry_delay(mut self, delay: Duration) -> Self {
        self.details_mut().retry_delay = Some(delay);
        self
    }

    /// Adds a detail of the user's own, named by a type URL.
    #[must_use]
    pub fn with_detail(mut self, type_url: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.details_mut().other.push(AnyDetail { type_url: type_url.into(), value: value.into() });
        self
    }

    /// Adds metadata that travels beside the status.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.details_mut().metadata = metadata;
        self
    }

    /// Keeps the error that this status stands for: [`Error::source`] gives it to logs. It never leaves
    /// the process.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Source(Some(source.into().into()));
        self
    }

    /// The code.
    pub fn code(&self) -> StatusCode {
        self.0.code
    }

    /// Whether the service ran.
    pub fn executed(&self) -> Executed {
        self.0.executed
    }

    /// The message, for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The machine-readable reason, if there is one.
    pub fn error_info(&self) -> Option<&ErrorInfo> {
        self.0.details.as_ref()?.error_info.as_ref()
    }

    /// Whether it says this reason of this domain.
    pub fn has_reason(&self, domain: &str, reason: &str) -> bool {
        self.error_info().is_some_and(|info| info.domain == domain && info.reason == reason)
    }

    /// How long to wait before trying again, if the peer said so.
    pub fn retry_delay(&self) -> Option<Duration> {
        self.0.details.as_ref()?.retry_delay
    }

    /// Details of the user's own.
    pub fn details(&self) -> &[AnyDetail] {
        self.0.details.as_ref().map_or(&[], |details| &details.other)
    }

    /// Metadata that travels beside the status.
    pub fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        self.0.details.as_ref().map_or(&NONE, |details| &details.metadata)
    }

    fn details_mut(&mut self) -> &mut Details {
        self.0.details.get_or_insert_default()
    }
}

macro_rules! constructors {
    ($($name:ident $code:ident),* $(,)?) => {
        impl Status {
            $(
                #[doc = concat!("A status of [`StatusCode::", stringify!($code), "`].")]
                pub fn $name(message: impl Into<Cow<'static, str>>) -> Self {
                    Self::new(StatusCode::$code, message)
                }
            )*
        }
    };
}

constructors! {
    cancelled Cancelled, unknown Unknown, invalid_argument InvalidArgument,
    deadline_exceeded DeadlineExceeded, not_found NotFound, already_exists AlreadyExists,
    permission_denied PermissionDenied, resource_exhausted ResourceExhausted,
    failed_precondition FailedPrecondition, aborted Aborted, out_of_range OutOfRange,
    unimplemented Unimplemented, internal Internal, unavailable Unavailable, data_loss DataLoss,
    unauthenticated Unauthenticated,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.code)?;
        if !self.0.message.is_empty() {
            write!(f, ": {}", self.0.message)?;
        }
        if let Some(info) = self.error_info() {
            write!(f, " [{info}]")?;
        }
        match (self.0.executed, self.retry_delay()) {
            (Executed::Never, Some(delay)) => write!(f, " (never executed, try again in {delay:?})"),
            (Executed::Never, None) => f.write_str(" (never executed)"),
            (Executed::Maybe, Some(delay)) => write!(f, " (perhaps executed, try again in {delay:?})"),
            (Executed::Maybe, None) => f.write_str(" (perhaps executed)"),
            (Executed::Finished, Some(delay)) => write!(f, " (try again in {delay:?})"),
            (Executed::Finished, None) => Ok(()),
        }
    }
}

impl Error for Status {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&**self.0.source.0.as_ref()?)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Status");
        debug.field("code", &self.0.code).field("executed", &self.0.executed).field("message", &self.0.message);
        if let Some(details) = &self.0.details {
            debug.field("details", details);
        }
        if let Some(source) = &self.0.source.0 {
            debug.field("source", source);
        }
        debug.finish()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Details {
    error_info: Option<ErrorInfo>,
    retry_delay: Option<Duration>,
    other: Vec<AnyDetail>,
    metadata: Metadata,
}

/// The error that a status stands for. A peer is told nothing of it, so it makes no difference.
#[derive(Clone, Debug, Default)]
struct Source(Option<Arc<dyn Error + Send + Sync>>);

impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Source {}

/// Why, for programs: a reason within a domain, and the figures that belong to it.
///
/// It is the shape of `google.rpc.ErrorInfo`. The domain of Sluicegate's own refusals is
/// [`ErrorInfo::DOMAIN`].
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorInfo {
    /// A constant in upper snake case, at most 255 bytes; see [`crate::RefusalReason`].
    pub reason: Cow<'static, str>,
    /// Who defines the reason; at most 255 bytes.
    pub domain: Cow<'static, str>,
    /// Figures and names, each as text.
    pub metadata: Metadata,
}

impl ErrorInfo {
    /// The domain of the reasons that Sluicegate itself gives.
    pub const DOMAIN: &'static str = "sluicegate";
}

impl fmt::Debug for ErrorInfo {
    /// With the values, which unlike other metadata are there to be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ", self.domain, self.reason)?;
        f.debug_map().entries(self.metadata.iter().map(|(key, value)| (key, String::from_utf8_lossy(value)))).finish()
    }
}

impl fmt::Display for ErrorInfo {
    /// The reason, of a domain that is not our own, and the figures.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.domain {
            Self::DOMAIN => write!(f, "{}", self.reason)?,
            domain => write!(f, "{domain}/{}", self.reason)?,
        }
        for (at, (key, value)) in self.metadata.iter().enumerate() {
            let sign = if at == 0 { ':' } else { ',' };
            write!(f, "{sign} {key} {}", String::from_utf8_lossy(value))?;
        }
        Ok(())
    }
}

/// A detail of the user's own.
#[derive(Clone, PartialEq, Eq)]
pub struct AnyDetail {
    /// Names the type of the value.
    pub type_url: String,
    /// The value, in an encoding that the type URL defines.
    pub value: Vec<u8>,
}

impl fmt::Debug for AnyDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyDetail({}, {} bytes)", self.type_url, self.value.len())
    }
}

/// Whether the service ran, as far as the one who ended the call knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Executed {
    /// The service ran to its end and this is its answer.
    #[default]
    Finished,
    /// The service was never called: to try again, here or elsewhere, is safe.
    Never,
    /// The service was called but did not finish, or nobody knows.
    Maybe,
}

impl Executed {
    /// As it stands on the wire.
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Finished => 0,
            Self::Never => 1,
            Self::Maybe => 2,
        }
    }

    /// As it stands on the wire. What this version does not know is [`Executed::Maybe`].
    pub const fn from_wire(value: u8) -> Self {
        match value {
            0 => Self::Finished,
            1 => Self::Never,
            _ => Self::Maybe,
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal $text:literal $upper:literal,)*) => {
        /// gRPC's status codes, by their numbers there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum StatusCode {
            $($(#[$doc])* $name = $value,)*
        }

        impl StatusCode {
            /// Every code, success first.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code's number on the wire.
            pub const fn to_wire(self) -> u8 {
                self as u8
            }

            /// The code of a number on the wire; an unassigned one is [`StatusCode::Unknown`].
            pub const fn from_wire(value: u8) -> Self {
                match value {
                    $($value => Self::$name,)*
                    _ => Self::Unknown,
                }
            }

            /// gRPC's name of the code, such as `RESOURCE_EXHAUSTED`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $upper,)*
                }
            }
        }

        impl fmt::Display for StatusCode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

codes! {
    /// The call succeeded.
    Ok = 0 "ok" "OK",
    /// The caller gave up.
    Cancelled = 1 "cancelled" "CANCELLED",
    /// An error of no known kind.
    Unknown = 2 "unknown" "UNKNOWN",
    /// The request can never be right, whatever the state of the system.
    InvalidArgument = 3 "invalid argument" "INVALID_ARGUMENT",
    /// The deadline passed before the call ended.
    DeadlineExceeded = 4 "deadline exceeded" "DEADLINE_EXCEEDED",
    /// What was asked for does not exist.
    NotFound = 5 "not found" "NOT_FOUND",
    /// What was to be created exists.
    AlreadyExists = 6 "already exists" "ALREADY_EXISTS",
    /// The caller is known and may not do this.
    PermissionDenied = 7 "permission denied" "PERMISSION_DENIED",
    /// A limit refused the call; see the retry delay.
    ResourceExhausted = 8 "resource exhausted" "RESOURCE_EXHAUSTED",
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9 "failed precondition" "FAILED_PRECONDITION",
    /// The operation was ended by a conflict.
    Aborted = 10 "aborted" "ABORTED",
    /// Past the valid range.
    OutOfRange = 11 "out of range" "OUT_OF_RANGE",
    /// The server does not have this method, codec or feature.
    Unimplemented = 12 "unimplemented" "UNIMPLEMENTED",
    /// An invariant of the server is broken, such as by a panic.
    Internal = 13 "internal" "INTERNAL",
    /// The server cannot be reached or is going away; try elsewhere.
    Unavailable = 14 "unavailable" "UNAVAILABLE",
    /// Data is lost or corrupted.
    DataLoss = 15 "data loss" "DATA_LOSS",
    /// The caller is not known.
    Unauthenticated = 16 "unauthenticated" "UNAUTHENTICATED",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_grpcs_sixteen_and_ok() {
        assert_eq!(StatusCode::ALL.len(), 17);
        for (number, &code) in StatusCode::ALL.iter().enumerate() {
            assert_eq!(usize::from(code.to_wire()), number);
            assert_eq!(StatusCode::from_wire(code.to_wire()), code);
        }
        assert_eq!(StatusCode::from_wire(17), StatusCode::Unknown);
    }

    #[test]
    fn an_unknown_executed_is_taken_for_maybe() {
        for executed in [Executed::Finished, Executed::Never, Executed::Maybe] {
            assert_eq!(Executed::from_wire(executed.to_wire()), executed);
        }
        assert_eq!(Executed::from_wire(9), Executed::Maybe);
    }

    #[test]
    fn a_person_reads_what_happened_and_when_to_come_back() {
        let status = Status::resource_exhausted("64 of 64 calls in flight").with_retry_delay(Duration::from_millis(12));
        assert_eq!(status.to_string(), "resource exhausted: 64 of 64 calls in flight (try again in 12ms)");
        let refusal = crate::Refusal::new(crate::RefusalReason::ConcurrencyLimit);
        let status = Status::from(&refusal.with_limit("global", 64, 64).with_retry_delay(Duration::from_millis(12)));
        assert_eq!(
            status.to_string(),
            "resource exhausted: the limit of calls in flight is reached \
             [CONCURRENCY_LIMIT: limit global, max_in_flight 64, in_flight 64] \
             (never executed, try again in 12ms)"
        );
        let info = ErrorInfo { reason: "BUSY".into(), domain: "library.example".into(), metadata: Metadata::new() };
        let status = Status::unavailable("").with_error_info(info).with_executed(Executed::Maybe);
        assert_eq!(status.to_string(), "unavailable [library.example/BUSY] (perhaps executed)");
    }
}
