//! How settings stand in files: times, sizes and codecs, and what is off. For both ends.

use std::{any::type_name, fmt, marker::PhantomData, time::Duration};

use bytesize::ByteSize;
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, Error, MapAccess, Unexpected, Visitor,
        value::{MapAccessDeserializer, StrDeserializer},
    },
};

use crate::CodecId;

/// Reads settings from TOML.
///
/// # Errors
///
/// It is no TOML, has a name or a value that is not known, or values that do not go together.
pub fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, SettingsError> {
    toml::from_str(text).map_err(SettingsError)
}

/// A file of settings that says nothing sensible: what, and where if that is one place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct SettingsError(toml::de::Error);

/// Sets what a file has.
#[doc(hidden)]
pub fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

/// A time with its unit, as `"250ms"` and `"1m 30s"`. A number alone is none, `"0"` included: of what?
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// A number of bytes, as `65536` and `"64KiB"`; `"64KB"` are 64,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size<T = u64>(pub T);

/// A codec by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecName(pub CodecId);

/// What can be switched off by the word `"off"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrOff<T> {
    /// It is off.
    Off,
    /// It is on.
    On(T),
}

impl Time {
    /// How long it is.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl<T> Size<T> {
    /// How many bytes it is.
    pub fn get(self) -> T {
        self.0
    }
}

impl<T> OrOff<T> {
    /// `None` if it is off.
    pub fn on(self) -> Option<T> {
        match self {
            Self::Off => None,
            Self::On(value) => Some(value),
        }
    }
}

/// What stands in a file as a text.
trait Text: Sized {
    /// What is written there.
    fn describe(f: &mut fmt::Formatter<'_>) -> fmt::Result;

    fn parse(text: &str) -> Option<Self>;
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: Text> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::describe(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

impl Text for Time {
    fn describe(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time with its unit, such as \"250ms\"")
    }

    fn parse(text: &str) -> Option<Self> {
        // The parser takes a zero without one.
        let has_unit = text.contains(char::is_alphabetic);
        humantime::parse_duration(text).ok().filter(|_| has_unit).map(Self)
    }
}

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Size<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor(PhantomData))
    }
}

struct SizeVisitor<T>(PhantomData<T>);

impl<T: TryFrom<u64>> Visitor<'_> for SizeVisitor<T> {
    type Value = Size<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number of bytes that fits into {}, such as 65536 or \"64KiB\"", type_name::<T>())
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size<T>, E> {
        T::try_from(bytes).map(Size).map_err(|_| E::invalid_value(Unexpected::Unsigned(bytes), &self))
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size<T>, E> {
        match u64::try_from(bytes) {
            Ok(bytes) => self.visit_u64(bytes),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(bytes), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size<T>, E> {
        let bytes = text.parse::<ByteSize>().ok().and_then(|size| T::try_from(size.as_u64()).ok());
        bytes.map(Size).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for CodecName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

impl Text for CodecName {
    fn describe(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a codec: one of ")?;
        let names = NAMED.map(|codec| format!("`{}`", codec.name()));
        f.write_str(&names.join(", "))
    }

    fn parse(text: &str) -> Option<Self> {
        NAMED.into_iter().find(|codec| codec.name() == text).map(Self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrOff<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OrOffVisitor(PhantomData))
    }
}

struct OrOffVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OrOffVisitor<T> {
    type Value = OrOff<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"off\", or what it is")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<OrOff<T>, E> {
        match text {
            "off" => Ok(OrOff::Off),
            _ => T::deserialize(StrDeserializer::new(text)).map(OrOff::On),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<OrOff<T>, E> {
        T::deserialize(serde::de::value::U64Deserializer::new(number)).map(OrOff::On)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<OrOff<T>, E> {
        T::deserialize(serde::de::value::I64Deserializer::new(number)).map(OrOff::On)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OrOff<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(OrOff::On)
    }
}

/// Bytes are none: every server takes them.
const NAMED: [CodecId; 4] = [CodecId::BINCODE, CodecId::POSTCARD, CodecId::JSON, CodecId::MESSAGE_PACK];

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct All {
        time: Option<Time>,
        size: Option<Size>,
        short: Option<Size<u32>>,
        codec: Option<CodecName>,
        off: Option<OrOff<Time>>,
        size_or_off: Option<OrOff<Size<u32>>>,
    }

    #[test]
    fn times_sizes_and_codecs_are_as_people_write_them() {
        let all: All = from_toml(
            "time = '1m 30s'\nsize = '1.5MiB'\nshort = 70_000\ncodec = 'json'\noff = 'off'\nsize_or_off = '16KB'",
        )
        .unwrap();
        let expected = All {
            time: Some(Time(Duration::from_secs(90))),
            size: Some(Size(3 << 19)),
            short: Some(Size(70_000)),
            codec: Some(CodecName(CodecId::JSON)),
            off: Some(OrOff::Off),
            size_or_off: Some(OrOff::On(Size(16_000))),
        };
        assert_eq!(all, expected);
        assert_eq!(from_toml::<All>("size_or_off = 5").unwrap().size_or_off, Some(OrOff::On(Size(5))));
        assert_eq!(from_toml::<All>("time = '0s'").unwrap().time, Some(Time(Duration::ZERO)));
    }

    #[test]
    fn what_is_none_is_refused_with_an_example_of_what_would_be() {
        for (text, said) in [
            ("time = 250", "such as \"250ms\""),
            ("time = '250'", "such as \"250ms\""),
            ("time = '0'", "such as \"250ms\""),
            ("codec = 5", "one of `bincode`, `postcard`, `json`, `messagepack`"),
            ("time = '-1s'", "such as \"250ms\""),
            ("size = -1", "such as 65536 or \"64KiB\""),
            ("size = 'large'", "such as 65536 or \"64KiB\""),
            ("short = '4GiB'", "fits into u32"),
            ("size_or_off = '4GiB'", "fits into u32"),
            ("codec = 'bytes'", "one of `bincode`, `postcard`, `json`, `messagepack`"),
            ("off = 'never'", "such as \"250ms\""),
            ("off = 5", "such as \"250ms\""),
            ("off = false", "\"off\", or what it is"),
            ("of = 'off'", "unknown field `of`"),
        ] {
            let error = from_toml::<All>(text).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("line 1"), "{text}: {error}");
        }
    }
}
