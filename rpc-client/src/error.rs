//! What the caller of a client is told when a call does not succeed.

use std::{fmt, io, sync::Arc, time::Duration};

use rpc_codec::{DecodeError, GoAwayReason, HeadError, PayloadError};
use rpc_core::{Executed, MetadataError, Refused, Status, StatusCode};

/// Why a call did not succeed. Each variant names the peer and the cause as far as they are known.
///
/// [`CallError::executed`] says whether it is safe to try again, and [`CallError::retry_delay`]
/// when.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server answered with a status.
    #[error(transparent)]
    Status(Status),
    /// There is no connection and none could be made. Never executed.
    #[error("cannot connect to {peer}")]
    Connect {
        /// Who was to be reached.
        peer: Arc<str>,
        /// When the next attempt may be made.
        retry_after: Duration,
        /// What failed.
        source: Arc<io::Error>,
    },
    /// The connection was lost while the call was out.
    #[error("the connection to {peer} was lost")]
    Lost {
        /// The other end.
        peer: Arc<str>,
        /// [`Executed::Never`] if the request had not left completely.
        executed: Executed,
        /// What happened to the connection.
        source: LostCause,
    },
    /// The server takes no more calls on this connection and did not accept this one. Never
    /// executed; a next call goes by a new connection.
    #[error("{peer} takes no more calls: {message}")]
    GoingAway {
        /// The other end.
        peer: Arc<str>,
        /// Why.
        reason: GoAwayReason,
        /// The reason in the server's words.
        message: Arc<str>,
    },
    /// The deadline passed before an answer came.
    #[error("no answer from {peer} before the deadline")]
    DeadlineExceeded {
        /// The other end.
        peer: Arc<str>,
        /// [`Executed::Never`] if the call was still waiting for a connection or for room on it, or if of its
        /// request no byte had been handed to the transport, or not all of its parts: then the others never are.
        executed: Executed,
    },
    /// The request is longer than the server takes. Never executed.
    #[error("the request of {len} bytes exceeds the {max} that {peer} takes")]
    RequestTooLarge {
        /// The other end.
        peer: Arc<str>,
        /// The length of the body in bytes, or of the head if that is what is too long.
        len: u64,
        /// What may be sent.
        max: u64,
    },
    /// An item is longer than the server takes, and was not sent. The service may have run on those before it.
    #[error("the item of {len} bytes exceeds the {max} that {peer} takes")]
    ItemTooLarge {
        /// The other end.
        peer: Arc<str>,
        /// The length of the item in bytes.
        len: u64,
        /// What may be sent.
        max: u64,
    },
    /// The response is longer than this client takes. It was executed.
    #[error("the response of {len} bytes from {peer} exceeds the {max} that this client takes")]
    ResponseTooLarge {
        /// The other end.
        peer: Arc<str>,
        /// The length of the body in bytes.
        len: u64,
        /// What is taken.
        max: u64,
    },
    /// The arguments cannot be encoded. Never executed.
    #[error("the arguments cannot be encoded")]
    Encode(#[source] PayloadError),
    /// An item cannot be encoded, and was not sent. The service may have run on those before it.
    #[error("an item cannot be encoded")]
    EncodeItem(#[source] PayloadError),
    /// Metadata of the call breaks a rule. Never executed.
    #[error("the call's metadata cannot be sent")]
    Metadata(#[source] MetadataError),
    /// The server's reply is not what this client expects. It was executed.
    #[error("the reply of {peer} cannot be decoded")]
    Decode {
        /// The other end.
        peer: Arc<str>,
        /// What is wrong with it.
        source: PayloadError,
    },
    /// The head of the server's response is not well formed.
    #[error("the response of {peer} is malformed")]
    MalformedResponse {
        /// The other end.
        peer: Arc<str>,
        /// What is wrong with it.
        source: HeadError,
    },
    /// A layer of `tower` around the client failed, with an error of its own. It may have been executed.
    #[error("a layer around the client failed")]
    Layer(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The client was closed. Never executed.
    #[error("the client was closed")]
    Closed,
    /// No more items can be sent: the server has ended the call. Its answer, which comes elsewhere, says how.
    #[error("{peer} has ended the call; its answer says how")]
    Ended {
        /// The other end.
        peer: Arc<str>,
    },
    /// The sink of the call was dropped before it was closed, and the call was cancelled: what the server
    /// has got is not all there was to come.
    #[error("the sink of the call was dropped before it was closed")]
    SinkDropped {
        /// The other end.
        peer: Arc<str>,
    },
    /// An item was put into the sink of a call as no sink may be used, and was not sent: behind its end, or without
    /// having asked whether there is room. The call goes on.
    #[error("an item was put into the sink of the call {how}")]
    SinkMisused {
        /// The other end.
        peer: Arc<str>,
        /// How it was put there.
        how: &'static str,
    },
    /// The call was polled outside of a tokio runtime. Never executed.
    #[error("a call needs a tokio runtime, and there is none here")]
    NoRuntime,
}

impl CallError {
    /// The status code that fits, whoever found the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::Status(status) => status.code(),
            Self::Connect { .. } | Self::Lost { .. } | Self::GoingAway { .. } => StatusCode::Unavailable,
            Self::DeadlineExceeded { .. } => StatusCode::DeadlineExceeded,
            Self::RequestTooLarge { .. } | Self::ItemTooLarge { .. } | Self::ResponseTooLarge { .. } => {
                StatusCode::ResourceExhausted
            }
            Self::Metadata(_) => StatusCode::InvalidArgument,
            Self::Encode(_)
            | Self::EncodeItem(_)
            | Self::Decode { .. }
            | Self::MalformedResponse { .. }
            | Self::SinkMisused { .. }
            | Self::NoRuntime => StatusCode::Internal,
            Self::Layer(_) => StatusCode::Unknown,
            Self::Closed | Self::Ended { .. } | Self::SinkDropped { .. } => StatusCode::Cancelled,
        }
    }

    /// Whether the service ran. After [`Executed::Never`] it is safe to try again.
    pub fn executed(&self) -> Executed {
        match self {
            Self::Status(status) => status.executed(),
            Self::Lost { executed, .. } | Self::DeadlineExceeded { executed, .. } => *executed,
            Self::Decode { .. } | Self::ResponseTooLarge { .. } => Executed::Finished,
            Self::MalformedResponse { .. }
            | Self::Layer(_)
            | Self::ItemTooLarge { .. }
            | Self::EncodeItem(_)
            | Self::Ended { .. }
            | Self::SinkDropped { .. }
            | Self::SinkMisused { .. } => Executed::Maybe,
            Self::Connect { .. }
            | Self::GoingAway { .. }
            | Self::RequestTooLarge { .. }
            | Self::Encode(_)
            | Self::Metadata(_)
            | Self::Closed
            | Self::NoRuntime => Executed::Never,
        }
    }

    /// How long to wait before trying again, if somebody said so.
    pub fn retry_delay(&self) -> Option<Duration> {
        match self {
            Self::Status(status) => status.retry_delay(),
            Self::Connect { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// What the server said when it turned the call away for a reason of the framework's, such as a
    /// limit; `None` if that is not what happened. See [`Status::refused`].
    pub fn refused(&self) -> Option<Refused<'_>> {
        self.status()?.refused()
    }

    /// Whether the server answered with this reason of this domain.
    pub fn has_reason(&self, domain: &str, reason: &str) -> bool {
        self.status().is_some_and(|status| status.has_reason(domain, reason))
    }

    /// The status of the server, if it answered.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }
}

/// So that a service can pass on with `?` what a call of its own met.
impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Status(status) => status.with_executed(Executed::Finished),
            // The text names peers, which are this process's own business.
            other => Self::new(other.code(), "a call that the service depends on failed").with_source(other),
        }
    }
}

