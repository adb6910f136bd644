//! W3C trace context: which trace a call belongs to, and what called it.

use std::fmt;

/// The value of a `traceparent`: a trace, the caller's place in it, and flags.
///
/// [W3C Trace Context](https://www.w3.org/TR/trace-context/), level 1. Read are values of version 00, and
/// of later ones as far as version 00 reads them; written is version 00.
///
/// ```
/// use rpc_core::TraceParent;
///
/// let parent: TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
/// let child = parent.child(7);
/// assert_eq!(child.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01");
/// # Ok::<(), rpc_core::TraceParentError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace: u128,
    parent: u64,
    flags: u8,
}

impl TraceParent {
    /// The name of the metadata that carries it.
    pub const KEY: &'static str = "traceparent";
    /// The name of the metadata in which vendors of tracing carry what they need beside it.
    pub const STATE_KEY: &'static str = "tracestate";

    /// A place in a trace. An id of 0 means "none" on the wire, and is taken as 1.
    pub fn new(trace: u128, parent: u64, sampled: bool) -> Self {
        Self { trace: trace.max(1), parent: parent.max(1), flags: sampled.into() }
    }

    /// The same trace, as seen by whoever is called from `span`.
    #[must_use]
    pub fn child(self, span: u64) -> Self {
        Self { parent: span.max(1), ..self }
    }

    /// The id of the trace.
    pub fn trace_id(self) -> u128 {
        self.trace
    }

    /// The id of the caller's span.
    pub fn parent_id(self) -> u64 {
        self.parent
    }

    /// Whether the caller may have recorded its part.
    pub fn is_sampled(self) -> bool {
        self.flags & 1 == 1
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of the flags, only those that version 00 knows may be passed on.
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.parent, self.flags & 1)
    }
}

impl std::str::FromStr for TraceParent {
    type Err = TraceParentError;

    fn from_str(text: &str) -> Result<Self, TraceParentError> {
        let (known, rest) = text.split_at_checked(LEN).ok_or(TraceParentError(()))?;
        let mut parts = known.split('-');
        let mut next = |len| parts.next().filter(|part| part.len() == len && is_hex(part)).ok_or(TraceParentError(()));
        let (version, trace, parent, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        let later = version != "00";
        if version == "ff" || !(rest.is_empty() || later && rest.starts_with('-')) {
            return Err(TraceParentError(()));
        }
        let wrong = |_| TraceParentError(());
        let trace = u128::from_str_radix(trace, 16).map_err(wrong)?;
        let parent = u64::from_str_radix(parent, 16).map_err(wrong)?;
        let flags = u8::from_str_radix(flags, 16).map_err(wrong)?;
        if trace == 0 || parent == 0 {
            return Err(TraceParentError(()));
        }
        Ok(Self { trace, parent, flags })
    }
}

/// The text is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a traceparent is version-trace-parent-flags in lower-case hexadecimal digits, with ids above zero")]
pub struct TraceParentError(());

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The length of a value of version 00.
const LEN: usize = 55;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_value_is_read_and_written() {
        let parent: TraceParent = TEXT.parse().unwrap();
        assert_eq!(parent.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.parent_id(), parent.is_sampled()), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(parent.to_string(), TEXT);
        assert_eq!(TraceParent::new(0, 0, false).to_string().parse(), Ok(TraceParent::new(1, 1, false)));
    }

    #[test]
    fn later_versions_may_be_longer_and_what_they_add_is_not_passed_on() {
        let later = TEXT.replacen("00", "cc", 1).replace("-01", "-ff-what-else");
        assert_eq!(later.parse::<TraceParent>().unwrap().to_string(), TEXT);
    }

    #[test]
    fn what_breaks_the_rules_is_no_traceparent() {
        for wrong in [
            "",
            "00",
            &TEXT.to_uppercase(),
            &TEXT.replacen("00", "ff", 1),
            &TEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &TEXT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &TEXT.replace('-', "_"),
            &format!("{TEXT}-more"),
            &format!("{}é", &TEXT[..54]),
            &TEXT.replace("4bf9", "+bf9"),
        ] {
            assert!(wrong.parse::<TraceParent>().is_err(), "{wrong}");
        }
    }
}
