//! The JSON codec.

use std::marker::PhantomData;

use serde::de::{DeserializeSeed, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::bounded::{Budget, MAX_DEPTH, Seed, Shape, Tally, Value};
use super::{Appending, Codec, CodecId, PayloadError};

/// JSON, as serde_json reads and writes it.
///
/// Slower and larger than [`Bincode`](super::Bincode), and it carries what that cannot: types with
/// serde's `flatten`, `untagged` and `tag` attributes, and fields that come and go.
///
/// White space around the value is allowed. JSON has no word for `NaN` and the infinities, which
/// become `null`, nor for `Some(None)`; and a float may come back one off in its last bit.
///
/// What serde buffers for `flatten`, `untagged` and `tag` is bounded while it is read, and out of our
/// sight when the type is made from it. Inside of such a type, do not use one that nests in nothing
/// but its own `Option`, like `struct Chain(Option<Box<Chain>>)`: any number is an endless chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json;

/// serde_json refuses the array or object that would be level 128, so this is where it agrees with
/// us. Its own count is not enough: it does not see `Some` and newtypes, and a newtype of
/// `Option<Box<Self>>` makes it recurse forever on the body `1`.
const JSON_MAX_DEPTH: usize = MAX_DEPTH - 1;

impl Codec for Json {
    const ID: CodecId = CodecId::JSON;

    fn encode<T>(value: &T, out: &mut Vec<u8>) -> Result<(), PayloadError>
    where
        T: Serialize + ?Sized,
    {
        let mut body = Appending::to(out);
        // Elements need not be settled: each is at least two bytes of JSON.
        let tally = Tally::new(Self::ID, Shape::Names, JSON_MAX_DEPTH);
        if let Err(error) = serde_json::to_writer(body.out(), &Value::root(value, &tally)) {
            return Err(tally
                .broken()
                .unwrap_or_else(|| PayloadError::Encode { codec: Self::ID, message: error.to_string() }));
        }
        body.keep();
        Ok(())
    }

    fn decode<'de, T>(body: &'de [u8]) -> Result<T, PayloadError>
    where
        T: Deserialize<'de>,
    {
        let mut budget = Budget::for_body(body, JSON_MAX_DEPTH);
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        match Seed::root(PhantomData::<T>, &mut budget).deserialize(&mut deserializer) {
            Ok(value) if deserializer.end().is_ok() => Ok(value),
            Ok(_) => {
                let used = deserializer.into_iter::<IgnoredAny>().byte_offset();
                Err(PayloadError::TrailingBytes { codec: Self::ID, left: body.len() - used })
            }
            Err(error) => Err(budget.broken().unwrap_or_else(|| not_decoded(error))),
        }
    }
}

#[cold]
fn not_decoded(error: serde_json::Error) -> PayloadError {
    let message = error.to_string();
    // serde_json has no other way to tell; the tests below notice when the words change.
    if error.is_syntax() && message.starts_with("recursion limit exceeded") {
        return PayloadError::TooDeep { max: JSON_MAX_DEPTH };
    }
    PayloadError::Decode { codec: Json::ID, message }
}
