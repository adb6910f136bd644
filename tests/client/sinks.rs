//! Sinks that are used as no sink may be cost their call an error, and nobody else anything.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use futures::{FutureExt, Sink as _, SinkExt, poll};
use rpc_codec::Kind;
use rpc_core::CallId;
use serde::{Serialize, Serializer};
use sluicegate::{
    CallError, Client, Executed, StatusCode,
    client::{Coded, ItemSink, Reply},
};

use crate::support::{Got, RawServer, method, raw::hello_with, scripted::scripted, until_client_idle, within};

/// A number that cannot be encoded if it is odd.
struct Even(u64);

impl Serialize for Even {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(2) { serializer.serialize_u64(self.0) } else { Err(serde::ser::Error::custom("odd")) }
    }
}

type Sink = ItemSink<Even, Coded>;

/// A call with items that is out, to a server with this window.
async fn opened(window: u32, max_message: u32) -> (Client, RawServer, Sink, Reply<u64, Coded>, CallId) {
    let (builder, mut servers) = scripted(64 * 1024);
    let client = builder.build();
    let call = client.client_stream::<_, Even, u64, Coded, Coded>(method::GATE, (1_u64,)).wait_for_ready(true);
    let opening = tokio::spawn(async move { call.open().await.unwrap() });
    let mut server = servers.recv().await.unwrap();
    assert!(matches!(server.peer.next().await, Got::Hello(_)));
    server.peer.send(&hello_with(|hello| (hello.stream_window, hello.max_message) = (window, max_message))).await;
    let (id, _) = server.request().await;
    let (sink, reply) = within(opening).await.unwrap();
    (client, server, sink, reply, id)
}

