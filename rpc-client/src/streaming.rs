//! Calls with items that are still to be made: options, and what they become when they are.

use std::{
    fmt,
    future::poll_fn,
    marker::PhantomData,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use futures::Stream;
use rpc_codec::{CallKind, Coded, DecodeItem, EncodeItem};
use rpc_core::Metadata;
use serde::Serialize;

use crate::{
    call::{Call, InCodec, Method},
    client::Client,
    error::CallError,
    sink::ItemSink,
    stream::{ItemStream, Opened, Reply},
};

/// Options as those of a unary call; they are its own.
macro_rules! options {
    () => {
        /// As [`Call::timeout`]. It covers the whole stream, to its end.
        pub fn timeout(self, timeout: Duration) -> Self {
            Self { call: self.call.timeout(timeout), ..self }
        }

        /// As [`Call::deadline`]. It covers the whole stream, to its end.
        pub fn deadline(self, deadline: Instant) -> Self {
            Self { call: self.call.deadline(deadline), ..self }
        }

        /// As [`Call::metadata`].
        pub fn metadata(self, key: &str, value: impl AsRef<[u8]>) -> Self {
            Self { call: self.call.metadata(key, value), ..self }
        }

        /// As [`Call::priority`].
        pub fn priority(self, class: u8) -> Self {
            Self { call: self.call.priority(class), ..self }
        }

        /// As [`Call::wait_for_ready`].
        pub fn wait_for_ready(self, wait: bool) -> Self {
            Self { call: self.call.wait_for_ready(wait), ..self }
        }
    };
}

/// What goes to the server in which form, and what comes back.
type Forms<T, W, R, V> = fn(T, W) -> (R, V);

impl Client {
    /// A call of `method` with the tuple `args` whose server sends items; generated clients make these.
    pub fn server_stream<A, T, W>(&self, method: Method, args: A) -> ServerStream<A, T, W> {
        ServerStream { call: Call::of_kind(self.clone(), method, CallKind::ServerStream, args), state: State::New }
    }

    /// A call of `method` with the tuple `args` whose client sends items; generated clients make these.
    pub fn client_stream<A, T, R, W, V>(&self, method: Method, args: A) -> ClientStream<A, T, R, W, V> {
        let call = Call::of_kind(self.clone(), method, CallKind::ClientStream, args);
        ClientStream { call, items: PhantomData }
    }

    /// A call of `method` with the tuple `args` and items both ways; generated clients make these.
    pub fn both_ways<A, T, U, W, V>(&self, method: Method, args: A) -> BothWays<A, T, U, W, V> {
        let call = Call::of_kind(self.clone(), method, CallKind::BothWays, args);
        BothWays { call, items: PhantomData }
    }
}

/// A call whose server sends items: a [`Stream`] of them. It is sent when it is first polled; options are
/// set before that.
///
/// It behaves as an [`ItemStream`] then. Deadlines and traces are inherited as by a unary [`Call`].
///
/// ```no_run
/// # use rpc_client::{CallError, ServerStream};
/// use std::time::Duration;
///
/// # async fn example(search: ServerStream<(String,), String>) -> Result<(), CallError> {
/// let mut titles = search.timeout(Duration::from_secs(5));
/// while let Some(title) = titles.message().await? {
///     println!("{title}");
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a call does nothing until it is polled"]
pub struct ServerStream<A, T, W = Coded> {
    call: Call<A, (), InCodec>,
    state: State<T, W>,
}

enum State<T, W> {
    New,
    Open(ItemStream<T, W>),
    /// With why; unless the caller's own `Serialize` has panicked.
    Failed(Option<CallError>),
}

impl<A, T, W> ServerStream<A, T, W> {
    options!();
}

impl<A: Serialize + 'static, T, W: DecodeItem<T>> ServerStream<A, T, W> {
    /// Sends the call, if it was not yet, and says when it is out. The server may refuse it then, which
    /// the first item tells.
    ///
    /// # Errors
    ///
    /// It could not be sent; also if it was tried before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the call up.
    pub async fn open(mut self) -> Result<ItemStream<T, W>, CallError> {
        poll_fn(|cx| self.poll_opened(cx).map_ok(|_| ())).await?;
        match self.state {
            State::Open(items) => Ok(items),
            _ => unreachable!("it was opened"),
        }
    }

    /// The next item; `None` behind the last one.
    ///
    /// # Errors
    ///
    /// As [`ItemStream::message`], and the call could not be sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the call goes on, and the next future goes on with it.
    pub async fn message(&mut self) -> Result<Option<T>, CallError> {
        poll_fn(|cx| self.poll_item(cx)).await.transpose()
    }

    /// As [`ItemStream::trailers`].
    pub fn trailers(&self) -> Option<&Metadata> {
        match &self.state {
            State::Open(items) => items.trailers(),
            _ => None,
        }
    }

    fn poll_opened(&mut self, cx: &mut Context<'_>) -> Poll<Result<&mut ItemStream<T, W>, CallError>> {
        if matches!(self.state, State::New) {
            self.state = State::Failed(None);
            match self.call.poll_open(cx) {
                Poll::Pending => self.state = State::New,
                Poll::Ready(Ok(opened)) => self.state = State::Open(ItemStream::new(opened)),
                Poll::Ready(Err(error)) => self.state = State::Failed(Some(error)),
            }
        }
        match &mut self.state {
            State::Open(items) => Poll::Ready(Ok(items)),
            State::New => Poll::Pending,
            State::Failed(why) => {
                let ended = || CallError::Ended { peer: Arc::clone(self.call.peer()) };
                Poll::Ready(Err(why.clone().unwrap_or_else(ended)))
            }
        }
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, CallError>>> {
        if let State::Open(items) = &mut self.state {
            return items.poll_item(cx);
        }
        if matches!(self.state, State::Failed(_)) {
            return Poll::Ready(None);
        }
        match ready!(self.poll_opened(cx)) {
            Ok(items) => items.poll_item(cx),
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl<A: Serialize + 'static, T, W: DecodeItem<T>> Stream for ServerStream<A, T, W> {
    type Item = Result<T, CallError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(cx)
    }
}

impl<A, T, W> Unpin for ServerStream<A, T, W> {}

impl<A, T, W> fmt::Debug for ServerStream<A, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerStream").field("call", &self.call).finish_non_exhaustive()
    }
}

