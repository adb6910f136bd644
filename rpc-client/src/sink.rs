//! A call with items that is out: what is sent of it.

use std::{
    fmt,
    future::poll_fn,
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use futures::{Sink, Stream};
use rpc_codec::{CodecId, EncodeError, EncodeItem, ItemError, PayloadError, charge, encode_item};
use rpc_core::CallId;

use crate::{
    call::sizes,
    connection::{Connection, State, wake},
    error::CallError,
    items::Items,
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
        if let Some(error) = items.take_too_long() {
            return Poll::Ready(Err(too_large(&self.peer, &error)));
        }
        let _replaced = items.wake_later(waker);
        drop(state);
        Poll::Pending
    }

    /// Whether it is settled what becomes of the long item that was kept last, if any was. If not, `waker` is woken then.
    fn poll_settled(&self, id: CallId, waker: &Waker) -> Poll<Result<(), CallError>> {
        let mut state = self.lock();
        // Of a call that has ended, its answer says how.
        let Some(items) = state.slots.items(id) else { return Poll::Ready(Ok(())) };
        if let Some(error) = items.take_too_long() {
            return Poll::Ready(Err(too_large(&self.peer, &error)));
        }
        if !items.keeps_long() {
            return Poll::Ready(Ok(()));
        }
        let _replaced = items.wake_later(waker);
        drop(state);
        Poll::Pending
    }

    /// Puts items of a call into its queue. Of a call that has ended nothing is kept.
    /// Items for which there is no credit are refused: the server would end the connection, which others share. So are
    /// those behind one that is kept, which goes before them.
    fn push_items(&self, id: CallId, batch: &mut Vec<u8>, items: u64, charged: i64) -> Result<(), CallError> {
        let task = {
            let mut state = self.lock();
            let Some(queue) = state.slots.items(id) else {
                batch.clear();
                return Ok(());
            };
            if !queue.may_send() {
                return Err(misused(&self.peer, WITHOUT_ROOM));
            }
            queue.outflow.push(batch, items, charged);
            state.list_items(id);
            state.wake_task()
        };
        wake(task);
        Ok(())
    }

    /// Keeps an encoded item that is too long until the server has said what it takes: it goes into the queue then. If the
    /// server says so right now, it does at once.
    #[cold]
    fn keep_long(&self, id: CallId, item: Vec<u8>) -> Result<(), CallError> {
        let (kept, task, woken) = {
            let mut state = self.lock();
            let greeted = state.greeted;
            let Some(items) = state.slots.items(id) else { return Ok(()) };
            if !items.may_send() {
                return Err(misused(&self.peer, WITHOUT_ROOM));
            }
            items.keep_long(item);
            if greeted {
                self.settle_long(&mut state, id);
            }
            let too_long = state.slots.items(id).and_then(Items::take_too_long);
            let kept = too_long.map_or(Ok(()), |error| Err(too_large(&self.peer, &error)));
            (kept, state.wake_task(), mem::take(&mut state.slots.woken))
        };
        woken.into_iter().for_each(Waker::wake);
        wake(task);
        kept
    }

    /// The server has said what it takes, and so what becomes of a long item: it is sent, or its sink is told that it cannot
    /// be. Behind the end nobody is there to be told, and the call fails.
    pub(crate) fn settle_long(&self, state: &mut State, id: CallId) {
        let bounds = self.bounds();
        let Some(items) = state.slots.items(id) else { return };
        items.settle_long(id, bounds);
        let too_long = if items.ended { items.take_too_long() } else { None };
        let waker = items.sender.take();
        state.slots.woken.extend(waker);
        match too_long {
            None => state.list_items(id),
            Some(error) => state.break_off(id, too_large(&self.peer, &error)),
        }
    }

    /// The last item was sent. If nobody has been told of one that was too long, that was not all, and the call fails.
    fn end_items(&self, id: CallId) {
        let (task, woken) = {
            let mut state = self.lock();
            let Some(items) = state.slots.items(id) else { return };
            match items.take_too_long() {
                Some(error) => state.break_off(id, too_large(&self.peer, &error)),
                None => {
                    items.end(id);
                    state.list_items(id);
                }
            }
            (state.wake_task(), mem::take(&mut state.slots.woken))
        };
        woken.into_iter().for_each(Waker::wake);
        wake(task);
    }

    fn look_at_items<R>(&self, id: CallId, look: impl FnOnce(&mut Items) -> R) -> Option<R> {
        self.lock().slots.items(id).map(look)
    }

    /// The sink of a call was dropped before it was closed: the call ends, and who waits for it is told.
    fn cut_short(&self, id: CallId) {
        let (task, woken) = {
            let mut state = self.lock();
            if state.slots.items(id).is_none_or(|items| items.ended) {
                return;
            }
            state.break_off(id, CallError::SinkDropped { peer: Arc::clone(&self.peer) });
            (state.wake_task(), mem::take(&mut state.slots.woken))
        };
        woken.into_iter().for_each(Waker::wake);
        wake(task);
    }
}

