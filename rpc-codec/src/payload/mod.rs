//! Bodies of calls: values to bytes and back.
//!
//! Which codec a body is in travels with the request as a [`CodecId`]; [`CodecId::encode`] and
//! [`CodecId::decode`] choose at run time, and the [`Codec`] types do the same work where the choice
//! is known to the compiler.
//!
//! A body comes from the peer, so it is hostile until decoded. Whatever it says, decoding
//!
//! - reserves memory for no more elements than the body has bytes, whatever lengths it claims;
//! - follows it to [`MAX_DEPTH`] levels, so it cannot exhaust the stack;
//! - ends in an error unless every byte belongs to the value;
//! - never panics, if the type's own `Deserialize` does not.
//!
//! Encoding keeps to the same bounds: what this side encodes, a peer with the same type decodes.
//!
//! ```
//! use rpc_codec::payload::CodecId;
//!
//! let mut body = Vec::new();
//! CodecId::BINCODE.encode(&("ada", 36u8), &mut body)?;
//! assert_eq!(body, b"\x03ada\x24");
//! let (name, age): (String, u8) = CodecId::BINCODE.decode(&body)?;
//! assert_eq!((name.as_str(), age), ("ada", 36));
//! # Ok::<(), rpc_codec::payload::PayloadError>(())
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

mod bincode;
mod bounded;
pub mod bytes;
mod error;
pub mod items;
#[cfg(feature = "json")]
mod json;
#[cfg(feature = "messagepack")]
mod messagepack;
#[cfg(feature = "postcard")]
mod postcard;

pub use self::bincode::Bincode;
pub use self::bounded::MAX_DEPTH;
pub use self::error::PayloadError;
#[cfg(feature = "json")]
pub use self::json::Json;
#[cfg(feature = "messagepack")]
pub use self::messagepack::MessagePack;
#[cfg(feature = "postcard")]
pub use self::postcard::Postcard;

/// The codec of a body, as it stands on the wire.
///
/// Any byte is an id: a peer may know codecs that this build does not. [`CodecId::is_supported`]
/// tells.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodecId(u8);

impl CodecId {
    /// Bytes that the method takes and returns untouched. There is nothing to encode or decode, so
    /// the caller handles them and it is not among [`CodecId::supported`].
    pub const BYTES: Self = Self(0);
    /// bincode 2 in its standard configuration: little-endian, varint. The default.
    pub const BINCODE: Self = Self(1);
    /// postcard 1; with the feature `postcard`.
    pub const POSTCARD: Self = Self(2);
    /// JSON, for types that only a self-describing codec can carry; with the feature `json`.
    pub const JSON: Self = Self(3);
    /// MessagePack with field names, for schemas that evolve; with the feature `messagepack`.
    pub const MESSAGE_PACK: Self = Self(4);
    /// Protocol Buffers; reserved.
    pub const PROTOBUF: Self = Self(5);

    /// The id as it stands on the wire.
    pub const fn from_wire(id: u8) -> Self {
        Self(id)
    }

    /// The id as it stands on the wire.
    pub const fn to_wire(self) -> u8 {
        self.0
    }

    /// The codec's name, or `unknown` for an id that nobody has given a meaning.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BYTES => "bytes",
            Self::BINCODE => "bincode",
            Self::POSTCARD => "postcard",
            Self::JSON => "json",
            Self::MESSAGE_PACK => "messagepack",
            Self::PROTOBUF => "protobuf",
            _ => "unknown",
        }
    }

    /// The codecs that this build encodes and decodes, in the order of preference.
    pub const fn supported() -> &'static [Self] {
        &[
            Self::BINCODE,
            #[cfg(feature = "postcard")]
            Self::POSTCARD,
            #[cfg(feature = "messagepack")]
            Self::MESSAGE_PACK,
            #[cfg(feature = "json")]
            Self::JSON,
        ]
    }

    /// Whether [`CodecId::encode`] and [`CodecId::decode`] know this codec.
    pub fn is_supported(self) -> bool {
        Self::supported().contains(&self)
    }

    /// Appends `value` to `out` in this codec.
    ///
    /// # Errors
    ///
    /// [`PayloadError::UnsupportedCodec`], or that of [`Codec::encode`]; `out` is then as it was.
    #[inline]
    pub fn encode<T>(self, value: &T, out: &mut Vec<u8>) -> Result<(), PayloadError>
    where
        T: Serialize + ?Sized,
    {
        match self {
            Self::BINCODE => Bincode::encode(value, out),
            #[cfg(feature = "postcard")]
            Self::POSTCARD => Postcard::encode(value, out),
            #[cfg(feature = "json")]
            Self::JSON => Json::encode(value, out),
            #[cfg(feature = "messagepack")]
            Self::MESSAGE_PACK => MessagePack::encode(value, out),
            _ => Err(PayloadError::UnsupportedCodec(self)),
        }
    }

    /// The value that `body` is in this codec.
    ///
    /// # Errors
    ///
    /// [`PayloadError::UnsupportedCodec`], or that of [`Codec::decode`].
    #[inline]
    pub fn decode<'de, T>(self, body: &'de [u8]) -> Result<T, PayloadError>
    where
        T: Deserialize<'de>,
    {
        match self {
            Self::BINCODE => Bincode::decode(body),
            #[cfg(feature = "postcard")]
            Self::POSTCARD => Postcard::decode(body),
            #[cfg(feature = "json")]
            Self::JSON => Json::decode(body),
            #[cfg(feature = "messagepack")]
            Self::MESSAGE_PACK => MessagePack::decode(body),
            _ => Err(PayloadError::UnsupportedCodec(self)),
        }
    }
}

