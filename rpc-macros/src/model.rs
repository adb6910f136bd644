//! Syntax to data: what a service is, and what can be wrong with one.

use std::collections::HashSet;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident};
use syn::{
    Attribute, FnArg, Ident, ItemTrait, Pat, PatType, Path, Receiver, ReceiverKind, ReturnType, Safety, Signature,
    Token, TraitItem, TraitItemFn, Type, TypeParamBound, Visibility,
    ext::IdentExt,
    parse::{ParseStream, Parser},
    parse_quote, parse_quote_spanned,
    punctuated::Punctuated,
    spanned::Spanned,
};

use crate::{
    attrs,
    errors::Errors,
    facade,
    items::{self, Items},
    limits::Limits,
    options::{MethodOptions, ServiceOptions},
    wire_type::{self, Place},
};

/// A trait that can be served and called.
pub(crate) struct Service {
    /// The path of the facade.
    pub(crate) facade: Path,
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) ident: Ident,
    pub(crate) supertraits: Punctuated<TypeParamBound, Token![+]>,
    /// `package.Service`.
    pub(crate) wire_name: String,
    pub(crate) server: Ident,
    pub(crate) client: Ident,
    /// The type parameter of the server: a name that the trait does not speak of.
    pub(crate) parameter: Ident,
    pub(crate) methods: Vec<Method>,
    /// The default of each method.
    pub(crate) limits: Limits,
}

/// One method of a service.
#[derive(Clone)]
pub(crate) struct Method {
    /// All but `#[rpc(..)]`.
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) ident: Ident,
    pub(crate) receiver: Receiver,
    pub(crate) context: Option<Argument>,
    /// What is on the wire; not the context, nor what stands for items.
    pub(crate) arguments: Vec<Argument>,
    pub(crate) items: Items,
    pub(crate) output: Type,
    /// What the client gets.
    pub(crate) value: Type,
    /// If `output` is a `Result`: where errors about its error are told.
    pub(crate) failure: Option<Span>,
    /// Whether argument and value are `Bytes` that no codec touches.
    pub(crate) untouched: bool,
    pub(crate) wire_name: String,
    /// Names it is known by as well: of this service, or as whole paths.
    pub(crate) aliases: Vec<String>,
    pub(crate) spawn: bool,
    /// Whether it is a plain `fn` that blocks its thread.
    pub(crate) blocking: bool,
    pub(crate) limits: Limits,
    pub(crate) spans: MethodSpans,
}

/// Where the compiler's own errors about a method are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MethodSpans {
    /// `async`, or `fn`: errors about the future.
    pub(crate) future: Span,
    /// Errors about all arguments together.
    pub(crate) arguments: Span,
}

/// An argument of a method.
#[derive(Clone)]
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    /// The predicate of its `cfg`, if it has one.
    pub(crate) condition: Option<TokenStream>,
}

impl Service {
    /// Reads the arguments of `#[service(..)]` and the trait it stands on.
    ///
    /// # Errors
    ///
    /// All that is wrong, at once.
    pub(crate) fn parse(args: TokenStream, item: TokenStream) -> syn::Result<Self> {
        let mut errors = Errors::default();
        let options = ServiceOptions::parse(args, &mut errors);
        let item = match parse_trait.parse2(item) {
            Ok(item) => item,
            Err(error) => return Err(errors.and(error)),
        };
        let service = Self::of_trait(options, item, &mut errors);
        errors.finish(service)
    }

    fn of_trait(options: ServiceOptions, item: ItemTrait, errors: &mut Errors) -> Self {
        check_trait(&item, errors);
        let parameter = unused_name(&item, options.server.iter().chain(&options.client));
        let methods: Vec<_> = item.items.into_iter().flat_map(|item| Method::of_item(item, errors)).collect();
        check_wire_names(&methods, errors);

        let name = item.ident.unraw();
        let wire_name = options.name.unwrap_or_else(|| name.to_string());
        Self {
            facade: options.facade.unwrap_or_else(facade::path),
            attrs: item.attrs,
            vis: item.vis,
            ident: item.ident,
            supertraits: item.supertraits,
            wire_name: options.package.map_or_else(|| wire_name.clone(), |package| format!("{package}.{wire_name}")),
            server: options.server.unwrap_or_else(|| format_ident!("{name}Server")),
            client: options.client.unwrap_or_else(|| format_ident!("{name}Client")),
            parameter,
            methods,
            limits: options.limits,
        }
    }
}

