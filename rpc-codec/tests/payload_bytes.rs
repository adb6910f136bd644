//! Byte fields: one copy in binary codecs, digits in those that people read.

use bytes::Bytes;
use proptest::prelude::*;
use rpc_codec::payload::{CodecId, PayloadError};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Plain {
    before: u32,
    vec: Vec<u8>,
    boxed: Box<[u8]>,
    shared: Vec<u8>,
    some: Option<Vec<u8>>,
    array: [u8; 5],
    some_array: Option<[u8; 2]>,
    after: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Marked {
    before: u32,
    #[serde(with = "rpc_codec::payload::bytes")]
    vec: Vec<u8>,
    #[serde(with = "rpc_codec::payload::bytes")]
    boxed: Box<[u8]>,
    #[serde(with = "rpc_codec::payload::bytes")]
    shared: Bytes,
    #[serde(with = "rpc_codec::payload::bytes")]
    some: Option<Vec<u8>>,
    #[serde(with = "rpc_codec::payload::bytes")]
    array: [u8; 5],
    #[serde(with = "rpc_codec::payload::bytes")]
    some_array: Option<[u8; 2]>,
    after: String,
}

fn encode<T: Serialize>(codec: CodecId, value: &T) -> Vec<u8> {
    let mut body = Vec::new();
    codec.encode(value, &mut body).expect("encodes");
    body
}

fn pair(vec: Vec<u8>, some: Option<Vec<u8>>, array: [u8; 5]) -> (Plain, Marked) {
    let (before, after) = (700, "after".to_string());
    let some_array = some.as_ref().map(|bytes| [bytes.len() as u8, 255]);
    let plain = Plain {
        before,
        vec: vec.clone(),
        boxed: vec.clone().into(),
        shared: vec.clone(),
        some: some.clone(),
        array,
        some_array,
        after: after.clone(),
    };
    let marked =
        Marked { before, boxed: vec.clone().into(), shared: vec.clone().into(), vec, some, array, some_array, after };
    (plain, marked)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_bincode_the_attribute_changes_no_byte(
        vec in prop::collection::vec(any::<u8>(), 0..600),
        some: Option<Vec<u8>>,
        array: [u8; 5],
    ) {
        let (plain, marked) = pair(vec, some, array);
        let body = encode(CodecId::BINCODE, &plain);
        prop_assert_eq!(&body, &encode(CodecId::BINCODE, &marked));
        prop_assert_eq!(CodecId::BINCODE.decode::<Plain>(&body), Ok(plain));
        prop_assert_eq!(CodecId::BINCODE.decode::<Marked>(&body), Ok(marked));
    }
}

#[test]
fn arrays_beyond_those_of_serde_work() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Digest(#[serde(with = "rpc_codec::payload::bytes")] [u8; 64]);
    for codec in CodecId::supported() {
        let digest = Digest(std::array::from_fn(|at| at as u8));
        let body = encode(*codec, &digest);
        assert_eq!(codec.decode::<Digest>(&body), Ok(digest));
    }
    assert_eq!(encode(CodecId::BINCODE, &Digest([7; 64])), [7; 64]);
}

#[test]
fn a_length_is_not_believed() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Field(#[serde(with = "rpc_codec::payload::bytes")] Bytes);
    let decoded: Result<Field, _> = CodecId::BINCODE.decode(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0x80, 1, 2, 3]);
    let missing = (1 << 63) - 3;
    assert_eq!(decoded, Err(PayloadError::TooShort { codec: CodecId::BINCODE, missing }));
}

#[cfg(feature = "json")]
mod json {
    use serde::de::DeserializeOwned;

    use super::*;

    fn decode<T: DeserializeOwned>(body: &str) -> Result<T, PayloadError> {
        CodecId::JSON.decode(body.as_bytes())
    }

    #[test]
    fn bytes_are_digits_and_arrays_are_read_too() {
        let (plain, marked) = pair(vec![0, 0x9f, 0xff], Some(vec![]), [1, 2, 3, 4, 0xab]);
        let body = String::from_utf8(encode(CodecId::JSON, &marked)).expect("JSON is text");
        assert_eq!(
            body,
            r#"{"before":700,"vec":"009fff","boxed":"009fff","shared":"009fff","some":"","array":"01020304ab","some_array":"00ff","after":"after"}"#,
        );
        assert_eq!(decode(&body), Ok(marked.clone()));
        assert_eq!(decode(&body.replace("009fff", "009FfF")), Ok(marked.clone()));
        assert_eq!(CodecId::JSON.decode(&encode(CodecId::JSON, &plain)), Ok(marked));
        let (_, none) = pair(vec![7; 200], None, [0; 5]);
        assert_eq!(CodecId::JSON.decode(&encode(CodecId::JSON, &none)), Ok(none));
    }

    #[test]
    fn what_is_no_bytes_says_why() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Field(#[serde(with = "rpc_codec::payload::bytes")] Vec<u8>);
        #[derive(Debug, PartialEq, Deserialize)]
        struct Four(#[serde(with = "rpc_codec::payload::bytes")] [u8; 4]);

        let cases = [
            (decode::<Field>(r#""abc""#).map(drop), "3 hexadecimal digits are not whole bytes"),
            (decode::<Field>(r#""0g""#).map(drop), "no hexadecimal digits at 0"),
            (decode::<Field>(r#""00é""#).map(drop), "no hexadecimal digits at 2"),
            (decode::<Field>("[1,256]").map(drop), "invalid value: integer `256`, expected u8"),
            (decode::<Field>("{}").map(drop), "expected a string of hexadecimal digits, or an array of numbers"),
            (decode::<Four>(r#""00112233""#).map(drop), ""),
            (decode::<Four>(r#""001122""#).map(drop), "6 hexadecimal digits are not 4 bytes"),
            (decode::<Four>("[1,2,3,4]").map(drop), ""),
            (decode::<Four>("[1,2,3]").map(drop), "invalid length 3, expected 4 bytes"),
            (decode::<Four>("[1,2,3,4,5]").map(drop), "invalid length 5, expected 4 bytes"),
        ];
        for (decoded, because) in cases {
            match decoded {
                Ok(()) => assert_eq!(because, ""),
                Err(error) => assert!(!because.is_empty() && error.to_string().contains(because), "{error}"),
            }
        }
    }
}
