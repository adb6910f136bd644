//! Transports that hesitate and services that take their time: neither is taken for the peer's doing.

use std::time::Duration;

use tokio::{
    io::DuplexStream,
    time::{Instant, sleep},
};

use crate::support::{
    Harness, RawClient, Req,
    harness::PIPE,
    method, no_call_runs,
    shims::{Random, Reluctant, Transport, Withholding},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn withholding(io: DuplexStream) -> Box<dyn Transport> {
    Box::new(Withholding::new(io))
}

fn reluctant(seed: u64) -> impl Fn(DuplexStream) -> Box<dyn Transport> {
    move |io| Box::new(Reluctant::new(io, Random::seeded(seed)))
}

/// Connects through what `wrap` makes of the server's end, calls, and says nothing any more.
async fn vanishes(wrap: impl FnOnce(DuplexStream) -> Box<dyn Transport>) {
    let harness = Harness::with(|builder| builder.keepalive_interval(5 * SECOND).keepalive_timeout(2 * SECOND));
    let mut peer = RawClient::new(harness.network.connect_as(PIPE, wrap).unwrap());
    peer.shake_hands().await;
    peer.send(&Req::new(1, method::GATE, (1_u64,)).bytes()).await;
    harness.until_running(1).await;
    let began = Instant::now();
    sleep(6_900 * MS).await;
    assert_eq!(harness.snapshot().connections, 1);
    while harness.snapshot().connections > 0 {
        sleep(10 * MS).await;
        assert!(began.elapsed() <= 7_500 * MS, "it is not found");
    }
    no_call_runs(&harness.handle);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanished_is_found_in_time_though_its_transport_hesitates_at_every_ping() {
    vanishes(withholding).await;
    for seed in 0..20 {
        vanishes(reluctant(seed)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn time_that_a_service_takes_is_not_charged_to_a_peer_that_reads() {
    // Both calls are taken on in one turn, or the reply waits already when the thread is kept.
    for apart in [false, true] {
        let harness = Harness::with(|builder| builder.write_timeout(5 * SECOND).keepalive_interval(None));
        let mut peer = harness.peer_through(1_000);
        peer.shake_hands().await;
        // More than the pipe takes.
        peer.send(&Req::new(1, method::LARGE, (30_000_u32,)).bytes()).await;
        if apart {
            harness.until("something waits", |harness| harness.snapshot().buffered_bytes > 0).await;
        }
        peer.send(&Req::new(2, method::BLOCK, (10_000_u64,)).bytes()).await;
        harness.until("something waits", |harness| harness.snapshot().buffered_bytes > 0).await;
        sleep(SECOND / 2).await;
        assert_eq!(peer.reply::<String>(1).await.len(), 30_000);
        peer.reply::<()>(2).await;
        assert!(harness.snapshot().connections_cut.is_empty(), "{:?}", harness.snapshot().connections_cut);
        peer.part().await;
        harness.assert_idle().await;
    }
}
