//! The bytes that bincode bodies are made of, frozen: peers of every version read and write these,
//! so a vector is never changed and a replacement of the crate has to pass them all.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rpc_codec::payload::CodecId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Checks that `value` is `hex`, in both directions.
#[track_caller]
fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, hex: &str) {
    let mut body = Vec::new();
    CodecId::BINCODE.encode(&value, &mut body).expect("encodes");
    let written: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(written, hex.replace(' ', ""), "{value:?}");
    assert_eq!(CodecId::BINCODE.decode(&body), Ok(value));
}

#[test]
fn one_byte_integers_are_themselves() {
    golden(0u8, "00");
    golden(251u8, "fb");
    golden(255u8, "ff");
    golden(-1i8, "ff");
    golden(i8::MIN, "80");
    golden(false, "00");
    golden(true, "01");
}

#[test]
fn unsigned_integers_are_as_long_as_their_value() {
    golden(0u16, "00");
    golden(250u16, "fa");
    golden(251u16, "fb fb00");
    golden(255u16, "fb ff00");
    golden(u16::MAX, "fb ffff");
    golden(250u32, "fa");
    golden(251u32, "fb fb00");
    golden(0x1_0000u32, "fc 00000100");
    golden(u32::MAX, "fc ffffffff");
    golden(0u64, "00");
    golden(250u64, "fa");
    golden(251u64, "fb fb00");
    golden(65_535u64, "fb ffff");
    golden(65_536u64, "fc 00000100");
    golden(u64::from(u32::MAX), "fc ffffffff");
    golden(1u64 << 32, "fd 0000000001000000");
    golden(0x0102_0304_0506_0708u64, "fd 0807060504030201");
    golden(u64::MAX, "fd ffffffffffffffff");
    golden(250usize, "fa");
    golden(300usize, "fb 2c01");
    golden(u128::from(u64::MAX), "fd ffffffffffffffff");
    golden(1u128 << 64, "fe 00000000000000000100000000000000");
    golden(u128::MAX, "fe ffffffffffffffffffffffffffffffff");
}

#[test]
fn signed_integers_zigzag_first() {
    golden(0i16, "00");
    golden(-1i16, "01");
    golden(1i16, "02");
    golden(125i16, "fa");
    golden(-126i16, "fb fb00");
    golden(i16::MIN, "fb ffff");
    golden(-1i32, "01");
    golden(i32::MAX, "fc feffffff");
    golden(i32::MIN, "fc ffffffff");
    golden(0i64, "00");
    golden(-1i64, "01");
    golden(-125i64, "f9");
    golden(125i64, "fa");
    golden(-126i64, "fb fb00");
    golden(1_000_000i64, "fc 80841e00");
    golden(i64::MAX, "fd feffffffffffffff");
    golden(i64::MIN, "fd ffffffffffffffff");
    golden(i128::MIN, "fe ffffffffffffffffffffffffffffffff");
}

#[test]
fn floats_are_little_endian_and_characters_are_utf_8() {
    golden(1.5f32, "0000c03f");
    golden(-0.0f32, "00000080");
    golden(1.5f64, "000000000000f83f");
    golden(f64::NEG_INFINITY, "000000000000f0ff");
    golden('a', "61");
    golden('ß', "c39f");
    golden('€', "e282ac");
    golden('🦀', "f09fa680");
}

#[test]
fn strings_and_sequences_are_a_length_and_what_follows() {
    golden(String::new(), "00");
    golden("héllo".to_string(), "06 68c3a96c6c6f");
    golden("x".repeat(251), &format!("fbfb00{}", "78".repeat(251)));
    golden(Vec::<u8>::new(), "00");
    golden(vec![1u8, 2, 255], "03 01 02 ff");
    golden(vec![1u64, 300], "02 01 fb2c01");
    golden(vec!["a".to_string(), String::new()], "02 0161 00");
    golden(vec![vec![1u8], vec![]], "02 01 01 00");
    golden(vec![(); 3], "03");
    golden(BTreeMap::from([(1u8, "a".to_string()), (2, String::new())]), "02 01 0161 02 00");
}

#[test]
fn tuples_arrays_and_structs_are_their_parts() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Unit;
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Newtype(u32);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Pair(u8, String);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Named {
        id: u64,
        name: String,
        tags: Option<Vec<String>>,
    }

    golden((), "");
    golden(Unit, "");
    golden((7u8,), "07");
    golden((1u8, 300u16, "x".to_string()), "01 fb2c01 0178");
    golden([1u16, 2, 300], "01 02 fb2c01");
    golden(Newtype(300), "fb2c01");
    golden(Pair(1, "x".into()), "01 0178");
    golden(Named { id: 5, name: "ada".into(), tags: Some(vec!["x".into()]) }, "05 03616461 01 01 0178");
    golden(Named { id: 1 << 40, name: String::new(), tags: None }, "fd0000000000010000 00 00");
}

#[test]
fn options_and_enums_are_a_tag_and_what_follows() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Shape {
        Point,
        Circle(f32),
        Line(u8, u16),
        Named { name: String, sides: u32 },
    }

    golden(None::<u32>, "00");
    golden(Some(300u32), "01 fb2c01");
    golden(Some(None::<u8>), "01 00");
    golden(Shape::Point, "00");
    golden(Shape::Circle(1.5), "01 0000c03f");
    golden(Shape::Line(1, 300), "02 01 fb2c01");
    golden(Shape::Named { name: "hex".into(), sides: 6 }, "03 03686578 06");
    golden(Ok::<u8, String>(7), "00 07");
    golden(Err::<u8, String>("no".into()), "01 026e6f");
}

#[test]
fn types_of_the_standard_library_are_as_serde_has_them() {
    golden(Duration::new(300, 5), "fb2c01 05");
    golden(std::time::UNIX_EPOCH + Duration::from_secs(1), "01 00");
    golden(IpAddr::V4(Ipv4Addr::LOCALHOST), "00 7f 00 00 01");
    golden(Box::new(5u8), "05");
    golden(1u8..5, "01 05");
}
