//! Long bodies: servers and clients that take them, peers in the middle of sending one, and what is
//! asked of them all.

use std::time::Duration;

use rpc_codec::{Decoded, Frame, FrameDecoder, PART_LEN};
use rpc_core::CallId;
use sluicegate::{Client, Executed, Status, StatusCode, client::ClientBuilder, server::ServerBuilder};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    Harness, RawServer, Req, method,
    parts::{Piece, Pieces, REQUEST, RESPONSE, encoded, opening, part},
    raw::{frame, hello_with, response},
    scripted::scripted_with,
    shims::Manner,
};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) const KIB: usize = 1024;
pub(crate) const MIB: usize = 1024 * KIB;
/// So much of a long body may stand between a short message and the wire.
pub(crate) const MAX_AHEAD: usize = 128 * KIB;
/// A pipe that hides little of what is sent.
pub(crate) const NARROW: usize = 16 * KIB;
/// A reply that no pipe or buffer takes as a whole.
pub(crate) const REPLY: usize = 4 * MIB;
/// The length of the bodies of [`begun`].
pub(crate) const LEN: usize = 600_000;
pub(crate) const LEN64: u64 = LEN as u64;

/// A server as `configure` has it, for peers that are slow on purpose.
pub(crate) fn serve(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Harness {
    // The peers here say nothing for minutes, and answer no PING.
    let configure = |builder| configure(builder).keepalive_interval(None);
    Harness::with(configure).unless(Manner::OneByte, "megabytes go by")
}

/// A server that takes and gives bodies of 64 MiB.
pub(crate) fn serve_huge() -> Harness {
    serve(huge)
}

/// What [`serve_huge`] is.
pub(crate) fn huge(builder: ServerBuilder) -> ServerBuilder {
    builder.max_message(65 * MIB as u32).body_budget_per_connection(130 * MIB as u64)
}

/// A server whose budgets take one body of [`LEN`], not two.
pub(crate) fn serve_budget() -> Harness {
    serve(budget)
}

/// What [`serve_budget`] is.
pub(crate) fn budget(builder: ServerBuilder) -> ServerBuilder {
    builder.max_message(MIB as u32).body_budget_per_connection(MIB as u64)
}

/// A raw peer that has shaken hands and takes bodies of any length.
pub(crate) async fn wire(harness: &Harness, pipe: usize) -> Pieces {
    let mut wire = Pieces::from(harness.peer_through(pipe));
    wire.send(&hello_with(|hello| hello.max_message = u32::MAX)).await;
    assert!(wire.piece().await.id == CallId::CONNECTION, "the server's HELLO");
    wire
}

/// A peer of which 66,536 bytes of a body of [`LEN`] have arrived.
pub(crate) async fn begun(harness: &Harness, request: Req) -> Pieces {
    let mut wire = wire(harness, NARROW).await;
    wire.send(&opening(request, LEN, &[7; 1_000])).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    wire.send(&part(1, &[7; PART_LEN], true)).await;
    harness.until("the body is reserved", |harness| harness.snapshot().body_bytes == LEN64).await;
    let snapshot = harness.snapshot();
    assert_eq!((snapshot.calls.held, snapshot.calls_parked), (0, 1), "it takes its permit when it is there");
    wire
}

/// Sends what [`begun`] has left.
pub(crate) async fn complete(wire: &mut Pieces) {
    let left = LEN - 1_000 - 2 * PART_LEN;
    let count = left.div_ceil(PART_LEN);
    for n in 1..=count {
        let len = if n < count { PART_LEN } else { left - (count - 1) * PART_LEN };
        wire.send(&part(1, &vec![7; len], n < count)).await;
    }
}

/// Reads the echo of what [`begun`] and [`complete`] sent.
pub(crate) async fn answer_of_begun(wire: &mut Pieces) {
    let piece = wire.piece().await;
    assert_eq!(piece.id, CallId::new(1, 0));
    assert!(wire.whole(piece).await == vec![7; LEN]);
}

/// Everything that calls hold is back, whoever is still connected.
pub(crate) async fn until_given_back(harness: &Harness) {
    let is_back = |harness: &Harness| {
        let snapshot = harness.snapshot();
        snapshot.body_bytes == 0 && snapshot.calls.held == 0 && snapshot.calls_parked == 0
    };
    harness.until("everything is given back", is_back).await;
}

/// A call with a new id `id` is answered.
pub(crate) async fn is_alive(wire: &mut Pieces, id: u64) {
    wire.send(&Req::new(id, method::ECHO, ("alive",)).bytes()).await;
    let piece = wire.piece().await;
    assert_eq!((piece.kind, piece.id), (RESPONSE, CallId::new(id, 0)), "{piece:?}");
    assert_eq!(piece.body, encoded("alive"));
}

/// The status in a RESPONSE.
pub(crate) fn status_of(piece: &Piece) -> Status {
    assert_eq!(piece.kind, RESPONSE, "{piece:?}");
    let bytes = frame(RESPONSE, 0, 1, &piece.head, &piece.body);
    match FrameDecoder::new(u32::MAX).decode(&bytes) {
        Ok(Decoded::Frame { frame: Frame::Response(response), .. }) => response.status().expect("it is well formed"),
        other => panic!("{other:?}"),
    }
}

/// It says that the call was refused for `reason`, with such figures in its details.
pub(crate) fn assert_refused(status: &Status, code: StatusCode, reason: &str, figures: &[(&str, String)]) {
    assert_eq!((status.code(), status.executed()), (code, Executed::Never), "{status:?}");
    let info = status.error_info().unwrap_or_else(|| panic!("{status:?}"));
    assert_eq!(&*info.reason, reason);
    for (key, value) in figures {
        assert_eq!(info.metadata.get_str(key), Some(&**value), "{reason}: {key}");
    }
}

/// So many bytes, of which no part is like the next.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n / 4096) as u8).collect()
}

