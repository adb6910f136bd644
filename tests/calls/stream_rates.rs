//! Rates of items: a client that sends faster is slowed down, and nothing of it is refused or lost.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, stream};
use sluicegate::{
    Client, StatusCode,
    limit::{Rate, RateLimit},
    server::{Call, Decision, Handler, ServerBuilder},
};
use tokio::time::{Instant, sleep};

use crate::support::{
    feed::{FeedClient, FeedServer},
    until_client_idle, within,
};

const SECOND: Duration = Duration::from_secs(1);

fn paced(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> FeedServer {
    FeedServer::with(configure).plain("it counts what comes in a time")
}

/// Sends as fast as it may until it is dropped.
async fn send_all_the_time(client: Client) {
    let feed: FeedClient = client.service();
    let (mut numbers, _sum) = feed.sum(0).open().await.unwrap();
    loop {
        numbers.send(1).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_is_handed_items_at_the_rate_and_the_client_is_only_slowed_down() {
    let server = paced(|builder| builder.item_rate_per_connection(Rate::per_second(100.0).burst(10)));
    let client = server.client();
    let feed: FeedClient = client.service();
    let began = Instant::now();
    // Three windows: a client that is not slowed down sends all of them at once.
    let sum = tokio::spawn(feed.sum(0).send_all(stream::iter(0..3_010).map(move |n| {
        let earliest = Duration::from_millis(10) * (n as u32).saturating_sub(1_024 + 10);
        assert!(began.elapsed() >= earliest, "{n} is sent after {:?}", began.elapsed());
        n
    })));
    assert_eq!(sum.await.unwrap().unwrap(), (0..3_010).sum::<u64>());
    let took = began.elapsed();
    assert!(30 * SECOND <= took && took < 31 * SECOND, "{took:?}");
    let snapshot = server.snapshot();
    assert!(snapshot.items_paced == 3_000 && snapshot.refused.is_empty(), "{snapshot:?}");
    drop((feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_rate_is_bounded_by_two_windows_and_stops_nobody_else() {
    let server = paced(|builder| builder.item_rate_per_connection(Rate::per_second(100.0).burst(1)));
    let client = server.client();
    let feed: FeedClient = client.service();
    let sending = tokio::spawn(send_all_the_time(client.clone()));
    let mut most = 0;
    for _ in 0..40 {
        sleep(SECOND).await;
        let snapshot = server.snapshot();
        // One that the service has in hand, until the last item of it, and one that has come for what it took of that.
        assert!(snapshot.stream_bytes <= 65_536 && snapshot.body_bytes <= 2 * 65_536, "{snapshot:?}");
        most = most.max(snapshot.body_bytes);
        assert_eq!(within(feed.hello("you".to_owned())).await.unwrap(), "hello, you");
        assert_eq!(feed.count(10).count().await, 10, "what a server sends is not limited");
    }
    assert!(most > 65_536, "{most}: the second window never came");
    let consumed = server.feeder.consumed();
    assert!((3_900..=4_001).contains(&consumed), "{consumed}");
    sending.abort();
    drop((sending, feed, client));
    server.assert_idle().await;
}

/// Sums that are sent to as fast as may be, and what each of their services had in the end.
async fn compete(server: &FeedServer, clients: &[Client], seconds: u32) -> Vec<u64> {
    let sending: Vec<_> = clients
        .iter()
        .map(|client| {
            let feed: FeedClient = client.service();
            tokio::spawn(async move {
                let (mut numbers, sum) = feed.count_until_gate().open().await.unwrap();
                let sending = async {
                    loop {
                        if numbers.send(1).await.is_err() {
                            break;
                        }
                    }
                };
                tokio::join!(sending, sum).1.unwrap()
            })
        })
        .collect();
    sleep(seconds * SECOND).await;
    server.feeder.open_gate();
    futures::future::join_all(sending).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn streams_of_one_connection_and_of_several_get_equal_shares_of_a_rate_and_all_of_it() {
    // Where a millisecond, which is what timers have, brings less than one token, one, and ten.
    for (rate, burst, seconds) in [(100_u32, 1, 20), (1_000, 10, 5), (10_000, 100, 2)] {
        for connections in [1, 2] {
            for streams in [2, 20] {
                let of = format!("{rate}/s, {streams} streams of {connections} connections");
                let server = paced(|builder| builder.item_rate(Rate::per_second(rate.into()).burst(burst)));
                let clients: Vec<_> = (0..connections).map(|_| server.client()).collect();
                let clients: Vec<_> = clients.into_iter().cycle().take(streams).collect();
                let had = compete(&server, &clients, seconds).await;
                let (all, most) = (had.iter().sum::<u64>(), u64::from(rate * seconds + burst));
                assert!((most * 97 / 100..=most).contains(&all), "{of}: {all} of {most}");
                let share = all / streams as u64;
                let near = share * 95 / 100 - 1..=share * 105 / 100 + u64::from(burst);
                assert!(had.iter().all(|had| near.contains(had)), "{of}: {had:?}");
                drop(clients);
                server.assert_idle().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn services_that_wait_for_a_client_that_does_not_read_take_nothing_of_the_rate_from_others() {
    for (rate, burst) in [(10_000_u32, 100), (1_000, 10)] {
        for deaf in [1, 9, 49] {
            let server = paced(|builder| builder.item_rate(Rate::per_second(rate.into()).burst(burst)));
            let (bad, good) = (server.client(), server.client());
            let talks: FeedClient = bad.service();
            // Their services had waited for a token, and then send what nobody takes.
            let talking: Vec<_> = (0..deaf)
                .map(|_| {
                    let talks = talks.clone();
                    tokio::spawn(async move {
                        let (mut said, _heard) = talks.count_while_sending().open().await.unwrap();
                        while said.send(1).await.is_ok() {}
                        std::future::pending::<()>().await
                    })
                })
                .collect();
            sleep(5 * SECOND).await;
            let had = compete(&server, std::slice::from_ref(&good), 5).await;
            let of = format!("{rate}/s beside {deaf}: {had:?}");
            assert!(had[0] >= u64::from(rate) * 5 * 95 / 100, "{of}");
            talking.iter().for_each(tokio::task::JoinHandle::abort);
            drop((talking, talks, bad, good));
            server.assert_idle().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_streams_share_the_rate_of_the_server_and_none_of_it_is_lost_with_those_that_end() {
    let server = paced(|builder| builder.item_rate(Rate::per_second(1_000.0).burst(50)));
    let mut sending: Vec<_> = (0..30).map(|_| tokio::spawn(send_all_the_time(server.client()))).collect();
    for _ in 0..20 {
        sleep(SECOND / 2).await;
        // All of them wait in line, whoever goes.
        sending.remove(0).abort();
        sending.push(tokio::spawn(send_all_the_time(server.client())));
    }
    let consumed = server.feeder.consumed();
    assert!((9_500..=10_050).contains(&consumed), "{consumed}");
    sending.iter().for_each(|sending| sending.abort());
    drop(sending);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_while_its_items_wait_for_the_rate_leaves_nothing_and_says_why() {
    let server = paced(|builder| builder.item_rate_per_connection(Rate::per(1, 3_600 * SECOND).burst(1)));
    let client = server.client();
    let feed: FeedClient = client.service();
    let late = feed.sum(0).timeout(SECOND).send_all(stream::iter(0..10)).await.unwrap_err();
    assert_eq!(late.code(), StatusCode::DeadlineExceeded);
    // Its service lives on in a task, and is told.
    let elsewhere = feed.sum_elsewhere().timeout(SECOND).send_all(stream::iter(0..10)).await.unwrap_err();
    assert_eq!(elsewhere.code(), StatusCode::DeadlineExceeded);
    server.until("the task hears of it", |server| server.feeder.ends().len() == 1).await;
    assert_eq!(server.feeder.ends()[0].code(), StatusCode::DeadlineExceeded);
    drop(feed.sum(0).send_all(stream::iter(0..10)).now_or_never());
    until_client_idle(&client).await;
    drop((feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_items_is_changed_while_they_wait() {
    let server = paced(|builder| {
        let hour = Rate::per(1, 3_600 * SECOND).burst(1);
        builder.item_rate(hour).item_rate_per_connection(hour)
    });
    let client = server.client();
    let feed: FeedClient = client.service();
    let sum = tokio::spawn(feed.sum(0).send_all(stream::iter(0..100)));
    server.until("the first one is there", |server| server.feeder.consumed() == 1).await;
    let limits = server.harness.handle.limits();
    let fast = Rate::per_second(1_000_000.0).burst(100);
    for name in ["global item rate", "connection item rate"] {
        limits.set_rate(name, fast).unwrap();
    }
    let began = Instant::now();
    // What a bucket owes stays owed as far as the new rate could owe it.
    assert_eq!(within(sum).await.unwrap().unwrap(), (0..100).sum::<u64>());
    assert!(began.elapsed() <= 2 * SECOND, "{:?}", began.elapsed());
    let unlimited = FeedServer::new();
    assert!(unlimited.harness.handle.limits().set_rate("global item rate", fast).is_err());
    drop((feed, client));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_paces_no_stream() {
    let server = paced(|builder| builder.item_rate(Rate::per(1, 3_600 * SECOND).burst(1)));
    server.harness.handle.limits().set_dry_run(true);
    let client = server.client();
    let feed: FeedClient = client.service();
    assert_eq!(within(feed.sum(0).send_all(stream::iter(0..1_000))).await.unwrap(), (0..1_000).sum::<u64>());
    drop((feed, client));
    server.assert_idle().await;
}

/// Paces by the name of the customer.
struct ByCustomer(Arc<RateLimit>);

impl Handler for ByCustomer {
    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        if call.metadata().get_str("customer") == Some("small") {
            call.pace_items(Arc::clone(&self.0));
        }
        Decision::Pass
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_ones_own_paces_the_streams_it_means() {
    let server = paced(|builder| {
        let limit = Arc::new(RateLimit::new("small", Rate::per_second(10.0).burst(1)).unwrap());
        builder.pipeline(move |pipeline, _| {
            pipeline.add_first("by customer", ByCustomer(Arc::clone(&limit)));
        })
    });
    let client = server.client();
    let feed: FeedClient = client.service();
    let began = Instant::now();
    assert_eq!(feed.sum(0).send_all(stream::iter(0..100)).await.unwrap(), (0..100).sum::<u64>());
    assert!(began.elapsed() < SECOND);
    let small = feed.sum(0).metadata("customer", "small").send_all(stream::iter(0..51));
    assert_eq!(small.await.unwrap(), (0..51).sum::<u64>());
    assert!(began.elapsed() >= 5 * SECOND);
    drop((feed, client));
    server.assert_idle().await;
}
