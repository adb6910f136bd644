//! A server whose clients follow a script: whatever they say, read, leave out or cut off.
//!
//! - The server sends whole frames of its own kinds, none longer than its client takes, and never two
//!   answers to one call, nor a part of one behind its end. Its items were paid for, and its credit is for items.
//! - Nothing panics.
//! - Once the clients are gone, so are the connections, calls, permits, buffers and tasks.

use std::time::Duration;

use rpc_codec::{CodecId, Frame, Hello};
use rpc_core::{CallId, StatusCode};
use sluicegate::{
    Server,
    limit::Rate,
    server::{ServerHandle, Snapshot},
};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

use crate::{
    flow::Flows,
    frame,
    pipe::{MAX_FRAME, PATIENCE, Pipe, Reader},
    porter::Porter,
    scene::{self, MAX_END, Scene, all_tasks_end},
    script::Script,
    service::{self, Probe},
    streams,
};

pub(crate) fn check(data: &[u8]) {
    scene::play::<Stage>(data);
}

/// A server and its clients.
struct Stage {
    server: Server,
    handle: ServerHandle,
    probe: Probe,
    clients: Vec<Client>,
    pipe: usize,
}

struct Client {
    pipe: Pipe<Answers>,
    next_sequence: u64,
    serving: JoinHandle<()>,
}

impl Scene for Stage {
    fn new(script: &mut Script<'_>) -> Self {
        let probe = Probe::default();
        let mut builder = Server::builder().service(probe.clone());
        let settings = script.byte();
        if settings & 1 != 0 {
            builder = builder.max_concurrent_calls(2);
        }
        if settings & 2 != 0 {
            builder = builder.max_concurrent_calls_per_connection(1);
        }
        if settings & 4 != 0 {
            builder = builder.rate(Rate::per_second(10.0));
        }
        if settings & 8 != 0 {
            builder = builder.rate_per_connection(Rate::per_second(5.0));
        }
        if settings & 16 != 0 {
            builder = builder.spawn_calls(true);
        }
        if settings & 32 != 0 {
            builder = builder.write_high_water(64).max_message(1_000);
        }
        if settings & 64 != 0 {
            builder = builder.max_connections(1);
        }
        let (porters, gate) = (script.byte(), probe.clone());
        builder = builder.pipeline(move |pipeline, _| {
            if porters & 1 != 0 {
                pipeline.add_first("first porter", Porter(gate.clone()));
            }
            if porters & 2 != 0 {
                pipeline.add_last("last porter", Porter(gate.clone()));
            }
        });
        let pipe = if settings & 128 != 0 { 100 } else { 64 * 1024 };
        let server = builder.max_frame(MAX_FRAME).build().expect("the settings are good");
        let mut scene = Self { handle: server.handle(), server, probe, clients: Vec::new(), pipe };
        scene.connect();
        scene
    }

    async fn step(&mut self, script: &mut Script<'_>) {
        let action = script.byte();
        // The high bits choose among the clients, the newest for zero.
        let newest = self.clients.len() - 1;
        let client = &mut self.clients[newest - usize::from(action >> 5) % (newest + 1)];
        match action & 0x1f {
            0 => client.pipe.write(script.bytes()).await,
            1 => {
                let hello = frame::hello(script);
                client.write(script, hello).await;
            }
            2..=4 => {
                let (method, codec, body) = service::call(script);
                let id = client.open();
                let request = frame::request(script, id, method.id(), codec, &body);
                client.write(script, request).await;
            }
            5 => {
                let id = client.opened(script);
                let control = frame::control(script, id);
                client.write(script, control).await;
            }
            6 => {
                let id = client.opened(script);
                let any = frame::any(script, id);
                client.write(script, any).await;
            }
            7 => client.next_sequence = client.next_sequence.saturating_add(script.u64()).min(CallId::MAX_SEQUENCE),
            8 => client.pipe.read(script.u16().into(), PATIENCE).await,
            9 => client.pipe.read(usize::MAX, PATIENCE).await,
            10 => sleep(Duration::from_millis(script.byte().into())).await,
            11 => sleep(Duration::from_millis(script.u16().into())).await,
            12 => yield_now().await,
            13 => self.probe.set_gate(script.byte() & 1 != 0),
            14 => client.pipe.end().await,
            15 => client.pipe.cut(),
            16 if newest + 1 < MAX_CLIENTS => self.connect(),
            17 => self.handle.shutdown(),
            18 => self.handle.stop(),
            19 => {
                let max = script.pick(&[None, Some(1), Some(3)]);
                self.handle.set_max_concurrent_calls(max).expect("it is not zero");
            }
            20 => {
                // An error if the server has no such limit.
                let _ = self.handle.set_rate(Rate::per_second(script.pick(&[1.0, 1_000.0])));
            }
            21 => client.serving.abort(),
            22 => {
                let handle = self.handle.clone();
                tokio::spawn(async move { handle.drain().await });
            }
            23 => {
                let id = client.opened(script);
                let cont = frame::cont(script, id);
                client.write(script, cont).await;
            }
            24..=26 => {
                let (method, kind, codec, body) = streams::call(script);
                let id = client.open();
                let mut request = frame::request(script, id, method.id(), codec, &body);
                frame::mark_kind(script, &mut request, kind);
                client.write(script, request).await;
            }
            27 | 28 => {
                let (id, codec) = (client.opened(script), script.pick(&[CodecId::BINCODE, CodecId::JSON]));
                let item = frame::item(script, id, codec);
                client.write(script, item).await;
            }
            29 => {
                let id = client.opened(script);
                client.write(script, frame::end(id)).await;
            }
            30 => {
                let id = client.opened(script);
                let credit = frame::credit(script, id);
                client.write(script, credit).await;
            }
            _ => {}
        }
    }

