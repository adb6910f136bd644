//! A client whose server follows a script: whatever it says, reads, leaves out or cuts off.
//!
//! - The client sends whole frames of its own kinds, and its ids increase. Its items were paid for, its credit is
//!   for items, and nothing of a call comes behind its end.
//! - Nothing panics, and every call ends once the server is gone.
//! - Then no call is counted, and once the client is dropped no task is left.

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use rpc_codec::{CodecId, Frame, Hello};
use rpc_core::CallId;
use sluicegate::{Bytes, CallError, Client, StatusCode};
use tokio::{
    io::DuplexStream,
    sync::mpsc,
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

use crate::{
    flow::Flows,
    frame, listener,
    pipe::{MAX_FRAME, PATIENCE, Pipe, Reader},
    scene::{self, MAX_END, Scene, all_tasks_end},
    script::Script,
    service,
    shapes::Tree,
};

pub(crate) fn check(data: &[u8]) {
    scene::play::<Stage>(data);
}

/// A client and its server.
struct Stage {
    client: Client,
    /// Whether nobody can connect.
    down: Arc<AtomicBool>,
    connections: mpsc::UnboundedReceiver<DuplexStream>,
    server: Option<Pipe<Requests>>,
    calls: Vec<JoinHandle<Result<(), CallError>>>,
}

impl Scene for Stage {
    fn new(script: &mut Script<'_>) -> Self {
        let settings = script.byte();
        let pipe = if settings & 1 != 0 { 100 } else { 64 * 1024 };
        let (connected, connections) = mpsc::unbounded_channel();
        let down = Arc::new(AtomicBool::new(false));
        let is_down = Arc::clone(&down);
        let mut builder = Client::with_connector("the scripted server", move || {
            let (connected, is_down) = (connected.clone(), Arc::clone(&is_down));
            async move {
                if is_down.load(SeqCst) {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                let (ours, theirs) = tokio::io::duplex(pipe);
                // Nobody listens any more once the script has ended.
                let _ = connected.send(theirs);
                Ok(ours)
            }
        });
        if settings & 2 != 0 {
            builder = builder.timeout(Duration::from_secs(1));
        }
        if settings & 4 != 0 {
            builder = builder.codec(CodecId::JSON);
        }
        if settings & 8 != 0 {
            builder = builder.backoff(Duration::from_millis(1), Duration::from_millis(1));
        }
        if settings & 16 != 0 {
            builder = builder.stream_window(1_000);
        }
        let client = builder.max_frame(MAX_FRAME).build();
        Self { client, down, connections, server: None, calls: Vec::new() }
    }

    async fn step(&mut self, script: &mut Script<'_>) {
        if let Ok(io) = self.connections.try_recv() {
            self.server = Some(Pipe::new(io, Requests::default()));
        }
        match script.byte() & 0x1f {
            0..=3 if self.calls.len() < MAX_CALLS => self.call(script),
            26 | 27 if self.calls.len() < MAX_CALLS => self.calls.push(listener::call(&self.client, script)),
            4 => {
                let index = usize::from(script.byte());
                if let Some(call) = self.calls.get(index) {
                    call.abort();
                }
            }
            5 => sleep(Duration::from_millis(script.byte().into())).await,
            6 => sleep(Duration::from_millis(script.u16().into())).await,
            7 => yield_now().await,
            8 => self.down.store(script.byte() & 1 != 0, SeqCst),
            9 => self.client.close(),
            action => {
                if let Some(server) = &mut self.server {
                    server.step(action, script).await;
                }
            }
        }
    }

    /// The server is gone for good, and every call ends.
    async fn end(mut self) {
        self.down.store(true, SeqCst);
        if let Some(mut server) = self.server.take() {
            server.read(usize::MAX, PATIENCE).await;
        }
        drop(self.connections);
        for call in self.calls {
            match timeout(MAX_END, call).await {
                Ok(Err(error)) if error.is_panic() => panic!("a call panicked"),
                Ok(Ok(Err(error))) => check_error(&error),
                Ok(_) => {}
                Err(_) => panic!("a call does not end: {:?}", self.client.snapshot()),
            }
        }
        assert_eq!(self.client.snapshot().calls, 0, "{:?}", self.client.snapshot());
        drop(self.client);
        assert!(all_tasks_end().await, "a task lives on");
    }
}

impl Stage {
    fn call(&mut self, script: &mut Script<'_>) {
        let timeouts = [None, Some(Duration::from_millis(5)), Some(Duration::from_secs(1)), Some(Duration::ZERO)];
        let (kind, limit) = (script.byte(), script.pick(&timeouts));
        macro_rules! spawn {
            ($call:expr) => {{
                let mut call = $call;
                if let Some(limit) = limit {
                    call = call.timeout(limit);
                }
                if kind & 0x80 != 0 {
                    call = call.metadata("tenant", script.bytes());
                }
                if kind & 0x40 != 0 {
                    call = call.priority(script.byte());
                    tokio::spawn(async move { call.response().await.map(drop) })
                } else {
                    tokio::spawn(async move { call.await.map(drop) })
                }
            }};
        }
        self.calls.push(match kind & 7 {
            0 => spawn!(self.client.call::<_, String>(service::ECHO, (script.text(),))),
            1 => spawn!(self.client.call::<_, u64>(service::GATE, (script.u64(),))),
            2 => spawn!(self.client.call::<_, ()>(service::HOLD, ())),
            3 => spawn!(self.client.call_bytes(service::BYTES, Bytes::copy_from_slice(script.bytes()))),
            4 => spawn!(self.client.call_bytes(service::BYTES, vec![7; usize::from(script.u16())].into())),
            5 => spawn!(self.client.call::<_, Vec<Tree>>(service::TREE, (Tree::Leaf(script.u64()), 1_u8))),
            6 => spawn!(self.client.call::<_, ()>(service::FAIL, (script.byte(), script.text()))),
            _ => spawn!(self.client.call::<_, String>(service::LARGE, (script.u16(),))),
        });
    }
}

/// An error says what it is, and nothing that contradicts itself.
fn check_error(error: &CallError) {
    assert!(!error.to_string().is_empty(), "an error has words");
    assert_ne!(error.code(), StatusCode::Ok, "{error:?}");
    match error.status() {
        Some(status) => assert_eq!((status.executed(), status.retry_delay()), (error.executed(), error.retry_delay())),
        None => assert!(error.source().is_none_or(|source| !source.to_string().is_empty()), "{error:?}"),
    }
}

impl Pipe<Requests> {
    async fn step(&mut self, action: u8, script: &mut Script<'_>) {
        let frame = match action {
            10 | 11 => frame::hello(script),
            12..=14 => {
                let (id, body) = (self.reader.asked(script), script.bytes());
                frame::response(script, id, body)
            }
            15 | 16 => {
                let id = self.reader.asked(script);
                frame::status(script, id)
            }
            17 => {
                let id = self.reader.asked(script);
                frame::control(script, id)
            }
            18 => {
                let id = self.reader.asked(script);
                frame::any(script, id)
            }
            25 => {
                let id = self.reader.asked(script);
                frame::cont(script, id)
            }
            28 | 29 => {
                let (id, codec) = (self.reader.asked(script), script.pick(&[CodecId::BINCODE, CodecId::JSON]));
                frame::item(script, id, codec)
            }
            30 => {
                let id = self.reader.asked(script);
                frame::credit(script, id)
            }
            31 => frame::end(self.reader.asked(script)),
            19 => return self.write(script.bytes()).await,
            20 => return self.read(script.byte().into(), PATIENCE).await,
            21 | 22 => return self.read(usize::MAX, PATIENCE).await,
            23 => return self.end().await,
            24 => return self.cut(),
            _ => return,
        };
        let mut frame = frame;
        frame::spoil(script, &mut frame);
        self.write(&frame).await;
    }
}

/// Watches what a client says, and keeps the ids of its calls.
#[derive(Debug)]
struct Requests {
    ids: Vec<CallId>,
    flows: Flows,
}

impl Default for Requests {
    fn default() -> Self {
        Self { ids: Vec::new(), flows: Flows::new(Hello::default().stream_window) }
    }
}

impl Requests {
    /// One of the calls that have been read, the newest for zero.
    fn asked(&self, script: &mut Script<'_>) -> CallId {
        let back = usize::from(script.byte());
        self.ids.iter().rev().nth(back).copied().unwrap_or(CallId::new(back as u64, 0))
    }
}

impl Reader for Requests {
    fn max_frame(&self) -> u32 {
        // A client may have sent its first calls before it knew what the server takes.
        128 * 1024
    }

    fn wrote_hello(&mut self, hello: &Hello) {
        // Narrower ones do not count.
        self.flows.set_window(hello.stream_window.max(Hello::default().stream_window));
    }

    fn wrote(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Item { id, len, .. } => self.flows.send(id, len),
            Frame::Credit { id, bytes } => self.flows.give(id, bytes),
            _ => {}
        }
    }

    fn frame(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Request(request) => {
                request.metadata().expect("the metadata is well formed");
                let last = self.ids.last().copied().unwrap_or(CallId::CONNECTION);
                assert!(last < request.id, "{} comes behind {last}", request.id);
                self.ids.push(request.id);
                self.flows.asks(request.id, request.kind);
                self.flows.body(request.id, request.body_len, request.body, request.more);
            }
            Frame::Cont { id, more, part } => self.flows.part(id, part, more),
            Frame::Item { id, more, len, part } => self.flows.item(id, len, part, more),
            Frame::End { id } => self.flows.end(id),
            Frame::Credit { id, bytes } => self.flows.credit(id, bytes),
            Frame::Cancel { id } => self.flows.cancel(id),
            Frame::Ping(_) | Frame::Pong(_) | Frame::GoAway(_) => {}
            other => panic!("a client does not say {other:?}"),
        }
    }
}

const MAX_CALLS: usize = 100;
