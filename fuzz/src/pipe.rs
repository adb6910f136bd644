//! The script's end of a connection: it writes anything, and checks all that it reads.

use std::time::Duration;

use rpc_codec::{Decoded, Frame, FrameDecoder, Hello};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::timeout,
};

/// What reads the other end's frames, and panics about one that must not be. It is told what the script's own end
/// has written as well, as far as that is HELLO and whole frames.
pub(crate) trait Reader {
    /// The longest frame that the other end may send now.
    fn max_frame(&self) -> u32;

    /// The script's HELLO.
    fn wrote_hello(&mut self, hello: &Hello);

    /// Any other frame of the script's.
    fn wrote(&mut self, frame: Frame<'_>);

    /// Any frame of the other end's but HELLO.
    fn frame(&mut self, frame: Frame<'_>);
}

/// One end of a pipe.
#[derive(Debug)]
pub(crate) struct Pipe<R> {
    io: Option<DuplexStream>,
    written: Written,
    received: Vec<u8>,
    greeted: bool,
    pub(crate) reader: R,
}

impl<R: Reader> Pipe<R> {
    pub(crate) const fn new(io: DuplexStream, reader: R) -> Self {
        Self { io: Some(io), written: Written::Hello(Vec::new()), received: Vec::new(), greeted: false, reader }
    }

    /// Writes as much as the other end takes.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let Some(io) = &mut self.io else { return };
        let mut left = bytes;
        while !left.is_empty() {
            match timeout(PATIENCE, io.write(left)).await {
                Ok(Ok(written)) if written > 0 => {
                    self.written.add(&left[..written], &mut self.reader);
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
                Ok(Some((_, len))) => {
                    self.greeted = true;
                    read = len;
                }
                Ok(None) => return,
                Err(error) => panic!("the other end begins with something else: {error}"),
            }
        }
        let decoder = FrameDecoder::new(self.reader.max_frame());
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

/// What the script's end has written and the other end has been told by it.
#[derive(Debug)]
enum Written {
    /// The beginning of a HELLO.
    Hello(Vec<u8>),
    /// The beginning of a frame.
    Frames(Vec<u8>),
    /// Something else, behind which the other end reads nothing.
    Junk,
}

impl Written {
    fn add(&mut self, bytes: &[u8], reader: &mut impl Reader) {
        let (Self::Hello(rest) | Self::Frames(rest)) = self else { return };
        rest.extend_from_slice(bytes);
        if let Self::Hello(rest) = self {
            match Hello::decode(rest) {
                Ok(Some((hello, len))) => {
                    reader.wrote_hello(&hello);
                    *self = Self::Frames(rest.split_off(len));
                }
                Ok(None) => return,
                Err(_) => *self = Self::Junk,
            }
        }
        let Self::Frames(rest) = self else { return };
        let mut read = 0;
        loop {
            match FrameDecoder::new(MAX_FRAME).decode(&rest[read..]) {
                Ok(Decoded::Frame { frame, len }) => {
                    reader.wrote(frame);
                    read += len;
                }
                Ok(Decoded::Incomplete { .. }) => break,
                Err(_) => return *self = Self::Junk,
            }
        }
        rest.drain(..read);
    }
}

/// How long, in virtual time, the other end may take to take a byte or to send one.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1);

const GO_AWAY: u8 = 11;

/// What the servers and clients of the targets take.
pub(crate) const MAX_FRAME: u32 = 64 * 1024;
