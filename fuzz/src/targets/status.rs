//! The status of a RESPONSE: its metadata, message and details.
//!
//! - What was read is what is read again when it is written, and it takes no more bytes.
//! - Memory is bounded by the bytes received.

use rpc_codec::{Decoded, Frame, FrameDecoder, HeadError, encode_status};
use rpc_core::{CallId, Status};

use crate::{frame, memory};

/// The input is a head without its `body_len`, which is zero.
pub(crate) fn check(data: &[u8]) {
    let (fixed, rest) = data.split_at(data.len().min(4));
    let head = [fixed, &[0; 8][fixed.len()..], rest].concat();
    if head.len() > usize::from(u16::MAX) {
        return;
    }
    let wire = frame::raw(frame::RESPONSE, 0, 7, &head, &[]);
    let (status, allocated) = memory::peak(|| decode(&wire));
    assert!(allocated <= 64 * wire.len() + 4_096, "{} bytes took {allocated}", wire.len());
    let Ok(status) = status else { return };

    let mut again = Vec::new();
    encode_status(&mut again, CallId::from_wire(7), &status, u32::MAX).expect("what came in goes out");
    assert!(again.len() <= wire.len(), "it came in {} bytes and takes {}", wire.len(), again.len());
    assert_eq!(decode(&again).expect("what was written can be read"), status);
}

fn decode(wire: &[u8]) -> Result<Status, HeadError> {
    match FrameDecoder::new(u32::MAX).decode(wire) {
        Ok(Decoded::Frame { frame: Frame::Response(response), .. }) => response.status(),
        Ok(Decoded::Frame { frame: Frame::Malformed { error, .. }, .. }) => Err(error),
        other => panic!("it is not a RESPONSE: {other:?}"),
    }
}
