//! `#[sluicegate::service]`: what is written works, wherever the trait stands.
#![cfg(all(feature = "macros", feature = "server", feature = "client"))]
#![deny(warnings, unused, rust_2018_idioms, missing_docs, missing_debug_implementations, unreachable_pub)]
#![deny(unused_qualifications, single_use_lifetimes, unnameable_types, clippy::all, clippy::pedantic, clippy::use_self)]

use std::sync::Arc;

use sluicegate::{
    Bytes, CallError, Client, Context, Server, Status, StatusCode,
    server::{Service, ServiceMethods},
};

#[allow(dead_code, clippy::pedantic, missing_debug_implementations, reason = "shared with tests that use all of it")]
#[path = "support/shims.rs"]
mod shims;

#[path = "macro_service/arguments.rs"]
mod arguments;
#[path = "macro_service/names.rs"]
mod names;
#[path = "macro_service/several.rs"]
mod several;

/// What the macro wrote for the service whose expansion is kept, as any other code.
#[allow(
    dead_code,
    unexpected_cfgs,
    unreachable_pub,
    reason = "it was written for a crate with other features, which is a library"
)]
#[allow(missing_docs, clippy::pedantic, reason = "levels of its items do not reach code that no macro wrote")]
mod kept {
    use sluicegate::{Bytes, Context, Status};

    pub(crate) trait Described {}
    pub(crate) type Book = String;
    pub(crate) type Result<T, E = Status> = std::result::Result<T, E>;

    #[derive(Debug)]
    pub(crate) struct NoSuchBook;

    impl From<NoSuchBook> for Status {
        fn from(_: NoSuchBook) -> Self {
            Self::not_found("no such book")
        }
    }

    include!("../rpc-macros/tests/expansion/library.rs");
}

/// A client of a server that has `service`, both in memory.
fn connect(service: impl Service) -> Client {
    let server = Server::builder().service(service).build().expect("a server");
    let manner = shims::Manner::of_this_run();
    let connector = move || {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (server, far) = (server.clone(), manner.wrap(far));
        tokio::spawn(async move { server.serve_connection(far, None).await });
        async move { Ok(manner.wrap(near)) }
    };
    Client::with_connector("in memory", connector).build()
}

fn code<T: std::fmt::Debug>(result: Result<T, CallError>) -> StatusCode {
    match result {
        Err(CallError::Status(status)) => status.code(),
        other => panic!("{other:?} is no status"),
    }
}

mod library {
    use serde::{Deserialize, Serialize};

    use super::{Arc, Bytes, CallError, Context, Status, StatusCode, code, connect};

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct Book {
        pub(crate) title: String,
        pub(crate) year: u16,
    }

    #[derive(Debug)]
    pub(crate) struct NoSuchBook;

    impl From<NoSuchBook> for Status {
        fn from(_: NoSuchBook) -> Self {
            Self::new(StatusCode::NotFound, "no such book")
        }
    }

    pub(crate) type Result<T, E = Status> = std::result::Result<T, E>;

    #[sluicegate::service(package = "acme.v1", name = "Books", server = "Desk", client = "Reader")]
    pub(crate) trait Library {
        /// Finds a book.
        async fn get_book(&self, isbn: String) -> Result<Book, NoSuchBook>;
        async fn count(&self) -> u64;
        async fn search(&self, ctx: Context, text: String, limit: u32) -> Result<Vec<Book>>;
        async fn blob(&self, body: Bytes) -> Bytes;
        async fn checked_blob(&self, context: Context, body: Bytes) -> Result<Bytes, Status>;
        async fn forget(&self, isbn: String);
        #[rpc(name = "renamed", spawn)]
        async fn slow(&self) -> Result<u64, Status>;
    }

    struct Shelf(Vec<Book>);

    impl Library for Shelf {
        async fn get_book(&self, isbn: String) -> Result<Book, NoSuchBook> {
            self.0.iter().find(|book| book.title == isbn).cloned().ok_or(NoSuchBook)
        }

        async fn count(&self) -> u64 {
            self.0.len() as u64
        }

        async fn search(&self, ctx: Context, text: String, limit: u32) -> Result<Vec<Book>> {
            assert_eq!(ctx.metadata().get_str("who"), Some("test"));
            let found = self.0.iter().filter(|book| book.title.contains(&text));
            Ok(found.take(limit as usize).cloned().collect())
        }

        async fn blob(&self, body: Bytes) -> Bytes {
            body
        }

        async fn checked_blob(&self, context: Context, body: Bytes) -> Result<Bytes, Status> {
            assert!(context.peer().is_none());
            if body.is_empty() { Err(Status::new(StatusCode::InvalidArgument, "empty")) } else { Ok(body) }
        }