/// A call whose client sends items, and whose server answers once.
///
/// ```no_run
/// # use rpc_client::{CallError, ClientStream};
/// # async fn example(sum: ClientStream<(), u64, u64>, more: ClientStream<(), u64, u64>) -> Result<(), CallError> {
/// // From a stream:
/// let total = sum.send_all(futures::stream::iter(1..=10)).await?;
///
/// // Or one by one:
/// let (mut numbers, total) = more.open().await?;
/// numbers.send(5).await?;
/// numbers.end();
/// println!("{}", total.await?);
/// # Ok(())
/// # }
/// ```
#[must_use = "a call does nothing until it is sent"]
pub struct ClientStream<A, T, R, W = Coded, V = Coded> {
    call: Call<A, (), InCodec>,
    items: PhantomData<Forms<T, W, R, V>>,
}

impl<A, T, R, W, V> ClientStream<A, T, R, W, V> {
    options!();
}

impl<A: Serialize + 'static, T, R, W: EncodeItem<T>, V: DecodeItem<R>> ClientStream<A, T, R, W, V> {
    /// Sends the call and what `items` has, and awaits the answer. That may come before the last item;
    /// the rest is then not sent.
    ///
    /// # Errors
    ///
    /// The call has failed, or an item cannot be sent, which cancels it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the call up.
    pub async fn send_all(self, items: impl Stream<Item = T>) -> Result<R, CallError> {
        let (sink, mut reply) = self.open().await?;
        let (mut items, mut sink) = (pin!(items), Some(sink));
        poll_fn(|cx| {
            if let Poll::Ready(reply) = Pin::new(&mut reply).poll(cx) {
                return Poll::Ready(reply);
            }
            if let Some(Poll::Ready(sent)) = sink.as_mut().map(|sink| sink.poll_send_all(items.as_mut(), cx)) {
                match sent {
                    Ok(()) => sink = None,
                    // The answer is there by now, and says how.
                    Err(CallError::Ended { .. }) => cx.waker().wake_by_ref(),
                    Err(error) => {
                        reply.fail(&error);
                        return Poll::Ready(Err(error));
                    }
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Sends the call; gives the sink for its items, and the answer to come.
    ///
    /// # Errors
    ///
    /// It could not be sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the call up.
    pub async fn open(mut self) -> Result<(ItemSink<T, W>, Reply<R, V>), CallError> {
        let opened = poll_fn(|cx| self.call.poll_open(cx)).await?;
        Ok((ItemSink::new(&opened), Reply::new(opened)))
    }
}

impl<A, T, R, W, V> fmt::Debug for ClientStream<A, T, R, W, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream").field("call", &self.call).finish_non_exhaustive()
    }
}

/// A call with items both ways.
///
/// ```no_run
/// # use rpc_client::{BothWays, CallError};
/// # async fn example(chat: BothWays<(String,), String, String>) -> Result<(), CallError> {
/// let (mut lines, mut heard) = chat.open().await?;
/// lines.send("hello".to_owned()).await?;
/// while let Some(line) = heard.message().await? {
///     println!("{line}");
/// }
/// lines.end();
/// # Ok(())
/// # }
/// ```
#[must_use = "a call does nothing until it is sent"]
pub struct BothWays<A, T, U, W = Coded, V = Coded> {
    call: Call<A, (), InCodec>,
    items: PhantomData<Forms<T, W, U, V>>,
}

impl<A, T, U, W, V> BothWays<A, T, U, W, V> {
    options!();
}

impl<A: Serialize + 'static, T, U, W: EncodeItem<T>, V: DecodeItem<U>> BothWays<A, T, U, W, V> {
    /// A stream of the server's items that sends what `items` has whenever it is polled. The call is
    /// sent when that is for the first time.
    pub fn send_all<S: Stream<Item = T>>(self, items: S) -> Exchange<A, S, T, U, W, V> {
        Exchange { items: Box::pin(items), phase: Phase::New(self.call) }
    }

    /// Sends the call; gives the sink for the client's items, and the stream of the server's.
    ///
    /// # Errors
    ///
    /// It could not be sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the call up.
    pub async fn open(mut self) -> Result<(ItemSink<T, W>, ItemStream<U, V>), CallError> {
        let opened = poll_fn(|cx| self.call.poll_open(cx)).await?;
        Ok(split(opened))
    }
}

fn split<T, U, W: EncodeItem<T>, V: DecodeItem<U>>(opened: Opened) -> (ItemSink<T, W>, ItemStream<U, V>) {
    (ItemSink::new(&opened), ItemStream::new(opened))
}

impl<A, T, U, W, V> fmt::Debug for BothWays<A, T, U, W, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BothWays").field("call", &self.call).finish_non_exhaustive()
    }
}

