//! A call turned away before any work: which limit, its value, when to come back.

use std::{fmt, time::Duration};

use crate::{ErrorInfo, Executed, Metadata, Status, StatusCode};

/// A call turned away before its body was decoded; it was never executed.
///
/// It is a plain value, made and sent without an allocation, because a refusal must cost no more
/// than serving would. For the caller it is a [`Status`] with [`ErrorInfo`] and a retry delay.
///
/// ```
/// # use rpc_core::{Executed, Refusal, RefusalReason, Status};
/// let refusal = Refusal::new(RefusalReason::ConcurrencyLimit).with_limit("global", 64, 64);
/// let status = Status::from(&refusal);
/// assert_eq!(status.executed(), Executed::Never);
/// assert_eq!(status.error_info().unwrap().metadata.get_str("in_flight"), Some("64"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    reason: RefusalReason,
    limit: &'static str,
    max: u64,
    current: u64,
    retry_delay: Option<Duration>,
    tenant: Label,
}

impl Refusal {
    /// A refusal for `reason`, with no figures yet.
    pub const fn new(reason: RefusalReason) -> Self {
        Self { reason, limit: "", max: 0, current: 0, retry_delay: None, tenant: Label::EMPTY }
    }

    /// Names the limit, its value, and what was in use of it. Of a long name the first 255 bytes count.
    #[must_use]
    pub const fn with_limit(mut self, limit: &'static str, max: u64, current: u64) -> Self {
        self.limit = limit;
        self.max = max;
        self.current = current;
        self
    }

    /// Says how long to wait before trying again.
    #[must_use]
    pub const fn with_retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = Some(delay);
        self
    }

    /// Names whose limit it is. Of a long name the first 47 bytes count.
    #[must_use]
    pub fn with_tenant(mut self, tenant: &str) -> Self {
        self.tenant = Label::new(tenant);
        self
    }

    /// Why.
    pub const fn reason(&self) -> RefusalReason {
        self.reason
    }

    /// The name of the limit; empty if no limit refused.
    pub fn limit(&self) -> &'static str {
        &self.limit[..self.limit.floor_char_boundary(MAX_NAME_LEN)]
    }

    /// Whose limit it is; empty if it is not that of a tenant.
    pub fn tenant(&self) -> &str {
        self.tenant.as_str()
    }

    /// How long to wait before trying again; `None` means that trying again here is no use.
    pub const fn retry_delay(&self) -> Option<Duration> {
        self.retry_delay
    }

    /// Whether the two say the same, but for how long to wait, of which both say something or nothing.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self { reason, limit, max, current, retry_delay, tenant } = self;
        (*reason, *max, *current) == (other.reason, other.max, other.current)
            && retry_delay.is_some() == other.retry_delay.is_some()
            && *limit == other.limit
            && *tenant == other.tenant
    }

    /// The figures that belong to the reason, as key and number.
    pub fn figures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (max, current) = self.reason.figure_names();
        [(max, self.max), (current, self.current)].into_iter().filter(|(key, _)| !key.is_empty())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.message())
    }
}

impl From<&Refusal> for Status {
    fn from(refusal: &Refusal) -> Self {
        let mut metadata = Metadata::new();
        let mut note = |key, value: &str| metadata.insert(key, value).expect("all of it is short");
        if !refusal.limit().is_empty() {
            note("limit", refusal.limit());
        }
        for (key, value) in refusal.figures() {
            note(key, &value.to_string());
        }
        if !refusal.tenant().is_empty() {
            note("tenant", refusal.tenant());
        }
        let info = ErrorInfo { reason: refusal.reason.name().into(), domain: ErrorInfo::DOMAIN.into(), metadata };
        let status = Self::new(refusal.reason.code(), refusal.reason.message())
            .with_executed(refusal.reason.executed())
            .with_error_info(info);
        match refusal.retry_delay {
            Some(delay) => status.with_retry_delay(delay),
            None => status,
        }
    }
}