        async fn forget(&self, _isbn: String) {}

        async fn slow(&self) -> Result<u64, Status> {
            tokio::task::yield_now().await;
            Ok(7)
        }
    }

    fn shelf() -> Shelf {
        Shelf(["Emma", "Emil", "Ulysses"].map(|title| Book { title: title.to_owned(), year: 1900 }).to_vec())
    }

    #[tokio::test]
    async fn every_kind_of_method_is_served_and_called() {
        let client = connect(Desk::new(shelf()));
        let reader: Reader = client.service();
        assert_eq!(reader.get_book("Emma".to_owned()).await.unwrap().title, "Emma");
        assert_eq!(code(reader.get_book("Faust".to_owned()).await), StatusCode::NotFound);
        assert_eq!(reader.count().await.unwrap(), 3);
        let found = reader.search("Em".to_owned(), 1).metadata("who", "test").await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(reader.blob(Bytes::from_static(b"\0\xff")).await.unwrap(), b"\0\xff"[..]);
        assert_eq!(reader.checked_blob(Bytes::from_static(b"x")).await.unwrap(), b"x"[..]);
        assert_eq!(code(reader.checked_blob(Bytes::new()).await), StatusCode::InvalidArgument);
        let (): () = reader.forget("Emil".to_owned()).await.unwrap();
        assert_eq!(reader.slow().await.unwrap(), 7);
    }

    #[tokio::test]
    async fn names_on_the_wire_are_those_that_are_set() {
        use sluicegate::{client::Method, server::Service};

        let desk = Desk::new(shelf());
        assert_eq!(desk.name(), "acme.v1.Books");
        let client = connect(desk);
        let call = |name| client.call::<_, u64>(Method::new("acme.v1.Books", name), ());
        assert_eq!(call("renamed").await.unwrap(), 7);
        assert_eq!(code(call("slow").await), StatusCode::Unimplemented);
    }

    #[tokio::test]
    async fn a_client_is_a_cheap_handle_and_a_server_shares_its_service() {
        fn is_handle<T: Clone + std::fmt::Debug + Send + Sync + 'static>(_: &T) {}

        let shelf = Arc::new(shelf());
        let desk = Desk::from_arc(Arc::clone(&shelf));
        is_handle(&desk);
        assert_eq!(format!("{:?}", desk.clone()), "Desk { .. }");
        let reader: Reader = connect(desk).service();
        is_handle(&reader);
        assert_eq!(reader.clone().count().await.unwrap(), shelf.count().await);
    }

    #[tokio::test]
    async fn calls_are_futures_that_can_be_spawned() {
        let reader: Reader = connect(Desk::new(shelf())).service();
        let calls = (0..3).map(|_| tokio::spawn(reader.count().into_future()));
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.unwrap().unwrap(), 3);
        }
        let call = async { Ok::<_, CallError>(reader.count().await? + reader.slow().await?) };
        assert_eq!(call.await.unwrap(), 10);
    }
}

mod method_names {
    use super::connect;

    // Each is called so by something that is written, or by something that is often written.
    #[sluicegate::service]
    pub(crate) trait Names {
        async fn new(&self) -> u8;
        async fn clone(&self) -> u8;
        async fn connect(&self) -> u8;
        async fn call(&self) -> u8;
        async fn call_bytes(&self) -> u8;
        async fn serve(&self) -> u8;
        async fn default(&self) -> u8;
        async fn from(&self) -> u8;
        async fn from_arc(&self) -> u8;
        async fn from_client(&self) -> u8;
        async fn drop(&self) -> u8;
        async fn poll(&self) -> u8;
        async fn spawn(&self) -> u8;
        async fn builder(&self) -> u8;
        async fn with_timeout(&self) -> u8;
        async fn client(&self) -> u8;
        async fn server(&self) -> u8;
        async fn service(&self) -> u8;
        async fn name(&self) -> u8;
        async fn register(&self) -> u8;
        async fn method(&self) -> u8;
        async fn fmt(&self) -> u8;
        async fn len(&self) -> u8;
        async fn next(&self) -> u8;
        async fn deref(&self) -> u8;
        async fn r#fn(&self, r#type: u8) -> u8;
        async fn arguments(&self, client: u8, methods: u8, service: u8, context: u8, this: u8, args: u8) -> u8;
    }

    struct Two;

