//! Bodies in bincode, decoded as many types: bounded memory, and round trips.

use rpc_codec::CodecId;

use crate::{
    payload::{borrowed, round_trip},
    shapes::{
        Blobs, Borrowed, Chain, Choice, Empties, Everything, Folder, Forest, Lengths, List, Maps, Standard, Tree,
    },
};

const CODEC: CodecId = CodecId::BINCODE;

/// The first byte chooses the type.
pub(crate) fn check(data: &[u8]) {
    let Some((&shape, body)) = data.split_first() else { return };
    match shape % 15 {
        0 => round_trip::<Everything>(CODEC, body, 64),
        1 => round_trip::<Choice>(CODEC, body, 64),
        2 => round_trip::<Blobs>(CODEC, body, 64),
        3 => borrowed::<Borrowed<'_>>(CODEC, body, 64),
        4 => round_trip::<Tree>(CODEC, body, 64),
        5 => round_trip::<List>(CODEC, body, 64),
        6 => round_trip::<Chain>(CODEC, body, 64),
        7 => round_trip::<Forest>(CODEC, body, 64),
        // A tree's node has room for eleven entries, and a body can fill each with one.
        8 => round_trip::<Folder>(CODEC, body, 512),
        9 => round_trip::<Standard>(CODEC, body, 64),
        10 => round_trip::<Lengths>(CODEC, body, 512),
        11 => round_trip::<Maps>(CODEC, body, 512),
        12 => round_trip::<Empties>(CODEC, body, 64),
        13 => round_trip::<String>(CODEC, body, 64),
        _ => round_trip::<Vec<u64>>(CODEC, body, 64),
    }
}
