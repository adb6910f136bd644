//! The bounds of a body, put around any serializer.
//!
//! serde asks for the elements of a value one by one and lets each type recurse as it likes, so a
//! format's own limits cannot stop a body of nine bytes from claiming 2^60 empty elements, or one of
//! a megabyte from recursing until the stack is gone, which aborts the process. The wrappers here
//! stand between a type and any format:
//!
//! - **Depth** is counted down by value on the way in, at each sequence, map, tuple, struct, newtype,
//!   `Some`, enum, and variant with several fields. Where nothing recurses it is a constant.
//! - **Elements** are paid from one [`Budget`] for the whole body, at the moment a length is known
//!   and before memory is reserved for it. An honest element takes at least one byte (a map's entry
//!   two: its keys differ), so the body's length is enough for all of them together; [`SLACK`] is
//!   for those that take none. One budget for all, not one for each sequence, because a recursive
//!   type can have a hundred sequences open that were each promised the same remaining bytes.
//! - **Size hints** that a type may reserve by never use the slack.
//!
//! `String` and byte buffers are asked for as borrowed: bincode reads owned ones into zeroed memory
//! of the claimed length, which is a hole, and slower than copying what is there. Visitors must
//! accept both by serde's contract ("never correct to implement `visit_string` without `visit_str`").
//!
//! All of it is generic and inlines away, but for a subtraction and a comparison at each sequence.

mod deserializer;
mod serializer;
mod visitor;

pub(super) use self::deserializer::Seed;
pub(super) use self::serializer::{Shape, Tally, Value};

use super::PayloadError;

/// How many levels of nesting encoding and decoding follow.
///
/// Enough for any tree that people draw. In a debug build this many levels of small types take up to
/// 300 KiB of stack, so they fit a 512 KiB one; in MessagePack up to 600 KiB.
pub const MAX_DEPTH: usize = 128;

/// How many elements that take no bytes a body may have on top.
const SLACK: usize = 1024;

/// What an element of a sequence costs: the byte it is at least.
const ELEMENT: usize = 1;

/// What an entry of a map costs: two bytes, since only 251 keys can do with one and none.
const ENTRY: usize = 2;

/// The bounds of one body that is being decoded, and which of them it broke.
#[derive(Debug)]
pub(super) struct Budget {
    elements: usize,
    max_depth: usize,
    broken: Option<Broken>,
}

impl Budget {
    #[inline]
    pub(super) fn for_body(body: &[u8], max_depth: usize) -> Self {
        Self { elements: body.len().saturating_add(SLACK), max_depth, broken: None }
    }

    /// The bound that was broken, if one was. serde's errors are strings; this one is ours.
    pub(super) fn broken(&self) -> Option<PayloadError> {
        self.broken.map(|broken| match broken {
            Broken::Depth => PayloadError::TooDeep { max: self.max_depth },
            Broken::Elements { claimed, max } => PayloadError::TooManyElements { claimed, max },
        })
    }

    /// Pays for `claimed` elements and returns for how many of them memory may be reserved.
    #[inline]
    fn pay<E: serde::de::Error>(&mut self, claimed: usize, each: usize) -> Result<usize, E> {
        let reservable = self.reservable() / each;
        match self.elements.checked_sub(claimed.saturating_mul(each)) {
            Some(left) => {
                self.elements = left;
                Ok(claimed.min(reservable))
            }
            None => Err(self.too_many(claimed, each)),
        }
    }

    /// For how many elements of a byte memory may still be reserved.
    #[inline]
    fn reservable(&self) -> usize {
        self.elements.saturating_sub(SLACK)
    }

    /// The levels left below one more level.
    #[inline]
    fn descend<E: serde::de::Error>(&mut self, depth: usize) -> Result<usize, E> {
        match depth.checked_sub(1) {
            Some(below) => Ok(below),
            None => Err(self.too_deep()),
        }
    }

    #[cold]
    fn too_many<E: serde::de::Error>(&mut self, claimed: usize, each: usize) -> E {
        self.broken = Some(Broken::Elements { claimed, max: self.elements / each });
        E::custom("too many elements")
    }

    #[cold]
    fn too_deep<E: serde::de::Error>(&mut self) -> E {
        self.broken = Some(Broken::Depth);
        E::custom("too deep")
    }
}

#[derive(Debug, Clone, Copy)]
enum Broken {
    Depth,
    Elements { claimed: usize, max: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    type Error = serde::de::value::Error;

    #[test]
    fn reservations_together_never_exceed_the_body() {
        let mut budget = Budget::for_body(&[0; 100], MAX_DEPTH);
        assert_eq!(budget.pay::<Error>(60, ELEMENT), Ok(60));
        assert_eq!(budget.pay::<Error>(60, ELEMENT), Ok(40));
        assert_eq!(budget.pay::<Error>(1000, ELEMENT), Ok(0));
        assert!(budget.pay::<Error>(5, ELEMENT).is_err());
        assert_eq!(budget.broken(), Some(PayloadError::TooManyElements { claimed: 5, max: 4 }));
    }

    #[test]
    fn an_entry_costs_two_and_no_claim_overflows() {
        let mut budget = Budget::for_body(&[0; 100], MAX_DEPTH);
        assert_eq!(budget.pay::<Error>(60, ENTRY), Ok(50));
        assert!(budget.pay::<Error>(usize::MAX, ENTRY).is_err());
        assert!(budget.pay::<Error>(usize::MAX, ELEMENT).is_err());
        assert_eq!(budget.pay::<Error>(502, ENTRY), Ok(0));
    }
}
