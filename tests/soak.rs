//! Everything at once, over sockets and on several threads: every call ends, and nothing is left.
//!
//! Two seconds long, or `SLUICEGATE_SOAK_SECONDS`. Time is real here: it is about threads.

mod support;

use std::{
    env, io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{TryStreamExt, stream};
use sluicegate::{Bytes, CallError, Client, StatusCode, client::Method};
use support::{
    Req, assert_idle_soon,
    feed::{FeedClient, FeedServer, named},
    method,
    probe::silence_wanted_panics,
    raw::hello,
    shims::{Manner, Random},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, join},
    net::{TcpStream, tcp::OwnedReadHalf},
    time::{sleep, timeout},
};

const CLIENTS: u64 = 6;
const WORKERS: u64 = 60;
const RAW_PEERS: u64 = 6;

const MEGABYTES: &str = "megabytes go by, and it takes some load to get everything to happen";

/// What a call takes at most; it never does.
const FOR_EVER: Duration = Duration::from_secs(10);

fn us(random: &mut Random, bound: u64) -> Duration {
    Duration::from_micros(random.below(bound))
}

/// How calls ended.
#[derive(Debug, Default)]
struct Outcomes {
    good: AtomicU64,
    cancelled: AtomicU64,
    failed: [AtomicU64; 17],
}

