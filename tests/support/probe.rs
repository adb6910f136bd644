//! A service whose methods show one behaviour each, and counters that watch them.

use std::{
    panic,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{self, Poll},
    time::Duration,
};

use futures::poll;
use serde::{Serialize, Serializer};
use sluicegate::{
    Bytes, Client, Context, Status,
    server::{MethodOptions, Service, ServiceMethods},
};
use tokio::{
    sync::watch,
    task::yield_now,
    time::{advance, sleep},
};

/// The methods of [`Probe`] as a client names them.
pub(crate) mod method {
    use sluicegate::client::Method;

    macro_rules! methods {
        ($($constant:ident $name:literal,)*) => {
            $(pub(crate) const $constant: Method = Method::new(super::SERVICE, $name);)*

            /// All of them, also the one that is not.
            pub(crate) const ALL: &[Method] = &[$($constant),*];
        };
    }

    methods! {
        ECHO "echo", ECHO_SPAWNED "echo_spawned",
        SLEEP "sleep", SLEEP_SPAWNED "sleep_spawned",
        GATE "gate", GATE_SPAWNED "gate_spawned",
        NONCE "nonce", NONCE_SPAWNED "nonce_spawned",
        BUDGET "budget",
        SPIN "spin", BLOCK "block",
        FAIL "fail", FAIL_SPAWNED "fail_spawned",
        PANIC_AT_ONCE "panic_at_once", PANIC_AT_ONCE_SPAWNED "panic_at_once_spawned",
        PANIC_INLINE "panic_inline", PANIC_INLINE_SPAWNED "panic_inline_spawned",
        PANIC_LATER "panic_later", PANIC_LATER_SPAWNED "panic_later_spawned",
        PANIC_IN_DROP "panic_in_drop", PANIC_IN_DROP_SPAWNED "panic_in_drop_spawned",
        PANIC_WHEN_CANCELLED "panic_when_cancelled", PANIC_WHEN_CANCELLED_SPAWNED "panic_when_cancelled_spawned",
        PANIC_IN_SERIALIZE "panic_in_serialize", PANIC_IN_SERIALIZE_SPAWNED "panic_in_serialize_spawned",
        BAD_SERIALIZE "bad_serialize", BAD_SERIALIZE_SPAWNED "bad_serialize_spawned",
        LARGE "large", LARGE_SPAWNED "large_spawned",
        BYTES "bytes", BYTES_SPAWNED "bytes_spawned",
        CONTEXT "context", CONTEXT_SPAWNED "context_spawned",
        HOLD "hold", HOLD_SPAWNED "hold_spawned",
        HOLD_AND_WAIT "hold_and_wait", HOLD_AND_WAIT_SPAWNED "hold_and_wait_spawned",
        WATCHED "watched", WATCHED_SPAWNED "watched_spawned",
        NESTED "nested", NESTED_SPAWNED "nested_spawned",
        UNKNOWN "unknown",
    }
}

/// The name of the service on the wire.
pub(crate) const SERVICE: &str = "test.Probe";

/// The path of a method of [`Probe`], by its name.
pub(crate) fn path(name: &str) -> String {
    format!("{SERVICE}/{name}")
}

/// What a panicking method says. No peer may ever see it.
pub(crate) const PANIC_TEXT: &str = "secret of the service";

/// Keeps the panics that tests want out of the output: those that say [`PANIC_TEXT`], and those that
/// throw no text.
pub(crate) fn silence_wanted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let told = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.payload_as_str().is_some_and(|text| !text.contains(PANIC_TEXT)) {
                told(info);
            }
        }));
    });
}

/// What `context` and `nested` tell: time left in milliseconds, trace id, metadata `tenant`, and
/// whether [`Context::current`] was the call's own.
pub(crate) type Seen = (Option<u64>, Option<String>, Option<String>, bool);

/// Watches and steers the service; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Probe(Arc<Inner>);

#[derive(Default)]
struct Inner {
    started: AtomicUsize,
    finished: AtomicUsize,
    running: AtomicUsize,
    high_water: AtomicUsize,
    cancellations_seen: AtomicUsize,
    gate: watch::Sender<bool>,
    holds: watch::Sender<bool>,
    inner_client: Mutex<Option<Client>>,
}

impl Probe {
    /// Calls that reached the service.
    pub(crate) fn started(&self) -> usize {
        self.0.started.load(SeqCst)
    }

    /// Calls whose service ran to its end.
    pub(crate) fn finished(&self) -> usize {
        self.0.finished.load(SeqCst)
    }

    /// Futures of the service that live now.
    pub(crate) fn running(&self) -> usize {
        self.0.running.load(SeqCst)
    }

    /// The most futures of the service that ever lived at once.
    pub(crate) fn high_water(&self) -> usize {
        self.0.high_water.load(SeqCst)
    }

    /// Tasks of `watched` that were told that nobody waits any more.
    pub(crate) fn cancellations_seen(&self) -> usize {
        self.0.cancellations_seen.load(SeqCst)
    }