/// What happened to a lost connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LostCause {
    /// The transport failed.
    Io(Arc<io::Error>),
    /// The server ended its stream without a farewell.
    ServerClosed,
    /// The server ended the connection, and said why.
    GoneAway(Arc<str>),
    /// The server broke the protocol.
    Protocol(Arc<str>),
    /// Nothing came for so long, not even the answer to a PING: the server or the way to it is gone.
    KeepaliveTimeout {
        /// How long nothing had come.
        silent: Duration,
    },
    /// The server did not say HELLO in time.
    HandshakeTimeout {
        /// The time it had.
        after: Duration,
    },
    /// The server began a frame and did not end it in time.
    FrameTimeout {
        /// The time it had.
        after: Duration,
    },
    /// The server took nothing of what was to be written to it.
    WriteTimeout {
        /// The time it had.
        after: Duration,
    },
    /// The server sent more frames that end no call than any server has reason to.
    Flooded {
        /// How many a second are taken.
        per_second: u32,
        /// How many are taken at once.
        burst: u32,
    },
    /// The runtime that drove the connection ended.
    RuntimeEnded,
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::ServerClosed => f.write_str("the server closed the connection"),
            Self::GoneAway(message) => write!(f, "the server ended the connection: {message}"),
            Self::Protocol(message) => write!(f, "the server broke the protocol: {message}"),
            Self::KeepaliveTimeout { silent } => {
                write!(f, "nothing came for {silent:?}, not even the answer to a ping")
            }
            Self::HandshakeTimeout { after } => write!(f, "the server said no HELLO within {after:?}"),
            Self::FrameTimeout { after } => write!(f, "the server did not end a frame within {after:?}"),
            Self::WriteTimeout { after } => write!(f, "the server took nothing for {after:?}"),
            Self::Flooded { per_second, burst } => {
                write!(
                    f,
                    "the server sent more than {per_second} frames a second, or {burst} at once, that end no call"
                )
            }
            Self::RuntimeEnded => f.write_str("the runtime of the connection ended"),
        }
    }
}

impl std::error::Error for LostCause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl From<io::Error> for LostCause {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<DecodeError> for LostCause {
    fn from(error: DecodeError) -> Self {
        Self::Protocol(error.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn an_error_names_the_peer_and_keeps_its_cause() {
        let error = CallError::Connect {
            peer: "db:7000".into(),
            retry_after: Duration::from_millis(50),
            source: Arc::new(io::ErrorKind::ConnectionRefused.into()),
        };
        assert_eq!(error.to_string(), "cannot connect to db:7000");
        assert_eq!(error.source().unwrap().to_string(), "connection refused");
        assert_eq!((error.code(), error.executed()), (StatusCode::Unavailable, Executed::Never));
        assert_eq!(error.retry_delay(), Some(Duration::from_millis(50)));
    }

    #[test]
    fn a_status_passed_on_does_not_name_our_peers() {
        let error =
            CallError::Lost { peer: "10.0.0.7:1".into(), executed: Executed::Maybe, source: LostCause::ServerClosed };
        let status = Status::from(error);
        assert_eq!(status.code(), StatusCode::Unavailable);
        assert!(!status.to_string().contains("10.0.0.7"));
    }
}
