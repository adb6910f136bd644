//! Who calls, and what may they do? A handler finds out from the call's metadata, puts what it found beside
//! the call, and the service uses it. The client says who it is in one place, an interceptor.
//!
//! ```sh
//! cargo run --example auth
//! ```

use std::{collections::HashMap, error::Error, sync::Arc};

use sluicegate::{
    Client, Context, Server, Status,
    client::{Interceptor, Outgoing},
    server::{Call, Decision, Handler, Interest},
};

/// Whom a token belongs to.
#[derive(Clone, Debug)]
struct User {
    name: String,
    may_write: bool,
}

/// Knows the tokens. In earnest it would look at a signature; a handler must not block, so one that has to
/// ask somebody else answers with `Decision::Wait` and a future.
struct Authenticate {
    tokens: Arc<HashMap<&'static str, User>>,
}

impl Handler for Authenticate {
    // It looks at calls on their way in and at nothing else, so responses pass it at no cost.
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let token = call.metadata().get_str("authorization").unwrap_or_default();
        match self.tokens.get(token) {
            Some(user) => {
                call.extensions_mut().insert(user.clone());
                Decision::Pass
            }
            // Answered before the body is decoded; it says that nothing was executed.
            None => Decision::Answer(Status::unauthenticated("this token is nobody's")),
        }
    }
}

/// A note that some may read and some may change.
#[sluicegate::service]
trait Note {
    async fn read(&self, ctx: Context) -> Result<String, Status>;
    async fn write(&self, ctx: Context, text: String) -> Result<(), Status>;
}

#[derive(Default)]
struct Paper(std::sync::Mutex<String>);

fn user(ctx: &Context) -> Result<&User, Status> {
    ctx.extension().ok_or_else(|| Status::internal("the handler that authenticates is missing"))
}

impl Note for Paper {
    async fn read(&self, ctx: Context) -> Result<String, Status> {
        let text = self.0.lock().expect("no thread panics with it").clone();
        Ok(format!("{} reads: {text}", user(&ctx)?.name))
    }

    async fn write(&self, ctx: Context, text: String) -> Result<(), Status> {
        let user = user(&ctx)?;
        if !user.may_write {
            return Err(Status::permission_denied(format!("{} may only read", user.name)));
        }
        *self.0.lock().expect("no thread panics with it") = text;
        Ok(())
    }
}

/// Says who we are, with every call.
struct Token(&'static str);

impl Interceptor for Token {
    fn before(&self, call: &mut Outgoing<'_>) -> Result<(), Status> {
        call.insert("authorization", self.0).map_err(|_| Status::invalid_argument("the token cannot be sent"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let of = |name: &str, may_write| User { name: name.to_owned(), may_write };
    let tokens = Arc::new(HashMap::from([("sesame", of("Ada", true)), ("open", of("Bob", false))]));
    let server = Server::builder()
        .service(NoteServer::new(Paper::default()))
        // In front of the limits, so that strangers use up nothing of them.
        .pipeline(move |pipeline, _connection| {
            pipeline.add_first("authenticate", Authenticate { tokens: Arc::clone(&tokens) });
        })
        .build()?
        .bind("127.0.0.1:0")
        .await?;
    let (address, handle) = (server.local_addr(), server.handle());
    let serving = tokio::spawn(server.serve());

    for token in ["sesame", "open", "guess"] {
        let note: NoteClient = Client::builder(address).interceptor(Token(token)).build().service();
        match note.write("buy milk".to_owned()).await {
            Ok(()) => println!("{token}: written"),
            Err(error) => println!("{token}: {error}"),
        }
        match note.read().await {
            Ok(text) => println!("{token}: {text}"),
            Err(error) => println!("{token}: {error}"),
        }
    }

    handle.shutdown();
    serving.await?;
    Ok(())
}
