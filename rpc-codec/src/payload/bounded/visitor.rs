//! The wrapping `Visitor`, and the accesses it hands to the type's own.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};

use super::deserializer::{BoundedDeserializer, Seed};
use super::{Budget, ELEMENT, ENTRY};

/// Who says how many parts a value has: a type, so that what is free costs nothing.
pub(super) trait Length {
    /// What is known about the payment while the parts arrive.
    type Payment;

    /// Pays for the parts that `hint` tells of.
    fn ahead<E: Error>(budget: &mut Budget, hint: Option<usize>, each: usize) -> Result<Self::Payment, E>;

    /// Pays for a part that has arrived, unless that was done ahead.
    fn arrived<E: Error>(payment: &Self::Payment, budget: &mut Budget, each: usize) -> Result<(), E>;

    /// For how many of the parts that `hint` tells of memory may be reserved.
    fn reservable(payment: &Self::Payment, budget: &Budget, hint: Option<usize>) -> Option<usize>;
}

/// The type says it, so there is nothing to pay.
pub(super) struct Fixed;

impl Length for Fixed {
    type Payment = ();

    #[inline]
    fn ahead<E: Error>(_: &mut Budget, _: Option<usize>, _: usize) -> Result<(), E> {
        Ok(())
    }

    #[inline]
    fn arrived<E: Error>((): &(), _: &mut Budget, _: usize) -> Result<(), E> {
        Ok(())
    }

    #[inline]
    fn reservable((): &(), budget: &Budget, hint: Option<usize>) -> Option<usize> {
        // A format may tell here, too, what the body claims.
        hint.map(|hint| hint.min(budget.reservable()))
    }
}

/// The body says it. A format that tells a number at all tells an exact one, and all of it is paid
/// for then; the payment is for how many memory may be reserved. Otherwise each part pays for itself.
pub(super) struct Claimed;

impl Length for Claimed {
    type Payment = Option<usize>;

    #[inline]
    fn ahead<E: Error>(budget: &mut Budget, hint: Option<usize>, each: usize) -> Result<Option<usize>, E> {
        hint.map(|len| budget.pay(len, each)).transpose()
    }

    #[inline]
    fn arrived<E: Error>(payment: &Option<usize>, budget: &mut Budget, each: usize) -> Result<(), E> {
        match payment {
            Some(_) => Ok(()),
            None => budget.pay(1, each).map(|_| ()),
        }
    }

    #[inline]
    fn reservable(payment: &Option<usize>, _: &Budget, hint: Option<usize>) -> Option<usize> {
        hint.map(|hint| hint.min(payment.unwrap_or(0)))
    }
}

/// A visitor, or an access for one, and the bounds it works in.
pub(super) struct Bounded<'b, V, L> {
    inner: V,
    budget: &'b mut Budget,
    depth: usize,
    length: PhantomData<L>,
}

impl<'b, V, L> Bounded<'b, V, L> {
    #[inline]
    pub(super) fn new(inner: V, budget: &'b mut Budget, depth: usize) -> Self {
        Self { inner, budget, depth, length: PhantomData }
    }
}

