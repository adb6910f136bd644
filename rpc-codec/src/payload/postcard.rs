//! The postcard codec. Nothing else names the crate. What its decoder leaves open (depth, empty
//! elements) is closed by the wrappers it is called through.

use std::marker::PhantomData;

use ::postcard::{Deserializer, Error, ser_flavors::Flavor, serialize_with_flavor};
use serde::de::DeserializeSeed;
use serde::{Deserialize, Serialize};

use super::bounded::{Budget, MAX_DEPTH, Seed, Shape, Tally, Value};
use super::{Appending, Codec, CodecId, PayloadError};

/// postcard 1: little-endian, integers of more than a byte as varints, in a format that has a
/// [specification](https://postcard.jamesmunns.com/wire-format) of its own.
///
/// As [`Bincode`](super::Bincode) it holds positions and no names, and the same is true of it: both
/// sides' types must agree field by field, and serde's `flatten`, `untagged`, `tag` and
/// `skip_serializing_if` are errors. Its integers are shorter by a byte from 128 to 250, and longer
/// above 16,383. It keeps none of the words that a `Deserialize` of one's own refuses a value with.
///
/// Give byte fields the attribute `#[serde(with = "sluicegate::bytes")]`, as for bincode; the bytes
/// on the wire are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Postcard;

impl Codec for Postcard {
    const ID: CodecId = CodecId::POSTCARD;

    #[inline]
    fn encode<T>(value: &T, out: &mut Vec<u8>) -> Result<(), PayloadError>
    where
        T: Serialize + ?Sized,
    {
        let mut body = Appending::to(out);
        let tally = Tally::new(Self::ID, Shape::Positions, MAX_DEPTH);
        let value = Value::root(value, &tally);
        match serialize_with_flavor(&value, Append(body.out())) {
            Ok(()) => tally.settle(body.len())?,
            Err(error) => return Err(tally.broken().unwrap_or_else(|| not_encoded(&error))),
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
        let mut deserializer = Deserializer::from_bytes(body);
        match Seed::root(PhantomData::<T>, &mut budget).deserialize(&mut deserializer) {
            Ok(value) => match deserializer.finalize() {
                Ok([]) => Ok(value),
                Ok(rest) => Err(PayloadError::TrailingBytes { codec: Self::ID, left: rest.len() }),
                Err(error) => Err(not_decoded(&error)),
            },
            Err(error) => Err(budget.broken().unwrap_or_else(|| not_decoded(&error))),
        }
    }
}

/// Appends to a vector that is there already.
struct Append<'a>(&'a mut Vec<u8>);

impl Flavor for Append<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> ::postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> ::postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn finalize(self) -> ::postcard::Result<()> {
        Ok(())
    }
}

#[cold]
fn not_encoded(error: &Error) -> PayloadError {
    let codec = Postcard::ID;
    match error {
        Error::SerializeSeqLengthUnknown => PayloadError::UnknownLength { codec },
        Error::SerdeSerCustom => {
            PayloadError::Encode { codec, message: "the value refused to be serialized".to_owned() }
        }
        other => PayloadError::Encode { codec, message: in_words(other) },
    }
}

#[cold]
fn not_decoded(error: &Error) -> PayloadError {
    let codec = Postcard::ID;
    match error {
        // The crate does not say how many more.
        Error::DeserializeUnexpectedEnd => PayloadError::TooShort { codec, missing: 1 },
        Error::WontImplement => PayloadError::NotSelfDescribing { codec },
        Error::SerdeDeCustom => PayloadError::Decode { codec, message: "the type refused a value".to_owned() },
        other => PayloadError::Decode { codec, message: in_words(other) },
    }
}

fn in_words(error: &Error) -> String {
    let words = match error {
        Error::DeserializeBadVarint => "an integer is too large",
        Error::DeserializeBadBool => "a flag is neither 0 nor 1",
        Error::DeserializeBadChar => "a character is none",
        Error::DeserializeBadUtf8 => "a string is not UTF-8",
        Error::DeserializeBadOption => "an option is neither 0 nor 1",
        Error::DeserializeBadEnum => "a variant has too large a number",
        other => return other.to_string(),
    };
    words.to_owned()
}
