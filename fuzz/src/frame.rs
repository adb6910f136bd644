//! Frames that a script composes: well-formed ones, and such that are slightly wrong.

use rpc_codec::{
    CallKind, CodecId, GoAwayReason, Hello, OpenMessage, RequestHead, SendBounds, encode_cancel, encode_credit,
    encode_end, encode_go_away, encode_ping, encode_pong,
};
use rpc_core::{CallId, Metadata, MethodId};

use crate::script::Script;

pub(crate) const RESPONSE: u8 = 3;
const CONT: u8 = 4;
const ITEM: u8 = 5;
const MORE: u8 = 1;

/// A frame of these fields, whatever they are.
pub(crate) fn raw(kind: u8, flags: u8, id: u64, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + head.len() + body.len());
    out.extend_from_slice(&(12 + head.len() as u32 + body.len() as u32).to_be_bytes());
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&(head.len() as u16).to_be_bytes());
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(head);
    out.extend_from_slice(body);
    out
}

/// A frame whose every field the script chooses.
pub(crate) fn any(script: &mut Script<'_>, id: CallId) -> Vec<u8> {
    let (kind, flags) = (script.byte(), script.byte());
    let id = if script.byte() & 1 == 0 { id.to_wire() } else { script.u64() };
    let (head, body) = (script.bytes(), script.bytes());
    raw(kind, flags, id, head, body)
}

/// A HELLO; the bits of the script's byte say which fields it chooses itself.
pub(crate) fn hello(script: &mut Script<'_>) -> Vec<u8> {
    let mut hello = Hello::default();
    hello.codecs = [CodecId::BYTES, CodecId::BINCODE, CodecId::JSON].into_iter().collect();
    let chosen = script.byte();
    if chosen & 1 != 0 {
        hello.max_frame = script.pick(&[4_096, 4_097, 65_536, u32::MAX, 4_095, 0]);
    }
    if chosen & 2 != 0 {
        hello.max_message = script.pick(&[0, 1, 16, 65_536, u32::MAX]);
    }
    if chosen & 4 != 0 {
        hello.advised_calls = script.pick(&[0, 1, 2, 64, u32::MAX]);
    }
    if chosen & 8 != 0 {
        hello.codecs = script.bytes().iter().map(|&id| CodecId::from_wire(id)).collect();
    }
    if chosen & 16 != 0 {
        (hello.min_version, hello.max_version) = (script.byte(), script.byte());
    }
    if chosen & 32 != 0 {
        (hello.compressions, hello.features, hello.stream_window) = (script.u64(), script.u64(), script.u32());
    }
    let mut out = Vec::new();
    hello.encode(&mut out);
    out
}

/// A REQUEST with a body; the script may change its head.
pub(crate) fn request(script: &mut Script<'_>, id: CallId, method: MethodId, codec: CodecId, body: &[u8]) -> Vec<u8> {
    let mut head = RequestHead { method, timeout_us: 0, sent_at_us: 0, codec, compression: 0, priority: 0, attempt: 0 };
    let chosen = script.byte();
    if chosen & 1 != 0 {
        head.timeout_us = script.pick(&[1, 500, 5_000, 1_000_000, u64::MAX]);
    }
    if chosen & 2 != 0 {
        head.sent_at_us = script.u32();
    }
    if chosen & 4 != 0 {
        (head.compression, head.priority, head.attempt) = (script.byte(), script.byte(), script.byte());
    }
    if chosen & 8 != 0 {
        head.codec = CodecId::from_wire(script.byte());
    }
    if chosen & 16 != 0 {
        head.method = MethodId::from_wire(script.u64());
    }
    let metadata = if chosen & 32 != 0 { metadata(script) } else { Metadata::new() };
    let mut out = Vec::new();
    let message = OpenMessage::request(&mut out, &head, &metadata);
    out.extend_from_slice(body);
    message.finish(&mut out, id, ANY).expect("it fits");
    if chosen & 64 != 0 {
        announce(script, &mut out, 20);
    }
    out
}

/// A RESPONSE that succeeded, with a body.
pub(crate) fn response(script: &mut Script<'_>, id: CallId, body: &[u8]) -> Vec<u8> {
    let chosen = script.byte();
    let metadata = if chosen & 1 != 0 { metadata(script) } else { Metadata::new() };
    let mut out = Vec::new();
    let mut message = OpenMessage::response(&mut out);
    message.insert_metadata(&mut out, &metadata);
    out.extend_from_slice(body);
    message.finish(&mut out, id, ANY).expect("it fits");
    if chosen & 2 != 0 {
        announce(script, &mut out, 4);
    }
    out
}

