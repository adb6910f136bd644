//! The outbound queue of one connection: bytes to write, and the permits that wait for them.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use rpc_codec::{FrameQueue, MIN_PART_LEN, PART_LEN, Remainder};
use rpc_core::{
    CallId,
    limit::{HeldPermit, Releases},
};
use tokio::{io::AsyncWrite, task::coop};

use crate::{gauges::Share, stream::Stream};

/// Bytes on their way out, and who waits for them to leave.
///
/// Each response is noted with where it ends in the stream of bytes, so a partial write frees
/// exactly the permits whose bytes have left. A full buffer is not a written response, and for a
/// transport that buffers itself, neither is one that has not been flushed.
#[derive(Debug)]
pub(crate) struct Writer {
    /// Where frames are appended. What stands before `sent` has left.
    pub(crate) out: Vec<u8>,
    sent: usize,
    /// Position of `out[0]` in the stream of all bytes.
    base: u64,
    /// Where the last response ended, and how much the next is thought to count for: see [`Writer::is_above`].
    last_end: u64,
    last_len: usize,
    unwritten: VecDeque<Unwritten>,
    /// Responses of which the first part is in `out`, or that stand behind items; in turn.
    parted: VecDeque<Parted>,
    /// Streams that have items to be sent, in turn.
    streams: VecDeque<Arc<Stream>>,
    /// The longest frame that the client takes.
    pub(crate) max_frame: u32,
    /// Bytes have left that the transport may still hold.
    unflushed: bool,
    gauge: Share,
}

/// A response whose bytes have not all left.
#[derive(Debug)]
pub(crate) struct Unwritten {
    end: u64,
    pub(crate) id: CallId,
    pub(crate) method: Option<u32>,
    permit: HeldPermit,
}

/// A response whose last parts are not in the buffer yet.
#[derive(Debug)]
struct Parted {
    id: CallId,
    method: Option<u32>,
    permit: HeldPermit,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    /// Of its body.
    Body(Remainder),
    /// Items that stand before it, and itself.
    Items(FrameQueue),
}

impl Rest {
    fn len(&self) -> usize {
        match self {
            Self::Body(remainder) => remainder.len(),
            Self::Items(frames) => frames.len(),
        }
    }
}

impl Writer {
    pub(crate) fn new(gauge: Share) -> Self {
        Self {
            out: Vec::new(),
            sent: 0,
            base: 0,
            last_end: 0,
            last_len: 0,
            unwritten: VecDeque::new(),
            parted: VecDeque::new(),
            streams: VecDeque::new(),
            max_frame: MIN_PART_LEN as u32,
            unflushed: false,
            gauge,
        }
    }

    /// Notes that the response of a call ends where the buffer ends now.
    pub(crate) fn push(&mut self, id: CallId, method: Option<u32>, permit: HeldPermit) {
        let end = self.note_len(0);
        let nobody = Unwritten { end: 0, id: CallId::CONNECTION, method: None, permit: HeldPermit::default() };
        self.unwritten.push_back(nobody);
        let response = self.unwritten.back_mut().expect("just pushed");
        // Field by field in place: made first and then moved, it would wait for itself.
        response.end = end;
        response.id = id;
        response.method = method;
        response.permit = permit;
    }

    /// Notes a response of which the first part ends where the buffer ends now.
    pub(crate) fn push_parts(&mut self, id: CallId, method: Option<u32>, permit: HeldPermit, remainder: Remainder) {
        self.note_len(remainder.len());
        self.parted.push_back(Parted { id, method, permit, rest: Rest::Body(remainder) });
    }

    /// Notes a response that is the last of `frames`, behind items that its service has sent.
    pub(crate) fn push_items(&mut self, id: CallId, method: Option<u32>, permit: HeldPermit, frames: FrameQueue) {
        self.parted.push_back(Parted { id, method, permit, rest: Rest::Items(frames) });
    }

    /// Notes a stream that has items to be sent.
    pub(crate) fn push_stream(&mut self, stream: Arc<Stream>) {
        self.streams.push_back(stream);
    }

