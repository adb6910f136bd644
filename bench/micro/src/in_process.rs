//! The server and the script that calls it, in one thread and through a pipe in memory.

use std::fmt;

use futures::{StreamExt, stream};
use rpc_codec::{
    CallKind, Decoded, Frame, FrameDecoder, HEADER_LEN, Hello, OpenMessage, RequestHead, SendBounds, mark_kind,
    patch_id,
};
use rpc_core::{CallId, MethodId};
use sluicegate::limit::Rate;
use sluicegate::server::{Call, Decision, Handler};
use sluicegate::{Bytes, CodecId, Metadata, Server, Status, StatusCode, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Runtime;

use crate::Message;

/// Calls that are outstanding at a time.
pub const BATCH: usize = 64;

/// What is called, and how it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Structs through bincode, answered at once.
    Structs,
    /// A body that no codec touches, answered at once.
    Bytes,
    /// Structs; the service yields once before it answers.
    PendingOnce,
    /// Refused by the limit of calls in flight.
    Refused,
    /// Not calls but items, of one server stream for each batch.
    Streamed,
}

/// A server with all limits on, and one connection to it.
///
/// Time stands still in its runtime: whatever the server decides by the clock, it decides the same way
/// however slowly it is run.
pub struct InProcess {
    runtime: Runtime,
    peer: Peer,
}

impl InProcess {
    /// Starts a server and shakes hands. `handlers` more than it has by default pass every call on.
    ///
    /// # Panics
    ///
    /// The server does not do what it was built for.
    #[must_use]
    pub fn new(calls: Calls, handlers: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without drivers");
        let (near, far) = duplex(PIPE_LEN);
        let server = server(calls, handlers);
        runtime.spawn(async move { server.serve_connection(far, None).await });
        let peer = runtime.block_on(Peer::greet(near, calls));
        let mut started = Self { runtime, peer };
        started.check(calls);
        started
    }

    /// Makes [`BATCH`] calls, or one with as many items, and takes what answers them.
    ///
    /// # Panics
    ///
    /// The connection is gone.
    pub fn batch(&mut self) {
        self.runtime.block_on(self.peer.exchange());
    }

    /// One batch, of which every answer is looked at.
    fn check(&mut self, calls: Calls) {
        self.batch();
        let expected = if calls == Calls::Refused { StatusCode::ResourceExhausted } else { StatusCode::Ok };
        let mut rest = &self.peer.received[..];
        let (mut answers, mut items) = (0, 0);
        while !rest.is_empty() {
            match FrameDecoder::new(MAX_FRAME).decode(rest).expect("frames are valid") {
                Decoded::Frame { frame: Frame::Response(response), len } => {
                    let status = response.status().expect("a status");
                    assert_eq!(status.code(), expected, "{status}");
                    rest = &rest[len..];
                    answers += 1;
                }
                Decoded::Frame { frame: Frame::Item { .. }, len } => {
                    rest = &rest[len..];
                    items += 1;
                }
                other => panic!("{other:?} is no answer"),
            }
        }
        assert_eq!((answers, items), if calls == Calls::Streamed { (1, BATCH) } else { (BATCH, 0) });
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").field("calls_made", &self.peer.calls_made).finish_non_exhaustive()
    }
}

#[sluicegate::service]
trait Echo {
    async fn structs(&self, message: Message) -> Message;
    async fn waiting(&self, message: Message) -> Message;
    async fn bytes(&self, message: Bytes) -> Bytes;
    async fn stay(&self);
    async fn items(&self, count: u64) -> Result<impl Stream<Item = Result<Bytes, Status>> + Send, Status>;
}

struct Echoing;

impl Echo for Echoing {
    async fn structs(&self, message: Message) -> Message {
        message
    }

    async fn waiting(&self, message: Message) -> Message {
        tokio::task::yield_now().await;
        message
    }

    async fn bytes(&self, message: Bytes) -> Bytes {
        message
    }

    async fn stay(&self) {
        std::future::pending().await
    }

    async fn items(&self, count: u64) -> Result<impl Stream<Item = Result<Bytes, Status>> + Send, Status> {
        Ok(stream::iter(0..count).map(|_| Ok(Bytes::from_static(&[7; PAYLOAD_LEN]))))
    }
}

/// What handlers of users cost before they do anything.
struct PassingOn;

impl Handler for PassingOn {
    fn inbound(&mut self, _: &mut Call<'_>) -> Decision {
        Decision::Pass
    }
}

fn server(calls: Calls, handlers: usize) -> Server {
    let rate = Rate::per_second(100e6).burst(u32::MAX);
    Server::builder()
        .service(EchoServer::new(Echoing))
        .max_concurrent_calls(if calls == Calls::Refused { 1 } else { 100_000 })
        .max_concurrent_calls_per_connection(10_000)
        .rate(rate)
        .rate_per_connection(rate)
        .pipeline(move |pipeline, _| {
            for name in &HANDLER_NAMES[..handlers] {
                pipeline.add_last(name, PassingOn);
            }
        })
        .build()
        .expect("the settings go together")
}

