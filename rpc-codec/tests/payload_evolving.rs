//! What `docs/evolving.md` says may change about types: each cell of its table is tried here.
#![cfg(all(feature = "json", feature = "messagepack", feature = "postcard"))]

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

use rpc_codec::payload::{CodecId, bytes};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const PAGE: &str = include_str!("../../docs/evolving.md");
const CODECS: [CodecId; 4] = [CodecId::BINCODE, CodecId::POSTCARD, CodecId::JSON, CodecId::MESSAGE_PACK];

/// What becomes of a value that the other end reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    AsMeant,
    Refused,
    AsSomethingElse,
}

fn read<W: Serialize, R: DeserializeOwned + PartialEq>(codec: CodecId, written: &W, meant: Option<&R>) -> Read {
    let mut body = Vec::new();
    codec.encode(written, &mut body).expect("encodes");
    match codec.decode::<R>(&body) {
        Err(_) => Read::Refused,
        Ok(value) if Some(&value) == meant => Read::AsMeant,
        Ok(_) => Read::AsSomethingElse,
    }
}

/// A change, tried with one value of each version and what it is meant to be for the other.
struct Change<O, N> {
    old: O,
    for_new: Option<N>,
    new: N,
    for_old: Option<O>,
}

impl<O, N> Change<O, N>
where
    O: Serialize + DeserializeOwned + PartialEq,
    N: Serialize + DeserializeOwned + PartialEq,
{
    /// The cell of the table.
    fn in_codec(&self, codec: CodecId) -> &'static str {
        let new_reads_old = read(codec, &self.old, self.for_new.as_ref());
        let old_reads_new = read(codec, &self.new, self.for_old.as_ref());
        match (new_reads_old, old_reads_new) {
            (Read::AsSomethingElse, _) | (_, Read::AsSomethingElse) => "**misread**",
            (Read::AsMeant, Read::AsMeant) => "yes",
            (Read::AsMeant, Read::Refused) => "new reads old",
            (Read::Refused, Read::AsMeant) => "old reads new",
            (Read::Refused, Read::Refused) => "no",
        }
    }
}

/// The rows that were tried, by what they say of the change.
#[derive(Default)]
struct Rows(BTreeMap<&'static str, Vec<&'static str>>);

impl Rows {
    fn add<O, N>(
        &mut self,
        name: &'static str,
        old: O,
        for_new: impl Into<Option<N>>,
        new: N,
        for_old: impl Into<Option<O>>,
    ) where
        O: Serialize + DeserializeOwned + PartialEq,
        N: Serialize + DeserializeOwned + PartialEq,
    {
        let change = Change { old, for_new: for_new.into(), new, for_old: for_old.into() };
        let cells = CODECS.iter().map(|codec| change.in_codec(*codec)).collect();
        assert!(self.0.insert(name, cells).is_none(), "{name} is there twice");
    }
}

