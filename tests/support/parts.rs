//! Bodies in parts as they stand on the wire: written frame by frame, and counted frame by frame.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use rpc_codec::{CodecId, MIN_PART_LEN, PART_LEN};
use rpc_core::CallId;
use serde::Serialize;
use sluicegate::client::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::timeout,
};

use super::raw::{RawClient, RawServer, Req, frame};

/// The kinds that calls are made of.
pub(crate) const REQUEST: u8 = 2;
pub(crate) const RESPONSE: u8 = 3;
pub(crate) const CONT: u8 = 4;
pub(crate) const CANCEL: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;
pub(crate) const GO_AWAY: u8 = 11;

const MORE: u8 = 1;
/// Before the head.
const HEADER_LEN: usize = 16;

/// One frame as it stands on the wire.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) kind: u8,
    pub(crate) more: bool,
    pub(crate) id: CallId,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Piece {
    /// What it takes on the wire.
    pub(crate) fn wire_len(&self) -> usize {
        HEADER_LEN + self.head.len() + self.body.len()
    }

    /// The length of the whole body that a REQUEST or RESPONSE says.
    pub(crate) fn body_len(&self) -> usize {
        let at = if self.kind == REQUEST { 20 } else { 4 };
        u32::from_be_bytes(self.head[at..at + 4].try_into().expect("four bytes")) as usize
    }
}

/// An end of a pipe on which the frames are given out as they come, parts one by one.
pub(crate) struct Pieces {
    pub(crate) io: DuplexStream,
    read: BytesMut,
}

impl From<RawClient> for Pieces {
    /// A peer that has shaken hands and read no more than that.
    fn from(client: RawClient) -> Self {
        Self { io: client.peer.io, read: BytesMut::new() }
    }
}

impl From<RawServer> for Pieces {
    /// A peer that has not read yet; the client's HELLO is its first frame.
    fn from(server: RawServer) -> Self {
        Self { io: server.peer.io, read: BytesMut::new() }
    }
}

impl Pieces {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.expect("the other end reads");
    }

    /// The next frame, within a minute of virtual time; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Piece> {
        timeout(Duration::from_secs(60), self.read_piece()).await.expect("nothing comes")
    }

    /// The next frame, which there must be.
    pub(crate) async fn piece(&mut self) -> Piece {
        self.next().await.expect("the stream goes on")
    }

    /// Whether nothing comes within `time`, neither a frame nor the end.
    pub(crate) async fn is_silent_for(&mut self, time: Duration) -> bool {
        timeout(time, self.read_piece()).await.is_err()
    }

    /// All frames up to the end of the stream.
    pub(crate) async fn rest(&mut self) -> Vec<Piece> {
        let mut rest = Vec::new();
        while let Some(piece) = self.next().await {
            rest.push(piece);
        }
        rest
    }

    /// Reads up to the first frame that `wanted` takes; gives it with the bytes that came before it.
    pub(crate) async fn up_to(&mut self, wanted: impl Fn(&Piece) -> bool) -> (Piece, usize) {
        let mut before = 0;
        loop {
            let piece = self.piece().await;
            if wanted(&piece) {
                return (piece, before);
            }
            before += piece.wire_len();
        }
    }

    /// Reads the rest of a body of which `piece` was the first part.
    pub(crate) async fn whole(&mut self, piece: Piece) -> Vec<u8> {
        let (body_len, mut body, mut more) = (piece.body_len(), piece.body, piece.more);
        while more {
            let (part, _) = self.up_to(|part| part.kind == CONT && part.id == piece.id).await;
            assert!(!part.more || part.body.len() >= MIN_PART_LEN, "a part of {} bytes", part.body.len());
            assert!(part.body.len() <= PART_LEN, "a part of {} bytes", part.body.len());
            body.extend(part.body);
            more = part.more;
        }
        assert_eq!(body.len(), body_len);
        body
    }

    async fn read_piece(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = take_piece(&mut self.read) {
                return Some(piece);
            }
            if !matches!(self.io.read_buf(&mut self.read).await, Ok(1..)) {
                return None;
            }
        }
    }
}

fn take_piece(read: &mut BytesMut) -> Option<Piece> {
    let len = 4 + u32::from_be_bytes(read.get(..4)?.try_into().expect("four bytes")) as usize;
    if read.len() < len {
        return None;
    }
    let bytes = read.split_to(len);
    let head_end = HEADER_LEN + usize::from(u16::from_be_bytes([bytes[6], bytes[7]]));
    let mut id = &bytes[8..HEADER_LEN];
    Some(Piece {
        kind: bytes[4],
        more: bytes[5] & MORE != 0,
        id: CallId::from_wire(id.get_u64()),
        head: bytes[HEADER_LEN..head_end].to_vec(),
        body: bytes[head_end..].to_vec(),
    })
}

/// Arguments in bincode.
pub(crate) fn encoded<A: Serialize>(args: A) -> Vec<u8> {
    let mut body = Vec::new();
    CodecId::BINCODE.encode(&args, &mut body).expect("it can be encoded");
    body
}

/// A REQUEST that says a body of `body_len` bytes and has the first of them.
pub(crate) fn opening(request: Req, body_len: usize, first: &[u8]) -> Vec<u8> {
    assert!(first.len() <= PART_LEN, "it has to fit into a frame");
    let mut bytes = request.body(first).bytes();
    say(&mut bytes, body_len, 20);
    bytes
}

/// A RESPONSE that says a body of `body_len` bytes and has the first of them.
pub(crate) fn response_opening(id: CallId, body_len: usize, first: &[u8]) -> Vec<u8> {
    let mut bytes = frame(RESPONSE, 0, 0, &[0; 12], first);
    say(&mut bytes, body_len, 4);
    rpc_codec::patch_id(&mut bytes, id);
    bytes
}

fn say(bytes: &mut [u8], body_len: usize, at: usize) {
    bytes[5] |= MORE;
    bytes[HEADER_LEN + at..HEADER_LEN + at + 4].copy_from_slice(&(body_len as u32).to_be_bytes());
}

/// A CONT of a client.
pub(crate) fn part(id: u64, bytes: &[u8], more: bool) -> Vec<u8> {
    frame(CONT, u8::from(more), id, &[], bytes)
}

/// A CONT of a server.
pub(crate) fn response_part(id: CallId, bytes: &[u8], more: bool) -> Vec<u8> {
    let mut bytes = part(0, bytes, more);
    rpc_codec::patch_id(&mut bytes, id);
    bytes
}

/// The frames of a request: `first` bytes in the REQUEST, then CONTs of up to `len` each.
pub(crate) fn frames(request: impl Fn() -> Req, id: u64, body: &[u8], first: usize, len: usize) -> Vec<Vec<u8>> {
    let (first, rest) = body.split_at(first);
    let mut frames = vec![opening(request(), body.len(), first)];
    let count = rest.len().div_ceil(len);
    frames.extend(rest.chunks(len).enumerate().map(|(n, bytes)| part(id, bytes, n + 1 < count)));
    frames
}

/// A request of a method of bytes.
pub(crate) fn untouched(id: u64, method: Method) -> Req {
    Req::new(id, method, ()).head(|head| head.codec = CodecId::BYTES)
}
