//! Peers that speak raw frames: a client for the server's tests, a server for the client's.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use rpc_codec::{
    Assembly, CallKind, CodecId, Decoded, Frame, FrameDecoder, GoAwayReason, Hello, OpenMessage, RequestHead,
    SendBounds, encode_cancel, encode_go_away, encode_status, mark_kind,
};
use rpc_core::{CallId, Executed, Metadata, Status, StatusCode};
use serde::{Serialize, de::DeserializeOwned};
use sluicegate::client::Method;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf},
    time::timeout,
};

/// What a raw peer received.
#[derive(Debug)]
pub(crate) enum Got {
    Hello(Hello),
    Request {
        id: CallId,
        timeout_us: u64,
        attempt: u8,
        metadata: Metadata,
        body: Vec<u8>,
    },
    Response {
        id: CallId,
        code: StatusCode,
        executed: Executed,
        status: Status,
        body: Vec<u8>,
    },
    Item {
        id: CallId,
        body: Vec<u8>,
    },
    /// END: the client sends no more items.
    LastItem(CallId),
    Credit {
        id: CallId,
        bytes: u32,
    },
    Cancel(CallId),
    Ping([u8; 8]),
    Pong([u8; 8]),
    GoAway {
        last: CallId,
        reason: GoAwayReason,
        message: String,
    },
    /// A part of a body that is not complete; never given out.
    Part,
    /// The end of the stream.
    End,
    Other,
}

/// Either end of a pipe, reading and writing raw frames.
pub(crate) struct RawPeer {
    pub(crate) io: DuplexStream,
    read: BytesMut,
    greeted: bool,
    /// Requests and responses whose bodies are not complete, and those bodies.
    parted: HashMap<CallId, (Got, Assembly)>,
}

impl RawPeer {
    pub(crate) fn new(io: DuplexStream) -> Self {
        Self { io, read: BytesMut::new(), greeted: false, parted: HashMap::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.expect("the other end reads");
    }

    /// Shuts down the write side.
    pub(crate) async fn end(&mut self) {
        self.io.shutdown().await.expect("a pipe can be shut down");
    }

    /// The next frame, within a minute of virtual time.
    pub(crate) async fn next(&mut self) -> Got {
        timeout(Duration::from_secs(60), self.read_frame()).await.expect("nothing comes")
    }

    /// Whether nothing comes within `time`, neither a frame nor the end.
    pub(crate) async fn is_silent_for(&mut self, time: Duration) -> bool {
        timeout(time, self.read_frame()).await.is_err()
    }

    /// All frames up to the end of the stream.
    pub(crate) async fn rest(&mut self) -> Vec<Got> {
        let mut frames = Vec::new();
        loop {
            match self.next().await {
                Got::End => return frames,
                frame => frames.push(frame),
            }
        }
    }

    async fn read_frame(&mut self) -> Got {
        loop {
            match self.take_frame() {
                Some(Got::Part) => continue,
                Some(got) => return got,
                None => {}
            }
            match self.io.read_buf(&mut self.read).await {
                Ok(0) | Err(_) => return Got::End,
                Ok(_) => {}
            }
        }
    }

    fn take_frame(&mut self) -> Option<Got> {
        const GO_AWAY: u8 = 11;
        if !self.greeted && self.read.get(4).is_some_and(|&kind| kind != GO_AWAY) {
            let (hello, len) = Hello::decode(&self.read).expect("the other end speaks the protocol")?;
            self.greeted = true;
            self.read.advance(len);
            return Some(Got::Hello(hello));
        }
        let decoder = FrameDecoder::new(1 << 24);
        let Decoded::Frame { frame, len } = decoder.decode(&self.read).expect("the frames are well formed") else {
            return None;
        };
        let begun = match &frame {
            Frame::Request(request) if request.more => {
                Some((request.id, Assembly::begin(request.body_len, request.body)))
            }
            Frame::Response(response) if response.more => {
                Some((response.id, Assembly::begin(response.body_len, response.body)))
            }
            Frame::Item { id, more: true, len, part } => Some((*id, Assembly::begin(*len, part))),
            _ => None,
        };
        let got = match frame {
            Frame::Cont { id, more, part } => match self.parted.entry(id) {
                Entry::Vacant(_) => Got::Other,
                Entry::Occupied(mut parted) => {
                    if parted.get_mut().1.add(part, more).expect("the parts add up") {
                        let (mut got, mut assembly) = parted.remove();
                        if let Got::Request { body, .. } | Got::Response { body, .. } | Got::Item { body, .. } =
                            &mut got
                        {
                            *body = assembly.take();
                        }
                        got
                    } else {
                        Got::Part
                    }
                }
            },
            Frame::Request(request) => Got::Request {
                id: request.id,
                timeout_us: request.head.timeout_us,
                attempt: request.head.attempt,
                metadata: request.metadata().expect("the metadata is well formed"),
                body: request.body.to_vec(),
            },
            Frame::Response(response) => Got::Response {
                id: response.id,
                code: response.code,
                executed: response.executed,
                status: response.status().expect("the status is well formed"),
                body: response.body.to_vec(),
            },
            Frame::Item { id, part, .. } => Got::Item { id, body: part.to_vec() },
            Frame::End { id } => Got::LastItem(id),
            Frame::Credit { id, bytes } => Got::Credit { id, bytes },
            Frame::Cancel { id } => Got::Cancel(id),
            Frame::Ping(opaque) => Got::Ping(opaque),
            Frame::Pong(opaque) => Got::Pong(opaque),
            Frame::GoAway(go_away) => {
                Got::GoAway { last: go_away.last, reason: go_away.reason, message: go_away.message.to_owned() }
            }
            _ => Got::Other,
        };
        self.read.advance(len);
        let Some((id, assembly)) = begun else { return Some(got) };
        self.parted.insert(id, (got, assembly));
        Some(Got::Part)
    }
}

/// A client that a test scripts.
pub(crate) struct RawClient {
    pub(crate) peer: RawPeer,
}

impl RawClient {
    pub(crate) fn new(io: DuplexStream) -> Self {
        Self { peer: RawPeer::new(io) }
    }

