//! Services within layers of `tower`.

use std::{
    error::Error,
    fmt,
    future::{Future, poll_fn},
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context as TaskContext, Poll},
};

use bytes::Bytes;
use rpc_codec::{CallKind, CodecId, PayloadError};
use rpc_core::{Context, Executed, Status};
use tower_layer::Layer;
use tower_service::Service as TowerService;

use crate::{
    body::Body,
    method::{Service, ServiceMethods},
    stream::Stream,
    unary::{Shape, encode_status, finished, undecodable},
};

/// A service whose calls pass a layer of `tower` on their way.
///
/// ```
/// use rpc_server::{Server, Service, tower::Layered};
/// use tower_layer::Identity;
///
/// fn layered(service: impl Service) -> Result<Server, rpc_server::BuildError> {
///     Server::builder().service(Layered::new(service, Identity::new())).build()
/// }
/// ```
///
/// A layer sees calls behind the pipeline: admitted, with their permits, and not decoded yet. It costs each
/// call an allocation or two, and what the layer costs; a [`Handler`](crate::Handler) is cheaper, and can
/// refuse for less. Of a call with items it sees the arguments, and the end; items go past it, and a layer that
/// makes such a call again finds that they are gone. What a layer says instead of the service is told to the caller as it is if it is a
/// [`Status`], and as INTERNAL if it is another error, which stays here as the status's source.
///
/// Each method gets a service of its own from the layer. If a layer shares something between them, such as
/// a limit, it has to bring that along, as tower's `GlobalConcurrencyLimitLayer` does. Methods that block
/// cannot be layered: a server that has such does not build.
#[derive(Clone, Debug)]
pub struct Layered<S, L> {
    service: S,
    layer: L,
}

impl<S, L> Layered<S, L> {
    /// Puts `service` within `layer`.
    pub fn new(service: S, layer: L) -> Self {
        Self { service, layer }
    }
}

impl<S, L> Service for Layered<S, L>
where
    S: Service,
    L: Layer<Next> + Send + Sync + 'static,
    L::Service: TowerService<Request, Response = Response> + Clone + Send + Sync + 'static,
    <L::Service as TowerService<Request>>::Error: Into<BoxError>,
    <L::Service as TowerService<Request>>::Future: Send,
{
    fn name(&self) -> &str {
        self.service.name()
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        let Self { service, layer } = self;
        let own: Wrap = Arc::new(move |next| Next::boxed(layer.layer(next)));
        let outer = methods.wrap.take();
        // A service may be layered more than once; the outer layers see calls first.
        let both = match outer.clone() {
            None => own,
            Some(outer) => Arc::new(move |next| outer(own(next))),
        };
        methods.wrap = Some(both);
        service.register(methods);
        methods.wrap = outer;
    }
}

/// A call as layers see it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who asks, until when, with which metadata and extensions.
    pub context: Context,
    /// The path of the method, `package.Service/method`.
    pub method: Arc<str>,
    /// What the body is encoded with.
    pub codec: CodecId,
    /// The arguments as they were sent.
    pub body: Bytes,
    pub(crate) items: Items,
}

/// The items of a call on their way past the layers, if it has any.
#[derive(Clone, Debug)]
pub(crate) struct Items(Option<Arc<Mutex<Option<Arc<Stream>>>>>);

impl Items {
    pub(crate) fn new(stream: Option<Arc<Stream>>) -> Self {
        Self(stream.map(|stream| Arc::new(Mutex::new(Some(stream)))))
    }

    /// The stream, which can be had once.
    fn take(&self) -> Result<Option<Arc<Stream>>, Status> {
        let Some(items) = &self.0 else { return Ok(None) };
        let taken = items.lock().unwrap_or_else(PoisonError::into_inner).take();
        let gone = || Status::internal("a layer made a call again whose items are gone").with_executed(Executed::Maybe);
        taken.map(Some).ok_or_else(gone)
    }
}

/// A reply as layers see it: a value in the codec of the call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Response {
    /// The value as it will be sent.
    pub body: Bytes,
}

impl Response {
    /// A reply of these bytes, which have to be a value that the caller expects, in the call's codec.
    pub fn new(body: Bytes) -> Self {
        Self { body }
    }
}

/// What is behind a layer: other layers, and then the service. Always ready.
#[derive(Clone)]
pub struct Next(Arc<dyn Fn(Request) -> Answering + Send + Sync>);

/// What tower's services fail with.
pub type BoxError = Box<dyn Error + Send + Sync>;

type Answering = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

/// What puts a method within its layers.
pub(crate) type Wrap = Arc<dyn Fn(Next) -> Next + Send + Sync>;

impl Next {
    fn boxed<T>(service: T) -> Self
    where
        T: TowerService<Request, Response = Response> + Clone + Send + Sync + 'static,
        T::Error: Into<BoxError>,
        T::Future: Send,
    {
        Self(Arc::new(move |request| {
            let mut service = service.clone();
            Box::pin(async move {
                poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
                service.call(request).await.map_err(Into::into)
            })
        }))
    }

    /// A method that is decoded, run and encoded behind all layers.
    pub(crate) fn method<S, F, Fut>(handler: F) -> Self
    where
        S: Shape,
        F: Fn(&Context, S::Args) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S::Reply, Status>> + Send + 'static,
    {
        Self(Arc::new(move |request| {
            let Request { context, codec, body, items, .. } = request;
            let called = items.take().and_then(|stream| {
                let args = S::decode(codec, &mut Body::Owned(body), stream.as_ref());
                args.map(|args| handler(&context, args)).map_err(|error| undecodable(&error))
            });
            Box::pin(async move {
                let reply = called?.await.map_err(finished)?;
                let mut body = Vec::new();
                S::encode(codec, &reply, &mut body).map_err(|error| encode_status(&error))?;
                Ok(Response::new(body.into()))
            })
        }))
    }

    /// Answers a call by way of the layers.
    pub(crate) fn answer(&self, request: Request) -> impl Future<Output = Result<Bytes, Status>> + Send + use<> {
        let answering = (self.0)(request);
        async move { answering.await.map(|response| response.body).map_err(status) }
    }
}

impl TowerService<Request> for Next {
    type Response = Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        (self.0)(request)
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

fn status(error: BoxError) -> Status {
    match error.downcast::<Status>() {
        Ok(status) => *status,
        // It may have been called, and given up.
        Err(error) => Status::internal("a layer failed").with_executed(Executed::Maybe).with_source(error),
    }
}

/// Bytes in the call's codec, on their way through the layers around a method of shape `S`.
#[derive(Debug)]
pub(crate) struct InLayers<S>(PhantomData<fn() -> S>);

impl<S: Shape> Shape for InLayers<S> {
    type Args = (CodecId, Bytes, Items);
    type Reply = Bytes;

    const UNTOUCHED: bool = S::UNTOUCHED;
    const KIND: CallKind = S::KIND;
    // What it answers has been through the layers, which know better.
    const SAYS_EXECUTED: bool = true;

    fn decode(codec: CodecId, body: &mut Body<'_>, stream: Option<&Arc<Stream>>) -> Result<Self::Args, PayloadError> {
        Ok((codec, body.take_bytes(), Items::new(stream.cloned())))
    }

    fn encode(_: CodecId, reply: &Bytes, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        // What a server's stream says, its items have said.
        if !S::KIND.server_sends() {
            out.extend_from_slice(reply);
        }
        Ok(())
    }
}
