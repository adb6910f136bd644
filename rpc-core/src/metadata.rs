//! Ordered key/value pairs that travel with a call or its answer.

use std::fmt;

/// Ordered key/value pairs, kept in the form they have on the wire.
///
/// Keys are 1 to 255 characters of `a-z`, `0-9`, `-`, `_` and `.`; values are any bytes up to
/// 65,535. There are at most [`Metadata::MAX_ENTRIES`] pairs in at most [`Metadata::MAX_LEN`] bytes
/// (keys, values and three bytes for each pair). A key may stand several times. Keys that begin with
/// `sg-` are the framework's own. Empty metadata allocates nothing.
///
/// ```
/// # use rpc_core::Metadata;
/// let mut metadata = Metadata::new();
/// metadata.insert("tenant", "acme")?;
/// assert_eq!(metadata.get_str("tenant"), Some("acme"));
/// # Ok::<(), rpc_core::MetadataError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// As on the wire: the count, then the pairs; `None` without any pair. A boxed slice and not a
    /// vector because two words move in registers, and every call moves this a few times.
    encoded: Option<Box<[u8]>>,
}

impl Metadata {
    /// The greatest number of pairs.
    pub const MAX_ENTRIES: usize = 64;
    /// The greatest length in bytes, without the byte that counts the pairs.
    pub const MAX_LEN: usize = 16 * 1024;

    /// No pairs.
    pub const fn new() -> Self {
        Self { encoded: None }
    }

    /// Adds a pair behind the others.
    ///
    /// # Errors
    ///
    /// The key is not of the allowed form or is reserved, or a bound would be passed. Nothing is
    /// added then.
    pub fn insert(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        if key.starts_with(RESERVED_PREFIX) {
            return Err(MetadataError::ReservedKey);
        }
        self.insert_reserved(key, value)
    }

    /// Adds a pair whose key may begin with `sg-`; for the framework and its extensions.
    ///
    /// # Errors
    ///
    /// As for [`Metadata::insert`], but for the reserved prefix.
    pub fn insert_reserved(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        let value = value.as_ref();
        check_key(key.as_bytes())?;
        let value_len = u16::try_from(value.len()).map_err(|_| MetadataError::ValueTooLong { len: value.len() })?;
        if self.len() == Self::MAX_ENTRIES {
            return Err(MetadataError::TooManyEntries { max: Self::MAX_ENTRIES });
        }
        let len = self.pairs().len() + 3 + key.len() + value.len();
        if len > Self::MAX_LEN {
            return Err(MetadataError::TooLong { len, max: Self::MAX_LEN });
        }
        let mut encoded = Vec::with_capacity(1 + len);
        encoded.push(self.count() + 1);
        encoded.extend_from_slice(self.pairs());
        encoded.push(key.len() as u8);
        encoded.extend_from_slice(key.as_bytes());
        encoded.extend_from_slice(&value_len.to_be_bytes());
        encoded.extend_from_slice(value);
        self.encoded = Some(encoded.into());
        Ok(())
    }

    /// The first value under `key`.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// The first value under `key`, if it is UTF-8.
    pub fn get_str(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.get(key)?).ok()
    }

    /// All pairs in their order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { rest: self.pairs() }
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        usize::from(self.count())
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.encoded.is_none()
    }

    /// The length on the wire in bytes.
    pub fn encoded_len(&self) -> usize {
        1 + self.pairs().len()
    }

    /// Appends the pairs as they stand on the wire: a count, then each pair.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.count());
        out.extend_from_slice(self.pairs());
    }

    /// Reads metadata from the front of `buf`, and says how many bytes it took.
    ///
    /// Every bound is checked before memory is reserved.
    ///
    /// # Errors
    ///
    /// The bytes are cut short, or break one of the rules that [`Metadata::insert`] keeps.
    pub fn decode(buf: &[u8]) -> Result<(Self, usize), MetadataError> {
        let (&count, rest) = buf.split_first().ok_or(MetadataError::Truncated)?;
        if count == 0 {
            return Ok((Self::new(), 1));
        }
        if usize::from(count) > Self::MAX_ENTRIES {
            return Err(MetadataError::TooManyEntries { max: Self::MAX_ENTRIES });
        }
        let mut left = rest;
        for _ in 0..count {
            let (key, _, after) = split_pair(left).ok_or(MetadataError::Truncated)?;
            check_key(key)?;
            left = after;
            let len = rest.len() - left.len();
            if len > Self::MAX_LEN {
                return Err(MetadataError::TooLong { len, max: Self::MAX_LEN });
            }
        }
        let len = rest.len() - left.len();
        let mut encoded = Vec::with_capacity(1 + len);
        encoded.push(count);
        encoded.extend_from_slice(&rest[..len]);
        Ok((Self { encoded: Some(encoded.into()) }, 1 + len))
    }

    fn count(&self) -> u8 {
        self.encoded.as_deref().map_or(0, |encoded| encoded[0])
    }

    fn pairs(&self) -> &[u8] {
        self.encoded.as_deref().map_or(&[], |encoded| &encoded[1..])
    }
}

