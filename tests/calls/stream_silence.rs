//! Streams whose peer is silent when the server is to go.

use std::time::Duration;

use rpc_codec::{CallKind, encode_item};
use rpc_core::CallId;
use tokio::time::Instant;

use crate::support::{
    Req,
    feed::{FeedServer, named},
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn streams_of_a_peer_that_has_gone_silent_hold_up_no_shutdown_beyond_its_grace() {
    let server = FeedServer::with(|builder| builder.drain_grace(1_000 * MS).write_timeout(60_000 * MS));
    let mut peer = server.harness.peer_through(1_024);
    peer.shake_hands().await;
    // One whose items nobody reads, one that waits for items, and one that does both.
    peer.send(&Req::new(1, named("count_sent"), (u64::MAX,)).takes().bytes()).await;
    peer.send(&Req::new(2, named("sum"), (0_u64,)).sends().bytes()).await;
    let mut both = Req::new(3, named("echo"), ()).of_kind(CallKind::BothWays).bytes();
    let bounds = rpc_codec::SendBounds { max_frame: 1 << 16, max_message: 1 << 16 };
    let _ = encode_item::<()>(&mut both, CallId::new(3, 0), bounds, |out| {
        out.extend_from_slice(&[0]);
        Ok(())
    });
    peer.send(&both).await;
    server.until_running(3).await;
    let (began, handle) = (Instant::now(), server.harness.handle.clone());
    let drained = handle.drain().await;
    assert!(began.elapsed() <= 2_000 * MS, "{:?}", began.elapsed());
    assert_eq!((drained.cut.len(), drained.stuck_connections), (3, 0), "{drained:?}");
    assert_eq!(server.feeder.running(), 0);
    server.assert_idle().await;
    drop(peer);
}
