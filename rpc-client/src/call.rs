//! A call: a future with options.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rpc_codec::{CallKind, CodecId, EncodeError, OpenMessage, PayloadError, RequestHead, mark_kind};
use rpc_core::{CallId, Context as CallContext, Deadline, Executed, Metadata, MetadataError, MethodId};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{runtime::Handle, time::timeout_at};

use crate::{
    client::{Client, Patience, Response},
    clock,
    connection::{Connection, Sent},
    error::CallError,
    intercept::{Finished, Outcome, Outgoing, StreamWatch, Watch},
    line::Place,
    scratch,
    stream::Opened,
    trace,
};

/// A method as a client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    id: MethodId,
    service: &'static str,
    name: &'static str,
}

impl Method {
    /// The method `name` of `service`, which is `package.Service`.
    pub const fn new(service: &'static str, name: &'static str) -> Self {
        Self { id: MethodId::of(service, name), service, name }
    }

    /// The id on the wire.
    pub const fn id(self) -> MethodId {
        self.id
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service, self.name)
    }
}

/// How arguments and replies of a call stand on the wire: [`InCodec`] or [`Untouched`]. It is sealed, so that more may
/// be asked of a form without breaking anybody's.
pub trait WireForm<A, R>: sealed::Sealed {
    /// Whether it has been through interceptors and layers already.
    #[doc(hidden)]
    const AGAIN: bool = false;
    /// Whether no codec touches it.
    #[doc(hidden)]
    const UNTOUCHED: bool = false;
    #[doc(hidden)]
    fn codec(configured: CodecId) -> CodecId;
    #[doc(hidden)]
    fn encode(codec: CodecId, args: &A, out: &mut Vec<u8>) -> Result<(), PayloadError>;
    #[doc(hidden)]
    fn decode(codec: CodecId, body: &[u8]) -> Result<R, PayloadError>;
}

/// In the client's codec, arguments as a tuple.
#[derive(Debug)]
pub enum InCodec {}

/// Bytes that no codec touches.
#[derive(Debug)]
pub enum Untouched {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::InCodec {}
    impl Sealed for super::Untouched {}
    #[cfg(feature = "tower")]
    impl Sealed for super::Raw {}
    #[cfg(feature = "tower")]
    impl Sealed for super::RawUntouched {}
}

/// Encoded already, in the client's codec: a call behind the layers around it.
#[cfg(feature = "tower")]
#[derive(Debug)]
pub(crate) enum Raw {}

/// As [`Raw`], for bytes that no codec touches.
#[cfg(feature = "tower")]
#[derive(Debug)]
pub(crate) enum RawUntouched {}

#[cfg(feature = "tower")]
impl WireForm<Bytes, Bytes> for Raw {
    const AGAIN: bool = true;

    fn codec(configured: CodecId) -> CodecId {
        configured
    }

    fn encode(_: CodecId, args: &Bytes, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        out.extend_from_slice(args);
        Ok(())
    }

    fn decode(_: CodecId, body: &[u8]) -> Result<Bytes, PayloadError> {
        Ok(Bytes::copy_from_slice(body))
    }
}

#[cfg(feature = "tower")]
impl WireForm<Bytes, Bytes> for RawUntouched {
    const AGAIN: bool = true;
    const UNTOUCHED: bool = true;

    fn codec(configured: CodecId) -> CodecId {
        Untouched::codec(configured)
    }

    fn encode(codec: CodecId, args: &Bytes, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        Untouched::encode(codec, args, out)
    }

    fn decode(codec: CodecId, body: &[u8]) -> Result<Bytes, PayloadError> {
        Untouched::decode(codec, body)
    }
}

impl<A: Serialize, R: DeserializeOwned> WireForm<A, R> for InCodec {
    fn codec(configured: CodecId) -> CodecId {
        configured
    }

    fn encode(codec: CodecId, args: &A, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        codec.encode(args, out)
    }

    fn decode(codec: CodecId, body: &[u8]) -> Result<R, PayloadError> {
        codec.decode(body)
    }
}

impl WireForm<Bytes, Bytes> for Untouched {
    const UNTOUCHED: bool = true;

