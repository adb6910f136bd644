//! The frame decoder: any bytes, cut anywhere.
//!
//! - The same bytes give the same frames and the same error, however they were split on their way.
//! - A frame is no longer than allowed, and no bytes are asked for beyond it.
//! - Decoding allocates nothing; reading a frame's metadata or status, little.

use rpc_codec::{DecodeError, Decoded, Frame, FrameDecoder};

use crate::{memory, script::Script};

/// The first byte chooses the longest frame, the next says how often to cut, then come the cuts.
pub(crate) fn check(data: &[u8]) {
    let mut script = Script::new(data);
    let max_frame = script.pick(&[4_096, 256, 64, 12, 65_536, u32::MAX]);
    let cuts = script.bytes();
    let wire = script.rest();

    let whole = events(wire, max_frame, [wire.len()].into_iter());
    let mut end = 0;
    let ends = cuts.iter().map(|&cut| {
        end += usize::from(cut);
        end.min(wire.len())
    });
    assert_eq!(events(wire, max_frame, ends.chain([wire.len()])), whole, "cut at {cuts:?}");
    assert_eq!(events(wire, max_frame, 0..=wire.len()), whole, "byte by byte");
    whole.iter().flatten().for_each(read);
}

/// The frames of `wire`, and the error they end with, when the bytes before each of `ends` arrive
/// one after the other.
fn events(wire: &[u8], max_frame: u32, ends: impl Iterator<Item = usize>) -> Vec<Result<Frame<'_>, DecodeError>> {
    let decoder = FrameDecoder::new(max_frame);
    let mut events = Vec::new();
    let mut read = 0;
    for end in ends {
        loop {
            let (decoded, allocated) = memory::peak(|| decoder.decode(&wire[read..end]));
            assert_eq!(allocated, 0, "to decode a frame takes no memory");
            match decoded {
                Ok(Decoded::Frame { frame, len }) => {
                    assert!(len <= max_frame as usize + 4 && len <= end - read, "a frame of {len} bytes");
                    events.push(Ok(frame));
                    read += len;
                }
                Ok(Decoded::Incomplete { frame_len }) => {
                    let wanted = frame_len.unwrap_or(usize::MAX);
                    assert!(wanted > end - read, "what is there is enough");
                    assert!(frame_len.is_none_or(|len| len <= max_frame as usize + 4), "{wanted} bytes are wanted");
                    break;
                }
                Err(error) => {
                    events.push(Err(error));
                    return events;
                }
            }
        }
    }
    events
}

/// Reads all that can be read of a frame.
fn read(frame: &Frame<'_>) {
    let mut input = 0;
    let (text, allocated) = memory::peak(|| match frame {
        Frame::Request(request) => {
            input = 65_535;
            request.metadata().map_or_else(|error| error.to_string(), |metadata| format!("{}", metadata.len()))
        }
        Frame::Response(response) => {
            input = 65_535;
            let _ = response.metadata();
            response.status().map_or_else(|error| error.to_string(), |status| status.to_string())
        }
        Frame::Malformed { error, .. } => error.to_string(),
        _ => String::new(),
    });
    assert!(allocated <= 16 * input + 4_096, "{allocated} bytes for {text}");
}
