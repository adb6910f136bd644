//! Clients that send calls for as long as anything is taken of them, and never read an answer.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bench_kit::BoxError;
use rpc_codec::{Hello, OpenMessage, RequestHead, SendBounds, patch_id};
use sluicegate::{CallId, CodecId, Metadata, MethodId};

/// Some of them, on one thread.
#[derive(Debug)]
pub(super) struct Deaf {
    over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Deaf {
    pub(super) fn start(addr: &str, clients: usize) -> Result<Self, BoxError> {
        let addr: SocketAddr = addr.parse()?;
        let mut clients = (0..clients).map(|_| Client::connect(addr)).collect::<Result<Vec<_>, _>>()?;
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut sent = 0;
            while !told.load(Ordering::Relaxed) {
                for client in &mut clients {
                    // One that the server has cut off comes back, as an abuser would.
                    match client.send() {
                        Ok(bytes) => sent += bytes as u64,
                        Err(_lost) => {
                            if let Ok(again) = Client::connect(addr) {
                                *client = again;
                            }
                        }
                    }
                }
                pause();
            }
            sent
        });
        Ok(Self { over, thread })
    }

    /// Returns the bytes that they could send.
    pub(super) fn stop(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

/// Short enough for each to send some megabytes a second, if they are taken.
#[expect(clippy::disallowed_methods, reason = "this thread has no runtime")]
fn pause() {
    thread::sleep(Duration::from_millis(5));
}

struct Client {
    socket: TcpStream,
    calls: Vec<u8>,
    calls_made: u64,
    /// Of `calls`, what has been sent.
    at: usize,
}

/// Calls that are written at once.
const BATCH: usize = 64;

impl Client {
    fn connect(addr: SocketAddr) -> Result<Self, BoxError> {
        let mut socket = TcpStream::connect(addr)?;
        let mut hello = Vec::new();
        Hello::default().encode(&mut hello);
        socket.write_all(&hello)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            calls: (0..BATCH).map(|_| call()).collect::<Result<Vec<_>, _>>()?.concat(),
            calls_made: 0,
            at: 0,
        })
    }

    /// Sends a batch, or what is left of one; nothing if the socket is full.
    fn send(&mut self) -> io::Result<usize> {
        if self.at == 0 {
            let frame_len = self.calls.len() / BATCH;
            for frame in self.calls.chunks_exact_mut(frame_len) {
                self.calls_made += 1;
                patch_id(frame, CallId::new(self.calls_made, 0));
            }
        }
        match self.socket.write(&self.calls[self.at..]) {
            Ok(sent) => {
                self.at = (self.at + sent) % self.calls.len();
                Ok(sent)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// A call of the service under overload, without an id yet.
fn call() -> Result<Vec<u8>, BoxError> {
    let head = RequestHead {
        method: MethodId::of("Desk", "work"),
        timeout_us: 0,
        sent_at_us: 0,
        codec: CodecId::BINCODE,
        compression: 0,
        priority: 0,
        attempt: 0,
    };
    let mut out = Vec::new();
    let open = OpenMessage::request(&mut out, &head, &Metadata::new());
    // An echo, of bytes that bincode writes as it does a list of numbers.
    CodecId::BINCODE.encode(&(0_u32, 0_u32, vec![7_u8; 64]), &mut out)?;
    let bounds = SendBounds { max_frame: 64 * 1024, max_message: 64 * 1024 };
    match open.finish(&mut out, CallId::new(0, 0), bounds)? {
        None => Ok(out),
        Some(_) => Err("a call of 64 bytes is one frame".into()),
    }
}
