//! Types that bodies are decoded as: one for each way in which a body can mislead a decoder.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Every primitive, and what nests without recursion.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Everything {
    small: (u8, u16, u32, u64, u128, i8, i16, i32, i64, i128),
    flag: bool,
    letter: char,
    ratio: Ratio,
    unit: (),
    fixed: [u16; 3],
    text: String,
    nested: Option<Option<u8>>,
    choice: Choice,
    result: Result<u8, String>,
}

/// A float that equals itself, whatever it is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ratio(f64, f32);

impl PartialEq for Ratio {
    fn eq(&self, other: &Self) -> bool {
        (self.0.to_bits(), self.1.to_bits()) == (other.0.to_bits(), other.1.to_bits())
    }
}

/// Every form of a variant.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Choice {
    Unit,
    Newtype(u32),
    Tuple(u8, Option<bool>),
    Struct { left: String, right: Vec<Self> },
}

/// Fields of bytes, which codecs treat in ways of their own.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Blobs {
    #[serde(with = "sluicegate::bytes")]
    vec: Vec<u8>,
    #[serde(with = "sluicegate::bytes")]
    shared: Option<Bytes>,
    #[serde(with = "sluicegate::bytes")]
    digest: [u8; 33],
    #[serde(with = "sluicegate::bytes")]
    boxed: Box<[u8]>,
}

/// What borrows from the body.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Borrowed<'a> {
    text: &'a str,
    #[serde(borrow)]
    maybe: Option<std::borrow::Cow<'a, str>>,
}

/// Many ways to recurse.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Tree {
    Leaf(u64),
    Pair(Box<Self>, Box<Self>),
    Many(Vec<Self>),
    Named { name: String, below: Option<Box<Self>> },
}

/// A list: two levels for a node.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct List {
    value: u16,
    next: Option<Box<Self>>,
}

/// Nothing but `Some`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Chain(Option<Box<Self>>);

/// Nothing but lengths.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Forest(Vec<Self>);

/// Recursion through a map.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Folder(BTreeMap<String, Self>);

/// Elements that take no bytes.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Nothing;

/// Types of the standard library that check what they are made of.
pub(crate) type Standard = (
    std::time::Duration,
    std::net::SocketAddr,
    std::num::NonZeroU16,
    std::ops::Range<i16>,
    std::ops::Bound<u8>,
    std::ffi::CString,
    std::path::PathBuf,
    std::cmp::Reverse<i8>,
    std::cell::RefCell<u8>,
);

pub(crate) type Lengths = (Vec<Vec<String>>, std::collections::VecDeque<Box<[u64]>>, BTreeSet<Choice>);
pub(crate) type Maps = (BTreeMap<String, Vec<Option<u64>>>, HashMap<u16, BTreeMap<u8, ()>>);
pub(crate) type Empties = (Vec<()>, BTreeMap<u8, Nothing>, Vec<Vec<Nothing>>, HashMap<Nothing, [u8; 0]>);

/// What serde buffers before it knows the type; for codecs that describe themselves.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flat {
    id: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(flatten)]
    inner: Inner,
    #[serde(flatten)]
    other: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inner {
    first: Vec<u8>,
    second: Option<Loose>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Tagged {
    Nothing,
    Text { text: String },
    Nested { inner: Box<Self>, loose: Vec<Loose> },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", content = "c")]
pub(crate) enum Adjacent {
    Number(i32),
    Tree(Vec<Self>),
    Tagged(Tagged),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Loose {
    Flag(bool),
    Number(i64),
    Text(String),
    List(Vec<Self>),
    Map(BTreeMap<String, Self>),
}
