//! The script's end of a connection: it writes anything, and checks all that it reads.

use std::{collections::HashSet, time::Duration};

use rpc_codec::{Decoded, Frame, FrameDecoder, Hello};
use rpc_core::CallId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::timeout,
};

/// What reads the other end's frames, and panics about one that must not be.
pub(crate) trait Reader {
    /// The longest frame that the other end may send now.
    fn max_frame(&self, sent: &[u8]) -> u32;

    /// The other end's HELLO.
    fn hello(&mut self, hello: &Hello);

    /// Any other frame.
    fn frame(&mut self, frame: Frame<'_>);
}

/// The calls whose bodies go on in parts.
#[derive(Debug, Default)]
pub(crate) struct Unfinished(HashSet<CallId>);

impl Unfinished {
    /// A body has begun; `more` says that it goes on.
    pub(crate) fn begin(&mut self, id: CallId, more: bool) {
        if more {
            self.0.insert(id);
        }
    }

    /// A body goes on.
    pub(crate) fn go_on(&mut self, id: CallId, more: bool) {
        assert!(self.0.contains(&id), "the body of {id} was finished");
        if !more {
            self.0.remove(&id);
        }
    }
}

/// One end of a pipe.
#[derive(Debug)]
pub(crate) struct Pipe<R> {
    io: Option<DuplexStream>,
    /// The first bytes that were written: enough for a HELLO.
    sent: Vec<u8>,
    received: Vec<u8>,
    greeted: bool,
    pub(crate) reader: R,
}

impl<R: Reader> Pipe<R> {
    pub(crate) const fn new(io: DuplexStream, reader: R) -> Self {
        Self { io: Some(io), sent: Vec::new(), received: Vec::new(), greeted: false, reader }
    }

    /// Writes as much as the other end takes.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let Some(io) = &mut self.io else { return };
        let mut left = bytes;
        while !left.is_empty() {
            match timeout(PATIENCE, io.write(left)).await {
                Ok(Ok(written)) if written > 0 => {
                    let kept = written.min(SENT_LEN - self.sent.len());
                    self.sent.extend_from_slice(&left[..kept]);
                    left = &left[written..];
                }
                _ => return,
            }
        }
    }

    /// Reads at most `len` bytes, as long as some come within `patience`, and checks their frames.
    pub(crate) async fn read(&mut self, len: usize, patience: Duration) {
        let mut left = len;
        while left > 0 {
            let Some(io) = &mut self.io else { return };
            let mut read = io.take(left as u64);
            match timeout(patience, read.read_buf(&mut self.received)).await {
                Ok(Ok(len)) if len > 0 => left -= len,
                _ => return,
            }
            self.check();
        }
    }

    /// Shuts down the write side.
    pub(crate) async fn end(&mut self) {
        if let Some(io) = &mut self.io {
            let _ = io.shutdown().await;
        }
    }

    /// Is gone, as a process is that was killed.
    pub(crate) fn cut(&mut self) {
        self.io = None;
    }

    fn check(&mut self) {
        let mut read = 0;
        if !self.greeted && self.received.get(4).is_some_and(|&kind| kind != GO_AWAY) {
            match Hello::decode(&self.received) {
                Ok(Some((hello, len))) => {
                    self.greeted = true;
                    self.reader.hello(&hello);
                    read = len;
                }
                Ok(None) => return,
                Err(error) => panic!("the other end begins with something else: {error}"),
            }
        }
        let decoder = FrameDecoder::new(self.reader.max_frame(&self.sent));
        loop {
            match decoder.decode(&self.received[read..]) {
                Ok(Decoded::Frame { frame, len }) => {
                    self.reader.frame(frame);
                    read += len;
                }
                Ok(Decoded::Incomplete { .. }) => break,
                Err(error) => panic!("the other end breaks the protocol: {error}"),
            }
        }
        self.received.drain(..read);
    }
}

/// How long, in virtual time, the other end may take to take a byte or to send one.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1);

const GO_AWAY: u8 = 11;
const SENT_LEN: usize = 4_200;
