//! What can be set: `service(..)` on the trait, `rpc(..)` on a method.

use proc_macro2::Span;
use syn::{Attribute, Ident, LitStr, Path, meta::ParseNestedMeta, parse::Parser, spanned::Spanned};

use crate::{errors::Errors, limits::Limits};

/// `#[service(..)]`.
#[derive(Default)]
pub(crate) struct ServiceOptions {
    pub(crate) package: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) server: Option<Ident>,
    pub(crate) client: Option<Ident>,
    pub(crate) facade: Option<Path>,
    /// The default of each method.
    pub(crate) limits: Limits,
}

impl ServiceOptions {
    pub(crate) fn parse(args: proc_macro2::TokenStream, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        let read = syn::meta::parser(|meta| options.read(&meta, errors)).parse2(args);
        read.unwrap_or_else(|error| errors.push(error));
        options
    }

    fn read(&mut self, meta: &ParseNestedMeta<'_>, errors: &mut Errors) -> syn::Result<()> {
        if let Some(read) = self.limits.read(&key(meta), meta, errors) {
            return read;
        }
        match key(meta).as_str() {
            "package" => set(&mut self.package, meta, package, errors),
            "name" => set(&mut self.name, meta, wire_name, errors),
            "server" => set(&mut self.server, meta, type_name, errors),
            "client" => set(&mut self.client, meta, type_name, errors),
            "crate" => set(&mut self.facade, meta, path, errors),
            _ => unknown(
                meta,
                "`service(..)` takes `package`, `name`, `server`, `client`, `crate` and `pool`, each with a string, \
                 and the numbers `max_concurrent_calls` and `weight`",
                errors,
            ),
        }
    }
}

/// `#[rpc(..)]`.
#[derive(Default)]
pub(crate) struct MethodOptions {
    pub(crate) name: Option<String>,
    /// Names it is known by as well: of this service, or as whole paths.
    pub(crate) aliases: Vec<String>,
    pub(crate) spawn: Option<()>,
    /// Where it stands.
    pub(crate) blocking: Option<Span>,
    pub(crate) limits: Limits,
}

impl MethodOptions {
    pub(crate) fn parse(attrs: &[Attribute], errors: &mut Errors) -> Self {
        let mut options = Self::default();
        for attr in attrs {
            let read = attr.parse_nested_meta(|meta| options.read(&meta, errors));
            read.unwrap_or_else(|error| errors.push(error));
        }
        options
    }

    fn read(&mut self, meta: &ParseNestedMeta<'_>, errors: &mut Errors) -> syn::Result<()> {
        if let Some(read) = self.limits.read(&key(meta), meta, errors) {
            return read;
        }
        match key(meta).as_str() {
            "name" => set(&mut self.name, meta, wire_name, errors),
            "alias" => {
                match alias(&meta.value()?.parse()?) {
                    Ok(alias) => self.aliases.push(alias),
                    Err(error) => errors.push(error),
                }
                Ok(())
            }
            "spawn" => {
                once(&mut self.spawn, meta, (), errors);
                Ok(())
            }
            "blocking" => {
                once(&mut self.blocking, meta, meta.path.span(), errors);
                Ok(())
            }
            _ => unknown(
                meta,
                "`rpc(..)` takes `name = \"..\"`, `alias = \"..\"`, `spawn`, `blocking`, `max_concurrent_calls = 8`, \
                 `weight = 2` and `pool = \"..\"`",
                errors,
            ),
        }
    }
}

fn key(meta: &ParseNestedMeta<'_>) -> String {
    meta.path.get_ident().map_or_else(String::new, ToString::to_string)
}

/// Reads `= "..."` as what `read` makes of it.
pub(crate) fn set<T>(
    option: &mut Option<T>,
    meta: &ParseNestedMeta<'_>,
    read: impl Fn(&LitStr) -> syn::Result<T>,
    errors: &mut Errors,
) -> syn::Result<()> {
    match read(&meta.value()?.parse()?) {
        Ok(value) => once(option, meta, value, errors),
        Err(error) => errors.push(error),
    }
    Ok(())
}

pub(crate) fn once<T>(option: &mut Option<T>, meta: &ParseNestedMeta<'_>, value: T, errors: &mut Errors) {
    if option.replace(value).is_some() {
        errors.push(meta.error(format!("`{}` is set twice", key(meta))));
    }
}

/// Tells of a key that is not known, and goes on behind its value.
fn unknown(meta: &ParseNestedMeta<'_>, known: &str, errors: &mut Errors) -> syn::Result<()> {
    errors.push(meta.error(known));
    if meta.input.peek(syn::Token![=]) {
        meta.value()?.parse::<syn::Expr>()?;
    } else if meta.input.peek(syn::token::Paren) {
        meta.input.parse::<proc_macro2::Group>()?;
    }
    Ok(())
}

fn type_name(value: &LitStr) -> syn::Result<Ident> {
    value.parse().map_err(|_| syn::Error::new(value.span(), "this cannot be the name of a type"))
}

fn path(value: &LitStr) -> syn::Result<Path> {
    value.parse().map_err(|_| syn::Error::new(value.span(), "this cannot be the path of a crate"))
}

fn package(value: &LitStr) -> syn::Result<String> {
    match value.value() {
        package if package.split('.').all(is_wire_name) => Ok(package),
        _ => Err(syn::Error::new(
            value.span(),
            "a package is names of letters, digits, `_` and `-` with dots between them",
        )),
    }
}

fn wire_name(value: &LitStr) -> syn::Result<String> {
    match value.value() {
        name if is_wire_name(&name) => Ok(name),
        _ => Err(syn::Error::new(value.span(), "a name on the wire is letters, digits, `_` and `-`")),
    }
}

/// A name of the same service, or the path of a method of another one.
fn alias(value: &LitStr) -> syn::Result<String> {
    let alias = value.value();
    let known = match alias.split_once('/') {
        None => is_wire_name(&alias),
        Some((service, method)) => service.split('.').all(is_wire_name) && is_wire_name(method),
    };
    if known {
        return Ok(alias);
    }
    Err(syn::Error::new(value.span(), "an alias is a name on the wire, or a whole path: `package.Service/method`"))
}

/// No dot and no slash, which part the names in `package.Service/Method`.
fn is_wire_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_wire_cannot_run_into_each_other() {
        for name in ["a", "r2_d2", "get-book", "Bücherei"] {
            assert!(is_wire_name(name), "{name}");
        }
        for name in ["", "a.b", "a/b", "a b", "a\n"] {
            assert!(!is_wire_name(name), "{name:?}");
        }
    }
}
