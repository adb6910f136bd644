//! JSON bodies: the same holes, and what only JSON can carry.
#![cfg(feature = "json")]

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use rpc_codec::payload::{CodecId, PayloadError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const JSON: CodecId = CodecId::JSON;

fn decode<T: DeserializeOwned>(body: impl AsRef<[u8]>) -> Result<T, PayloadError> {
    JSON.decode(body.as_ref())
}

fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().stack_size(512 << 10).spawn(test).expect("a thread starts");
    thread.join().expect("the test passes");
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Forest(Vec<Self>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Chain(Option<Box<Self>>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Tree {
    Leaf,
    Node { next: Box<Self> },
}

#[test]
fn nesting_stops_at_the_bound() {
    on_a_small_stack(|| {
        for levels in [1, 10, 126, 127, 128, 129, 10_000, 1_000_000] {
            let body = "[".repeat(levels) + &"]".repeat(levels);
            let decoded = decode::<Forest>(&body).map(|_| ());
            assert_eq!(decoded, if levels <= 127 { Ok(()) } else { Err(PayloadError::TooDeep { max: 127 }) });
            // A value that nobody asked for is skipped, however deep, without recursion.
            let body = format!(r#"{{"unknown":{body},"id":7}}"#);
            #[derive(Debug, PartialEq, Deserialize)]
            struct Id {
                id: u8,
            }
            assert_eq!(decode(&body), Ok(Id { id: 7 }));
        }
    });
}

#[test]
fn enums_stop_at_the_bound() {
    on_a_small_stack(|| {
        for levels in [1, 63, 64, 10_000, 1_000_000] {
            let body = r#"{"Node":{"next":"#.repeat(levels) + r#""Leaf""# + &"}}".repeat(levels);
            let decoded = decode::<Tree>(&body).map(|_| ());
            assert_eq!(decoded, if levels <= 63 { Ok(()) } else { Err(PayloadError::TooDeep { max: 127 }) });
        }
    });
}

#[test]
fn one_byte_cannot_recurse_for_ever() {
    // Not null, so `Some`; so a chain; which is not null, so `Some`.
    on_a_small_stack(|| {
        for body in ["1", "[]", "\"x\"", "{}"] {
            assert_eq!(decode::<Chain>(body), Err(PayloadError::TooDeep { max: 127 }));
        }
        assert_eq!(decode("null"), Ok(Chain(None)));
    });
}

#[test]
fn bytes_behind_the_value_are_an_error_and_white_space_is_not() {
    assert_eq!(decode(" [1,\n2 ]\r\n\t "), Ok(vec![1, 2]));
    for (body, left) in [("7x", 1), ("7 x", 1), ("[] []", 2), ("{}}", 1)] {
        let trailing = Err(PayloadError::TrailingBytes { codec: JSON, left });
        assert_eq!(decode::<serde_json::Value>(body), trailing, "{body}");
    }
    assert!(matches!(decode::<u8>(""), Err(PayloadError::Decode { .. })));
}

#[test]
fn durations_beyond_their_range_are_errors() {
    let body = format!(r#"{{"secs":{},"nanos":{}}}"#, u64::MAX, u32::MAX);
    assert!(matches!(decode::<Duration>(body), Err(PayloadError::Decode { .. })));
}

#[test]
fn empty_elements_in_any_number_are_paid_by_their_commas() {
    for len in [0, 1, 10, 100_000] {
        let mut body = Vec::new();
        JSON.encode(&vec![(); len], &mut body).expect("encodes");
        assert_eq!(decode::<Vec<()>>(&body).map(|v| v.len()), Ok(len));
        let empty = format!("[{}]", vec!["[]"; len].join(","));
        assert_eq!(decode::<Vec<Vec<u8>>>(empty).map(|v| v.len()), Ok(len));
        let map = format!("{{{}}}", (0..len).map(|n| format!(r#""{n}":0"#)).collect::<Vec<_>>().join(","));
        assert_eq!(decode::<HashMap<u32, u8>>(map).map(|m| m.len()), Ok(len));
    }
}

#[test]
fn self_describing_types_survive() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        x: u8,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        y: Option<u8>,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "type")]
    enum Tagged {
        A(Inner),
        B { either: Either },
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Outer {
        #[serde(flatten)]
        inner: Inner,
        tagged: Vec<Tagged>,
        rest: serde_json::Value,
    }
    let value = Outer {
        inner: Inner { x: 1, y: None },
        tagged: vec![
            Tagged::A(Inner { x: 2, y: Some(3) }),
            Tagged::B { either: Either::Text("x".into()) },
            Tagged::B { either: Either::Number(u64::MAX) },
        ],
        rest: serde_json::json!({"a": [1, null, {"b": 1.5}]}),
    };
    let mut body = Vec::new();
    JSON.encode(&value, &mut body).expect("encodes");
    assert_eq!(decode(&body), Ok(value));
}

#[test]
fn errors_say_what_json_said() {
    let error = decode::<u8>("300").expect_err("too large");
    assert_eq!(
        error.to_string(),
        "cannot decode as json: invalid value: integer `300`, expected u8 at line 1 column 3"
    );
    let mut out = Vec::new();
    let error = JSON.encode(&HashMap::from([((1, 2), 3)]), &mut out).expect_err("keys are strings");
    assert_eq!(error.to_string(), "cannot encode as json: key must be a string");
    assert!(out.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_a_value_or_an_error(body in r#"[\[\]{}",:0-9a-z \\.eE+-]{0,80}"#) {
        let _ = decode::<serde_json::Value>(&body);
        let _ = decode::<Tree>(&body);
        let _ = decode::<Forest>(&body);
        let _ = decode::<HashMap<String, Chain>>(&body);
    }
}
