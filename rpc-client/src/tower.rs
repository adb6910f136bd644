//! Calls within layers of `tower`.

use std::{
    error::Error,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use bytes::Bytes;
use rpc_core::{Deadline, Metadata};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    builder::ClientBuilder,
    call::{Call, Method, Raw, RawUntouched},
    client::Client,
    connecting::Shared,
    error::CallError,
};

/// A call as layers see it, its arguments encoded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The arguments in the client's codec, or as they are for a method of bytes.
    pub body: Bytes,
    /// The metadata as it will be sent.
    pub metadata: Metadata,
    /// By when the call must have ended.
    pub deadline: Deadline,
    /// The class of the call; 0 is the normal one.
    pub priority: u8,
    pub(crate) untouched: bool,
    pub(crate) wait_for_ready: bool,
}

/// A reply as layers see it, not decoded yet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Response {
    /// The value in the client's codec, or as it is from a method of bytes.
    pub body: Bytes,
    /// What came beside it.
    pub metadata: Metadata,
}

impl Response {
    /// A reply of these bytes, which have to be a value that the caller expects.
    pub fn new(body: Bytes) -> Self {
        Self { body, metadata: Metadata::new() }
    }
}

/// What is behind a layer: other layers, and then the connection. Always ready. It does not keep the
/// client: calls by one that outlives it fail as [`CallError::Closed`].
#[derive(Clone)]
pub struct Next(Target);

#[derive(Clone)]
enum Target {
    Connection(Weak<Shared>),
    Layer(Arc<dyn Fn(Request) -> Answering + Send + Sync>),
}

/// What tower's services fail with.
pub type BoxError = Box<dyn Error + Send + Sync>;

type Answering = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

/// What puts the connection within layers, once it is there.
pub(crate) type Wrap = Box<dyn FnOnce(Next) -> Next + Send>;

impl ClientBuilder {
    /// Puts every call within a layer of `tower`, inside of those that were added before. A layer sees calls
    /// encoded, after all interceptors; it may make them again, later, elsewhere or not at all. Each costs
    /// some allocations, and what the layer costs. The call's deadline holds in layers too: a call that they
    /// hold back too long is given up.
    ///
    /// Calls with items go past all layers, which give one reply each; an [`Interceptor`](crate::Interceptor)
    /// sees those, too.
    ///
    /// An error of a layer that is a [`CallError`] is the caller's as it is; another is
    /// [`CallError::Layer`]. [`CallError::executed`] speaks of the one time that the error is from: behind a layer that
    /// sends calls again, *never* does not mean that no earlier one was executed. Such a layer asks it of every error.
    ///
    /// ```
    /// use rpc_client::Client;
    /// use tower::limit::ConcurrencyLimitLayer;
    ///
    /// // No more than eight calls of this client are out at once; the others wait here.
    /// let client = Client::builder("127.0.0.1:7000").layer(ConcurrencyLimitLayer::new(8)).build();
    /// # drop(client);
    /// ```
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<Next> + Send + 'static,
        L::Service: Service<Request, Response = Response> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request>>::Error: Into<BoxError>,
        <L::Service as Service<Request>>::Future: Send,
    {
        let inner: Wrap = Box::new(move |next| Next::boxed(layer.layer(next)));
        self.layers = Some(match self.layers.take() {
            None => inner,
            Some(outer) => Box::new(move |next| outer(inner(next))),
        });
        self
    }
}

impl Next {
    pub(crate) fn connection(shared: Weak<Shared>) -> Self {
        Self(Target::Connection(shared))
    }

    fn boxed<S>(service: S) -> Self
    where
        S: Service<Request, Response = Response> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        Self(Target::Layer(Arc::new(move |request| {
            let mut service = service.clone();
            Box::pin(async move {
                poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
                service.call(request).await.map_err(Into::into)
            })
        })))
    }

    pub(crate) fn answer(&self, request: Request) -> Answering {
        match &self.0 {
            Target::Layer(layer) => layer(request),
            Target::Connection(shared) => {
                let client = shared.upgrade().map(Client::from_shared);
                Box::pin(async move {
                    let client = client.ok_or(CallError::Closed)?;
                    Ok(transmit(client, request).await?)
                })
            }
        }
    }
}

async fn transmit(client: Client, request: Request) -> Result<Response, CallError> {
    let Request { method, body, metadata, deadline, priority, untouched, wait_for_ready } = request;
    let (body, metadata) = if untouched {
        let call = Call::<Bytes, Bytes, RawUntouched>::again(client, method, body, metadata, deadline);
        let response = call.priority(priority).wait_for_ready(wait_for_ready).response().await?;
        (response.value, response.metadata)
    } else {
        let call = Call::<Bytes, Bytes, Raw>::again(client, method, body, metadata, deadline);
        let response = call.priority(priority).wait_for_ready(wait_for_ready).response().await?;
        (response.value, response.metadata)
    };
    Ok(Response { body, metadata })
}

/// What the caller is told of an error that came through layers.
pub(crate) fn call_error(error: BoxError) -> CallError {
    match error.downcast::<CallError>() {
        Ok(error) => *error,
        Err(error) => CallError::Layer(error.into()),
    }
}

impl Service<Request> for Next {
    type Response = Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        self.answer(request)
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}
