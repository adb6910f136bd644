//! What a hostile body can make the decoder do: nothing but fail.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::thread;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use rpc_codec::payload::{CodecId, MAX_DEPTH, PayloadError};
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, PayloadError> {
    CodecId::BINCODE.decode(body)
}

/// A length as bincode writes it.
fn claim(len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    CodecId::BINCODE.encode(&len, &mut bytes).expect("integers encode");
    bytes
}

/// Runs `test` where there is little stack, as on a worker that is deep in something else already.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().stack_size(512 << 10).spawn(test).expect("a thread starts");
    thread.join().expect("the test passes");
}

mod elements {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Nothing;

    #[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    struct NothingInside {
        nothing: (),
        nowhere: [u8; 0],
    }

    #[test]
    fn nine_bytes_cannot_claim_2_to_the_60_empty_elements() {
        let body = claim(1 << 60);
        assert_eq!(body.len(), 9);
        let refused = PayloadError::TooManyElements { claimed: 1 << 60, max: 9 + 1024 };
        assert_eq!(decode::<Vec<()>>(&body), Err(refused.clone()));
        assert_eq!(decode::<Vec<Nothing>>(&body), Err(refused.clone()));
        assert_eq!(decode::<VecDeque<NothingInside>>(&body), Err(refused.clone()));
        assert_eq!(decode::<HashSet<NothingInside>>(&body), Err(refused));
        let refused = PayloadError::TooManyElements { claimed: 1 << 60, max: (9 + 1024) / 2 };
        assert_eq!(decode::<HashMap<NothingInside, ()>>(&body), Err(refused));
    }

    #[test]
    fn empty_elements_in_many_sequences_share_one_allowance() {
        let mut body = claim(8);
        body.extend([200; 8]);
        let refused = PayloadError::TooManyElements { claimed: 200, max: 9 + 1024 - 8 - 5 * 200 };
        assert_eq!(decode::<Vec<Vec<()>>>(&body), Err(refused));
    }

    #[test]
    fn as_many_empty_elements_encode_as_decode() {
        let mut most = 0;
        for len in [0, 1, 1024, 1026, 1027, 1028, 5000] {
            let mut body = Vec::new();
            match CodecId::BINCODE.encode(&vec![(); len], &mut body) {
                Ok(()) => {
                    most = len;
                    assert_eq!(decode::<Vec<()>>(&body).map(|v| v.len()), Ok(len));
                }
                Err(error) => {
                    assert_eq!(error, PayloadError::TooManyElements { claimed: len, max: 3 + 1024 });
                    assert!(body.is_empty());
                }
            }
        }
        assert_eq!(most, 1027);
    }

    #[test]
    fn honest_bodies_of_one_byte_elements_are_never_refused() {
        for len in [0, 1, 100, 250, 251, 5000, 100_000] {
            let mut body = Vec::new();
            let value = vec![vec![true; len], vec![false; len]];
            CodecId::BINCODE.encode(&value, &mut body).expect("encodes");
            assert_eq!(decode::<Vec<Vec<bool>>>(&body), Ok(value));
        }
        let map: HashMap<u16, ()> = (0..u16::MAX).map(|key| (key, ())).collect();
        let mut body = Vec::new();
        CodecId::BINCODE.encode(&map, &mut body).expect("encodes");
        assert_eq!(decode(&body), Ok(map));
    }
}

mod depth {
    use super::*;

