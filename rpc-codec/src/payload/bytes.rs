//! Byte fields as bytes: `#[serde(with = "sluicegate::bytes")]`.
//!
//! serde reads and writes a `Vec<u8>` one element at a time, which costs more than all the rest of a
//! call. With the attribute a binary codec writes a length and copies. It works on `Vec<u8>`,
//! `Box<[u8]>`, [`bytes::Bytes`], `[u8; N]` and an `Option` of each.
//!
//! In bincode the bytes on the wire are the same with and without the attribute, so it can be added
//! at any time. That is why an array has no length there, and is no faster for it; but with the
//! attribute it may be longer than serde's 32.
//!
//! In codecs that people read the field is a string of lower-case hexadecimal digits; what is read
//! may also be upper-case, or an array of numbers as serde writes it without the attribute.
//!
//! ```
//! # mod sluicegate { pub use rpc_codec::payload::bytes; }
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Upload {
//!     name: String,
//!     #[serde(with = "sluicegate::bytes")]
//!     content: Vec<u8>,
//! }
//! ```

use std::fmt;
use std::marker::PhantomData;

use ::bytes::Bytes;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};

/// Writes a byte field; what `with` calls.
///
/// # Errors
///
/// Those of the serializer.
#[inline]
pub fn serialize<T, S>(field: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: ByteField,
    S: Serializer,
{
    field.serialize_field(serializer)
}

/// Reads a byte field; what `with` calls.
///
/// # Errors
///
/// Those of the deserializer, and when the field is not bytes or not as many as an array has.
#[inline]
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: ByteField,
    D: Deserializer<'de>,
{
    T::deserialize_field(deserializer)
}

/// A type whose value is bytes. Sealed.
pub trait ByteField: sealed::Sealed + Sized {
    #[doc(hidden)]
    fn serialize_field<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;

    #[doc(hidden)]
    fn deserialize_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for Vec<u8> {}
    impl Sealed for Box<[u8]> {}
    impl Sealed for ::bytes::Bytes {}
    impl<const N: usize> Sealed for [u8; N] {}
    impl<T: Sealed> Sealed for Option<T> {}
}

/// Fields that are made from a copy of the bytes, or from a vector of them.
macro_rules! byte_field {
    ($($ty:ty),*) => {$(
        impl ByteField for $ty {
            #[inline]
            fn serialize_field<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                write(self, serializer)
            }

            #[inline]
            fn deserialize_field<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                read(from, BytesVisitor(PhantomData))
            }
        }
    )*};
}

byte_field!(Vec<u8>, Box<[u8]>, Bytes);

impl<const N: usize> ByteField for [u8; N] {
    #[inline]
    fn serialize_field<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return write(self, serializer);
        }
        let mut tuple = serializer.serialize_tuple(N)?;
        for byte in self {
            tuple.serialize_element(byte)?;
        }
        tuple.end()
    }

    #[inline]
    fn deserialize_field<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            return read(from, ArrayVisitor);
        }
        from.deserialize_tuple(N, ArrayVisitor)
    }
}

impl<T: ByteField> ByteField for Option<T> {
    #[inline]
    fn serialize_field<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Some(field) => serializer.serialize_some(&Field(field)),
            None => serializer.serialize_none(),
        }
    }

    #[inline]
    fn deserialize_field<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<Field<T>>::deserialize(from)?.map(|Field(field)| field))
    }
}

/// A byte field as a value that serde knows.
struct Field<T>(T);

impl<T: ByteField> Serialize for Field<&T> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize_field(serializer)
    }
}

impl<'de, T: ByteField> Deserialize<'de> for Field<T> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::deserialize_field(from).map(Self)
    }
}

#[inline]
fn write<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() { serializer.collect_str(&Hex(bytes)) } else { serializer.serialize_bytes(bytes) }
}

#[inline]
fn read<'de, D, V>(from: D, visitor: V) -> Result<V::Value, D::Error>
where
    D: Deserializer<'de>,
    V: Visitor<'de>,
{
    if from.is_human_readable() { from.deserialize_any(visitor) } else { from.deserialize_byte_buf(visitor) }
}

/// Makes what can be made from a vector.
struct BytesVisitor<T>(PhantomData<T>);

impl<'de, T: From<Vec<u8>>> Visitor<'de> for BytesVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    #[inline]
    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<T, E> {
        Ok(bytes.to_vec().into())
    }

    #[inline]
    fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<T, E> {
        Ok(bytes.into())
    }

    fn visit_str<E: de::Error>(self, digits: &str) -> Result<T, E> {
        if !digits.len().is_multiple_of(2) {
            return Err(E::custom(format_args!("{} hexadecimal digits are not whole bytes", digits.len())));
        }
        let mut bytes = vec![0; digits.len() / 2];
        unhex(digits, &mut bytes)?;
        Ok(bytes.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<T, A::Error> {
        let mut bytes = Vec::with_capacity(elements.size_hint().unwrap_or(0).min(MAX_RESERVED));
        while let Some(byte) = elements.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes.into())
    }
}

/// Fills an array, and no less.
struct ArrayVisitor<const N: usize>;

impl<'de, const N: usize> Visitor<'de> for ArrayVisitor<N> {
    type Value = [u8; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{N} bytes: {EXPECTED}")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<[u8; N], E> {
        bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
    }

    fn visit_str<E: de::Error>(self, digits: &str) -> Result<[u8; N], E> {
        if digits.len() != N * 2 {
            return Err(E::custom(format_args!("{} hexadecimal digits are not {N} bytes", digits.len())));
        }
        let mut array = [0; N];
        unhex(digits, &mut array)?;
        Ok(array)
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<[u8; N], A::Error> {
        let mut array = [0; N];
        for (len, byte) in array.iter_mut().enumerate() {
            *byte = elements.next_element()?.ok_or_else(|| de::Error::invalid_length(len, &self))?;
        }
        // Binary codecs stop by themselves; an array of JSON may go on.
        match elements.next_element::<u8>()? {
            None => Ok(array),
            Some(_) => Err(de::Error::invalid_length(N + 1, &self)),
        }
    }
}

const EXPECTED: &str = "a string of hexadecimal digits, or an array of numbers below 256";

/// serde's own bound on what a size hint may reserve. Ours hold hints to the bytes received, but the
/// attribute also works on deserializers that are not ours.
const MAX_RESERVED: usize = 1 << 20;

/// Bytes, displayed as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 128];
        for bytes in self.0.chunks(text.len() / 2) {
            for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
                pair[0] = DIGITS[usize::from(byte >> 4)];
                pair[1] = DIGITS[usize::from(byte & 15)];
            }
            let text = &text[..bytes.len() * 2];
            f.write_str(std::str::from_utf8(text).expect("digits are ASCII"))?;
        }
        Ok(())
    }
}

/// Fills `bytes`, for which there must be two digits each.
fn unhex<E: de::Error>(digits: &str, bytes: &mut [u8]) -> Result<(), E> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    for (at, (byte, pair)) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)).enumerate() {
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err(E::custom(format_args!("no hexadecimal digits at {}", at * 2)));
        };
        *byte = (high << 4 | low) as u8;
    }
    Ok(())
}
