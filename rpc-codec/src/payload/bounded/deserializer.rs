//! The wrapping `Deserializer`: what a type asks for goes through, what it is given gets wrapped.

use serde::de::{DeserializeSeed, Deserializer, Visitor};

use super::Budget;
use super::visitor::{Bounded, Claimed, Fixed};

/// A seed, and the bounds it grows in.
pub(in super::super) struct Seed<'b, T> {
    seed: T,
    budget: &'b mut Budget,
    depth: usize,
}

impl<'b, T> Seed<'b, T> {
    /// The seed of a whole body.
    #[inline]
    pub(in super::super) fn root(seed: T, budget: &'b mut Budget) -> Self {
        let depth = budget.max_depth;
        Self { seed, budget, depth }
    }

    #[inline]
    pub(super) fn below(seed: T, budget: &'b mut Budget, depth: usize) -> Self {
        Self { seed, budget, depth }
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Seed<'_, T> {
    type Value = T::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        let Self { seed, budget, depth } = self;
        seed.deserialize(BoundedDeserializer { inner, budget, depth })
    }
}

/// A deserializer that bounds another one.
pub(super) struct BoundedDeserializer<'b, D> {
    inner: D,
    budget: &'b mut Budget,
    depth: usize,
}

impl<'b, D> BoundedDeserializer<'b, D> {
    #[inline]
    pub(super) fn new(inner: D, budget: &'b mut Budget, depth: usize) -> Self {
        Self { inner, budget, depth }
    }
}

/// Requests whose answer has no parts.
macro_rules! forward {
    ($($request:ident $(as $inner:ident)?),* $(,)?) => {$(
        forward!(@one $request $(as $inner)? );
    )*};
    (@one $request:ident) => { forward!(@one $request as $request); };
    (@one $request:ident as $inner:ident) => {
        #[inline]
        fn $request<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$inner(visitor)
        }
    };
}

/// Requests whose answer may have parts. `Fixed` ones have as many as the type says.
macro_rules! bound {
    ($($length:ident: $request:ident($($arg:ident: $ty:ty),*) $(as $inner:ident)?),* $(,)?) => {$(
        bound!(@one $length, $request($($arg: $ty),*) $(as $inner)?);
    )*};
    (@one $length:ident, $request:ident($($arg:ident: $ty:ty),*)) => {
        bound!(@one $length, $request($($arg: $ty),*) as $request);
    };
    (@one $length:ident, $request:ident($($arg:ident: $ty:ty),*) as $inner:ident) => {
        #[inline]
        fn $request<V: Visitor<'de>>(self, $($arg: $ty,)* visitor: V) -> Result<V::Value, D::Error> {
            let Self { inner, budget, depth } = self;
            inner.$inner($($arg,)* Bounded::<_, $length>::new(visitor, budget, depth))
        }
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for BoundedDeserializer<'_, D> {
    type Error = D::Error;

    forward! {
        deserialize_bool,
        deserialize_i8, deserialize_i16, deserialize_i32, deserialize_i64, deserialize_i128,
        deserialize_u8, deserialize_u16, deserialize_u32, deserialize_u64, deserialize_u128,
        deserialize_f32, deserialize_f64,
        deserialize_char,
        deserialize_str, deserialize_string as deserialize_str,
        deserialize_unit,
        deserialize_identifier,
    }

    bound! {
        Claimed: deserialize_any(),
        Claimed: deserialize_ignored_any(),
        // A format may answer a request for bytes with a sequence.
        Claimed: deserialize_bytes(),
        Claimed: deserialize_byte_buf() as deserialize_bytes,
        Claimed: deserialize_option(),
        Claimed: deserialize_newtype_struct(name: &'static str),
        Claimed: deserialize_seq(),
        Claimed: deserialize_map(),
        Fixed: deserialize_tuple(len: usize),
        Fixed: deserialize_tuple_struct(name: &'static str, len: usize),
        Fixed: deserialize_struct(name: &'static str, fields: &'static [&'static str]),
        Fixed: deserialize_enum(name: &'static str, variants: &'static [&'static str]),
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}