    /// Takes no more items of a call that has ended.
    pub(crate) fn drop_stream(&mut self, id: CallId) {
        self.streams.retain(|stream| stream.id != id);
    }

    /// Gives up what is left of the response of a call whose caller has gone. Whether there was any.
    pub(crate) fn abandon(&mut self, id: CallId) -> bool {
        let before = self.parted.len();
        self.parted.retain(|parted| parted.id != id);
        self.parted.len() < before
    }

    /// Gives up what is left of all responses in parts.
    pub(crate) fn abandon_parts(&mut self) {
        self.parted.clear();
        self.streams.clear();
    }

    /// Notes how long a response is that ends, but for `rest`, where the buffer ends; that place in the stream of all
    /// bytes.
    fn note_len(&mut self, rest: usize) -> u64 {
        let end = self.base + self.out.len() as u64;
        // No more than a part: several long ones shall take turns. And items may stand before it.
        self.last_len = ((end - self.last_end) as usize + rest).min(PART_LEN);
        self.last_end = end;
        end
    }

    /// Bytes that the transport has taken, ever.
    pub(crate) fn sent(&self) -> u64 {
        self.base + self.sent as u64
    }

    /// Bytes that the transport has not taken.
    pub(crate) fn unsent(&self) -> usize {
        self.writable() + self.parted.iter().map(|parted| parted.rest.len()).sum::<usize>()
    }

    /// As `unsent`, at the last flush.
    pub(crate) fn noted(&self) -> usize {
        self.gauge.get()
    }

    /// Bytes that wait for nothing but the transport.
    fn writable(&self) -> usize {
        self.out.len() - self.sent
    }

    /// What counts against the high-water mark. Of a response in parts, only so much: a client that
    /// reads a long one may go on calling, one that reads none of many may not. Nothing of the items in
    /// streams: each of these has bounds of its own, and a few busy ones must not keep calls from being read.
    fn pressure(&self) -> usize {
        let parted = self.parted.iter().map(|parted| parted.rest.len().min(2 * PART_LEN));
        self.writable() + parted.sum::<usize>()
    }

    /// Whether one response more, as long as the last but a part at most, would take what counts above `mark`;
    /// `expected` counts as well. Where nothing waits to be written, there is room for one whatever its length.
    pub(crate) fn is_above(&self, mark: usize, expected: usize) -> bool {
        let pressure = self.pressure();
        let next = if pressure > 0 { self.last_len } else { 0 };
        pressure + expected + next > mark
    }

    /// Gives back what the buffer has in excess, if that is much. For when the peer takes nothing for
    /// now: what is kept for it is then what it is owed.
    pub(crate) fn slim(&mut self) {
        // An empty one is the thread's.
        if self.writable() > 0 && self.out.capacity() - self.writable() > COMPACT_ABOVE {
            self.base += self.sent as u64;
            self.out.drain(..self.sent);
            self.sent = 0;
            self.out.shrink_to_fit();
        }
    }

    /// Puts the next parts into the buffer, one of each response and each stream in turn, as long as
    /// little waits there: what is answered meanwhile is not held up by much.
    fn add_parts(&mut self) {
        while self.writable() < 2 * PART_LEN && !(self.parted.is_empty() && self.streams.is_empty()) {
            if let Some(parted) = self.parted.pop_front() {
                self.add_part(parted);
            }
            if let Some(stream) = self.streams.pop_front()
                && stream.take_part(&mut self.out)
            {
                self.streams.push_back(stream);
            }
        }
    }

    fn add_part(&mut self, mut parted: Parted) {
        let last = match &mut parted.rest {
            Rest::Body(remainder) => remainder.encode_part(&mut self.out, parted.id, self.max_frame),
            Rest::Items(frames) => !frames.take_part(&mut self.out),
        };
        if last {
            self.push(parted.id, parted.method, parted.permit);
        } else {
            self.parted.push_back(parted);
        }
    }

