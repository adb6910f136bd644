//! A service with a method for each way that a call can go, and a gate that holds calls up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use rpc_codec::CodecId;
use serde::Serialize;
use sluicegate::{
    Bytes, Context, Metadata, Status,
    client::Method,
    server::{MethodOptions, Service, ServiceMethods},
};
use tokio::{
    sync::watch,
    task::yield_now,
    time::{sleep, timeout},
};

use crate::{script::Script, shapes::Tree, streams};

pub(crate) const SERVICE: &str = "fuzz.Probe";

macro_rules! methods {
    ($($constant:ident $name:literal)*) => {
        $(pub(crate) const $constant: Method = Method::new(SERVICE, $name);)*
    };
}

methods! { ECHO "echo" TREE "tree" SLEEP "sleep" GATE "gate" HOLD "hold" WATCH "watch" LARGE "large" FAIL "fail" BYTES "bytes" }
methods! { ECHO_SPAWNED "echo_spawned" SLEEP_SPAWNED "sleep_spawned" GATE_SPAWNED "gate_spawned" }
methods! { HOLD_SPAWNED "hold_spawned" LARGE_SPAWNED "large_spawned" FAIL_SPAWNED "fail_spawned" }

/// The service; clones are the same. It never panics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    running: Arc<AtomicUsize>,
    gate: watch::Sender<bool>,
}

/// A future of the service that lives.
pub(crate) struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Probe {
    /// Futures of the service, and holds of its calls, that live now.
    pub(crate) fn running(&self) -> usize {
        self.running.load(SeqCst)
    }

    /// Lets the calls of `gate`, and what `hold` left behind, end or wait.
    pub(crate) fn set_gate(&self, open: bool) {
        self.gate.send_replace(open);
    }

    pub(crate) fn run(&self) -> Running {
        self.running.fetch_add(1, SeqCst);
        Running(Arc::clone(&self.running))
    }

    pub(crate) async fn pass_gate(&self) {
        let _ = self.gate.subscribe().wait_for(|open| *open).await;
    }

    async fn echo(self, _: Context, (text,): (String,)) -> Result<String, Status> {
        let _running = self.run();
        Ok(text)
    }

    async fn tree(self, _: Context, (tree, copies): (Tree, u8)) -> Result<Vec<Tree>, Status> {
        let _running = self.run();
        yield_now().await;
        Ok(vec![tree; usize::from(copies % 4)])
    }

    async fn sleep(self, _: Context, (ms,): (u16,)) -> Result<u16, Status> {
        let _running = self.run();
        sleep(Duration::from_millis(ms.into())).await;
        Ok(ms)
    }

    async fn gate(self, _: Context, (number,): (u64,)) -> Result<u64, Status> {
        let _running = self.run();
        self.pass_gate().await;
        Ok(number)
    }

    /// Answers at once; what it leaves behind holds the call's slot until the gate opens.
    async fn hold(self, context: Context, (): ()) -> Result<(), Status> {
        let (hold, probe, running) = (context.hold(), self.clone(), self.run());
        tokio::spawn(async move {
            let _running = running;
            probe.pass_gate().await;
            drop(hold);
        });
        Ok(())
    }

    /// Waits for the gate; what it leaves behind waits a while for the call to be cancelled.
    async fn watch(self, context: Context, (): ()) -> Result<(Option<u64>, bool), Status> {
        let (_running, running) = (self.run(), self.run());
        let left = context.remaining().map(|left| left.as_micros() as u64);
        let traced = context.trace_id().is_some();
        let watched = context.clone();
        tokio::spawn(async move {
            let _running = running;
            let _ = timeout(Duration::from_secs(60), watched.cancelled()).await;
        });
        self.pass_gate().await;
        let is_current = Context::current().is_some_and(|current| current.call_id() == context.call_id());
        assert!(is_current && !context.is_cancelled(), "a call that runs is the current one");
        Ok((left, traced))
    }

    async fn large(self, _: Context, (len,): (u16,)) -> Result<String, Status> {
        let _running = self.run();
        Ok("x".repeat(len.into()))
    }

    async fn fail(self, _: Context, (code, text): (u8, String)) -> Result<(), Status> {
        let _running = self.run();
        let mut metadata = Metadata::new();
        metadata.insert("shelf", &text).map_err(|_| Status::internal("a short pair"))?;
        Err(Status::new(sluicegate::StatusCode::from_wire(code), text)
            .with_retry_delay(Duration::from_millis(code.into()))
            .with_detail("fuzz/detail", [code])
            .with_metadata(metadata))
    }
}

impl Service for Probe {
    fn name(&self) -> &str {
        SERVICE
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        macro_rules! both {
            ($($name:ident)*) => {
                $({
                    let probe = self.clone();
                    let handler = move |context: &Context, args| probe.clone().$name(context.clone(), args);
                    methods.unary(stringify!($name), MethodOptions::default(), handler.clone());
                    methods.unary(concat!(stringify!($name), "_spawned"), MethodOptions::default().spawn(true), handler);
                })*
            };
        }
        both!(echo tree sleep gate hold watch large fail);
        streams::register(&self, methods);
        methods.unary_bytes("bytes", MethodOptions::default(), move |_: &Context, body: Bytes| {
            let running = self.run();
            async move {
                let _running = running;
                Ok(body)
            }
        });
    }
}

/// A method of [`Probe`], and a body for it in the codec that it takes.
pub(crate) fn call(script: &mut Script<'_>) -> (Method, CodecId, Vec<u8>) {
    let codec = script.pick(&[CodecId::BINCODE, CodecId::JSON]);
    let (method, body) = match script.byte() % 17 {
        0 => (ECHO, encode(codec, &(script.text(),))),
        1 => (ECHO_SPAWNED, encode(codec, &(script.text(),))),
        2 => (SLEEP, encode(codec, &(script.u16(),))),
        3 => (SLEEP_SPAWNED, encode(codec, &(script.u16(),))),
        4 => (GATE, encode(codec, &(script.u64(),))),
        5 => (GATE_SPAWNED, encode(codec, &(script.u64(),))),
        6 => (HOLD, encode(codec, &())),
        7 => (HOLD_SPAWNED, encode(codec, &())),
        8 => (LARGE, encode(codec, &(script.u16(),))),
        9 => (LARGE_SPAWNED, encode(codec, &(script.u16(),))),
        10 => (FAIL, encode(codec, &(script.byte(), script.text()))),
        11 => (FAIL_SPAWNED, encode(codec, &(script.byte(), script.text()))),
        12 => return (BYTES, CodecId::BYTES, script.bytes().to_vec()),
        13 => return (BYTES, CodecId::BYTES, vec![7; usize::from(script.u16())]),
        14 => (WATCH, encode(codec, &())),
        15 => (TREE, script.bytes().to_vec()),
        _ => (ECHO, script.bytes().to_vec()),
    };
    (method, codec, body)
}

pub(crate) fn encode<T: Serialize>(codec: CodecId, args: &T) -> Vec<u8> {
    let mut body = Vec::new();
    codec.encode(args, &mut body).expect("it can be encoded");
    body
}
