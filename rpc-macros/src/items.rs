//! Items of a method: which ways they go, from its types alone.

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::{GenericArgument, PathArguments, Type, TypeImplTrait, TypeParamBound, parse_quote_spanned, spanned::Spanned};

use crate::{
    errors::Errors,
    model::Argument,
    wire_type::{self, Place},
};

/// The items of a method.
#[derive(Clone, Default)]
pub(crate) struct Items {
    /// What the client sends: the `T` of a parameter `Streaming<T>`.
    pub(crate) received: Option<Type>,
    /// What the server sends.
    pub(crate) sent: Option<Type>,
    /// The parameters that are no arguments on the wire, in their order.
    pub(crate) parameters: Vec<Parameter>,
    /// Whether the server's items are those of a stream that the method returns.
    pub(crate) returned: bool,
}

/// A parameter that stands for items.
#[derive(Clone)]
pub(crate) struct Parameter {
    pub(crate) argument: Argument,
    pub(crate) role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `Streaming<T>`.
    Received,
    /// `ItemSender<T>`.
    Sender,
}

impl Items {
    /// Whether the method has any.
    pub(crate) fn any(&self) -> bool {
        self.received.is_some() || self.sent.is_some()
    }

    /// Adds a parameter of this role.
    pub(crate) fn add(&mut self, argument: Argument, role: Role, errors: &mut Errors) {
        let (place, name) = match role {
            Role::Received => (&mut self.received, "Streaming"),
            Role::Sender => (&mut self.sent, "ItemSender"),
        };
        match wire_type::argument_of(&argument.ty, name) {
            None => errors.on(&argument.ty, format!("say what the items are: `{name}<T>`")),
            Some(_) if place.is_some() => errors.on(&argument.ty, format!("a call has one `{name}`")),
            Some(item) => {
                wire_type::check(item, Place::Argument, errors);
                *place = Some(item.clone());
            }
        }
        self.parameters.push(Parameter { argument, role });
    }

    /// Notes what the method returns: the items of a stream, if it is one.
    pub(crate) fn set_returned(&mut self, value: &Type, errors: &mut Errors) {
        let Some(item) = item_of_stream(value) else { return };
        match wire_type::arguments_of_result(item).as_deref() {
            Some([item, ..]) => {
                wire_type::check(item, Place::Return, errors);
                if self.sent.replace(Type::clone(item)).is_some() {
                    errors.on(value, "a method sends its items by an `ItemSender`, or returns them as a stream");
                }
            }
            _ => errors.on(item, "an item is a `Result<T, Status>`: a stream may fail before its end"),
        }
        self.returned = true;
    }

    /// Whether the method sends its items by an `ItemSender`. It has nothing to give beside them then: the end of the
    /// stream carries no value.
    pub(crate) fn go_one_by_one(&self) -> bool {
        self.sent.is_some() && !self.returned
    }

    /// Refuses a value beside items where it is one by its look. What a name stands for, the compiler knows.
    pub(crate) fn check_value(&self, value: &Type, errors: &mut Errors) {
        if self.go_one_by_one() && !wire_type::may_be_unit(value) {
            errors.on(
                value,
                "a method that sends its items by an `ItemSender` returns `Result<(), Status>`; what else there is to \
                 say is a last item",
            );
        }
    }
}

/// What role a parameter of this type has, if it has one.
pub(crate) fn role_of(ty: &Type) -> Option<Role> {
    if wire_type::is_generic_called(ty, "Streaming") {
        Some(Role::Received)
    } else if wire_type::is_generic_called(ty, "ItemSender") {
        Some(Role::Sender)
    } else {
        None
    }
}

/// Whether it is a stream by its look: `impl Stream<Item = T>`, or a `BoxStream` of them.
pub(crate) fn is_stream(ty: &Type) -> bool {
    item_of_stream(ty).is_some()
}

/// The `T` of `impl Stream<Item = T>`, or of `BoxStream<'static, T>`.
fn item_of_stream(ty: &Type) -> Option<&Type> {
    match ty {
        Type::ImplTrait(ty) => item_of_bounds(ty),
        Type::Group(group) => item_of_stream(&group.elem),
        Type::Paren(paren) => item_of_stream(&paren.elem),
        ty => wire_type::argument_of(ty, "BoxStream"),
    }
}

fn item_of_bounds(ty: &TypeImplTrait) -> Option<&Type> {
    ty.bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else { return None };
        let segment = bound.path.segments.last().filter(|segment| segment.ident == "Stream")?;
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(item) if item.ident == "Item" => Some(&item.ty),
            _ => None,
        })
    })
}

/// The type, with every `impl Stream` in it one that can be sent.
pub(crate) fn sendable(ty: &Type) -> Type {
    let mut ty = ty.clone();
    syn::visit_mut::visit_type_mut(&mut Sendable, &mut ty);
    ty
}

struct Sendable;

impl syn::visit_mut::VisitMut for Sendable {
    fn visit_type_impl_trait_mut(&mut self, ty: &mut TypeImplTrait) {
        let is_send = |bound: &TypeParamBound| match bound {
            TypeParamBound::Trait(bound) => bound.path.segments.last().is_some_and(|segment| segment.ident == "Send"),
            _ => false,
        };
        if !ty.bounds.iter().any(is_send) {
            let send: TypeParamBound = parse_quote_spanned!(ty.span()=> ::core::marker::Send);
            ty.bounds.push(send);
        }
    }
}

/// `Coded`, or `Plain` for bytes, as `module` of the facade has them.
pub(crate) fn form(item: &Type, module: &TokenStream) -> TokenStream {
    let name = if wire_type::is_called(item, "Bytes") { "Plain" } else { "Coded" };
    let name = syn::Ident::new(name, Span::mixed_site());
    let at = Span::mixed_site().located_at(item.span());
    quote_spanned!(at=> #module::#name)
}
