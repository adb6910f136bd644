//! Which attributes of the trait go where.
//!
//! An attribute may hide in `cfg_attr`, even a `cfg`, so all of them are looked at through it.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Meta, Path, Token, punctuated::Punctuated};

/// Whether it is the helper attribute `#[rpc(..)]`.
pub(crate) fn is_rpc(attr: &Attribute) -> bool {
    attr.path().is_ident("rpc")
}

/// What decides whether a piece exists: `cfg`.
pub(crate) fn conditions(attrs: &[Attribute]) -> TokenStream {
    filter(attrs, |path| path.is_ident("cfg"))
}

/// What a client's function has of the attributes of its method.
///
/// Others, such as those of other macros, are meant for the trait.
pub(crate) fn of_function(attrs: &[Attribute]) -> TokenStream {
    filter(attrs, |path| is_level(path) || is_any(path, &["cfg", "doc", "deprecated", "must_use"]))
}

/// What a type that is written has of the attributes of the trait.
pub(crate) fn of_type(attrs: &[Attribute]) -> TokenStream {
    filter(attrs, |path| is_level(path) || is_any(path, &["cfg", "doc", "deprecated"]))
}

/// What an `impl` that is written has of the attributes of the trait.
pub(crate) fn of_impl(attrs: &[Attribute]) -> TokenStream {
    filter(attrs, |path| is_level(path) || path.is_ident("cfg"))
}

/// `#[allow(deprecated)]` if it is needed to speak of what has these attributes.
///
/// Only then, because an `allow` is an error under a `forbid`.
pub(crate) fn allow_deprecated(attrs: &[Attribute]) -> TokenStream {
    match filter(attrs, |path| path.is_ident("deprecated")).is_empty() {
        true => TokenStream::new(),
        false => quote!(#[allow(deprecated)]),
    }
}

/// Whether one of them is a doc comment.
pub(crate) fn has_docs(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| attr.path().is_ident("doc"))
}

fn filter(attrs: &[Attribute], keep: impl Fn(&Path) -> bool) -> TokenStream {
    attrs.iter().filter_map(|attr| filter_meta(&attr.meta, &keep)).map(|meta| quote!(#[#meta])).collect()
}

fn filter_meta(meta: &Meta, keep: &dyn Fn(&Path) -> bool) -> Option<TokenStream> {
    match meta {
        Meta::List(list) if list.path.is_ident("cfg_attr") => {
            let metas = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
            let mut metas = metas.iter();
            let (cfg_attr, condition) = (&list.path, metas.next()?);
            let kept: Vec<_> = metas.filter_map(|meta| filter_meta(meta, keep)).collect();
            (!kept.is_empty()).then(|| quote!(#cfg_attr(#condition, #(#kept),*)))
        }
        // What is expected of the trait's method need not come true in the function.
        Meta::List(list) if keep(&list.path) && list.path.is_ident("expect") => {
            let lints = &list.tokens;
            Some(quote!(allow(#lints)))
        }
        meta => keep(meta.path()).then(|| meta.to_token_stream()),
    }
}

fn is_level(path: &Path) -> bool {
    is_any(path, &["allow", "expect", "warn", "deny", "forbid"])
}

fn is_any(path: &Path, names: &[&str]) -> bool {
    names.iter().any(|name| path.is_ident(name))
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn conditions_are_found_within_cfg_attr() {
        let attrs: [Attribute; 4] = [
            parse_quote!(#[doc = "text"]),
            parse_quote!(#[cfg(unix)]),
            parse_quote!(#[cfg_attr(feature = "x", deprecated, cfg(test), cfg_attr(unix, must_use, cfg(true)))]),
            parse_quote!(#[cfg_attr(feature = "x", deprecated)]),
        ];
        let kept = quote!(#[cfg(unix)] #[cfg_attr(feature = "x", cfg(test), cfg_attr(unix, cfg(true)))]);
        assert_eq!(conditions(&attrs).to_string(), kept.to_string());
        assert!(!allow_deprecated(&attrs).is_empty());
        assert!(allow_deprecated(&attrs[..2]).is_empty());
    }

    #[test]
    fn a_function_has_docs_and_levels_but_not_the_attributes_of_other_macros() {
        let attrs: [Attribute; 4] = [
            parse_quote!(#[doc = "text"]),
            parse_quote!(#[instrument]),
            parse_quote!(#[must_use = "why"]),
            parse_quote!(#[expect(dead_code, reason = "so")]),
        ];
        let kept = quote!(#[doc = "text"] #[must_use = "why"] #[allow(dead_code, reason = "so")]);
        assert_eq!(of_function(&attrs).to_string(), kept.to_string());
    }
}
