//! Metadata and details of any bytes and lengths: they arrive as they are, or cost one call with an error that
//! says why, and never the connection.

use sluicegate::{CallError, Context, Executed, Server, Status, StatusCode, testing::InMemory};

#[sluicegate::service]
trait Odd {
    /// The value of the metadata `odd`.
    async fn metadata(&self, ctx: Context) -> Option<Vec<u8>>;
    /// An error with a detail of these many bytes, each of which is `byte`.
    async fn detail(&self, byte: u8, len: u32) -> Result<(), Status>;
    /// An error with so many details and a message of this length.
    async fn details(&self, details: u32, message: u32) -> Result<(), Status>;
}

struct Service;

const TYPE: &str = "test.example/Odd";

impl Odd for Service {
    async fn metadata(&self, ctx: Context) -> Option<Vec<u8>> {
        ctx.metadata().get("odd").map(<[u8]>::to_vec)
    }

    async fn detail(&self, byte: u8, len: u32) -> Result<(), Status> {
        Err(Status::aborted("odd").with_detail(TYPE, vec![byte; len as usize]))
    }

    async fn details(&self, details: u32, message: u32) -> Result<(), Status> {
        let status = Status::aborted("x".repeat(message as usize));
        Err((0..details).fold(status, |status, _| status.with_detail(TYPE, [1])))
    }
}

fn server() -> InMemory {
    InMemory::new(Server::builder().service(OddServer::new(Service)).build().expect("a server"))
}

#[tokio::test(start_paused = true)]
async fn metadata_of_any_bytes_arrives_and_a_wrong_pair_costs_its_call_before_it_is_sent() {
    let server = server();
    let odd: OddClient = server.client().service();
    for byte in 0..=u8::MAX {
        assert_eq!(odd.metadata().metadata("odd", [byte]).await.unwrap(), Some(vec![byte]));
    }
    for len in [0, 1, 255, 256, 16_000] {
        assert_eq!(odd.metadata().metadata("odd", vec![0xff; len]).await.unwrap(), Some(vec![0xff; len]));
    }
    let long = "k".repeat(1_000);
    for key in ["", "Upper", "a b", "nul\0", "del\x7f", "ünicode", "sg-own", &long] {
        let error = odd.metadata().metadata(key, "x").await.unwrap_err();
        assert!(matches!(error, CallError::Metadata(_)), "{key:?}: {error}");
        assert_eq!(error.executed(), Executed::Never);
    }
    for len in [16_384, 65_535, 65_536, 1 << 20] {
        let error = odd.metadata().metadata("odd", vec![0; len]).await.unwrap_err();
        assert!(matches!(error, CallError::Metadata(_)), "{len}: {error}");
    }
    assert_eq!(odd.metadata().await.unwrap(), None, "the connection goes on");
    assert_eq!(server.handle().snapshot().connections, 1);
    drop(odd);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn details_of_any_bytes_arrive_and_such_as_do_not_fit_cost_the_details_alone() {
    let server = server();
    let odd: OddClient = server.client().service();
    let status =
        async |call: sluicegate::client::Call<(u8, u32), ()>| call.await.unwrap_err().status().unwrap().clone();
    for byte in 0..=u8::MAX {
        assert_eq!(status(odd.detail(byte, 1)).await.details()[0].value, [byte]);
    }
    for len in [0, 60_000] {
        assert_eq!(status(odd.detail(7, len)).await.details()[0].value, vec![7; len as usize]);
    }
    for len in [65_535, 65_536, 1 << 20] {
        let told = status(odd.detail(7, len)).await;
        assert!(told.details().is_empty(), "{told}");
        assert_eq!(told.executed(), Executed::Finished, "{told}");
    }
    let error = odd.details(255, 0).await.unwrap_err();
    assert_eq!(error.status().unwrap().details().len(), 255);
    for (details, message) in [(256, 0), (1_000, 0), (0, 65_536), (0, 1 << 20)] {
        let error = odd.details(details, message).await.unwrap_err();
        assert!([StatusCode::Aborted, StatusCode::Internal].contains(&error.code()), "{error}");
        assert_eq!(error.executed(), Executed::Finished);
    }
    assert_eq!(odd.metadata().await.unwrap(), None, "the connection goes on");
    assert_eq!(server.handle().snapshot().connections, 1);
    drop(odd);
    server.assert_idle().await;
}
