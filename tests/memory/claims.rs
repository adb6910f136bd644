//! Lengths that a body claims, on the whole way of a call: they are believed as far as there are bytes, by a server of
//! its clients and by a client of its server, and cost that call.

use std::collections::HashMap;

use rpc_codec::CodecId;
use serde::de::DeserializeOwned;
use sluicegate::{
    CallError, Client, Context, Executed, StatusCode,
    client::Method,
    server::{MethodOptions, Service, ServiceMethods},
};

use crate::{
    counting::{LIVE, PEAK},
    support::{Harness, RawServer, Req, raw::frame, scripted::first_call, scripted::scripted, until_client_idle},
};

/// A type with a length that comes first.
trait Claimed: DeserializeOwned + Send + 'static {
    const METHOD: Method;
}

macro_rules! claimed {
    ($($name:literal $ty:ty,)*) => {
        $(impl Claimed for $ty {
            const METHOD: Method = Method::new("test.Claims", $name);
        })*

        /// Takes one argument of each type.
        struct Claims;

        impl Service for Claims {
            fn name(&self) -> &str {
                "test.Claims"
            }

            fn register(self, methods: &mut ServiceMethods<'_>) {
                $(methods.unary($name, MethodOptions::default(), |_: &Context, (_,): ($ty,)| async { Ok(7_u8) });)*
            }
        }

        #[tokio::test(start_paused = true)]
        async fn a_server_believes_no_length_that_a_client_claims() {
            let harness = Harness::with(|builder| builder.service(Claims));
            let mut server = Victim::Server(harness.peer().await, 0);
            $(server.is_told_all::<$ty>().await;)*
            let Victim::Server(peer, _) = server else { unreachable!() };
            peer.part().await;
            harness.assert_idle().await;
            let snapshot = harness.snapshot();
            assert_eq!((snapshot.protocol_errors, snapshot.panics), (0, 0));
        }

        #[tokio::test(start_paused = true)]
        async fn a_client_believes_no_length_that_a_server_claims() {
            let (builder, mut servers) = scripted(64 * 1024);
            let client = builder.build();
            let (call, mut server, id) = first_call(&client, &mut servers, 64).await;
            server.reply(id, 1_u64).await;
            call.await.unwrap().unwrap();
            let mut victim = Victim::Client(client.clone(), server);
            $(victim.is_told_all::<$ty>().await;)*
            until_client_idle(&client).await;
            let snapshot = client.snapshot();
            assert_eq!((snapshot.connects, snapshot.protocol_errors), (1, 0));
        }
    };
}

claimed! {
    "string" String,
    "bytes" Vec<u8>,
    "integers" Vec<u64>,
    "strings" Vec<String>,
    "map" HashMap<String, u64>,
    "nested" Vec<Vec<u8>>,
}

/// Who is told of a length.
enum Victim {
    Server(crate::support::RawClient, u64),
    Client(Client, RawServer),
}

impl Victim {
    async fn is_told_all<T: Claimed>(&mut self) {
        // What it keeps for later calls is there.
        self.is_told::<T>(1 << 20, 64).await;
        for claim in [1 << 20, 1 << 32, 1 << 40, 1 << 63, u64::MAX] {
            for follow in [0, 1, 8, 64] {
                let peak = self.is_told::<T>(claim, follow).await;
                let bound = 64 * (follow as i64 + 9) + (64 << 10);
                assert!(peak <= bound, "{peak} bytes for {claim} of {} with {follow} behind it", T::METHOD);
            }
        }
    }

    /// Tells it once; the most memory that was taken meanwhile, by both ends.
    async fn is_told<T: Claimed>(&mut self, claim: u64, follow: usize) -> i64 {
        let mut body = Vec::new();
        CodecId::BINCODE.encode(&claim, &mut body).unwrap();
        body.extend(vec![1; follow]);
        let before = LIVE.get();
        PEAK.set(before);
        match self {
            Self::Server(peer, id) => {
                *id += 1;
                peer.send(&Req::new(*id, T::METHOD, ()).body(body).bytes()).await;
                let (status, _) = peer.answer(*id).await;
                assert_eq!((status.code(), status.executed()), (StatusCode::InvalidArgument, Executed::Never));
            }
            Self::Client(client, server) => {
                let call = tokio::spawn(client.call::<_, T>(T::METHOD, ()));
                let (id, _) = server.request().await;
                let head = [&[0, 2, 0, 0][..], &(body.len() as u32).to_be_bytes(), &[0; 4]].concat();
                let mut response = frame(3, 0, 0, &head, &body);
                response[8..16].copy_from_slice(&id.to_wire().to_be_bytes());
                server.peer.send(&response).await;
                let Err(error) = call.await.unwrap() else { panic!("{claim} elements came out of {follow} bytes") };
                assert!(matches!(error, CallError::Decode { .. }), "{error:?}");
            }
        }
        PEAK.get() - before
    }
}
