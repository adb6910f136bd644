//! A call with items that is out: what comes back of it.

use std::{
    fmt,
    future::{Future, poll_fn},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use futures::Stream;
use rpc_codec::{CodecId, DecodeItem, Intake};
use rpc_core::{CallId, Metadata};
use tokio::task::coop;

use crate::{
    client::Response,
    connection::{Connection, wake},
    error::CallError,
    intercept::{Outcome, StreamWatch},
    scratch,
    slots::Came,
};

/// Takes part in tokio's cooperative budget: where the connection's task runs on another thread, a
/// producer or a consumer might never have to wait, and would keep its own.
pub(crate) fn proceed(cx: &mut Context<'_>) -> Poll<()> {
    coop::poll_proceed(cx).map(|progress| progress.made_progress())
}

/// A call that is out. Its drop gives it up, if it has not ended.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) connection: Arc<Connection>,
    pub(crate) id: CallId,
    pub(crate) codec: CodecId,
    /// If interceptors are to be told of its end.
    pub(crate) watch: Option<Box<StreamWatch>>,
}

impl Opened {
    /// The call has ended like this.
    fn ends(mut self, outcome: Outcome<'_>) {
        if let Some(mut watch) = self.watch.take() {
            watch.tell(outcome);
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.connection.abandon(self.id);
    }
}

impl Connection {
    /// Items of a call that have come, or its outcome behind them.
    fn poll_items(
        &self,
        id: CallId,
        intake: &mut Intake,
        waker: &Waker,
        body: &mut Vec<u8>,
    ) -> Poll<Result<Came, Box<CallError>>> {
        let (came, next, task) = {
            let mut state = self.lock();
            let came = state.slots.take_items(id, intake, waker, body);
            // What is left of a call that has ended is freed when its outcome is taken.
            let ended = matches!(came, Ok(Ok(Came::End(_)) | Err(_)));
            if ended { (came, state.next_for_room(), state.last_one_out()) } else { (came, None, None) }
        };
        wake(next);
        wake(task);
        came.map_or(Poll::Pending, Poll::Ready)
    }

    /// Lets the server send so many bytes of items more.
    fn give_credit(&self, id: CallId, bytes: u32) {
        let task = {
            let mut state = self.lock();
            state.give_credit(id, bytes);
            state.wake_task()
        };
        wake(task);
    }
}

/// The items that a server sends.
///
/// It ends with `None` when the server's method has returned, or with the error that it returned, or that befell
/// the call: exactly one of the two, behind all items that had come before.
///
/// # Pacing
///
/// What has come and was not taken is bounded by the client's stream window and one item. A consumer that takes
/// none stops the server's producer, and nobody else.
///
/// # Cancel safety
///
/// Futures that wait for an item lose nothing when they are dropped. Dropping the stream gives the call up: the
/// server is told, and drops the producer at its next await.
pub struct ItemStream<T, W> {
    opened: Option<Opened>,
    peer: Arc<str>,
    intake: Intake,
    trailers: Option<Metadata>,
    form: PhantomData<fn() -> (T, W)>,
}

impl<T, W: DecodeItem<T>> ItemStream<T, W> {
    pub(crate) fn new(opened: Opened) -> Self {
        let (peer, intake) = (Arc::clone(&opened.connection.peer), Intake::new(opened.connection.window));
        Self { opened: Some(opened), peer, intake, trailers: None, form: PhantomData }
    }

    /// The next item; `None` behind the last one.
    ///
    /// # Errors
    ///
    /// The call has failed, or an item cannot be decoded; that ends it as well.
    pub async fn message(&mut self) -> Result<Option<T>, CallError> {
        poll_fn(|cx| self.poll_item(cx)).await.transpose()
    }

    /// The metadata that the server has put beside the end of the stream, once that has come and was no error. An
    /// error has its own: [`rpc_core::Status::metadata`].
    pub fn trailers(&self) -> Option<&Metadata> {
        self.trailers.as_ref()
    }

    /// From now on gives credit back for as many items as [`Self::request`] asks for, not for each that was
    /// taken. What the server may send without, the window, is not taken back.
    pub fn set_manual(&mut self) {
        self.intake.be_manual();
    }

    /// Gives credit back for so many items, those first that were taken already. Without
    /// [`Self::set_manual`] it does nothing.
    pub fn request(&mut self, items: u64) {
        self.intake.request(items);
        self.give_back();
    }

    fn give_back(&mut self) {
        let due = self.intake.due();
        if due > 0
            && let Some(opened) = &self.opened
        {
            opened.connection.give_credit(opened.id, due);
        }
    }

