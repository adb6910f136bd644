//! Limits of a method, or of each method of a service: `max_concurrent_calls`, `weight`, `pool`.

use proc_macro2::TokenStream;
use quote::quote_spanned;
use syn::{LitInt, LitStr, meta::ParseNestedMeta};

use crate::{
    errors::Errors,
    options::{once, set},
};

/// What is set; numbers as they were written.
#[derive(Clone, Default)]
pub(crate) struct Limits {
    max_concurrent_calls: Option<LitInt>,
    weight: Option<LitInt>,
    pool: Option<String>,
}

impl Limits {
    /// Reads one of the options, `None` if it is not one of these.
    pub(crate) fn read(
        &mut self,
        key: &str,
        meta: &ParseNestedMeta<'_>,
        errors: &mut Errors,
    ) -> Option<syn::Result<()>> {
        match key {
            "max_concurrent_calls" => Some(number::<u64>(&mut self.max_concurrent_calls, meta, errors)),
            "weight" => Some(number::<u32>(&mut self.weight, meta, errors)),
            "pool" => Some(set(&mut self.pool, meta, name, errors)),
            _ => None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.max_concurrent_calls.is_none() && self.weight.is_none() && self.pool.is_none()
    }

    /// What sets these on a value of the facade's, to be written behind it.
    pub(crate) fn setters(&self) -> TokenStream {
        let span = proc_macro2::Span::mixed_site();
        let max = self.max_concurrent_calls.iter().map(|max| quote_spanned!(span=> .max_concurrent_calls(#max)));
        let weight = self.weight.iter().map(|weight| quote_spanned!(span=> .weight(#weight)));
        let pool = self.pool.iter().map(|pool| quote_spanned!(span=> .pool(#pool)));
        max.chain(weight).chain(pool).collect()
    }
}

/// Reads `= 8`, at least 1.
fn number<T>(option: &mut Option<LitInt>, meta: &ParseNestedMeta<'_>, errors: &mut Errors) -> syn::Result<()>
where
    T: std::str::FromStr + Default + PartialEq,
    T::Err: std::fmt::Display,
{
    let literal: LitInt = meta.value()?.parse()?;
    match literal.base10_parse::<T>() {
        Ok(zero) if zero == T::default() => errors.on(&literal, "at least 1; for no limit, leave it out"),
        Ok(_) => once(option, meta, LitInt::new(literal.base10_digits(), literal.span()), errors),
        Err(error) => errors.push(error),
    }
    Ok(())
}

fn name(value: &LitStr) -> syn::Result<String> {
    match value.value() {
        name if name.is_empty() => Err(syn::Error::new(value.span(), "a pool has a name")),
        name => Ok(name),
    }
}
