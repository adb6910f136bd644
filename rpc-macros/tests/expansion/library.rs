/// The books.
pub trait Library: Described + ::core::marker::Send + ::core::marker::Sync + 'static {
    /// Finds a book.
    fn get_book(
        &self,
        isbn: String,
    ) -> impl ::core::future::Future<
        Output = Result<Book, NoSuchBook>,
    > + ::core::marker::Send;
    #[cfg(feature = "search")]
    fn search(
        &self,
        ctx: Context,
        text: String,
        limit: u32,
    ) -> impl ::core::future::Future<Output = S> + ::core::marker::Send;
    #[deprecated]
    fn scan(
        &self,
        page: Bytes,
    ) -> impl ::core::future::Future<Output = Result<Bytes>> + ::core::marker::Send;
    fn index(&self, ctx: Context, depth: u8) -> Result<u64, Status>;
}
///Serves [`Library`], as `acme.v1.Library` on the wire.
pub struct LibraryServer<S1> {
    service: ::std::sync::Arc<S1>,
}
impl<S1: Library> LibraryServer<S1> {
    /// Serves `service`. One that is in an `Arc` already goes to [`Self::from_arc`].
    #[must_use]
    pub fn new(service: S1) -> Self {
        Self::from_arc(::std::sync::Arc::new(service))
    }
    /// Serves a service that is used elsewhere too.
    #[must_use]
    pub fn from_arc(service: ::std::sync::Arc<S1>) -> Self {
        Self { service }
    }
}
impl<S1> ::core::clone::Clone for LibraryServer<S1> {
    fn clone(&self) -> Self {
        Self {
            service: ::core::clone::Clone::clone(&self.service),
        }
    }
}
impl<S1> ::core::fmt::Debug for LibraryServer<S1> {
    fn fmt(&self, formatter: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        ::core::fmt::DebugStruct::finish_non_exhaustive(
            &mut ::core::fmt::Formatter::debug_struct(formatter, "LibraryServer"),
        )
    }
}
impl<S1: Library> ::sluicegate::server::Service for LibraryServer<S1> {
    fn name(&self) -> &str {
        "acme.v1.Library"
    }
    fn register(self, __sg_methods: &mut ::sluicegate::server::ServiceMethods<'_>) {
        {
            let __sg_service = ::core::clone::Clone::clone(&self.service);
            ::sluicegate::server::ServiceMethods::unary::<
                (String,),
                Book,
                _,
                _,
            >(
                __sg_methods,
                "get_book",
                ::sluicegate::server::MethodOptions::new()
                    .signature(&[("isbn", "String")], "Book"),
                move |_, (__sg_0,)| {
                    let __sg_service = ::core::clone::Clone::clone(&__sg_service);
                    async move {
                        ::core::result::Result::map_err(
                            <S1 as Library>::get_book(&__sg_service, __sg_0).await,
                            ::core::convert::Into::into,
                        )
                    }
                },
            );
        }
        #[cfg(feature = "search")]
        {
            let __sg_service = ::core::clone::Clone::clone(&self.service);
            ::sluicegate::server::ServiceMethods::unary::<
                (String, u32),
                S,
                _,
                _,
            >(
                __sg_methods,
                "find",
                ::sluicegate::server::MethodOptions::new()
                    .signature(&[("text", "String"), ("limit", "u32")], "S")
                    .spawn(true)
                    .aliases(&["look"]),
                move |__sg_context, (__sg_0, __sg_1)| {
                    let __sg_service = ::core::clone::Clone::clone(&__sg_service);
                    let __sg_context = ::core::clone::Clone::clone(__sg_context);
                    async move {
                        ::core::result::Result::Ok(
                            <S1 as Library>::search(
                                    &__sg_service,
                                    __sg_context,
                                    __sg_0,
                                    __sg_1,
                                )
                                .await,
                        )
                    }
                },
            );
        }
        #[allow(deprecated)]
        {
            let __sg_service = ::core::clone::Clone::clone(&self.service);
            ::sluicegate::server::ServiceMethods::unary_bytes(
                __sg_methods,
                "scan",
                ::sluicegate::server::MethodOptions::new()
                    .signature(&[("page", "Bytes")], "Bytes"),
                move |_, __sg_0| {
                    let __sg_service = ::core::clone::Clone::clone(&__sg_service);
                    async move {
                        ::core::result::Result::map_err(
                            <S1 as Library>::scan(&__sg_service, __sg_0).await,
                            ::core::convert::Into::into,
                        )
                    }
                },
            );
        }
        {
            let __sg_service = ::core::clone::Clone::clone(&self.service);
            ::sluicegate::server::ServiceMethods::blocking::<
                (u8,),
                u64,
                _,
            >(
                __sg_methods,
                "index",
                ::sluicegate::server::MethodOptions::new()
                    .signature(&[("depth", "u8")], "u64"),
                move |__sg_context, (__sg_0,)| {
                    let __sg_context = ::core::clone::Clone::clone(__sg_context);
                    ::core::result::Result::map_err(
                        <S1 as Library>::index(&__sg_service, __sg_context, __sg_0),
                        ::core::convert::Into::into,
                    )
                },
            );
        }
        let _ = __sg_methods;
    }
}
///Calls [`Library`], wherever it is served. `Client::service` makes it.
///
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
    ///Calls `acme.v1.Library/find`.
    #[cfg(feature = "search")]
    pub fn search(
        &self,
        text: String,
        limit: u32,
    ) -> ::sluicegate::client::Call<(String, u32), S> {
        ::sluicegate::Client::call(
            &self.client,
            const { ::sluicegate::client::Method::new("acme.v1.Library", "find") },
            (text, limit),
        )
    }
    ///Calls `acme.v1.Library/scan`.
    #[deprecated]
    pub fn scan(
        &self,
        page: Bytes,
    ) -> ::sluicegate::client::Call<
        ::sluicegate::Bytes,
        ::sluicegate::Bytes,
        ::sluicegate::client::Untouched,
    > {
        ::sluicegate::Client::call_bytes(
            &self.client,
            const { ::sluicegate::client::Method::new("acme.v1.Library", "scan") },
            page,
        )
    }
    ///Calls `acme.v1.Library/index`.
    pub fn index(&self, depth: u8) -> ::sluicegate::client::Call<(u8,), u64> {
        ::sluicegate::Client::call(
            &self.client,
            const { ::sluicegate::client::Method::new("acme.v1.Library", "index") },
            (depth,),
        )
    }
}
