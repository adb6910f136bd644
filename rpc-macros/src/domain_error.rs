//! `#[derive(DomainError)]`: from an error type to what a peer is told of it.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::{
    Attribute, Data, DeriveInput, Field, Fields, Ident, LitStr, Path, ext::IdentExt, meta::ParseNestedMeta,
    spanned::Spanned,
};

use crate::{attrs, errors::Errors, facade, options::once};

macro_rules! code {
    ($($tokens:tt)*) => { quote_spanned!(Span::mixed_site()=> $($tokens)*) };
}

/// The implementation of `DomainError`.
///
/// # Errors
///
/// All that is wrong, at once.
pub(crate) fn derive(input: &DeriveInput) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let of_type = TypeOptions::parse(&input.attrs, matches!(input.data, Data::Struct(_)), &mut errors);
    let cases = cases(input, &mut errors);
    let domain = of_type.domain.unwrap_or_else(|| {
        errors.on(&input.ident, "say who defines the reasons: `#[rpc(domain = \"library.example\")]`");
        String::new()
    });
    let facade = of_type.facade.unwrap_or_else(facade::path);
    errors.finish(implementation(input, &facade, &domain, &cases))
}

/// Where the options of a case stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Variant,
    Struct,
}

/// A variant, or the whole of a struct.
struct Case<'a> {
    /// `Self`, or `Self::Variant`.
    path: TokenStream,
    conditions: TokenStream,
    code: Ident,
    reason: String,
    /// Keys, and the fields whose text is the value.
    metadata: Vec<(String, &'a Field, usize)>,
    retry_delay: Option<(&'a Field, usize)>,
}

fn cases<'a>(input: &'a DeriveInput, errors: &mut Errors) -> Vec<Case<'a>> {
    match &input.data {
        Data::Enum(data) => {
            let of = |variant: &'a syn::Variant, errors: &mut Errors| {
                let ident = &variant.ident;
                Case::of(ident, code!(Self::#ident), (&variant.attrs, Place::Variant), &variant.fields, errors)
            };
            data.variants.iter().filter_map(|variant| of(variant, errors)).collect()
        }
        Data::Struct(data) => {
            let attrs = (&input.attrs[..], Place::Struct);
            Vec::from_iter(Case::of(&input.ident, code!(Self), attrs, &data.fields, errors))
        }
        Data::Union(data) => {
            errors.on(data.union_token, "a domain error is an enum or a struct");
            Vec::new()
        }
    }
}

impl<'a> Case<'a> {
    fn of(
        ident: &Ident,
        path: TokenStream,
        (attrs, place): (&[Attribute], Place),
        fields: &'a Fields,
        errors: &mut Errors,
    ) -> Option<Self> {
        let options = CaseOptions::parse(attrs, place, errors);
        let (mut metadata, mut retry_delay) = (Vec::new(), None);
        for (at, field) in fields.iter().enumerate() {
            let of_field = FieldOptions::parse(field, errors);
            metadata.extend(of_field.key.map(|key| (key, field, at)));
            if of_field.retry_delay.is_some() && retry_delay.replace((field, at)).is_some() {
                errors.on(field, "an error says once when to come back");
            }
        }
        let Some(code) = options.code else {
            errors.on(ident, "say which status code it is: `#[rpc(code = NotFound)]`");
            return None;
        };
        let reason = options.reason.unwrap_or_else(|| {
            let made = upper_snake(&ident.unraw().to_string());
            if !is_reason(&made) {
                errors.on(
                    ident,
                    "no reason can be made of this name; one is 1 to 255 of A-Z, 0-9 and _: `#[rpc(reason = \"..\")]`",
                );
            }
            made
        });
        Some(Self { path, conditions: attrs::conditions(attrs), code, reason, metadata, retry_delay })
    }
}

