//! `raw-mux`: the fair limit. Independent callers share a connection, as with any RPC client.
//!
//! A call takes a place, and appends its frame to the connection's out-buffer, under one short
//! lock; then it waits on a oneshot. Whoever appends to an empty buffer wakes the writer, which
//! steps aside for one turn before it writes all that has come together. The reader hands out all
//! answers of one read: one lock for the batch, a `Vec` and a wake-up for each. The server is that
//! of `raw`.
//!
//! Tried and not taken: not stepping aside when one call is outstanding makes a lone call as quick
//! as `raw` (p50 6.1 us in place of 8.5, both processes on one CPU) and costs a quarter of the
//! calls on 16 connections; a lock for each answer in place of one for the batch is no different.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;

use bench_kit::harness::{self, Caller, LoadJob, Measured, lock};
use bench_kit::workload::Kind;
use bench_kit::{BoxError, Stack};

use crate::stacks::raw;
use crate::wire::{self, ReadBuffer};

pub(crate) const STACK: Stack = Stack {
    name: "raw-mux",
    about: "the server of raw; independent callers share a connection: the fair limit",
    serve: |job| Box::pin(raw::serve(job)),
    load: |job| Box::pin(load(job)),
};

/// The client of all `raw` stacks but `raw` itself.
pub(crate) async fn load(job: LoadJob) -> Result<Measured, BoxError> {
    if job.workload.kind == Kind::Stream {
        return raw::load_items(job).await;
    }
    let message = job.workload.plain_message();
    harness::drive(&job, async || {
        let client = Client::new(harness::connect(&job).await?);
        let caller = || Echo { client: client.clone(), message: message.clone() };
        Ok((0..job.workload.in_flight).map(|_| caller()).collect())
    })
    .await
}

/// One caller and its message.
#[derive(Debug)]
struct Echo {
    client: Client,
    message: Vec<u8>,
}

impl Caller for Echo {
    async fn call(&mut self, id: u64) -> Result<(), BoxError> {
        self.message[..8].copy_from_slice(&id.to_le_bytes());
        let answer = self.client.call(&self.message).await?;
        if answer.len() != self.message.len() || answer[..8] != self.message[..8] {
            return Err("the answer is not the request".into());
        }
        Ok(())
    }
}

/// A handle of a connection; its clones share it.
#[derive(Clone, Debug)]
struct Client {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Frames that the writer has not fetched yet.
    out: Vec<u8>,
    /// Set while the writer sleeps, which it does only if `out` is empty.
    writer: Option<Waker>,
    waiting: Places,
    /// Set once no answer can come any more.
    closed: bool,
}

impl Client {
    /// Starts the reader and the writer of a connection.
    fn new(socket: TcpStream) -> Self {
        let (read_half, write_half) = socket.into_split();
        let shared = Arc::<Mutex<Shared>>::default();
        tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let ended = read_answers(read_half, &shared).await;
                close(&shared);
                ended
            }
        });
        tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let ended = write_calls(write_half, &shared).await;
                close(&shared);
                ended
            }
        });
        Self { shared }
    }

    async fn call(&self, body: &[u8]) -> Result<Vec<u8>, BoxError> {
        let (sender, receiver) = oneshot::channel();
        let writer = {
            let mut shared = lock(&self.shared);
            if shared.closed {
                return Err("the connection is closed".into());
            }
            let id = shared.waiting.put(sender);
            wire::put_header(&mut shared.out, id, body.len());
            shared.out.extend_from_slice(body);
            shared.writer.take()
        };
        if let Some(writer) = writer {
            writer.wake();
        }
        Ok(receiver.await?)
    }
}

/// Fails the calls that wait, and all to come.
fn close(shared: &Mutex<Shared>) {
    let (_waiting, writer) = {
        let mut shared = lock(shared);
        shared.closed = true;
        (std::mem::take(&mut shared.waiting), shared.writer.take())
    };
    if let Some(writer) = writer {
        writer.wake();
    }
}

async fn read_answers(mut socket: OwnedReadHalf, shared: &Mutex<Shared>) -> io::Result<()> {
    let mut received = ReadBuffer::new();
    let mut answered = Vec::new();
    while received.read_from(&mut socket).await? {
        {
            let mut shared = lock(shared);
            while let Some(frame) = received.next_frame()? {
                if let Some(sender) = shared.waiting.take(frame.id) {
                    answered.push((sender, frame.body.to_vec()));
                }
            }
        }
        for (sender, answer) in answered.drain(..) {
            // A caller that has gone away wants no answer.
            let _gone = sender.send(answer);
        }
    }
    Ok(())
}

async fn write_calls(mut socket: OwnedWriteHalf, shared: &Mutex<Shared>) -> io::Result<()> {
    let mut calls = Vec::new();
    loop {
        let open = poll_fn(|cx| {
            let mut shared = lock(shared);
            if shared.closed {
                return Poll::Ready(false);
            }
            if shared.out.is_empty() {
                shared.writer = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(true)
        })
        .await;
        if !open {
            return Ok(());
        }
        step_aside().await;
        std::mem::swap(&mut calls, &mut lock(shared).out);
        socket.write_all(&calls).await?;
        calls.clear();
    }
}

/// Lets the callers that are ready to run add their frames before the writer takes them.
///
/// Without it tokio runs the writer right after the caller that woke it, and batches fall apart: a
/// quarter of the calls on 16 connections. `tokio::task::yield_now` serves as well but also waits
/// for a turn of the event loop: up to a tenth slower on one connection.
async fn step_aside() {
    let mut stepped = false;
    poll_fn(|cx| {
        if stepped {
            return Poll::Ready(());
        }
        stepped = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The calls that wait for an answer, by the id they were given on the wire.
#[derive(Debug, Default)]
struct Places {
    waiting: Vec<Option<oneshot::Sender<Vec<u8>>>>,
    free: Vec<usize>,
}

impl Places {
    fn put(&mut self, sender: oneshot::Sender<Vec<u8>>) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        self.waiting[place] = Some(sender);
        place as u64
    }

    fn take(&mut self, id: u64) -> Option<oneshot::Sender<Vec<u8>>> {
        let place = usize::try_from(id).ok()?;
        let sender = self.waiting.get_mut(place)?.take()?;
        self.free.push(place);
        Some(sender)
    }
}
