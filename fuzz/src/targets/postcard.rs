//! Bodies in postcard, decoded as many types: bounded memory, and round trips.

use rpc_codec::CodecId;

use crate::{
    payload::{common, round_trip},
    shapes::Empties,
};

const CODEC: CodecId = CodecId::POSTCARD;

/// The first byte chooses the type.
pub(crate) fn check(data: &[u8]) {
    let Some((&shape, body)) = data.split_first() else { return };
    match shape % 15 {
        shape @ ..12 => common(CODEC, shape, body),
        12 => round_trip::<Empties>(CODEC, body, 64),
        13 => round_trip::<String>(CODEC, body, 64),
        _ => round_trip::<Vec<u64>>(CODEC, body, 64),
    }
}
