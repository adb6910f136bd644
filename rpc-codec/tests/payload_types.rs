//! Values through each codec: what arrives as it left, and what is refused with a reason.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use rpc_codec::payload::{CodecId, PayloadError};
use serde::ser::{Error as _, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Rich {
    id: u64,
    signed: i64,
    small: (u8, i8, u16, i16, u32, i32),
    ratio: f64,
    letter: char,
    name: String,
    note: Option<String>,
    nested: Option<Option<bool>>,
    tags: Vec<String>,
    counts: BTreeMap<String, i32>,
    attributes: HashMap<u32, Vec<u16>>,
    kind: Kind,
    history: Vec<Kind>,
    #[serde(with = "rpc_codec::payload::bytes")]
    content: Vec<u8>,
    plain: Vec<u8>,
    #[serde(with = "rpc_codec::payload::bytes")]
    digest: Option<[u8; 4]>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Kind {
    Unknown,
    Leaf(Box<str>),
    Pair(u8, String),
    Branch { left: Box<Self>, right: Option<Box<Self>> },
}

fn kinds() -> impl Strategy<Value = Kind> {
    let leaf = prop_oneof![
        Just(Kind::Unknown),
        any::<String>().prop_map(|text| Kind::Leaf(text.into())),
        any::<(u8, String)>().prop_map(|(number, text)| Kind::Pair(number, text)),
    ];
    leaf.prop_recursive(8, 24, 2, |inner| {
        (inner.clone(), prop::option::of(inner))
            .prop_map(|(left, right)| Kind::Branch { left: left.into(), right: right.map(Box::new) })
    })
}

fn riches() -> impl Strategy<Value = Rich> {
    // serde_json reads some floats a bit off in the last place; halves are safe.
    let ratios = any::<i32>().prop_map(|number| f64::from(number) / 2.0);
    let numbers = (any::<u64>(), any::<i64>(), any::<(u8, i8, u16, i16, u32, i32)>(), ratios);
    // JSON has one word for all the ways to be absent, so `Some(None)` does not survive it.
    let nested = prop_oneof![Just(None), any::<bool>().prop_map(|flag| Some(Some(flag)))];
    let texts = (any::<char>(), any::<String>(), any::<Option<String>>(), nested);
    let collections = (any::<Vec<String>>(), any::<BTreeMap<String, i32>>(), any::<HashMap<u32, Vec<u16>>>());
    let kinds = (kinds(), prop::collection::vec(kinds(), 0..4));
    let bytes = (any::<Vec<u8>>(), any::<Vec<u8>>(), any::<Option<[u8; 4]>>());
    (numbers, texts, collections, kinds, bytes).prop_map(
        |(
            (id, signed, small, ratio),
            (letter, name, note, nested),
            (tags, counts, attributes),
            (kind, history),
            (content, plain, digest),
        )| Rich {
            id,
            signed,
            small,
            ratio,
            letter,
            name,
            note,
            nested,
            tags,
            counts,
            attributes,
            kind,
            history,
            content,
            plain,
            digest,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_rich_value_survives_every_codec(value in riches()) {
        for codec in CodecId::supported() {
            let mut body = b"before".to_vec();
            prop_assert_eq!(codec.encode(&value, &mut body), Ok(()));
            prop_assert!(body.starts_with(b"before"));
            prop_assert_eq!(codec.decode::<Rich>(&body[6..]), Ok(value.clone()));
        }
    }

    #[test]
    fn a_body_cut_short_is_an_error_and_a_longer_one_too(value in riches(), cut in any::<prop::sample::Index>()) {
        for codec in CodecId::supported() {
            let mut body = Vec::new();
            prop_assert_eq!(codec.encode(&value, &mut body), Ok(()));
            let short = &body[..cut.index(body.len())];
            prop_assert!(codec.decode::<Rich>(short).is_err());
            body.push(b'x');
            prop_assert_eq!(
                codec.decode::<Rich>(&body),
                Err(PayloadError::TrailingBytes { codec: *codec, left: 1 })
            );
        }
    }

    #[test]
    fn mutated_bodies_are_values_or_errors(value in riches(), changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..8)) {
        for codec in CodecId::supported() {
            let mut body = Vec::new();
            prop_assert_eq!(codec.encode(&value, &mut body), Ok(()));
            for (at, byte) in &changes {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            let _ = codec.decode::<Rich>(&body);
        }
    }
}

#[test]
fn borrowed_values_point_into_the_body() {
    let mut body = Vec::new();
    CodecId::BINCODE.encode(&("text", 7u8), &mut body).expect("encodes");
    let (text, _): (&str, u8) = CodecId::BINCODE.decode(&body).expect("decodes");
    assert!(body.as_ptr_range().contains(&text.as_ptr()));
}

struct FailsAfter(usize);

impl Serialize for FailsAfter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.0 + 1))?;
        for element in 0..self.0 {
            seq.serialize_element(&element)?;
        }
        Err(S::Error::custom("out of elements"))
    }
}

