//! Bodies of every length, in parts of every length, arrive whole; those too long are refused with
//! figures.

use std::collections::{HashMap, hash_map::Entry};

use futures::future::join_all;
use rpc_codec::PART_LEN;
use sluicegate::{Bytes, CallError, Executed, StatusCode};
use tokio::task::yield_now;

use crate::support::{
    Req,
    bodies::{KIB, MIB, assert_refused, bytes, huge, is_alive, serve, status_of, text, wire},
    method,
    parts::{CONT, Pieces, encoded, frames, opening, part, untouched},
    raw::{cancel, hello_with},
    shims::Random,
    within,
};

const MAX: usize = 100_000;

/// Around every length at which something changes.
const LENS: [usize; 13] =
    [0, 1, 8_100, PART_LEN - 1, PART_LEN, PART_LEN + 1, 65_507, 65_536, 2 * PART_LEN + 1, 81_920, 98_304, MAX - 1, MAX];

#[tokio::test(start_paused = true)]
async fn bytes_of_every_length_up_to_the_longest_arrive_both_ways() {
    for (server_frame, client_frame) in [(256 * KIB, 256 * KIB), (64 * KIB, 8 * KIB)] {
        let harness = serve(|builder| builder.max_message(MAX as u32).max_frame(server_frame as u32));
        let client = harness.client_builder().max_message(MAX as u32).max_frame(client_frame as u32).build();
        for len in LENS {
            let body = Bytes::from(bytes(len));
            for method in [method::BYTES, method::BYTES_SPAWNED] {
                for metadata in [false, true] {
                    let mut call = client.call_bytes(method, body.clone());
                    if metadata {
                        call = call.metadata("tenant", "acme").metadata("long", vec![7; 5_000]);
                    }
                    assert_eq!(within(call).await.unwrap(), body, "{len} bytes, {method}, metadata: {metadata}");
                }
            }
        }
        assert_eq!(harness.network.attempts(), 1);
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn values_of_every_length_up_to_the_longest_arrive_both_ways() {
    let harness = serve(|builder| builder.max_message(MAX as u32));
    let client = harness.client_builder().max_message(MAX as u32).build();
    for len in LENS.into_iter().filter(|&len| len > 0) {
        let text = text(len);
        for method in [method::ECHO, method::ECHO_SPAWNED] {
            let reply = within(client.call::<_, String>(method, (text.clone(),))).await.unwrap();
            assert!(reply == text, "{len} bytes, {method}");
        }
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn many_long_calls_at_once_do_not_mix_their_parts() {
    let harness = serve(|builder| builder);
    let client = harness.client();
    let calls = (0..40_usize).map(|n| {
        let (method, len) = (if n % 2 == 0 { method::BYTES } else { method::BYTES_SPAWNED }, n * 7_000);
        let body = Bytes::from(vec![n as u8; len]);
        let call = client.call_bytes(method, body.clone());
        async move { (call.await, body) }
    });
    for (reply, body) in within(join_all(calls)).await {
        assert!(reply.unwrap() == body);
    }
    drop(client);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_one_byte_too_long_fails_at_the_client_with_both_lengths_and_nothing_is_sent() {
    for max in [100, PART_LEN, MAX, 5 * MIB] {
        let harness = serve(|builder| builder.max_message(max as u32)).plain("it counts bytes");
        let client = harness.client();
        // Before the server has said what it takes, and after.
        for _ in 0..2 {
            let error = client.call_bytes(method::BYTES, Bytes::from(vec![7; max + 1])).await.unwrap_err();
            let CallError::RequestTooLarge { len, max: limit, .. } = error else { panic!("{error:?}") };
            assert_eq!((len, limit, error.executed()), (max as u64 + 1, max as u64, Executed::Never));
            let error = client.call::<_, String>(method::ECHO, (text(max + 1),)).await.unwrap_err();
            assert!(matches!(error, CallError::RequestTooLarge { len, .. } if len == max as u64 + 1), "{error:?}");
            assert_eq!(harness.snapshot().calls.acquired, 0);
        }
        assert_eq!(client.call::<_, u64>(method::NONCE, (1_u64, 0_u32)).await.unwrap(), 1);
        assert_eq!((harness.network.attempts(), harness.probe.started()), (1, 1));
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_one_byte_too_long_fails_at_the_server_with_both_lengths_and_the_connection_goes_on() {
    for max in [100, PART_LEN, MAX, 5 * MIB] {
        let harness = serve(huge);
        let client = harness.client_builder().max_message(max as u32).build();
        let others = [(); 3].map(|()| tokio::spawn(client.call::<_, u64>(method::GATE, (7_u64,))));
        harness.until_running(3).await;
        for method in [method::LARGE, method::LARGE_SPAWNED] {
            let len = text(max).len() as u32;
            let fits = client.call::<_, String>(method, (len,)).await.unwrap();
            assert_eq!(fits.len(), len as usize);
            let error = client.call::<_, String>(method, (len + 1,)).await.unwrap_err();
            assert_eq!((error.code(), error.executed()), (StatusCode::ResourceExhausted, Executed::Finished));
            let message = error.status().unwrap().message();
            let (len, max) = ((max + 1).to_string(), max.to_string());
            assert!(message.contains(&len) && message.contains(&max), "{message}");
        }
        for method in [method::BYTES, method::BYTES_SPAWNED] {
            let error = client.call_bytes(method, Bytes::from(vec![7; max + 1])).await.unwrap_err();
            assert_eq!((error.code(), error.executed()), (StatusCode::ResourceExhausted, Executed::Finished));
        }
        harness.probe.open_gate();
        for other in others {
            assert_eq!(other.await.unwrap().unwrap(), 7);
        }
        assert_eq!(harness.network.attempts(), 1);
        drop(client);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_too_long_that_is_sent_all_the_same_is_refused_and_its_parts_are_ignored() {
    let harness = serve(|builder| builder.max_message(MAX as u32));
    let mut wire = wire(&harness, 64 * KIB).await;
    for (id, len) in [(1, MAX + 1), (2, u32::MAX as usize)] {
        wire.send(&opening(untouched(id, method::BYTES), len, &[7; 10])).await;
        for _ in 0..4 {
            wire.send(&part(id, &[7; PART_LEN], true)).await;
        }
        let figures = [("max_len", MAX.to_string()), ("len", len.to_string())];
        let status = status_of(&wire.piece().await);
        assert_refused(&status, StatusCode::ResourceExhausted, "MESSAGE_TOO_LARGE", &figures);
        assert_eq!(harness.snapshot().body_bytes, 0);
    }
    is_alive(&mut wire, 3).await;
    assert_eq!(harness.snapshot().frames_ignored, 8);
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn parts_are_as_long_as_frames_and_others_allow() {
    for (max_frame, longest) in [(8 * KIB, 8 * KIB - 12), (20_000, 20_000 - 12), (MIB, PART_LEN)] {
        let harness = serve(|builder| builder);
        let mut wire = Pieces::from(harness.peer_through(64 * KIB));
        wire.send(&hello_with(|hello| (hello.max_frame, hello.max_message) = (max_frame as u32, u32::MAX))).await;
        wire.piece().await;
        wire.send(&Req::new(1, method::LARGE, (300_000_u32,)).bytes()).await;
        let first = wire.piece().await;
        assert!(first.more && first.body_len() == 300_005);
        let mut left = first.body_len() - first.body.len();
        assert_eq!(first.body.len(), longest.min(max_frame - 12 - first.head.len()));
        while left > 0 {
            let piece = wire.piece().await;
            assert_eq!((piece.kind, piece.body.len()), (CONT, left.min(longest)));
            left -= piece.body.len();
            assert_eq!((piece.more, piece.head.len()), (left > 0, 0));
        }
        is_alive(&mut wire, 2).await;
        drop(wire);
        harness.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn parts_of_any_lengths_make_one_body() {
    let harness = serve(|builder| builder);
    let mut wire = wire(&harness, 64 * KIB).await;
    let body = bytes(200_000);
    let mut id = 0;
    for first in [0, 1, 4_095, PART_LEN] {
        for len in [4_096, 5_000, PART_LEN, 150_000, 200_000] {
            for method in [method::BYTES, method::BYTES_SPAWNED] {
                id += 1;
                wire.send(&frames(|| untouched(id, method), id, &body, first, len).concat()).await;
                let piece = wire.piece().await;
                assert!(wire.whole(piece).await == body, "first {first}, others {len}");
            }
        }
    }
    drop(wire);
    harness.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_gives_the_same_answers_however_its_bytes_are_split() {
    let (long, middle) = (bytes(70_000), bytes(20_000));
    let [mut first, mut second] = [(1, &long, 100), (2, &middle, 0)]
        .map(|(id, body, first)| frames(|| untouched(id, method::BYTES), id, body, first, 9_000).into_iter());
    let mut session = vec![first.next().unwrap(), second.next().unwrap()];
    session.push(Req::new(3, method::ECHO, ("short",)).bytes());
    // Both bodies by turns, one that is given up, one that is refused, one with too much.
    session.push(opening(untouched(4, method::BYTES), 50_000, &[4; 10]));
    session.push(opening(untouched(5, method::BYTES), u32::MAX as usize, &[5; 10]));
    session.push(opening(untouched(6, method::BYTES), 5_000, &[6; 10]));
    session.push(part(6, &[6; 5_000], false));
    session.push(part(4, &[4; 5_000], true));
    session.push(part(5, &[5; 5_000], true));
    session.push(cancel(4));
    session.push(part(4, &[4; 5_000], true));
    for frame in first {
        session.push(frame);
        session.extend(second.next());
    }
    session.push(Req::new(7, method::LARGE, (66_000_u32,)).bytes());
    let session = session.concat();
    let mut splits = Random::seeded(7);
    for round in 0..6_usize {
        let harness = serve(|builder| builder);
        let mut wire = wire(&harness, 512 * KIB).await;
        let mut rest = &session[..];
        while !rest.is_empty() {
            let len = match round {
                0 => rest.len(),
                1 => 1,
                _ => 1 + splits.below(10_u64.pow(round as u32 - 1)) as usize,
            };
            let (now, later) = rest.split_at(len.min(rest.len()));
            wire.send(now).await;
            yield_now().await;
            rest = later;
        }
        let mut answers = HashMap::new();
        let mut left = 6;
        while left > 0 {
            let piece = wire.piece().await;
            left -= usize::from(!piece.more);
            match answers.entry(piece.id.sequence()) {
                Entry::Vacant(answer) => {
                    answer.insert(piece);
                }
                Entry::Occupied(mut answer) => answer.get_mut().body.extend(piece.body),
            }
        }
        assert!(answers[&1].body == long && answers[&2].body == middle && answers[&3].body == encoded("short"));
        assert_refused(&status_of(&answers[&5]), StatusCode::ResourceExhausted, "MESSAGE_TOO_LARGE", &[]);
        assert_refused(&status_of(&answers[&6]), StatusCode::InvalidArgument, "MALFORMED_REQUEST", &[]);
        assert_eq!(answers[&7].body, encoded(text(66_005)));
        assert_eq!(harness.snapshot().frames_ignored, 2, "round {round}");
        drop(wire);
        harness.assert_idle().await;
    }
}
