//! The promises of a payload codec, for one type, and the types that every codec takes.

use std::fmt::Debug;

use rpc_codec::{CodecId, PayloadError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    memory,
    shapes::{Blobs, Borrowed, Chain, Choice, Everything, Folder, Forest, Lengths, List, Maps, Standard, Tree},
};

/// Decodes `body` as one of the twelve types that every codec takes, which `shape` chooses.
pub(crate) fn common(codec: CodecId, shape: u8, body: &[u8]) {
    match shape {
        0 => round_trip::<Everything>(codec, body, 64),
        1 => round_trip::<Choice>(codec, body, 64),
        2 => round_trip::<Blobs>(codec, body, 64),
        3 => borrowed::<Borrowed<'_>>(codec, body, 64),
        4 => round_trip::<Tree>(codec, body, 64),
        5 => round_trip::<List>(codec, body, 64),
        6 => round_trip::<Chain>(codec, body, 64),
        7 => round_trip::<Forest>(codec, body, 64),
        // A tree's node has room for eleven entries, and a body can fill each with one.
        8 => round_trip::<Folder>(codec, body, 512),
        9 => round_trip::<Standard>(codec, body, 64),
        10 => round_trip::<Lengths>(codec, body, 512),
        _ => round_trip::<Maps>(codec, body, 512),
    }
}

/// Decodes `body` as `T`.
///
/// - It takes at most `each` bytes of memory for a byte of the body, and 64 KiB.
/// - What was decoded can be encoded, and is what is decoded again.
pub(crate) fn round_trip<T>(codec: CodecId, body: &[u8], each: usize)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let Some(value) = decode::<T>(codec, body, each) else { return };
    let Some(again) = encode(codec, &value) else { return };
    match codec.decode::<T>(&again) {
        Ok(decoded) => assert_eq!(decoded, value, "as {codec} it is {again:02x?}"),
        Err(error) => panic!("what {codec} wrote it cannot read: {error}: {value:?}"),
    }
}

/// As [`round_trip`], for a type that borrows from the body: it is decoded, and encoded again.
pub(crate) fn borrowed<'de, T>(codec: CodecId, body: &'de [u8], each: usize)
where
    T: Serialize + Deserialize<'de>,
{
    if let Some(value) = decode::<T>(codec, body, each) {
        encode(codec, &value);
    }
}

fn decode<'de, T: Deserialize<'de>>(codec: CodecId, body: &'de [u8], each: usize) -> Option<T> {
    let (decoded, allocated) = memory::peak(|| codec.decode::<T>(body));
    let max = each * body.len() + 64 * 1024;
    assert!(allocated <= max, "{} bytes as {codec} took {allocated} bytes of memory", body.len());
    decoded.ok()
}

fn encode<T: Serialize>(codec: CodecId, value: &T) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match codec.encode(value, &mut out) {
        Ok(()) => Some(out),
        // A body that says its lengths at length pays for more empty elements than a short one can.
        Err(PayloadError::TooManyElements { .. }) if matches!(codec, CodecId::BINCODE | CodecId::POSTCARD) => None,
        Err(error) => panic!("what {codec} read it cannot write: {error}"),
    }
}