    /// Says HELLO and reads the server's.
    pub(crate) async fn shake_hands(&mut self) -> Hello {
        self.peer.send(&hello()).await;
        match self.peer.next().await {
            Got::Hello(hello) => hello,
            other => panic!("instead of a HELLO came {other:?}"),
        }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.peer.send(bytes).await;
    }

    pub(crate) async fn next(&mut self) -> Got {
        self.peer.next().await
    }

    /// The next frame, which must be the answer to `id`.
    pub(crate) async fn answer(&mut self, id: u64) -> (Status, Vec<u8>) {
        match self.next().await {
            Got::Response { id: got, status, body, .. } if got == CallId::new(id, 0) => (status, body),
            other => panic!("instead of the answer to {id} came {other:?}"),
        }
    }

    /// The next frame, which must be the reply to `id`.
    pub(crate) async fn reply<R: DeserializeOwned>(&mut self, id: u64) -> R {
        let (status, body) = self.answer(id).await;
        assert_eq!(status.code(), StatusCode::Ok, "{status}");
        CodecId::BINCODE.decode(&body).expect("the reply is of that type")
    }

    /// The next frame, which must be a GOAWAY: its last id, reason and message.
    pub(crate) async fn go_away(&mut self) -> (u64, GoAwayReason, String) {
        match self.next().await {
            Got::GoAway { last, reason, message } => (last.sequence(), reason, message),
            other => panic!("instead of a GOAWAY came {other:?}"),
        }
    }

    /// Sends GOAWAY and shuts down the write side.
    pub(crate) async fn leave(&mut self) {
        self.send(&goodbye()).await;
        self.peer.end().await;
    }

