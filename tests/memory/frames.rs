//! What a connection keeps of frames that have begun, in memory that was allocated for it.

use crate::{
    counting::LIVE,
    support::{Harness, raw::frame},
};

const PEERS: usize = 50;
/// What every server takes of a frame before it has said anything, with the length field.
const FREE: usize = 64 * 1024 + 4;

/// A frame of so many bytes that may be ignored.
fn ignored(len: usize) -> Vec<u8> {
    frame(0x80, 0, 0, &[], &vec![7; len - 16])
}

/// The buffer of a short frame that was completed would be as long as that and what came with its last byte.
#[tokio::test(start_paused = true)]
async fn the_beginning_of_a_long_frame_is_kept_alone_and_not_with_the_frame_before_it() {
    let harness = Harness::with(|builder| builder.keepalive_interval(None)).plain("it counts bytes");
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let mut peer = harness.peer().await;
        // The pipes and the sizes of reads have grown to what they come to.
        for _ in 0..8 {
            peer.send(&ignored(FREE)).await;
        }
        peers.push(peer);
    }
    harness.until("all is read", |harness| harness.snapshot().inbound_bytes == 0).await;
    let before = LIVE.get();
    for peer in &mut peers {
        peer.send(&ignored(FREE)[..FREE - 1]).await;
    }
    harness.until("it has come", |harness| harness.snapshot().inbound_bytes == (PEERS * (FREE - 1)) as u64).await;
    let kept = (LIVE.get() - before) as usize / PEERS;
    assert!(kept <= FREE + 1024, "{kept} bytes are kept of each, however many reads it took");
    for peer in &mut peers {
        let mut rest = vec![7];
        rest.extend(&ignored(200_000)[..FREE - 5]);
        peer.send(&rest).await;
    }
    harness.until("it has come", |harness| harness.snapshot().inbound_bytes == (PEERS * (FREE - 5)) as u64).await;
    let kept = (LIVE.get() - before) as usize / PEERS;
    assert!(kept <= FREE + 1024, "{kept} bytes are kept of each");
    drop(peers);
    harness.assert_idle().await;
}
