//! Server and client as their files say.

use std::time::{Duration, Instant};

use serde::Deserialize;
use sluicegate::{
    CallError, Client, Context, Health, RefusalReason, Server, StatusCode,
    client::{ClientSettings, HealthClient},
    server::{ServerSettings, Service},
};

use crate::support::{assert_idle_soon, within};

#[derive(Deserialize)]
struct Program {
    title: String,
    server: ServerSettings,
    client: ClientSettings,
}

const FILE: &str = r#"
    title = "a program with settings of its own"

    [server]
    max_message = "1KiB"
    rate_per_connection = { per_second = 0.001, burst = 4 }
    health = true
    methods."Shelf/find" = { max_concurrent_calls = 1 }

    [client]
    timeout = "30s"
    max_message = "2KiB"
"#;

#[sluicegate::service]
trait Shelf {
    async fn find(&self, wait: bool, len: u32) -> String;
    /// In milliseconds.
    async fn time_left(&self, context: Context, book: String) -> Option<u64>;
}

struct Long;

impl Shelf for Long {
    async fn find(&self, wait: bool, len: u32) -> String {
        if wait {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
        }
        "x".repeat(len as usize)
    }

    async fn time_left(&self, context: Context, _: String) -> Option<u64> {
        context.deadline().remaining(Instant::now()).map(|left| left.as_millis() as u64)
    }
}

/// What the README shows is for this service.
#[sluicegate::service]
trait Library {
    async fn get_book(&self, isbn: String) -> String;
}

struct Empty;

impl Library for Empty {
    async fn get_book(&self, isbn: String) -> String {
        isbn
    }
}

#[tokio::test]
async fn a_server_and_a_client_are_as_their_file_says() {
    let program: Program = toml::from_str(FILE).unwrap();
    assert!(program.title.starts_with("a program"));
    let server = Server::builder().service(ShelfServer::new(Long)).settings(program.server).build().unwrap();
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());
    let client = Client::builder(address).settings(program.client).build();
    let shelf: ShelfClient = client.service();
    let health: HealthClient = client.service();

    assert_eq!(within(health.check("Shelf")).await.unwrap(), Health::Serving);
    let left = within(shelf.time_left("x".repeat(1_000))).await.unwrap().expect("the client's timeout");
    assert!((1..=30_000).contains(&left), "{left} ms");
    let too_long = within(shelf.time_left("x".repeat(1_500))).await.unwrap_err();
    let CallError::RequestTooLarge { max: 1_024, .. } = too_long else { panic!("{too_long:?}") };
    let too_long = within(shelf.find(false, 3_000)).await.unwrap_err();
    assert_eq!(too_long.code(), StatusCode::ResourceExhausted, "{too_long}");
    assert!(too_long.refused().is_none(), "the client's bound, by the length of a reply: {too_long}");
    {
        let mut running = Box::pin(shelf.find(true, 0));
        let refused = within(async {
            tokio::select! {
                biased;
                _ = &mut running => panic!("it waits"),
                refused = shelf.find(false, 0) => refused.unwrap_err(),
            }
        });
        let refused = refused.await;
        let refused = refused.refused().expect("the method's own limit");
        assert_eq!((refused.reason(), refused.limit()), (RefusalReason::ConcurrencyLimit, Some("Shelf/find")));
    }
    within(async {
        while handle.snapshot().calls.held > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // What the method's limit refused gave its token back, and health has no limits, so this is the fourth.
    within(shelf.find(false, 0)).await.unwrap();
    let refused = within(shelf.find(false, 0)).await.unwrap_err();
    assert_eq!(refused.refused().expect("the rate").limit(), Some("connection rate"));
    drop((shelf, health, client));
    assert_idle_soon(&handle).await;
    handle.shutdown();
    within(serving).await.unwrap();
}

#[test]
fn the_settings_that_the_readme_shows_are_taken() {
    let readme = include_str!("../../README.md");
    let shown =
        readme.split("```").find(|block| block.starts_with("toml\n# Server::builder()")).expect("it shows some");
    let settings = ServerSettings::from_toml(shown.trim_start_matches("toml")).unwrap();
    let service = LibraryServer::new(Empty);
    assert_eq!(service.name(), "Library");
    Server::builder().service(service).settings(settings).build().unwrap();
}