struct Panics;

impl Serialize for Panics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(2))?;
        seq.serialize_element(&1)?;
        panic!("no more elements");
    }
}

#[test]
fn a_value_that_fails_half_way_leaves_nothing_behind() {
    for codec in CodecId::supported() {
        for elements in [0, 1, 1000] {
            let mut out = b"before".to_vec();
            let error = codec.encode(&FailsAfter(elements), &mut out).expect_err("fails");
            // postcard keeps none of the words.
            let said =
                if *codec == CodecId::POSTCARD { "the value refused to be serialized" } else { "out of elements" };
            assert_eq!(error.to_string(), format!("cannot encode as {codec}: {said}"));
            assert_eq!(out, b"before");
        }
    }
}

#[test]
fn a_value_that_panics_half_way_leaves_nothing_behind() {
    for codec in CodecId::supported() {
        let mut out = b"before".to_vec();
        catch_unwind(AssertUnwindSafe(|| codec.encode(&Panics, &mut out))).expect_err("panics");
        assert_eq!(out, b"before");
    }
}

mod positions_cannot_carry {
    use super::*;

    const BINCODE: CodecId = CodecId::BINCODE;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        x: u8,
    }

    fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, PayloadError> {
        let mut body = Vec::new();
        BINCODE.encode(value, &mut body).map(|()| body)
    }

    #[test]
    fn flattened_structs() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Outer {
            id: u8,
            #[serde(flatten)]
            inner: Inner,
        }
        let error = encode(&Outer { id: 1, inner: Inner { x: 2 } }).expect_err("has no length");
        assert_eq!(error, PayloadError::UnknownLength { codec: BINCODE });
        assert!(error.to_string().contains("remove serde's flatten attribute"), "{error}");
        assert!(BINCODE.decode::<Outer>(&[2, 1, 2]).is_err());
    }

    #[test]
    fn untagged_and_internally_tagged_enums() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        #[serde(untagged)]
        enum Untagged {
            Number(u8),
            Text(String),
        }
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type")]
        enum Tagged {
            A(Inner),
        }
        let body = encode(&Untagged::Text("x".into())).expect("looks like a string");
        let error = BINCODE.decode::<Untagged>(&body).expect_err("could be anything");
        assert_eq!(error, PayloadError::NotSelfDescribing { codec: BINCODE });
        assert!(error.to_string().contains("use json"), "{error}");
        let body = encode(&Tagged::A(Inner { x: 1 })).expect("looks like a struct");
        assert_eq!(BINCODE.decode::<Tagged>(&body), Err(PayloadError::NotSelfDescribing { codec: BINCODE }));
    }

    #[test]
    fn fields_that_are_left_out_sometimes() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Sparse {
            #[serde(skip_serializing_if = "Option::is_none")]
            a: Option<u8>,
            b: u8,
        }
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        enum SparseVariant {
            A {
                #[serde(skip_serializing_if = "Option::is_none")]
                a: Option<u8>,
            },
        }
        let refused = PayloadError::SkippedField { codec: BINCODE, field: "a" };
        assert_eq!(encode(&Sparse { a: None, b: 1 }), Err(refused.clone()));
        assert_eq!(encode(&SparseVariant::A { a: None }), Err(refused));
        assert_eq!(encode(&Sparse { a: Some(2), b: 1 }), Ok(vec![1, 2, 1]));
    }

    #[test]
    fn fields_that_are_always_left_out_are_fine() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Cached {
            a: u8,
            #[serde(skip)]
            cache: Option<u8>,
            b: u8,
        }
        let body = encode(&Cached { a: 1, cache: Some(9), b: 2 }).expect("encodes");
        assert_eq!(BINCODE.decode(&body), Ok(Cached { a: 1, cache: None, b: 2 }));
    }

    #[test]
    fn sequences_that_do_not_know_their_length() {
        struct Odd;
        impl Serialize for Odd {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq((0..10).filter(|n| n % 2 == 1))
            }
        }
        assert_eq!(encode(&Odd), Err(PayloadError::UnknownLength { codec: BINCODE }));
    }
}