    /// Lets the calls of `gate`, `watched` and `hold_and_wait` end, those to come too.
    pub(crate) fn open_gate(&self) {
        self.0.gate.send_replace(true);
    }

    /// Makes calls of `gate` wait again.
    pub(crate) fn close_gate(&self) {
        self.0.gate.send_replace(false);
    }

    /// Drops the holds that `hold` and `hold_and_wait` took.
    pub(crate) fn drop_holds(&self) {
        self.0.holds.send_replace(true);
    }

    /// The client that `nested` makes its own call with.
    pub(crate) fn set_inner_client(&self, client: Client) {
        *self.0.inner_client.lock().unwrap() = Some(client);
    }

    /// Lets it go, so that its server may become idle.
    pub(crate) fn drop_inner_client(&self) {
        drop(self.0.inner_client.lock().unwrap().take());
    }

    fn run(&self) -> Running {
        self.0.started.fetch_add(1, SeqCst);
        let now = self.0.running.fetch_add(1, SeqCst) + 1;
        self.0.high_water.fetch_max(now, SeqCst);
        Running(self.clone())
    }

    async fn pass_gate(&self) {
        let mut gate = self.0.gate.subscribe();
        let _ = gate.wait_for(|open| *open).await;
    }

    fn keep_hold(&self, context: &Context) {
        let (hold, mut dropped) = (context.hold(), self.0.holds.subscribe());
        tokio::spawn(async move {
            let _ = dropped.wait_for(|dropped| *dropped).await;
            drop(hold);
        });
    }
}

/// One running call; dropped with its future.
struct Running(Probe);

impl Running {
    fn finish(self) {
        self.0.0.finished.fetch_add(1, SeqCst);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, SeqCst);
    }
}

/// Panics when it is dropped, unless the thread panics already.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("{PANIC_TEXT}");
        }
    }
}

/// A future that has its answer at once, and panics when it is dropped.
struct Grenade(#[allow(dead_code, reason = "goes off when dropped")] Bomb);

impl Future for Grenade {
    type Output = Result<String, Status>;

    fn poll(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok("an answer".to_owned()))
    }
}

/// A reply that cannot be encoded.
pub(crate) enum Unencodable {
    /// Says so.
    Fails,
    /// Panics.
    Panics,
}

impl Serialize for Unencodable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Something is in the buffer already when it goes wrong.
        use serde::ser::{Error, SerializeTuple};
        let mut tuple = serializer.serialize_tuple(2)?;
        tuple.serialize_element("half of a reply")?;
        match self {
            Self::Fails => Err(S::Error::custom("this value has no form")),
            Self::Panics => panic!("{PANIC_TEXT}"),
        }
    }
}

/// Panics, in a way that the compiler does not see through.
fn fail_loudly(running: &Running) {
    assert!(running.0.running() == usize::MAX, "{PANIC_TEXT}");
}

fn seen(context: &Context) -> Seen {
    let current = Context::current();
    let is_current = current.is_some_and(|current| current.call_id() == context.call_id());
    let left = context.remaining().map(|left| left.as_millis() as u64);
    let tenant = context.metadata().get_str("tenant").map(str::to_owned);
    (left, context.trace_id().map(str::to_owned), tenant, is_current)
}

impl Probe {
    async fn echo(self, _: Context, (text,): (String,)) -> Result<String, Status> {
        self.run().finish();
        Ok(text)
    }

    /// Waits so many milliseconds.
    async fn sleep(self, _: Context, (ms,): (u64,)) -> Result<u64, Status> {
        let running = self.run();
        sleep(Duration::from_millis(ms)).await;
        running.finish();
        Ok(ms)
    }

    /// Waits until the gate is open, then answers what it was asked.
    async fn gate(self, _: Context, (nonce,): (u64,)) -> Result<u64, Status> {
        let running = self.run();
        self.pass_gate().await;
        running.finish();
        Ok(nonce)
    }

    /// Is pending so many times, then answers what it was asked.
    async fn nonce(self, _: Context, (nonce, pending): (u64, u32)) -> Result<u64, Status> {
        let running = self.run();
        for _ in 0..pending {
            yield_now().await;
        }
        running.finish();
        Ok(nonce)
    }

    /// Spends so much of the task's cooperative budget, and is otherwise ready at once.
    async fn budget(self, _: Context, (nonce, units): (u64, u32)) -> Result<u64, Status> {
        let running = self.run();
        for _ in 0..units {
            tokio::task::coop::consume_budget().await;
        }
        running.finish();
        Ok(nonce)
    }

    /// Keeps its thread busy for so many microseconds.
    async fn spin(self, _: Context, (us,): (u64,)) -> Result<(), Status> {
        let (running, began) = (self.run(), std::time::Instant::now());
        while began.elapsed() < Duration::from_micros(us) {
            std::hint::spin_loop();
        }
        running.finish();
        Ok(())
    }