impl Method {
    /// One method, or as many as there are sets of its arguments that a condition may leave.
    fn of_item(item: TraitItem, errors: &mut Errors) -> Vec<Self> {
        match item {
            TraitItem::Fn(method) => {
                return Self::of_fn(method, errors).map_or_else(Vec::new, |method| method.variants(errors));
            }
            TraitItem::Const(item) => errors.on(item.const_token, "a service has methods only, no constants"),
            TraitItem::Type(item) => errors.on(item.type_token, "a service has methods only; they name their types"),
            TraitItem::Macro(item) => {
                errors.on(item.mac.path, "a service has methods only; a macro within it is not seen through");
            }
            item => errors.on(item, "a service has methods only: `async fn name(&self, argument: T) -> U;`"),
        }
        Vec::new()
    }

    /// The method for each way in which the conditions of its arguments may come out. The macro does
    /// not know how they do; and a tuple, which is what the arguments are on the wire, takes no `cfg`
    /// inside of it.
    fn variants(self, errors: &mut Errors) -> Vec<Self> {
        let mut conditions: Vec<TokenStream> = Vec::new();
        for condition in self.arguments.iter().filter_map(|argument| argument.condition.as_ref()) {
            if !conditions.iter().any(|known| known.to_string() == condition.to_string()) {
                conditions.push(condition.clone());
            }
        }
        if let Some(condition) = conditions.get(MAX_CONDITIONS) {
            errors.on(condition, format!("the arguments of a method have at most {MAX_CONDITIONS} conditions"));
            return vec![self];
        }
        (0..1_u32 << conditions.len()).map(|chosen| self.variant(&conditions, chosen)).collect()
    }

