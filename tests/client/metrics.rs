//! The client's figures through the `metrics` facade.

use std::time::Duration;

use sluicegate::{
    Server, Status,
    client::MeasureCalls,
    testing::{InMemory, assert_client_idle},
};
use tokio::time::{sleep, timeout};

use crate::support::recorder::{Kept, documented};

#[sluicegate::service]
trait Desk {
    async fn ask(&self, what: String) -> Result<u8, Status>;
}

struct Clerk;

impl Desk for Clerk {
    async fn ask(&self, what: String) -> Result<u8, Status> {
        match &*what {
            "nothing" => Err(Status::not_found("nothing")),
            "for ever" => std::future::pending().await,
            _ => Ok(1),
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn figures_and_outcomes_are_handed_over_until_the_client_is_gone_and_are_those_of_one_without_calls_then() {
    let kept = Kept::default();
    let _here = metrics::set_default_local_recorder(&kept);
    let server = InMemory::new(Server::builder().service(DeskServer::new(Clerk)).build().unwrap());
    let client = server.client_builder().interceptor(MeasureCalls).build();
    let exporting = tokio::spawn(client.export_metrics("desk", SECOND));
    let desk: DeskClient = client.service();
    desk.ask("something".to_owned()).await.unwrap();
    desk.ask("nothing".to_owned()).await.unwrap_err();
    assert!(timeout(SECOND, desk.ask("for ever".to_owned())).await.is_err());
    let out = tokio::spawn(desk.ask("for ever".to_owned()).into_future());
    sleep(2 * SECOND).await;
    let gauges =
        ["calls", "connected", "waiting_for_connection", "waiting_for_room", "outbound_bytes", "inbound_bytes"];
    assert_eq!(gauges.map(|name| kept.get(&format!("client_{name}{{client=desk}}"))), [1, 1, 0, 0, 0, 0]);
    let counters = ["connects", "failed_connects", "lost_connections", "keepalive_timeouts", "protocol_errors"];
    assert_eq!(counters.map(|name| kept.get(&format!("client_{name}_total{{client=desk}}"))), [1, 0, 0, 0, 0]);
    let outcomes = ["OK", "NOT_FOUND", "DROPPED"];
    let of = |code| format!("client_call_seconds{{method=Desk/ask,code={code}}}");
    assert_eq!(outcomes.map(|code| kept.get(&of(code))), [1, 1, 1]);
    out.abort();
    assert_client_idle(&client).await;
    assert_eq!(kept.get(&of("DROPPED")), 2);
    drop((client, desk));
    // It keeps no client alive.
    server.assert_idle().await;
    timeout(2 * SECOND, exporting).await.expect("it ends with the client").unwrap();
    assert_eq!(gauges.map(|name| kept.get(&format!("client_{name}{{client=desk}}"))), [0; 6]);
    assert_eq!(kept.get("client_connects_total{client=desk}"), 1);
    kept.has_only(&documented(include_str!("../../rpc-client/src/metrics.rs")));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_is_exported_no_more() {
    let kept = Kept::default();
    let _here = metrics::set_default_local_recorder(&kept);
    let server = InMemory::new(Server::builder().service(DeskServer::new(Clerk)).build().unwrap());
    let client = server.client();
    let exporting = tokio::spawn(client.export_metrics("desk", SECOND));
    client.service::<DeskClient>().ask("something".to_owned()).await.unwrap();
    client.close();
    timeout(2 * SECOND, exporting).await.expect("it ends with the client").unwrap();
    assert_eq!(kept.get("client_connected{client=desk}"), 0);
    server.assert_idle().await;
}