/// A short text, in place: a refusal allocates nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Label {
    len: u8,
    bytes: [u8; MAX_LABEL_LEN],
}

impl Label {
    const EMPTY: Self = Self { len: 0, bytes: [0; MAX_LABEL_LEN] };

    fn new(text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(MAX_LABEL_LEN)];
        let mut label = Self { len: text.len() as u8, ..Self::EMPTY };
        label.bytes[..text.len()].copy_from_slice(text.as_bytes());
        label
    }

    fn as_str(&self) -> &str {
        // Nearly always, and looked at for each refusal.
        if self.len == 0 {
            return "";
        }
        str::from_utf8(&self.bytes[..self.len.into()]).expect("it was cut between characters")
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

const MAX_LABEL_LEN: usize = 47;

/// A name of a limit always fits beside the rest of a refusal.
const MAX_NAME_LEN: usize = 255;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident $upper:literal $code:ident ($max:literal, $current:literal) $message:literal,)*) => {
        /// Every reason for which Sluicegate itself turns a call away, or ends its stream.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum RefusalReason {
            $($(#[$doc])* $name,)*
        }

        impl RefusalReason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The reason on the wire, in [`ErrorInfo::reason`].
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $upper,)* }
            }

            /// The reason of that name on the wire, if this version knows it.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($upper => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The code that goes with it.
            pub const fn code(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$code,)* }
            }

            /// The reason in words.
            pub const fn message(self) -> &'static str {
                match self { $(Self::$name => $message,)* }
            }

            /// Whether who is turned away by it may have been served: never, but for one whose service ran already.
            pub const fn executed(self) -> Executed {
                match self {
                    Self::StreamIdle => Executed::Maybe,
                    _ => Executed::Never,
                }
            }

            const fn figure_names(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => ($max, $current),)* }
            }
        }
    };
}

