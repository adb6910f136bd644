//! `#[sluicegate::service]`: from a trait to a server and a client. Users reach it as
//! `sluicegate::service`; what it writes names only the facade.
//!
//! ```text
//! tokens -> model.rs (syntax -> data, every error) -> expand.rs (data -> code)
//! ```
#![forbid(unsafe_code)]

mod attrs;
mod domain_error;
mod errors;
mod expand;
mod facade;
mod items;
mod limits;
mod model;
mod options;
mod wire_type;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{FnArg, ItemTrait, TraitItem, parse_quote};

use crate::model::Service;

/// Makes a service of a trait: something to implement, a server and a client.
///
/// ```
/// # use std::{collections::BTreeMap, time::Duration};
/// # use serde::{Deserialize, Serialize};
/// # use sluicegate::{CallError, Client, Server, Status, server::BuildError};
/// # #[derive(Clone, Serialize, Deserialize)]
/// # pub struct Book;
/// /// The books of a library.
/// #[sluicegate::service]
/// pub trait Library {
///     /// Finds a book.
///     async fn get_book(&self, isbn: String) -> Result<Book, Status>;
///
///     /// How many books there are.
///     async fn count(&self) -> u64;
/// }
///
/// struct Shelf(BTreeMap<String, Book>);
///
/// impl Library for Shelf {
///     async fn get_book(&self, isbn: String) -> Result<Book, Status> {
///         self.0.get(&isbn).cloned().ok_or_else(|| Status::not_found("no such book"))
///     }
///
///     async fn count(&self) -> u64 {
///         self.0.len() as u64
///     }
/// }
///
/// # fn serve(shelf: Shelf) -> Result<Server, BuildError> {
/// let server = Server::builder().service(LibraryServer::new(shelf)).build()?;
/// # Ok(server)
/// # }
/// # async fn call(client: Client, isbn: String, t: Duration) -> Result<Book, CallError> {
/// let library: LibraryClient = client.service();
/// let book = library.get_book(isbn).timeout(t).await?;
/// # Ok(book)
/// # }
/// ```
///
/// # What is written
///
/// - **The trait**, with its docs and attributes and the bounds `Send + Sync + 'static`. Its methods
///   return `impl Future + Send`, so that implementations write `async fn` and nothing is boxed; those
///   that block stay as they are.
/// - **`LibraryServer<S>`**, a `sluicegate::server::Service` of any implementation `S`: made by
///   `LibraryServer::new(service)` or `LibraryServer::from_arc(arc)`.
/// - **`LibraryClient`**, a `sluicegate::client::ServiceClient` with one function per method, each
///   with the docs, `cfg`, `deprecated`, `must_use` and lint levels of the method. It has no other
///   functions of its own, so a method may be called `new`, `call` or `connect`.
///
/// It has docs wherever the trait has, and no warning of rustc's or clippy's, whatever is denied or forbidden around it and
/// whether it is used or not; but a service with something `#[deprecated]` is an error under `forbid(deprecated)`, and has a warning
/// under `forbid(warnings)`.
///
/// # Methods
///
/// A method is an `async fn`, or a plain `fn` if it blocks, that takes `&self` and at most 16 arguments, each owned and with a name.
/// Arguments travel as a tuple in the codec of the call, so they are `Deserialize` for the server and
/// `Serialize` for the client; the value that is returned the other way round.
///
/// - It returns `Result<T, E>` for any `E: Into<Status>`, an alias `Result<T>`, a plain `T`, or
///   nothing. The client gets `T`.
/// - If the type of its first argument is called `Context`, the method is given the context of the
///   call there. The client's function does not have that argument.
/// - If it takes one argument called `Bytes` and returns `Bytes` or a `Result` of it, both are the
///   body as it is, and no codec touches them.
/// - `#[cfg(..)]` on a method holds for everything that is written for it, and on an argument it
///   decides whether the argument is there: for the trait, the client and the wire. Both ends have to
///   agree about it.
///
/// # Methods with items
///
/// What is called `Streaming`, `ItemSender` or `Stream` says which ways items go. What stands for items comes
/// behind the arguments, and is not on the wire itself.
///
/// | the method has | items go | the client's function returns |
/// |---|---|---|
/// | `-> Result<impl Stream<Item = Result<T, E>>, E>` | from the server | `ServerStream<(..), T>`, a stream |
/// | `items: ItemSender<T>` and `-> Result<(), E>` | from the server | the same |
/// | `items: Streaming<T>` and `-> Result<R, E>` | from the client | `ClientStream<(..), T, R>`, which takes a stream or gives a sink |
/// | `Streaming<T>`, and a stream or an `ItemSender` of `U` | both ways | `BothWays<(..), T, U>` |
///
/// A returned stream may borrow from the service, and must be `Send`; that need not be written. `BoxStream` is taken for one as well.
/// The errors are any `Into<Status>`. Items called `Bytes`, and replies to a client's items, travel as they are.
///
/// The macro goes by the last name of a type's path, for it sees no types: an alias of `Context` is
/// an ordinary argument.
///
/// # Options
///
/// `#[sluicegate::service(..)]` takes
///
/// - `package = "acme.v1"`: the service is `acme.v1.Library` on the wire instead of `Library`,
/// - `name = "Books"`: its name on the wire instead of that of the trait,
/// - `server = "BookServer"`, `client = "BookClient"`: the names of what is written,
/// - `crate = "::my_rpc"`: the path of the facade. Without it, it is found by the name that the
///   `Cargo.toml` of the trait's crate gives to `sluicegate`; so it is only needed where that names
///   none, such as behind another crate that passes it on,
/// - `max_concurrent_calls`, `weight` and `pool`, as below: what each method has that has none of its own.
///   A maximum of 8 is 8 calls of each method, not of all together.
///
/// `#[rpc(..)]` on a method takes
///
/// - `name = "find"`: its name on the wire,
/// - `alias = "search"`, any number of times: a name on the wire by which the server takes calls as
///   well, so that a method can be renamed without breaking its callers. A whole path, as in
///   `alias = "acme.v1.Shelf/find"`, is for a method that has moved from another service,
/// - `spawn`: every call runs in a task of its own instead of being polled first in the task of its
///   connection, for methods that compute for long,
/// - `blocking`: the method is a plain `fn` and may block its thread: file systems, databases without
///   an asynchronous interface, computations of seconds. Every call runs on tokio's blocking pool,
///   within a limit of its own (`ServerBuilder::max_blocking_calls`). Arguments are decoded and the
///   reply is encoded there, too. The client's function is the same as for an `async fn`,
/// - `max_concurrent_calls = 8`: so many calls of the method are in flight at most, in the whole server,
/// - `weight = 4`: a call counts as four in all other limits of calls in flight, and in rates,
/// - `pool = "reports"`: calls count in the limit that the server has under this name as well
///   (`ServerBuilder::pool`).
///
/// The configuration of the server can say otherwise, see `MethodLimits`. A client does not look at limits.
///
/// A blocking method cannot be stopped. If the caller gives up, the deadline passes or the connection
/// is lost before it has begun, it does not begin; afterwards `Context::is_cancelled` says so, and
/// the call keeps its place in the limits until the method has returned.
#[proc_macro_attribute]
pub fn service(args: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = TokenStream::from(item);
    match Service::parse(args.into(), item.clone()) {
        Ok(service) => expand::service(&service),
        Err(error) => refused(&error, item),
    }
    .into()
}