    /// Everybody leaves, and everything is back.
    async fn end(mut self) {
        self.probe.set_gate(true);
        for client in &mut self.clients {
            client.pipe.read(usize::MAX, PATIENCE).await;
            client.pipe.cut();
        }
        for client in self.clients {
            match timeout(MAX_END, client.serving).await {
                Ok(Err(error)) if error.is_panic() => panic!("a connection panicked"),
                Ok(_) => {}
                Err(_) => panic!("a connection does not end: {:#?}", self.handle.snapshot()),
            }
        }
        let ended = all_tasks_end().await;
        let snapshot = self.handle.snapshot();
        assert!(ended, "a task lives on: {snapshot:#?}");
        assert!(is_idle(&snapshot), "something is left: {snapshot:#?}");
        assert_eq!(snapshot.panics, 0, "something panicked");
        assert_eq!(self.probe.running(), 0, "a future of the service lives on");
    }
}

impl Stage {
    fn connect(&mut self) {
        let (ours, theirs) = tokio::io::duplex(self.pipe);
        let server = self.server.clone();
        let serving = tokio::spawn(async move { server.serve_connection(theirs, None).await });
        self.clients.push(Client { pipe: Pipe::new(ours, Answers::default()), next_sequence: 1, serving });
    }
}

impl Client {
    /// The id of a call to be opened.
    fn open(&mut self) -> CallId {
        let id = CallId::new(self.next_sequence, 0);
        self.next_sequence = self.next_sequence.saturating_add(1).min(CallId::MAX_SEQUENCE);
        id
    }

    /// The id of one of the last calls.
    fn opened(&self, script: &mut Script<'_>) -> CallId {
        CallId::new(self.next_sequence.saturating_sub(script.byte().into()), 0)
    }

    async fn write(&mut self, script: &mut Script<'_>, mut frame: Vec<u8>) {
        frame::spoil(script, &mut frame);
        self.pipe.write(&frame).await;
    }
}

/// Watches what a server says to one client.
#[derive(Debug, Default)]
struct Answers {
    /// The client's, once it has said it.
    max_frame: Option<u32>,
    flows: Flows,
}

impl Reader for Answers {
    fn max_frame(&self) -> u32 {
        self.max_frame.unwrap_or(Hello::default().max_frame)
    }

    fn wrote_hello(&mut self, hello: &Hello) {
        self.max_frame = Some(hello.max_frame);
        self.flows.set_window(hello.stream_window);
    }

    fn wrote(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Request(request) => self.flows.is_asked(request.id, request.kind),
            Frame::Item { id, len, .. } => self.flows.send(id, len),
            Frame::Credit { id, bytes } => self.flows.give(id, bytes),
            _ => {}
        }
    }

    fn frame(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Response(response) => {
                let _ = response.status().expect("the status is well formed");
                let failed = response.code != StatusCode::Ok;
                self.flows.answer(response.id, failed, response.body_len, response.body, response.more);
            }
            Frame::Cont { id, more, part } => self.flows.part(id, part, more),
            Frame::Item { id, more, len, part } => self.flows.item(id, len, part, more),
            Frame::Credit { id, bytes } => self.flows.credit(id, bytes),
            Frame::Ping(_) | Frame::Pong(_) | Frame::GoAway(_) => {}
            other => panic!("a server does not say {other:?}"),
        }
    }
}

fn is_idle(snapshot: &Snapshot) -> bool {
    let calls = &snapshot.calls;
    let no_call = calls.held == 0 && calls.acquired == calls.released && snapshot.calls_parked == 0;
    let no_stream = snapshot.streams == 0 && snapshot.stream_bytes == 0;
    no_call && no_stream && snapshot.connections == 0 && snapshot.buffered_bytes == 0
}

const MAX_CLIENTS: usize = 3;