    /// Leaves, and reads to the server's end; nothing but that may come.
    pub(crate) async fn part(mut self) {
        self.leave().await;
        let rest = self.peer.rest().await;
        assert!(rest.is_empty(), "something was left to be said: {rest:?}");
    }
}

/// A server that a test scripts.
pub(crate) struct RawServer {
    pub(crate) peer: RawPeer,
}

impl RawServer {
    pub(crate) fn new(io: DuplexStream) -> Self {
        Self { peer: RawPeer::new(io) }
    }

    /// Reads the client's HELLO and answers with one that welcomes so many calls at once.
    pub(crate) async fn shake_hands(&mut self, advised_calls: u32) {
        let mut hello = server_hello();
        hello.advised_calls = advised_calls;
        self.shake_hands_with(&hello).await;
    }

    /// Reads the client's HELLO and answers with `hello`.
    pub(crate) async fn shake_hands_with(&mut self, hello: &Hello) {
        match self.peer.next().await {
            Got::Hello(_) => {}
            other => panic!("instead of a HELLO came {other:?}"),
        }
        let mut out = Vec::new();
        hello.encode(&mut out);
        self.peer.send(&out).await;
    }

    /// The next frame, which must be a request: its id and body.
    pub(crate) async fn request(&mut self) -> (CallId, Vec<u8>) {
        match self.peer.next().await {
            Got::Request { id, body, .. } => (id, body),
            other => panic!("instead of a request came {other:?}"),
        }
    }

    /// Sends a reply.
    pub(crate) async fn reply<R: Serialize>(&mut self, id: CallId, reply: R) {
        let bytes = response(id, &reply);
        self.peer.send(&bytes).await;
    }

    /// Sends a status.
    pub(crate) async fn status(&mut self, id: CallId, status: &Status) {
        let mut out = Vec::new();
        encode_status(&mut out, id, status, u32::MAX).expect("it fits");
        self.peer.send(&out).await;
    }

    /// Sends GOAWAY.
    pub(crate) async fn go_away(&mut self, last: CallId, reason: GoAwayReason, message: &str) {
        let mut out = Vec::new();
        encode_go_away(&mut out, last, reason, message);
        self.peer.send(&out).await;
    }
}

/// A HELLO frame.
pub(crate) fn hello() -> Vec<u8> {
    hello_with(|_| ())
}

/// A HELLO frame as `change` has it.
pub(crate) fn hello_with(change: impl FnOnce(&mut Hello)) -> Vec<u8> {
    let mut hello = server_hello();
    change(&mut hello);
    let mut out = Vec::new();
    hello.encode(&mut out);
    out
}

fn server_hello() -> Hello {
    let mut hello = Hello::default();
    hello.max_frame = 256 * 1024;
    hello.max_message = 256 * 1024;
    hello.codecs = [CodecId::BYTES, CodecId::BINCODE].into_iter().collect();
    hello
}

/// A RESPONSE frame with a reply, and the parts in which a long one goes on.
pub(crate) fn response<R: Serialize>(id: CallId, reply: &R) -> Vec<u8> {
    let mut out = Vec::new();
    let message = OpenMessage::response(&mut out);
    CodecId::BINCODE.encode(reply, &mut out).expect("it can be encoded");
    finish(message, &mut out, id);
    out
}

/// The id and code of every RESPONSE among frames that follow a HELLO, up to the first that is not whole.
pub(crate) fn responses_in(bytes: &[u8]) -> Vec<(u64, StatusCode)> {
    let (_, mut at) = Hello::decode(bytes).expect("it is greeted first").expect("the whole HELLO is there");
    let (decoder, mut found) = (FrameDecoder::new(1 << 24), Vec::new());
    while let Decoded::Frame { frame, len } = decoder.decode(&bytes[at..]).expect("the frames are well formed") {
        at += len;
        if let Frame::Response(response) = frame {
            found.push((response.id.sequence(), response.code));
        }
    }
    found
}

/// As long as can be.
pub(crate) const ANY: SendBounds = SendBounds { max_frame: u32::MAX, max_message: u32::MAX };

/// Finishes a message, with all parts of its body in a row.
fn finish(message: OpenMessage, out: &mut Vec<u8>, id: CallId) {
    if let Some(mut rest) = message.finish(out, id, ANY).expect("it fits") {
        while !rest.encode_part(out, id, ANY.max_frame) {}
    }
}

/// The GOAWAY of a client that leaves.
pub(crate) fn goodbye() -> Vec<u8> {
    let mut out = Vec::new();
    encode_go_away(&mut out, CallId::CONNECTION, GoAwayReason::Drain, "bye");
    out
}

/// A CANCEL frame.
pub(crate) fn cancel(id: u64) -> Vec<u8> {
    let mut out = Vec::new();
    encode_cancel(&mut out, CallId::new(id, 0));
    out
}

/// A frame of any kind.
pub(crate) fn frame(kind: u8, flags: u8, id: u64, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&(12 + head.len() as u32 + body.len() as u32).to_be_bytes());
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&(head.len() as u16).to_be_bytes());
    out.extend_from_slice(&CallId::new(id, 0).to_wire().to_be_bytes());
    out.extend_from_slice(head);
    out.extend_from_slice(body);
    out
}