    /// The method as it is when those of `conditions` hold whose bits are set in `chosen`.
    fn variant(&self, conditions: &[TokenStream], chosen: u32) -> Self {
        let mut variant = self.clone();
        for (at, condition) in conditions.iter().enumerate() {
            let holds = chosen >> at & 1 == 1;
            variant.attrs.push(if holds {
                parse_quote!(#[cfg(#condition)])
            } else {
                parse_quote!(#[cfg(not(#condition))])
            });
            variant.arguments.retain(|argument| {
                holds || argument.condition.as_ref().is_none_or(|known| known.to_string() != condition.to_string())
            });
        }
        variant.untouched = !variant.items.any() && is_untouched(&variant.arguments, &variant.value);
        variant
    }

    fn of_fn(item: TraitItemFn, errors: &mut Errors) -> Option<Self> {
        let TraitItemFn { attrs, sig, default, .. } = item;
        let (rpc, attrs): (Vec<_>, Vec<_>) = attrs.into_iter().partition(attrs::is_rpc);
        let options = MethodOptions::parse(&rpc, errors);
        check_signature(&sig, &options, errors);
        if let Some(body) = default {
            let message = "a method of a service has no body here; write it where the trait is implemented";
            errors.at(body.brace_token.span.open(), message);
        }
        let spans = MethodSpans {
            future: sig.asyncness.map_or(sig.fn_token.span, |token| token.span),
            arguments: sig.paren_token.span.join(),
        };
        let Returned { output, value, failure } = Returned::of(&sig, &options, errors);
        let Inputs { receiver, context, arguments, mut items } = Inputs::of(sig.inputs, &sig.ident, errors);
        items.set_returned(&value, errors);
        items.check_value(&value, errors);
        if let (true, Some(span)) = (items.any(), options.blocking) {
            errors.at(span, "a method with items awaits them, so it does not block; leave out `blocking`");
        }
        let untouched = !items.any() && is_untouched(&arguments, &value);
        let wire_name = options.name.unwrap_or_else(|| sig.ident.unraw().to_string());
        let (ident, aliases) = (sig.ident, options.aliases);
        let (spawn, blocking) = (options.spawn.is_some(), options.blocking.is_some());
        let receiver = receiver?;
        Some(Self {
            attrs,
            ident,
            receiver,
            context,
            arguments,
            items,
            output,
            value,
            failure,
            untouched,
            wire_name,
            aliases,
            spawn,
            blocking,
            limits: options.limits,
            spans,
        })
    }
}

struct Inputs {
    receiver: Option<Receiver>,
    context: Option<Argument>,
    arguments: Vec<Argument>,
    items: Items,
}

impl Inputs {
    fn of(inputs: Punctuated<FnArg, Token![,]>, method: &Ident, errors: &mut Errors) -> Self {
        let (mut receiver, mut context, mut arguments, mut items) = (None, None, Vec::new(), Items::default());
        for input in inputs {
            match input {
                FnArg::Receiver(found) => receiver = Some(found),
                FnArg::Typed(input) => {
                    let is_context = wire_type::is_called(&input.ty, "Context");
                    let role = items::role_of(&input.ty);
                    let Some(argument) = Argument::of(input, is_context || role.is_some(), errors) else { continue };
                    if let Some(role) = role {
                        items.add(argument, role, errors);
                        continue;
                    }
                    if !is_context && !items.parameters.is_empty() {
                        errors.on(&argument.ty, "what stands for items comes last, behind the arguments");
                    }
                    match (is_context, &context) {
                        (false, _) => arguments.push(argument),
                        (true, Some(_)) => errors.on(argument.ty, "a call has one `Context`"),
                        (true, None) if !arguments.is_empty() || !items.parameters.is_empty() => {
                            errors.on(argument.ty, "the `Context` of the call comes first")
                        }
                        (true, None) => context = Some(argument),
                    }
                }
            }
        }
        let needed = "a method of a service needs `&self`: calls run at the same time";
        match &receiver {
            None => errors.on(method, needed),
            Some(Receiver { kind: ReceiverKind::Reference(_, None, None), mutability: None, .. }) => {}
            Some(receiver) => errors.on(receiver, needed),
        }
        if let Some(argument) = arguments.get(MAX_ARGUMENTS) {
            errors
                .on(&argument.ident, format!("a method takes at most {MAX_ARGUMENTS} arguments; put some in a struct"));
        }
        Self { receiver, context, arguments, items }
    }
}

impl Argument {
    /// Reads an argument, which is `local` if it is not on the wire as it stands.
    fn of(input: PatType, local: bool, errors: &mut Errors) -> Option<Self> {
        let condition = condition(&input.attrs, errors);
        if let (true, Some(condition)) = (local, &condition) {
            errors.on(
                condition,
                "only what is on the wire has a condition; a method that does not need this leaves it unused",
            );
        }
        if !local {
            wire_type::check(&input.ty, Place::Argument, errors);
        }
        match *input.pat {
            Pat::Ident(pat) if pat.by_ref.is_none() && pat.mutability.is_none() && pat.subpat.is_none() => {
                Some(Self { ident: pat.ident, ty: *input.ty, condition })
            }
            pat => {
                errors.on(pat, "an argument has a name here, no pattern; take it apart where the trait is implemented");
                None
            }
        }
    }
}

struct Returned {
    output: Type,
    value: Type,
    failure: Option<Span>,
}

impl Returned {
    fn of(sig: &Signature, options: &MethodOptions, errors: &mut Errors) -> Self {
        let output = match &sig.output {
            ReturnType::Default => {
                parse_quote_spanned!(sig.paren_token.span.join()=> ())
            }
            ReturnType::Type(_, ty) => Type::clone(ty),
        };
        let (value, failure) = match wire_type::arguments_of_result(&output).as_deref() {
            None => (output.clone(), None),
            Some([]) => {
                errors.on(&output, "say what the client gets: `Result<T, E>`, or `Result<T>` of an alias");
                (output.clone(), None)
            }
            Some([value]) => (Type::clone(value), Some(output.span())),
            Some([value, error, ..]) => (Type::clone(value), Some(error.span())),
        };
        // Without `async` it may be a future, and that error is told already.
        if (sig.asyncness.is_some() || options.blocking.is_some()) && !items::is_stream(&value) {
            wire_type::check(&value, Place::Return, errors);
        }
        Self { output, value, failure }
    }
}

fn parse_trait(input: ParseStream<'_>) -> syn::Result<ItemTrait> {
    let ahead = input.fork();
    ahead.call(Attribute::parse_outer)?;
    ahead.parse::<Visibility>()?;
    ahead.parse::<Option<Token![unsafe]>>()?;
    ahead.parse::<Option<Token![auto]>>()?;
    if !ahead.peek(Token![trait]) {
        return Err(ahead.error("a service is a trait: `trait Library { .. }`"));
    }
    input.parse()
}

fn check_trait(item: &ItemTrait, errors: &mut Errors) {
    if let Some(token) = &item.unsafety {
        errors.on(token, "a service is a safe trait");
    }
    if let Some(token) = &item.modifiers.auto_token {
        errors.on(token, "a service is no auto trait");
    }
    if !item.generics.params.is_empty() {
        errors.on(&item.generics.params, "a service has no generics: a name on the wire stands for one set of types");
    }
    if let Some(clause) = &item.generics.where_clause {
        errors.on(clause, "a service has no `where`; write bounds behind the name: `trait Library: Bound`");
    }
}

fn check_signature(sig: &Signature, options: &MethodOptions, errors: &mut Errors) {
    let name = sig.ident.unraw();
    // They take `self`, so they go before a function of the client's own that takes `&self`.
    if name == "into" || name == "try_into" {
        let message =
            format!("`client.{name}()` would call the prelude's; write `#[rpc(name = \"{name}\")]` on another name");
        errors.on(&sig.ident, message);
    }
    match (&sig.asyncness, options.blocking) {
        (None, None) => {
            errors.on(sig.fn_token, "write `async fn`; or mark it `#[rpc(blocking)]` if it blocks its thread")
        }
        (Some(token), Some(_)) => {
            errors.on(token, "a blocking method is a plain `fn`: it has a thread to itself, and awaits nothing");
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    if let (Some(()), Some(span)) = (options.spawn, options.blocking) {
        errors.at(span, "a blocking method never runs in its connection's task; leave out `spawn`");
    }
    if let Some(token) = &sig.constness {
        errors.on(token, "a call over the wire is not `const`");
    }
    if let Safety::Unsafe(token) = &sig.safety {
        errors.on(token, "a method of a service is safe: the caller, elsewhere, can promise nothing");
    }
    if let Some(abi) = &sig.abi {
        errors.on(abi, "a method of a service is not `extern`");
    }
    if !sig.generics.params.is_empty() {
        errors.on(&sig.generics.params, "a method of a service has no generics: its types are fixed on the wire");
    }
    if let Some(clause) = &sig.generics.where_clause {
        errors.on(clause, "a method of a service has no `where`: its types are fixed on the wire");
    }
    if let Some(variadic) = &sig.variadic {
        errors.on(variadic, "a method of a service takes a fixed number of arguments");
    }
}

/// The predicate of the `cfg` that an argument has, of several all.
fn condition(attrs: &[Attribute], errors: &mut Errors) -> Option<TokenStream> {
    let mut predicates = Vec::new();
    for attr in attrs {
        match &attr.meta {
            syn::Meta::List(list) if list.path.is_ident("cfg") => predicates.push(list.tokens.clone()),
            _ => errors.on(attr, "an argument has no attributes but `cfg`: it is on the wire whatever they say"),
        }
    }
    match &predicates[..] {
        [] => None,
        [predicate] => Some(predicate.clone()),
        several => Some(quote::quote!(all(#(#several),*))),
    }
}

/// Whether argument and value are bytes that no codec touches.
fn is_untouched(arguments: &[Argument], value: &Type) -> bool {
    match arguments {
        [argument] => wire_type::is_called(&argument.ty, "Bytes") && wire_type::is_called(value, "Bytes"),
        _ => false,
    }
}

/// Two methods with one name on the wire; those with a condition may exclude each other, and are
/// left to the check that a server makes.
fn check_wire_names(methods: &[Method], errors: &mut Errors) {
    let mut seen = HashSet::new();
    for method in methods.iter().filter(|method| attrs::conditions(&method.attrs).is_empty()) {
        if !seen.insert(&method.wire_name) {
            let name = &method.wire_name;
            errors.on(
                &method.ident,
                format!("another method is called `{name}` on the wire; set `#[rpc(name = \"..\")]`"),
            );
        }
        for alias in &method.aliases {
            if !seen.insert(alias) {
                errors.on(&method.ident, format!("its alias `{alias}` is a name of another method, or its own"));
            }
        }
    }
}

/// `S`, or `S1` and so on if the trait speaks of an `S`, or what is written beside it is called that.
fn unused_name<'a>(item: &ItemTrait, beside: impl Iterator<Item = &'a Ident>) -> Ident {
    let (text, beside) = (item.to_token_stream().to_string(), beside.map(ToString::to_string).collect::<Vec<_>>());
    let mut used: HashSet<_> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    used.extend(beside.iter().map(String::as_str));
    let name =
        std::iter::once("S".to_owned()).chain((1..).map(|n| format!("S{n}"))).find(|name| !used.contains(&**name));
    Ident::new(&name.expect("an endless supply of names"), Span::mixed_site())
}

/// As many as a tuple that serde knows.
const MAX_ARGUMENTS: usize = 16;
/// Each doubles what is written for a method.
const MAX_CONDITIONS: usize = 4;
