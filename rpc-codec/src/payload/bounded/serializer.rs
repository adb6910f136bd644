//! The wrapping `Serializer`: encoding stops where the other side's decoding would.
//!
//! It counts as the decoder does, so a value too deep or with too many empty elements costs the call
//! that sends it, here, and says so, and a long list of a service's own does not exhaust the stack.
//! It also sees what a format with positions instead of names would silently get wrong.

use std::cell::Cell;
use std::fmt::Display;

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::{ELEMENT, ENTRY, SLACK};
use crate::payload::{CodecId, PayloadError};

/// What a format knows a field by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Shape {
    /// Its position: none may be left out.
    Positions,
    /// Its name.
    #[cfg_attr(not(any(feature = "json", feature = "messagepack")), expect(dead_code, reason = "they have names"))]
    Names,
}

/// What one value has used of the bounds while it is encoded, and which of them it broke.
#[derive(Debug)]
pub(in super::super) struct Tally {
    codec: CodecId,
    shape: Shape,
    max_depth: usize,
    elements: Cell<usize>,
    broken: Cell<Option<Broken>>,
}

#[derive(Debug, Clone, Copy)]
enum Broken {
    Depth,
    Skipped(&'static str),
}

impl Tally {
    #[inline]
    pub(in super::super) fn new(codec: CodecId, shape: Shape, max_depth: usize) -> Self {
        Self { codec, shape, max_depth, elements: Cell::new(0), broken: Cell::new(None) }
    }

    /// The bound that was broken, if one was.
    pub(in super::super) fn broken(&self) -> Option<PayloadError> {
        let codec = self.codec;
        self.broken.get().map(|broken| match broken {
            Broken::Depth => PayloadError::TooDeep { max: self.max_depth },
            Broken::Skipped(field) => PayloadError::SkippedField { codec, field },
        })
    }

    /// Checks that a decoder given these `len` bytes would allow as many elements.
    #[inline]
    pub(in super::super) fn settle(&self, len: usize) -> Result<(), PayloadError> {
        let (claimed, max) = (self.elements.get(), len.saturating_add(SLACK));
        if claimed <= max { Ok(()) } else { Err(PayloadError::TooManyElements { claimed, max }) }
    }

    #[inline]
    fn count(&self, claimed: Option<usize>, each: usize) {
        let more = claimed.unwrap_or(0).saturating_mul(each);
        self.elements.set(self.elements.get().saturating_add(more));
    }

    #[inline]
    fn descend<E: Error>(&self, depth: usize) -> Result<usize, E> {
        match depth.checked_sub(1) {
            Some(below) => Ok(below),
            None => Err(self.too_deep()),
        }
    }

    #[inline]
    fn skip<E: Error>(&self, field: &'static str) -> Result<(), E> {
        match self.shape {
            Shape::Names => Ok(()),
            Shape::Positions => Err(self.skipped(field)),
        }
    }

    #[cold]
    fn too_deep<E: Error>(&self) -> E {
        self.broken.set(Some(Broken::Depth));
        E::custom("too deep")
    }

    #[cold]
    fn skipped<E: Error>(&self, field: &'static str) -> E {
        self.broken.set(Some(Broken::Skipped(field)));
        E::custom("skipped field")
    }
}

/// A value, and the bounds it is serialized in.
pub(in super::super) struct Value<'t, 'v, T: ?Sized> {
    value: &'v T,
    tally: &'t Tally,
    depth: usize,
}

impl<'t, 'v, T: ?Sized> Value<'t, 'v, T> {
    /// The value of a whole body.
    #[inline]
    pub(in super::super) fn root(value: &'v T, tally: &'t Tally) -> Self {
        Self { value, tally, depth: tally.max_depth }
    }
}

impl<T: Serialize + ?Sized> Serialize for Value<'_, '_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, inner: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Bounded { inner, tally: self.tally, depth: self.depth })
    }
}

/// A serializer, or a compound of one, and the bounds it works in.
struct Bounded<'t, S> {
    inner: S,
    tally: &'t Tally,
    depth: usize,
}

impl<'t, S> Bounded<'t, S> {
    /// The serializer and the bounds of a level below.
    #[inline]
    fn descend<E: Error>(self) -> Result<(S, &'t Tally, usize), E> {
        let depth = self.tally.descend(self.depth)?;
        Ok((self.inner, self.tally, depth))
    }
}