    /// One level each, none of them a byte of its own but for the tag.
    #[derive(Debug, Serialize, Deserialize)]
    enum Nest {
        End,
        More(Box<Self>),
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(transparent)]
    struct Forest(Vec<Self>);

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(transparent)]
    struct Chain(Option<Box<Self>>);

    /// Two levels each: the struct, and its `Some`.
    #[derive(Debug, Serialize, Deserialize)]
    struct List {
        value: u64,
        next: Option<Box<Self>>,
    }

    /// Two levels each: the enum, and the fields of its variant.
    #[derive(Debug, Serialize, Deserialize)]
    enum Tree {
        Leaf,
        Node { left: Box<Self>, label: String, right: Box<Self> },
    }

    /// Three levels each, through a map and a tuple.
    #[derive(Debug, Serialize, Deserialize)]
    struct Folder(BTreeMap<u8, (u8, Self)>);

    const DEPTHS: [usize; 7] = [1, 10, 127, 128, 129, 10_000, 1_000_000];

    /// Decodes `levels` levels of `T`, made of `(levels - last) / each` times `part` and an `end`.
    fn nested<T: DeserializeOwned>(part: &'static [u8], each: usize, end: &'static [u8], last: usize) {
        on_a_small_stack(move || {
            for levels in DEPTHS {
                let parts = levels.saturating_sub(last).div_ceil(each);
                let levels = parts * each + last;
                let mut body = part.repeat(parts);
                body.extend(end);
                let decoded = decode::<T>(&body).map(|_| ());
                if levels <= MAX_DEPTH {
                    // Branches to the right of the deepest point are missing, and nothing else.
                    assert!(matches!(decoded, Ok(()) | Err(PayloadError::TooShort { .. })), "{levels}: {decoded:?}");
                } else {
                    assert_eq!(decoded, Err(PayloadError::TooDeep { max: MAX_DEPTH }), "{levels}");
                }
            }
        });
    }

    #[test]
    fn boxed_enums_stop_at_the_bound() {
        nested::<Nest>(&[1], 1, &[0], 1);
    }

    #[test]
    fn vectors_of_themselves_stop_at_the_bound() {
        nested::<Forest>(&[1], 1, &[0], 1);
    }

    #[test]
    fn options_of_themselves_stop_at_the_bound() {
        nested::<Chain>(&[1], 1, &[0], 0);
    }

    #[test]
    fn linked_lists_stop_at_the_bound() {
        nested::<List>(&[7, 1], 2, &[7, 0], 1);
    }

    #[test]
    fn trees_stop_at_the_bound() {
        nested::<Tree>(&[1], 2, &[0], 1);
    }

    #[test]
    fn newtypes_maps_and_tuples_stop_at_the_bound() {
        nested::<Folder>(&[1, 5, 6], 3, &[0], 2);
    }

    #[test]
    fn the_sender_of_a_value_too_deep_is_told_by_its_own_codec() {
        on_a_small_stack(|| {
            for codec in CodecId::supported() {
                for levels in [10, 126, 127, 128, 129, 1000] {
                    let mut value = Nest::End;
                    for _ in 1..levels {
                        value = Nest::More(Box::new(value));
                    }
                    let mut body = b"before".to_vec();
                    let max = MAX_DEPTH - usize::from(*codec == CodecId::JSON);
                    match codec.encode(&value, &mut body) {
                        Ok(()) => {
                            assert!(levels <= max);
                            codec.decode::<Nest>(&body[6..]).expect("what encodes also decodes");
                        }
                        Err(error) => {
                            assert!(levels > max);
                            assert_eq!(error, PayloadError::TooDeep { max });
                            assert_eq!(body, b"before");
                        }
                    }
                }
            }
        });
    }

    #[test]
    fn every_kind_of_level_counts_the_same_on_both_sides() {
        fn deepest<T: Serialize + DeserializeOwned>(start: T, wrap: impl Fn(T) -> T) -> usize {
            let (mut value, mut count) = (start, 0);
            loop {
                let mut body = Vec::new();
                if let Err(error) = CodecId::BINCODE.encode(&value, &mut body) {
                    assert_eq!(error, PayloadError::TooDeep { max: MAX_DEPTH });
                    return count;
                }
                value = wrap(decode(&body).expect("what encodes also decodes"));
                count += 1;
            }
        }
        on_a_small_stack(|| {
            assert_eq!(deepest(Nest::End, |n| Nest::More(Box::new(n))), 128);
            assert_eq!(deepest(Forest(vec![]), |n| Forest(vec![n])), 128);
            assert_eq!(deepest(Chain(None), |n| Chain(Some(Box::new(n)))), 129);
            assert_eq!(deepest(Folder(BTreeMap::new()), |n| Folder([(0, (0, n))].into())), 43);
            let list = |next| List { value: 0, next };
            assert_eq!(deepest(list(None), |n| list(Some(Box::new(n)))), 64);
            let node = |n| Tree::Node { left: Box::new(Tree::Leaf), label: String::new(), right: Box::new(n) };
            assert_eq!(deepest(Tree::Leaf, node), 64);
        });
    }
}