    /// Responses whose bytes have not all left.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten.len() + self.parted.len()
    }

    /// Calls whose responses have not left.
    pub(crate) fn unwritten_calls(&self) -> impl Iterator<Item = (CallId, Option<u32>)> {
        let whole = self.unwritten.iter().map(|response| (response.id, response.method));
        whole.chain(self.parted.iter().map(|parted| (parted.id, parted.method)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writable() == 0
            && self.unwritten.is_empty()
            && self.parted.is_empty()
            && self.streams.is_empty()
            && !self.unflushed
    }

    /// Writes what the transport takes, and calls `written` for each response that has left.
    pub(crate) fn poll_flush<T: AsyncWrite + Unpin>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
        mut written: impl FnMut(&Unwritten),
    ) -> Poll<io::Result<()>> {
        if self.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let begin = self.base + self.sent as u64;
        let result = loop {
            self.compact();
            self.add_parts();
            if self.sent == self.out.len() {
                break Poll::Ready(Ok(()));
            }
            if self.base + self.sent as u64 - begin > MAX_WRITTEN {
                cx.waker().wake_by_ref();
                break Poll::Pending;
            }
            match poll_io(cx, |cx| Pin::new(&mut *io).poll_write(cx, &self.out[self.sent..])) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => {
                    self.sent += n;
                    self.unflushed = true;
                }
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        let flushed = poll_io(cx, |cx| Pin::new(&mut *io).poll_flush(cx))?;
        if flushed.is_ready() {
            self.unflushed = false;
            let left = self.base + self.sent as u64;
            let mut releases = Releases::default();
            while self.unwritten.front().is_some_and(|response| response.end <= left) {
                let Some(response) = self.unwritten.pop_front() else { break };
                written(&response);
                response.permit.release_with(&mut releases);
            }
        }
        self.gauge.set(self.unsent());
        match result {
            Poll::Ready(Ok(())) => flushed.map(Ok),
            other => other,
        }
    }

    /// Drops what has left from the front of the buffer, when that is cheap or much.
    fn compact(&mut self) {
        if self.sent == self.out.len() || self.sent > COMPACT_ABOVE {
            self.base += self.sent as u64;
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }
}

const COMPACT_ABOVE: usize = 64 * 1024;
/// After so many bytes of responses in parts, others get their turn.
const MAX_WRITTEN: u64 = 1024 * 1024;

/// Polls a transport outside of tokio's cooperative budget.
///
/// The budget is the task's, and services polled in place use it up. A write would then look
/// pending, and "pending" would be read as "the peer does not take any more". The loop of the
/// connection bounds its own batches instead.
pub(crate) fn poll_io<R>(cx: &mut Context<'_>, poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> Poll<R> {
    pin!(coop::unconstrained(poll_fn(poll))).poll(cx)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use rpc_core::limit::{CallPermit, ConcurrencyLimit};
    use tokio::io::AsyncReadExt;

    use super::*;

    fn permit(limit: &Arc<ConcurrencyLimit>) -> HeldPermit {
        let mut permit = CallPermit::default();
        permit.push(limit.try_acquire().unwrap());
        permit.into()
    }

    async fn flush(writer: &mut Writer, io: &mut tokio::io::DuplexStream) -> bool {
        poll_fn(|cx| Poll::Ready(writer.poll_flush(io, cx, |_| {}).is_ready())).await
    }

    #[tokio::test]
    async fn a_partial_write_frees_exactly_the_permits_whose_bytes_have_left() {
        let limit = ConcurrencyLimit::new("test", None).unwrap();
        let gauge = Arc::new(AtomicU64::new(0));
        let mut writer = Writer::new(Share::of(&gauge));
        for n in 0..4_u8 {
            writer.out.extend_from_slice(&[n; 10]);
            writer.push(CallId::new(u64::from(n), 0), None, permit(&limit));
        }
        let (mut ours, mut theirs) = tokio::io::duplex(25);
        assert!(!flush(&mut writer, &mut ours).await);
        assert_eq!(limit.snapshot().held, 2, "25 bytes are two responses and a half");
        assert_eq!(gauge.load(std::sync::atomic::Ordering::Relaxed), 15);
        let mut read = [0; 25];
        theirs.read_exact(&mut read[..5]).await.unwrap();
        flush(&mut writer, &mut ours).await;
        assert_eq!(limit.snapshot().held, 1);
        theirs.read_exact(&mut read[..25]).await.unwrap();
        assert!(flush(&mut writer, &mut ours).await);
        assert_eq!(limit.snapshot().held, 0);
        assert!(writer.is_empty());
        assert_eq!(gauge.load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_is_kept_for_a_peer_that_takes_nothing_is_what_it_is_owed() {
        const OWED: usize = 100_000;
        let limit = ConcurrencyLimit::new("test", None).unwrap();
        let mut writer = Writer::new(Share::of(&Arc::new(AtomicU64::new(0))));
        let answers: Vec<_> = (0..OWED + 50_000).map(|n| n as u8).collect();
        writer.out.reserve(4 * OWED);
        writer.out.extend_from_slice(&answers);
        writer.push(CallId::new(1, 0), None, permit(&limit));
        let (mut ours, mut theirs) = tokio::io::duplex(50_000);
        assert!(!flush(&mut writer, &mut ours).await);
        writer.slim();
        assert_eq!((writer.unsent(), writer.out.len()), (OWED, OWED));
        assert!(writer.out.capacity() < 2 * OWED, "{}", writer.out.capacity());
        assert_eq!(limit.snapshot().held, 1);
        // Nothing else has changed.
        let mut read = vec![0; answers.len()];
        for part in read.chunks_mut(50_000) {
            theirs.read_exact(part).await.unwrap();
            flush(&mut writer, &mut ours).await;
        }
        assert!(read == answers && writer.is_empty() && limit.snapshot().held == 0);
    }

    #[test]
    fn a_response_more_must_fit_under_the_mark_unless_it_is_the_only_one() {
        let mut writer = Writer::new(Share::of(&Arc::new(AtomicU64::new(0))));
        // Items that stand between them make the last one no longer than what counts of one.
        for (len, least_mark) in [(100, 200), (100, 300), (1 << 20, (1 << 20) + 200 + PART_LEN)] {
            writer.out.resize(writer.out.len() + len, 0);
            writer.push(CallId::new(1, 0), None, HeldPermit::default());
            assert_eq!([least_mark - 1, least_mark].map(|mark| writer.is_above(mark, 0)), [true, false]);
        }
        let mut writer = Writer::new(Share::of(&Arc::new(AtomicU64::new(0))));
        assert!(!writer.is_above(0, 0), "nothing waits");
        assert!(writer.is_above(9, 10), "tasks are to come to more");
        writer.push_parts(CallId::new(1, 0), None, HeldPermit::default(), remainder(1 << 20));
        assert_eq!([95, 96].map(|kib| writer.is_above(kib << 10, 0)), [true, false]);
    }

    /// What is left of a long body.
    fn remainder(len: usize) -> Remainder {
        let mut out = Vec::new();
        let message = rpc_codec::OpenMessage::response(&mut out);
        out.resize(out.len() + len, 0);
        let bounds = rpc_codec::SendBounds { max_frame: 1 << 20, max_message: u32::MAX };
        message.finish(&mut out, CallId::new(1, 0), bounds).unwrap().unwrap()
    }

    #[tokio::test]
    async fn permits_come_back_when_the_transport_fails() {
        let limit = ConcurrencyLimit::new("test", None).unwrap();
        let mut writer = Writer::new(Share::of(&Arc::new(AtomicU64::new(0))));
        writer.out.extend_from_slice(b"response");
        writer.push(CallId::new(1, 0), None, permit(&limit));
        let (mut ours, theirs) = tokio::io::duplex(4);
        drop(theirs);
        assert!(flush(&mut writer, &mut ours).await, "an error is ready");
        assert_eq!(limit.snapshot().held, 1);
        drop(writer);
        assert_eq!(limit.snapshot().held, 0);
    }
}
