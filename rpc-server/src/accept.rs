//! Accepting: no error ends it, and none makes it spin.

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rpc_core::Extensions;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::coop::consume_budget,
    time::sleep,
};

use crate::clock;

/// Where a server's connections come from.
///
/// A [`TcpListener`] is one; [`Server::serve_with`](crate::Server::serve_with) takes any other, such as
/// a Unix socket's.
pub trait Listener: Send {
    /// What is accepted.
    type Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection: its transport, and the peer's address if it has one.
    ///
    /// It should do nothing else. What takes a peer's time, such as the handshake of TLS, belongs into
    /// the transport's own reads and writes: here, one slow peer would hold up all others.
    ///
    /// # Errors
    ///
    /// Any; the server asks again. It does so at once for what concerns one connection, and after a
    /// pause of 5 ms, doubling up to a second, when there are too few descriptors or too little memory,
    /// or when errors repeat.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the server is shut down, and at no other time.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Transport, Option<SocketAddr>)>> + Send;

    /// What is known of a connection that was accepted, for handlers and services to find beside it.
    /// Nothing by default.
    fn known(&mut self, transport: &Self::Transport) -> Extensions {
        let _ = transport;
        Extensions::new()
    }
}

impl Listener for TcpListener {
    type Transport = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, Option<SocketAddr>)> {
        let (socket, peer) = Self::accept(self).await?;
        if let Err(error) = rpc_core::socket::prepare(&socket) {
            tracing::debug!(%peer, %error, "cannot set options of the socket");
        }
        Ok((socket, Some(peer)))
    }
}

/// Accepts for ever, and gives each transport to `serve`.
pub(crate) async fn accept_all<L: Listener>(
    listener: &mut L,
    errors: &AtomicU64,
    mut serve: impl FnMut(L::Transport, Option<SocketAddr>, Extensions),
) {
    let mut trouble = Trouble::default();
    loop {
        // A listener that is always ready must not keep the thread.
        consume_budget().await;
        match listener.accept().await {
            Ok((transport, peer)) => {
                trouble.ends();
                let known = listener.known(&transport);
                serve(transport, peer, known);
            }
            Err(error) => {
                errors.fetch_add(1, Ordering::Relaxed);
                let pause = trouble.goes_on(&error);
                trouble.log(&error, pause);
                sleep_if_any(pause).await;
            }
        }
    }
}

async fn sleep_if_any(pause: Option<Duration>) {
    if let Some(pause) = pause {
        sleep(pause).await;
    }
}

/// Errors in a row.
#[derive(Debug, Default)]
struct Trouble {
    in_a_row: u32,
    /// The pause before, if there was one.
    pause: Option<Duration>,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Trouble {
    /// Something was accepted.
    fn ends(&mut self) {
        self.in_a_row = 0;
        self.pause = None;
    }

    /// How long to wait before accepting again.
    ///
    /// Most errors concern one connection, whose peer was gone before we got to it, and the next one
    /// may be fine. But what repeats without end is something else, whatever it is called.
    fn goes_on(&mut self, error: &io::Error) -> Option<Duration> {
        self.in_a_row = self.in_a_row.wrapping_add(1);
        if !is_shortage(error) && !self.in_a_row.is_multiple_of(ERRORS_PER_PAUSE) {
            return None;
        }
        let pause = self.pause.map_or(MIN_PAUSE, |pause| (pause * 2).min(MAX_PAUSE));
        self.pause = Some(pause);
        self.pause
    }

    /// Logs one of the errors of a second.
    fn log(&mut self, error: &io::Error, pause: Option<Duration>) {
        let now = clock::now();
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
            self.unlogged += 1;
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        tracing::warn!(%error, ?pause, unlogged, "cannot accept");
        self.logged = Some(now);
    }
}

/// Whether there are too few descriptors or too little memory: asking again at once would be no use.
fn is_shortage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory || error.raw_os_error().is_some_and(|code| SHORTAGES.contains(&code))
}

/// ENFILE, EMFILE and ENOBUFS; ENOMEM has a name of its own. An error that is missing here still
/// leads to pauses when it repeats.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SHORTAGES: [i32; 3] = [23, 24, 105];
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const SHORTAGES: [i32; 3] = [23, 24, 55];
/// WSAEMFILE and WSAENOBUFS.
#[cfg(not(unix))]
const SHORTAGES: [i32; 2] = [10_024, 10_055];