mod lengths {
    use super::*;

    /// Every claim there is a reason to try, before every number of bytes up to 64.
    fn claims<T: DeserializeOwned + Debug>() {
        for follow in 0..=64u64 {
            for len in [0, 1, follow, follow + 1, 1 << 16, 1 << 20, 1 << 32, 1 << 40, 1 << 63, u64::MAX] {
                for filler in [0, 1, 7, 0xff] {
                    let mut body = claim(len);
                    body.extend(vec![filler; follow as usize]);
                    let decoded = decode::<T>(&body);
                    if len > follow {
                        assert!(decoded.is_err(), "{len} claimed, {follow} follow: {decoded:?}");
                    }
                }
            }
        }
    }

    macro_rules! claims {
        ($($name:ident: $ty:ty),* $(,)?) => {$(
            #[test]
            fn $name() {
                claims::<$ty>();
            }
        )*};
    }

    claims! {
        strings_believe_no_length: String,
        bytes_believe_no_length: Vec<u8>,
        byte_fields_believe_no_length: ByteField,
        integers_believe_no_length: Vec<u64>,
        vectors_of_strings_believe_no_length: Vec<String>,
        hash_maps_believe_no_length: HashMap<String, String>,
        tree_maps_believe_no_length: BTreeMap<u64, String>,
        nested_vectors_believe_no_length: Vec<Vec<u8>>,
        deques_believe_no_length: VecDeque<u32>,
        boxed_slices_believe_no_length: Box<[String]>,
        vectors_of_option_chains_believe_no_length: Vec<Option<Option<Option<u8>>>>,
    }

    #[derive(Debug, Deserialize)]
    struct ByteField(
        #[serde(with = "rpc_codec::payload::bytes")]
        #[allow(dead_code)]
        Vec<u8>,
    );

    #[test]
    fn a_string_that_is_not_there_says_how_much_is_missing() {
        let mut body = claim(1 << 40);
        body.extend(b"short");
        let missing = (1 << 40) - 5;
        assert_eq!(decode::<String>(&body), Err(PayloadError::TooShort { codec: CodecId::BINCODE, missing }));
    }

    #[test]
    fn an_element_may_be_large_but_memory_is_reserved_for_no_more_than_there_are_bytes() {
        // A kilobyte in memory, a byte on the wire.
        type Large = Option<[u64; 32]>;
        thread_local!(static HINT: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) });

        struct Hinted<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Deserialize<'de> for Hinted<T> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Probe<T>(PhantomData<T>);

                impl<'de, T: Deserialize<'de>> Visitor<'de> for Probe<T> {
                    type Value = Hinted<T>;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a sequence")
                    }

                    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Hinted<T>, A::Error> {
                        HINT.set(parts.size_hint());
                        while parts.next_element::<T>()?.is_some() {}
                        Ok(Hinted(PhantomData))
                    }
                }

                from.deserialize_seq(Probe(PhantomData))
            }
        }

        // All that may be claimed here is 3 + 1024, but memory is for the three bytes.
        let body = claim(1000);
        assert!(decode::<Hinted<Large>>(&body).is_err());
        assert_eq!(HINT.get(), Some(3));

        // A recursive type with many sequences open cannot have the same bytes promised twice.
        let body = [100; 100];
        assert!(decode::<Vec<Vec<Hinted<u8>>>>(&body).is_err());
        assert_eq!(HINT.get(), Some(0));
    }
}