impl fmt::Debug for Metadata {
    /// Keys and lengths; values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(key, value)| (key, format_args!("{} bytes", value.len()).to_string())))
            .finish()
    }
}

impl<'a> IntoIterator for &'a Metadata {
    type Item = (&'a str, &'a [u8]);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// The pairs of a [`Metadata`] in their order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value, rest) = split_pair(self.rest)?;
        self.rest = rest;
        Some((std::str::from_utf8(key).ok()?, value))
    }
}

/// Why a pair, or metadata from a peer, is refused. It costs the call that carries it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is empty, longer than 255, or has a character outside `a-z 0-9 - _ .`.
    #[error("metadata key must be 1 to 255 characters of a-z, 0-9, '-', '_' and '.'")]
    InvalidKey,
    /// The key begins with `sg-`.
    #[error("metadata keys that begin with 'sg-' are reserved")]
    ReservedKey,
    /// A value is longer than its length field can say.
    #[error("metadata value has {len} bytes, more than 65535")]
    ValueTooLong {
        /// The value's length.
        len: usize,
    },
    /// More pairs than allowed.
    #[error("metadata has more than {max} entries")]
    TooManyEntries {
        /// The bound.
        max: usize,
    },
    /// More bytes than allowed.
    #[error("metadata has {len} bytes, more than {max}")]
    TooLong {
        /// The length with the pair that broke the bound.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// The bytes end inside a pair.
    #[error("metadata is cut short")]
    Truncated,
}

const RESERVED_PREFIX: &str = "sg-";

fn check_key(key: &[u8]) -> Result<(), MetadataError> {
    let allowed = |b: &u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    if key.is_empty() || key.len() > usize::from(u8::MAX) || !key.iter().all(allowed) {
        return Err(MetadataError::InvalidKey);
    }
    Ok(())
}

fn split_pair(buf: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&key_len, rest) = buf.split_first()?;
    let (key, rest) = rest.split_at_checked(usize::from(key_len))?;
    let (value_len, rest) = rest.split_first_chunk::<2>()?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*value_len)))?;
    Some((key, value, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pairs_keep_their_order_and_may_repeat() {
        let mut metadata = Metadata::new();
        metadata.insert("b", "1").unwrap();
        metadata.insert("a", [0xff]).unwrap();
        metadata.insert("b", "2").unwrap();
        let pairs: Vec<_> = metadata.iter().collect();
        assert_eq!(pairs, [("b", &b"1"[..]), ("a", &[0xff][..]), ("b", b"2")]);
        assert_eq!(metadata.get("b"), Some(&b"1"[..]));
        assert_eq!(metadata.get_str("a"), None);
    }

    #[test]
    fn every_bound_holds_at_its_edge() {
        let mut metadata = Metadata::new();
        assert_eq!(metadata.insert("", ""), Err(MetadataError::InvalidKey));
        assert_eq!(metadata.insert(&"k".repeat(256), ""), Err(MetadataError::InvalidKey));
        assert_eq!(metadata.insert("Upper", ""), Err(MetadataError::InvalidKey));
        assert_eq!(metadata.insert("sg-trace", ""), Err(MetadataError::ReservedKey));
        assert_eq!(metadata.insert("k", vec![0; 65_536]), Err(MetadataError::ValueTooLong { len: 65_536 }));
        metadata.insert("k", vec![0; Metadata::MAX_LEN - 4]).unwrap();
        assert!(matches!(metadata.insert("k", ""), Err(MetadataError::TooLong { .. })));
        let mut many = Metadata::new();
        (0..64).for_each(|_| many.insert("k", "").unwrap());
        assert!(matches!(many.insert("k", ""), Err(MetadataError::TooManyEntries { .. })));
    }

    #[test]
    fn debug_hides_values() {
        let mut metadata = Metadata::new();
        metadata.insert("authorization", "secret").unwrap();
        assert!(!format!("{metadata:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn what_is_inserted_comes_back(pairs in prop::collection::vec(("[a-z0-9._-]{1,40}", prop::collection::vec(any::<u8>(), 0..200)), 0..64)) {
            let mut metadata = Metadata::new();
            for (key, value) in &pairs {
                metadata.insert_reserved(key, value).unwrap();
            }
            let mut wire = Vec::new();
            metadata.encode(&mut wire);
            prop_assert_eq!(wire.len(), metadata.encoded_len());
            wire.push(0x5a);
            let (decoded, len) = Metadata::decode(&wire).unwrap();
            prop_assert_eq!(len, wire.len() - 1);
            prop_assert_eq!(&decoded, &metadata);
            prop_assert_eq!(decoded.iter().count(), pairs.len());
        }

        #[test]
        fn any_bytes_decode_or_fail_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok((metadata, len)) = Metadata::decode(&bytes) {
                prop_assert!(len <= bytes.len());
                prop_assert_eq!(metadata.iter().count(), metadata.len());
            }
        }
    }
}
