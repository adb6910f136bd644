//! The bincode codec. Nothing else names the crate, which nobody maintains: what it writes is frozen
//! by the vectors in `tests/payload_golden.rs`, so it can be replaced without a change on the wire. What its decoder
//! leaves open is closed by the wrappers it is called through (see `docs/decisions/bincode.md`).

use std::marker::PhantomData;

use ::bincode::config::{self, Configuration};
use ::bincode::enc::write::Writer;
use ::bincode::error::{DecodeError, EncodeError};
use ::bincode::serde as format;
use serde::{Deserialize, Serialize};

use super::bounded::{Budget, MAX_DEPTH, Seed, Shape, Tally, Value};
use super::{Appending, Codec, CodecId, PayloadError};

/// bincode 2 in its standard configuration: little-endian, integers of more than a byte as varints.
///
/// Bodies hold positions and no names. So the types of both sides must agree field by field, and
/// serde's `flatten`, `untagged`, `tag` and `skip_serializing_if` cannot work; each is an error that
/// says what to do. `default`, and `skip_serializing` or `skip_deserializing` alone, cannot be told
/// from a body of another type: do not use them.
///
/// Give byte fields the attribute `#[serde(with = "sluicegate::bytes")]`: without it, serde walks a
/// `Vec<u8>` element by element. The bytes on the wire are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bincode;

/// The bounds are the wrappers': the limit of the configuration is a constant of the type, and makes
/// every field pay for what only lengths can do.
const CONFIG: Configuration = config::standard();

impl Codec for Bincode {
    const ID: CodecId = CodecId::BINCODE;

    #[inline]
    fn encode<T>(value: &T, out: &mut Vec<u8>) -> Result<(), PayloadError>
    where
        T: Serialize + ?Sized,
    {
        let mut body = Appending::to(out);
        let tally = Tally::new(Self::ID, Shape::Positions, MAX_DEPTH);
        let value = Value::root(value, &tally);
        match format::encode_into_writer(value, Append(body.out()), CONFIG) {
            Ok(()) => tally.settle(body.len())?,
            Err(error) => return Err(tally.broken().unwrap_or_else(|| not_encoded(error))),
        }
        body.keep();
        Ok(())
    }

    #[inline]
    fn decode<'de, T>(body: &'de [u8]) -> Result<T, PayloadError>
    where
        T: Deserialize<'de>,
    {
        let mut budget = Budget::for_body(body, MAX_DEPTH);
        let seed = Seed::root(PhantomData::<T>, &mut budget);
        match format::seed_decode_from_slice(seed, body, CONFIG) {
            Ok((value, used)) if used == body.len() => Ok(value),
            Ok((_, used)) => Err(PayloadError::TrailingBytes { codec: Self::ID, left: body.len() - used }),
            Err(error) => Err(budget.broken().unwrap_or_else(|| not_decoded(error))),
        }
    }
}

/// Appends to a vector that is there already; the crate's own writer makes a new one.
struct Append<'a>(&'a mut Vec<u8>);

impl Writer for Append<'_> {
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

#[cold]
fn not_encoded(error: EncodeError) -> PayloadError {
    let codec = Bincode::ID;
    match error {
        EncodeError::Serde(format::EncodeError::SequenceMustHaveLength) => PayloadError::UnknownLength { codec },
        EncodeError::OtherString(message) => PayloadError::Encode { codec, message },
        other => PayloadError::Encode { codec, message: other.to_string() },
    }
}

#[cold]
fn not_decoded(error: DecodeError) -> PayloadError {
    let codec = Bincode::ID;
    match error {
        DecodeError::UnexpectedEnd { additional: missing } => PayloadError::TooShort { codec, missing },
        DecodeError::Serde(
            format::DecodeError::AnyNotSupported
            | format::DecodeError::IdentifierNotSupported
            | format::DecodeError::IgnoredAnyNotSupported,
        ) => PayloadError::NotSelfDescribing { codec },
        DecodeError::OtherString(message) => PayloadError::Decode { codec, message },
        other => PayloadError::Decode { codec, message: other.to_string() },
    }
}