impl State {
    /// Ends a call that lacks an item of its client's: who waits for it is told, and so is the server.
    fn break_off(&mut self, id: CallId, error: CallError) {
        let had_parts_to_come = self.stop_upload(id);
        self.slots.give_up(id, error);
        self.withdrawals.push(Withdrawal::new(id, had_parts_to_come).with_items(true));
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
/// An item of more than 64 KiB waits as well until a server that has just been connected to has said what it takes. A [`Sink`]
/// takes such an item before that, and it is sent as soon as it may be. To flush, to close or to ask for room for the next waits
/// until that is known, and fails if the server takes no items as long as that; behind [`Self::end`] the call does.
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
        let mut long = false;
        loop {
            poll_fn(|cx| self.poll_sendable(long, cx)).await?;
            // Only here: what the connection keeps is sent without its future.
            match self.push(&item)? {
                Pushed::Now => return Ok(()),
                Pushed::MayBeTooLong => long = true,
            }
        }
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
        poll_fn(|cx| self.poll_sendable(false, cx)).await.map(|_| ())
    }

    /// Says that the last item was sent. The answer still comes; it is [`CallError::ItemTooLarge`] if a long item that this
    /// took as a [`Sink`], and was not flushed behind, turns out to be longer than the server takes.
    pub fn end(mut self) {
        self.say_end();
    }

    /// Bytes of items that have not been queued for the transport.
    pub fn pending(&self) -> usize {
        self.connection.look_at_items(self.id, |items| items.pending()).unwrap_or(0)
    }

    /// How many bytes may be pending before the producer waits. Default: 32 KiB. One item goes beyond it.
    pub fn set_threshold(&mut self, bytes: usize) {
        let waker = self.connection.look_at_items(self.id, |items| {
            items.threshold = bytes.max(1);
            items.ready_sender()
        });
        wake(waker.flatten());
    }

    /// Waits until an item, which may be a `long` one, can be sent.
    fn poll_sendable(&mut self, long: bool, cx: &mut Context<'_>) -> Poll<Result<(i64, usize), CallError>> {
        if self.ended {
            return Poll::Ready(Err(misused(&self.connection.peer, BEHIND_END)));
        }
        ready!(proceed(cx));
        self.connection.poll_room(self.id, long, cx.waker())
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

    /// Leaves an item to the connection until the server has said what it takes.
    #[cold]
    fn keep(&self, item: &T) -> Result<(), CallError> {
        let mut encoded = Vec::new();
        W::encode(self.codec, item, &mut encoded).map_err(CallError::EncodeItem)?;
        self.connection.keep_long(self.id, encoded)
    }

    fn say_end(&mut self) {
        if !mem::replace(&mut self.ended, true) {
            self.connection.end_items(self.id);
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
            ItemError::TooLong(error) => too_large(&self.connection.peer, &error),
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
            let (mut count, mut charged, mut long) = (0, 0, None);
            let end = loop {
                if charged >= credit || self.batch.len() >= room {
                    break None;
                }
                match items.as_mut().poll_next(cx) {
                    Poll::Pending => break Some(Poll::Pending),
                    Poll::Ready(None) => break Some(Poll::Ready(Ok(()))),
                    Poll::Ready(Some(item)) => match self.encode(&item) {
                        Ok(Some(charge)) => (count, charged) = (count + 1, charged + charge),
                        Ok(None) => {
                            long = Some(item);
                            break None;
                        }
                        Err(error) => break Some(Poll::Ready(Err(error))),
                    },
                }
            };
            if count > 0 {
                self.connection.push_items(self.id, &mut self.batch, count, charged)?;
            }
            if let Some(item) = long {
                self.keep(&item)?;
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
        match this.push(&item)? {
            Pushed::Now => Ok(()),
            Pushed::MayBeTooLong => this.keep(&item),
        }
    }

    /// The connection sends what it has by itself, and this waits for no room: only until it is known that it may.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.connection.poll_settled(self.id, cx.waker())
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let this = self.get_mut();
        ready!(this.connection.poll_settled(this.id, cx.waker()))?;
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
fn too_large(peer: &Arc<str>, error: &EncodeError) -> CallError {
    let (len, max) = sizes(error);
    CallError::ItemTooLarge { peer: Arc::clone(peer), len, max }
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
