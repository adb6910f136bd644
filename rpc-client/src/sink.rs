//! A call with items that is out: what is sent of it.

use std::{
    fmt,
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use futures::{Sink, Stream};
use rpc_codec::{CodecId, EncodeItem, ItemError, PayloadError, charge, encode_end, encode_item};
use rpc_core::CallId;

use crate::{
    call::sizes,
    connection::{Connection, wake},
    error::CallError,
    queue::Withdrawal,
    stream::{Opened, proceed},
};

impl Connection {
    /// How much may be sent of a call at once, as credit and as bytes that may become pending. If nothing may be,
    /// `waker` is woken when that has changed.
    fn poll_room(&self, id: CallId, waker: &Waker) -> Poll<Result<(i64, usize), CallError>> {
        let mut state = self.lock();
        let Some(items) = state.slots.items(id) else {
            return Poll::Ready(Err(CallError::Ended { peer: Arc::clone(&self.peer) }));
        };
        if items.is_ready() {
            return Poll::Ready(Ok((items.outflow.credit(), items.threshold - items.outflow.queue.len())));
        }
        if !items.sender.as_ref().is_some_and(|known| known.will_wake(waker)) {
            items.sender = Some(waker.clone());
        }
        Poll::Pending
    }

    /// Puts items of a call into its queue, or END if there are none. Of a call that has ended nothing is kept.
    /// Items for which there is no credit are refused: the server would end the connection, which others share.
    fn push_items(&self, id: CallId, batch: &mut Vec<u8>, items: u64, charged: i64) -> Result<(), CallError> {
        let task = {
            let mut state = self.lock();
            let Some(queue) = state.slots.items(id) else {
                batch.clear();
                return Ok(());
            };
            if items > 0 && queue.outflow.credit() <= 0 {
                return Err(misused(&self.peer, WITHOUT_ROOM));
            }
            queue.outflow.push(batch, items, charged);
            queue.ended |= items == 0;
            state.list_items(id);
            state.wake_task()
        };
        wake(task);
        Ok(())
    }

    fn look_at_items<R>(&self, id: CallId, look: impl FnOnce(&mut crate::items::Items) -> R) -> Option<R> {
        self.lock().slots.items(id).map(look)
    }

    /// The sink of a call was dropped before it was closed: the call ends, and who waits for it is told.
    fn cut_short(&self, id: CallId) {
        let (task, woken) = {
            let mut state = self.lock();
            if state.slots.items(id).is_none_or(|items| items.ended) {
                return;
            }
            let had_parts_to_come = state.stop_upload(id);
            state.slots.give_up(id, CallError::SinkDropped { peer: Arc::clone(&self.peer) });
            state.withdrawals.push(Withdrawal::new(id, had_parts_to_come).with_items(true));
            (state.wake_task(), std::mem::take(&mut state.slots.woken))
        };
        woken.into_iter().for_each(Waker::wake);
        wake(task);
    }
}

/// Where a client puts the items that it sends: a [`Sink`], and the same by methods.
///
/// [`Self::end`], or closing the sink, says that the last item was sent. **Dropping it before that
/// cancels the call**: half a stream must not look like a whole one. An item is sent whole or not at
/// all.
///
/// # Pacing
///
/// [`Self::send`] waits while the server has given no credit, or while more than a threshold in bytes
/// is pending: encoded, and not yet on its way. [`Self::is_ready`] says without waiting whether it
/// would, and [`Self::ready`] waits until it would not. Both are hints: nothing is reserved by them.
pub struct ItemSink<T, W: EncodeItem<T>> {
    connection: Arc<Connection>,
    id: CallId,
    codec: CodecId,
    batch: Vec<u8>,
    ended: bool,
    form: PhantomData<fn(T) -> W>,
}

impl<T, W: EncodeItem<T>> ItemSink<T, W> {
    pub(crate) fn new(opened: &Opened) -> Self {
        let (connection, id, codec) = (Arc::clone(&opened.connection), opened.id, opened.codec);
        Self { connection, id, codec, batch: Vec::new(), ended: false, form: PhantomData }
    }

    /// Sends an item when the server's credit and what is pending allow it.
    ///
    /// # Errors
    ///
    /// The call has ended, and its answer says how. Or the item cannot be encoded, or is longer than
    /// the server takes; it is not sent then. Or the sink was closed as a [`Sink`]. But for the first the call goes
    /// on if the sink does.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the item is not sent, and gone with the future.
    pub async fn send(&mut self, item: T) -> Result<(), CallError> {
        self.ready().await?;
        self.push(&item)
    }

    /// Whether an item could be sent now without waiting.
    pub fn is_ready(&self) -> bool {
        !self.ended && self.connection.look_at_items(self.id, |items| items.is_ready()).unwrap_or(false)
    }

    /// Waits until an item can be sent without waiting.
    ///
    /// # Errors
    ///
    /// The call has ended, or the sink was closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn ready(&mut self) -> Result<(), CallError> {
        poll_fn(|cx| self.poll_sendable(cx)).await.map(|_| ())
    }

    /// Says that the last item was sent. The answer still comes.
    pub fn end(mut self) {
        self.say_end();
    }

    /// Bytes of items that have not been queued for the transport.
    pub fn pending(&self) -> usize {
        self.connection.look_at_items(self.id, |items| items.outflow.queue.len()).unwrap_or(0)
    }

    /// How many bytes may be pending before the producer waits. Default: 32 KiB. One item goes beyond it.
    pub fn set_threshold(&mut self, bytes: usize) {
        let waker = self.connection.look_at_items(self.id, |items| {
            items.threshold = bytes.max(1);
            items.ready_sender()
        });
        wake(waker.flatten());
    }

    fn poll_sendable(&self, cx: &mut Context<'_>) -> Poll<Result<(i64, usize), CallError>> {
        if self.ended {
            return Poll::Ready(Err(misused(&self.connection.peer, BEHIND_END)));
        }
        ready!(proceed(cx));
        self.connection.poll_room(self.id, cx.waker())
    }

    fn push(&mut self, item: &T) -> Result<(), CallError> {
        if self.ended {
            return Err(misused(&self.connection.peer, BEHIND_END));
        }
        // A panic of theirs may have left something.
        self.batch.clear();
        let charged = self.encode(item)?;
        self.connection.push_items(self.id, &mut self.batch, 1, charged)
    }

    fn say_end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.batch.clear();
            encode_end(&mut self.batch, self.id);
            // END needs no credit.
            let _ = self.connection.push_items(self.id, &mut self.batch, 0, 0);
        }
    }

    /// Adds an item to the batch, and says what it costs.
    #[inline]
    fn encode(&mut self, item: &T) -> Result<i64, CallError> {
        let (bounds, codec) = (self.connection.bounds(), self.codec);
        encode_item(&mut self.batch, self.id, bounds, |out| W::encode(codec, item, out)).map(charge).map_err(
            |error: ItemError<PayloadError>| match error {
                ItemError::Encode(error) => CallError::EncodeItem(error),
                ItemError::TooLong(error) => {
                    let (len, max) = sizes(&error);
                    CallError::ItemTooLarge { peer: Arc::clone(&self.connection.peer), len, max }
                }
            },
        )
    }

    /// Sends what `items` has, and END behind the last of them.
    pub(crate) fn poll_send_all(
        &mut self,
        mut items: Pin<&mut (impl Stream<Item = T> + ?Sized)>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), CallError>> {
        loop {
            let (credit, room) = ready!(self.poll_sendable(cx))?;
            self.batch.clear();
            let (mut count, mut charged) = (0, 0);
            let end = loop {
                if charged >= credit || self.batch.len() >= room {
                    break None;
                }
                match items.as_mut().poll_next(cx) {
                    Poll::Pending => break Some(Poll::Pending),
                    Poll::Ready(None) => break Some(Poll::Ready(Ok(()))),
                    Poll::Ready(Some(item)) => match self.encode(&item) {
                        Ok(charge) => (count, charged) = (count + 1, charged + charge),
                        Err(error) => break Some(Poll::Ready(Err(error))),
                    },
                }
            };
            if count > 0 {
                self.connection.push_items(self.id, &mut self.batch, count, charged)?;
            }
            match end {
                None => {}
                Some(Poll::Ready(Ok(()))) => {
                    self.say_end();
                    return Poll::Ready(Ok(()));
                }
                Some(end) => return end,
            }
        }
    }
}

impl<T, W: EncodeItem<T>> Sink<T> for ItemSink<T, W> {
    type Error = CallError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.poll_sendable(cx).map_ok(|_| ())
    }

    fn start_send(self: Pin<&mut Self>, item: T) -> Result<(), CallError> {
        self.get_mut().push(&item)
    }

    /// There is nothing to flush: the connection takes what is queued by itself.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.get_mut().say_end();
        Poll::Ready(Ok(()))
    }
}

#[cold]
fn misused(peer: &Arc<str>, how: &'static str) -> CallError {
    CallError::SinkMisused { peer: Arc::clone(peer), how }
}

const BEHIND_END: &str = "behind its end";
const WITHOUT_ROOM: &str = "without having asked whether there is room";

impl<T, W: EncodeItem<T>> Unpin for ItemSink<T, W> {}

impl<T, W: EncodeItem<T>> Drop for ItemSink<T, W> {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.cut_short(self.id);
        }
    }
}

impl<T, W: EncodeItem<T>> fmt::Debug for ItemSink<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemSink").field("call", &self.id).field("ended", &self.ended).finish_non_exhaustive()
    }
}