/// A text whose encoding in bincode has so many bytes.
pub(crate) fn text(body_len: usize) -> String {
    let prefix = match body_len {
        1..=251 => 1,
        254..=65_538 => 3,
        _ => 5,
    };
    "x".repeat(body_len - prefix)
}

/// A client that has a connection, and the server's end of that.
pub(crate) async fn connected(
    pipe: usize,
    configure: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> (Client, UnboundedReceiver<RawServer>, Pieces) {
    let (builder, mut servers) = scripted_with(Manner::plain("it counts bytes"), pipe);
    let client = configure(builder).build();
    let first = tokio::spawn(client.call::<_, u64>(method::NONCE, (0_u64, 0_u32)));
    let mut wire = greet(&mut servers).await;
    let id = wire.piece().await.id;
    wire.send(&response(id, &0_u64)).await;
    assert_eq!(first.await.unwrap().unwrap(), 0);
    (client, servers, wire)
}

/// The next connection, hands shaken, of a server that takes bodies of any length.
pub(crate) async fn greet(servers: &mut UnboundedReceiver<RawServer>) -> Pieces {
    let mut wire = Pieces::from(servers.recv().await.unwrap());
    assert_eq!(wire.piece().await.id, CallId::CONNECTION, "the client's HELLO");
    wire.send(&hello_with(|hello| hello.max_message = u32::MAX)).await;
    wire
}

/// The next call is answered, and of call `id` no more than `most` bytes come first. Returns its id.
pub(crate) async fn next_call_is_fine(client: &Client, wire: &mut Pieces, id: CallId, most: usize) -> CallId {
    let next = tokio::spawn(client.call::<_, u64>(method::NONCE, (5_u64, 0_u32)));
    let (request, before) = wire.up_to(|piece| piece.kind == REQUEST).await;
    assert!(before <= most, "{before} bytes of call {id} came first");
    wire.send(&response(request.id, &5_u64)).await;
    assert_eq!(next.await.unwrap().unwrap(), 5);
    assert!(wire.is_silent_for(SECOND).await);
    request.id
}
