//! Bodies in MessagePack, decoded as many types: bounded memory, and round trips.

use rpc_codec::CodecId;

use crate::{
    payload::{common, round_trip},
    shapes::{Adjacent, Flat, Loose, Tagged},
};

const CODEC: CodecId = CodecId::MESSAGE_PACK;

/// The first byte chooses the type.
pub(crate) fn check(data: &[u8]) {
    let Some((&shape, body)) = data.split_first() else { return };
    match shape % 16 {
        shape @ ..12 => common(CODEC, shape, body),
        // What serde buffers takes four times as much as a value.
        12 => round_trip::<Flat>(CODEC, body, 512),
        13 => round_trip::<Tagged>(CODEC, body, 512),
        14 => round_trip::<Adjacent>(CODEC, body, 512),
        // At each of up to 128 levels, which take a byte each here, serde buffers what is left once more.
        _ => round_trip::<Loose>(CODEC, body, 4096),
    }
}