    /// Keeps its thread for so many milliseconds of virtual time.
    async fn block(self, _: Context, (ms,): (u64,)) -> Result<(), Status> {
        let running = self.run();
        let _ = poll!(pin!(advance(Duration::from_millis(ms))));
        running.finish();
        Ok(())
    }

    /// Fails with a status of its own.
    async fn fail(self, _: Context, (what,): (String,)) -> Result<(), Status> {
        self.run().finish();
        let mut metadata = sluicegate::Metadata::new();
        metadata.insert("shelf", "7").map_err(|_| Status::internal("a good pair"))?;
        Err(Status::not_found(format!("no {what}"))
            .with_retry_delay(Duration::from_millis(7))
            .with_detail("test/detail", *b"\x01\x02")
            .with_metadata(metadata))
    }

    async fn panic_inline(self, _: Context, (): ()) -> Result<(), Status> {
        fail_loudly(&self.run());
        Ok(())
    }

    async fn panic_later(self, _: Context, (): ()) -> Result<(), Status> {
        let running = self.run();
        yield_now().await;
        fail_loudly(&running);
        Ok(())
    }

    /// Waits for ever, and panics when it is cancelled.
    async fn panic_when_cancelled(self, _: Context, (): ()) -> Result<(), Status> {
        let (_running, _bomb) = (self.run(), Bomb);
        std::future::pending().await
    }

    async fn panic_in_serialize(self, _: Context, (): ()) -> Result<Unencodable, Status> {
        self.run().finish();
        Ok(Unencodable::Panics)
    }

    async fn bad_serialize(self, _: Context, (): ()) -> Result<Unencodable, Status> {
        self.run().finish();
        Ok(Unencodable::Fails)
    }

    /// Answers so many bytes.
    async fn large(self, _: Context, (len,): (u32,)) -> Result<String, Status> {
        self.run().finish();
        Ok("x".repeat(len as usize))
    }

    /// What it sees of its call after having been pending.
    async fn context(self, context: Context, (): ()) -> Result<Seen, Status> {
        let running = self.run();
        let before = seen(&context);
        yield_now().await;
        if seen(&context) != before {
            return Err(Status::internal("the context has changed"));
        }
        running.finish();
        Ok(before)
    }

    /// Answers at once, and leaves work behind that holds the call's slot.
    async fn hold(self, context: Context, (): ()) -> Result<(), Status> {
        self.keep_hold(&context);
        self.run().finish();
        Ok(())
    }

    /// Waits for the gate while work of it holds the call's slot.
    async fn hold_and_wait(self, context: Context, (): ()) -> Result<(), Status> {
        self.keep_hold(&context);
        let running = self.run();
        self.pass_gate().await;
        running.finish();
        Ok(())
    }

    /// Waits for the gate, and leaves a task that waits for the call to be cancelled.
    async fn watched(self, context: Context, (): ()) -> Result<(), Status> {
        let (running, probe) = (self.run(), self.clone());
        tokio::spawn(async move {
            context.cancelled().await;
            probe.0.cancellations_seen.fetch_add(1, SeqCst);
        });
        self.pass_gate().await;
        running.finish();
        Ok(())
    }

    /// What a call that this one makes sees.
    async fn nested(self, _: Context, (): ()) -> Result<Seen, Status> {
        let running = self.run();
        let client = self.0.inner_client.lock().unwrap().clone();
        let client = client.ok_or_else(|| Status::failed_precondition("no client"))?;
        let seen = client.call(method::CONTEXT, ()).await?;
        running.finish();
        Ok(seen)
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
        both!(echo sleep gate nonce fail panic_inline panic_later panic_when_cancelled);
        both!(panic_in_serialize bad_serialize large context hold hold_and_wait watched nested);
        let (spinner, blocker, budgeted) = (self.clone(), self.clone(), self.clone());
        let spin = move |context: &Context, args| spinner.clone().spin(context.clone(), args);
        methods.unary("spin", MethodOptions::default(), spin);
        let block = move |context: &Context, args| blocker.clone().block(context.clone(), args);
        methods.unary("block", MethodOptions::default(), block);
        let budget = move |context: &Context, args| budgeted.clone().budget(context.clone(), args);
        methods.unary("budget", MethodOptions::default(), budget);
        for (suffix, spawn) in [("", false), ("_spawned", true)] {
            let options = MethodOptions::default().spawn(spawn);
            let (probe, grenades, bytes) = (self.clone(), self.clone(), self.clone());
            methods.unary(&format!("panic_in_drop{suffix}"), options, move |_: &Context, (): ()| {
                grenades.run().finish();
                Grenade(Bomb)
            });
            methods.unary(&format!("panic_at_once{suffix}"), options, move |_: &Context, (): ()| {
                fail_loudly(&probe.run());
                async { Ok(()) }
            });
            methods.unary_bytes(&format!("bytes{suffix}"), options, move |_: &Context, body: Bytes| {
                bytes.run().finish();
                async move { Ok(body) }
            });
        }
    }
}
