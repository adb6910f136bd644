//! Accepting goes on whatever the system says, and costs nothing while it cannot.

use std::{
    collections::VecDeque,
    future::pending,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use rpc_codec::{GoAwayReason, encode_go_away};
use rpc_core::CallId;
use sluicegate::{Client, StatusCode, server::Listener};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    net::{TcpSocket, TcpStream},
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::support::{
    Harness, RawClient, Req, assert_idle_soon, method,
    raw::{cancel, frame, hello, responses_in},
    shims::{is_full, times_in},
    within,
};

const SECOND: Duration = Duration::from_secs(1);

/// Fails as often as it is told, then gives one transport.
struct Fake {
    errors: VecDeque<io::Error>,
    transports: mpsc::UnboundedReceiver<DuplexStream>,
    dropped: Arc<AtomicUsize>,
}

impl Listener for Fake {
    type Transport = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, Option<SocketAddr>)> {
        if let Some(error) = self.errors.pop_front() {
            return Err(error);
        }
        match self.transports.recv().await {
            Some(transport) => Ok((transport, None)),
            None => pending().await,
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_socket_is_served_within_a_second_of_any_number_of_errors_of_any_kind() {
    use io::ErrorKind as Kind;
    let kinds = [
        Kind::ConnectionAborted,
        Kind::ConnectionReset,
        Kind::Interrupted,
        Kind::NetworkDown,
        Kind::HostUnreachable,
        Kind::TimedOut,
        Kind::PermissionDenied,
        Kind::OutOfMemory,
        Kind::Other,
    ];
    let harness = Harness::new();
    let (send, transports) = mpsc::unbounded_channel();
    let dropped = Arc::new(AtomicUsize::new(0));
    let errors: VecDeque<_> = kinds.iter().flat_map(|&kind| (0..1_000).map(move |_| kind.into())).collect();
    let number = errors.len() as u64;
    let fake = Fake { errors, transports, dropped: Arc::clone(&dropped) };
    let server = harness.server.clone();
    let serving = tokio::spawn(async move { server.serve_with(fake).await });
    while harness.snapshot().accept_errors < number {
        sleep(SECOND / 10).await;
    }
    let last_error = Instant::now();
    let (ours, theirs) = tokio::io::duplex(1_024);
    send.send(theirs).unwrap();
    let mut peer = RawClient::new(ours);
    peer.shake_hands().await;
    assert!(last_error.elapsed() <= 11 * SECOND / 10, "{:?}", last_error.elapsed());
    peer.send(&Req::new(1, method::ECHO, ("hi",)).bytes()).await;
    assert_eq!(peer.reply::<String>(1).await, "hi");
    assert_eq!(harness.snapshot().accept_errors, number);
    // It is closed before the drain has ended.
    peer.send(&Req::new(2, method::GATE, (2_u64,)).bytes()).await;
    harness.until_running(1).await;
    harness.handle.shutdown();
    harness.until("the listener is closed", |_| dropped.load(SeqCst) == 1).await;
    assert!(!serving.is_finished());
    harness.probe.open_gate();
    assert!(serving.await.unwrap().cut.is_empty());
    drop(peer);
    harness.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn junk_and_resets_at_full_speed_do_not_stop_a_server() {
    let attempts = times_in(10_000, 500);
    let harness = Harness::new();
    let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
    let address = bound.local_addr();
    let serving = tokio::spawn(bound.serve());
    let scan = tokio::spawn(async move {
        for n in 0..attempts {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let junk: &[u8] = match n % 4 {
                0 => b"",
                1 => b"\x16\x03\x01\x02\x00",
                2 => b"GET / HTTP/1.1\r\n\r\n",
                _ => b"\0\0\0\x56",
            };
            // It may have been closed already.
            let _ = socket.write_all(junk).await;
            if n % 2 == 0 {
                let _ = socket.set_zero_linger();
            }
        }
    });
    let client = Client::new(address);
    while !scan.is_finished() {
        let echo: String = within(client.call(method::ECHO, ("polite".to_owned(),))).await.unwrap();
        assert_eq!(echo, "polite");
    }
    scan.await.unwrap();
    drop(client);
    assert_idle_soon(&harness.handle).await;
    harness.handle.shutdown();
    within(serving).await.unwrap();
}

/// Styles in which a connection ends.
const STYLES: u64 = 8;

/// Connects, is served where the style has it, and goes in the `n`th way.
async fn come_and_go(address: SocketAddr, n: u64) {
    let socket = TcpSocket::new_v4().unwrap();
    // Ports whose connections have ended in peace are not free for a while.
    socket.bind(([127, 0, 1 + (n / 20_000) as u8, 1], 0).into()).unwrap();
    let mut socket = socket.connect(address).await.unwrap();
    let echo = [hello(), Req::new(1, method::ECHO, ("hi",)).bytes()].concat();
    let mut farewell = Vec::new();
    encode_go_away(&mut farewell, CallId::CONNECTION, GoAwayReason::Drain, "");
    let said = match n % STYLES {
        // In peace; the end without a farewell; a reset behind an answer, and in the middle of a call.
        0 => [echo, farewell].concat(),
        1 | 2 => echo,
        3 => [hello(), Req::new(1, method::GATE, (1_u64,)).bytes()].concat(),
        // Handshakes that fail, and one that is cut short.
        4 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        5 => hello()[..20].to_vec(),
        // Errors of the protocol.
        6 => [echo, frame(0x2a, 0, 0, &[], &[])].concat(),
        _ => [echo, cancel(99)].concat(),
    };
    socket.write_all(&said).await.unwrap();
    if matches!(n % STYLES, 0 | 1 | 5) {
        socket.shutdown().await.unwrap();
    }
    if matches!(n % STYLES, 2 | 3) {
        // It has been accepted when it is greeted.
        let mut first = [0; 16];
        socket.read_exact(&mut first).await.unwrap();
        assert_eq!(first[4], 1, "no HELLO came");
        socket.set_zero_linger().unwrap();
        return;
    }
    let mut told = Vec::new();
    within(socket.read_to_end(&mut told)).await.unwrap();
    let refusal = b"too many connections";
    assert!(!told.windows(refusal.len()).any(|part| part == refusal), "style {} was refused", n % STYLES);
    if matches!(n % STYLES, 0 | 6 | 7) {
        assert_eq!(responses_in(&told), [(1, StatusCode::Ok)], "style {}", n % STYLES);
    }
}

#[tokio::test]
async fn connections_that_come_and_go_in_any_way_never_use_up_the_room_of_three() {
    let harness = Harness::with(|builder| builder.max_connections(3));
    let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
    let address = bound.local_addr();
    let serving = tokio::spawn(bound.serve());
    for n in 0..times_in(100_000, 400) {
        come_and_go(address, n).await;
    }
    let snapshot = harness.snapshot();
    assert!(snapshot.calls.high_water <= 3, "{snapshot:?}");
    assert_idle_soon(&harness.handle).await;
    harness.handle.shutdown();
    within(serving).await.unwrap();
}

/// With a process of its own, whose descriptors are few.
#[cfg(target_os = "linux")]
mod descriptors {
    use std::{
        env,
        io::{BufRead, BufReader, Read},
        process::{Child, ChildStdout, Command, Stdio},
    };

    use super::*;

    const SERVER: &str = "SLUICEGATE_TEST_STARVING_SERVER";
    const NAME: &str =
        "accepting::descriptors::a_server_without_descriptors_waits_quietly_and_serves_when_there_are_some";

    #[test]
    fn a_server_without_descriptors_waits_quietly_and_serves_when_there_are_some() {
        if env::var_os(SERVER).is_some() { serve() } else { starve() }
    }

    /// The child: a server that lets silent peers be.
    fn serve() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let patient = Duration::from_secs(600);
            let harness = Harness::with(|builder| builder.first_byte_timeout(patient).handshake_timeout(patient));
            let bound = harness.server.bind("127.0.0.1:0").await.unwrap();
            // Behind whatever the test runner has written in front of it.
            println!("\naddress {}", bound.local_addr());
            bound.serve().await;
        });
    }

    fn starve() {
        let mut server = Server::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut holders = Vec::new();
            // More than it can accept, not more than the system keeps for it.
            for _ in 0..200 {
                holders.push(TcpStream::connect(server.address).await.unwrap());
            }
            // It has met the shortage when it has no descriptor left.
            within(async {
                while server.descriptors() < 64 {
                    sleep(Duration::from_millis(10)).await;
                }
            })
            .await;
            let (cpu, began) = (server.cpu_seconds(), std::time::Instant::now());
            sleep(Duration::from_millis(1_500)).await;
            let used = (server.cpu_seconds() - cpu) / began.elapsed().as_secs_f64();
            assert!(used < 0.05, "{:.0} % of a core while it waits", used * 100.0);
            drop(holders);
            let left = std::time::Instant::now();
            // It is in the queue behind the holders, and waits as they did.
            let client = Client::builder(server.address).connect_timeout(10 * SECOND).build();
            let echo: String = within(client.call(method::ECHO, ("hi".to_owned(),))).await.unwrap();
            println!("{:.1} % of a core, back after {:?}", used * 100.0, left.elapsed());
            // The test in virtual time has the pause itself; here the machine may have other work.
            let back = left.elapsed() <= 11 * SECOND / 10;
            assert!(echo == "hi" && (back || !is_full()), "{:?}", left.elapsed());
        });
        assert!(server.child.try_wait().unwrap().is_none(), "it has exited");
    }

    struct Server {
        child: Child,
        address: SocketAddr,
        /// The child would not survive its being closed.
        _output: BufReader<ChildStdout>,
    }

    impl Server {
        fn start() -> Self {
            let test = env::current_exe().unwrap();
            let mut child = Command::new("sh")
                .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
                .arg(test)
                .args([NAME, "--exact", "--nocapture"])
                .env(SERVER, "1")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let address = output
                .by_ref()
                .lines()
                .map(|line| line.expect("the server lives"))
                .find_map(|line| line.strip_prefix("address ")?.parse().ok())
                .expect("the server says where it listens");
            Self { child, address, _output: output }
        }

        fn descriptors(&self) -> usize {
            std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
        }

        /// Time on a CPU so far, in user and system mode; Linux counts it in hundredths.
        fn cpu_seconds(&self) -> f64 {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            let behind_name = stat.rsplit(") ").next().unwrap();
            behind_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
