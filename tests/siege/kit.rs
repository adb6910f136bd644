//! What a siege needs: a server in a process of its own, so that its memory and its time on a CPU are
//! its own, a polite client to be measured beside the others, and sockets from many addresses.
//!
//! The server's process is this test's binary once more. Lines on its input ask for its figures, or
//! tell it to shut down; it answers with lines.

use std::{
    collections::BTreeMap,
    env,
    fmt::{self, Write as _},
    fs,
    io::{BufRead, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use sluicegate::{
    Client, Context,
    client::Method,
    server::{MethodOptions, ServerBuilder, ServerHandle, Service, ServiceMethods},
};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::{self, Runtime},
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::support::{
    Harness, Probe,
    feed::{FeedService, Feeder},
    method,
};
use crate::{
    latency::{Latency, Stopwatch},
    machine::Machine,
};

/// Whether the sieges have their full sizes, which want an optimised build and some minutes.
pub(crate) use crate::support::shims::is_full;

/// One of two sizes.
pub(crate) fn size<T>(small: T, full: T) -> T {
    if is_full() { full } else { small }
}

/// Prints a figure beside its target, and holds the server to it in a siege of full size. The small
/// ones run unoptimised, beside other tests, and with too little of anything to be measured.
pub(crate) fn figure(what: &str, value: f64, unit: &str, at_most: f64) {
    println!("    {what}: {value:.2} {unit}, at most {at_most:.2}");
    assert!(!is_full() || value <= at_most, "{what}: {value} {unit} is more than {at_most}");
}

const MAX_RATIO: f64 = 2.0;

/// The variable that makes a process the server of a siege.
const SERVER: &str = "SLUICEGATE_TEST_SIEGE_SERVER";
const ADDRESS: &str = "SLUICEGATE_TEST_SIEGE_ADDRESS";

/// A server in a process of its own.
pub(crate) struct Server {
    child: Child,
    commands: ChildStdin,
    lines: mpsc::UnboundedReceiver<String>,
    siege: &'static str,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts the server of `siege`, by the test `child` that calls [`serve_if_child`].
    pub(crate) async fn start(siege: &'static str) -> Self {
        Self::start_at(siege, (Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// As [`Self::start`], on an address.
    pub(crate) async fn start_at(siege: &'static str, address: SocketAddr) -> Self {
        // Thousands of peers want as many descriptors as there may be.
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -n \"$(ulimit -Hn)\" && exec \"$0\" \"$@\""])
            .arg(env::current_exe().unwrap())
            .args([CHILD, "--exact", "--nocapture"])
            .envs([(SERVER, siege), (ADDRESS, &address.to_string())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let (send, lines) = mpsc::unbounded_channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            // Reads on when nobody listens any more: the child would not survive a closed pipe.
            for line in output.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut server = Self { child, commands, lines, siege, address };
        server.address = server.line("address ").await.parse().unwrap();
        server
    }

    /// Starts it anew where it was, after [`Self::shut_down`].
    pub(crate) async fn restart(self) -> (Self, Vec<u64>) {
        let (siege, address) = (self.siege, self.address);
        let counted = self.shut_down().await;
        (Self::start_at(siege, address).await, counted)
    }

    /// Shuts it down in peace and waits until it has ended; the calls that it counted.
    pub(crate) async fn shut_down(mut self) -> Vec<u64> {
        writeln!(self.commands, "drain").unwrap();
        let counted = self.line("counted").await;
        let ended = async { while self.lines.recv().await.is_some() {} };
        timeout(PATIENCE, ended).await.expect("the server's process does not end");
        assert!(self.child.wait().unwrap().success(), "it did not end well");
        counted.split_whitespace().map(|n| n.parse().unwrap()).collect()
    }

    /// Its figures at this moment.
    pub(crate) async fn figures(&mut self) -> Figures {
        writeln!(self.commands, "figures").unwrap();
        let line = self.line("figures").await;
        let pairs = line.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        Figures(pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect())
    }

    /// Waits until `condition` holds, and says how long that took.
    pub(crate) async fn until(&mut self, what: &str, condition: impl Fn(&Figures) -> bool) -> Duration {
        let began = Instant::now();
        loop {
            let figures = self.figures().await;
            if condition(&figures) {
                return began.elapsed();
            }
            assert!(began.elapsed() < PATIENCE, "it did not come to it that {what}: {figures:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until nobody is connected and nothing is left of anybody; how long that took.
    pub(crate) async fn until_idle(&mut self) -> Duration {
        self.until("nothing is left", Figures::is_idle).await
    }

    /// The rest of the next line that begins so.
    async fn line(&mut self, beginning: &str) -> String {
        let found = async {
            loop {
                let line = self.lines.recv().await.expect("the server lives");
                if let Some(rest) = line.strip_prefix(beginning) {
                    return rest.to_owned();
                }
            }
        };
        timeout(PATIENCE, found).await.expect("the server says nothing")
    }

    /// Has it give back the memory that is free.
    pub(crate) async fn trim(&mut self) {
        writeln!(self.commands, "trim").unwrap();
        self.line("trimmed").await;
    }

    /// Memory in MiB.
    pub(crate) fn memory(&self) -> f64 {
        self.status("VmRSS:")
    }

    /// The most memory it had since it was [forgotten](Self::forget_peak), in MiB.
    pub(crate) fn peak(&self) -> f64 {
        self.status("VmHWM:")
    }

    /// Lets the peak begin at what is in use.
    pub(crate) fn forget_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    fn status(&self, field: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next());
        kib.expect("Linux tells it").parse::<f64>().unwrap() / 1024.0
    }

    /// Seconds on a CPU so far, in user and system mode. Of each thread, since of a process Linux tells only the
    /// hundredths of a second in which it was seen running.
    pub(crate) fn cpu(&self) -> f64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok());
        let on_cpu = stats.map(|stat| stat.split(' ').next().unwrap().parse::<u64>().unwrap());
        on_cpu.sum::<u64>() as f64 / 1e9
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Longer than anything takes that does not take for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// A snapshot of the server's, by name. What is not named did not occur.
#[derive(Debug)]
pub(crate) struct Figures(BTreeMap<String, u64>);

impl Figures {
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Nobody is connected, every permit is back, and none too many.
    pub(crate) fn is_idle(&self) -> bool {
        self.of("idle") == 1 && self.of("running") == 0 && self.of("acquired") == self.of("released")
    }
}

/// The name of the test that is the server, in the child.
const CHILD: &str = "a_siege_has_a_server_in_a_process_of_its_own";

/// Serves what `configure` makes of the siege's name, if this process is a child. It ends when it is
/// told to, or when the parent has ended.
pub(crate) fn serve_if_child(configure: impl FnOnce(&str, ServerBuilder) -> ServerBuilder) {
    let (Ok(siege), Ok(address)) = (env::var(SERVER), env::var(ADDRESS)) else { return };
    let address = address.parse().unwrap();
    if is_full() {
        Standing::Server.take();
        // A machine in a machine may take 5 ms to clear a page of 2 MiB.
        rustix::thread::disable_transparent_huge_pages(true).unwrap();
    }
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if siege == BARE {
        return runtime.block_on(async { read_barely(listener(address)).await });
    }
    runtime.block_on(async {
        let (ledger, feed) = (Ledger::default(), FeedService::new(Feeder::default()));
        let harness = Harness::with(|builder| configure(&siege, builder.service(ledger.clone()).service(feed)));
        let bound = harness.server.listen(listener(address)).unwrap();
        // Behind whatever the test runner has written in front of it.
        println!("\naddress {}", bound.local_addr());
        let (handle, probe) = (harness.handle.clone(), harness.probe.clone());
        thread::spawn(move || obey(&handle, &probe));
        let drained = bound.serve().await;
        assert!(drained.cut.is_empty() && drained.stuck_connections == 0, "{drained:?}");
        assert!(harness.snapshot().is_idle(), "{:#?}", harness.snapshot());
        println!("\ncounted{}", ledger.calls().iter().fold(String::new(), |line, n| line + " " + &n.to_string()));
    });
}

/// The siege whose server is not ours: the least that can be done about peers, for comparison.
pub(crate) const BARE: &str = "bare";

/// Reads whatever comes, a task for each peer and a timer in each, and does nothing with it, until the parent kills
/// this process.
async fn read_barely(listener: TcpListener) {
    println!("\naddress {}", listener.local_addr().unwrap());
    loop {
        let (mut peer, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut bytes = vec![0; 512];
            while let Ok(Ok(1..)) = timeout(PATIENCE, peer.read(&mut bytes)).await {}
        });
    }
}

/// What the kernel takes of what nobody reads is bounded, both ways: a thousand stalled peers would have it hold
/// more than it has for all the connections of the machine.
fn listener(address: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.set_send_buffer_size(128 * 1024).unwrap();
    socket.set_recv_buffer_size(128 * 1024).unwrap();
    socket.bind(address).unwrap();
    socket.listen(4_096).unwrap()
}

/// Does what the parent says.
fn obey(handle: &ServerHandle, probe: &Probe) {
    for command in std::io::stdin().lines().map_while(Result::ok) {
        match command.as_str() {
            "figures" => println!("\nfigures{}", figures(handle, probe)),
            "drain" => handle.shutdown(),
            "trim" => {
                trim();
                println!("\ntrimmed");
            }
            other => panic!("nobody knows what {other:?} is"),
        }
    }
    std::process::exit(1);
}

/// Has the allocator give back what is free. That of glibc keeps it otherwise, if anything behind it is
/// in use, and so does not tell what a server still has from what it had.
#[allow(unsafe_code, reason = "there is no other way to ask it")]
fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn figures(handle: &ServerHandle, probe: &Probe) -> String {
    let snapshot = handle.snapshot();
    let calls = &snapshot.calls;
    let mut line = String::new();
    let mut say = |name: &str, value: u64| write!(line, " {}={value}", name.replace(' ', "_")).unwrap();
    say("idle", snapshot.is_idle().into());
    say("running", probe.running() as u64);
    say("most_running", probe.high_water() as u64);
    say("held", calls.held);
    say("most_held", calls.high_water);
    say("acquired", calls.acquired);
    say("released", calls.released);
    say("connections", snapshot.connections);
    say("handshakes", snapshot.handshakes);
    say("buffered", snapshot.buffered_bytes);
    say("inbound", snapshot.inbound_bytes);
    say("streams", snapshot.streams);
    say("stream bytes", snapshot.stream_bytes);
    say("body bytes", snapshot.body_bytes);
    say("panics", snapshot.panics);
    say("demoted", snapshot.methods_demoted);
    say("protocol errors", snapshot.protocol_errors);
    snapshot.refused.iter().for_each(|(name, &n)| say(&format!("refused {name}"), n));
    snapshot.connections_cut.iter().for_each(|(name, &n)| say(&format!("cut {name}"), n));
    line
}

/// A service that keeps the numbers of the calls that reached it.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<u64>>>);

impl Ledger {
    /// Notes its first argument, waits so many milliseconds, and answers what it has noted.
    pub(crate) const COUNT: Method = Method::new("test.Ledger", "count");

    fn calls(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Ledger {
    fn name(&self) -> &str {
        "test.Ledger"
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        methods.unary("count", MethodOptions::default(), move |_: &Context, (n, ms): (u64, u64)| {
            self.calls().push(n);
            async move {
                sleep(Duration::from_millis(ms)).await;
                Ok(n)
            }
        });
    }
}

/// A runtime for those who besiege.
///
/// Real ones have machines of their own. Here they would take the cores from the server and from the
/// polite client, for the 4 ms until the kernel's next tick, and its scheduler would be what is measured;
/// so in a siege of full size their threads run when nobody else wants to, and those of the server and of
/// the polite client at once.
pub(crate) struct Besiegers(Option<Runtime>);

impl Besiegers {
    pub(crate) fn gather() -> Self {
        let mut builder = runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all();
        if is_full() {
            builder.on_thread_start(|| Standing::Besieger.take());
        }
        Self(Some(builder.build().unwrap()))
    }

    /// What comes of `siege`, which runs among them with all that it spawns.
    pub(crate) async fn run<T: Send + 'static>(&self, siege: impl Future<Output = T> + Send + 'static) -> T {
        self.0.as_ref().expect("it is there until dropped").spawn(siege).await.expect("no besieger panics")
    }
}

impl Drop for Besiegers {
    fn drop(&mut self) {
        // A runtime must not wait for its threads where others run.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Who runs first where there are more threads than cores, as it would be if each had a machine.
#[derive(Clone, Copy)]
enum Standing {
    /// Only when nobody else wants to.
    Besieger,
    Server,
    Polite,
}

impl Standing {
    /// Gives this thread, and those it starts, its standing in a siege of full size.
    fn take(self) {
        let policy = match self {
            Self::Besieger => ["--idle", "0"],
            Self::Server => ["--rr", "1"],
            Self::Polite => ["--rr", "2"],
        };
        let thread = fs::read_link("/proc/thread-self").unwrap();
        let id = thread.file_name().unwrap();
        let [policy, priority] = policy;
        let done = Command::new("chrt").args([policy, "--pid", priority]).arg(id).stderr(Stdio::null()).status();
        if !done.is_ok_and(|status| status.success()) {
            println!("    a thread may not have {policy}, and latencies are those of a crowded machine");
        }
    }
}

/// A client that makes a small call every millisecond, on a thread of its own, and notes how long
/// each takes. None may fail.
pub(crate) struct Polite {
    times: Arc<Stopwatch>,
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
    machine: Machine,
}

impl Polite {
    pub(crate) fn start(server: &Server) -> Self {
        Self::sharing(Client::new(server.address))
    }

    /// A client whose connection others use as well.
    pub(crate) fn sharing(client: Client) -> Self {
        let times = Arc::new(Stopwatch::new());
        let over = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&times), Arc::clone(&over));
        let thread = thread::spawn(move || {
            if is_full() {
                Standing::Polite.take();
            }
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(call_politely(&client, &shared.0, &shared.1));
        });
        let machine = Machine::watch(PACE, || {
            if is_full() {
                Standing::Polite.take();
            }
        });
        Self { times, over, thread: Some(thread), machine }
    }

    /// How long calls take while nothing else happens.
    pub(crate) async fn calm(&self) -> Beside {
        // The first ones connect.
        sleep(Duration::from_millis(200)).await;
        self.beside(sleep(size(Duration::from_millis(300), Duration::from_secs(5)))).await.1
    }

    /// How long calls take while `siege` goes on.
    pub(crate) async fn beside<T>(&self, siege: impl Future<Output = T>) -> (T, Beside) {
        self.begin_anew();
        let result = siege.await;
        (result, Beside { calls: self.times.read(), machine: self.machine.read() })
    }

    /// Forgets how long calls took before. Who has only come, or asks for work as others do, is not a siege yet.
    pub(crate) fn begin_anew(&self) {
        self.times.begin_anew();
        self.machine.begin_anew();
    }

    /// Ends; no call has failed.
    pub(crate) fn leave(mut self) {
        self.over.store(true, SeqCst);
        self.thread.take().expect("it leaves once").join().expect("no polite call fails");
    }
}

impl Drop for Polite {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
    }
}

/// How long the calls of a polite client took, and a bare echo meanwhile.
pub(crate) struct Beside {
    pub(crate) calls: Latency,
    machine: Latency,
}

impl Beside {
    /// As [`figure`], for the p99 that was usual, and for the p98 of all the time, where a bare echo counts as well:
    /// where others have the machine at times, all wait for them.
    pub(crate) fn judge(&self, calm: &Self) {
        println!("    polite calls, calm: {calm}\n    besieged: {self}");
        let usual = ratio(self.calls.median, calm.calls.median);
        figure("their usual p99, of that", usual, "times", MAX_RATIO);
        let all = ratio(self.calls.p98, calm.calls.p98.max(self.machine.p98));
        figure("their p98, of that or of an echo", all, "times", MAX_RATIO);
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; a bare echo: {}", self.calls, self.machine)
    }
}

fn ratio(this: Duration, of: Duration) -> f64 {
    this.as_secs_f64() / of.as_secs_f64()
}

/// How often a polite client calls.
const PACE: Duration = Duration::from_millis(1);

async fn call_politely(client: &Client, times: &Stopwatch, over: &AtomicBool) {
    let mut ticks = interval(PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !over.load(SeqCst) {
        ticks.tick().await;
        let began = Instant::now();
        let call = client.call::<_, String>(method::ECHO, ("polite".to_owned(),)).timeout(PATIENCE);
        assert_eq!(call.await.expect("a polite call fails"), "polite");
        times.note(began, PACE);
    }
}

/// A socket from this machine's address 127.`net`.1, so that ports last; it takes `window` bytes,
/// about, that are not read.
pub(crate) async fn connect_from(net: u16, server: SocketAddr, window: Option<u32>) -> TcpStream {
    let [high, low] = net.to_be_bytes();
    let socket = TcpSocket::new_v4().unwrap();
    if let Some(window) = window {
        socket.set_recv_buffer_size(window).unwrap();
        // What it cannot send takes memory of the one kernel that all share here.
        socket.set_send_buffer_size(64 * 1024).unwrap();
    }
    socket.bind((Ipv4Addr::new(127, high, low, 1), 0).into()).unwrap();
    let socket = socket.connect(server).await.expect("the server listens");
    socket.set_nodelay(true).unwrap();
    socket
}
