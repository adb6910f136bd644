//! Conversations in which a few bytes are not what they should be: each costs its connection at most.

use std::collections::HashSet;

use rpc_codec::{CodecId, encode_end, encode_item, encode_ping};
use rpc_core::CallId;
use tokio::{io::AsyncWriteExt, task::yield_now};

use crate::support::{
    Got, Req,
    feed::{FeedServer, named},
    method,
    parts::{opening, part},
    raw::{ANY, cancel, frame, goodbye, hello},
    shims::{Random, times_in},
    within,
};

/// Of so many bytes any will do.
const BODY: usize = 4_900;

/// A conversation with every kind of frame that a client has.
fn conversation() -> Vec<u8> {
    let mut bytes = [hello(), Req::new(1, method::ECHO, ("hi",)).bytes()].concat();
    bytes.extend(opening(Req::new(2, method::ECHO, ()), 5_000, &[0; 100]));
    bytes.extend(Req::new(3, named("sum"), (0_u64,)).sends().bytes());
    encode_ping(&mut bytes, *b"how goes");
    bytes.extend(part(2, &[7; BODY], false));
    for n in 0..3_u64 {
        encode_item(&mut bytes, CallId::new(3, 0), ANY, |out| CodecId::BINCODE.encode(&n, out)).unwrap();
    }
    bytes.extend(Req::new(4, method::SLEEP, (10_u64,)).bytes());
    bytes.extend(cancel(4));
    bytes.extend(frame(0x8a, 0x40, 9, b"who knows", b"what this is"));
    bytes.extend(Req::new(5, named("count_sent"), (40_u64,)).takes().bytes());
    encode_end(&mut bytes, CallId::new(3, 0));
    bytes.extend(Req::new(6, method::NONCE_SPAWNED, (6_u64, 2_u32)).bytes());
    bytes.extend(goodbye());
    bytes
}

#[tokio::test(start_paused = true)]
async fn streams_of_bytes_with_a_few_changed_cost_their_connections_and_nothing_else() {
    let server = FeedServer::with(|builder| builder.max_concurrent_calls(100));
    let (client, good) = (server.harness.client(), conversation());
    let body = good.windows(BODY).position(|bytes| bytes == [7; BODY]).expect("it is there");
    let mut random = Random::seeded(16);
    let mut answered_by_all = 0;
    for n in 0..times_in(200_000, 1_500) {
        let mut bytes = good.clone();
        // The first is as it should be.
        for _ in 0..if n == 0 { 0 } else { 1 + n % 8 } {
            let at = random.below((bytes.len() - BODY) as u64) as usize;
            let at = if at < body { at } else { at + BODY };
            bytes[at] ^= 1 << random.below(8);
        }
        let mut peer = server.harness.silent_peer();
        // Of some the end does not come.
        let cut = if n % 4 == 3 { random.below(60) as usize } else { 0 };
        let mut rest = &bytes[..bytes.len() - cut];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(1 + random.below(200) as usize));
            // The server may have said enough.
            if peer.peer.io.write_all(piece).await.is_err() {
                break;
            }
            rest = behind;
            if random.below(2) == 0 {
                yield_now().await;
            }
        }
        let _ = peer.peer.io.shutdown().await;
        let mut answered = HashSet::new();
        for got in within(peer.peer.rest()).await {
            if let Got::Response { id, .. } = got {
                assert!(answered.insert(id), "{id} was answered twice");
            }
        }
        answered_by_all += u64::from(answered.len() == 5);
        assert!(n > 0 || answered.len() == 5, "{answered:?}");
        drop(peer);
        if n % 100 == 0 {
            let call = client.call::<_, String>(method::ECHO, ("polite",));
            assert_eq!(within(call).await.unwrap(), "polite");
        }
    }
    println!("{answered_by_all} were answered as if nothing was wrong");
    drop(client);
    server.harness.until("nobody is left", |harness| harness.snapshot().connections == 0).await;
    server.harness.assert_idle().await;
    assert_eq!((server.snapshot().panics, server.feeder.running()), (0, 0));
}
