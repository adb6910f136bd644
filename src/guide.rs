//! The guide: from a trait to a service in production, a chapter each. All of its code runs as tests.
//!
//! [Define](#define) · [Serve](#serve) · [Call](#call) · [Stream](#stream) · [Limit](#limit) · [Errors](#errors) · [Extend](#extend) ·
//! [Observe](#observe) · [Test](#test) · [Deploy](#deploy) · [Evolve](#evolve)
//!
//! # Define
//!
//! A service is a trait. [`#[sluicegate::service]`](macro@crate::service) makes a server type and a client
//! type of it, named after the trait.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use sluicegate::{Bytes, Context, Status};
//!
//! #[derive(Clone, Debug, Serialize, Deserialize)]
//! pub struct Book {
//!     title: String,
//!     year: u16,
//!     #[serde(with = "sluicegate::bytes")] // as bytes, not element by element
//!     cover: Vec<u8>,
//! }
//!
//! /// The books of a library.
//! #[sluicegate::service(package = "acme.v1")]
//! pub trait Library {
//!     /// Up to sixteen owned arguments, and a value.
//!     async fn count(&self) -> u64;
//!     /// Or a result, of any error that converts into a `Status`.
//!     async fn get(&self, isbn: String) -> Result<Book, Status>;
//!     /// A first argument called `Context` is who asks, until when, with which metadata.
//!     async fn whoami(&self, ctx: Context) -> Option<String>;
//!     /// Bytes alone are not touched by any codec.
//!     async fn scan(&self, page: Bytes) -> Result<Bytes, Status>;
//!     /// A plain `fn` may block its thread.
//!     #[rpc(blocking)]
//!     fn index(&self, depth: u8) -> Result<u64, Status>;
//! }
//! ```
//!
//! Names on the wire, aliases for old ones, and what else can be set are in the docs of
//! [the macro](macro@crate::service).
//!
//! # Serve
//!
//! Implement the trait with plain `async fn`s, and give the server type to a [`Server`](crate::Server).
//! One server may have several services. All calls share the one that was given, so what changes is behind a `Mutex` or
//! the like; what the rest of the program uses as well is in an `Arc`, and is given by `GreeterServer::from_arc`.
//!
//! ```
//! # #[sluicegate::service]
//! # trait Greeter { async fn greet(&self, name: String) -> String; }
//! # #[sluicegate::service]
//! # trait Clock { async fn now(&self) -> u64; }
//! use sluicegate::{Client, Server};
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn greet(&self, name: String) -> String {
//!         format!("Good day, {name}.")
//!     }
//! }
//!
//! struct Stopped;
//!
//! impl Clock for Stopped {
//!     async fn now(&self) -> u64 {
//!         12
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder()
//!     .service(GreeterServer::new(Polite))
//!     .service(ClockServer::new(Stopped))
//!     .build()?;
//! let bound = server.bind("127.0.0.1:0").await?; // or `bind_unix("/run/greeter.sock")`
//! let address = bound.local_addr();
//! # let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! # let stop_signal = async move { drop(stopped.await) };
//! // Until the signal, such as `tokio::signal::ctrl_c()`; then calls that run may finish.
//! let serving = tokio::spawn(bound.serve_until(stop_signal));
//!
//! let client = Client::new(address);
//! let greeter: GreeterClient = client.service();
//! let clock: ClockClient = client.service(); // over the same connection
//! assert_eq!(greeter.greet("Ada".to_owned()).await?, "Good day, Ada.");
//! assert_eq!(clock.now().await?, 12);
//! # drop((client, greeter, clock, stop));
//! assert!(serving.await?.cut.is_empty(), "no call was cut off");
//! # Ok(())
//! # }
//! ```
//!
//! A service's future is polled in its connection's task, so it must not block. What computes for
//! milliseconds is marked `#[rpc(spawn)]`, what blocks `#[rpc(blocking)]`.
//!
//! An application that is there already, such as one of axum, serves calls beside its pages: on a second port, in the same
//! runtime, with the same state. `examples/embed.rs` stops both by one signal as well.
//!
//! ```
//! use std::sync::{
//!     Arc,
//!     atomic::{AtomicU64, Ordering::Relaxed},
//! };
//!
//! use axum::{Router, extract::State, routing::get};
//! use sluicegate::Server;
//!
//! #[derive(Default)]
//! struct Visits(AtomicU64);
//!
//! #[sluicegate::service]
//! trait Counter {
//!     async fn visitors(&self) -> u64;
//! }
//!
//! // The trait is implemented for what is shared.
//! impl Counter for Visits {
//!     async fn visitors(&self) -> u64 {
//!         self.0.load(Relaxed)
//!     }
//! }
//!
//! async fn page(State(visits): State<Arc<Visits>>) -> String {
//!     format!("visitor {}", visits.0.fetch_add(1, Relaxed) + 1)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let visits = Arc::new(Visits::default());
//! let calls = Server::builder().service(CounterServer::from_arc(Arc::clone(&visits))).build()?;
//! let calls = calls.bind("127.0.0.1:0").await?;
//! # let (address, handle) = (calls.local_addr(), calls.handle());
//! let serving = tokio::spawn(calls.serve());
//! let pages = Router::new().route("/", get(page)).with_state(Arc::clone(&visits));
//! # let _unused = async {
//! axum::serve(tokio::net::TcpListener::bind("127.0.0.1:8080").await?, pages).await
//! # };
//! # visits.0.store(3, Relaxed);
//! # let counter: CounterClient = sluicegate::Client::new(address).service();
//! # assert_eq!(counter.visitors().await?, 3);
//! # drop(counter);
//! # handle.shutdown();
//! # serving.await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Call
//!
//! A call is a future with options. It does nothing until it is awaited, and dropping it cancels it, at the
//! server too. Within a call that a server runs, the calls it makes inherit what is left of the deadline.
//!
//! ```
//! # use sluicegate::{Server, testing::InMemory};
//! # #[sluicegate::service]
//! # trait Greeter { async fn greet(&self, name: String) -> String; }
//! # struct Polite;
//! # impl Greeter for Polite {
//! #     async fn greet(&self, name: String) -> String { format!("Good day, {name}.") }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = InMemory::new(Server::builder().service(GreeterServer::new(Polite)).build()?);
//! # let client = server.client_builder();
//! use std::time::Duration;
//!
//! // `Client::builder("greeter.internal:7000")`, and then
//! let client = client
//!     .timeout(Duration::from_secs(1)) // for calls that set none
//!     .wait_for_ready(true) // through failed attempts to connect, until that is over
//!     .build();
//! let greeter: GreeterClient = client.service();
//! let call = greeter.greet("Ada".to_owned()).timeout(Duration::from_millis(250)).metadata("tenant", "acme");
//! assert_eq!(call.await?, "Good day, Ada.");
//!
//! // What came beside the reply, and several at once over one connection.
//! let response = greeter.greet("Bob".to_owned()).response().await?;
//! assert!(response.metadata.is_empty());
//! let (ada, bob) = tokio::join!(greeter.greet("Ada".to_owned()), greeter.greet("Bob".to_owned()));
//! assert_ne!(ada?, bob?);
//! # Ok(())
//! # }
//! ```
//!
//! `.await` and `tokio::join!` take a call as it is. What asks for a future, such as `tokio::spawn`, `select!` or `join_all`,
//! takes `greeter.greet(name).into_future()`.
//!
//! A program without a runtime waits: `greeter.greet(name).wait()?`, see
//! [`Call::wait`](crate::client::Call::wait).
//!
//! # Stream
//!
//! The types of a method say which ways items go. A parameter [`Streaming`](crate::Streaming) is what the client sends;
//! a parameter [`ItemSender`](crate::ItemSender), or a returned [`Stream`](crate::Stream), what the server does. It is
//! one call all the same: one permit until the last item is written, one deadline, one outcome, on both sides.
//!
//! ```
//! # use sluicegate::{Server, testing::InMemory};
//! use futures::{StreamExt, TryStreamExt, stream};
//! use sluicegate::{ItemSender, Status, Stream, Streaming};
//!
//! #[sluicegate::service]
//! trait Readings {
//!     /// From the server, one by one; or from a stream that is there already.
//!     async fn since(&self, hour: u32, out: ItemSender<u32>) -> Result<(), Status>;
//!     async fn all(&self) -> Result<impl Stream<Item = Result<u32, Status>> + Send, Status>;
//!     /// From the client: arguments first, items behind them.
//!     async fn record(&self, station: String, readings: Streaming<u32>) -> Result<u64, Status>;
//!     /// Both ways.
//!     async fn smooth(&self, readings: Streaming<u32>, out: ItemSender<u32>) -> Result<(), Status>;
//! }
//!
//! struct Station;
//!
//! impl Readings for Station {
//!     async fn since(&self, hour: u32, mut out: ItemSender<u32>) -> Result<(), Status> {
//!         for reading in hour.. {
//!             // Waits while the client takes none, and fails when it has gone.
//!             out.send(reading).await?;
//!         }
//!         Ok(())
//!     }
//!
//!     async fn all(&self) -> Result<impl Stream<Item = Result<u32, Status>> + Send, Status> {
//!         Ok(stream::iter([Ok(1), Ok(2), Err(Status::data_loss("the rest is lost"))]))
//!     }
//!
//!     async fn record(&self, station: String, mut readings: Streaming<u32>) -> Result<u64, Status> {
//!         if station.is_empty() {
//!             // Before the client's end: it is told at once, and sends no more.
//!             return Err(Status::invalid_argument("which station?"));
//!         }
//!         let mut count = 0;
//!         while readings.message().await?.is_some() {
//!             count += 1;
//!         }
//!         Ok(count)
//!     }
//!
//!     async fn smooth(&self, mut readings: Streaming<u32>, mut out: ItemSender<u32>) -> Result<(), Status> {
//!         let mut last = None;
//!         while let Some(reading) = readings.message().await? {
//!             out.send((last.replace(reading).unwrap_or(reading) + reading) / 2).await?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = InMemory::new(Server::builder().service(ReadingsServer::new(Station)).build()?);
//! # let readings: ReadingsClient = server.client().service();
//! // What the server sends is a stream. To drop it stops the producer, wherever it is.
//! let first: Vec<u32> = readings.since(7).take(3).try_collect().await?;
//! assert_eq!(first, [7, 8, 9]);
//!
//! // An error comes behind the items that were sent before it.
//! let mut all = readings.all();
//! assert_eq!((all.message().await?, all.message().await?), (Some(1), Some(2)));
//! assert_eq!(all.message().await.unwrap_err().to_string(), "data loss: the rest is lost");
//!
//! // What the client sends comes from a stream, or goes into a sink.
//! assert_eq!(readings.record("north".to_owned()).send_all(stream::iter(0..10)).await?, 10);
//! let (mut up, mut down) = readings.smooth().open().await?;
//! up.send(10).await?;
//! up.send(20).await?;
//! up.end(); // To drop it before its end gives the call up.
//! assert_eq!((down.message().await?, down.message().await?), (Some(10), Some(15)));
//! assert_eq!(down.message().await?, None);
//! # drop((readings, down, all));
//! # server.assert_idle().await;
//! # Ok(())
//! # }
//! ```
//!
//! Producers are paced by credit in bytes: who does not read stops its own stream and nothing else, and neither end
//! holds more of one than a window (`stream_window` on both builders) and an item. A window wants to be as long as the
//! way there and back times the speed that one stream shall reach. Several streams share a connection in turns.
//! Options of a call, its deadline and metadata are set in front of `send_all`, `open` or the first item. A deadline
//! is that of the whole stream, so give long ones none, and drop them. `docs/decisions/streams.md` says how it works.
//!
//! # Limit
//!
//! Limits are in front of every call, cheapest first: the deadline, rates, calls in flight. What they turn
//! away is told why, and when to come back, and was never executed.
//!
//! ```
//! # #[sluicegate::service]
//! # trait Greeter { async fn greet(&self, name: String) -> String; }
//! # struct Slow;
//! # impl Greeter for Slow {
//! #     async fn greet(&self, name: String) -> String {
//! #         tokio::time::sleep(std::time::Duration::from_millis(5)).await;
//! #         name
//! #     }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sluicegate::{RefusalReason, Server, limit::Rate, testing::InMemory};
//!
//! let server = Server::builder()
//!     .service(GreeterServer::new(Slow))
//!     .max_concurrent_calls(1)
//!     .rate(Rate::per_second(1_000.0).burst(100))
//!     .build()?;
//! # let server = InMemory::new(server);
//! # let greeter: GreeterClient = server.client().service();
//! let (one, other) = tokio::join!(greeter.greet("a".to_owned()), greeter.greet("b".to_owned()));
//! let error = [one, other].into_iter().find_map(Result::err).expect("there is room for one");
//! let refused = error.refused().expect("a limit refused it");
//! assert_eq!(refused.reason(), RefusalReason::ConcurrencyLimit);
//! assert_eq!((refused.limit(), refused.figure("max_in_flight")), (Some("global"), Some(1)));
//! assert!(refused.retry_delay().is_some());
//! # Ok(())
//! # }
//! ```
//!
//! One method alone is limited where it is defined, and again by whoever serves it:
//!
//! ```
//! # use std::time::Duration;
//! use sluicegate::{Server, server::MethodLimits};
//!
//! #[sluicegate::service]
//! trait Library {
//!     #[rpc(max_concurrent_calls = 1)]
//!     async fn search(&self) -> u8;
//!     async fn get(&self) -> u8;
//! }
//! # struct Shelf;
//! # impl Library for Shelf {
//! #     async fn search(&self) -> u8 { tokio::task::yield_now().await; 1 }
//! #     async fn get(&self) -> u8 { tokio::task::yield_now().await; 2 }
//! # }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder()
//!     .service(LibraryServer::new(Shelf))
//!     // What the builder says wins.
//!     .method_limits("Library/get", MethodLimits::new().max_concurrent_calls(50))
//!     .build()?;
//! # let server = sluicegate::testing::InMemory::new(server);
//! # let library: LibraryClient = server.client().service();
//! # let (a, b, c, d) = tokio::join!(library.search(), library.search(), library.get(), library.get());
//! # let refused: Vec<_> = [a, b, c, d].into_iter().filter_map(Result::err).collect();
//! # assert_eq!(refused.len(), 1);
//! # assert!(refused[0].refused().is_some());
//! # Ok(())
//! # }
//! ```
//!
//! Methods share a limit as a [`pool`](crate::server::ServerBuilder::pool), calls wait for one in a
//! [`wait_queue`](crate::server::ServerBuilder::wait_queue), [`tenants`](crate::server::ServerBuilder::tenants) have
//! limits each, and an [`adaptive_limit`](crate::server::ServerBuilder::adaptive_limit) finds its own maximum.
//! `docs/limits.md` says which to take for what. A rule that none of them has is a
//! [`Handler`](crate::server::Handler).
//!
//! # Errors
//!
//! `?` makes a [`Status`](crate::Status) of an error of the service's domain
//! ([`DomainError`](crate::DomainError)), of what a call of its own met, and, with
//! [`OrStatus`](crate::OrStatus), of anything else. At the other end there is one
//! [`CallError`](crate::CallError): `code()` says what happened, `executed()` whether the service ran,
//! `retry_delay()` when to come back, `refused()` which limit said no, `has_reason()` which error of the domain
//! it is. `docs/errors.md` lists all of them with what to do about each.
//!
//! # Extend
//!
//! - A [`Handler`](crate::server::Handler) sees every call before its body is decoded, and every response:
//!   authentication, audit, tenants, limits. What it found out it puts beside the call, where the service
//!   finds it by its type: [`Context::extension`](crate::Context::extension). What holds for all calls of a connection
//!   goes beside the connection: [`ConnectionInfo::insert`](crate::ConnectionInfo::insert).
//! - An [`Interceptor`](crate::client::Interceptor) sees every call of a client, those with items included.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//!
//! use sluicegate::{
//!     ConnectionInfo, Context, OrStatus, Server, Status, StatusCode,
//!     client::{Interceptor, Outgoing},
//!     server::{Answer, Call, CallInfo, Decision, Handler, Outbound},
//!     testing::InMemory,
//! };
//!
//! #[sluicegate::service]
//! trait Desk {
//!     async fn whoami(&self, ctx: Context) -> Result<String, Status>;
//! }
//!
//! struct Office;
//!
//! impl Desk for Office {
//!     async fn whoami(&self, ctx: Context) -> Result<String, Status> {
//!         let user: &User = ctx.extension().ok_or_else(|| Status::internal("nobody authenticates"))?;
//!         let region = ctx.connection().get::<Region>();
//!         Ok(format!("{} from {}", user.0, region.map_or("nowhere", |region| region.0)))
//!     }
//! }
//!
//! /// Authentication: by what a call says of its caller, and by its connection.
//! struct Authenticate;
//!
//! struct User(String);
//! struct Region(&'static str);
//!
//! impl Handler for Authenticate {
//!     fn connected(&mut self, connection: &ConnectionInfo) {
//!         connection.insert(Region(if connection.peer.is_some() { "afar" } else { "here" }));
//!     }
//!
//!     fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
//!         match call.metadata().get_str("token") {
//!             Some("sesame") => {
//!                 call.extensions_mut().insert(User("Ada".to_owned()));
//!                 Decision::Pass
//!             }
//!             _ => Decision::Answer(Status::unauthenticated("this token is nobody's")),
//!         }
//!     }
//! }
//!
//! /// Audit: what became of every call, whoever decided it.
//! struct Audit(Arc<Mutex<Vec<String>>>);
//!
//! impl Handler for Audit {
//!     fn outbound(&mut self, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
//!         let method = call.method.map_or("unknown", |method| method.path());
//!         let outcome = match response.answer() {
//!             Answer::Reply(_) => "served".to_owned(),
//!             Answer::Status(status) => status.code().to_string(),
//!             _ => "refused".to_owned(),
//!         };
//!         self.0.lock().unwrap().push(format!("{method}: {outcome}"));
//!     }
//! }
//!
//! /// The client's side: says who it is, with every call.
//! struct Token(&'static str);
//!
//! impl Interceptor for Token {
//!     fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status> {
//!         call.insert("token", self.0).or_internal("this is no metadata")
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let log = Arc::default();
//! let audited = Arc::clone(&log);
//! let server = Server::builder().service(DeskServer::new(Office)).pipeline(move |pipeline, _connection| {
//!     // In front of all limits, so that strangers use up nothing of them; the audit in front of that.
//!     pipeline.add_first("authenticate", Authenticate).add_first("audit", Audit(Arc::clone(&audited)));
//! });
//! let server = InMemory::new(server.build()?);
//!
//! let desk: DeskClient = server.client_builder().interceptor(Token("sesame")).build().service();
//! assert_eq!(desk.whoami().await?, "Ada from here");
//! let stranger: DeskClient = server.client().service();
//! assert_eq!(stranger.whoami().await.unwrap_err().code(), StatusCode::Unauthenticated);
//! assert_eq!(*log.lock().unwrap(), ["Desk/whoami: served", "Desk/whoami: unauthenticated"]);
//! # drop((desk, stranger));
//! # server.assert_idle().await;
//! # Ok(())
//! # }
//! ```
//!
//! Behind the feature `tower`, layers of tower go around services (`server::tower::Layered`) and around the unary calls
//! of clients (`ClientBuilder::layer`); both have an example where they are described. The examples `auth`, `handler` and
//! `embed` are whole programs.
//!
//! # Observe
//!
//! [`ServerHandle::snapshot`](crate::server::ServerHandle::snapshot) has exact figures at any moment: in flight,
//! permits acquired, released and held, refused by each limit, connections, bytes that wait. `trace_calls(true)`
//! on the builders puts each call into a span of `tracing` and tells how it ended. A W3C `traceparent` in the
//! metadata is carried on to the calls that a service makes. With the feature `metrics`, `ServerHandle::export_metrics`
//! and `Client::export_metrics` hand the figures to the `metrics` facade, under names and labels that their docs list;
//! `examples/metrics.rs` shows them to Prometheus.
//!
//! ```
//! # #[sluicegate::service]
//! # trait Greeter { async fn greet(&self, name: String) -> String; }
//! # struct Polite;
//! # impl Greeter for Polite {
//! #     async fn greet(&self, name: String) -> String { name }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sluicegate::{Health, Server, client::HealthClient, testing::InMemory};
//!
//! let server = Server::builder().service(GreeterServer::new(Polite)).trace_calls(true).health(true).build()?;
//! let handle = server.handle();
//! # let server = InMemory::new(server);
//! # let client = server.client();
//! assert_eq!(client.service::<HealthClient>().check("Greeter").await?, Health::Serving);
//! let snapshot = handle.snapshot();
//! assert_eq!(snapshot.calls.held, 0);
//! assert!(snapshot.refused.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Test
//!
//! With the feature `testing` a server and its clients are in memory, and tokio's virtual time works. A
//! test ends with the check that nothing is left of any call.
//!
//! ```
//! # #[sluicegate::service]
//! # trait Greeter { async fn greet(&self, name: String) -> String; }
//! # struct Slow;
//! # impl Greeter for Slow {
//! #     async fn greet(&self, name: String) -> String {
//! #         tokio::time::sleep(std::time::Duration::from_secs(5)).await;
//! #         name
//! #     }
//! # }
//! use std::time::Duration;
//!
//! use sluicegate::{Executed, Server, StatusCode, testing::InMemory};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
//! # runtime.block_on(async {
//! // In a `#[tokio::test(start_paused = true)]`:
//! let server = Server::builder().service(GreeterServer::new(Slow)).max_concurrent_calls(1).build().unwrap();
//! let server = InMemory::new(server);
//! let greeter: GreeterClient = server.client().service();
//! // Biased: otherwise the second might be sent first.
//! let (served, refused) = tokio::join!(biased; greeter.greet("a".to_owned()), greeter.greet("b".to_owned()));
//! assert!(served.is_ok());
//! assert!(refused.unwrap_err().refused().is_some_and(|refused| refused.limit() == Some("global")));
//! let late = greeter.greet("c".to_owned()).timeout(Duration::from_secs(1)).await.unwrap_err();
//! assert_eq!((late.code(), late.executed()), (StatusCode::DeadlineExceeded, Executed::Maybe));
//! drop(greeter);
//! server.assert_idle().await;
//! # });
//! ```
//!
//! # Deploy
//!
//! - **Configuring**: with the feature `config`, `ServerSettings` and `ClientSettings` are the builders' settings in TOML,
//!   or as a part of your own file; what is misspelt, and what does not go together, is an error that names it.
//! - **Limits are per process.** Ten servers with a limit of 64 run 640 calls.
//! - **Stopping**: `serve_until` a signal. Set `shutdown_notice` to the time in which a balancer notices that
//!   the health says "draining", and `drain_grace` to what the longest call may take.
//! - **Balancing** by connections: set `max_connection_age`, so that clients come back elsewhere.
//! - **TLS**: [`Server::serve_connection_with`](crate::Server::serve_connection_with) and
//!   [`Client::with_connector`](crate::Client::with_connector) take any transport, and what is known of its
//!   other end.
//! - **Blocking**: keep `max_blocking_calls` below tokio's `max_blocking_threads`.
//! - **Panics** cost a call, unless the program is built with `panic = "abort"`.
//!
//! # Evolve
//!
//! Servers and clients are replaced one after the other. If types will change, use MessagePack or JSON, which
//! write names, and give each method one struct; keep old names of methods as aliases. `docs/evolving.md` says
//! for each codec which changes old and new ends live through.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Search {
//!     text: String,
//!     #[serde(default)] // since version 2
//!     limit: Option<u32>,
//! }
//!
//! #[sluicegate::service(package = "acme.v1")]
//! trait Library {
//!     #[rpc(alias = "search")] // its name in version 1
//!     async fn find(&self, query: Search) -> Vec<String>;
//! }
//! ```