/// The server's items of a call that sends those of a stream; see [`BothWays::send_all`].
///
/// # Cancel safety
///
/// A future that waits for an item loses nothing when it is dropped. Dropping the stream gives the call up; of the
/// client's items those may have been sent that were taken from its stream.
#[must_use = "streams do nothing unless polled"]
pub struct Exchange<A, S, T, U, W: EncodeItem<T>, V> {
    items: Pin<Box<S>>,
    phase: Phase<A, T, U, W, V>,
}

enum Phase<A, T, U, W: EncodeItem<T>, V> {
    New(Call<A, (), InCodec>),
    /// Without a sink when all was sent.
    Open(Option<ItemSink<T, W>>, ItemStream<U, V>),
    Over,
}

impl<A, S, T, U, W, V> Stream for Exchange<A, S, T, U, W, V>
where
    A: Serialize + 'static,
    S: Stream<Item = T>,
    W: EncodeItem<T>,
    V: DecodeItem<U>,
{
    type Item = Result<U, CallError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Phase::New(call) = &mut this.phase {
            match ready!(call.poll_open(cx)) {
                Ok(opened) => {
                    let (sink, stream) = split(opened);
                    this.phase = Phase::Open(Some(sink), stream);
                }
                Err(error) => {
                    this.phase = Phase::Over;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        let Phase::Open(sink, stream) = &mut this.phase else { return Poll::Ready(None) };
        if let Some(Poll::Ready(sent)) = sink.as_mut().map(|sink| sink.poll_send_all(this.items.as_mut(), cx)) {
            match sent {
                // Of a call that has ended, the stream says how.
                Ok(()) | Err(CallError::Ended { .. }) => *sink = None,
                Err(error) => {
                    stream.fail(&error);
                    this.phase = Phase::Over;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        let item = ready!(stream.poll_item(cx));
        if !matches!(item, Some(Ok(_))) {
            *sink = None;
        }
        Poll::Ready(item)
    }
}

impl<A, S, T, U, W: EncodeItem<T>, V: DecodeItem<U>> Exchange<A, S, T, U, W, V> {
    /// As [`ItemStream::trailers`].
    pub fn trailers(&self) -> Option<&Metadata> {
        match &self.phase {
            Phase::Open(_, stream) => stream.trailers(),
            _ => None,
        }
    }
}

impl<A, S, T, U, W: EncodeItem<T>, V> Unpin for Exchange<A, S, T, U, W, V> {}

impl<A, S, T, U, W: EncodeItem<T>, V> fmt::Debug for Exchange<A, S, T, U, W, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}