mod values {
    use super::*;

    #[test]
    fn durations_and_times_beyond_their_range_are_errors() {
        let mut body = Vec::new();
        CodecId::BINCODE.encode(&(u64::MAX, u32::MAX), &mut body).expect("encodes");
        assert!(matches!(decode::<Duration>(&body), Err(PayloadError::Decode { .. })));
        assert!(matches!(decode::<SystemTime>(&body), Err(PayloadError::Decode { .. })));
        body.clear();
        CodecId::BINCODE.encode(&(i64::MAX as u64 + 1, 0u32), &mut body).expect("encodes");
        assert!(matches!(decode::<SystemTime>(&body), Err(PayloadError::Decode { .. })));
    }

    #[test]
    fn bytes_behind_the_value_are_an_error() {
        for left in [1, 2, 100] {
            let mut body = vec![5];
            body.resize(1 + left, 0);
            let trailing = PayloadError::TrailingBytes { codec: CodecId::BINCODE, left };
            assert_eq!(decode::<u8>(&body), Err(trailing.clone()));
            assert_eq!(decode::<Option<()>>(&[&[1], &body[1..]].concat()), Err(trailing));
        }
        let trailing = PayloadError::TrailingBytes { codec: CodecId::BINCODE, left: 1 };
        assert_eq!(decode::<()>(&[0]), Err(trailing));
        assert_eq!(decode::<()>(&[]), Ok(()));
    }

    #[test]
    fn wrong_tags_flags_text_and_integers_are_errors() {
        assert!(matches!(decode::<Result<u8, u8>>(&[2, 0]), Err(PayloadError::Decode { .. })));
        assert!(matches!(decode::<Option<u8>>(&[2, 0]), Err(PayloadError::Decode { .. })));
        assert!(matches!(decode::<bool>(&[2]), Err(PayloadError::Decode { .. })));
        assert!(matches!(decode::<String>(&[1, 0xff]), Err(PayloadError::Decode { .. })));
        assert!(matches!(decode::<u16>(&[0xfc, 0, 0, 0, 0]), Err(PayloadError::Decode { .. })));
        assert!(matches!(decode::<u64>(&[0xff; 20]), Err(PayloadError::Decode { .. })));
    }
}

mod random {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Anything {
        Empty,
        Number(i64),
        Text { text: String, letter: char },
        Pair(Option<Box<Self>>, bool),
        Many(Vec<Self>),
        // Of a hash map, the same values may be shown in another order.
        Map(BTreeMap<String, Self>),
        Bytes(#[serde(with = "rpc_codec::payload::bytes")] Vec<u8>),
        Nothing(Vec<()>),
        When(Duration, SystemTime),
        Where(std::net::SocketAddr, f64, u128),
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4096, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_a_value_or_an_error(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Anything>(&body);
            let _ = decode::<Vec<Anything>>(&body);
            let _ = CodecId::JSON.decode::<Anything>(&body);
        }

        /// Small numbers are tags and lengths, so these get further in.
        #[test]
        fn bytes_of_small_numbers_are_a_value_or_an_error(body in prop::collection::vec(0u8..12, 0..200)) {
            let _ = decode::<Anything>(&body);
            let _ = decode::<Vec<Anything>>(&body);
        }

        #[test]
        fn what_decodes_encodes_and_decodes_the_same(body in prop::collection::vec(0u8..12, 0..200)) {
            if let Ok(value) = decode::<Vec<Anything>>(&body) {
                let mut again = Vec::new();
                // As text, because a body may hold a NaN, which does not equal itself.
                CodecId::BINCODE.encode(&value, &mut again).expect("what decodes also encodes");
                prop_assert_eq!(format!("{:?}", decode::<Vec<Anything>>(&again)), format!("{:?}", Ok::<_, PayloadError>(value)));
            }
        }
    }
}
