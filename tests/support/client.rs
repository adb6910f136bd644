//! The check that a client has nothing left.

use std::time::Duration;

use sluicegate::Client;
use tokio::time::sleep;

/// Waits, in virtual time, until the client has nothing under way.
pub(crate) async fn until_client_idle(client: &Client) {
    for _ in 0..2_500 {
        if client.snapshot().is_idle() {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("the client is not idle: {:#?}", client.snapshot());
}