reasons! {
    /// As many calls are in flight as the limit allows. Come back after the delay.
    ConcurrencyLimit "CONCURRENCY_LIMIT" ResourceExhausted ("max_in_flight", "in_flight")
        "the limit of calls in flight is reached",
    /// The call weighs more than the limit lets in at all.
    ConcurrencyNeverPasses "CONCURRENCY_NEVER_PASSES" FailedPrecondition ("max_in_flight", "weight")
        "the call weighs more than the limit of calls in flight, so it can never pass",
    /// As many calls wait for the limit as may. Come back after the delay.
    QueueFull "QUEUE_FULL" ResourceExhausted ("max_waiting", "waiting")
        "as many calls wait for the limit as may",
    /// The call has waited for the limit for as long as calls may. Come back after the delay.
    QueueTimeout "QUEUE_TIMEOUT" ResourceExhausted ("max_wait_us", "waiting")
        "the call has waited for the limit for too long",
    /// Calls of this class are turned away, so that those of higher ones find room. Come back after the
    /// delay, or say that it matters more.
    PriorityShed "PRIORITY_SHED" ResourceExhausted ("classes_shed", "class")
        "calls of this class are turned away while those of higher ones find no room",
    /// Calls come faster than the rate allows. The delay is exact, plus a little jitter.
    RateLimit "RATE_LIMIT" ResourceExhausted ("max_per_second", "burst")
        "the rate limit is reached",
    /// Too many threads changed the rate's state at once. Come back soon.
    RateContended "RATE_CONTENDED" ResourceExhausted ("max_per_second", "burst")
        "the rate limit is contended",
    /// The call weighs more than the rate's burst and can never pass.
    RateNeverPasses "RATE_NEVER_PASSES" FailedPrecondition ("max_per_second", "burst")
        "the call weighs more than the burst of the rate limit, so it can never pass",
    /// The deadline had passed when the call arrived.
    DeadlineExpired "DEADLINE_EXPIRED" DeadlineExceeded ("", "age_us")
        "the deadline passed before the call was executed",
    /// There is less time left than such calls usually take, so the answer could only be late.
    DeadlineTooShort "DEADLINE_TOO_SHORT" DeadlineExceeded ("usual_us", "left_us")
        "there is less time left than the call usually takes",
    /// The server has no such method.
    UnknownMethod "UNKNOWN_METHOD" Unimplemented ("", "")
        "the server has no such method",
    /// The server or the method does not take this codec.
    UnsupportedCodec "UNSUPPORTED_CODEC" Unimplemented ("", "codec")
        "the method does not take this codec",
    /// The server does not take this compression.
    UnsupportedCompression "UNSUPPORTED_COMPRESSION" Unimplemented ("", "compression")
        "the server does not take this compression",
    /// The body is longer than a message may be.
    MessageTooLarge "MESSAGE_TOO_LARGE" ResourceExhausted ("max_len", "len")
        "the message is longer than the server takes",
    /// As many bytes of bodies are in flight as the limit allows. Come back after the delay.
    BodyBudget "BODY_BUDGET" ResourceExhausted ("max_bytes", "bytes")
        "the limit of bytes of bodies in flight is reached",
    /// The rest of the body did not arrive at the least rate.
    BodyTooSlow "BODY_TOO_SLOW" DeadlineExceeded ("min_bytes_per_second", "bytes")
        "the rest of the body came too slowly",
    /// No item of the stream came or went for as long as streams may be idle. Open it anew when there is something
    /// to send. As the service was called, this says executed *maybe*: [`Status::refused`] does not find it, and
    /// [`Status::has_reason`] does.
    StreamIdle "STREAM_IDLE" DeadlineExceeded ("max_idle_us", "")
        "no item of the stream came or went for too long",
    /// The head or the metadata of the request is not well formed.
    MalformedRequest "MALFORMED_REQUEST" InvalidArgument ("", "")
        "the request's head is malformed",
    /// The server is going away. Try another.
    Draining "DRAINING" Unavailable ("", "")
        "the server is draining",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_limit_value_use_and_when_to_come_back() {
        let refusal = Refusal::new(RefusalReason::ConcurrencyLimit)
            .with_limit("global", 64, 63)
            .with_retry_delay(Duration::from_millis(5));
        let status = Status::from(&refusal);
        assert_eq!(status.code(), StatusCode::ResourceExhausted);
        assert_eq!(status.executed(), Executed::Never);
        assert_eq!(status.retry_delay(), Some(Duration::from_millis(5)));
        let info = status.error_info().unwrap();
        assert_eq!((&*info.reason, &*info.domain), ("CONCURRENCY_LIMIT", "sluicegate"));
        let pairs: Vec<_> = info.metadata.iter().collect();
        assert_eq!(pairs, [("limit", &b"global"[..]), ("max_in_flight", b"64"), ("in_flight", b"63")]);
    }

    #[test]
    fn of_a_long_name_as_much_counts_as_fits_everywhere() {
        let long: &'static str = Box::leak("\u{20ac}".repeat(100_000).into_boxed_str());
        let refusal = Refusal::new(RefusalReason::ConcurrencyLimit).with_limit(long, 1, 1);
        assert_eq!(refusal.limit(), "\u{20ac}".repeat(85));
        assert!(Status::from(&refusal).error_info().is_some());
    }

    #[test]
    fn a_tenant_is_named_as_far_as_its_name_fits() {
        let refusal = Refusal::new(RefusalReason::ConcurrencyLimit).with_limit("tenant", 1, 1);
        let named = |tenant: &str| Status::from(&refusal.with_tenant(tenant)).error_info().unwrap().metadata.clone();
        assert_eq!(named("acme").get_str("tenant"), Some("acme"));
        assert_eq!(named(&"\u{20ac}".repeat(40)).get_str("tenant"), Some(&*"\u{20ac}".repeat(15)));
        assert_eq!(named("").get_str("tenant"), None);
        assert!(format!("{:?}", refusal.with_tenant("acme")).contains("\"acme\""));
    }

    #[test]
    fn names_of_reasons_are_unique() {
        let names: std::collections::BTreeSet<_> = RefusalReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), RefusalReason::ALL.len());
    }
}