fn implementation(input: &DeriveInput, facade: &Path, domain: &str, cases: &[Case<'_>]) -> TokenStream {
    let ident = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let conditions = attrs::conditions(&input.attrs);
    let codes = cases
        .iter()
        .map(|Case { path, conditions, code, .. }| code!(#conditions #path { .. } => #facade::StatusCode::#code,));
    let reasons = cases.iter().map(|Case { path, conditions, reason, .. }| code!(#conditions #path { .. } => #reason,));
    let metadata = metadata(facade, cases);
    let retry_delay = retry_delay(cases);
    code! {
        #conditions
        #[automatically_derived]
        impl #generics #facade::DomainError for #ident #arguments #bounds {
            const DOMAIN: &'static str = #domain;

            fn code(&self) -> #facade::StatusCode {
                match *self { #(#codes)* }
            }

            fn reason(&self) -> &'static str {
                match *self { #(#reasons)* }
            }

            fn metadata(&self) -> #facade::Metadata {
                #metadata
            }

            fn retry_delay(&self) -> ::core::option::Option<::core::time::Duration> {
                #retry_delay
            }
        }
    }
}

/// The body of `metadata`. Nothing is written that would have to be allowed: that is an error under a
/// `forbid`.
fn metadata(facade: &Path, cases: &[Case<'_>]) -> TokenStream {
    let arms = cases.iter().filter(|case| !case.metadata.is_empty()).map(|case| {
        let Case { path, conditions, metadata, .. } = case;
        let fields = metadata.iter().map(|(_, field, at)| bind(field, *at));
        let notes = metadata.iter().map(|(key, field, at)| {
            let name = name_of(*at);
            quote_spanned!(at_field(field)=> #facade::__private::note(&mut __sg_metadata, #key, #name);)
        });
        code!(#conditions #path { #(#fields,)* .. } => { #(#notes)* })
    });
    let arms: Vec<_> = arms.collect();
    if arms.is_empty() {
        return code!(#facade::Metadata::new());
    }
    let others = (arms.len() < cases.len()).then(|| code!(_ => {}));
    code! {
        let mut __sg_metadata = #facade::Metadata::new();
        match *self { #(#arms)* #others }
        __sg_metadata
    }
}

/// The body of `retry_delay`.
fn retry_delay(cases: &[Case<'_>]) -> TokenStream {
    let arms = cases.iter().filter_map(|Case { path, conditions, retry_delay, .. }| {
        let (field, at) = (*retry_delay)?;
        let (bound, name) = (bind(field, at), name_of(at));
        let delay = quote_spanned!(at_field(field)=> ::core::convert::Into::into(::core::clone::Clone::clone(#name)));
        Some(code!(#conditions #path { #bound, .. } => #delay,))
    });
    let arms: Vec<_> = arms.collect();
    if arms.is_empty() {
        return code!(::core::option::Option::None);
    }
    let others = (arms.len() < cases.len()).then(|| code!(_ => ::core::option::Option::None,));
    code!(match *self { #(#arms)* #others })
}

/// A field by name or position, bound to a name of the macro's.
fn bind(field: &Field, at: usize) -> TokenStream {
    let name = name_of(at);
    match &field.ident {
        Some(ident) => code!(#ident: ref #name),
        None => {
            let at = syn::Index::from(at);
            code!(#at: ref #name)
        }
    }
}

/// The hygiene of the macro, at the field: where it is told that a type has no text, or is no delay.
fn at_field(field: &Field) -> Span {
    Span::mixed_site().located_at(field.ty.span())
}

fn name_of(at: usize) -> Ident {
    format_ident!("__sg_{at}", span = Span::mixed_site())
}

/// `#[rpc(..)]` on the type.
#[derive(Default)]
struct TypeOptions {
    domain: Option<String>,
    facade: Option<Path>,
}

impl TypeOptions {
    fn parse(attrs: &[Attribute], of_struct: bool, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        each(attrs, errors, |meta, errors| match meta.path.get_ident().map(ToString::to_string).as_deref() {
            Some("domain") => text(&mut options.domain, meta, is_domain, "a domain is 1 to 255 bytes of text", errors),
            Some("crate") => {
                let path = meta.value()?.parse::<LitStr>()?.parse()?;
                once(&mut options.facade, meta, path, errors);
                Ok(())
            }
            // Those of a struct's one case are read elsewhere.
            Some("code" | "reason") if of_struct => skip(meta),
            Some("code" | "reason") => misplaced(meta, "`code` and `reason` stand on each variant", errors),
            _ => Err(meta.error("`rpc(..)` on a domain error takes `domain`, `crate`, `code` and `reason`")),
        });
        options
    }
}

/// `#[rpc(..)]` on a variant or a struct.
#[derive(Default)]
struct CaseOptions {
    code: Option<Ident>,
    reason: Option<String>,
}

impl CaseOptions {
    fn parse(attrs: &[Attribute], place: Place, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        each(attrs, errors, |meta, errors| match meta.path.get_ident().map(ToString::to_string).as_deref() {
            Some("code") => {
                let code: Ident = meta.value()?.parse()?;
                if !CODES.iter().any(|known| code == known) {
                    errors.on(&code, format!("a status code is one of {}", CODES.join(", ")));
                }
                once(&mut options.code, meta, code, errors);
                Ok(())
            }
            Some("reason") => {
                text(&mut options.reason, meta, is_reason, "a reason is 1 to 255 of A-Z, 0-9 and _", errors)
            }
            // Those of the type are read elsewhere.
            Some("domain" | "crate") if place == Place::Struct => skip(meta),
            Some("domain" | "crate") => misplaced(meta, "`domain` and `crate` stand on the enum", errors),
            _ => Err(meta.error("`rpc(..)` on a variant takes `code = NotFound` and `reason = \"..\"`")),
        });
        options
    }
}

/// `#[rpc(..)]` on a field.
#[derive(Default)]
struct FieldOptions {
    key: Option<String>,
    retry_delay: Option<()>,
}

impl FieldOptions {
    fn parse(field: &Field, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        each(&field.attrs, errors, |meta, errors| match meta.path.get_ident().map(ToString::to_string).as_deref() {
            Some("metadata") if meta.input.peek(syn::Token![=]) => {
                text(&mut options.key, meta, is_key, "a key is 1 to 255 of a-z, 0-9, -, _ and ., and not `sg-`", errors)
            }
            Some("metadata") => {
                let name = field.ident.as_ref().map(|ident| ident.unraw().to_string());
                match name.filter(|name| is_key(name)) {
                    Some(name) => once(&mut options.key, meta, name, errors),
                    None => errors.push(meta.error("say under which key: `#[rpc(metadata = \"isbn\")]`")),
                }
                Ok(())
            }
            Some("retry_delay") => {
                once(&mut options.retry_delay, meta, (), errors);
                Ok(())
            }
            _ => Err(meta.error("`rpc(..)` on a field takes `metadata`, `metadata = \"key\"` and `retry_delay`")),
        });
        options
    }
}

fn each(
    attrs: &[Attribute],
    errors: &mut Errors,
    mut read: impl FnMut(&ParseNestedMeta<'_>, &mut Errors) -> syn::Result<()>,
) {
    for attr in attrs.iter().filter(|attr| attrs::is_rpc(attr)) {
        let parsed = attr.parse_nested_meta(|meta| read(&meta, errors));
        parsed.unwrap_or_else(|error| errors.push(error));
    }
}

fn skip(meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
    meta.value()?.parse::<syn::Expr>().map(|_| ())
}

/// Tells of an option that stands where it means nothing.
fn misplaced(meta: &ParseNestedMeta<'_>, where_to: &str, errors: &mut Errors) -> syn::Result<()> {
    errors.push(meta.error(where_to));
    skip(meta)
}

/// Reads `= "..."`, if it is as `is_right` has it.
fn text(
    option: &mut Option<String>,
    meta: &ParseNestedMeta<'_>,
    is_right: impl Fn(&str) -> bool,
    wanted: &str,
    errors: &mut Errors,
) -> syn::Result<()> {
    let literal: LitStr = meta.value()?.parse()?;
    let value = literal.value();
    if !is_right(&value) {
        errors.on(&literal, wanted);
    }
    once(option, meta, value, errors);
    Ok(())
}

fn is_domain(domain: &str) -> bool {
    (1..=255).contains(&domain.len())
}

fn is_reason(reason: &str) -> bool {
    (1..=255).contains(&reason.len())
        && reason.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// As metadata has it.
fn is_key(key: &str) -> bool {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    (1..=255).contains(&key.len()) && key.chars().all(known) && !key.starts_with("sg-")
}

/// `NoSuchBook` as `NO_SUCH_BOOK`.
fn upper_snake(name: &str) -> String {
    let mut snake = String::new();
    let mut before = None;
    for c in name.chars() {
        if c.is_uppercase() && before.is_some_and(|before: char| !before.is_uppercase() && before != '_') {
            snake.push('_');
        }
        snake.extend(c.to_uppercase());
        before = Some(c);
    }
    snake
}

/// All but success.
const CODES: [&str; 16] = [
    "Cancelled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_name_in_upper_snake_case() {
        for (name, reason) in [
            ("NoSuchBook", "NO_SUCH_BOOK"),
            ("Busy", "BUSY"),
            ("ISBN", "ISBN"),
            ("No_Book", "NO_BOOK"),
            ("Http2", "HTTP2"),
        ] {
            assert_eq!(upper_snake(name), reason);
            assert!(is_reason(reason));
        }
    }
}
