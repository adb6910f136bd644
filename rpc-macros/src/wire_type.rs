//! What can be told of a type by looking at it: whether it can be on the wire, and its name.

use quote::ToTokens;
use syn::{
    GenericArgument, Lifetime, Path, PathArguments, PathSegment, Type, TypeImplTrait, TypeReference, TypeTraitObject,
    visit::{self, Visit},
};

use crate::errors::Errors;

/// Where a type stands in a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Argument,
    Return,
}

/// Refuses what cannot be on the wire, wherever it is within the type.
pub(crate) fn check(ty: &Type, place: Place, errors: &mut Errors) {
    Check { place, errors }.visit_type(ty);
}

/// Whether the type is a path that ends in `name`.
pub(crate) fn is_called(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|segment| segment.ident == name && segment.arguments.is_empty())
}

/// Whether the type is a path that ends in `name`, with or without arguments.
pub(crate) fn is_generic_called(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|segment| segment.ident == name)
}

/// The one type argument of a path that ends in `name`.
pub(crate) fn argument_of<'t>(ty: &'t Type, name: &str) -> Option<&'t Type> {
    let segment = last_segment(ty).filter(|segment| segment.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    let mut types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.next().filter(|_| types.next().is_none())
}

/// `[T, E]` of a `Result<T, E>`, and as many as there are of an alias that is called so.
pub(crate) fn arguments_of_result(ty: &Type) -> Option<Vec<&Type>> {
    let segment = last_segment(ty).filter(|segment| segment.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return Some(Vec::new()) };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    Some(types.collect())
}

fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) if path.qself.is_none() => path.path.segments.last(),
        // A `$t:ty` of the user's own macro comes in a group.
        Type::Group(group) => last_segment(&group.elem),
        Type::Paren(paren) => last_segment(&paren.elem),
        _ => None,
    }
}

/// Whether it is `()` by its look.
pub(crate) fn is_unit(ty: &Type) -> bool {
    match ty {
        Type::Tuple(tuple) => tuple.elems.is_empty(),
        Type::Group(group) => is_unit(&group.elem),
        Type::Paren(paren) => is_unit(&paren.elem),
        _ => false,
    }
}

/// Whether it is `()`, or a name that may stand for that.
pub(crate) fn may_be_unit(ty: &Type) -> bool {
    is_unit(ty) || last_segment(ty).is_some_and(|name| !OTHERS.iter().any(|other| name.ident == other))
}

/// Names of types that nobody gives to others.
const OTHERS: [&str; 19] = [
    "bool", "char", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128",
    "usize", "Bytes", "String", "Vec",
];

struct Check<'e> {
    place: Place,
    errors: &'e mut Errors,
}

impl<'ast> Visit<'ast> for Check<'_> {
    fn visit_type_reference(&mut self, reference: &'ast TypeReference) {
        let message = match (self.place, owned(&reference.elem)) {
            (Place::Argument, name) if name == "Context" => "take `Context`: it is a cheap handle".to_owned(),
            (Place::Argument, name) => {
                format!("take `{name}`; arguments are decoded from the wire and owned by the call")
            }
            (Place::Return, name) => format!("return `{name}`; what is returned may outlive the call to the service"),
        };
        self.errors.on(reference, message);
    }

    fn visit_lifetime(&mut self, lifetime: &'ast Lifetime) {
        if lifetime.ident != "static" {
            self.errors.on(lifetime, "types on the wire are owned: they can have no lifetime but `'static`");
        }
    }

    fn visit_type_impl_trait(&mut self, ty: &'ast TypeImplTrait) {
        self.errors.on(ty, "name the type; `impl Trait` does not say what is on the wire");
    }

    fn visit_type_trait_object(&mut self, ty: &'ast TypeTraitObject) {
        self.errors.on(ty, "name the type; `dyn Trait` does not say what is on the wire");
    }

    fn visit_path(&mut self, path: &'ast Path) {
        match path.segments.first() {
            Some(first) if path.leading_colon.is_none() && first.ident == "Self" => {
                self.errors.on(first, "name the type; `Self` is another one in the server and in the client");
            }
            _ => visit::visit_path(self, path),
        }
    }
}

/// What to take instead of a reference.
fn owned(ty: &Type) -> String {
    match ty {
        Type::Path(path) if path.path.is_ident("str") => "String".to_owned(),
        Type::Path(path) => match path.path.get_ident() {
            Some(name) => name.to_string(),
            None => "T".to_owned(),
        },
        Type::Slice(slice) => format!("Vec<{}>", owned(&slice.elem)),
        Type::Reference(reference) => owned(&reference.elem),
        ty => ty.to_token_stream().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn errors(ty: &Type) -> Vec<String> {
        let mut errors = Errors::default();
        check(ty, Place::Argument, &mut errors);
        errors.finish(()).map_or_else(|error| error.into_iter().map(|error| error.to_string()).collect(), |()| vec![])
    }

    #[test]
    fn owned_types_pass() {
        let types: [Type; 7] = [
            parse_quote!(String),
            parse_quote!(::std::borrow::Cow<'static, str>),
            parse_quote!([u8; N]),
            parse_quote!((u8, Option<Vec<u8>>)),
            parse_quote!(<Book as Shelf>::Id),
            parse_quote!(Self_),
            parse_quote!(crate::Page<{ 1 + 1 }>),
        ];
        for ty in &types {
            assert_eq!(errors(ty), [""; 0]);
        }
    }

    #[test]
    fn what_is_borrowed_is_refused_wherever_it_is() {
        let ty = parse_quote!(Option<(&str, Cow<'_, str>, &[u8], &mut Vec<u8>)>);
        let told = errors(&ty);
        assert_eq!(told.len(), 4);
        assert!(told[0].starts_with("take `String`;"), "{told:?}");
        assert!(told[1].starts_with("types on the wire are owned"), "{told:?}");
        assert!(told[2].starts_with("take `Vec<u8>`;"), "{told:?}");
        assert!(told[3].starts_with("take `T`;"), "{told:?}");
    }

    #[test]
    fn results_are_known_by_their_last_name() {
        let arguments = |ty: &Type| arguments_of_result(ty).map(|types| types.len());
        assert_eq!(arguments(&parse_quote!(Result<u8, Status>)), Some(2));
        assert_eq!(arguments(&parse_quote!((io::Result<u8>))), Some(1));
        assert_eq!(arguments(&parse_quote!(crate::Result)), Some(0));
        assert_eq!(arguments(&parse_quote!(Outcome<u8>)), None);
        assert_eq!(arguments(&parse_quote!(<X as Y>::Result<u8>)), None);
    }
}
