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
    /// `waker` is woken when that has changed. Nothing `long` may be before the server has said what it takes.
    fn poll_room(&self, id: CallId, long: bool, waker: &Waker) -> Poll<Result<(i64, usize), CallError>> {
        let mut state = self.lock();
        let may_be_long = !long || state.greeted;
        let Some(items) = state.slots.items(id) else {
            return Poll::Ready(Err(CallError::Ended { peer: Arc::clone(&self.peer) }));
        };
        if items.is_ready() && may_be_long {
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
///
/// An item of more than 64 KiB waits as well until a server that has just been connected to has said what it takes. As a
/// [`Sink`] it keeps such an item until it is flushed, closed, or asked for room for the next.
pub struct ItemSink<T, W: EncodeItem<T>> {
    connection: Arc<Connection>,
    id: CallId,
    codec: CodecId,
    batch: Vec<u8>,
    /// An item, encoded, that goes before all others, but is too long until the server has said what it takes.
    held: Option<Vec<u8>>,
    ended: bool,
    form: PhantomData<fn(T) -> W>,
}

impl<T, W: EncodeItem<T>> ItemSink<T, W> {
    pub(crate) fn new(opened: &Opened) -> Self {
        let (connection, id, codec) = (Arc::clone(&opened.connection), opened.id, opened.codec);
        Self { connection, id, codec, batch: Vec::new(), held: None, ended: false, form: PhantomData }
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
        let mut long = false;
        loop {
            poll_fn(|cx| self.poll_sendable(long, cx)).await?;
            // Only here: what the sink held would be sent without its future.
            match self.push(&item)? {
                Pushed::Now => return Ok(()),
                Pushed::MayBeTooLong => long = true,
            }
        }
    }

    /// Whether an item could be sent now without waiting.
    pub fn is_ready(&self) -> bool {
        !self.ended
            && self.held.is_none()
            && self.connection.look_at_items(self.id, |items| items.is_ready()).unwrap_or(false)
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
        poll_fn(|cx| self.poll_sendable(false, cx)).await.map(|_| ())
    }

    /// Says that the last item was sent. The answer still comes. A [`Sink`] that was not flushed behind a long item may
    /// still hold that; then this is as to drop it.
    pub fn end(mut self) {
        if self.held.is_none() {
            self.say_end();
        }
    }

    /// Bytes of items that have not been queued for the transport.
    pub fn pending(&self) -> usize {
        let queued = self.connection.look_at_items(self.id, |items| items.outflow.queue.len());
        queued.unwrap_or(0) + self.held.as_ref().map_or(0, Vec::len)
    }

    /// How many bytes may be pending before the producer waits. Default: 32 KiB. One item goes beyond it.
    pub fn set_threshold(&mut self, bytes: usize) {
        let waker = self.connection.look_at_items(self.id, |items| {
            items.threshold = bytes.max(1);
            items.ready_sender()
        });
        wake(waker.flatten());
    }

    /// Waits until an item, which may be a `long` one, can be sent behind what is held.
    fn poll_sendable(&mut self, long: bool, cx: &mut Context<'_>) -> Poll<Result<(i64, usize), CallError>> {
        if self.ended {
            return Poll::Ready(Err(misused(&self.connection.peer, BEHIND_END)));
        }
        ready!(proceed(cx));
        loop {
            let room = self.connection.poll_room(self.id, long || self.held.is_some(), cx.waker());
            if self.held.is_none() {
                return room;
            }
            ready!(room)?;
            self.push_held()?;
        }
    }

    /// Waits until nothing is held any more.
    fn poll_flushed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        if self.held.is_none() { Poll::Ready(Ok(())) } else { self.poll_sendable(false, cx).map_ok(|_| ()) }
    }

    /// The server has said what it takes by now.
    #[cold]
    fn push_held(&mut self) -> Result<(), CallError> {
        let held = self.held.take().unwrap_or_default();
        let bounds = self.connection.bounds();
        self.batch.clear();
        let encoded = encode_item(&mut self.batch, self.id, bounds, |out| {
            out.extend_from_slice(&held);
            Ok(())
        });
        let charged = encoded.map(charge).map_err(|error| self.refused(error))?;
        self.connection.push_items(self.id, &mut self.batch, 1, charged)
    }

    fn push(&mut self, item: &T) -> Result<Pushed, CallError> {
        if self.ended {
            return Err(misused(&self.connection.peer, BEHIND_END));
        }
        // A panic of theirs may have left something.
        self.batch.clear();
        let Some(charged) = self.encode(item)? else { return Ok(Pushed::MayBeTooLong) };
        self.connection.push_items(self.id, &mut self.batch, 1, charged).map(|()| Pushed::Now)
    }

    /// Keeps an item until the server has said what it takes.
    #[cold]
    fn hold(&mut self, item: &T) -> Result<(), CallError> {
        let mut held = Vec::new();
        W::encode(self.codec, item, &mut held).map_err(CallError::EncodeItem)?;
        self.held = Some(held);
        Ok(())
    }

    fn say_end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.batch.clear();
            encode_end(&mut self.batch, self.id);
            // END needs no credit.
            let _ = self.connection.push_items(self.id, &mut self.batch, 0, 0);
        }
    }

    /// Adds an item to the batch, and says what it costs; `None` if it is too long for a server that may take more than it
    /// must, but has not said so yet, or says so right now.
    #[inline]
    fn encode(&mut self, item: &T) -> Result<Option<i64>, CallError> {
        let (bounds, codec) = (self.connection.bounds(), self.codec);
        match encode_item(&mut self.batch, self.id, bounds, |out| W::encode(codec, item, out)) {
            Ok(len) => Ok(Some(charge(len))),
            // In this order: once it has greeted, what it takes is known.
            Err(ItemError::TooLong(_)) if !self.connection.is_greeted() || self.connection.bounds() != bounds => {
                Ok(None)
            }
            Err(error) => Err(self.refused(error)),
        }
    }

    #[cold]
    fn refused(&self, error: ItemError<PayloadError>) -> CallError {
        match error {
            ItemError::Encode(error) => CallError::EncodeItem(error),
            ItemError::TooLong(error) => {
                let (len, max) = sizes(&error);
                CallError::ItemTooLarge { peer: Arc::clone(&self.connection.peer), len, max }
            }
        }
    }

    /// Sends what `items` has, and END behind the last of them.
    pub(crate) fn poll_send_all(
        &mut self,
        mut items: Pin<&mut (impl Stream<Item = T> + ?Sized)>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), CallError>> {
        loop {
            let (credit, room) = ready!(self.poll_sendable(false, cx))?;
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
                        Ok(Some(charge)) => (count, charged) = (count + 1, charged + charge),
                        Ok(None) => break self.hold(&item).err().map(|error| Poll::Ready(Err(error))),
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
        self.get_mut().poll_sendable(false, cx).map_ok(|_| ())
    }

    fn start_send(self: Pin<&mut Self>, item: T) -> Result<(), CallError> {
        let this = self.get_mut();
        if this.held.is_some() {
            return Err(misused(&this.connection.peer, WITHOUT_ROOM));
        }
        match this.push(&item)? {
            Pushed::Now => Ok(()),
            Pushed::MayBeTooLong => this.hold(&item),
        }
    }

    /// There is nothing to flush but what is held: the connection takes what is queued by itself.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.get_mut().poll_flushed(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let this = self.get_mut();
        ready!(this.poll_flushed(cx))?;
        this.say_end();
        Poll::Ready(Ok(()))
    }
}

/// What became of an item that was to be sent.
enum Pushed {
    Now,
    /// Not sent: whether it can be is known when the server has said what it takes.
    MayBeTooLong,
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