const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// So many errors in a row that each concern one connection are followed by a pause.
const ERRORS_PER_PAUSE: u32 = 64;
const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        collections::VecDeque,
        future::pending,
        sync::{Arc, Mutex},
    };

    use tokio::io::DuplexStream;
    use tracing::{Metadata, span};

    use super::*;

    /// The errors that Linux names, and one that nobody does.
    const ERRORS: [i32; 14] = [4, 1, 12, 23, 24, 71, 92, 100, 103, 104, 105, 110, 113, 4_242];

    /// Accepts what it was given, at once, and counts the pauses of whoever asks.
    struct Fake {
        results: VecDeque<io::Result<()>>,
        asked: Vec<Instant>,
    }

    impl Listener for Fake {
        type Transport = DuplexStream;

        async fn accept(&mut self) -> io::Result<(DuplexStream, Option<SocketAddr>)> {
            self.asked.push(clock::now());
            match self.results.pop_front() {
                Some(result) => result.map(|()| (tokio::io::duplex(1).0, None)),
                None => pending().await,
            }
        }
    }

    fn fake(results: impl IntoIterator<Item = io::Result<()>>) -> Fake {
        Fake { results: results.into_iter().collect(), asked: Vec::new() }
    }

    /// How often was accepted and what was logged within a day.
    async fn accept_for_a_day(listener: &mut Fake) -> (u64, u64) {
        let (errors, mut accepted) = (AtomicU64::new(0), 0);
        let logged = Arc::new(Mutex::new(0));
        let _guard = tracing::subscriber::set_default(CountLogs(Arc::clone(&logged)));
        let accepting = accept_all(listener, &errors, |_, _, _| accepted += 1);
        assert!(tokio::time::timeout(Duration::from_secs(86_400), accepting).await.is_err());
        let logged = *logged.lock().unwrap();
        (accepted, logged)
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_goes_wrong_a_good_socket_is_accepted_within_a_second() {
        for code in ERRORS {
            let errors = (0..1_000).map(|_| Err(io::Error::from_raw_os_error(code)));
            let mut listener = fake(errors.chain([Ok(())]));
            let (accepted, logged) = accept_for_a_day(&mut listener).await;
            assert_eq!(accepted, 1, "error {code}");
            let took = *listener.asked.last().unwrap() - listener.asked[0];
            assert!(logged <= took.as_secs() + 1, "error {code}: {logged} lines in {took:?}");
            let longest = listener.asked.windows(2).map(|pair| pair[1] - pair[0]).max();
            // A timer of tokio is up to a millisecond late.
            assert!(longest <= Some(MAX_PAUSE + Duration::from_millis(2)), "error {code}: {longest:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_of_one_connection_costs_no_time_and_a_shortage_little_at_first() {
        for code in ERRORS {
            let mut listener = fake([Err(io::Error::from_raw_os_error(code)), Ok(())]);
            accept_for_a_day(&mut listener).await;
            let pause = listener.asked[1] - listener.asked[0];
            let shortage = [12, 23, 24, 105].contains(&code);
            assert_eq!(pause >= MIN_PAUSE, shortage, "error {code}: {pause:?}");
            assert!(pause <= 2 * MIN_PAUSE, "error {code}: {pause:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn errors_without_end_are_met_with_a_bounded_number_of_attempts() {
        for code in ERRORS {
            let mut listener = fake((0..1_000_000).map(|_| Err(io::Error::from_raw_os_error(code))));
            let errors = AtomicU64::new(0);
            let accepting = accept_all(&mut listener, &errors, |_, _, _| {});
            assert!(tokio::time::timeout(Duration::from_secs(100), accepting).await.is_err());
            let attempts = errors.load(Ordering::Relaxed);
            assert!(attempts <= 110 * u64::from(ERRORS_PER_PAUSE), "error {code}: {attempts} attempts in 100 s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_between_errors_ends_the_trouble() {
        let shortage = || Err(io::Error::from_raw_os_error(24));
        let mut listener = fake((0..100).flat_map(|_| [shortage(), Ok(())]));
        assert_eq!(accept_for_a_day(&mut listener).await.0, 100);
        let took = *listener.asked.last().unwrap() - listener.asked[0];
        assert!(took <= 100 * 2 * MIN_PAUSE, "{took:?}");
    }

    struct CountLogs(Arc<Mutex<u64>>);

    impl tracing::Subscriber for CountLogs {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            *self.0.lock().unwrap() += u64::from(event.metadata().target().ends_with("accept"));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }
}
