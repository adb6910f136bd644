//! What `docs/evolving.md` says of methods and codecs, a test for each of its sentences.

use sluicegate::{
    Bytes, CallError, Client, CodecId, Context, Executed, Server, Status, StatusCode, client::Method, testing::InMemory,
};

const PAGE: &str = include_str!("../../docs/evolving.md");

mod v1 {
    use super::*;

    #[sluicegate::service(package = "acme.v1")]
    pub(crate) trait Library {
        async fn search(&self, text: String) -> Vec<String>;
        async fn count(&self) -> u64;
        async fn scan(&self, page: Bytes) -> Bytes;
    }
}

mod v2 {
    use super::*;

    #[sluicegate::service(package = "acme.v1")]
    pub(crate) trait Library {
        /// It was `search`.
        #[rpc(alias = "search")]
        async fn find(&self, text: String) -> Result<Vec<String>, Status>;
        /// The same on the wire, called otherwise in Rust; now it takes a context, and blocks.
        #[rpc(name = "count", blocking)]
        fn number_of_books(&self, ctx: Context) -> Result<u64, Status>;
        /// It took bytes.
        async fn scan(&self, page: u32) -> u32;
    }

    #[sluicegate::service(package = "acme.v2")]
    pub(crate) trait Shelf {
        #[rpc(alias = "acme.v1.Library/search")]
        async fn look(&self, text: String) -> Vec<String>;
    }
}

struct Books;

impl v1::Library for Books {
    async fn search(&self, text: String) -> Vec<String> {
        vec![format!("{text} in version 1")]
    }

    async fn count(&self) -> u64 {
        1
    }

    async fn scan(&self, page: Bytes) -> Bytes {
        page
    }
}

impl v2::Library for Books {
    async fn find(&self, text: String) -> Result<Vec<String>, Status> {
        Ok(vec![format!("{text} in version 2")])
    }

    fn number_of_books(&self, ctx: Context) -> Result<u64, Status> {
        if ctx.is_cancelled() { Err(Status::cancelled("nobody waits")) } else { Ok(2) }
    }

    async fn scan(&self, page: u32) -> u32 {
        page
    }
}

impl v2::Shelf for Books {
    async fn look(&self, text: String) -> Vec<String> {
        vec![format!("{text} on the shelf")]
    }
}

fn old_server() -> InMemory {
    InMemory::new(Server::builder().service(v1::LibraryServer::new(Books)).build().expect("a server"))
}

fn new_server() -> InMemory {
    InMemory::new(Server::builder().service(v2::LibraryServer::new(Books)).build().expect("a server"))
}

/// The refusal's reason, once it is sure that nothing was executed.
fn refused<T: std::fmt::Debug>(outcome: Result<T, CallError>) -> (StatusCode, String) {
    let error = outcome.expect_err("it is refused");
    assert_eq!(error.executed(), Executed::Never, "{error}");
    let info = error.status().and_then(Status::error_info).expect("a reason");
    (error.code(), info.reason.to_string())
}