    fn codec(_: CodecId) -> CodecId {
        CodecId::BYTES
    }

    fn encode(_: CodecId, args: &Bytes, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        out.extend_from_slice(args);
        Ok(())
    }

    fn decode(_: CodecId, body: &[u8]) -> Result<Bytes, PayloadError> {
        Ok(Bytes::copy_from_slice(body))
    }
}

/// A call: awaiting it sends it and gives the reply.
///
/// Options are set before it is awaited. Within a call that a server runs, it inherits what is left
/// of that call's deadline, its class and its trace.
///
/// It is what becomes a future, and has still options. Where a future is asked for, as by `tokio::spawn`, `select!` or
/// `join_all`, `call.into_future()` is one.
///
/// Where the server welcomes no more calls at once, calls wait in line. One whose turn has come keeps it until it is polled, so
/// await it or drop it: left aside, it keeps those behind it waiting as well.
///
/// # Cancel safety
///
/// Dropping the future cancels the call. While no byte of its request has been handed to the transport
/// nothing of it ever is: it takes back what it queued, was never executed, and its server does not hear
/// of it. Otherwise the frame that was begun leaves whole, nothing of the request follows it, and the
/// server is told and drops the service's future at its next await; the call may have been executed by
/// then. A deadline that passes does the same, and its error says which it was.
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<A, R, W = InCodec> {
    client: Client,
    method: Method,
    args: Option<A>,
    deadline: Option<Deadline>,
    timeout: Option<Duration>,
    metadata: Metadata,
    metadata_error: Option<MetadataError>,
    priority: Option<u8>,
    patience: Patience,
    kind: CallKind,
    /// If there are interceptors, from the first poll on until they were told of the end.
    watch: Option<Box<Watch>>,
    state: State,
    marker: PhantomData<fn() -> (R, W)>,
}

enum State {
    New,
    /// Waiting for a connection, or for room on it.
    Preparing(Preparing),
    Sent {
        connection: Arc<Connection>,
        id: CallId,
    },
    /// On its way through layers.
    #[cfg(feature = "tower")]
    InLayers(InLayers),
    Done,
}

#[cfg(feature = "tower")]
type InLayers = Pin<Box<dyn Future<Output = Result<crate::tower::Response, crate::tower::BoxError>> + Send>>;

type Preparing = Pin<Box<dyn Future<Output = Result<(Ready, Need), CallError>> + Send>>;

/// A connection that may take the call now.
struct Ready {
    connection: Arc<Connection>,
    deadline: Deadline,
    /// Of who waited for room. If the call cannot be sent, or the caller's own `Serialize` panics, its drop lets
    /// the next in line have it.
    place: Option<Place>,
}

/// What a connection must come to before the call can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Connection,
    Room,
    Greeting,
}

impl<A, R, W> Call<A, R, W> {
    /// A call of this kind.
    pub(crate) fn of_kind(client: Client, method: Method, kind: CallKind, args: A) -> Self {
        let mut call = Self::new(client, method, args);
        call.kind = kind;
        call
    }

    pub(crate) fn new(client: Client, method: Method, args: A) -> Self {
        let patience = Patience::of(client.config().wait_for_ready);
        Self {
            client,
            method,
            args: Some(args),
            deadline: None,
            timeout: None,
            metadata: Metadata::new(),
            metadata_error: None,
            priority: None,
            patience,
            kind: CallKind::Unary,
            watch: None,
            state: State::New,
            marker: PhantomData,
        }
    }

