//! postcard and MessagePack: the bytes that bodies are made of, frozen, and the same holes as any
//! codec has, closed.
#![cfg(all(feature = "postcard", feature = "messagepack"))]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use rpc_codec::payload::{CodecId, MAX_DEPTH, PayloadError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const POSTCARD: CodecId = CodecId::POSTCARD;
const MESSAGE_PACK: CodecId = CodecId::MESSAGE_PACK;
const BOTH: [CodecId; 2] = [POSTCARD, MESSAGE_PACK];

fn encode<T: Serialize>(codec: CodecId, value: &T) -> Vec<u8> {
    let mut body = Vec::new();
    codec.encode(value, &mut body).expect("encodes");
    body
}

/// Half a mebibyte. Not optimised, the deepest array of MessagePack takes a little more.
const STACK: usize = if cfg!(debug_assertions) { 576 << 10 } else { 512 << 10 };

fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().stack_size(STACK).spawn(test).expect("a thread starts");
    thread.join().expect("the test passes");
}

mod golden {
    use super::*;

    #[track_caller]
    fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, postcard: &str, messagepack: &str) {
        for (codec, hex) in [(POSTCARD, postcard), (MESSAGE_PACK, messagepack)] {
            let body = encode(codec, &value);
            let written: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(written, hex.replace(' ', ""), "{value:?} as {codec}");
            assert_eq!(codec.decode(&body).as_ref(), Ok(&value), "{codec}");
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Book {
        title: String,
        year: u16,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Kind {
        Unknown,
        Numbered(u32),
        Pair(bool, i8),
        Named { name: String },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Cover(#[serde(with = "rpc_codec::payload::bytes")] Vec<u8>);

    #[test]
    fn numbers() {
        golden(0u8, "00", "00");
        golden(255u8, "ff", "ccff");
        golden(300u16, "ac02", "cd012c");
        golden(u64::MAX, "ffffffffffffffffff01", "cfffffffffffffffff");
        golden(-1i32, "01", "ff");
        golden(-300i64, "d704", "d1fed4");
        golden(1.5f64, "000000000000f83f", "cb3ff8000000000000");
        golden(true, "01", "c3");
        golden('x', "0178", "a178");
    }

    #[test]
    fn arguments_are_tuples() {
        golden((), "", "c0");
        golden((7u8,), "07", "9107");
        golden(("hi".to_owned(), 7u8, 8u8), "02 6869 07 08", "93 a26869 07 08");
    }

    #[test]
    fn structs_variants_and_collections() {
        let book = || Book { title: "Emma".to_owned(), year: 1815 };
        golden(book(), "04456d6d61 970e", "82 a57469746c65 a4456d6d61 a479656172 cd0717");
        golden(vec![book()], "01 04456d6d61 970e", "91 82 a57469746c65 a4456d6d61 a479656172 cd0717");
        golden(Kind::Unknown, "00", "a7556e6b6e6f776e");
        golden(Kind::Numbered(1), "01 01", "81 a84e756d6265726564 01");
        golden(Kind::Pair(true, -1), "02 01 ff", "81 a450616972 92 c3 ff");
        golden(Kind::Named { name: "x".to_owned() }, "03 0178", "81 a54e616d6564 81 a46e616d65 a178");
        golden((None, Some(3u8)) as (Option<u8>, Option<u8>), "00 0103", "92 c0 03");
        golden(BTreeMap::from([(1u8, "a".to_owned())]), "01 01 0161", "81 01 a161");
        golden(Cover(vec![1, 255]), "02 01ff", "c402 01ff");
        golden(vec![1u8, 255], "02 01ff", "92 01 ccff");
    }
}

#[test]
fn an_argument_tuple_is_an_array_and_no_other_length() {
    assert_eq!(MESSAGE_PACK.decode::<(u8, u8)>(&[0x92, 1, 2]), Ok((1, 2)));
    let error = MESSAGE_PACK.decode::<(u8, u8)>(&[0x93, 1, 2, 3]).expect_err("one too many");
    assert_eq!(
        error.to_string(),
        "cannot decode as messagepack: there are more than the 2 elements that the type takes"
    );
    let error = MESSAGE_PACK.decode::<(u8, u8)>(&[0x91, 1]).expect_err("one too few");
    assert_eq!(error.to_string(), "cannot decode as messagepack: invalid length 1, expected a tuple of size 2");
}

#[test]
fn bytes_behind_the_value_are_an_error_that_counts_them() {
    for left in [1, 2, 100] {
        for codec in BOTH {
            let mut body = encode(codec, &("value".to_owned(), vec![1u32, 2]));
            body.extend(vec![0xc1; left]);
            let trailing = PayloadError::TrailingBytes { codec, left };
            assert_eq!(codec.decode::<(String, Vec<u32>)>(&body), Err(trailing));
        }
        let trailing = PayloadError::TrailingBytes { codec: POSTCARD, left };
        assert_eq!(POSTCARD.decode::<()>(&vec![0; left]), Err(trailing));
        let trailing = PayloadError::TrailingBytes { codec: MESSAGE_PACK, left };
        assert_eq!(MESSAGE_PACK.decode::<Option<u8>>(&[&[0xc0], &vec![0; left][..]].concat()), Err(trailing));
    }
}

mod bounds {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(transparent)]
    struct Forest(Vec<Self>);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Chain(Option<Box<Self>>);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct List {
        next: Option<Box<Self>>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Nest {
        End,
        More(Box<Self>),
    }

    #[test]
    fn nesting_stops_at_the_bound_whatever_nests() {
        fn stops<T: DeserializeOwned + Debug>(codec: CodecId, part: &[u8], end: &[u8], each: usize) {
            for parts in [1, 10, 60, 63, 64, 65, 126, 127, 128, 129, 200, 10_000, 1_000_000] {
                let body = [part.repeat(parts), end.to_vec()].concat();
                let decoded = codec.decode::<T>(&body).map(|_| ());
                let levels = parts * each;
                if levels > MAX_DEPTH {
                    assert_eq!(decoded, Err(PayloadError::TooDeep { max: MAX_DEPTH }), "{codec} {levels}");
                } else if levels + each <= MAX_DEPTH {
                    assert_eq!(decoded, Ok(()), "{codec} {levels}");
                }
            }
        }
        // Each on a stack of its own: the deepest of them say who needs more.
        on_a_small_stack(|| stops::<Forest>(POSTCARD, &[1], &[0], 1));
        on_a_small_stack(|| stops::<Chain>(POSTCARD, &[1], &[0], 2));
        on_a_small_stack(|| stops::<List>(POSTCARD, &[1], &[0], 2));
        on_a_small_stack(|| stops::<Nest>(POSTCARD, &[1], &[0], 1));
        on_a_small_stack(|| stops::<Forest>(MESSAGE_PACK, &[0x91], &[0x90], 1));
        on_a_small_stack(|| stops::<List>(MESSAGE_PACK, b"\x81\xa4next", &[0xc0], 2));
        on_a_small_stack(|| stops::<Nest>(MESSAGE_PACK, b"\x81\xa4More", b"\xa3End", 1));
    }

    #[test]
    fn a_body_that_is_no_option_is_no_endless_chain_of_them() {
        on_a_small_stack(|| {
            // Not nil, so `Some`; so a chain; which is not nil, so `Some`.
            for body in [&[0x01][..], &[0x90], &[0xa1, b'x'], &[0x80], &[0xc3]] {
                let refused = Err(PayloadError::TooDeep { max: MAX_DEPTH });
                assert_eq!(MESSAGE_PACK.decode::<Chain>(body), refused);
            }
            assert_eq!(MESSAGE_PACK.decode(&[0xc0]), Ok(Chain(None)));
        });
    }

    #[test]
    fn what_nobody_asked_for_is_skipped_to_the_same_depth() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Id {
            id: u8,
        }
        on_a_small_stack(|| {
            for levels in [1, 10, 126, 1_000, 500_000] {
                let unknown = [vec![0x91; levels], vec![0xc0]].concat();
                let body = [b"\x82\xa7unknown".to_vec(), unknown, b"\xa2id\x07".to_vec()].concat();
                let expected =
                    if levels < MAX_DEPTH { Ok(Id { id: 7 }) } else { Err(PayloadError::TooDeep { max: MAX_DEPTH }) };
                assert_eq!(MESSAGE_PACK.decode(&body), expected, "{levels}");
            }
        });
    }

    #[test]
    fn no_length_is_believed() {
        let claim = encode(POSTCARD, &(1_u64 << 60));
        // The crate tells no length that the body cannot have, so elements are paid for as they come.
        let error = POSTCARD.decode::<Vec<()>>(&claim);
        assert_eq!(error, Err(PayloadError::TooManyElements { claimed: 1, max: 0 }));
        let too_short = PayloadError::TooShort { codec: POSTCARD, missing: 1 };
        assert_eq!(POSTCARD.decode::<Vec<u64>>(&claim), Err(too_short.clone()));
        assert_eq!(POSTCARD.decode::<String>(&claim), Err(too_short));
        let refused = PayloadError::TooManyElements { claimed: u32::MAX as usize, max: 5 + 1024 };
        assert_eq!(MESSAGE_PACK.decode::<Vec<()>>(&[0xdd, 255, 255, 255, 255]), Err(refused));
        let refused = PayloadError::TooManyElements { claimed: u32::MAX as usize, max: (5 + 1024) / 2 };
        assert_eq!(MESSAGE_PACK.decode::<HashMap<(), ()>>(&[0xdf, 255, 255, 255, 255]), Err(refused));
        for marker in [0xdb, 0xc6] {
            let error = MESSAGE_PACK.decode::<String>(&[marker, 255, 255, 255, 255]);
            assert_eq!(error, Err(PayloadError::TooShort { codec: MESSAGE_PACK, missing: 1 }));
        }
    }

    #[test]
    fn as_many_empty_elements_encode_as_decode() {
        for codec in BOTH {
            for len in [0, 1, 1024, 5000] {
                let mut body = Vec::new();
                match codec.encode(&vec![(); len], &mut body) {
                    Ok(()) => assert_eq!(codec.decode::<Vec<()>>(&body).map(|all| all.len()), Ok(len)),
                    Err(error) => {
                        assert!(matches!(error, PayloadError::TooManyElements { .. }), "{error}");
                        assert!(codec == POSTCARD && len == 5000);
                    }
                }
            }
        }
    }

    #[test]
    fn durations_beyond_their_range_are_errors() {
        #[derive(Serialize)]
        struct Fields {
            secs: u64,
            nanos: u32,
        }
        for codec in BOTH {
            let body = encode(codec, &Fields { secs: u64::MAX, nanos: u32::MAX });
            assert!(matches!(codec.decode::<Duration>(&body), Err(PayloadError::Decode { .. })));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2048, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_a_value_or_an_error(body in prop::collection::vec(any::<u8>(), 0..200)) {
            for codec in BOTH {
                let _ = codec.decode::<Forest>(&body);
                let _ = codec.decode::<(Nest, List, Chain)>(&body);
                let _ = codec.decode::<Vec<(Option<i64>, char, String)>>(&body);
                let _ = codec.decode::<HashMap<String, (f32, u128, Duration)>>(&body);
            }
        }
    }
}

mod what_postcard_cannot_carry {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sparse {
        #[serde(skip_serializing_if = "Option::is_none")]
        a: Option<u8>,
        b: u8,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u8),
        Text(String),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Outer {
        id: u8,
        #[serde(flatten)]
        rest: BTreeMap<String, u8>,
    }

    #[test]
    fn is_refused_with_advice_and_carried_by_messagepack() {
        let mut body = Vec::new();
        let sparse = Sparse { a: None, b: 1 };
        let refused = PayloadError::SkippedField { codec: POSTCARD, field: "a" };
        assert_eq!(POSTCARD.encode(&sparse, &mut body), Err(refused));
        let outer = Outer { id: 1, rest: BTreeMap::from([("x".to_owned(), 2)]) };
        assert_eq!(POSTCARD.encode(&outer, &mut body), Err(PayloadError::UnknownLength { codec: POSTCARD }));
        let text = encode(POSTCARD, &Either::Text("x".to_owned()));
        let refused = PayloadError::NotSelfDescribing { codec: POSTCARD };
        assert!(refused.to_string().contains("use json or messagepack"), "{refused}");
        assert_eq!(POSTCARD.decode::<Either>(&text), Err(refused));
        assert_eq!(MESSAGE_PACK.decode(&encode(MESSAGE_PACK, &sparse)), Ok(sparse));
        assert_eq!(MESSAGE_PACK.decode(&encode(MESSAGE_PACK, &outer)), Ok(outer));
        for either in [Either::Number(3), Either::Text("x".to_owned())] {
            assert_eq!(MESSAGE_PACK.decode(&encode(MESSAGE_PACK, &either)), Ok(either));
        }
    }
}

#[test]
fn errors_are_words_that_people_understand() {
    let told = |error: PayloadError| error.to_string();
    let error = MESSAGE_PACK.decode::<u8>(&[0xcd, 1, 44]).expect_err("too large");
    assert_eq!(told(error), "cannot decode as messagepack: invalid value: integer `300`, expected u8");
    let error = POSTCARD.decode::<bool>(&[2]).expect_err("no flag");
    assert_eq!(told(error), "cannot decode as postcard: a flag is neither 0 nor 1");
    let error = POSTCARD.decode::<String>(&[1, 0xff]).expect_err("no text");
    assert_eq!(told(error), "cannot decode as postcard: a string is not UTF-8");
    let error = POSTCARD.decode::<(u8, u8)>(&[1]).expect_err("cut short");
    assert_eq!(told(error), "postcard body ends too early: at least 1 more bytes were expected");
}

#[test]
fn bytes_and_numbers_are_read_as_each_other_in_messagepack() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Marked(#[serde(with = "rpc_codec::payload::bytes")] Vec<u8>);

    let bytes = vec![0, 1, 127, 128, 255];
    assert_eq!(MESSAGE_PACK.decode::<Vec<u8>>(&encode(MESSAGE_PACK, &Marked(bytes.clone()))), Ok(bytes.clone()));
    assert_eq!(MESSAGE_PACK.decode::<Marked>(&encode(MESSAGE_PACK, &bytes)), Ok(Marked(bytes)));
}
