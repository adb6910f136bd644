//! Items of streams: values in the codec of their call, or bytes as they are.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::{CodecId, PayloadError};

/// How values of `T` are sent as the items and replies of streams.
///
/// Sealed: [`Coded`] and [`Plain`] are all there are.
pub trait EncodeItem<T>: sealed::Sealed + 'static {
    /// Appends `item` to `out`.
    ///
    /// # Errors
    ///
    /// It cannot be encoded; `out` is then as it was.
    fn encode(codec: CodecId, item: &T, out: &mut Vec<u8>) -> Result<(), PayloadError>;
}

/// How values of `T` are received as the items and replies of streams.
///
/// Sealed: [`Coded`] and [`Plain`] are all there are.
pub trait DecodeItem<T>: sealed::Sealed + 'static {
    /// The item that `bytes` are.
    ///
    /// # Errors
    ///
    /// They are none.
    fn decode(codec: CodecId, bytes: &[u8]) -> Result<T, PayloadError>;
}

/// In the codec of the call.
#[derive(Debug)]
pub enum Coded {}

/// Bytes as they are, whatever the codec of the call: copied once, never looked at.
#[derive(Debug)]
pub enum Plain {}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Coded {}
    impl Sealed for super::Plain {}
}

impl<T: Serialize> EncodeItem<T> for Coded {
    #[inline]
    fn encode(codec: CodecId, item: &T, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        codec.encode(item, out)
    }
}

impl<T: DeserializeOwned> DecodeItem<T> for Coded {
    #[inline]
    fn decode(codec: CodecId, bytes: &[u8]) -> Result<T, PayloadError> {
        codec.decode(bytes)
    }
}

impl EncodeItem<Bytes> for Plain {
    #[inline]
    fn encode(_: CodecId, item: &Bytes, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        out.extend_from_slice(item);
        Ok(())
    }
}

impl DecodeItem<Bytes> for Plain {
    #[inline]
    fn decode(_: CodecId, bytes: &[u8]) -> Result<Bytes, PayloadError> {
        Ok(Bytes::copy_from_slice(bytes))
    }
}