    /// How long the call may take from when it is first polled. It covers everything: connecting,
    /// waiting for room, the server, the way back.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// By when the call must have ended. With a timeout as well, the earlier counts.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(Deadline::at(deadline));
        self
    }

    /// Adds a pair of metadata. One that breaks the rules of [`Metadata::insert`] makes the call
    /// fail before it is sent.
    pub fn metadata(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        if let Err(error) = self.metadata.insert(key, value) {
            self.metadata_error.get_or_insert(error);
        }
        self
    }

    /// The class of the call: 0 normal, 1 critical, 2 low, 3 background. Greater ones are sent as they are, and
    /// taken for background by the server. Default: that of the call it is made in, or 0.
    pub fn priority(mut self, class: u8) -> Self {
        self.priority = Some(class);
        self
    }

    /// Whether the call waits for a server that cannot be reached. If not, it *fails fast*: with the
    /// attempt to connect that it waits for, or with the last one while the next is not due. If so, it
    /// waits through failed attempts and the delays between them until its deadline; without one, for
    /// as long as it takes. It is sent when a server has said HELLO, and not before. Once it is out it
    /// fails as any other if its connection is lost: it may have been executed.
    ///
    /// Default: as the client has it, which is to fail fast unless its builder says otherwise.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.patience = Patience::of(wait);
        self
    }

    /// Awaits the reply with the metadata that came beside it.
    ///
    /// # Errors
    ///
    /// As for the call itself.
    ///
    /// # Cancel safety
    ///
    /// As of the call itself: dropping the future cancels it.
    pub async fn response(mut self) -> Result<Response<R>, CallError>
    where
        A: Send + 'static,
        W: WireForm<A, R>,
    {
        let mut metadata = Metadata::new();
        let value = std::future::poll_fn(|cx| self.poll_reply(cx, &mut metadata)).await?;
        Ok(Response { value, metadata, _private: PhantomData })
    }
}

#[cfg(feature = "tower")]
impl<A, R, W> Call<A, R, W> {
    /// A call that comes from behind layers.
    pub(crate) fn again(client: Client, method: Method, args: A, metadata: Metadata, deadline: Deadline) -> Self {
        let mut call = Self::new(client, method, args);
        (call.metadata, call.deadline) = (metadata, Some(deadline));
        call
    }
}

impl<A, R, W> Call<A, R, W> {
    /// The other end, as errors name it.
    pub(crate) fn peer(&self) -> &Arc<str> {
        self.client.peer()
    }
}

