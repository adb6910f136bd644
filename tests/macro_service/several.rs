//! Several services on a server, from several modules, by several names.

use sluicegate::{Client, Server, client::Method, server::Service};

use crate::{code, connect};

mod shelf {
    #[sluicegate::service(package = "acme.v2")]
    pub(crate) trait Shelf {
        async fn find(&self, text: String) -> u8;
    }

    pub(crate) mod deep {
        #[sluicegate::service(package = "acme.v2")]
        pub(crate) trait Desk {
            /// It was `ask`, and before that `search` of the shelf.
            #[rpc(alias = "ask", alias = "acme.v1.Shelf/search")]
            async fn answer(&self, text: String) -> u16;
            #[rpc(blocking, alias = "reckon")]
            fn count(&self) -> u64;
        }
    }

    pub(crate) use deep::{Desk, DeskClient, DeskServer};
}

mod prelude {
    pub(crate) use super::shelf::*;
}

use prelude::{Desk, DeskClient, DeskServer, Shelf, ShelfClient, ShelfServer};

#[derive(Clone)]
struct Both;

impl Shelf for Both {
    async fn find(&self, text: String) -> u8 {
        u8::try_from(text.len()).unwrap_or(u8::MAX)
    }
}

impl Desk for Both {
    async fn answer(&self, text: String) -> u16 {
        u16::from(self.find(text).await) * 2
    }

    fn count(&self) -> u64 {
        2
    }
}

struct Together;

impl Service for Together {
    fn name(&self) -> &'static str {
        "Together"
    }

    fn register(self, methods: &mut sluicegate::server::ServiceMethods<'_>) {
        methods.unary("nothing", sluicegate::server::MethodOptions::new(), |_, (): ()| async { Ok(()) });
    }
}

fn client() -> Client {
    let server = Server::builder()
        .service(ShelfServer::new(Both))
        .service(Together)
        .service(DeskServer::new(Both))
        .build()
        .expect("a server");
    Client::with_connector("in memory", move || {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let server = server.clone();
        tokio::spawn(async move { server.serve_connection(far, None).await });
        async move { Ok(near) }
    })
    .build()
}

#[tokio::test]
async fn several_services_share_a_server_and_a_connection() {
    let client = client();
    let (shelf, desk): (ShelfClient, DeskClient) = (client.service(), client.service());
    assert_eq!(shelf.find("four".to_owned()).await.unwrap(), 4);
    assert_eq!(desk.answer("four".to_owned()).await.unwrap(), 8);
    client.call::<_, ()>(Method::new("Together", "nothing"), ()).await.unwrap();
}

#[tokio::test]
async fn a_method_answers_to_its_old_names() {
    let client = client();
    for (service, name) in [("acme.v2.Desk", "answer"), ("acme.v2.Desk", "ask"), ("acme.v1.Shelf", "search")] {
        let answer = client.call::<_, u16>(Method::new(service, name), ("abc".to_owned(),)).await;
        assert_eq!(answer.unwrap(), 6, "{service}/{name}");
    }
    assert_eq!(client.call::<_, u64>(Method::new("acme.v2.Desk", "reckon"), ()).await.unwrap(), 2);
    let other = client.call::<_, u16>(Method::new("acme.v2.Shelf", "search"), ("abc".to_owned(),)).await;
    assert_eq!(code(other), sluicegate::StatusCode::Unimplemented);
}

#[test]
fn an_alias_that_is_a_method_of_another_service_is_refused_when_the_server_is_built() {
    struct Old;

    impl Service for Old {
        fn name(&self) -> &'static str {
            "acme.v1.Shelf"
        }

        fn register(self, methods: &mut sluicegate::server::ServiceMethods<'_>) {
            methods.unary("search", sluicegate::server::MethodOptions::new(), |_, (_,): (String,)| async { Ok(1_u16) });
        }
    }

    let error = Server::builder().service(Old).service(DeskServer::new(Both)).build().unwrap_err();
    let told = "the methods acme.v1.Shelf/search and acme.v1.Shelf/search have the same id";
    assert_eq!(error.to_string(), told);
}

/// A user's macro that writes whole services, methods passed on as they come.
macro_rules! versioned {
    ($package:literal, $(#[$attr:meta])* $vis:vis trait $name:ident { $($methods:tt)* }) => {
        $(#[$attr])*
        #[sluicegate::service(package = $package)]
        $vis trait $name { $($methods)* }
    };
    (@methods $name:ident: $($method:ident($($argument:ident: $ty:ty),*) -> $returns:ty;)*) => {
        #[sluicegate::service]
        pub(crate) trait $name {
            $(
                #[doc = concat!("Does ", stringify!($method), ".")]
                #[rpc(spawn)]
                async fn $method(&self, $($argument: $ty),*) -> $returns;
            )*
        }
    };
}

mod written {
    use super::connect;

    versioned! {
        "acme.v3",
        /// Adds.
        pub(crate) trait Adder {
            async fn add(&self, client: u8, methods: u8) -> u8;
        }
    }

    versioned!(@methods Echo: text(text: String) -> Result<String, sluicegate::Status>; nothing() -> (););

    struct Here;

    impl Adder for Here {
        async fn add(&self, a: u8, b: u8) -> u8 {
            a + b
        }
    }

    impl Echo for Here {
        async fn text(&self, text: String) -> Result<String, sluicegate::Status> {
            Ok(text)
        }

        async fn nothing(&self) {}
    }

    #[tokio::test]
    async fn a_users_macro_may_write_services() {
        let adder: AdderClient = connect(AdderServer::new(Here)).service();
        assert_eq!(adder.add(1, 2).await.unwrap(), 3);
        let echo: EchoClient = connect(EchoServer::new(Here)).service();
        assert_eq!(echo.text("x".to_owned()).await.unwrap(), "x");
        let (): () = echo.nothing().await.unwrap();
    }
}
