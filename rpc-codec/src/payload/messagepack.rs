//! The MessagePack codec, with field names. Nothing else names the crate. What its decoder leaves
//! open (the depth of options and newtypes) is closed by the wrappers it is called through.

use std::io::Cursor;
use std::marker::PhantomData;

use rmp_serde::decode::{Deserializer, Error as DecodeError};
use rmp_serde::encode::{Error as EncodeError, Serializer};
use serde::de::{DeserializeSeed, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::bounded::{Budget, MAX_DEPTH, Seed, Shape, Tally, Value};
use super::{Appending, Codec, CodecId, PayloadError};

/// MessagePack, in which structs are maps from field names to values and variants go by their names.
///
/// So types may differ: a field that the other side does not know is skipped, one that it leaves out
/// is filled in by serde's `default`, and fields may change places; `docs/evolving.md` says what
/// exactly may. serde's `flatten`, `untagged` and `tag` work. It costs the names, which every struct
/// carries along.
///
/// There is one word for `None` and `()`, so `Some(None)` and `Some(())` come back as `None`.
///
/// Give byte fields the attribute `#[serde(with = "sluicegate::bytes")]`: they are then `bin`, and an
/// array of numbers, up to twice as long, without it. Either is read as the other.
///
/// As with [`Json`](super::CodecId::JSON), what serde buffers for `flatten`, `untagged` and `tag` is
/// bounded while it is read, and out of our sight when the type is made from it. Inside of such a
/// type, do not use one that nests in nothing but its own `Option`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessagePack;

impl Codec for MessagePack {
    const ID: CodecId = CodecId::MESSAGE_PACK;

    fn encode<T>(value: &T, out: &mut Vec<u8>) -> Result<(), PayloadError>
    where
        T: Serialize + ?Sized,
    {
        let mut body = Appending::to(out);
        // Elements need not be settled: each is at least a byte, and an entry two.
        let tally = Tally::new(Self::ID, Shape::Names, MAX_DEPTH);
        let mut serializer = Serializer::new(body.out()).with_struct_map();
        if let Err(error) = Value::root(value, &tally).serialize(&mut serializer) {
            return Err(tally.broken().unwrap_or_else(|| not_encoded(&error)));
        }
        body.keep();
        Ok(())
    }

    fn decode<'de, T>(body: &'de [u8]) -> Result<T, PayloadError>
    where
        T: Deserialize<'de>,
    {
        let mut budget = Budget::for_body(body, MAX_DEPTH);
        let mut deserializer = Deserializer::from_read_ref(body);
        match Seed::root(PhantomData::<T>, &mut budget).deserialize(&mut deserializer) {
            // Whether a marker follows is all that the crate lets us ask.
            Ok(value) => match bool::deserialize(&mut deserializer) {
                Err(DecodeError::InvalidMarkerRead(_)) => Ok(value),
                _ => Err(PayloadError::TrailingBytes { codec: Self::ID, left: behind_the_value(body) }),
            },
            Err(error) => Err(budget.broken().unwrap_or_else(|| not_decoded(&error))),
        }
    }
}

/// How many bytes follow the first value of `body`.
#[cold]
fn behind_the_value(body: &[u8]) -> usize {
    let mut budget = Budget::for_body(body, MAX_DEPTH);
    let mut deserializer = Deserializer::new(Cursor::new(body));
    let skipped = Seed::root(PhantomData::<IgnoredAny>, &mut budget).deserialize(&mut deserializer);
    let used = if skipped.is_ok() { usize::try_from(deserializer.position()).unwrap_or(0) } else { 0 };
    body.len().saturating_sub(used)
}

#[cold]
fn not_encoded(error: &EncodeError) -> PayloadError {
    PayloadError::Encode { codec: MessagePack::ID, message: error.to_string() }
}

#[cold]
fn not_decoded(error: &DecodeError) -> PayloadError {
    let codec = MessagePack::ID;
    match error {
        // Of a slice, a read fails at its end only. The crate does not say how many bytes are missing.
        DecodeError::InvalidMarkerRead(_) | DecodeError::InvalidDataRead(_) => {
            PayloadError::TooShort { codec, missing: 1 }
        }
        DecodeError::DepthLimitExceeded => PayloadError::TooDeep { max: MAX_DEPTH },
        DecodeError::LengthMismatch(len) => PayloadError::Decode {
            codec,
            message: format!("there are more than the {len} elements that the type takes"),
        },
        other => PayloadError::Decode { codec, message: other.to_string() },
    }
}