/// A CONT with a part of zeroes, which may be long without a long script.
pub(crate) fn cont(script: &mut Script<'_>, id: CallId) -> Vec<u8> {
    let (flags, len) = (script.byte() & MORE, script.u16());
    raw(CONT, flags, id.to_wire(), &[], &vec![0; len.into()])
}

/// Says which ways the items of a REQUEST's call go; the script may say something else.
pub(crate) fn mark_kind(script: &mut Script<'_>, request: &mut [u8], kind: CallKind) {
    let kinds = [kind, kind, kind, CallKind::Unary, CallKind::ClientStream, CallKind::ServerStream, CallKind::BothWays];
    rpc_codec::mark_kind(request, script.pick(&kinds));
}

/// An ITEM, whole or its first part: text that the codec has encoded, zeroes, or what the script writes.
pub(crate) fn item(script: &mut Script<'_>, id: CallId, codec: CodecId) -> Vec<u8> {
    let chosen = script.byte();
    let item = match chosen & 3 {
        0 => vec![0; script.u16().into()],
        1 => script.bytes().to_vec(),
        _ => {
            let mut text = Vec::new();
            codec.encode(&script.text(), &mut text).expect("text can be encoded");
            text
        }
    };
    if chosen & 4 == 0 {
        return raw(ITEM, 0, id.to_wire(), &[], &item);
    }
    let len = (item.len() as u32).saturating_add(u32::from(script.u16()) << script.pick(&[0, 4, 16]));
    raw(ITEM, MORE, id.to_wire(), &len.to_be_bytes(), &item)
}

/// The end of a stream of items.
pub(crate) fn end(id: CallId) -> Vec<u8> {
    let mut out = Vec::new();
    encode_end(&mut out, id);
    out
}

/// Credit for items: little, a usual amount, or any.
pub(crate) fn credit(script: &mut Script<'_>, id: CallId) -> Vec<u8> {
    let mut out = Vec::new();
    let bytes = match script.byte() % 4 {
        0 => 64,
        1 => script.u16().into(),
        2 => 64 * 1024,
        _ => script.u32(),
    };
    encode_credit(&mut out, id, bytes);
    out
}

/// Makes a frame the first of several: its body is longer than what is there. `body_len_at` is where
/// its head says so.
fn announce(script: &mut Script<'_>, frame: &mut [u8], body_len_at: usize) {
    frame[5] |= MORE;
    let more = u32::from(script.u16()) << script.pick(&[0, 4, 16]);
    let Some(body_len) = frame[16..].get_mut(body_len_at..).and_then(|field| field.first_chunk_mut::<4>()) else {
        return;
    };
    *body_len = u32::from_be_bytes(*body_len).saturating_add(more).to_be_bytes();
}

/// A RESPONSE of any code whose metadata, message and details the script writes.
pub(crate) fn status(script: &mut Script<'_>, id: CallId) -> Vec<u8> {
    let (code, executed, compression) = (script.byte(), script.byte(), script.byte());
    let head = [&[code, executed, compression, 0, 0, 0, 0, 0], script.bytes()].concat();
    raw(RESPONSE, 0, id.to_wire(), &head, &[])
}

/// PING, PONG, GOAWAY or CANCEL.
pub(crate) fn control(script: &mut Script<'_>, id: CallId) -> Vec<u8> {
    let mut out = Vec::new();
    match script.byte() % 4 {
        0 => encode_ping(&mut out, script.u64().to_be_bytes()),
        1 => encode_pong(&mut out, script.u64().to_be_bytes()),
        2 => {
            let last = script.pick(&[id, CallId::CONNECTION, CallId::from_wire(u64::MAX)]);
            encode_go_away(&mut out, last, GoAwayReason::from_wire(script.byte().into()), "bye");
        }
        _ => encode_cancel(&mut out, id),
    }
    out
}

/// The script may spoil a frame: one byte of it, its length, or the bytes behind its middle.
pub(crate) fn spoil(script: &mut Script<'_>, frame: &mut Vec<u8>) {
    match script.byte() {
        0xf0..=0xf7 => {
            let (at, bits) = (usize::from(script.byte()), script.byte());
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= bits;
            }
        }
        0xf8..=0xfb => frame.truncate(usize::from(script.byte())),
        0xfc..=0xff => {
            if let Some(len) = frame.first_chunk_mut::<4>() {
                *len = script.u32().to_be_bytes();
            }
        }
        _ => {}
    }
}

fn metadata(script: &mut Script<'_>) -> Metadata {
    let mut metadata = Metadata::new();
    for _ in 0..script.byte() % 4 {
        let (key, value) = (script.pick(&["tenant", "trace-id", "sg-x", "a"]), script.bytes());
        metadata.insert_reserved(key, value).expect("a few short pairs");
    }
    metadata
}

const ANY: SendBounds = SendBounds { max_frame: u32::MAX, max_message: u32::MAX };