    /// The caller is told this error, and gives the call up.
    pub(crate) fn fail(&mut self, error: &CallError) {
        self.ends(Outcome::Error(error));
    }

    fn ends(&mut self, outcome: Outcome<'_>) {
        if let Some(opened) = self.opened.take() {
            opened.ends(outcome);
        }
    }

    pub(crate) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, CallError>>> {
        loop {
            let Some(opened) = &self.opened else { return Poll::Ready(None) };
            if let Some(item) = self.intake.next_item() {
                let decoded = W::decode(opened.codec, item);
                if self.intake.is_due() {
                    self.give_back();
                }
                return Poll::Ready(Some(decoded.map_err(|source| {
                    let error = CallError::Decode { peer: Arc::clone(&self.peer), source };
                    self.ends(Outcome::Error(&error));
                    error
                })));
            }
            ready!(proceed(cx));
            let (connection, id) = (&opened.connection, opened.id);
            let came = scratch::with_call_buffer(|body| connection.poll_items(id, &mut self.intake, cx.waker(), body));
            match ready!(came) {
                Ok(Came::Items) => {}
                Ok(Came::End(trailers)) => {
                    self.trailers = Some(trailers);
                    self.ends(Outcome::Reply);
                    return Poll::Ready(None);
                }
                Err(error) => {
                    self.ends(Outcome::Error(&error));
                    return Poll::Ready(Some(Err(*error)));
                }
            }
        }
    }
}

impl<T, W: DecodeItem<T>> Stream for ItemStream<T, W> {
    type Item = Result<T, CallError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(cx)
    }
}

impl<T, W> Unpin for ItemStream<T, W> {}

impl<T, W> fmt::Debug for ItemStream<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemStream")
            .field("peer", &self.peer)
            .field("over", &self.opened.is_none())
            .finish_non_exhaustive()
    }
}

/// What a server answers to a stream of the client's; a future.
///
/// It may come before the client has sent its last item.
///
/// # Cancel safety
///
/// Dropping it gives the call up.
#[must_use = "dropping it gives the call up"]
pub struct Reply<R, V> {
    opened: Option<Opened>,
    form: PhantomData<fn() -> (R, V)>,
}

impl<R, V> Reply<R, V> {
    pub(crate) fn new(opened: Opened) -> Self {
        Self { opened: Some(opened), form: PhantomData }
    }

    /// The caller is told this error, and gives the call up.
    pub(crate) fn fail(&mut self, error: &CallError) {
        if let Some(opened) = self.opened.take() {
            opened.ends(Outcome::Error(error));
        }
    }
}

impl<R, V: DecodeItem<R>> Reply<R, V> {
    /// Awaits the reply with the metadata that came beside it.
    ///
    /// # Errors
    ///
    /// As for the reply itself.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the call up.
    pub async fn response(mut self) -> Result<Response<R>, CallError> {
        let (value, metadata) = poll_fn(|cx| self.poll_reply(cx)).await?;
        Ok(Response { value, metadata, _private: PhantomData })
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<(R, Metadata), CallError>> {
        let mut watch = None;
        let polled = self.poll_unseen(cx, &mut watch);
        if let (Some(mut watch), Poll::Ready(outcome)) = (watch, &polled) {
            watch.tell(outcome.as_ref().map_or_else(Outcome::Error, |_| Outcome::Reply));
        }
        polled
    }

    /// As [`Self::poll_reply`]; who is to be told of the end is put into `watch`.
    fn poll_unseen(
        &mut self,
        cx: &mut Context<'_>,
        watch: &mut Option<Box<StreamWatch>>,
    ) -> Poll<Result<(R, Metadata), CallError>> {
        scratch::with_call_buffer(|body| {
            let opened = self.opened.as_mut().expect("a reply was polled after it had come");
            let answer = ready!(opened.connection.poll_answer(opened.id, body, cx));
            let (peer, codec) = (Arc::clone(&opened.connection.peer), opened.codec);
            *watch = opened.watch.take();
            // Before the caller's own `Deserialize` runs: the slot is another's by now.
            self.opened = None;
            let metadata = answer.map_err(|error| *error)?;
            let value = V::decode(codec, body).map_err(|source| CallError::Decode { peer, source })?;
            Poll::Ready(Ok((value, metadata)))
        })
    }
}

impl<R, V: DecodeItem<R>> Future for Reply<R, V> {
    type Output = Result<R, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_reply(cx).map_ok(|(reply, _)| reply)
    }
}

impl<R, V> Unpin for Reply<R, V> {}

impl<R, V> fmt::Debug for Reply<R, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("over", &self.opened.is_none()).finish_non_exhaustive()
    }
}
