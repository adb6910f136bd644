//! `raw`: the limit of tokio on sockets, by hand and without serialization.
//!
//! The client is one task per connection that keeps a window of calls outstanding by itself, which
//! no RPC client can do for independent callers. The clock is read once per batch of answers.

use std::io;
use std::time::Instant;

use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;

use bench_kit::harness::{self, LoadJob, Measured, Meter, Next, ServeJob};
use bench_kit::workload::Kind;
use bench_kit::{BoxError, Stack};

use crate::stacks::raw_mux;
use crate::wire::{self, ReadBuffer};

pub(crate) const STACK: Stack = Stack {
    name: "raw",
    about: "tokio echo; one client task per connection pipelines by itself",
    serve: |job| Box::pin(serve(job)),
    load: |job| Box::pin(load(job)),
};

/// The echo server of all `raw` stacks.
pub(crate) async fn serve(job: ServeJob) -> Result<(), BoxError> {
    let listener = harness::listen(&job).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        // A connection ends with its client, by whatever error; the server goes on.
        match job.workload.kind {
            Kind::Stream => tokio::spawn(send_items(socket, job.workload.payload_len)),
            _ => tokio::spawn(echo(socket)),
        };
    }
}

/// Reads until dry, and answers all that was read with one write.
async fn echo(mut socket: TcpStream) -> io::Result<()> {
    let mut received = ReadBuffer::new();
    let mut answers = Vec::new();
    while received.read_from(&mut socket).await? {
        while let Some(frame) = received.next_frame()? {
            wire::put_header(&mut answers, frame.id, frame.body.len());
            answers.extend_from_slice(frame.body);
        }
        if !answers.is_empty() {
            socket.write_all(&answers).await?;
            answers.clear();
        }
    }
    Ok(())
}

/// Writes items without end, in batches, each as long as one of Sluicegate is on the wire.
async fn send_items(mut socket: TcpStream, payload_len: usize) -> io::Result<()> {
    let mut batch = Vec::with_capacity(BATCH_LEN + 1024);
    let body = vec![7; payload_len + ITEM_HEADER_LEN - wire::HEADER_LEN - 8];
    for id in 0_u64.. {
        wire::put_header(&mut batch, id, 8 + body.len());
        batch.extend_from_slice(&id.to_le_bytes());
        batch.extend_from_slice(&body);
        if batch.len() >= BATCH_LEN {
            socket.write_all(&batch).await?;
            batch.clear();
        }
    }
    Ok(())
}

/// Takes items, of which every one must be the next.
async fn count_items(mut socket: TcpStream, meter: Meter) -> Result<(), BoxError> {
    let mut received = ReadBuffer::new();
    let (mut expected, mut since) = (0, Instant::now());
    while received.read_from(&mut socket).await? {
        let first = expected;
        while let Some(frame) = received.next_frame()? {
            if !frame.body.starts_with(&u64::to_le_bytes(expected)) {
                return Err("an item was lost".into());
            }
            expected += 1;
        }
        let now = Instant::now();
        if meter.record_items(expected - first, since, now) == Next::Stop {
            return Ok(());
        }
        since = now;
    }
    Err("the server closed the connection".into())
}

/// A batch that is written at once.
const BATCH_LEN: usize = 64 << 10;
/// What Sluicegate puts before an item.
const ITEM_HEADER_LEN: usize = 16;

/// The client of a stream.
pub(crate) async fn load_items(job: LoadJob) -> Result<Measured, BoxError> {
    let socket = harness::connect(&job).await?;
    harness::measure(&job, [socket], count_items).await
}

async fn load(job: LoadJob) -> Result<Measured, BoxError> {
    let workload = job.workload;
    if workload.kind == Kind::Idle {
        // One call per connection: there is nothing to pipeline.
        return raw_mux::load(job).await;
    }
    if workload.kind == Kind::Stream {
        return load_items(job).await;
    }
    let mut sockets = Vec::new();
    for _ in 0..workload.connections {
        sockets.push(harness::connect(&job).await?);
    }
    harness::measure(&job, sockets, |socket, meter| {
        pipeline(socket, meter, workload.plain_message(), workload.in_flight)
    })
    .await
}

/// Keeps `in_flight` calls outstanding: every answer is followed by the next call in its place.
async fn pipeline(mut socket: TcpStream, meter: Meter, message: Vec<u8>, in_flight: usize) -> Result<(), BoxError> {
    let mut received = ReadBuffer::new();
    let mut out = Outgoing::default();
    let mut sent_at = vec![Instant::now(); in_flight];
    for place in 0..in_flight {
        put_call(&mut out.bytes, place as u64, &message);
    }
    loop {
        if !exchange(&mut socket, &mut out, &mut received).await? {
            return Err("the server closed the connection".into());
        }
        let now = Instant::now();
        while let Some(frame) = received.next_frame()? {
            let place = frame.id as usize;
            if !frame.body.starts_with(&frame.id.to_le_bytes())
                || frame.body.len() != message.len()
                || place >= in_flight
            {
                return Err("the answer is not the request".into());
            }
            if meter.record(sent_at[place], now) == Next::Stop {
                return Ok(());
            }
            sent_at[place] = now;
            put_call(&mut out.bytes, frame.id, &message);
        }
    }
}

fn put_call(out: &mut Vec<u8>, id: u64, message: &[u8]) {
    wire::put_header(out, id, message.len());
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&message[8..]);
}

/// Calls on their way out, of which the first `written` bytes have left.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
}

/// Writes what the socket takes and reads once; `false` at the end of the stream.
///
/// It reads also while it cannot write: a server that waits for its answers to be taken reads
/// nothing, and both would wait forever once a window is larger than the socket's buffers.
async fn exchange(socket: &mut TcpStream, out: &mut Outgoing, received: &mut ReadBuffer) -> io::Result<bool> {
    while out.written < out.bytes.len() {
        if let Some(len) = unless_blocked(socket.try_write(&out.bytes[out.written..]))? {
            out.written += len;
            continue;
        }
        socket.ready(Interest::READABLE | Interest::WRITABLE).await?;
        if let Some(len) = unless_blocked(socket.try_read(received.spare()))? {
            received.received(len);
            return Ok(len > 0);
        }
    }
    out.bytes.clear();
    out.written = 0;
    received.read_from(socket).await
}

fn unless_blocked(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