impl<A: 'static, R, W: WireForm<A, R>> Call<A, R, W> {
    /// The reply once it is there; what came beside it is put into `metadata`.
    fn poll_reply(&mut self, cx: &mut Context<'_>, metadata: &mut Metadata) -> Poll<Result<R, CallError>> {
        let polled = self.poll_unseen(cx, metadata);
        if self.watch.is_some()
            && let Poll::Ready(outcome) = &polled
        {
            self.tell(outcome.as_ref().map_or_else(Outcome::Error, |_| Outcome::Reply));
        }
        polled
    }

    /// As [`Self::poll_reply`], of which interceptors are not told.
    #[inline]
    fn poll_unseen(&mut self, cx: &mut Context<'_>, metadata: &mut Metadata) -> Poll<Result<R, CallError>> {
        if matches!(self.state, State::Sent { .. }) {
            return scratch::with_call_buffer(|body| self.poll_sent(body, cx, metadata));
        }
        ready!(self.poll_send(cx))?;
        #[cfg(feature = "tower")]
        if matches!(self.state, State::InLayers(_)) {
            return self.poll_layers(cx, metadata);
        }
        // Its answer wakes us.
        Poll::Pending
    }

    /// Sends the call, whatever that takes, or hands it to the layers around the client.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        loop {
            match &mut self.state {
                State::New => {
                    let now = clock::now();
                    let deadline = self.begin(now)?;
                    #[cfg(feature = "tower")]
                    if !W::AGAIN && self.kind == CallKind::Unary && self.client.layers().is_some() {
                        self.enter_layers(deadline)?;
                        continue;
                    }
                    match self.client.connection() {
                        Some(connection) => {
                            if self.send(Ready { connection, deadline, place: None }, now, None, cx)? {
                                return Poll::Ready(Ok(()));
                            }
                        }
                        None => self.prepare(Need::Connection, None, deadline, None),
                    }
                }
                State::Preparing(preparing) => {
                    let ready = ready!(preparing.as_mut().poll(cx));
                    self.state = State::Done;
                    let (ready, need) = ready?;
                    if self.send(ready, clock::now(), Some(need), cx)? {
                        return Poll::Ready(Ok(()));
                    }
                }
                State::Sent { .. } => return Poll::Ready(Ok(())),
                #[cfg(feature = "tower")]
                State::InLayers(_) => return Poll::Ready(Ok(())),
                State::Done => panic!("a call was polled after it had ended"),
            }
        }
    }

    /// Sends the call, and hands over what is out.
    pub(crate) fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<Opened, CallError>> {
        if let Err(error) = ready!(self.poll_send(cx)) {
            self.tell(Outcome::Error(&error));
            return Poll::Ready(Err(error));
        }
        let State::Sent { connection, id } = mem::replace(&mut self.state, State::Done) else {
            unreachable!("the call was sent")
        };
        let watch = self.watch.take().map(|watch| self.hand_over(&watch));
        Poll::Ready(Ok(Opened { connection, id, codec: W::codec(self.client.config().codec), watch }))
    }

    /// What is to be told when the items of the call have ended.
    #[cold]
    fn hand_over(&mut self, watch: &Watch) -> Box<StreamWatch> {
        let interceptors = self.client.config().interceptors.clone();
        Box::new(StreamWatch::new(watch, self.method, mem::take(&mut self.metadata), interceptors))
    }

    /// The reply that layers give.
    #[cfg(feature = "tower")]
    fn poll_layers(&mut self, cx: &mut Context<'_>, metadata: &mut Metadata) -> Poll<Result<R, CallError>> {
        let State::InLayers(answering) = &mut self.state else { unreachable!("the call is within layers") };
        let answered = ready!(answering.as_mut().poll(cx));
        self.state = State::Done;
        let response = answered.map_err(crate::tower::call_error)?;
        *metadata = response.metadata;
        let decoded = W::decode(W::codec(self.client.config().codec), &response.body);
        let peer = self.client.peer();
        Poll::Ready(decoded.map_err(|source| CallError::Decode { peer: Arc::clone(peer), source }))
    }

    fn poll_sent(
        &mut self,
        body: &mut Vec<u8>,
        cx: &Context<'_>,
        metadata: &mut Metadata,
    ) -> Poll<Result<R, CallError>> {
        let State::Sent { connection, id } = &self.state else { unreachable!("the call was sent") };
        let answer = ready!(connection.poll_answer(*id, body, cx));
        // Before the caller's own `Deserialize` runs, which may panic: the slot is another's by now.
        self.state = State::Done;
        Poll::Ready(match answer {
            Ok(beside) => {
                *metadata = beside;
                W::decode(W::codec(self.client.config().codec), body)
                    .map_err(|source| CallError::Decode { peer: Arc::clone(self.client.peer()), source })
            }
            Err(error) => Err(*error),
        })
    }

    /// Settles the options when the call is first polled.
    fn begin(&mut self, now: Instant) -> Result<Deadline, CallError> {
        if let Some(error) = self.metadata_error.take() {
            self.state = State::Done;
            return Err(CallError::Metadata(error));
        }
        let mut deadline = self.deadline.unwrap_or(Deadline::NONE);
        let own = if self.deadline.is_none() { self.timeout.or(self.client.config().timeout) } else { self.timeout };
        if let Some(timeout) = own {
            deadline = deadline.min(Deadline::after(now, timeout));
        }
        if W::AGAIN {
            return Ok(deadline);
        }
        if let Some(outer) = CallContext::current() {
            deadline = deadline.min(outer.deadline().minus(INHERITED_MARGIN, now));
            self.priority.get_or_insert(outer.priority());
            trace::inherit(&mut self.metadata, &outer);
        }
        if self.client.config().interceptors.is_empty() { Ok(deadline) } else { self.intercept(now, deadline) }
    }

    /// Shows the call to the interceptors; the deadline that they leave it.
    #[cold]
    fn intercept(&mut self, now: Instant, mut deadline: Deadline) -> Result<Deadline, CallError> {
        self.watch = Some(Box::new(Watch(now)));
        let mut priority = self.priority.unwrap_or(0);
        let mut outgoing = Outgoing {
            method: self.method,
            metadata: &mut self.metadata,
            deadline: &mut deadline,
            priority: &mut priority,
        };
        let passed = self.client.config().interceptors.before(&mut outgoing);
        self.priority = Some(priority);
        passed.map_err(|status| {
            self.state = State::Done;
            CallError::Status(status.with_executed(Executed::Never))
        })?;
        Ok(deadline)
    }

    /// Encodes the call and hands it to the layers around the client.
    #[cfg(feature = "tower")]
    fn enter_layers(&mut self, deadline: Deadline) -> Result<(), CallError> {
        self.state = State::Done;
        let mut body = Vec::new();
        let args = self.args.take().expect("kept until the call is sent");
        W::encode(W::codec(self.client.config().codec), &args, &mut body).map_err(CallError::Encode)?;
        let request = crate::tower::Request {
            method: self.method,
            body: body.into(),
            metadata: self.metadata.clone(),
            deadline,
            priority: self.priority.unwrap_or(0),
            untouched: W::UNTOUCHED,
            wait_for_ready: self.patience == Patience::WaitForReady,
        };
        let Some(layers) = self.client.layers() else { return Ok(()) };
        let answering = layers.answer(request);
        self.state = State::InLayers(match deadline.instant() {
            None => answering,
            // A timer would panic where no runtime could fire it.
            Some(_) if Handle::try_current().is_err() => return Err(CallError::NoRuntime),
            // However long a layer holds the call back.
            Some(instant) => {
                let peer = Arc::clone(self.client.peer());
                Box::pin(async move {
                    let late = |_| CallError::DeadlineExceeded { peer, executed: Executed::Maybe };
                    timeout_at(instant.into(), answering).await.map_err(late)?
                })
            }
        });
        Ok(())
    }

    /// Encodes the call and hands it to the connection, or prepares to wait for what that lacks.
    /// `waited` is what has been waited for. `true` when the call is on its way.
    fn send(&mut self, ready: Ready, now: Instant, waited: Option<Need>, cx: &Context<'_>) -> Result<bool, CallError> {
        let Ready { connection, deadline, place } = ready;
        self.state = State::Done;
        let Some(timeout_us) = deadline.to_wire(now) else {
            return Err(CallError::DeadlineExceeded { peer: Arc::clone(&connection.peer), executed: Executed::Never });
        };
        // Who waits for a server does not take a connection for one: it may be turned away yet.
        if self.patience == Patience::WaitForReady && connection.may_yet_greet() {
            self.prepare(Need::Greeting, Some(connection), deadline, None);
            return Ok(false);
        }
        let codec = W::codec(self.client.config().codec);
        let head = RequestHead {
            method: self.method.id,
            timeout_us,
            sent_at_us: clock::wire_micros(now),
            codec,
            compression: 0,
            priority: self.priority.unwrap_or(0),
            attempt: 0,
        };
        let args = self.args.as_ref().expect("kept until the call is sent");
        let sent = scratch::with_call_buffer(|frame| {
            let message = OpenMessage::request(frame, &head, &self.metadata);
            W::encode(codec, args, frame).map_err(CallError::Encode)?;
            let bounds = connection.bounds();
            match message.finish(frame, CallId::CONNECTION, bounds) {
                Ok(mut remainder) => {
                    let has_place = place.is_some();
                    if self.kind != CallKind::Unary {
                        mark_kind(frame, self.kind);
                    }
                    Ok(Ok(connection.send(frame, self.kind, &mut remainder, deadline, has_place, cx.waker())))
                }
                Err(error) => Ok(Err((error, bounds))),
            }
        })?;
        match sent {
            Ok(Sent::As(id)) => {
                self.args = None;
                self.state = State::Sent { connection, id };
                return Ok(true);
            }
            Ok(Sent::NoRoom) => self.prepare(Need::Room, Some(connection), deadline, place),
            Ok(Sent::Gone) => self.find_another(&connection, deadline, waited)?,
            // The server may take more than it must, but has not said so yet, or says so right now.
            Err((_, bounds)) if connection.may_take_more(bounds) => {
                self.prepare(Need::Greeting, Some(connection), deadline, None)
            }
            Err(_) if !connection.is_greeted() => self.find_another(&connection, deadline, waited)?,
            Err((error, _)) => return Err(too_large(&connection.peer, &error)),
        }
        Ok(false)
    }

    /// Prepares to wait for another connection than one that takes no more calls.
    fn find_another(
        &mut self,
        gone: &Arc<Connection>,
        deadline: Deadline,
        waited: Option<Need>,
    ) -> Result<(), CallError> {
        self.client.forget(gone);
        // Turned away by a server that never served, or on the very connection that was made for this
        // call: to go on would be to wait, if not a loop.
        if self.patience == Patience::FailFast
            && (waited == Some(Need::Connection) || !gone.is_greeted())
            && let Some(error) = gone.ended()
        {
            return Err(error);
        }
        self.prepare(Need::Connection, None, deadline, None);
        Ok(())
    }

    fn prepare(&mut self, need: Need, connection: Option<Arc<Connection>>, deadline: Deadline, place: Option<Place>) {
        let (client, patience) = (self.client.clone(), self.patience);
        let preparing = async move {
            let prepare = async {
                match (need, connection) {
                    (Need::Room, Some(connection)) => {
                        let place = connection.wait_for_room(place).await;
                        Ok((connection, Some(place)))
                    }
                    (Need::Greeting, Some(connection)) => {
                        connection.wait_for_greeting().await;
                        Ok((connection, None))
                    }
                    _ => Ok((client.connected(patience).await?, None)),
                }
            };
            let prepared = match deadline.instant() {
                None => prepare.await,
                // A timer would panic where no runtime could fire it.
                Some(_) if Handle::try_current().is_err() => Err(CallError::NoRuntime),
                Some(instant) => match timeout_at(instant.into(), prepare).await {
                    Ok(prepared) => prepared,
                    Err(_) => {
                        let peer = Arc::clone(client.peer());
                        Err(CallError::DeadlineExceeded { peer, executed: Executed::Never })
                    }
                },
            };
            let (connection, place) = prepared?;
            Ok((Ready { connection, deadline, place }, need))
        };
        self.state = State::Preparing(Box::pin(preparing));
    }
}

