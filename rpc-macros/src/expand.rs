//! Data to code: the trait, its server and its client.
//!
//! What is written may stand next to anything: every path starts at the root, traits are named where
//! they are used, and locals are of the macro's own hygiene and start with `__sg_`. Docs are written
//! rather than `missing_docs` allowed, for an `allow` is an error under a `forbid`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote_spanned};
use syn::{Path, Type, ext::IdentExt, spanned::Spanned};

use crate::{
    attrs,
    items::{self, Role},
    model::{Argument, Method, Service},
    wire_type,
};

/// As `quote!`, with the hygiene of the macro.
macro_rules! code {
    ($($tokens:tt)*) => { quote_spanned!(Span::mixed_site()=> $($tokens)*) };
}

/// The trait, and what this build of the macro is to write beside it.
pub(crate) fn service(service: &Service) -> TokenStream {
    let mut code = service_trait(service);
    if cfg!(feature = "server") {
        code.extend(server(service));
    }
    if cfg!(feature = "client") {
        code.extend(client(service));
    }
    code
}

fn service_trait(service: &Service) -> TokenStream {
    let Service { attrs, vis, ident, supertraits, .. } = service;
    let supertraits = supertraits.iter();
    let methods = service.methods.iter().map(|method| {
        let Method { attrs, ident, receiver, output, spans, blocking, .. } = method;
        let items = method.items.parameters.iter().map(|parameter| &parameter.argument);
        let arguments = method.context.iter().chain(&method.arguments).chain(items).map(declare);
        if *blocking {
            return code! {
                #(#attrs)*
                fn #ident(#receiver #(, #arguments)*) -> #output;
            };
        }
        // An implementation whose future is not `Send` is told so at this method.
        let future = quote_spanned!(at(spans.future)=> ::core::future::Future);
        let send = quote_spanned!(at(spans.future)=> ::core::marker::Send);
        let output = if method.items.returned { items::sendable(output) } else { output.clone() };
        code! {
            #(#attrs)*
            fn #ident(#receiver #(, #arguments)*) -> impl #future<Output = #output> + #send;
        }
    });
    let ident = defined(ident);
    code! {
        #(#attrs)*
        #vis trait #ident: #(#supertraits +)* ::core::marker::Send + ::core::marker::Sync + 'static {
            #(#methods)*
        }
    }
}

fn server(service: &Service) -> TokenStream {
    let Service { facade, attrs, vis, ident, server, parameter, wire_name, .. } = service;
    let doc = format!("Serves {}, as `{wire_name}` on the wire.", link(ident));
    let conditions = attrs::conditions(attrs);
    let (of_impl, allow_deprecated) = (attrs::of_impl(attrs), attrs::allow_deprecated(attrs));
    let methods = service.methods.iter().map(|method| registration(service, method));
    let debug_name = server.unraw().to_string();
    let limits = service_limits(service);
    let definition = defined(server);
    code! {
        #conditions
        #[doc = #doc]
        #vis struct #definition<#parameter> {
            service: ::std::sync::Arc<#parameter>,
        }

        #of_impl
        #allow_deprecated
        impl<#parameter: #ident> #server<#parameter> {
            /// Serves `service`. One that is in an `Arc` already goes to [`Self::from_arc`].
            #[must_use]
            #vis fn new(service: #parameter) -> Self {
                Self::from_arc(::std::sync::Arc::new(service))
            }

            /// Serves a service that is used elsewhere too.
            #[must_use]
            #vis fn from_arc(service: ::std::sync::Arc<#parameter>) -> Self {
                Self { service }
            }
        }

        #conditions
        impl<#parameter> ::core::clone::Clone for #server<#parameter> {
            fn clone(&self) -> Self {
                Self { service: ::core::clone::Clone::clone(&self.service) }
            }
        }

        #conditions
        impl<#parameter> ::core::fmt::Debug for #server<#parameter> {
            fn fmt(&self, formatter: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::DebugStruct::finish_non_exhaustive(&mut ::core::fmt::Formatter::debug_struct(
                    formatter,
                    #debug_name,
                ))
            }
        }

        #of_impl
        #allow_deprecated
        impl<#parameter: #ident> #facade::server::Service for #server<#parameter> {
            fn name(&self) -> &str {
                #wire_name
            }

            fn register(self, __sg_methods: &mut #facade::server::ServiceMethods<'_>) {
                #limits
                #(#methods)*
                // There may be none.
                let _ = __sg_methods;
            }
        }
    }
}

