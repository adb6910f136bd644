#![allow(unexpected_cfgs)]

use sluicegate::Context;

#[sluicegate::service]
trait Library {
    async fn by_str(&self, isbn: &str);
    async fn by_slice(&self, isbns: &[String], years: Vec<&u16>);
    async fn by_lifetime(&self, isbn: std::borrow::Cow<'_, str>);
    async fn by_impl(&self, isbn: impl Into<String>);
    async fn by_dyn(&self, isbn: Box<dyn ToString>);
    async fn by_self(&self, other: Self);
    async fn tuple(&self, (isbn, year): (String, u16));
    async fn wildcard(&self, _: String);
    async fn mutable(&self, mut isbn: String);
    async fn attribute(&self, #[allow(unused)] isbn: String, #[cfg_attr(all(), cfg(any()))] year: u16);
    async fn condition(&self, #[cfg(any())] ctx: Context);
    async fn conditions(
        &self, #[cfg(a)] a: u8, #[cfg(b)] b: u8, #[cfg(c)] c: u8, #[cfg(d)] d: u8, #[cfg(e)] e: u8,
    );
    async fn context_last(&self, isbn: String, ctx: Context);
    async fn context_twice(&self, ctx: Context, again: Context);
    async fn context_by_reference(&self, ctx: &Context);
    async fn too_many(
        &self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8, j: u8, k: u8, l: u8, m: u8, n: u8, o: u8,
        p: u8, q: u8,
    );
}

fn main() {}
