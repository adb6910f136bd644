//! Transports as unkind as a network may be: one byte at a time, reluctant, holding back, or broken
//! at some byte. The whole suite runs on each of them: see [`Manner`].

use std::{
    cell::Cell,
    env,
    io::{self, ErrorKind},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::Handle,
    task::yield_now,
};

/// What both ends of a test's connections do to their transports.
///
/// `SLUICEGATE_TEST_IO` chooses it for a whole run: `plain`, `one-byte`, `reluctant`, `reluctant:7`
/// for other random numbers, or `withholding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Nothing.
    Plain,
    /// See [`OneByte`].
    OneByte,
    /// See [`Reluctant`]; with a seed.
    Reluctant(u64),
    /// See [`Withholding`].
    Withholding,
}

/// So many times in the long form, which `SLUICEGATE_SIEGE=full` asks for; else an eighth of them, or a
/// thirty-second where this run repeats what plain transports have shown.
pub(crate) fn times(many: u64) -> u64 {
    times_in(many, many / 8)
}

/// As [`times`], where an eighth would still be too much: `few` times in the short form, a quarter of that over
/// unkind transports.
pub(crate) fn times_in(many: u64, few: u64) -> u64 {
    let short = if Manner::of_this_run() == Manner::Plain { few } else { few / 4 };
    if is_full() { many } else { short.max(1) }
}

/// Whether this run is of the long form, whose figures are asserted.
pub(crate) fn is_full() -> bool {
    env::var("SLUICEGATE_SIEGE").is_ok_and(|size| size == "full")
}

impl Manner {
    /// What this run asks for. Nothing else reads the variable.
    pub(crate) fn of_this_run() -> Self {
        static CHOSEN: OnceLock<Manner> = OnceLock::new();
        *CHOSEN.get_or_init(|| match env::var("SLUICEGATE_TEST_IO") {
            Ok(text) => Self::parse(&text).unwrap_or_else(|| panic!("no transport behaves like {text:?}")),
            Err(env::VarError::NotPresent) => Self::Plain,
            Err(error) => panic!("SLUICEGATE_TEST_IO: {error}"),
        })
    }

    /// Plain, whatever this run asks for. The reason is for who reads the test.
    pub(crate) fn plain(reason: &str) -> Self {
        assert!(!reason.is_empty(), "a reason has to be given");
        Self::Plain
    }

    /// As this run asks for, but plain in place of `not_this`, because of `reason`.
    pub(crate) fn unless(not_this: Self, reason: &str) -> Self {
        let manner = Self::of_this_run();
        if manner == not_this { Self::plain(reason) } else { manner }
    }

    /// A transport that behaves like this.
    pub(crate) fn wrap<T: Transport + 'static>(self, io: T) -> Box<dyn Transport> {
        match self {
            Self::Plain => Box::new(io),
            Self::OneByte => Box::new(OneByte(io)),
            Self::Reluctant(seed) => Box::new(Reluctant::new(io, Random::of_next_transport(seed))),
            Self::Withholding => Box::new(Withholding::new(io)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None => match text {
                "" | "plain" => Some(Self::Plain),
                "one-byte" => Some(Self::OneByte),
                "reluctant" => Some(Self::Reluctant(0)),
                "withholding" => Some(Self::Withholding),
                _ => None,
            },
            Some(("reluctant", seed)) => seed.parse().ok().map(Self::Reluctant),
            Some(_) => None,
        }
    }
}

/// Both directions of a connection.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

