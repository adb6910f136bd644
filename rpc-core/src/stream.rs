//! Items of streams as a service sees them: where those of the client come from, and where its own go.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use futures::{Sink, Stream};

use crate::Status;

/// The items that the client sends: a parameter of a method that takes a stream.
///
/// It is an ordinary [`Stream`] and ends with `None` when the client has sent its last item. An item
/// that cannot be decoded is an error, and the last thing that comes. Items are not lost when a future
/// is dropped that waits for one.
///
/// # Pacing
///
/// The client may send as many bytes as the server's stream window has (an item counts as 64 bytes at least), and
/// more when items have been taken: a service that takes none stops the client, and nobody else. Dropping it
/// stops the client for good; the call goes on.
pub struct Streaming<T> {
    source: Box<dyn ItemSource<T>>,
}

impl<T> Streaming<T> {
    /// For the server: the items of a call.
    #[doc(hidden)]
    pub fn new(source: impl ItemSource<T> + 'static) -> Self {
        Self { source: Box::new(source) }
    }

    /// The next item; `None` behind the last one.
    ///
    /// # Errors
    ///
    /// The item cannot be decoded; or the call has ended, if this is kept beyond it, before all items had been taken,
    /// whether the client had sent the last one or not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn message(&mut self) -> Result<Option<T>, Status> {
        poll_fn(|cx| self.source.poll_item(cx)).await.transpose()
    }

    /// From now on gives credit back for as many items as [`Self::request`] asks for, not for each that was
    /// taken. What the client may send without, the window, is not taken back.
    pub fn set_manual(&mut self) {
        self.source.set_manual();
    }

    /// Gives credit back for so many items, those first that were taken already. Without
    /// [`Self::set_manual`] it does nothing.
    pub fn request(&mut self, items: u64) {
        self.source.request(items);
    }
}

impl<T> Stream for Streaming<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().source.poll_item(cx)
    }
}

impl<T> fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming").finish_non_exhaustive()
    }
}

/// Where a service puts the items that it sends: the last parameter of a method that writes them one by one,
/// instead of returning a stream.
///
/// The stream ends when the method returns: with `Ok(())` behind the last item, or with a status. An item is sent
/// whole or not at all.
///
/// # Pacing
///
/// [`Self::send`] waits while the client has given no credit, or while more than a threshold in bytes
/// is pending: encoded, and not yet taken by the connection. [`Self::is_ready`] says without waiting
/// whether it would, and [`Self::ready`] waits until it would not. Both are hints: nothing is reserved
/// by them.
///
/// It has one owner. Whoever has several producers puts a channel in front.
pub struct ItemSender<T> {
    sink: Box<dyn ItemSink<T>>,
}

impl<T> ItemSender<T> {
    /// How many bytes may be pending before the producer waits, unless [`Self::set_threshold`] says otherwise.
    pub const DEFAULT_THRESHOLD: usize = 32 * 1024;

    /// For the server: where the items of a call go.
    #[doc(hidden)]
    pub fn new(sink: impl ItemSink<T> + 'static) -> Self {
        Self { sink: Box::new(sink) }
    }

    /// Sends an item when the client's credit and what is pending allow it.
    ///
    /// # Errors
    ///
    /// The call has ended, and the status says why: the caller has gone, its deadline has passed, or
    /// the connection is lost. Or the item cannot be encoded, or is longer than the client takes; it is
    /// not sent then, and the stream goes on if the method does.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the item is not sent, and gone with the future.
    pub async fn send(&mut self, item: T) -> Result<(), Status> {
        self.ready().await?;
        self.sink.start_send(item)
    }

    /// Whether an item could be sent now without waiting.
    pub fn is_ready(&self) -> bool {
        self.sink.is_ready()
    }

    /// Waits until an item can be sent without waiting.
    ///
    /// # Errors
    ///
    /// The call has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn ready(&mut self) -> Result<(), Status> {
        let mut wait = Wait { sink: &mut *self.sink, is_pending: false };
        poll_fn(|cx| {
            let polled = wait.sink.poll_ready(cx);
            wait.is_pending = polled.is_pending();
            polled
        })
        .await
    }

    /// Waits until the call has ended, and says why. For a producer that has nothing to send for long.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn closed(&mut self) -> Status {
        poll_fn(|cx| self.sink.poll_closed(cx)).await
    }

    /// Bytes of items that the connection has not taken yet.
    pub fn pending(&self) -> usize {
        self.sink.pending()
    }

    /// How many bytes may be pending before the producer waits. Default: 32 KiB. One item goes beyond it.
    pub fn set_threshold(&mut self, bytes: usize) {
        self.sink.set_threshold(bytes.max(1));
    }
}

/// A wait for room; whoever drops it in the midst of that does not wait any more.
struct Wait<'a, T> {
    sink: &'a mut dyn ItemSink<T>,
    is_pending: bool,
}

impl<T> Drop for Wait<'_, T> {
    fn drop(&mut self) {
        if self.is_pending {
            self.sink.stop_waiting();
        }
    }
}

/// Closing it does nothing: the stream ends when the method returns.
impl<T> Sink<T> for ItemSender<T> {
    type Error = Status;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.get_mut().sink.poll_ready(cx)
    }

    fn start_send(self: Pin<&mut Self>, item: T) -> Result<(), Status> {
        self.get_mut().sink.start_send(item)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }
}

impl<T> fmt::Debug for ItemSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemSender").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

/// What is behind a [`Streaming`].
#[doc(hidden)]
pub trait ItemSource<T>: Send {
    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, Status>>>;
    fn set_manual(&mut self);
    fn request(&mut self, items: u64);
}

/// What is behind an [`ItemSender`].
#[doc(hidden)]
pub trait ItemSink<T>: Send {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>>;
    fn stop_waiting(&mut self);
    fn start_send(&mut self, item: T) -> Result<(), Status>;
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<Status>;
    fn is_ready(&self) -> bool;
    fn pending(&self) -> usize;
    fn set_threshold(&mut self, bytes: usize);
}