macro_rules! forward {
    ($($visit:ident($ty:ty)),* $(,)?) => {$(
        #[inline]
        fn $visit<E: Error>(self, value: $ty) -> Result<V::Value, E> {
            self.inner.$visit(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>, L: Length> Visitor<'de> for Bounded<'_, V, L> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    forward! {
        visit_bool(bool),
        visit_i8(i8), visit_i16(i16), visit_i32(i32), visit_i64(i64), visit_i128(i128),
        visit_u8(u8), visit_u16(u16), visit_u32(u32), visit_u64(u64), visit_u128(u128),
        visit_f32(f32), visit_f64(f64),
        visit_char(char),
        visit_str(&str), visit_borrowed_str(&'de str), visit_string(String),
        visit_bytes(&[u8]), visit_borrowed_bytes(&'de [u8]), visit_byte_buf(Vec<u8>),
    }

    #[inline]
    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    #[inline]
    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let depth = self.budget.descend(self.depth)?;
        self.inner.visit_some(BoundedDeserializer::new(inner, self.budget, depth))
    }

    #[inline]
    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let depth = self.budget.descend(self.depth)?;
        self.inner.visit_newtype_struct(BoundedDeserializer::new(inner, self.budget, depth))
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let depth = self.budget.descend(self.depth)?;
        let payment = L::ahead(self.budget, access.size_hint(), ELEMENT)?;
        self.inner.visit_seq(Parts::<_, L> { access, budget: self.budget, depth, payment })
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let depth = self.budget.descend(self.depth)?;
        let payment = L::ahead(self.budget, access.size_hint(), ENTRY)?;
        self.inner.visit_map(Parts::<_, L> { access, budget: self.budget, depth, payment })
    }

    #[inline]
    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let depth = self.budget.descend(self.depth)?;
        self.inner.visit_enum(Bounded::<_, Fixed>::new(access, self.budget, depth))
    }
}

/// The elements of a sequence, or the entries of a map.
struct Parts<'b, A, L: Length> {
    access: A,
    budget: &'b mut Budget,
    depth: usize,
    payment: L::Payment,
}

impl<'de, A: SeqAccess<'de>, L: Length> SeqAccess<'de> for Parts<'_, A, L> {
    type Error = A::Error;

    #[inline]
    fn next_element_seed<T>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error>
    where
        T: DeserializeSeed<'de>,
    {
        let seed = Seed::below(seed, self.budget, self.depth);
        let element = self.access.next_element_seed(seed)?;
        if element.is_some() {
            L::arrived(&self.payment, self.budget, ELEMENT)?;
        }
        Ok(element)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        L::reservable(&self.payment, self.budget, self.access.size_hint())
    }
}

impl<'de, A: MapAccess<'de>, L: Length> MapAccess<'de> for Parts<'_, A, L> {
    type Error = A::Error;

    #[inline]
    fn next_key_seed<K>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error>
    where
        K: DeserializeSeed<'de>,
    {
        let seed = Seed::below(seed, self.budget, self.depth);
        let key = self.access.next_key_seed(seed)?;
        if key.is_some() {
            L::arrived(&self.payment, self.budget, ENTRY)?;
        }
        Ok(key)
    }

    #[inline]
    fn next_value_seed<T>(&mut self, seed: T) -> Result<T::Value, A::Error>
    where
        T: DeserializeSeed<'de>,
    {
        self.access.next_value_seed(Seed::below(seed, self.budget, self.depth))
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        L::reservable(&self.payment, self.budget, self.access.size_hint())
    }
}

impl<'de, 'b, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'b, A, Fixed> {
    type Error = A::Error;
    type Variant = Bounded<'b, A::Variant, Fixed>;

    #[inline]
    fn variant_seed<T>(self, seed: T) -> Result<(T::Value, Self::Variant), A::Error>
    where
        T: DeserializeSeed<'de>,
    {
        let Self { inner, budget, depth, .. } = self;
        let (tag, variant) = inner.variant_seed(Seed::below(seed, budget, depth))?;
        Ok((tag, Bounded::new(variant, budget, depth)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A, Fixed> {
    type Error = A::Error;

    #[inline]
    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    #[inline]
    fn newtype_variant_seed<T>(self, seed: T) -> Result<T::Value, A::Error>
    where
        T: DeserializeSeed<'de>,
    {
        self.inner.newtype_variant_seed(Seed::below(seed, self.budget, self.depth))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = Bounded::<_, Fixed>::new(visitor, self.budget, self.depth);
        self.inner.tuple_variant(len, visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = Bounded::<_, Fixed>::new(visitor, self.budget, self.depth);
        self.inner.struct_variant(fields, visitor)
    }
}
