//! The sending end of a stream, as a service has it.

use std::{
    fmt,
    future::poll_fn,
    marker::PhantomData,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context as TaskContext, Poll, ready},
};

use rpc_codec::{CodecId, EncodeItem, ItemError, PayloadError, charge, encode_item};
use rpc_core::{ItemSender, ItemSink, Status};

use tokio::task::coop;

use crate::stream::Stream;

/// Where the items of a call go: what a generated server makes an [`ItemSender`] of, or drives a stream into.
pub struct Outlet<T, W> {
    stream: Arc<Stream>,
    codec: CodecId,
    /// Items that are not in the stream's queue yet; empty between polls.
    batch: Vec<u8>,
    /// So many items may be sent one by one before that is a unit of the cooperative budget.
    free: u32,
    form: PhantomData<fn(T) -> W>,
}

impl<T: Send + 'static, W: EncodeItem<T>> Outlet<T, W> {
    pub(crate) fn new(stream: Arc<Stream>, codec: CodecId) -> Self {
        Self { stream, codec, batch: Vec::new(), free: 0, form: PhantomData }
    }

    /// For a service that sends items one by one.
    pub fn into_sender(self) -> ItemSender<T> {
        ItemSender::new(self)
    }

    /// Sends what `items` has, to its end or its first error. It is polled while the client's credit
    /// and what is pending allow it, and at no other time; what is ready at once goes in one batch.
    ///
    /// # Errors
    ///
    /// That of `items`, behind the items before it. The call has ended. An item cannot be encoded, or
    /// is longer than the client takes.
    pub async fn send_all<E: Into<Status>>(
        mut self,
        items: impl futures::Stream<Item = Result<T, E>>,
    ) -> Result<(), Status> {
        let mut items = pin!(items);
        poll_fn(|cx| self.poll_send_all(items.as_mut(), cx)).await
    }

    fn poll_send_all<E: Into<Status>>(
        &mut self,
        mut items: Pin<&mut impl futures::Stream<Item = Result<T, E>>>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<(), Status>> {
        loop {
            ready!(proceed(cx));
            let (credit, room) = ready!(self.stream.poll_send(cx.waker()))?;
            // A panic of theirs in the last poll may have left something.
            self.batch.clear();
            let (mut count, mut charged) = (0, 0);
            let end = loop {
                if charged >= credit || self.batch.len() >= room {
                    break None;
                }
                match items.as_mut().poll_next(cx) {
                    Poll::Pending => break Some(Poll::Pending),
                    Poll::Ready(None) => break Some(Poll::Ready(Ok(()))),
                    Poll::Ready(Some(Err(error))) => break Some(Poll::Ready(Err(error.into()))),
                    Poll::Ready(Some(Ok(item))) => match self.encode(&item) {
                        Ok(charge) => (count, charged) = (count + 1, charged + charge),
                        Err(status) => break Some(Poll::Ready(Err(status))),
                    },
                }
            };
            if count > 0 {
                self.stream.push(&mut self.batch, count, charged)?;
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Adds an item to the batch, and says what it costs.
    #[inline]
    fn encode(&mut self, item: &T) -> Result<i64, Status> {
        let Self { stream, codec, batch, .. } = self;
        encode_item(batch, stream.id, stream.bounds, |out| W::encode(*codec, item, out))
            .map(charge)
            .map_err(|error| refuse(&error))
    }
}

impl<T: Send + 'static, W: EncodeItem<T>> ItemSink<T> for Outlet<T, W> {
    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Status>> {
        if self.free == 0 {
            ready!(proceed(cx));
            self.free = ITEMS_PER_UNIT;
        }
        self.free -= 1;
        self.stream.poll_send(cx.waker()).map_ok(|_| ())
    }

    fn stop_waiting(&mut self) {
        self.stream.stop_waiting_to_send();
    }

    fn start_send(&mut self, item: T) -> Result<(), Status> {
        self.batch.clear();
        let charged = self.encode(&item)?;
        self.stream.push(&mut self.batch, 1, charged)
    }

    fn poll_closed(&mut self, cx: &mut TaskContext<'_>) -> Poll<Status> {
        self.stream.poll_closed(cx.waker())
    }

    fn is_ready(&self) -> bool {
        self.stream.is_ready()
    }

    fn pending(&self) -> usize {
        self.stream.pending()
    }

    fn set_threshold(&mut self, bytes: usize) {
        self.stream.set_threshold(bytes);
    }
}

/// Who waited for room does not any more.
impl<T, W> Drop for Outlet<T, W> {
    fn drop(&mut self) {
        self.stream.stop_waiting_to_send();
    }
}

/// Takes part in tokio's cooperative budget: a service whose connection runs on another thread might never have to
/// wait, and would keep its own.
pub(crate) fn proceed(cx: &mut TaskContext<'_>) -> Poll<()> {
    if coop::has_budget_remaining() {
        return coop::poll_proceed(cx).map(|progress| progress.made_progress());
    }
    // tokio would wake us when its thread has nothing else to do. The services of a connection share
    // the budget, and those behind the first few would hardly ever have a turn.
    cx.waker().wake_by_ref();
    Poll::Pending
}

#[cold]
fn refuse(error: &ItemError<PayloadError>) -> Status {
    match error {
        ItemError::Encode(error) => Status::internal(format!("an item cannot be encoded: {error}")),
        ItemError::TooLong(error) => Status::resource_exhausted(format!("an item is too large: {error}")),
    }
}

/// As many items as a turn has calls: 128 units are a few turns' worth of small ones.
const ITEMS_PER_UNIT: u32 = 64;

impl<T, W> fmt::Debug for Outlet<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("call", &self.stream.id).finish_non_exhaustive()
    }
}