/// The statement that sets what limits each method has by default, if any are set.
fn service_limits(service: &Service) -> Option<TokenStream> {
    let Service { facade, limits, .. } = service;
    (!limits.is_empty()).then(|| {
        let limits = limits.setters();
        code!(#facade::server::ServiceMethods::limits(__sg_methods, #facade::server::MethodLimits::new() #limits);)
    })
}

/// The statement that gives one method to a server.
fn registration(service: &Service, method: &Method) -> TokenStream {
    let (facade, parameter, service_ident) = (&service.facade, &service.parameter, &service.ident);
    let Method { attrs, ident, wire_name, value, spans, .. } = method;
    let (conditions, allow_deprecated) = (attrs::conditions(attrs), attrs::allow_deprecated(attrs));
    let names: Vec<_> =
        (0..method.arguments.len()).map(|n| format_ident!("__sg_{n}", span = Span::mixed_site())).collect();

    let (context, clone_context, pass_context) = match &method.context {
        None => (code!(_), TokenStream::new(), TokenStream::new()),
        Some(Argument { ty, .. }) => {
            let clone = quote_spanned!(at(ty.span())=> ::core::clone::Clone::clone(__sg_context));
            (code!(__sg_context), code!(let __sg_context = #clone;), quote_spanned!(at(ty.span())=> __sg_context,))
        }
    };
    let wait = (!method.blocking).then(|| code!(.await));
    let passed = method.items.parameters.iter().map(|parameter| match parameter.role {
        Role::Received => code!(__sg_items),
        Role::Sender => code!(#facade::server::Outlet::into_sender(__sg_outlet)),
    });
    let passed = names.iter().map(|name| code!(#name)).chain(passed);
    let reply = code!(<#parameter as #service_ident>::#ident(&__sg_service, #pass_context #(#passed),*) #wait);
    let reply = match method.failure {
        None => code!(::core::result::Result::Ok(#reply)),
        Some(failure) => {
            quote_spanned!(at(failure)=> ::core::result::Result::map_err(#reply, ::core::convert::Into::into))
        }
    };
    let reply = match method.items.returned {
        false => reply,
        true => code! {
            match #reply {
                ::core::result::Result::Ok(__sg_stream) => #facade::server::Outlet::send_all(__sg_outlet, __sg_stream).await,
                ::core::result::Result::Err(__sg_status) => ::core::result::Result::Err(__sg_status),
            }
        },
    };
    let options = options(facade, method);
    let body = if method.untouched { code!(#(#names)*) } else { tuple(spans.arguments, &names) };
    let arguments = argument_types(method);
    let module = code!(#facade::server);
    let typed = |item: &Type| {
        let form = items::form(item, &module);
        code!(#item, #form)
    };
    let (received, sent) = (method.items.received.as_ref().map(typed), method.items.sent.as_ref().map(typed));
    let body = match (&received, &sent) {
        (None, None) => body,
        (Some(_), None) => code!((#body, __sg_items)),
        (None, Some(_)) => code!((#body, __sg_outlet)),
        (Some(_), Some(_)) => code!((#body, __sg_items, __sg_outlet)),
    };
    let streaming = match (received, sent) {
        (None, None) => None,
        (Some(received), None) => {
            let reply = typed(value);
            Some(code!(client_stream::<#arguments, #received, #reply, _, _>))
        }
        (None, Some(sent)) => Some(code!(server_stream::<#arguments, #sent, _, _>)),
        (Some(received), Some(sent)) => Some(code!(both_ways::<#arguments, #received, #sent, _, _>)),
    };
    let function = match (method.blocking, method.untouched) {
        _ if streaming.is_some() => code!(#streaming),
        (false, true) => code!(unary_bytes),
        (false, false) => code!(unary::<#arguments, #value, _, _>),
        (true, true) => code!(blocking_bytes),
        (true, false) => code!(blocking::<#arguments, #value, _>),
    };
    let handler = match method.blocking {
        true => code!(#clone_context #reply),
        false => code! {
            let __sg_service = ::core::clone::Clone::clone(&__sg_service);
            #clone_context
            async move { #reply }
        },
    };
    code! {
        #conditions
        #allow_deprecated
        {
            let __sg_service = ::core::clone::Clone::clone(&self.service);
            #facade::server::ServiceMethods::#function(__sg_methods, #wire_name, #options, move |#context, #body| {
                #handler
            });
        }
    }
}

/// How the method is run, what else it is called, and what a description says of it.
fn options(facade: &Path, method: &Method) -> TokenStream {
    let arguments = method.arguments.iter().map(|Argument { ident, ty, .. }| {
        let (name, ty) = (ident.unraw().to_string(), name_of(ty));
        code!((#name, #ty))
    });
    // What is returned with a stream is the stream itself.
    let returns = if method.items.returned { "()".to_owned() } else { name_of(&method.value) };
    let items = method.items.any().then(|| {
        let of = |item: &Option<Type>| item.as_ref().map_or_else(String::new, name_of);
        let (received, sent) = (of(&method.items.received), of(&method.items.sent));
        code!(.items(#received, #sent))
    });
    let limits = method.limits.setters();
    let spawn = method.spawn.then(|| code!(.spawn(true)));
    let aliases = (!method.aliases.is_empty()).then(|| {
        let aliases = &method.aliases;
        code!(.aliases(&[#(#aliases),*]))
    });
    code!(#facade::server::MethodOptions::new().signature(&[#(#arguments),*], #returns) #items #spawn #aliases #limits)
}

/// A type as people write it.
fn name_of(ty: &Type) -> String {
    let mut name = ty.to_token_stream().to_string();
    for (spaced, tight) in
        [(" :: ", "::"), (":: ", "::"), (" < ", "<"), ("< ", "<"), (" >", ">"), (" ,", ","), (" ;", ";"), ("& ", "&")]
    {
        name = name.replace(spaced, tight);
    }
    name
}

fn client(service: &Service) -> TokenStream {
    let Service { facade, attrs, vis, ident, client, .. } = service;
    let doc = format!("Calls {}, wherever it is served. `Client::service` makes it.", link(ident));
    let (of_type, of_impl, conditions) = (attrs::of_type(attrs), attrs::of_impl(attrs), attrs::conditions(attrs));
    let allow_deprecated = attrs::allow_deprecated(attrs);
    let parting = attrs::has_docs(attrs).then(|| code!(#[doc = ""]));
    let methods = service.methods.iter().map(|method| function(service, method));
    let definition = defined(client);
    code! {
        #[doc = #doc]
        #parting
        #of_type
        #[derive(::core::clone::Clone, ::core::fmt::Debug)]
        #vis struct #definition {
            client: #facade::Client,
        }

        #conditions
        #allow_deprecated
        impl #facade::client::ServiceClient for #client {
            fn from_client(client: #facade::Client) -> Self {
                Self { client }
            }
        }

        #of_impl
        #allow_deprecated
        impl #client {
            #(#methods)*
        }
    }
}

/// The client's function for one method.
fn function(service: &Service, method: &Method) -> TokenStream {
    let Service { facade, vis, wire_name: service_name, .. } = service;
    let Method { wire_name, value, spans, .. } = method;
    let ident = defined(&method.ident);
    let attrs = attrs::of_function(&method.attrs);
    let doc = (!attrs::has_docs(&method.attrs)).then(|| {
        let doc = format!("Calls `{service_name}/{wire_name}`.");
        code!(#[doc = #doc])
    });
    let names: Vec<_> = method.arguments.iter().map(|argument| &argument.ident).collect();
    let declared = method.arguments.iter().map(declare);
    let unit = (method.items.go_one_by_one() && !wire_type::is_unit(value)).then(|| only_unit(value));
    let (call, returned, body) = match method.untouched {
        _ if method.items.any() => {
            let (call, returned) = streaming(service, method);
            (call, returned, tuple(spans.arguments, &names))
        }
        true => (
            code!(call_bytes),
            code!(#facade::client::Call<#facade::Bytes, #facade::Bytes, #facade::client::Untouched>),
            code!(#(#names)*),
        ),
        false => {
            let arguments = argument_types(method);
            (code!(call), code!(#facade::client::Call<#arguments, #value>), tuple(spans.arguments, &names))
        }
    };
    code! {
        #doc
        #attrs
        #vis fn #ident(&self #(, #declared)*) -> #returned {
            #unit
            #facade::Client::#call(
                &self.client,
                const { #facade::client::Method::new(#service_name, #wire_name) },
                #body,
            )
        }
    }
}

/// Has the compiler see to it that a type is another name of `()`.
fn only_unit(value: &Type) -> TokenStream {
    quote_spanned!(at(value.span())=> const _: fn(#value) -> () = |value| value;)
}

/// The client's function that makes a call with items, and its type.
fn streaming(service: &Service, method: &Method) -> (TokenStream, TokenStream) {
    let (facade, arguments, value) = (&service.facade, argument_types(method), &method.value);
    let module = code!(#facade::client);
    let form = |item: &Type| items::form(item, &module);
    match (&method.items.received, &method.items.sent) {
        (Some(received), Some(sent)) => {
            let (up, down) = (form(received), form(sent));
            (code!(both_ways), code!(#module::BothWays<#arguments, #received, #sent, #up, #down>))
        }
        (Some(received), None) => {
            let (up, down) = (form(received), form(value));
            (code!(client_stream), code!(#module::ClientStream<#arguments, #received, #value, #up, #down>))
        }
        (None, None) => unreachable!("it is asked of methods with items"),
        (None, Some(sent)) => {
            let down = form(sent);
            (code!(server_stream), code!(#module::ServerStream<#arguments, #sent, #down>))
        }
    }
}

fn declare(argument: &Argument) -> TokenStream {
    let Argument { ident, ty, .. } = argument;
    code!(#ident: #ty)
}

fn argument_types(method: &Method) -> TokenStream {
    let types: Vec<&Type> = method.arguments.iter().map(|argument| &argument.ty).collect();
    tuple(method.spans.arguments, &types)
}

/// A tuple whose errors are told at `span`.
fn tuple(span: Span, items: &[impl quote::ToTokens]) -> TokenStream {
    quote_spanned!(at(span)=> (#(#items,)*))
}

/// The hygiene of the macro, at a place in the user's code.
fn at(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}

/// The name where it is defined. It is the macro's and stands in the user's code: the compiler does not say of it that nobody
/// uses it, and needs no `allow` for that, which would be an error under a `forbid`.
pub(crate) fn defined(ident: &Ident) -> Ident {
    let mut ident = ident.clone();
    ident.set_span(at(ident.span()));
    ident
}

/// A link of rustdoc, which knows no raw names.
fn link(ident: &Ident) -> String {
    let name = ident.unraw();
    if name == *ident { format!("[`{name}`]") } else { format!("`{name}`") }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn library() -> Service {
        let item = quote! {
            /// The books.
            pub trait Library: Described {
                /// Finds a book.
                async fn get_book(&self, isbn: String) -> Result<Book, NoSuchBook>;
                #[cfg(feature = "search")]
                #[rpc(name = "find", spawn, alias = "look")]
                async fn search(&self, ctx: Context, text: String, limit: u32) -> S;
                #[deprecated]
                async fn scan(&self, page: Bytes) -> Result<Bytes>;
                #[rpc(blocking)]
                fn index(&self, ctx: Context, depth: u8) -> Result<u64, Status>;
            }
        };
        parsed(item)
    }

    fn feed() -> Service {
        parsed(quote! {
            pub trait Feed {
                async fn news(&self, topic: String) -> Result<impl Stream<Item = Result<Story, Status>>, Status>;
                async fn read(&self, name: String, out: ItemSender<Bytes>) -> Result<(), Status>;
                async fn sum(&self, numbers: Streaming<u64>) -> Result<u64, Status>;
                async fn chat(&self, lines: Streaming<String>) -> BoxStream<'static, Result<String, Status>>;
            }
        })
    }

    fn parsed(item: TokenStream) -> Service {
        Service::parse(quote!(package = "acme.v1", client = "Reader"), item).unwrap_or_else(|error| panic!("{error}"))
    }

    fn assert_same(written: &TokenStream, expected: &TokenStream) {
        // One piece per line, so that a difference is found; `>>` may be one token or two.
        let lines = |code: &TokenStream| code.to_string().replace(['{', ';'], "\n").replace("> >", ">>");
        assert_eq!(lines(written), lines(expected));
    }

    #[test]
    fn the_trait_has_futures_that_can_be_sent() {
        let expected = quote! {
            /// The books.
            pub trait Library: Described + ::core::marker::Send + ::core::marker::Sync + 'static {
                /// Finds a book.
                fn get_book(&self, isbn: String)
                    -> impl ::core::future::Future<Output = Result<Book, NoSuchBook>> + ::core::marker::Send;
                #[cfg(feature = "search")]
                fn search(&self, ctx: Context, text: String, limit: u32)
                    -> impl ::core::future::Future<Output = S> + ::core::marker::Send;
                #[deprecated]
                fn scan(&self, page: Bytes)
                    -> impl ::core::future::Future<Output = Result<Bytes>> + ::core::marker::Send;
                fn index(&self, ctx: Context, depth: u8) -> Result<u64, Status>;
            }
        };
        assert_same(&service_trait(&library()), &expected);
    }

    #[test]
    fn the_server_gives_every_method_to_the_registry() {
        let library = library();
        let [get_book, search, scan, index] = &library.methods[..] else { panic!("four methods") };
        let expected = quote! {
            {
                let __sg_service = ::core::clone::Clone::clone(&self.service);
                ::sluicegate::server::ServiceMethods::unary::<(String,), Book, _, _>(
                    __sg_methods,
                    "get_book",
                    ::sluicegate::server::MethodOptions::new().signature(&[("isbn", "String")], "Book"),
                    move |_, (__sg_0,)| {
                        let __sg_service = ::core::clone::Clone::clone(&__sg_service);
                        async move {
                            ::core::result::Result::map_err(
                                <S1 as Library>::get_book(&__sg_service, __sg_0).await,
                                ::core::convert::Into::into
                            )
                        }
                    }
                );
            }
        };
        assert_same(&registration(&library, get_book), &expected);

        let expected = quote! {
            #[cfg(feature = "search")]
            {
                let __sg_service = ::core::clone::Clone::clone(&self.service);
                ::sluicegate::server::ServiceMethods::unary::<(String, u32,), S, _, _>(
                    __sg_methods,
                    "find",
                    ::sluicegate::server::MethodOptions::new()
                        .signature(&[("text", "String"), ("limit", "u32")], "S")
                        .spawn(true)
                        .aliases(&["look"]),
                    move |__sg_context, (__sg_0, __sg_1,)| {
                        let __sg_service = ::core::clone::Clone::clone(&__sg_service);
                        let __sg_context = ::core::clone::Clone::clone(__sg_context);
                        async move {
                            ::core::result::Result::Ok(
                                <S1 as Library>::search(&__sg_service, __sg_context, __sg_0, __sg_1).await
                            )
                        }
                    }
                );
            }
        };
        assert_same(&registration(&library, search), &expected);

        let expected = quote! {
            #[allow(deprecated)]
            {
                let __sg_service = ::core::clone::Clone::clone(&self.service);
                ::sluicegate::server::ServiceMethods::unary_bytes(
                    __sg_methods,
                    "scan",
                    ::sluicegate::server::MethodOptions::new().signature(&[("page", "Bytes")], "Bytes"),
                    move |_, __sg_0| {
                        let __sg_service = ::core::clone::Clone::clone(&__sg_service);
                        async move {
                            ::core::result::Result::map_err(
                                <S1 as Library>::scan(&__sg_service, __sg_0).await,
                                ::core::convert::Into::into
                            )
                        }
                    }
                );
            }
        };
        assert_same(&registration(&library, scan), &expected);

        let expected = quote! {
            {
                let __sg_service = ::core::clone::Clone::clone(&self.service);
                ::sluicegate::server::ServiceMethods::blocking::<(u8,), u64, _>(
                    __sg_methods,
                    "index",
                    ::sluicegate::server::MethodOptions::new().signature(&[("depth", "u8")], "u64"),
                    move |__sg_context, (__sg_0,)| {
                        let __sg_context = ::core::clone::Clone::clone(__sg_context);
                        ::core::result::Result::map_err(
                            <S1 as Library>::index(&__sg_service, __sg_context, __sg_0),
                            ::core::convert::Into::into
                        )
                    }
                );
            }
        };
        assert_same(&registration(&library, index), &expected);
    }

    #[test]
    fn the_client_has_a_function_for_every_method() {
        let expected = quote! {
            #[doc = "Calls [`Library`], wherever it is served. `Client::service` makes it."]
            #[doc = ""]
            /// The books.
            #[derive(::core::clone::Clone, ::core::fmt::Debug)]
            pub struct Reader {
                client: ::sluicegate::Client,
            }

            impl ::sluicegate::client::ServiceClient for Reader {
                fn from_client(client: ::sluicegate::Client) -> Self {
                    Self { client }
                }
            }

            impl Reader {
                /// Finds a book.
                pub fn get_book(&self, isbn: String) -> ::sluicegate::client::Call<(String,), Book> {
                    ::sluicegate::Client::call(
                        &self.client,
                        const { ::sluicegate::client::Method::new("acme.v1.Library", "get_book") },
                        (isbn,),
                    )
                }

                #[doc = "Calls `acme.v1.Library/find`."]
                #[cfg(feature = "search")]
                pub fn search(&self, text: String, limit: u32) -> ::sluicegate::client::Call<(String, u32,), S> {
                    ::sluicegate::Client::call(
                        &self.client,
                        const { ::sluicegate::client::Method::new("acme.v1.Library", "find") },
                        (text, limit,),
                    )
                }

                #[doc = "Calls `acme.v1.Library/scan`."]
                #[deprecated]
                pub fn scan(&self, page: Bytes) -> ::sluicegate::client::Call<
                    ::sluicegate::Bytes,
                    ::sluicegate::Bytes,
                    ::sluicegate::client::Untouched
                > {
                    ::sluicegate::Client::call_bytes(
                        &self.client,
                        const { ::sluicegate::client::Method::new("acme.v1.Library", "scan") },
                        page,
                    )
                }

                #[doc = "Calls `acme.v1.Library/index`."]
                pub fn index(&self, depth: u8) -> ::sluicegate::client::Call<(u8,), u64> {
                    ::sluicegate::Client::call(
                        &self.client,
                        const { ::sluicegate::client::Method::new("acme.v1.Library", "index") },
                        (depth,),
                    )
                }
            }
        };
        assert_same(&client(&library()), &expected);
    }

    #[test]
    fn methods_with_items_are_futures_that_end_with_their_streams() {
        let feed = feed();
        let [news, read, sum, chat] = &feed.methods[..] else { panic!("four methods") };
        let wrapped = |call: TokenStream| {
            quote! {
                {
                    let __sg_service = ::core::clone::Clone::clone(&self.service);
                    #call
                }
            }
        };
        let expected = wrapped(quote! {
            ::sluicegate::server::ServiceMethods::server_stream::<(String,), Story, ::sluicegate::server::Coded, _, _>(
                __sg_methods,
                "news",
                ::sluicegate::server::MethodOptions::new().signature(&[("topic", "String")], "()").items("", "Story"),
                move |_, ((__sg_0,), __sg_outlet)| {
                    let __sg_service = ::core::clone::Clone::clone(&__sg_service);
                    async move {
                        match ::core::result::Result::map_err(
                            <S as Feed>::news(&__sg_service, __sg_0).await,
                            ::core::convert::Into::into
                        ) {
                            ::core::result::Result::Ok(__sg_stream) =>
                                ::sluicegate::server::Outlet::send_all(__sg_outlet, __sg_stream).await,
                            ::core::result::Result::Err(__sg_status) => ::core::result::Result::Err(__sg_status),
                        }
                    }
                }
            );
        });
        assert_same(&registration(&feed, news), &expected);
        let expected = wrapped(quote! {
            ::sluicegate::server::ServiceMethods::server_stream::<(String,), Bytes, ::sluicegate::server::Plain, _, _>(
                __sg_methods,
                "read",
                ::sluicegate::server::MethodOptions::new().signature(&[("name", "String")], "()").items("", "Bytes"),
                move |_, ((__sg_0,), __sg_outlet)| {
                    let __sg_service = ::core::clone::Clone::clone(&__sg_service);
                    async move {
                        ::core::result::Result::map_err(
                            <S as Feed>::read(
                                &__sg_service, __sg_0, ::sluicegate::server::Outlet::into_sender(__sg_outlet)
                            ).await,
                            ::core::convert::Into::into
                        )
                    }
                }
            );
        });
        assert_same(&registration(&feed, read), &expected);
        let sum = registration(&feed, sum).to_string();
        assert!(sum.contains("client_stream"), "{sum}");
        let chat = registration(&feed, chat).to_string();
        assert!(chat.contains("both_ways"), "{chat}");
        let client = client(&feed).to_string().replace(' ', "");
        for returned in [
            "ServerStream<(String,),Story,::sluicegate::client::Coded>",
            "ServerStream<(String,),Bytes,::sluicegate::client::Plain>",
            "ClientStream<(),u64,u64,::sluicegate::client::Coded,::sluicegate::client::Coded>",
            "BothWays<(),String,String,::sluicegate::client::Coded,::sluicegate::client::Coded>",
        ] {
            assert!(client.contains(returned), "no {returned} in {client}");
        }
    }

    #[test]
    fn a_name_of_what_is_beside_items_is_left_to_the_compiler() {
        for (value, written) in [(quote!(Done), "const_:fn(Done)->()="), (quote!(()), ""), (quote!((())), "")] {
            let service = parsed(quote! {
                trait Feed {
                    async fn read(&self, out: ItemSender<u8>) -> Result<#value, Status>;
                }
            });
            let client = client(&service).to_string().replace(' ', "");
            assert_eq!(client.contains("const_:"), !written.is_empty(), "{client}");
            assert!(client.contains(written), "{client}");
        }
    }

    #[test]
    fn a_returned_stream_can_be_sent_whether_it_says_so_or_not() {
        let written = service_trait(&feed()).to_string().replace(' ', "");
        let stream = "implStream<Item=Result<Story,Status>>+::core::marker::Send";
        assert!(written.contains(stream), "{written}");
    }

    #[test]
    fn what_is_written_is_rust() {
        for service in [library(), feed()] {
            for code in [service_trait(&service), server(&service), client(&service)] {
                syn::parse2::<syn::File>(code).expect("items");
            }
        }
    }

    /// The whole of it as people read it, kept in a file that a test of the facade compiles.
    /// `EXPANSION=overwrite` writes the file anew.
    #[test]
    fn the_expansion_is_the_one_that_is_kept() {
        let library = library();
        let code = [service_trait(&library), server(&library), client(&library)];
        let file = syn::parse2::<syn::File>(code.into_iter().collect()).expect("items");
        let written = prettyplease::unparse(&file);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/expansion/library.rs");
        if std::env::var_os("EXPANSION").is_some_and(|value| value == "overwrite") {
            std::fs::write(path, &written).expect("the file can be written");
        }
        let kept = std::fs::read_to_string(path).expect("the file can be read");
        assert_eq!(written, kept, "EXPANSION=overwrite cargo test -p rpc-macros keeps what is written now");
    }
}
