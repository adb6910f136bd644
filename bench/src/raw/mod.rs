//! A client of frames, without a runtime: it takes no advice, and costs its CPU next to nothing.
//!
//! What our own client does for its users, such as to hold calls back that the server has no room for, would hide
//! what the server does by itself; and what it costs is several times what a refusal costs.

pub(crate) mod deaf;
pub(crate) mod generator;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bench_kit::BoxError;
use bench_kit::overload::{PAYLOAD_LEN, Work};
use rpc_codec::{Frame, FrameDecoder, HEADER_LEN, Hello, Kind, OpenMessage, RequestHead, SendBounds, patch_id};
use sluicegate::{CallId, CodecId, Executed, Metadata, MethodId, StatusCode};

/// What a client may send before it has read the server's HELLO, and more than any frame here.
const MAX_FRAME: u32 = 64 * 1024;

/// A call of the service under overload, but for its id and its times.
#[derive(Debug)]
pub(crate) struct Template(Vec<u8>);

impl Template {
    pub(crate) fn new(work: Work, priority: u8) -> Result<Self, BoxError> {
        let head = RequestHead {
            method: MethodId::of("Desk", "work"),
            timeout_us: 0,
            sent_at_us: 0,
            codec: CodecId::BINCODE,
            compression: 0,
            priority,
            attempt: 0,
        };
        let mut out = Vec::new();
        let open = OpenMessage::request(&mut out, &head, &Metadata::new());
        // Bytes, which bincode writes as it does a list of them.
        CodecId::BINCODE.encode(&(work.spin_us, work.wait_us, vec![7_u8; PAYLOAD_LEN]), &mut out)?;
        let bounds = SendBounds { max_frame: MAX_FRAME, max_message: MAX_FRAME };
        match open.finish(&mut out, CallId::new(0, 0), bounds)? {
            None => Ok(Self(out)),
            Some(_) => Err("such a call is one frame".into()),
        }
    }

    /// Appends the call; a timeout of zero is none.
    fn append(&self, out: &mut Vec<u8>, sequence: u64, timeout: Duration, sent_at: Duration) {
        let start = out.len();
        out.extend_from_slice(&self.0);
        let frame = &mut out[start..];
        patch_id(frame, CallId::new(sequence, 0));
        frame[TIMEOUT_AT..SENT_AT].copy_from_slice(&(timeout.as_micros() as u64).to_be_bytes());
        // The clock is cut to 32 bits, as the protocol has it.
        frame[SENT_AT..SENT_AT + 4].copy_from_slice(&(sent_at.as_micros() as u32).to_be_bytes());
    }
}

/// Behind the method.
const TIMEOUT_AT: usize = HEADER_LEN + 8;
const SENT_AT: usize = TIMEOUT_AT + 8;

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The place of the call among those of its connection, from 1 on.
    pub(crate) sequence: u64,
    pub(crate) code: StatusCode,
    pub(crate) executed: Executed,
}

/// A connection. Nothing of it waits but [`greet`](Self::greet).
#[derive(Debug)]
pub(crate) struct Wire {
    socket: TcpStream,
    /// By its clock the server tells how old calls are, so all of a connection have the same.
    opened: Instant,
    calls_made: u64,
    out: Vec<u8>,
    /// Of `out`, what has been sent.
    sent: usize,
    input: Vec<u8>,
    /// Of `input`, what was filled.
    filled: usize,
}

/// Read at a time.
const READ_LEN: usize = 256 * 1024;

impl Wire {
    /// Connects and says HELLO; does not read the server's.
    pub(crate) fn connect(addr: SocketAddr) -> Result<Self, BoxError> {
        let mut socket = TcpStream::connect(addr)?;
        socket.set_nodelay(true)?;
        let mut hello = Vec::new();
        Hello::default().encode(&mut hello);
        socket.write_all(&hello)?;
        socket.set_nonblocking(true)?;
        let opened = Instant::now();
        Ok(Self { socket, opened, calls_made: 0, out: Vec::new(), sent: 0, input: Vec::new(), filled: 0 })
    }

    /// Waits for the server's HELLO, for so long at most.
    pub(crate) fn greet(&mut self, patience: Duration) -> Result<(), BoxError> {
        self.socket.set_nonblocking(false)?;
        self.socket.set_read_timeout(Some(patience))?;
        self.input.resize(READ_LEN, 0);
        let len = loop {
            let read = self.socket.read(&mut self.input[self.filled..])?;
            if read == 0 {
                return Err("the server closed the connection".into());
            }
            self.filled += read;
            if let Some((_, len)) = Hello::decode(&self.input[..self.filled])? {
                break len;
            }
        };
        self.input.copy_within(len..self.filled, 0);
        self.filled -= len;
        self.socket.set_nonblocking(true)?;
        Ok(())
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Appends a call to what is going to be sent, and says its place among all of the connection.
    pub(crate) fn call(&mut self, template: &Template, timeout: Duration, now: Instant) -> u64 {
        self.calls_made += 1;
        template.append(&mut self.out, self.calls_made, timeout, now.saturating_duration_since(self.opened));
        self.calls_made
    }

    /// What has not been sent yet.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what the socket takes of it, and says how much that was.
    pub(crate) fn send(&mut self) -> io::Result<usize> {
        if self.unsent() == 0 {
            return Ok(0);
        }
        let sent = would_block_is_none(self.socket.write(&self.out[self.sent..]))?.unwrap_or(0);
        self.sent += sent;
        if self.unsent() == 0 {
            self.out.clear();
            self.sent = 0;
        } else if self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(sent)
    }

    /// Hands over the answers that have come, without waiting for any.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(Answer)) -> Result<(), BoxError> {
        self.input.resize(READ_LEN, 0);
        loop {
            let room = self.input.len() - self.filled;
            match would_block_is_none(self.socket.read(&mut self.input[self.filled..]))? {
                None => return Ok(()),
                Some(0) => return Err("the server closed the connection".into()),
                Some(read) => {
                    self.filled += read;
                    let taken = answers_in(&self.input[..self.filled], &mut each)?;
                    self.input.copy_within(taken..self.filled, 0);
                    self.filled -= taken;
                    // Another read would only say that there is nothing.
                    if read < room {
                        return Ok(());
                    }
                }
            }
        }
    }
}

