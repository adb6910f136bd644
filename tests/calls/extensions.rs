//! What handlers put beside calls and connections, and what services find there.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use sluicegate::{
    CallError, Client, ConnectionInfo, Context, Extensions, Server, Status, StatusCode,
    server::{Call, Decision, Handler, Interest},
    testing::InMemory,
};

use crate::support::handlers::Deciding;

/// Who calls; and it counts how many of its kind there are.
struct User {
    name: String,
    alive: Arc<AtomicUsize>,
}

impl User {
    fn new(name: &str, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, SeqCst);
        Self { name: name.to_owned(), alive: Arc::clone(alive) }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
        assert_ne!(self.name, "panics", "{}", crate::support::probe::PANIC_TEXT);
    }
}

/// How many calls the connection has had.
#[derive(Default)]
struct Calls(AtomicUsize);

#[sluicegate::service]
trait Greeter {
    async fn greet(&self, ctx: Context) -> Result<String, Status>;
    #[rpc(spawn)]
    async fn greet_spawned(&self, ctx: Context) -> Result<String, Status>;
    #[rpc(blocking)]
    fn greet_blocking(&self, ctx: Context) -> Result<String, Status>;
}

struct Polite;

fn greeting(ctx: &Context) -> Result<String, Status> {
    let user = ctx.extension::<User>().ok_or_else(|| Status::internal("nobody said who it is"))?;
    let calls = ctx.connection().get::<Calls>().ok_or_else(|| Status::internal("nobody counts"))?;
    Ok(format!("hello {}, call {}", user.name, calls.0.fetch_add(1, SeqCst)))
}

impl Greeter for Polite {
    async fn greet(&self, ctx: Context) -> Result<String, Status> {
        greeting(&ctx)
    }

    async fn greet_spawned(&self, ctx: Context) -> Result<String, Status> {
        tokio::task::yield_now().await;
        greeting(&ctx)
    }

    fn greet_blocking(&self, ctx: Context) -> Result<String, Status> {
        greeting(&ctx)
    }
}

/// Finds out who calls, and knows it again.
struct Authenticate {
    alive: Arc<AtomicUsize>,
}

impl Handler for Authenticate {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn connected(&mut self, connection: &ConnectionInfo) {
        assert!(connection.insert(Calls::default()).is_none());
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let Some(name) = call.metadata().get_str("user") else {
            return Decision::Answer(Status::unauthenticated("who are you?"));
        };
        let user = User::new(name, &self.alive);
        call.extensions_mut().insert(user);
        Decision::Pass
    }
}

fn server(alive: &Arc<AtomicUsize>) -> InMemory {
    let alive = Arc::clone(alive);
    let server = Server::builder().service(GreeterServer::new(Polite)).pipeline(move |pipeline, _| {
        pipeline.add_first("authenticate", Authenticate { alive: Arc::clone(&alive) });
        let refuses = |call: &mut Call<'_>| match call.extensions().get::<User>() {
            Some(user) if user.name == "mallory" => Decision::Answer(Status::permission_denied("not you")),
            _ => Decision::Pass,
        };
        pipeline.add_last("authorise", Deciding(refuses));
    });
    InMemory::new(server.build().expect("a server"))
}

#[tokio::test(start_paused = true)]
async fn a_service_finds_what_handlers_put_beside_its_call_and_connection() {
    let alive = Arc::default();
    let server = server(&alive);
    let greeter: GreeterClient = server.client().service();
    for (at, name) in ["ada", "bob", "cyd"].into_iter().enumerate() {
        let greeted = match at {
            0 => greeter.greet().metadata("user", name).await,
            1 => greeter.greet_spawned().metadata("user", name).await,
            _ => greeter.greet_blocking().metadata("user", name).await,
        };
        assert_eq!(greeted.unwrap(), format!("hello {name}, call {at}"));
    }
    // Another connection has values of its own.
    let other: GreeterClient = server.client().service();
    assert_eq!(other.greet().metadata("user", "eve").await.unwrap(), "hello eve, call 0");
    drop((greeter, other));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_beside_a_call_goes_with_it_however_it_ends() {
    let alive: Arc<AtomicUsize> = Arc::default();
    let server = server(&alive);
    let greeter: GreeterClient = server.client().service();
    for _ in 0..3 {
        greeter.greet().metadata("user", "ada").await.unwrap();
        assert_eq!(alive.load(SeqCst), 0, "it does not wait for the next call of its slot");
        greeter.greet_spawned().metadata("user", "ada").await.unwrap();
        greeter.greet_blocking().metadata("user", "ada").await.unwrap();
        let error = greeter.greet().metadata("user", "mallory").await.unwrap_err();
        assert_eq!(error.code(), StatusCode::PermissionDenied);
        let error = greeter.greet().await.unwrap_err();
        assert_eq!(error.code(), StatusCode::Unauthenticated, "nothing is left of the call before");
    }
    drop(greeter);
    server.assert_idle().await;
    assert_eq!(alive.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_panics_when_dropped_costs_nobody_anything() {
    crate::support::probe::silence_wanted_panics();
    let alive: Arc<AtomicUsize> = Arc::default();
    let server = server(&alive);
    let greeter: GreeterClient = server.client().service();
    assert_eq!(greeter.greet().metadata("user", "panics").await.unwrap(), "hello panics, call 0");
    assert_eq!(greeter.greet_spawned().metadata("user", "panics").await.unwrap(), "hello panics, call 1");
    assert_eq!(greeter.greet().metadata("user", "ada").await.unwrap(), "hello ada, call 2");
    drop(greeter);
    server.assert_idle().await;
    assert_eq!(alive.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_connection_before_it_is_served_is_beside_it() {
    struct Certificate(&'static str);

    #[sluicegate::service]
    trait Whoami {
        async fn whoami(&self, ctx: Context) -> Option<String>;
    }

    struct Known;

    impl Whoami for Known {
        async fn whoami(&self, ctx: Context) -> Option<String> {
            ctx.connection().get::<Certificate>().map(|certificate| certificate.0.to_owned())
        }
    }

    let server = Server::builder().service(WhoamiServer::new(Known)).build().unwrap();
    let handle = server.handle();
    let client = Client::with_connector("in memory", move || {
        let (near, far) = tokio::io::duplex(1024);
        let server = server.clone();
        let mut known = Extensions::new();
        known.insert(Certificate("CN=ada"));
        tokio::spawn(async move { server.serve_connection_with(far, None, known).await });
        async move { Ok(near) }
    });
    let client = client.build();
    let whoami: WhoamiClient = client.service();
    let known: Result<_, CallError> = whoami.whoami().await;
    assert_eq!(known.unwrap().as_deref(), Some("CN=ada"));
    drop((client, whoami));
    sluicegate::testing::assert_idle(&handle).await;
}
