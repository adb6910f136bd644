//! `raw-spawn` and `raw-spawn-co`: what a task per call costs, and what gathering answers saves.
//!
//! The frames and the client are those of `raw-mux`. The server hands every call to a task, whose
//! answer reaches the connection's writer through a channel. In `raw-spawn` each answer is written on
//! its own; in `raw-spawn-co` the writer yields once before it writes all that has come together.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;

use bench_kit::harness::{self, ServeJob};
use bench_kit::workload::wait_once;
use bench_kit::{BoxError, Stack};

use crate::stacks::raw_mux;
use crate::wire::{self, ReadBuffer};

/// One write for every answer.
pub(crate) const ALONE: Stack = Stack {
    name: "raw-spawn",
    about: "one spawned task per call, each answer written alone",
    serve: |job| Box::pin(serve(job, Writing::Alone)),
    load: |job| Box::pin(raw_mux::load(job)),
};

/// One write for the answers of a scheduling turn.
pub(crate) const TOGETHER: Stack = Stack {
    name: "raw-spawn-co",
    about: "the same, answers gathered for one scheduling turn",
    serve: |job| Box::pin(serve(job, Writing::Together)),
    load: |job| Box::pin(raw_mux::load(job)),
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Writing {
    Alone,
    Together,
}

/// A whole frame, and nothing beside it.
type Answer = Vec<u8>;

async fn serve(job: ServeJob, writing: Writing) -> Result<(), BoxError> {
    let waits = job.workload.waits_once();
    let listener = harness::listen(&job).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(connection(socket, writing, waits));
    }
}

async fn connection(socket: TcpStream, writing: Writing, waits: bool) -> io::Result<()> {
    let (mut read_half, write_half) = socket.into_split();
    let (answers, queue) = mpsc::unbounded_channel();
    tokio::spawn(write_answers(write_half, queue, writing));
    let mut received = ReadBuffer::new();
    while received.read_from(&mut read_half).await? {
        while let Some(frame) = received.next_frame()? {
            let (id, body, answers) = (frame.id, frame.body.to_vec(), answers.clone());
            tokio::spawn(async move {
                wait_once(waits).await;
                let mut answer = Answer::with_capacity(body.len() + wire::HEADER_LEN);
                wire::put_header(&mut answer, id, body.len());
                answer.extend_from_slice(&body);
                // The writer is gone if the connection is, and then nobody wants the answer.
                let _gone = answers.send(answer);
            });
        }
    }
    Ok(())
}

async fn write_answers(
    mut socket: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<Answer>,
    writing: Writing,
) -> io::Result<()> {
    let mut together = Vec::new();
    while let Some(answer) = queue.recv().await {
        if writing == Writing::Alone {
            socket.write_all(&answer).await?;
            continue;
        }
        tokio::task::yield_now().await;
        together.extend_from_slice(&answer);
        while let Ok(answer) = queue.try_recv() {
            together.extend_from_slice(&answer);
        }
        socket.write_all(&together).await?;
        together.clear();
    }
    Ok(())
}
