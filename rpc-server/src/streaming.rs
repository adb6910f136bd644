//! Methods whose calls have items: how they are registered, and what their services are given.

use std::{marker::PhantomData, sync::Arc};

use rpc_codec::{CallKind, CodecId, DecodeItem, EncodeItem, PayloadError};
use rpc_core::{Context, Status, Streaming};
use serde::de::DeserializeOwned;

use crate::{
    body::Body,
    inlet::Inlet,
    method::{MethodOptions, ServiceMethods},
    outlet::Outlet,
    stream::Stream,
    unary::Shape,
};

impl ServiceMethods<'_> {
    /// Adds a method whose server sends items: it takes the tuple `A` in the call's codec and sends `T`
    /// as `W` has it. The stream ends when `handler`'s future does.
    pub fn server_stream<A, T, W, F, Fut>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        A: DeserializeOwned + Send + 'static,
        T: Send + 'static,
        W: EncodeItem<T>,
        F: Fn(&Context, (A, Outlet<T, W>)) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.add::<Sends<A, T, W>, F, Fut>(name, options, handler);
    }

    /// Adds a method whose client sends items: it takes the tuple `A` in the call's codec and items `T`
    /// as `W` has it, and returns `R` as `V` has it.
    pub fn client_stream<A, T, W, R, V, F, Fut>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        A: DeserializeOwned + Send + 'static,
        T: Send + 'static,
        W: DecodeItem<T>,
        R: Send + 'static,
        V: EncodeItem<R>,
        F: Fn(&Context, (A, Streaming<T>)) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Status>> + Send + 'static,
    {
        self.add::<Receives<A, (T, W), (R, V)>, F, Fut>(name, options, handler);
    }

    /// Adds a method with items both ways: it takes the tuple `A` in the call's codec and items `T` as
    /// `W` has it, and sends `U` as `V` has it.
    pub fn both_ways<A, T, W, U, V, F, Fut>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        A: DeserializeOwned + Send + 'static,
        T: Send + 'static,
        W: DecodeItem<T>,
        U: Send + 'static,
        V: EncodeItem<U>,
        F: Fn(&Context, (A, Streaming<T>, Outlet<U, V>)) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.add::<Both<A, (T, W), (U, V)>, F, Fut>(name, options, handler);
    }
}

/// Items from the server.
struct Sends<A, T, W>(PhantomData<fn(A) -> (T, W)>);

/// Items from the client, each type with its form, and a reply.
struct Receives<A, I, R>(PhantomData<fn(A, I) -> R>);

/// Items both ways.
struct Both<A, I, O>(PhantomData<fn(A, I) -> O>);

impl<A, T, W> Shape for Sends<A, T, W>
where
    A: DeserializeOwned + Send + 'static,
    T: Send + 'static,
    W: EncodeItem<T>,
{
    type Args = (A, Outlet<T, W>);
    type Reply = ();

    const UNTOUCHED: bool = false;
    const KIND: CallKind = CallKind::ServerStream;

    fn decode(codec: CodecId, body: &mut Body<'_>, stream: Option<&Arc<Stream>>) -> Result<Self::Args, PayloadError> {
        let args = codec.decode(body.bytes())?;
        Ok((args, Outlet::new(opened(stream), codec)))
    }

    fn encode(_: CodecId, (): &(), _: &mut Vec<u8>) -> Result<(), PayloadError> {
        Ok(())
    }
}

impl<A, T, W, R, V> Shape for Receives<A, (T, W), (R, V)>
where
    A: DeserializeOwned + Send + 'static,
    T: Send + 'static,
    W: DecodeItem<T>,
    R: Send + 'static,
    V: EncodeItem<R>,
{
    type Args = (A, Streaming<T>);
    type Reply = R;

    const UNTOUCHED: bool = false;
    const KIND: CallKind = CallKind::ClientStream;

    fn decode(codec: CodecId, body: &mut Body<'_>, stream: Option<&Arc<Stream>>) -> Result<Self::Args, PayloadError> {
        let args = codec.decode(body.bytes())?;
        Ok((args, Streaming::new(Inlet::<T, W>::new(opened(stream), codec))))
    }

    fn encode(codec: CodecId, reply: &R, out: &mut Vec<u8>) -> Result<(), PayloadError> {
        V::encode(codec, reply, out)
    }
}

impl<A, T, W, U, V> Shape for Both<A, (T, W), (U, V)>
where
    A: DeserializeOwned + Send + 'static,
    T: Send + 'static,
    W: DecodeItem<T>,
    U: Send + 'static,
    V: EncodeItem<U>,
{
    type Args = (A, Streaming<T>, Outlet<U, V>);
    type Reply = ();

    const UNTOUCHED: bool = false;
    const KIND: CallKind = CallKind::BothWays;

    fn decode(codec: CodecId, body: &mut Body<'_>, stream: Option<&Arc<Stream>>) -> Result<Self::Args, PayloadError> {
        let args = codec.decode(body.bytes())?;
        let stream = opened(stream);
        let items = Streaming::new(Inlet::<T, W>::new(Arc::clone(&stream), codec));
        Ok((args, items, Outlet::new(stream, codec)))
    }

    fn encode(_: CodecId, (): &(), _: &mut Vec<u8>) -> Result<(), PayloadError> {
        Ok(())
    }
}

fn opened(stream: Option<&Arc<Stream>>) -> Arc<Stream> {
    Arc::clone(stream.expect("a call of this kind is started with its stream"))
}
