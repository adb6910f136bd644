//! Bodies in JSON, decoded as many types: bounded memory, and round trips.

use rpc_codec::CodecId;

use crate::{
    payload::{borrowed, round_trip},
    shapes::{
        Adjacent, Blobs, Borrowed, Chain, Choice, Everything, Flat, Folder, Forest, Lengths, List, Loose, Maps,
        Standard, Tagged, Tree,
    },
};

const CODEC: CodecId = CodecId::JSON;

/// The first byte chooses the type.
pub(crate) fn check(data: &[u8]) {
    let Some((&shape, body)) = data.split_first() else { return };
    // Trees have room for eleven entries in every node, and serde buffers take four times a value.
    match shape % 17 {
        0 => round_trip::<Everything>(CODEC, body, 64),
        1 => round_trip::<Choice>(CODEC, body, 64),
        2 => round_trip::<Blobs>(CODEC, body, 64),
        3 => borrowed::<Borrowed<'_>>(CODEC, body, 64),
        4 => round_trip::<Tree>(CODEC, body, 64),
        5 => round_trip::<List>(CODEC, body, 64),
        6 => round_trip::<Chain>(CODEC, body, 64),
        7 => round_trip::<Forest>(CODEC, body, 64),
        8 => round_trip::<Folder>(CODEC, body, 512),
        9 => round_trip::<Standard>(CODEC, body, 64),
        10 => round_trip::<Lengths>(CODEC, body, 512),
        11 => round_trip::<Maps>(CODEC, body, 512),
        12 => round_trip::<serde_json::Value>(CODEC, body, 512),
        13 => round_trip::<Flat>(CODEC, body, 512),
        14 => round_trip::<Tagged>(CODEC, body, 512),
        15 => round_trip::<Adjacent>(CODEC, body, 512),
        _ => round_trip::<Loose>(CODEC, body, 512),
    }
}