impl Outcomes {
    fn failed(&self, code: StatusCode) -> u64 {
        self.failed[usize::from(code.to_wire())].load(SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_happens_every_call_ends_and_nothing_is_left() {
    silence_wanted_panics();
    let seconds = env::var("SLUICEGATE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(2);
    let FeedServer { harness, feeder } = FeedServer::with(|builder| {
        // Too few connections for all, too: now and then a client is turned away.
        let builder = builder.max_connections(CLIENTS + RAW_PEERS - 2).write_high_water(20_000);
        builder.max_concurrent_calls(40).max_concurrent_calls_per_connection(16)
    });
    let harness = harness.unless(Manner::OneByte, MEGABYTES);
    // Holds are dropped at once, but by another task.
    harness.probe.drop_holds();
    let sockets = harness.sockets().await;
    let address = sockets.address;
    let (over, outcomes) = (Arc::new(AtomicBool::new(false)), Arc::new(Outcomes::default()));
    let clients: Vec<_> = (0..CLIENTS).map(|n| client(address, n)).collect();
    let mut tasks = Vec::new();
    for n in 0..WORKERS {
        let (client, random) = (clients[(n % CLIENTS) as usize].clone(), Random::seeded(n));
        tasks.push(tokio::spawn(work(client, random, Arc::clone(&over), Arc::clone(&outcomes))));
    }
    for n in 0..RAW_PEERS {
        tasks.push(tokio::spawn(read_slowly(address, Random::seeded(1_000 + n), Arc::clone(&over))));
    }
    sleep(Duration::from_secs(seconds)).await;
    over.store(true, SeqCst);
    for task in tasks {
        timeout(2 * FOR_EVER, task).await.expect("a worker hangs").unwrap();
    }
    // Everything that was to happen has happened.
    for code in [StatusCode::ResourceExhausted, StatusCode::DeadlineExceeded, StatusCode::Internal] {
        assert!(outcomes.failed(code) > 0, "{code:?}: {outcomes:?}");
    }
    assert!(outcomes.failed(StatusCode::Unavailable) > 0, "no connection was lost: {outcomes:?}");
    assert!(outcomes.good.load(SeqCst) > 100 && outcomes.cancelled.load(SeqCst) > 0, "{outcomes:?}");
    for client in &clients {
        until_no_call_is_out(client).await;
    }
    drop(clients);
    assert_idle_soon(&harness.handle).await;
    // The server still serves whoever comes.
    let newcomer = sockets.client();
    let reply = newcomer.call::<_, u64>(method::NONCE, (7_u64, 3_u32)).timeout(FOR_EVER).await;
    assert_eq!(reply.unwrap(), 7);
    drop(newcomer);
    assert_idle_soon(&harness.handle).await;
    assert_eq!((harness.probe.running(), feeder.running()), (0, 0));
    let drained = timeout(FOR_EVER, sockets.shut_down()).await.unwrap();
    assert_eq!((drained.cut.len(), drained.stuck_connections), (0, 0));
    assert_idle_soon(&harness.handle).await;
}

/// Makes one random call after the other.
async fn work(client: Client, mut random: Random, over: Arc<AtomicBool>, outcomes: Arc<Outcomes>) {
    while !over.load(SeqCst) {
        let patience = us(&mut random, 4_000);
        let call = async {
            match random.below(10) {
                0..3 => timeout(patience, call(&client, &mut random)).await.ok(),
                _ => Some(call(&client, &mut random).await),
            }
        };
        match timeout(FOR_EVER, call).await.expect("a call hangs") {
            None => outcomes.cancelled.fetch_add(1, SeqCst),
            Some(Ok(())) => outcomes.good.fetch_add(1, SeqCst),
            Some(Err(error)) => {
                if error.code() == StatusCode::Unavailable {
                    sleep(Duration::from_millis(1)).await;
                }
                outcomes.failed[usize::from(error.code().to_wire())].fetch_add(1, SeqCst)
            }
        };
    }
}

/// A random call, with a timeout or without; its reply must be the right one.
async fn call(client: &Client, random: &mut Random) -> Result<(), CallError> {
    let n = random.below(5_000);
    let expiry = match random.below(4) {
        0 => us(random, 3_000),
        _ => 2 * FOR_EVER,
    };
    let spawned = random.below(4) == 0;
    let pick = |here: Method, spawn: Method| if spawned { spawn } else { here };
    match random.below(19) {
        0..5 => {
            let method = pick(method::NONCE, method::NONCE_SPAWNED);
            let pending = random.below(6) as u32;
            let reply = client.call::<_, u64>(method, (n, pending)).timeout(expiry).await?;
            assert_eq!(reply, n);
        }
        5..7 => {
            let ms = random.below(6);
            let method = pick(method::SLEEP, method::SLEEP_SPAWNED);
            assert_eq!(client.call::<_, u64>(method, (ms,)).timeout(expiry).await?, ms);
        }
        7..9 => {
            let text = "z".repeat(n as usize * if n.is_multiple_of(50) { 20 } else { 1 });
            let method = pick(method::ECHO, method::ECHO_SPAWNED);
            let reply = client.call::<_, String>(method, (text.clone(),)).timeout(expiry).await?;
            assert!(reply == text, "another call's reply");
        }
        9..11 => {
            let len = n as u32 * if n.is_multiple_of(20) { 40 } else { 1 };
            let method = pick(method::LARGE, method::LARGE_SPAWNED);
            let reply = client.call::<_, String>(method, (len,)).timeout(expiry).await?;
            assert_eq!(reply.len(), len as usize);
        }
        11..13 => client.call(pick(method::HOLD, method::HOLD_SPAWNED), ()).timeout(expiry).await?,
        13 => {
            // The gate is never opened.
            let method = pick(method::GATE, method::GATE_SPAWNED);
            client.call::<_, u64>(method, (n,)).timeout(us(random, 5_000)).await?;
        }
        14 => client.call(method::WATCHED, ()).timeout(us(random, 5_000)).await?,
        15 => {
            // More than a window now and then.
            let count = n * if n.is_multiple_of(20) { 4 } else { 1 };
            let counted = client.service::<FeedClient>().count_sent(count).timeout(expiry);
            assert!(counted.try_collect::<Vec<_>>().await?.into_iter().eq(0..count), "another stream's items");
        }
        16 => {
            let numbers = stream::iter(0..n);
            let sum = client.service::<FeedClient>().sum(n).timeout(expiry).send_all(numbers).await?;
            assert_eq!(sum, n + (0..n).sum::<u64>());
        }
        17 => {
            let sent: Vec<_> = (0..n % 8).map(|k| Bytes::from(vec![k as u8; 10 * n as usize])).collect();
            let echo = client.service::<FeedClient>().echo().timeout(expiry).send_all(stream::iter(sent.clone()));
            assert!(echo.try_collect::<Vec<_>>().await? == sent, "another stream's items");
        }
        _ if n.is_multiple_of(5) => client.call(pick(method::PANIC_LATER, method::PANIC_LATER_SPAWNED), ()).await?,
        _ => client.call(method::SPIN, (n / 10,)).timeout(expiry).await?,
    }
    Ok(())
}

/// Asks for more than it takes, reads some of it slowly, and hangs up; over and over.
async fn read_slowly(address: SocketAddr, mut random: Random, over: Arc<AtomicBool>) {
    while !over.load(SeqCst) {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let len = 50_000 + random.below(100_000) as u32;
        let requests = (1..20).map(|id| match id % 4 {
            0 => Req::new(id, method::GATE, (id,)).bytes(),
            1 => Req::new(id, named("count_sent"), (u64::MAX,)).takes().bytes(),
            _ => Req::new(id, method::LARGE, (len,)).bytes(),
        });
        let requests: Vec<_> = std::iter::once(hello()).chain(requests).collect();
        socket.write_all(&requests.concat()).await.unwrap();
        let mut part = vec![0; 30_000];
        for _ in 0..random.below(100) {
            sleep(us(&mut random, 2_000)).await;
            if matches!(timeout(us(&mut random, 3_000), socket.read(&mut part)).await, Ok(Ok(0) | Err(_))) {
                break;
            }
        }
    }
}

/// A client of the server. Every second one loses its connections again and again.
fn client(address: SocketAddr, n: u64) -> Client {
    let connections = AtomicU64::new(0);
    let builder = Client::with_connector("the server", move || {
        let mut random = Random::seeded(n * 1_000 + connections.fetch_add(1, SeqCst));
        let left = if n.is_multiple_of(2) { usize::MAX } else { random.below(2_000_000) as usize };
        async move {
            let (read, write) = TcpStream::connect(address).await?.into_split();
            Ok(Manner::unless(Manner::OneByte, MEGABYTES).wrap(join(Cut { io: read, left }, write)))
        }
    });
    builder.backoff(Duration::from_millis(1), Duration::from_millis(5)).build()
}

async fn until_no_call_is_out(client: &Client) {
    let settled = async {
        while client.snapshot().calls > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(FOR_EVER, settled).await.expect("a call of a client has not ended");
}

/// A socket that is lost when so many bytes have been read from it.
struct Cut {
    io: OwnedReadHalf,
    left: usize,
}

impl AsyncRead for Cut {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.left = self.left.saturating_sub(buf.filled().len() - before);
        read
    }
}
