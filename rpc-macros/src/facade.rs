//! How the facade is called in the crate that the trait stands in.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::Span;
use syn::{Ident, Path, parse_quote};

/// The facade's path, by the name that the `Cargo.toml` of the crate being compiled has for it.
///
/// It is `::sluicegate` where that names none: in the facade's own package, whose tests and examples
/// know it so, and where the crate is passed on by another, which has to be said with `crate = ".."`.
pub(crate) fn path() -> Path {
    match crate_name("sluicegate") {
        Ok(FoundCrate::Name(name)) => {
            let name = Ident::new(&name, Span::call_site());
            parse_quote!(::#name)
        }
        Ok(FoundCrate::Itself) | Err(_) => parse_quote!(::sluicegate),
    }
}