/// The call is over in peace, and its connection takes the next one.
async fn ends_well(client: Client, mut server: RawServer, reply: Reply<u64, Coded>, id: CallId) {
    server.reply(id, 7_u64).await;
    assert_eq!(within(reply).await.unwrap(), 7);
    let next = tokio::spawn(client.call::<_, u64>(method::GATE, (2_u64,)));
    loop {
        match server.peer.next().await {
            Got::Request { id, .. } => break server.reply(id, 8_u64).await,
            Got::Item { .. } | Got::LastItem(_) | Got::Cancel(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(within(next).await.unwrap().unwrap(), 8);
    assert_eq!(client.snapshot().connects, 1);
    until_client_idle(&client).await;
}

#[track_caller]
fn assert_misused(error: &CallError) {
    assert!(matches!(error, CallError::SinkMisused { .. }), "{error:?}");
    assert_eq!((error.code(), error.executed()), (StatusCode::Internal, Executed::Maybe));
}

#[tokio::test(start_paused = true)]
async fn items_beyond_the_credit_that_nobody_asked_for_are_refused_and_the_connection_stays() {
    let window = rpc_codec::Hello::default().stream_window;
    let (client, mut server, mut sink, reply, id) = opened(window, 1 << 20).await;
    let mut sent = 0;
    let error = loop {
        match Pin::new(&mut sink).start_send(Even(sent * 2)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_misused(&error);
    assert_eq!(sent, u64::from(window.div_ceil(64)), "all that there was credit for");
    assert!(poll!(sink.ready().boxed()).is_pending());
    for n in 0..sent {
        assert!(matches!(server.peer.next().await, Got::Item { id: of, .. } if of == id), "item {n}");
    }
    // With credit it goes on.
    let mut credit = Vec::new();
    rpc_codec::encode_credit(&mut credit, id, 64);
    server.peer.send(&credit).await;
    within(sink.send(Even(2))).await.unwrap();
    sink.end();
    ends_well(client, server, reply, id).await;
}

#[tokio::test(start_paused = true)]
async fn items_behind_the_end_are_refused_and_the_connection_stays() {
    let (client, server, mut sink, reply, id) = opened(64 * 1024, 1 << 20).await;
    SinkExt::send(&mut sink, Even(2)).await.unwrap();
    assert!(sink.is_ready());
    SinkExt::close(&mut sink).await.unwrap();
    assert!(!sink.is_ready());
    assert_misused(&sink.ready().await.unwrap_err());
    assert_misused(&sink.send(Even(4)).await.unwrap_err());
    assert_misused(&SinkExt::send(&mut sink, Even(4)).await.unwrap_err());
    assert_misused(&Pin::new(&mut sink).start_send(Even(4)).unwrap_err());
    SinkExt::close(&mut sink).await.expect("to close it twice is no misuse");
    drop(sink);
    ends_well(client, server, reply, id).await;
}

#[tokio::test(start_paused = true)]
async fn an_item_that_cannot_be_sent_says_that_the_service_may_have_run_on_those_before_it() {
    let (client, mut server, mut sink, reply, id) = opened(64 * 1024, 1 << 20).await;
    within(sink.send(Even(2))).await.unwrap();
    let error = within(sink.send(Even(3))).await.unwrap_err();
    assert!(matches!(error, CallError::EncodeItem(_)), "{error:?}");
    assert_eq!((error.code(), error.executed()), (StatusCode::Internal, Executed::Maybe));
    // The call goes on.
    within(sink.send(Even(4))).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(server.peer.next().await, Got::Item { .. }));
    }
    sink.end();
    ends_well(client, server, reply, id).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_could_not_be_opened_says_so_as_often_as_it_is_asked() {
    let down =
        Client::with_connector("nobody", || async { Err::<tokio::io::DuplexStream, _>(std::io::Error::other("down")) });
    let client = down.build();
    let mut items = client.server_stream::<_, u64, Coded>(method::GATE, (1_u64,));
    let error = within(items.message()).await.unwrap_err();
    assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
    assert!(within(items.message()).await.unwrap().is_none(), "an error ends it");
    let again = within(items.open()).await.unwrap_err();
    assert!(matches!(again, CallError::Connect { .. }), "{again:?}");
    until_client_idle(&client).await;
}

/// A frame of this kind for a call.
fn item(id: CallId) -> Vec<u8> {
    let mut frame = crate::support::raw::frame(Kind::Item as u8, 0, 0, &1_u32.to_be_bytes(), &[7]);
    rpc_codec::patch_id(&mut frame, id);
    frame
}

#[tokio::test(start_paused = true)]
async fn credit_for_a_server_that_does_not_read_is_held_back_and_its_items_beyond_it_end_the_connection() {
    let (builder, mut servers) = crate::support::scripted::scripted_with(
        crate::support::shims::Manner::plain("a hundred thousand frames"),
        4 * 1024,
    );
    let client = builder.stream_window(128).build();
    let mut items = client.server_stream::<_, u8, Coded>(method::GATE, (1_u64,));
    let consumer = tokio::spawn(async move {
        let mut taken = 0_u64;
        loop {
            match items.message().await {
                Ok(item) => taken += u64::from(item.is_some()),
                Err(error) => break (taken, error),
            }
        }
    });
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    // It is owed a CREDIT for every item, and reads none.
    let flood = item(id).repeat(2);
    let (read, mut write) = tokio::io::split(server.peer.io);
    let mut most = 0;
    while tokio::io::AsyncWriteExt::write_all(&mut write, &flood).await.is_ok() {
        most = most.max(client.snapshot().outbound_bytes);
        tokio::task::yield_now().await;
    }
    drop((read, write));
    let (taken, error) = within(consumer).await.unwrap();
    assert!(error.to_string().contains("lost"), "{error}");
    assert!(taken > 40_000, "{taken} items");
    assert!(most <= 2 * 1024 * 1024 + 64 * 1024, "{most} bytes for a server that does not read");
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn credit_that_was_held_back_is_given_when_the_server_reads_again_and_its_stream_goes_on() {
    // What a short item costs, and for how many there is credit at once.
    const CHARGE: u64 = 64;
    const AT_ONCE: u64 = 2;
    const CREDIT_LEN: u64 = 20;
    let (builder, mut servers) = crate::support::scripted::scripted_with(
        crate::support::shims::Manner::plain("a hundred thousand frames"),
        4 * 1024,
    );
    let client = builder.stream_window((AT_ONCE * CHARGE) as u32).build();
    let mut items = client.server_stream::<_, u8, Coded>(method::GATE, (1_u64,));
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    let consumer = tokio::spawn(async move {
        while items.message().await?.is_some() {
            counted.fetch_add(1, SeqCst);
        }
        Ok::<_, CallError>(())
    });
    let mut server = servers.recv().await.unwrap();
    server.shake_hands(64).await;
    let (id, _) = server.request().await;
    let some = item(id).repeat(AT_ONCE as usize);
    // It reads nothing, and sends as long as its credit grows, which it does not read.
    let mut sent = 0;
    loop {
        let before = client.snapshot().outbound_bytes;
        server.peer.send(&some).await;
        sent += AT_ONCE;
        while taken.load(SeqCst) < sent {
            assert!(!consumer.is_finished(), "the connection stays");
            tokio::task::yield_now().await;
        }
        let after = client.snapshot().outbound_bytes;
        if after > 1024 * 1024 && after < before + AT_ONCE * CREDIT_LEN {
            break;
        }
    }
    // When it reads again, it is told of everything that was taken, and goes on.
    let mut credit = 0;
    for more in [0, AT_ONCE] {
        server.peer.send(&some[..some.len() * usize::from(more > 0)]).await;
        sent += more;
        while credit < sent * CHARGE {
            match server.peer.next().await {
                Got::Credit { id: of, bytes } if of == id => credit += u64::from(bytes),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(credit, sent * CHARGE);
    server.reply(id, ()).await;
    within(consumer).await.unwrap().unwrap();
    until_client_idle(&client).await;
}