/// A REQUEST to be changed before it is sent.
pub(crate) struct Req {
    id: u64,
    kind: CallKind,
    pub(crate) head: RequestHead,
    pub(crate) metadata: Metadata,
    pub(crate) body: Vec<u8>,
}

impl Req {
    /// A request with arguments in bincode.
    pub(crate) fn new<A: Serialize>(id: u64, method: Method, args: A) -> Self {
        let mut body = Vec::new();
        CodecId::BINCODE.encode(&args, &mut body).expect("it can be encoded");
        let head = RequestHead {
            method: method.id(),
            timeout_us: 0,
            sent_at_us: 0,
            codec: CodecId::BINCODE,
            compression: 0,
            priority: 0,
            attempt: 0,
        };
        Self { id, kind: CallKind::Unary, head, metadata: Metadata::new(), body }
    }

    /// Of a call of this kind.
    pub(crate) fn of_kind(self, kind: CallKind) -> Self {
        Self { kind, ..self }
    }

    /// Of a call whose client sends items.
    pub(crate) fn sends(self) -> Self {
        self.of_kind(CallKind::ClientStream)
    }

    /// Of a call whose server sends items.
    pub(crate) fn takes(self) -> Self {
        self.of_kind(CallKind::ServerStream)
    }

    /// Changes the head.
    pub(crate) fn head(mut self, change: impl FnOnce(&mut RequestHead)) -> Self {
        change(&mut self.head);
        self
    }

    /// With another id.
    pub(crate) fn with_id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// Changes the body.
    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// With a timeout.
    pub(crate) fn timeout(self, timeout: Duration) -> Self {
        self.head(|head| head.timeout_us = timeout.as_micros() as u64)
    }

    /// The frame, and what of a long body goes on in parts behind it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let message = OpenMessage::request(&mut out, &self.head, &self.metadata);
        out.extend_from_slice(&self.body);
        finish(message, &mut out, CallId::new(self.id, 0));
        mark_kind(&mut out, self.kind);
        out
    }
}

/// A transport on which there is always more to read, and that takes whatever is written.
pub(crate) struct Flood {
    opening: Vec<u8>,
    frames: Vec<u8>,
    reads: Arc<AtomicUsize>,
}

impl Flood {
    /// `frames` over and over, behind `opening`.
    pub(crate) fn new(opening: Vec<u8>, frames: &[u8]) -> Self {
        Self { opening, frames: frames.repeat(1_000), reads: Arc::default() }
    }

    /// How often it has been read from.
    pub(crate) fn reads(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.reads)
    }
}

impl AsyncRead for Flood {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        buf.put_slice(&std::mem::take(&mut self.opening));
        // Ends after far more than any turn should take, so that the test ends even if turns do not.
        if self.reads.fetch_add(1, Ordering::SeqCst) < 1_000 {
            buf.put_slice(&self.frames);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
