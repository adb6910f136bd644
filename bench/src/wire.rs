//! The frame of the `raw` stacks: `len: u32`, `id: u64`, then the body; little-endian.
//!
//! `len` counts the id and the body.

use std::io;
use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt};

/// What a frame may hold; a peer that claims more is cut off.
const MAX_FRAME_LEN: usize = 16 << 20;

const LEN_LEN: usize = 4;
const ID_LEN: usize = 8;

/// Bytes in front of a body.
pub(crate) const HEADER_LEN: usize = LEN_LEN + ID_LEN;

/// Enough for the whole window of every workload with small messages, in one read.
const READ_BUFFER_LEN: usize = 64 << 10;

/// A frame in a read buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Frame<'a> {
    pub(crate) id: u64,
    pub(crate) body: &'a [u8],
}

/// Appends the header of a frame whose body of `body_len` bytes the caller appends next.
pub(crate) fn put_header(out: &mut Vec<u8>, id: u64, body_len: usize) {
    let len = u32::try_from(ID_LEN + body_len).expect("bodies are below MAX_FRAME_LEN");
    let mut header = [0; HEADER_LEN];
    header[..LEN_LEN].copy_from_slice(&len.to_le_bytes());
    header[LEN_LEN..].copy_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&header);
}

/// Received bytes, of which whole frames are taken from the front.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    filled: Range<usize>,
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; READ_BUFFER_LEN], filled: 0..0 }
    }

    /// Reads once, all that is there and fits; `false` at the end of the stream.
    pub(crate) async fn read_from(&mut self, socket: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
        let received = socket.read(self.spare()).await?;
        self.filled.end += received;
        Ok(received > 0)
    }

    /// Room to read into, never empty; say with [`ReadBuffer::received`] what came.
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.filled.start > 0 {
            // What is left is a part of a frame, and mostly short.
            self.bytes.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        if self.filled.end == self.bytes.len() {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        &mut self.bytes[self.filled.end..]
    }

    pub(crate) fn received(&mut self, len: usize) {
        self.filled.end += len;
    }

    /// Takes the next whole frame.
    ///
    /// # Errors
    ///
    /// If the length is one that no frame has: the stream is of no further use.
    pub(crate) fn next_frame(&mut self) -> io::Result<Option<Frame<'_>>> {
        let unread = &self.bytes[self.filled.clone()];
        let Some((len, _)) = unread.split_first_chunk::<LEN_LEN>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*len) as usize;
        if !(ID_LEN..=MAX_FRAME_LEN).contains(&len) {
            let problem = format!("a frame of {len} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let content = unread.get(LEN_LEN..LEN_LEN + len);
        let Some((id, body)) = content.and_then(<[u8]>::split_first_chunk::<ID_LEN>) else {
            return Ok(None);
        };
        self.filled.start += LEN_LEN + len;
        Ok(Some(Frame { id: u64::from_le_bytes(*id), body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_of_any_pieces_as_they_went_in() {
        let bodies: [&[u8]; 4] = [b"", b"one", &[7; 100], &[9; 200_000]];
        let mut stream = Vec::new();
        for (id, body) in (5..).zip(bodies) {
            put_header(&mut stream, id, body.len());
            stream.extend_from_slice(body);
        }
        for piece_len in [1, 11, 13, 4096, stream.len()] {
            let mut buffer = ReadBuffer::new();
            let mut found = Vec::new();
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let spare = buffer.spare();
                let len = piece_len.min(spare.len()).min(rest.len());
                spare[..len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                buffer.received(len);
                while let Some(frame) = buffer.next_frame().expect("frames are valid") {
                    found.push((frame.id, frame.body.to_vec()));
                }
            }
            let expected: Vec<_> = (5..).zip(bodies.map(<[u8]>::to_vec)).collect();
            assert!(found == expected, "in pieces of {piece_len}");
        }
    }

    #[test]
    fn lengths_that_no_frame_has_are_errors() {
        for len in [0, 7, MAX_FRAME_LEN as u32 + 1, u32::MAX] {
            let mut buffer = ReadBuffer::new();
            buffer.spare()[..4].copy_from_slice(&len.to_le_bytes());
            buffer.received(4);
            assert!(buffer.next_frame().is_err(), "{len}");
        }
    }
}
