//! What a service gives up while it waits: an item that it sends goes whole or not at all, and of those that it takes
//! none is lost.

use std::{
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::stream;
use sluicegate::{Bytes, ItemSender, Status, Streaming};
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};

use crate::support::{
    Harness,
    shims::{Manner, Random, times_in},
    until_client_idle,
};

const MS: Duration = Duration::from_millis(1);
const MIB: usize = 1024 * 1024;

#[sluicegate::service(package = "test")]
trait Restless {
    /// Sends items of so many bytes; one that has not gone within a millisecond it gives up.
    async fn pour(&self, len: u32, out: ItemSender<Bytes>) -> Result<(), Status>;
    /// Counts numbers that come in order, and looks away at any moment.
    async fn in_order(&self, numbers: Streaming<u64>) -> Result<u64, Status>;
}

/// The items that went.
#[derive(Clone, Default)]
struct Impatient(Arc<Mutex<Vec<u8>>>);

impl Restless for Impatient {
    async fn pour(&self, len: u32, mut out: ItemSender<Bytes>) -> Result<(), Status> {
        for n in 0..20 {
            if let Ok(sent) = timeout(MS, out.send(Bytes::from(vec![n; len as usize]))).await {
                sent?;
                self.0.lock().unwrap().push(n);
            }
        }
        Ok(())
    }

    async fn in_order(&self, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let (mut next, mut random) = (0, Random::seeded(111));
        loop {
            let turns = random.below(4);
            let looks_away = async {
                for _ in 1..turns {
                    yield_now().await;
                }
            };
            tokio::select! {
                biased;
                // At once, or after having waited.
                () = looks_away, if turns > 0 => {}
                number = numbers.message() => match number? {
                    Some(number) if number == next => next += 1,
                    Some(number) => return Err(Status::data_loss(format!("{number} in place of {next}"))),
                    None => return Ok(next),
                },
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_a_service_gives_up_while_it_waits_is_sent_whole_or_not_at_all() {
    let service = Impatient::default();
    let harness =
        Harness::with(|builder| builder.service(RestlessServer::new(service.clone()))).plain("megabytes go by");
    // One item at a time goes.
    let client = harness.client_builder().stream_window(1).build();
    let restless: RestlessClient = client.service();
    let mut given_up = 0;
    for pause in [0, 1, 3, 7] {
        let (mut items, mut came) = (restless.pour(MIB as u32), Vec::new());
        while let Some(item) = items.message().await.unwrap() {
            assert!(item.len() == MIB && item.iter().all(|byte| *byte == item[0]), "{} bytes", item.len());
            came.push(item[0]);
            sleep(pause * MS).await;
        }
        let went = mem::take(&mut *service.0.lock().unwrap());
        assert_eq!(came, went, "with pauses of {pause} ms");
        assert!(!went.is_empty());
        given_up += 20 - went.len();
    }
    assert!(given_up > 0, "every item went");
    until_client_idle(&client).await;
    drop((restless, client));
    harness.assert_idle().await;
    assert_eq!(harness.snapshot().protocol_errors, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_or_doubled_when_a_service_looks_away_while_it_waits_for_an_item() {
    let harness = Harness::with(|builder| builder.service(RestlessServer::new(Impatient::default())))
        .unless(Manner::OneByte, "many items go by");
    let client = harness.client();
    let restless: RestlessClient = client.service();
    let count = times_in(1_000_000, 20_000);
    assert_eq!(restless.in_order().send_all(stream::iter(0..count)).await.unwrap(), count);
    until_client_idle(&client).await;
    drop((restless, client));
    harness.assert_idle().await;
}