impl<A, R, W> Call<A, R, W> {
    /// Tells the interceptors, if there are any, once, how the call ended.
    fn tell(&mut self, outcome: Outcome<'_>) {
        let Some(watch) = self.watch.take() else { return };
        let elapsed = clock::now().saturating_duration_since(watch.0);
        let finished = Finished { method: self.method, metadata: &self.metadata, outcome, elapsed };
        self.client.config().interceptors.after(&finished);
    }
}

// Nothing in a call is pinned in place: what must be is in a box.
impl<A, R, W> Unpin for Call<A, R, W> {}

impl<A: 'static, R, W: WireForm<A, R>> Future for Call<A, R, W> {
    type Output = Result<R, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_reply(cx, &mut Metadata::new())
    }
}

impl<A, R, W> Drop for Call<A, R, W> {
    fn drop(&mut self) {
        if let State::Sent { connection, id } = &self.state {
            connection.abandon(*id);
        }
        // Two panics at once would end the process.
        if self.watch.is_some() && !std::thread::panicking() {
            self.tell(Outcome::Dropped);
        }
    }
}

impl<A, R, W> fmt::Debug for Call<A, R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("method", &format_args!("{}", self.method)).finish_non_exhaustive()
    }
}

fn too_large(peer: &Arc<str>, error: &EncodeError) -> CallError {
    let (len, max) = sizes(error);
    CallError::RequestTooLarge { peer: Arc::clone(peer), len, max }
}

/// How long it is and may be what cannot be sent.
pub(crate) fn sizes(error: &EncodeError) -> (u64, u64) {
    match *error {
        EncodeError::MessageTooLong { len, max } => (len, max),
        EncodeError::HeadTooLong { len, max } => (len as u64, max as u64),
        _ => (0, 0),
    }
}

/// What a nested call leaves its caller of the time, to make something of the answer.
const INHERITED_MARGIN: Duration = Duration::from_millis(1);
