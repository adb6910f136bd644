//! What a call costs in allocations on the server: a refused one none, a served one those of the
//! user's own values.

use rpc_codec::{CodecId, EMPTY_RESPONSE_LEN, Hello, OpenMessage, RequestHead, SendBounds};
use rpc_core::{CallId, Metadata, MethodId};
use serde::{Deserialize, Serialize};
use sluicegate::{
    Server,
    limit::Rate,
    server::{MethodLimits, ServerHandle, TenantLimits, Tenants, WaitQueue},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
};

use crate::counting::ALLOCATIONS;

#[derive(Serialize, Deserialize)]
struct Message {
    id: u64,
    name: String,
    #[serde(with = "sluicegate::bytes")]
    payload: Vec<u8>,
}

#[sluicegate::service]
trait Echo {
    async fn echo(&self, message: Message) -> Message;
}

struct Echoing;

impl Echo for Echoing {
    async fn echo(&self, message: Message) -> Message {
        message
    }
}

/// A peer that allocates nothing: its requests are encoded before, its answers read into one buffer.
struct Peer {
    socket: TcpStream,
    sequence: u64,
    answer: Vec<u8>,
}

impl Peer {
    /// On a plain socket in every run: what stands between allocates, too.
    async fn connect(server: &Server) -> (Self, ServerHandle) {
        let bound = server.bind("127.0.0.1:0").await.unwrap();
        let (address, handle) = (bound.local_addr(), bound.handle());
        tokio::spawn(bound.serve());
        let mut socket = TcpStream::connect(address).await.unwrap();
        let mut hello = Vec::new();
        Hello::default().encode(&mut hello);
        socket.write_all(&hello).await.unwrap();
        let mut peer = Self { socket, sequence: 0, answer: vec![0; 64 * 1024] };
        peer.read_frame().await;
        (peer, handle)
    }

    /// Makes `calls` calls one after the other, and gives back how much longer than an empty response
    /// the last answer was, and how many allocations there were on this thread meanwhile.
    async fn call(&mut self, calls: u64) -> (usize, u64) {
        let mut requests = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..calls {
            self.sequence += 1;
            let head = RequestHead {
                method: MethodId::of("Echo", "echo"),
                timeout_us: 10_000_000,
                sent_at_us: 0,
                codec: CodecId::BINCODE,
                compression: 0,
                priority: 0,
                attempt: 0,
            };
            let message = Message { id: self.sequence, name: "sixteen letters!".to_owned(), payload: vec![7; 64] };
            let open = OpenMessage::request(&mut requests, &head, &Metadata::new());
            CodecId::BINCODE.encode(&(message,), &mut requests).unwrap();
            let bounds = SendBounds { max_frame: 1 << 16, max_message: 1 << 16 };
            open.finish(&mut requests, CallId::new(self.sequence, 0), bounds).unwrap();
            ends.push(requests.len());
        }
        let before = ALLOCATIONS.get();
        let mut start = 0;
        let mut len = 0;
        for end in ends {
            self.socket.write_all(&requests[start..end]).await.unwrap();
            start = end;
            len = self.read_frame().await;
        }
        (len - EMPTY_RESPONSE_LEN, ALLOCATIONS.get() - before)
    }

    async fn read_frame(&mut self) -> usize {
        self.socket.read_exact(&mut self.answer[..4]).await.unwrap();
        let len = u32::from_be_bytes(self.answer[..4].try_into().unwrap()) as usize;
        self.socket.read_exact(&mut self.answer[4..4 + len]).await.unwrap();
        4 + len
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

const CALLS: u64 = 500;

#[test]
fn a_served_call_allocates_only_for_the_users_own_values() {
    runtime().block_on(async {
        let rate = Rate::per_second(1e6).burst(1_000_000);
        let server = Server::builder().service(EchoServer::new(Echoing)).max_concurrent_calls(8).rate(rate);
        let (mut peer, handle) = Peer::connect(&server.rate_per_connection(rate).build().unwrap()).await;
        peer.call(CALLS).await;
        let (body_len, allocations) = peer.call(CALLS).await;
        assert!(body_len > 64, "a reply");
        assert_eq!(allocations, 2 * CALLS, "a String and a Vec for each call");
        assert_eq!(handle.snapshot().calls.acquired, 2 * CALLS);
    });
}

#[test]
fn a_refused_call_allocates_nothing() {
    runtime().block_on(async {
        let server = Server::builder().service(EchoServer::new(Echoing)).rate(Rate::per_second(0.001).burst(1));
        let (mut peer, handle) = Peer::connect(&server.build().unwrap()).await;
        peer.call(CALLS).await;
        let (details_len, allocations) = peer.call(CALLS).await;
        assert!(details_len > 64, "a refusal with its details");
        assert_eq!(allocations, 0);
        assert_eq!(handle.snapshot().refused["global rate"], 2 * CALLS - 1);
    });
}

/// Everything that can be limited, and none of it reached.
fn with_all_limits() -> Server {
    let rate = Rate::per_second(1e6).burst(1_000_000);
    let tenant = TenantLimits::new().max_concurrent_calls(50).rate(rate);
    let method = MethodLimits::new().max_concurrent_calls(40).weight(2).pool("echoes");
    Server::builder()
        .service(EchoServer::new(Echoing))
        .max_concurrent_calls(80)
        .pool("echoes", 60)
        .method_limits("Echo/echo", method)
        .tenants(Tenants::by_metadata("tenant", tenant))
        .max_bytes_in_flight(100_000_000)
        .wait_queue(WaitQueue::default())
        .rate(rate)
        .rate_per_connection(rate)
        .shed_by_priority(true)
        .refuse_late_calls(true)
        .build()
        .unwrap()
}

#[test]
fn with_every_limit_there_is_a_call_allocates_no_more() {
    runtime().block_on(async {
        let (mut peer, handle) = Peer::connect(&with_all_limits()).await;
        peer.call(CALLS).await;
        let (body_len, allocations) = peer.call(CALLS).await;
        assert!(body_len > 64, "a reply");
        assert_eq!(allocations, 2 * CALLS, "a String and a Vec for each call");
        let snapshot = handle.snapshot();
        assert_eq!((snapshot.calls.acquired, snapshot.limits["echoes"].acquired), (4 * CALLS, 4 * CALLS));
        assert_eq!((snapshot.limits["Echo/echo"].acquired, snapshot.tenants.held), (2 * CALLS, 0));
    });
}

#[test]
fn a_call_that_one_of_many_limits_refuses_allocates_nothing() {
    runtime().block_on(async {
        let server = with_all_limits();
        let (mut peer, handle) = Peer::connect(&server).await;
        peer.call(CALLS).await;
        // Lower than a call weighs, so that none passes.
        handle.limits().set_max("echoes", Some(1)).unwrap();
        peer.call(CALLS).await;
        let (details_len, allocations) = peer.call(CALLS).await;
        assert!(details_len > 64, "a refusal with its details");
        assert_eq!((allocations, handle.snapshot().refused["echoes"]), (0, 2 * CALLS));
    });
}