const UNKNOWN: (StatusCode, &str) = (StatusCode::Unimplemented, "UNKNOWN_METHOD");
const UNSUPPORTED: (StatusCode, &str) = (StatusCode::Unimplemented, "UNSUPPORTED_CODEC");

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, CallError>, (code, reason): (StatusCode, &str)) {
    assert_eq!(refused(outcome), (code, reason.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_method_may_be_added_at_any_time() {
    let server = old_server();
    let library: v2::LibraryClient = server.client().service();
    assert_refused(library.find("Emma".to_owned()).await, UNKNOWN);
    assert_eq!(library.number_of_books().await.unwrap(), 1, "the connection goes on");
    drop(library);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_method_that_is_taken_away_is_refused_in_the_same_way() {
    let server = InMemory::new(Server::builder().service(v2::ShelfServer::new(Books)).build().expect("a server"));
    let library: v1::LibraryClient = server.client().service();
    assert_refused(library.count().await, UNKNOWN);
    drop(library);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_method_may_be_renamed_if_its_old_name_becomes_an_alias() {
    let server = new_server();
    let client = server.client();
    let (old, new): (v1::LibraryClient, v2::LibraryClient) = (client.service(), client.service());
    for found in [old.search("Emma".to_owned()).await, new.find("Emma".to_owned()).await] {
        assert_eq!(found.unwrap(), ["Emma in version 2"]);
    }
    drop((client, old, new));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_method_may_move_to_another_service_or_a_service_to_another_package_if_its_old_path_becomes_an_alias() {
    let server = InMemory::new(Server::builder().service(v2::ShelfServer::new(Books)).build().expect("a server"));
    let library: v1::LibraryClient = server.client().service();
    assert_eq!(library.search("Emma".to_owned()).await.unwrap(), ["Emma on the shelf"]);
    drop(library);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_rust_name_may_change_alone() {
    let server = new_server();
    let client = server.client();
    let (old, new): (v1::LibraryClient, v2::LibraryClient) = (client.service(), client.service());
    assert_eq!((old.count().await.unwrap(), new.number_of_books().await.unwrap()), (2, 2));
    drop((client, old, new));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_method_may_begin_to_return_errors_and_stop_doing_so() {
    for server in [old_server(), new_server()] {
        let client = server.client();
        // One of the two returns a `Result`, the other none.
        let found: Vec<String> = client.call(Method::new("acme.v1.Library", "search"), ("Emma",)).await.unwrap();
        assert_eq!(found.len(), 1);
        drop(client);
        server.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn whether_a_method_blocks_is_spawned_or_takes_a_context_is_the_servers_own_business() {
    for (server, count) in [(old_server(), 1), (new_server(), 2)] {
        let library: v1::LibraryClient = server.client().service();
        assert_eq!(library.count().await.unwrap(), count);
        drop(library);
        server.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_method_that_takes_and_returns_bytes_cannot_become_one_that_takes_values() {
    let (old, new) = (old_server(), new_server());
    let old_client: v1::LibraryClient = new.client().service();
    assert_refused(old_client.scan(Bytes::from_static(b"\x01")).await, UNSUPPORTED);
    let new_client: v2::LibraryClient = old.client().service();
    assert_refused(new_client.scan(1).await, UNSUPPORTED);
    drop((old_client, new_client));
    old.assert_idle().await;
    new.assert_idle().await;
}

fn client_in(server: &InMemory, codec: CodecId) -> Client {
    server.client_builder().codec(codec).build()
}

#[tokio::test(start_paused = true)]
async fn a_server_takes_every_codec_that_its_build_has_or_those_that_serverbuilder_codecs_names() {
    let all = old_server();
    for &codec in CodecId::supported() {
        let library: v1::LibraryClient = client_in(&all, codec).service();
        assert_eq!(library.search("Emma".to_owned()).await.unwrap(), ["Emma in version 1"], "{codec}");
    }
    all.assert_idle().await;

    for &taken in CodecId::supported() {
        let server = Server::builder().service(v1::LibraryServer::new(Books)).codecs([taken]).build();
        let server = InMemory::new(server.expect("a server"));
        for &codec in CodecId::supported() {
            let library: v1::LibraryClient = client_in(&server, codec).service();
            let count = library.count().await;
            if codec == taken {
                assert_eq!(count.unwrap(), 1);
            } else {
                assert_refused(count, UNSUPPORTED);
            }
            let scanned = library.scan(Bytes::from_static(b"x")).await;
            assert_eq!(scanned.unwrap(), b"x"[..], "bytes are in no codec, and the connection goes on");
        }
        server.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_codec_that_a_server_does_not_take_costs_the_call_and_nothing_else() {
    let server = Server::builder().service(v1::LibraryServer::new(Books)).codecs([CodecId::BINCODE]).build();
    let server = InMemory::new(server.expect("a server"));
    let client = server.client_builder().codec(CodecId::MESSAGE_PACK).build();
    let library: v1::LibraryClient = client.service();
    let (counted, scanned) = tokio::join!(library.count(), library.scan(Bytes::from_static(b"x")));
    if CodecId::MESSAGE_PACK.is_supported() {
        assert_refused(counted, UNSUPPORTED);
    } else {
        let error = counted.unwrap_err();
        assert!(matches!(error, CallError::Encode(_)), "{error}");
    }
    assert_eq!(scanned.unwrap(), b"x"[..]);
    assert!(server.handle().snapshot().connections_cut.values().all(|cut| *cut == 0));
    drop((client, library));
    server.assert_idle().await;
}

#[test]
fn a_codec_that_the_build_does_not_have_cannot_be_offered() {
    let error = Server::builder().codecs([CodecId::BINCODE, CodecId::PROTOBUF]).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "this build has no protobuf: the codecs but bincode are features of the crate sluicegate"
    );
}

#[test]
fn every_sentence_of_the_page_has_a_test_of_its_name() {
    let tests = include_str!("evolving.rs");
    let name_of = |sentence: &str| {
        let words = sentence.replace("`Context`", "context").replace("server's", "servers").replace("::", " ");
        let letters = words.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
        letters.collect::<String>().split_whitespace().collect::<Vec<_>>().join("_")
    };
    let mut sentences = 0;
    for bullet in PAGE.split("\n- **").skip(1) {
        let sentence = bullet.split("**").next().expect("it is closed");
        if sentence == "Whatever cannot be changed is a new method." {
            continue;
        }
        let name = name_of(sentence);
        assert!(tests.contains(&format!("async fn {name}()")), "no test is called {name}");
        sentences += 1;
    }
    assert!(sentences >= 9, "{sentences}");
}