impl fmt::Debug for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CodecId({self})")
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "unknown" => write!(f, "codec {}", self.0),
            name => f.write_str(name),
        }
    }
}

/// A way to write values as bytes.
///
/// Sealed: an id has one meaning for every peer, so the set of codecs is part of the protocol.
pub trait Codec: sealed::Sealed {
    /// How the codec is named on the wire.
    const ID: CodecId;

    /// Appends `value` to `out`.
    ///
    /// # Errors
    ///
    /// When the value cannot be written, or when [`Codec::decode`] would refuse what was written.
    /// `out` is then cut back to where it was, also when the value's `Serialize` panics.
    fn encode<T>(value: &T, out: &mut Vec<u8>) -> Result<(), PayloadError>
    where
        T: Serialize + ?Sized;

    /// The value that `body` is, all of it.
    ///
    /// # Errors
    ///
    /// When `body` is not exactly one value of this type, or goes beyond the bounds of this module.
    fn decode<'de, T>(body: &'de [u8]) -> Result<T, PayloadError>
    where
        T: Deserialize<'de>;
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Bincode {}
    #[cfg(feature = "json")]
    impl Sealed for super::Json {}
    #[cfg(feature = "messagepack")]
    impl Sealed for super::MessagePack {}
    #[cfg(feature = "postcard")]
    impl Sealed for super::Postcard {}
}

/// Bytes being appended, which vanish unless they are kept: an error or a panic half-way through a
/// value must not leave half of it in front of the next one.
struct Appending<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Appending<'a> {
    #[inline]
    fn to(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, start }
    }

    #[inline]
    fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    #[inline]
    fn len(&self) -> usize {
        self.out.len() - self.start
    }

    #[inline]
    fn keep(mut self) {
        self.start = usize::MAX;
    }
}

impl Drop for Appending<'_> {
    #[inline]
    fn drop(&mut self) {
        self.out.truncate(self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_protocol() {
        let named = [
            (CodecId::BYTES, 0, "bytes"),
            (CodecId::BINCODE, 1, "bincode"),
            (CodecId::POSTCARD, 2, "postcard"),
            (CodecId::JSON, 3, "json"),
            (CodecId::MESSAGE_PACK, 4, "messagepack"),
            (CodecId::PROTOBUF, 5, "protobuf"),
        ];
        for (id, wire, name) in named {
            assert_eq!(id.to_wire(), wire);
            assert_eq!(CodecId::from_wire(wire), id);
            assert_eq!(id.to_string(), name);
        }
        assert_eq!(CodecId::from_wire(9).to_string(), "codec 9");
    }

    #[test]
    fn supported_codecs_work_and_others_say_so() {
        for id in (0..=u8::MAX).map(CodecId::from_wire) {
            let mut out = b"before".to_vec();
            let encoded = id.encode(&(1u8, "x"), &mut out);
            if id.is_supported() {
                assert_eq!(encoded, Ok(()));
                assert_eq!(id.decode(&out[6..]), Ok((1u8, "x")));
            } else {
                assert_eq!(encoded, Err(PayloadError::UnsupportedCodec(id)));
                assert_eq!(id.decode::<u8>(&[0]), Err(PayloadError::UnsupportedCodec(id)));
                assert_eq!(out, b"before");
            }
        }
    }
}
