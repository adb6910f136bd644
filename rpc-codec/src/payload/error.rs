//! What can go wrong with one body.

use super::CodecId;

/// A body that cannot be made, or cannot be read.
///
/// It costs the one call the body belongs to. The frame around it was sound, so its connection goes
/// on and other calls never hear of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The value refused to be serialized, or the codec has no words for it.
    #[error("cannot encode as {codec}: {message}")]
    Encode {
        /// The codec of the body.
        codec: CodecId,
        /// What the serializer said.
        message: String,
    },

    /// The bytes are not a value of the expected type.
    #[error("cannot decode as {codec}: {message}")]
    Decode {
        /// The codec of the body.
        codec: CodecId,
        /// What the deserializer said.
        message: String,
    },

    /// The body ends in the middle of the value, or claims a length it does not have.
    #[error("{codec} body ends too early: at least {missing} more bytes were expected")]
    TooShort {
        /// The codec of the body.
        codec: CodecId,
        /// How many bytes the field that met the end still wanted.
        missing: usize,
    },

    /// The value was complete before the body was.
    #[error("{left} bytes are left over behind the {codec} value")]
    TrailingBytes {
        /// The codec of the body.
        codec: CodecId,
        /// How many bytes nothing asked for.
        left: usize,
    },

    /// The value nests deeper than a decoder follows.
    ///
    /// Each sequence, map, tuple, struct, newtype, `Some`, enum, and variant with several fields is
    /// a level, so a linked list whose nodes hold an `Option<Box<Node>>` spends two on each node.
    #[error("value nests deeper than {max} levels")]
    TooDeep {
        /// The deepest level that is followed.
        max: usize,
    },

    /// A sequence or map claims more elements than the bytes of the body can stand for.
    ///
    /// Elements that take no bytes, such as `()`, are allowed to exceed the body by 1,024 in all.
    #[error("{claimed} elements are claimed where the body can hold at most {max}")]
    TooManyElements {
        /// How many elements or entries the sequence or map claims.
        claimed: usize,
        /// How many were still possible.
        max: usize,
    },

    /// The type asks the body what it contains, and a body of this codec does not say.
    ///
    /// serde's `flatten`, `untagged` and `tag` attributes and types such as `serde_json::Value` do
    /// this.
    #[error(
        "{codec} cannot decode this type because its bodies do not describe themselves: \
         remove serde's flatten, untagged and tag attributes, or use json or messagepack for it"
    )]
    NotSelfDescribing {
        /// The codec of the body.
        codec: CodecId,
    },

    /// A sequence or map does not know its length before it is written.
    ///
    /// serde's `flatten` turns a struct into such a map.
    #[error(
        "{codec} needs the length of a sequence or map before its elements: \
         remove serde's flatten attribute, collect the elements first, or use json or messagepack for it"
    )]
    UnknownLength {
        /// The codec of the body.
        codec: CodecId,
    },

    /// A field was left out of a body that has only positions, so all behind it would be misread.
    #[error(
        "{codec} has no field names, so field `{field}` cannot be left out: \
         remove serde's skip_serializing_if attribute, or use json or messagepack for this type"
    )]
    SkippedField {
        /// The codec of the body.
        codec: CodecId,
        /// The field that was skipped.
        field: &'static str,
    },

    /// This build has no serializer for the codec.
    #[error("{0} is not a codec this build supports")]
    UnsupportedCodec(CodecId),
}