/// Makes an error type a `sluicegate::DomainError`, which converts into a `Status` with `?`.
///
/// ```
/// # use std::{fmt, io, time::Duration};
/// # use sluicegate::{Status, StatusCode};
/// #[derive(Debug, sluicegate::DomainError)]
/// #[rpc(domain = "library.example")]
/// enum LibraryError {
///     #[rpc(code = NotFound)]
///     NoSuchBook {
///         #[rpc(metadata)]
///         isbn: String,
///     },
///     #[rpc(code = Unavailable, reason = "DESK_BUSY")]
///     Busy {
///         #[rpc(retry_delay)]
///         come_back_in: Duration,
///         cause: io::Error,
///     },
/// }
/// #
/// # impl fmt::Display for LibraryError {
/// #     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
/// #         f.write_str("it went wrong")
/// #     }
/// # }
/// #
/// # impl std::error::Error for LibraryError {}
///
/// fn find(isbn: String) -> Result<(), Status> {
///     Err(LibraryError::NoSuchBook { isbn })?
/// }
///
/// let status = find("9780131103627".to_owned()).unwrap_err();
/// assert_eq!(status.code(), StatusCode::NotFound);
/// assert!(status.has_reason("library.example", "NO_SUCH_BOOK"));
/// # let busy = LibraryError::Busy { come_back_in: Duration::from_secs(1), cause: io::ErrorKind::Other.into() };
/// # let LibraryError::Busy { cause, .. } = &busy else { panic!() };
/// # assert_eq!(cause.kind(), io::ErrorKind::Other);
/// # assert_eq!(Status::from(busy).retry_delay(), Some(Duration::from_secs(1)));
/// ```
///
/// The message is what the error displays; how, is its own business, or that of a crate such as
/// `thiserror`. Nothing else of it leaves the process but what is marked:
///
/// - on the type: `domain = ".."`, who defines the reasons; and `crate = "::my_rpc"`, as for
///   `#[sluicegate::service]`;
/// - on a variant, or on a struct: `code = NotFound`, one of `sluicegate::StatusCode`; and
///   `reason = ".."`, which is otherwise the name in upper snake case, as `NO_SUCH_BOOK`;
/// - on a field: `metadata`, or `metadata = "key"`, whose text is told under its name or that key; and
///   `retry_delay` on a `Duration` or an `Option` of one, which tells the caller when to come back.
#[proc_macro_derive(DomainError, attributes(rpc))]
pub fn domain_error(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(item as syn::DeriveInput);
    domain_error::derive(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// The errors, and the trait as far as the compiler takes it, so that neither it nor its
/// implementations add errors to those.
fn refused(error: &syn::Error, item: TokenStream) -> TokenStream {
    let error = error.to_compile_error();
    let Ok(mut item) = syn::parse2::<ItemTrait>(item.clone()) else { return quote!(#error #item) };
    item.items.retain(|item| !matches!(item, TraitItem::Macro(_) | TraitItem::Verbatim(_)));
    item.modifiers.auto_token = None;
    // `Self` may be among its errors.
    item.ident = expand::defined(&item.ident);
    item.colon_token.get_or_insert_default();
    item.supertraits.push(parse_quote!(::core::marker::Sized));
    for item in &mut item.items {
        let TraitItem::Fn(method) = item else { continue };
        method.attrs.retain(|attr| !attrs::is_rpc(attr));
        method.sig.constness = None;
        method.sig.variadic = None;
        for input in &mut method.sig.inputs {
            if let FnArg::Typed(argument) = input {
                *argument.pat = parse_quote!(_);
                argument.attrs.retain(|attr| attr.path().is_ident("cfg"));
            }
        }
    }
    quote! {
        #error
        #[allow(async_fn_in_trait)]
        #item
    }
}