const HANDLER_NAMES: [&str; 8] = ["one", "two", "three", "four", "five", "six", "seven", "eight"];

/// The script: the same frames over and over, but for their ids.
struct Peer {
    pipe: DuplexStream,
    calls: Vec<u8>,
    frame_len: usize,
    calls_made: u64,
    /// Frames that answer a batch.
    answers: usize,
    /// The answers to the last batch.
    received: Vec<u8>,
}

impl Peer {
    async fn greet(mut pipe: DuplexStream, calls: Calls) -> Self {
        let mut out = Vec::new();
        Hello::default().encode(&mut out);
        let mut calls_made = 0;
        if calls == Calls::Refused {
            // The only permit is out for good.
            calls_made += 1;
            put_call(&mut out, "stay", CallId::new(calls_made, 0));
        }
        pipe.write_all(&out).await.expect("the server is there");
        let mut received = Vec::new();
        let hello_len = loop {
            pipe.read_buf(&mut received).await.expect("the server greets");
            if let Some((_, len)) = Hello::decode(&received).expect("it speaks our protocol") {
                break len;
            }
        };
        assert_eq!(hello_len, received.len(), "nothing has been answered yet");

        let method = match calls {
            Calls::Structs | Calls::Refused => "structs",
            Calls::Bytes => "bytes",
            Calls::PendingOnce => "waiting",
            Calls::Streamed => "items",
        };
        let (opened, answers) = if calls == Calls::Streamed { (1, BATCH + 1) } else { (BATCH, BATCH) };
        let mut frames = Vec::new();
        for _ in 0..opened {
            put_call(&mut frames, method, CallId::new(0, 0));
        }
        Self { pipe, frame_len: frames.len() / opened, calls: frames, calls_made, answers, received }
    }

    async fn exchange(&mut self) {
        for frame in self.calls.chunks_exact_mut(self.frame_len) {
            self.calls_made += 1;
            patch_id(frame, CallId::new(self.calls_made, 0));
        }
        self.pipe.write_all(&self.calls).await.expect("the server is there");
        self.received.clear();
        let (mut at, mut answers) = (0, 0);
        while answers < self.answers {
            let len = self.pipe.read_buf(&mut self.received).await.expect("the server answers");
            assert!(len > 0, "the server closed the connection");
            while let Some(len) = self.received[at..].first_chunk().map(|len| u32::from_be_bytes(*len) as usize + 4) {
                if self.received.len() - at < len {
                    break;
                }
                at += len;
                answers += 1;
            }
        }
        assert_eq!(at, self.received.len(), "there are more answers than calls");
    }
}

fn put_call(out: &mut Vec<u8>, method: &str, id: CallId) {
    let head = RequestHead {
        method: MethodId::of("Echo", method),
        timeout_us: 3_600_000_000,
        sent_at_us: 0,
        codec: if method == "bytes" { CodecId::BYTES } else { CodecId::BINCODE },
        compression: 0,
        priority: 0,
        attempt: 0,
    };
    let message = Message::new(PAYLOAD_LEN);
    let open = OpenMessage::request(out, &head, &Metadata::new());
    let start = open.start();
    match method {
        "stay" => CodecId::BINCODE.encode(&(), out).expect("nothing is always encoded"),
        "items" => CodecId::BINCODE.encode(&(BATCH as u64,), out).expect("a number is always encoded"),
        "bytes" => {
            out.extend_from_slice(message.name.as_bytes());
            out.extend_from_slice(&message.payload);
        }
        _ => CodecId::BINCODE.encode(&(message,), out).expect("a message is plain data"),
    }
    let rest = open.finish(out, id, SendBounds { max_frame: MAX_FRAME, max_message: MAX_FRAME }).expect("it is short");
    assert!(rest.is_none(), "a call is one frame");
    if method == "items" {
        mark_kind(&mut out[start..], CallKind::ServerStream);
    }
}

const PAYLOAD_LEN: usize = 64;
/// What a client may send before it has read the server's HELLO.
const MAX_FRAME: u32 = 64 * 1024;
/// A batch of calls or answers is far shorter, so that no write waits.
const PIPE_LEN: usize = 256 * 1024;
const _: () = assert!(PIPE_LEN > BATCH * (HEADER_LEN + 512));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_every_kind_end_as_they_should() {
        for calls in [Calls::Structs, Calls::Bytes, Calls::PendingOnce, Calls::Refused, Calls::Streamed] {
            for handlers in [0, HANDLER_NAMES.len()] {
                let mut server = InProcess::new(calls, handlers);
                server.batch();
                server.check(calls);
            }
        }
    }
}