macro_rules! forward {
    ($($put:ident($ty:ty)),* $(,)?) => {$(
        #[inline]
        fn $put(self, value: $ty) -> Result<S::Ok, S::Error> {
            self.inner.$put(value)
        }
    )*};
}

impl<'t, S: Serializer> Serializer for Bounded<'t, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Bounded<'t, S::SerializeSeq>;
    type SerializeTuple = Bounded<'t, S::SerializeTuple>;
    type SerializeTupleStruct = Bounded<'t, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Bounded<'t, S::SerializeTupleVariant>;
    type SerializeMap = Bounded<'t, S::SerializeMap>;
    type SerializeStruct = Bounded<'t, S::SerializeStruct>;
    type SerializeStructVariant = Bounded<'t, S::SerializeStructVariant>;

    forward! {
        serialize_bool(bool),
        serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64),
        serialize_i128(i128),
        serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64),
        serialize_u128(u128),
        serialize_f32(f32), serialize_f64(f64),
        serialize_char(char), serialize_str(&str), serialize_bytes(&[u8]),
        serialize_unit_struct(&'static str),
    }

    #[inline]
    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit()
    }

    #[inline]
    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_none()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        inner.serialize_some(&Value { value, tally, depth })
    }

    #[inline]
    fn serialize_unit_variant(self, name: &'static str, index: u32, variant: &'static str) -> Result<S::Ok, S::Error> {
        let (inner, ..) = self.descend()?;
        inner.serialize_unit_variant(name, index, variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        inner.serialize_newtype_struct(name, &Value { value, tally, depth })
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        inner.serialize_newtype_variant(name, index, variant, &Value { value, tally, depth })
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        tally.count(len, ELEMENT);
        Ok(Bounded { inner: inner.serialize_seq(len)?, tally, depth })
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        tally.count(len, ENTRY);
        Ok(Bounded { inner: inner.serialize_map(len)?, tally, depth })
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        Ok(Bounded { inner: inner.serialize_tuple(len)?, tally, depth })
    }

    #[inline]
    fn serialize_tuple_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeTupleStruct, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        Ok(Bounded { inner: inner.serialize_tuple_struct(name, len)?, tally, depth })
    }

    #[inline]
    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        Ok(Bounded { inner: inner.serialize_struct(name, len)?, tally, depth })
    }

    // The enum is one level and the fields of its variant are another.

    #[inline]
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        let depth = tally.descend(depth)?;
        Ok(Bounded { inner: inner.serialize_tuple_variant(name, index, variant, len)?, tally, depth })
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        let (inner, tally, depth) = self.descend()?;
        let depth = tally.descend(depth)?;
        Ok(Bounded { inner: inner.serialize_struct_variant(name, index, variant, len)?, tally, depth })
    }

    #[inline]
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Compounds: each part is wrapped, and the rest goes through.
macro_rules! compound {
    ($($compound:ident { $($put:ident)* $(; $named:ident)? })*) => {$(
        impl<S: $compound> $compound for Bounded<'_, S> {
            type Ok = S::Ok;
            type Error = S::Error;

            $(
                #[inline]
                fn $put<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
                    self.inner.$put(&Value { value, tally: self.tally, depth: self.depth })
                }
            )*

            $(
                #[inline]
                fn $named<T: Serialize + ?Sized>(
                    &mut self,
                    key: &'static str,
                    value: &T,
                ) -> Result<(), S::Error> {
                    let (tally, depth) = (self.tally, self.depth);
                    self.inner.$named(key, &Value { value, tally, depth })
                }

                #[inline]
                fn skip_field(&mut self, key: &'static str) -> Result<(), S::Error> {
                    self.tally.skip(key)?;
                    self.inner.skip_field(key)
                }
            )?

            #[inline]
            fn end(self) -> Result<S::Ok, S::Error> {
                self.inner.end()
            }
        }
    )*};
}

compound! {
    SerializeSeq { serialize_element }
    SerializeTuple { serialize_element }
    SerializeTupleStruct { serialize_field }
    SerializeTupleVariant { serialize_field }
    SerializeMap { serialize_key serialize_value }
    SerializeStruct { ; serialize_field }
    SerializeStructVariant { ; serialize_field }
}