/// A type of one shape or another, for short.
macro_rules! shape {
    ($($(#[$attr:meta])* struct $name:ident { $($(#[$of:meta])* $field:ident: $ty:ty),* $(,)? })*) => {
        $($(#[$attr])* #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)] struct $name { $($(#[$of])* $field: $ty),* })*
    };
}

shape! {
    struct Book { title: String, year: u16 }
    struct WithDefault { title: String, year: u16, #[serde(default)] pages: u32 }
    struct WithoutDefault { title: String, year: u16, pages: u32 }
    struct Shorter { title: String }
    struct YearByDefault { title: String, #[serde(default)] year: u16 }
    struct Renamed { name: String, year: u16 }
    struct RenamedWithAlias { #[serde(alias = "title")] name: String, year: u16 }
    struct RenamedForPeople { #[serde(rename = "title")] name: String, year: u16 }
    struct Pair { first: u16, second: u16 }
    struct PairSwapped { second: u16, first: u16 }
    struct Optional { title: String, year: Option<u16> }
    struct Wide { title: String, year: u32 }
    struct Byte { of: u8 }
    struct ByteWide { of: u16 }
    struct Signed { of: i16 }
    struct Unsigned { of: u16 }
    struct Float { of: f32 }
    struct Double { of: f64 }
    struct Plain { cover: Vec<u8> }
    struct Marked { #[serde(with = "bytes")] cover: Vec<u8> }
    struct Several { tags: Vec<String> }
    struct Other { tags: VecDeque<Box<str>> }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Year(u16);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Novel,
    Essay,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum KindAndMore {
    Novel,
    Essay,
    Poem,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum KindInBetween {
    Novel,
    Poem,
    Essay,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum KindRenamed {
    Fiction,
    Essay,
}

fn book() -> Book {
    Book { title: "Emma".to_owned(), year: 1815 }
}

#[allow(clippy::too_many_lines, reason = "a row each")]
fn tried() -> Rows {
    let mut rows = Rows::default();
    let title = || "Emma".to_owned();
    rows.add("an argument is added to the method", (title(),), None, (title(), 3_u32), None);
    rows.add("an argument is taken away", (title(), 3_u32), None, (title(),), None);
    rows.add("arguments of one type change places", (1_u16, 2_u16), (2_u16, 1_u16), (2_u16, 1_u16), (1_u16, 2_u16));
    rows.add("an argument gets another name", (book(),), (book(),), (book(),), (book(),));
    rows.add("a value is returned where there was none", (), None, book(), None);

    let pages = |pages| WithDefault { title: title(), year: 1815, pages };
    rows.add("a field is added that has a default", book(), pages(0), pages(9), book());
    let pages = WithoutDefault { title: title(), year: 1815, pages: 9 };
    rows.add("a field is added that has none", book(), None, pages, book());
    rows.add("a field is taken away", book(), Shorter { title: title() }, Shorter { title: title() }, None);
    let by_default = |year| YearByDefault { title: title(), year };
    let shorter = || Shorter { title: title() };
    rows.add("a field is taken away that had a default", by_default(1815), shorter(), shorter(), by_default(0));
    let renamed = || Renamed { name: title(), year: 1815 };
    rows.add("a field is renamed", book(), renamed(), renamed(), book());
    let renamed = || RenamedWithAlias { name: title(), year: 1815 };
    rows.add("a field is renamed, its old name an `alias`", book(), renamed(), renamed(), book());
    let renamed = || RenamedForPeople { name: title(), year: 1815 };
    rows.add("a field is renamed, its old name kept by `rename`", book(), renamed(), renamed(), book());
    let (pair, swapped) = (|| Pair { first: 1, second: 2 }, || PairSwapped { first: 1, second: 2 });
    rows.add("fields of one type change places", pair(), swapped(), swapped(), pair());
    let optional = |year| Optional { title: title(), year };
    rows.add("a field becomes an `Option`, and is there", book(), optional(Some(1815)), optional(Some(1815)), book());
    rows.add("a field becomes an `Option`, and is not there", book(), optional(Some(1815)), optional(None), None);

    let wide = |year| Wide { title: title(), year };
    rows.add("a `u16` becomes a `u32`, of values up to 65,535", book(), wide(1815), wide(1815), book());
    rows.add("a `u16` becomes a `u32`, of greater values", book(), wide(1815), wide(70_000), None);
    rows.add(
        "a `u8` becomes a `u16`, of values up to 127",
        Byte { of: 127 },
        ByteWide { of: 127 },
        ByteWide { of: 127 },
        Byte { of: 127 },
    );
    rows.add(
        "a `u8` becomes a `u16`, of values above 250",
        Byte { of: 255 },
        ByteWide { of: 255 },
        ByteWide { of: 255 },
        Byte { of: 255 },
    );
    rows.add("an `i16` becomes a `u16`", Signed { of: 2 }, Unsigned { of: 2 }, Unsigned { of: 2 }, Signed { of: 2 });
    rows.add("an `f32` becomes an `f64`", Float { of: 0.5 }, Double { of: 0.5 }, Double { of: 0.5 }, Float { of: 0.5 });

    rows.add("a variant is added behind the others", Kind::Essay, KindAndMore::Essay, KindAndMore::Poem, None);
    rows.add("a variant is added between others", Kind::Essay, KindInBetween::Essay, KindInBetween::Essay, Kind::Essay);
    rows.add("a variant is renamed", Kind::Novel, KindRenamed::Fiction, KindRenamed::Fiction, Kind::Novel);

    let (several, other) = (|| Several { tags: vec!["a".to_owned()] }, || Other { tags: ["a".into()].into() });
    rows.add("a collection or a string becomes another", several(), other(), other(), several());
    rows.add("a value becomes a newtype of it", 1815_u16, Year(1815), Year(1815), 1815_u16);
    rows.add("a struct becomes a tuple of its fields", book(), (title(), 1815_u16), (title(), 1815_u16), book());
    let (plain, marked) = (|| Plain { cover: vec![0, 255] }, || Marked { cover: vec![0, 255] });
    rows.add("a `Vec<u8>` gets `with = \"sluicegate::bytes\"`", plain(), marked(), marked(), plain());
    rows
}

#[test]
fn every_cell_of_the_table_is_as_it_says() {
    let mut tried = tried().0;
    let heading = "| change | bincode | postcard | JSON | MessagePack |";
    let rows = PAGE.lines().skip_while(|line| *line != heading).skip(2).take_while(|line| line.starts_with('|'));
    let mut told = 0;
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let (change, cells) = cells.split_first().expect("a row has cells");
        let found = tried.remove(change).unwrap_or_else(|| panic!("nobody tries {change:?}"));
        assert_eq!(cells, found, "{change}");
        told += 1;
    }
    assert!(told > 0, "there is no table");
    assert!(tried.is_empty(), "the page does not tell of {tried:#?}");
}

#[test]
fn a_struct_as_the_only_argument_can_grow_where_names_are() {
    for codec in [CodecId::JSON, CodecId::MESSAGE_PACK] {
        let grown = WithDefault { title: "Emma".to_owned(), year: 1815, pages: 9 };
        assert_eq!(read(codec, &(book(),), Some(&(WithDefault { pages: 0, ..grown.clone() },))), Read::AsMeant);
        assert_eq!(read(codec, &(grown,), Some(&(book(),))), Read::AsMeant);
    }
}

#[test]
fn a_variant_that_catches_the_rest_reads_what_is_new_where_names_are() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Patient {
        Novel,
        Essay,
        #[serde(other)]
        Unknown,
    }
    for codec in [CodecId::JSON, CodecId::MESSAGE_PACK] {
        assert_eq!(read(codec, &KindAndMore::Poem, Some(&Patient::Unknown)), Read::AsMeant);
    }
}