/// Random numbers, the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed.wrapping_add(1)) | 1)
    }

    /// Others for each transport that a test makes. Counted by thread, for a test on one thread to
    /// meet the same ones in every run, whatever runs beside it.
    fn of_next_transport(seed: u64) -> Self {
        thread_local! {
            static TRANSPORTS: Cell<u64> = const { Cell::new(0) };
        }
        let nth = TRANSPORTS.replace(TRANSPORTS.get() + 1);
        Self::seeded(seed.wrapping_mul(1_000_003).wrapping_add(nth))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Gives one byte to a read and takes one from a write.
#[derive(Debug)]
pub(crate) struct OneByte<T>(pub(crate) T);

impl<T: AsyncRead + Unpin> AsyncRead for OneByte<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        read_at_most(&mut self.0, 1, cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for OneByte<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, &buf[..buf.len().min(1)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Is pending a few times before it reads, writes, flushes or shuts down, and then reads or writes
/// less than it could. A flush is pending as well when every byte has left.
///
/// It wakes whoever it kept waiting at once, or after other tasks have had their turn; not by the
/// clock, so that a test in virtual time loses none.
#[derive(Debug)]
pub(crate) struct Reluctant<T> {
    io: T,
    random: Random,
    read: Hesitation,
    write: Hesitation,
    flush: Hesitation,
    shutdown: Hesitation,
}

impl<T> Reluctant<T> {
    pub(crate) fn new(io: T, random: Random) -> Self {
        let [read, write, flush, shutdown] = [const { Hesitation(None) }; 4];
        Self { io, random, read, write, flush, shutdown }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Reluctant<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { io, random, read, .. } = &mut *self;
        ready!(read.poll(random, cx));
        let max = some_of(buf.remaining(), random);
        let result = ready!(read_at_most(io, max, cx, buf));
        read.is_over();
        Poll::Ready(result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Reluctant<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Self { io, random, write, .. } = &mut *self;
        ready!(write.poll(random, cx));
        let max = some_of(buf.len(), random);
        let result = ready!(Pin::new(io).poll_write(cx, &buf[..max]));
        write.is_over();
        Poll::Ready(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, random, flush, .. } = &mut *self;
        ready!(flush.poll(random, cx));
        let result = ready!(Pin::new(io).poll_flush(cx));
        flush.is_over();
        Poll::Ready(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, random, shutdown, .. } = &mut *self;
        ready!(shutdown.poll(random, cx));
        let result = ready!(Pin::new(io).poll_shutdown(cx));
        shutdown.is_over();
        Poll::Ready(result)
    }
}

/// How often one operation of a [`Reluctant`] is still pending before it is tried.
#[derive(Debug)]
struct Hesitation(Option<u64>);

impl Hesitation {
    fn poll(&mut self, random: &mut Random, cx: &Context<'_>) -> Poll<()> {
        let left = self.0.get_or_insert_with(|| if random.below(2) == 0 { 0 } else { random.below(4) });
        if *left == 0 {
            return Poll::Ready(());
        }
        *left -= 1;
        let (waker, turns) = (cx.waker().clone(), random.below(4));
        match Handle::try_current() {
            Ok(runtime) if turns > 0 => drop(runtime.spawn(async move {
                for _ in 0..turns {
                    yield_now().await;
                }
                waker.wake();
            })),
            _ => waker.wake(),
        }
        Poll::Pending
    }

    /// The operation has gone through; the next one hesitates anew.
    fn is_over(&mut self) {
        self.0 = None;
    }
}

/// Takes whatever is written and lets it out only when it is flushed or shut down, as a buffered or
/// an encrypted stream may. When it is dropped, what it holds is lost.
#[derive(Debug)]
pub(crate) struct Withholding<T> {
    io: T,
    held: Vec<u8>,
    /// The flush that began has been pending once.
    flushing: bool,
}

impl<T> Withholding<T> {
    /// So many bytes are taken before the first of them has to be flushed.
    const ROOM: usize = 16 * 1024;

    pub(crate) fn new(io: T) -> Self {
        Self { io, held: Vec::new(), flushing: false }
    }
}

impl<T: AsyncWrite + Unpin> Withholding<T> {
    fn let_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.held))?;
            if written == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            self.held.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Withholding<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Withholding<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.held.len() >= Self::ROOM {
            ready!(self.let_out(cx))?;
        }
        let taken = buf.len().min(Self::ROOM - self.held.len());
        self.held.extend_from_slice(&buf[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Who does not come back after a first "pending" has flushed nothing.
        if !self.held.is_empty() && !self.flushing {
            self.flushing = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.let_out(cx))?;
        self.flushing = false;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.let_out(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// What happens to a transport at some byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is gone: reading and writing fail with such an error.
    Error(ErrorKind),
    /// One direction ends: a read finds the end of the stream, a write is taken no more. The other
    /// direction goes on.
    End,
}

/// Fails when so many bytes have been read or written. Counts them in any case.
#[derive(Debug)]
pub(crate) struct FailingAt<T> {
    io: T,
    read: Direction,
    write: Direction,
    broken: Option<ErrorKind>,
}

/// Reading or writing: the bytes that went by, and behind how many of them what goes wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Direction {
    pub(crate) bytes: Arc<AtomicU64>,
    pub(crate) fault: Option<(u64, Fault)>,
}

impl Direction {
    /// How many of `len` bytes may pass before the fault, or the fault.
    fn passes(&self, len: usize) -> Result<usize, Fault> {
        match self.fault {
            None => Ok(len),
            Some((at, fault)) => match at.saturating_sub(self.bytes.load(SeqCst)) {
                0 => Err(fault),
                left => Ok(len.min(usize::try_from(left).unwrap_or(usize::MAX))),
            },
        }
    }

    fn count(&self, len: usize) {
        self.bytes.fetch_add(len as u64, SeqCst);
    }
}

impl<T> FailingAt<T> {
    pub(crate) fn new(io: T, [read, write]: [Direction; 2]) -> Self {
        Self { io, read, write, broken: None }
    }

    fn check(&self) -> io::Result<()> {
        self.broken.map_or(Ok(()), |kind| Err(kind.into()))
    }

    fn fail(&mut self, kind: ErrorKind) -> io::Error {
        self.broken = Some(kind);
        kind.into()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for FailingAt<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        let before = buf.filled().len();
        match self.read.passes(buf.remaining()) {
            Err(Fault::End) => return Poll::Ready(Ok(())),
            Err(Fault::Error(kind)) => return Poll::Ready(Err(self.fail(kind))),
            Ok(max) => ready!(read_at_most(&mut self.io, max, cx, buf))?,
        }
        self.read.count(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for FailingAt<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = match self.write.passes(buf.len()) {
            Err(Fault::End) => 0,
            Err(Fault::Error(kind)) => return Poll::Ready(Err(self.fail(kind))),
            Ok(max) => ready!(Pin::new(&mut self.io).poll_write(cx, &buf[..max]))?,
        };
        self.write.count(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Reads no more than `max` bytes, whatever room there is.
fn read_at_most<T: AsyncRead + Unpin>(
    io: &mut T,
    max: usize,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    if max >= buf.remaining() {
        return Pin::new(io).poll_read(cx, buf);
    }
    let mut part = ReadBuf::new(buf.initialize_unfilled_to(max));
    ready!(Pin::new(io).poll_read(cx, &mut part))?;
    let len = part.filled().len();
    buf.advance(len);
    Poll::Ready(Ok(()))
}

/// At least one of so many bytes, if there are any: of a few bytes, a header, a frame, or all.
fn some_of(len: usize, random: &mut Random) -> usize {
    let most = match random.below(5) {
        0 => 1,
        1 => 4,
        2 => 40,
        3 => 8 * 1024,
        _ => return len,
    };
    len.min(1 + random.below(most) as usize)
}