    macro_rules! two {
        ($($name:ident)*) => {
            impl Names for Two {
                $(async fn $name(&self) -> u8 { 2 })*
                async fn r#fn(&self, r#type: u8) -> u8 { r#type }
                async fn arguments(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8) -> u8 { a + b + c + d + e + f }
            }

            #[tokio::test]
            async fn a_method_may_have_any_name() {
                let client: NamesClient = connect(NamesServer::new(Two)).service();
                $(assert_eq!(client.$name().await.unwrap(), 2);)*
                assert_eq!(client.r#fn(3).await.unwrap(), 3);
                assert_eq!(client.arguments(1, 1, 1, 1, 1, 1).await.unwrap(), 6);
            }
        };
    }

    two!(new clone connect call call_bytes serve default from from_arc from_client drop poll spawn builder
        with_timeout client server service name register method fmt len next deref);

    #[tokio::test]
    async fn a_raw_name_has_no_prefix_on_the_wire() {
        let client = connect(NamesServer::new(Two));
        let method = sluicegate::client::Method::new("Names", "fn");
        assert_eq!(client.call::<_, u8>(method, (4_u8,)).await.unwrap(), 4);
    }
}

mod raw_trait {
    use super::Service;

    #[sluicegate::service]
    #[allow(non_camel_case_types)]
    trait r#type {
        async fn r#match(&self) -> u8;
    }

    struct One;

    impl r#type for One {
        async fn r#match(&self) -> u8 {
            1
        }
    }

    #[test]
    fn a_raw_name_of_a_trait_has_no_prefix() {
        assert_eq!(typeServer::new(One).name(), "type");
    }
}

/// Everything that could be meant by mistake is something else here.
#[allow(dead_code, non_upper_case_globals, non_camel_case_types)]
mod shadows {
    pub(crate) mod std {}
    pub(crate) mod core {}
    pub(crate) mod sluicegate {}
    pub(crate) mod serde {}
    pub(crate) mod tokio {}
    pub(crate) struct Ok;
    pub(crate) struct Err;
    pub(crate) struct Some;
    pub(crate) struct None;
    pub(crate) struct Option;
    pub(crate) struct Arc;
    pub(crate) struct Box;
    pub(crate) struct Self_;
    pub(crate) trait Send {}
    pub(crate) trait Sync {}
    pub(crate) trait Clone {}
    pub(crate) trait Debug {}
    pub(crate) trait Default {}
    pub(crate) trait Future {}
    pub(crate) trait From {}
    pub(crate) trait Into {}
    pub(crate) trait Fn {}
    pub(crate) static methods: u8 = 0;
    pub(crate) const context: u8 = 0;
    pub(crate) struct reply;
    pub(crate) type Result<T> = ::core::result::Result<T, ::sluicegate::Status>;
    pub(crate) type String = u16;

    #[derive(::serde::Serialize, ::serde::Deserialize)]
    pub(crate) struct S(pub(crate) u8);

    #[::sluicegate::service]
    pub(crate) trait Shadowed {
        async fn one(&self, ctx: ::sluicegate::Context, s: S, text: String) -> Result<u8>;
        async fn two(&self) -> S;
        async fn three(&self) -> ::core::result::Result<(), ::sluicegate::Status>;
    }
}

mod no_prelude {
    #![no_implicit_prelude]

    #[derive(::core::fmt::Debug, ::sluicegate::DomainError)]
    #[rpc(domain = "library.example", code = NotFound)]
    pub(crate) struct Missing {
        #[rpc(metadata)]
        pub(crate) r#type: ::std::string::String,
        #[rpc(retry_delay)]
        pub(crate) delay: ::core::option::Option<::core::time::Duration>,
    }

    impl ::core::fmt::Display for Missing {
        fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
            f.write_str("it is missing")
        }
    }

    impl ::core::error::Error for Missing {}

    #[::sluicegate::service]
    pub(crate) trait Bare {
        async fn one(&self, ctx: ::sluicegate::Context, text: ::std::string::String) -> u8;
        async fn two(
            &self,
            body: ::sluicegate::Bytes,
        ) -> ::core::result::Result<::sluicegate::Bytes, ::sluicegate::Status>;
    }
}