fn would_block_is_none(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Hands over the answers among whole frames, and says how long those frames are.
///
/// Of an answer it looks at nothing but whose it is and how the call ended: not at what a refusal explains.
fn answers_in(bytes: &[u8], each: &mut impl FnMut(Answer)) -> Result<usize, BoxError> {
    let mut at = 0;
    while let Some(header) = bytes[at..].first_chunk::<HEADER_LEN>() {
        let len = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize + 4;
        if !(HEADER_LEN..=MAX_FRAME as usize).contains(&len) {
            return Err(format!("a frame of {len} bytes").into());
        }
        let Some(frame) = bytes[at..].get(..len) else { break };
        at += len;
        match header[4] {
            response if response == Kind::Response as u8 => each(answer(header, frame)?),
            farewell if farewell == Kind::GoAway as u8 => return Err(going_away(frame).into()),
            // Whoever is asked for a sign of life here is soon done.
            _ => {}
        }
    }
    Ok(at)
}

fn answer(header: &[u8; HEADER_LEN], frame: &[u8]) -> Result<Answer, BoxError> {
    let id = header.last_chunk().map_or(0, |id| u64::from_be_bytes(*id));
    let Some(&[code, executed]) = frame[HEADER_LEN..].first_chunk() else {
        return Err("an answer without a code".into());
    };
    let (code, executed) = (StatusCode::from_wire(code), Executed::from_wire(executed));
    Ok(Answer { sequence: CallId::from_wire(id).sequence(), code, executed })
}

fn going_away(frame: &[u8]) -> String {
    match FrameDecoder::new(MAX_FRAME).decode(frame) {
        Ok(rpc_codec::Decoded::Frame { frame: Frame::GoAway(go_away), .. }) => {
            format!("the server goes away: {:?}, {}", go_away.reason, go_away.message)
        }
        _ => "the server goes away".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rpc_codec::{Decoded, encode_status};
    use sluicegate::Status;

    use super::*;

    #[test]
    fn a_call_has_the_id_and_the_times_that_it_is_given() {
        let template = Template::new(Work { spin_us: 200, wait_us: 3 }, 2).expect("it fits");
        let mut out = Vec::new();
        template.append(&mut out, 1, Duration::from_micros(5), Duration::from_micros(6));
        template.append(&mut out, 2, Duration::from_micros(7), Duration::from_micros((1 << 32) + 8));
        let first = out.len() / 2;
        for (bytes, wanted) in [(&out[..first], (1, 5, 6)), (&out[first..], (2, 7, 8))] {
            let decoded = FrameDecoder::new(MAX_FRAME).decode(bytes).expect("well formed");
            let Decoded::Frame { frame: Frame::Request(request), .. } = decoded else { panic!("{decoded:?}") };
            assert_eq!((request.id.sequence(), request.head.timeout_us, request.head.sent_at_us), wanted);
            assert_eq!(request.head.priority, 2);
            let (spin, wait, payload): (u32, u32, Vec<u8>) = CodecId::BINCODE.decode(request.body).expect("arguments");
            assert_eq!((spin, wait, payload.len()), (200, 3, PAYLOAD_LEN));
        }
    }

    #[test]
    fn answers_are_told_from_the_rest_and_a_part_of_one_is_left() {
        let mut bytes = Vec::new();
        OpenMessage::response(&mut bytes)
            .finish(&mut bytes, CallId::new(1, 0), SendBounds { max_frame: MAX_FRAME, max_message: MAX_FRAME })
            .expect("it fits");
        let refused = Status::resource_exhausted("too many").with_executed(Executed::Never);
        encode_status(&mut bytes, CallId::new(2, 7), &refused, MAX_FRAME).expect("it fits");
        let whole = bytes.len();
        bytes.extend_from_within(..20);
        let mut found = Vec::new();
        assert_eq!(answers_in(&bytes, &mut |answer| found.push(answer)).expect("well formed"), whole);
        let answer = |sequence, code, executed| Answer { sequence, code, executed };
        let wanted =
            [answer(1, StatusCode::Ok, Executed::Finished), answer(2, StatusCode::ResourceExhausted, Executed::Never)];
        assert_eq!(found, wanted);
    }
}