#[test]
fn an_error_of_the_domain_needs_no_prelude() {
    let delay = Some(std::time::Duration::from_secs(1));
    let status = Status::from(no_prelude::Missing { r#type: "book".to_owned(), delay });
    assert!(status.has_reason("library.example", "MISSING"), "{status:?}");
    assert_eq!(status.error_info().unwrap().metadata.get_str("type"), Some("book"));
    assert_eq!(status.retry_delay(), delay);
}

#[tokio::test]
async fn neighbours_of_any_name_do_no_harm() {
    use shadows::{S, Shadowed};

    struct Local;

    impl Shadowed for Local {
        async fn one(&self, _: Context, s: S, text: u16) -> Result<u8, Status> {
            Ok(s.0 + u8::try_from(text).unwrap())
        }

        async fn two(&self) -> S {
            S(2)
        }

        async fn three(&self) -> Result<(), Status> {
            Ok(())
        }
    }

    let client: shadows::ShadowedClient = connect(shadows::ShadowedServer::new(Local)).service();
    assert_eq!(client.one(S(1), 2).await.unwrap(), 3);
    assert_eq!(client.two().await.unwrap().0, 2);
    client.three().await.unwrap();
}

#[tokio::test]
async fn a_service_may_stand_in_a_function() {
    #[sluicegate::service]
    trait Inner {
        async fn one(&self) -> u8;
    }

    struct One;

    impl Inner for One {
        async fn one(&self) -> u8 {
            1
        }
    }

    let client: InnerClient = connect(InnerServer::new(One)).service();
    assert_eq!(client.one().await.unwrap(), 1);
}

mod conditions {
    use super::{Service, connect};

    #[sluicegate::service]
    pub(crate) trait Partly {
        #[cfg(any())]
        async fn never(&self, missing: NoSuchType) -> NoSuchType;
        #[cfg(not(any()))]
        async fn always(&self) -> u8;
        #[cfg_attr(all(), cfg(any()))]
        async fn never_either(&self, missing: NoSuchType) -> NoSuchType;
        #[cfg(any())]
        async fn either(&self) -> u8;
        #[cfg(not(any()))]
        async fn either(&self) -> u16;
    }

    #[sluicegate::service]
    #[cfg(any())]
    pub(crate) trait Nowhere: NoSuchTrait {
        async fn one(&self, missing: NoSuchType);
    }

    #[sluicegate::service]
    pub(crate) trait Empty {}

    struct Here;

    impl Partly for Here {
        async fn always(&self) -> u8 {
            1
        }

        async fn either(&self) -> u16 {
            2
        }
    }

    impl Empty for Here {}

    #[tokio::test]
    async fn a_condition_holds_for_every_piece() {
        let client: PartlyClient = connect(PartlyServer::new(Here)).service();
        assert_eq!(client.always().await.unwrap(), 1);
        assert_eq!(client.either().await.unwrap(), 2_u16);
        assert_eq!(EmptyServer::new(Here).name(), "Empty");
    }
}

mod attributes {
    use super::connect;

    /// A service with a past.
    #[sluicegate::service]
    pub(crate) trait Aged {
        /// Of old.
        #[deprecated = "use `new`"]
        async fn old(&self) -> u8;
        #[must_use = "it counts"]
        async fn counted(&self) -> u8;
        #[expect(clippy::too_many_arguments)]
        async fn many(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8) -> u8;
    }

    /// A service that has been replaced.
    #[sluicegate::service]
    #[deprecated = "use `Aged`"]
    pub(crate) trait Gone {
        async fn one(&self) -> u8;
    }

    struct Old;

    impl Aged for Old {
        async fn old(&self) -> u8 {
            1
        }

        async fn counted(&self) -> u8 {
            2
        }

        async fn many(&self, a: u8, _: u8, _: u8, _: u8, _: u8, _: u8, _: u8, h: u8) -> u8 {
            a + h
        }
    }

    #[tokio::test]
    async fn attributes_of_a_method_are_those_of_the_client() {
        let client: AgedClient = connect(AgedServer::new(Old)).service();
        #[expect(deprecated)]
        let old = client.old();
        assert_eq!(old.await.unwrap(), 1);
        assert_eq!(client.counted().await.unwrap(), 2);
        assert_eq!(client.many(1, 0, 0, 0, 0, 0, 0, 3).await.unwrap(), 4);
    }
}

mod recursion {
    use super::connect;

    #[sluicegate::service]
    trait Countdown {
        async fn from(&self, n: u32) -> u32;
    }

    struct Step(std::sync::OnceLock<CountdownClient>);

    impl Countdown for Step {
        async fn from(&self, n: u32) -> u32 {
            let client = self.0.get().expect("set before the first call");
            if n == 0 { 0 } else { 1 + client.from(n - 1).await.unwrap() }
        }
    }

    #[tokio::test]
    async fn a_service_may_call_itself_through_its_client() {
        let step = super::Arc::new(Step(std::sync::OnceLock::new()));
        let client: CountdownClient = connect(CountdownServer::from_arc(step.clone())).service();
        step.0.set(client.clone()).unwrap();
        assert_eq!(client.from(5).await.unwrap(), 5);
    }
}

mod written_by_a_macro {
    use super::connect;

    macro_rules! echo {
        ($vis:vis $name:ident, $method:ident, $argument:ident: $ty:ty) => {
            #[sluicegate::service]
            $vis trait $name {
                async fn $method(&self, $argument: $ty) -> Result<$ty, sluicegate::Status>;
            }
        };
    }

    echo!(pub(crate) Echo, echo, text: String);
    echo!(EchoBytes, echo, body: sluicegate::Bytes);

    struct Same;

    impl EchoBytes for Same {
        async fn echo(&self, body: sluicegate::Bytes) -> Result<sluicegate::Bytes, sluicegate::Status> {
            Ok(body)
        }
    }

    macro_rules! counts {
        ($name:ident, $unit:ty) => {
            #[sluicegate::service]
            trait $name {
                async fn count(&self, out: sluicegate::ItemSender<u8>) -> Result<$unit, sluicegate::Status>;
                #[allow(unused_parens)]
                async fn again(&self, out: sluicegate::ItemSender<u8>) -> Result<($unit), sluicegate::Status>;
            }

            impl $name for Same {
                async fn count(&self, mut out: sluicegate::ItemSender<u8>) -> Result<(), sluicegate::Status> {
                    out.send(7).await
                }

                async fn again(&self, out: sluicegate::ItemSender<u8>) -> Result<(), sluicegate::Status> {
                    $name::count(self, out).await
                }
            }
        };
    }

    type Done = ();
    counts!(Counts, ());
    counts!(CountsByName, Done);

    #[tokio::test]
    async fn nothing_beside_items_may_have_another_name_or_be_of_a_users_macro() {
        let client: CountsClient = connect(CountsServer::new(Same)).service();
        assert_eq!(client.count().message().await.unwrap(), Some(7));
        let client: CountsByNameClient = connect(CountsByNameServer::new(Same)).service();
        assert_eq!(client.again().message().await.unwrap(), Some(7));
    }

    #[tokio::test]
    async fn types_of_a_users_macro_are_seen_through() {
        let client: EchoBytesClient = connect(EchoBytesServer::new(Same)).service();
        assert_eq!(client.echo(sluicegate::Bytes::from_static(b"x")).await.unwrap(), b"x"[..]);
    }
}

mod another_path {
    use super::Service;

    pub(crate) mod rpc {
        pub(crate) use sluicegate::{Client, Status, client, server};
    }

    #[sluicegate::service(crate = "crate::another_path::rpc")]
    pub(crate) trait Renamed {
        async fn one(&self) -> Result<u8, rpc::Status>;
    }

    struct One;

    impl Renamed for One {
        async fn one(&self) -> Result<u8, rpc::Status> {
            Ok(1)
        }
    }

    #[test]
    fn the_facade_may_go_by_another_path() {
        assert_eq!(RenamedServer::new(One).name(), "Renamed");
    }
}

/// Something that a service is, too.
trait Described {
    fn describe(&self) -> String;
}

#[test]
fn a_service_may_have_supertraits() {
    #[sluicegate::service]
    trait Talking: Described + Send {
        async fn one(&self) -> u8;
    }

    fn describe(service: &impl Talking) -> String {
        service.describe()
    }

    struct One;

    impl Described for One {
        fn describe(&self) -> String {
            "one".to_owned()
        }
    }

    impl Talking for One {
        async fn one(&self) -> u8 {
            1
        }
    }

    assert_eq!(describe(&One), "one");
}

#[test]
fn a_service_can_be_written_by_hand() {
    struct ByHand;

    impl Service for ByHand {
        fn name(&self) -> &'static str {
            "ByHand"
        }

        fn register(self, methods: &mut ServiceMethods<'_>) {
            methods.unary("one", sluicegate::server::MethodOptions::default(), |_, (): ()| async { Ok(1_u8) });
        }
    }

    assert!(Server::builder().service(ByHand).build().is_ok());
}

/// What is written may be called as the macro would call its own.
mod short {
    #[sluicegate::service(server = "S", client = "S1")]
    pub(crate) trait Short {
        async fn one(&self) -> u8;
    }
}

#[tokio::test]
async fn a_server_may_be_called_as_the_macro_calls_its_type_parameter() {
    struct One;

    impl short::Short for One {
        async fn one(&self) -> u8 {
            1
        }
    }

    let server = Server::builder().service(short::S::new(One)).build().unwrap();
    let client: short::S1 = sluicegate::testing::InMemory::new(server).client().service();
    assert_eq!(client.one().await.unwrap(), 1);
}
