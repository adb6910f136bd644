//! A client's long requests end with their calls, whatever ends those, and leave room to the next.

use std::{io::ErrorKind, sync::Mutex, time::Duration};

use rpc_codec::{GoAwayReason, encode_go_away, encode_status};
use rpc_core::CallId;
use sluicegate::{Bytes, CallError, Client, Executed, Status, StatusCode};
use tokio::{io::AsyncReadExt, task::JoinHandle, time::sleep};

use crate::support::{
    bodies::{LEN, MAX_AHEAD, MIB, NARROW, bytes, connected, greet, next_call_is_fine, serve_budget, until_given_back},
    harness::PIPE,
    method,
    parts::{CANCEL, CONT, GO_AWAY, Pieces, REQUEST, RESPONSE, response_opening, response_part},
    raw::{frame, response},
    shims::{Direction, FailingAt, Fault},
    until_client_idle, within,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const BROKEN: ErrorKind = ErrorKind::ConnectionReset;

type AnswerTo = fn(CallId) -> Vec<u8>;

/// A long request of which three parts have been read.
async fn uploading(client: &Client, wire: &mut Pieces) -> (JoinHandle<Result<Bytes, CallError>>, CallId) {
    let call = tokio::spawn(client.call_bytes(method::BYTES, Bytes::from(vec![7; 8 * MIB])));
    let first = wire.piece().await;
    assert!(first.kind == REQUEST && first.more);
    for _ in 0..2 {
        assert!(wire.piece().await.more);
    }
    (call, first.id)
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_the_upload_and_leaves_the_slot_to_the_next_call() {
    let refused = |id| {
        let mut bytes = Vec::new();
        encode_status(&mut bytes, id, &Status::resource_exhausted("too much"), u32::MAX).unwrap();
        bytes
    };
    let replied = |id| {
        let mut bytes = response_opening(id, 4, b"ear");
        bytes.extend(response_part(id, b"l", false));
        bytes
    };
    let too_long = |id| response_opening(id, 100 * MIB, b"x");
    let answers: [(&str, AnswerTo); 3] = [("a status", refused), ("a reply", replied), ("too long", too_long)];
    for (what, answer) in answers {
        let (client, _servers, mut wire) = connected(NARROW, |builder| builder).await;
        let (call, id) = uploading(&client, &mut wire).await;
        wire.send(&answer(id)).await;
        let outcome = call.await.unwrap();
        assert_eq!(outcome.is_ok(), what == "a reply", "{outcome:?}");
        let next = next_call_is_fine(&client, &mut wire, id, MAX_AHEAD + NARROW).await;
        assert_eq!(next.slot(), id.slot(), "{what}");
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_malformed_answer_ends_the_upload() {
    let (client, _servers, mut wire) = connected(NARROW, |builder| builder).await;
    let (call, id) = uploading(&client, &mut wire).await;
    let mut bytes = frame(RESPONSE, 0, 0, &[0; 3], b"");
    rpc_codec::patch_id(&mut bytes, id);
    wire.send(&bytes).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::MalformedResponse { .. }), "{error:?}");
    next_call_is_fine(&client, &mut wire, id, MAX_AHEAD + NARROW).await;
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_sends_cancel_and_no_part_behind_it() {
    for expires in [false, true] {
        let (client, _servers, mut wire) = connected(NARROW, |builder| builder).await;
        let id = if expires {
            let call = client.call_bytes(method::BYTES, Bytes::from(vec![7; 8 * MIB])).timeout(SECOND);
            let call = tokio::spawn(call);
            let id = wire.piece().await.id;
            assert_eq!(call.await.unwrap().unwrap_err().code(), StatusCode::DeadlineExceeded);
            id
        } else {
            let (call, id) = uploading(&client, &mut wire).await;
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
            id
        };
        let (cancel, before) = wire.up_to(|piece| piece.kind == CANCEL).await;
        assert!(cancel.id == id && before <= MAX_AHEAD + NARROW, "{before} bytes came first");
        next_call_is_fine(&client, &mut wire, id, 0).await;
        until_client_idle(&client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_last_part_has_not_left_was_never_executed() {
    const PIPE: usize = 1_000;
    let request = Bytes::from(bytes(200_000));
    // How long all of it is.
    let (client, _servers, mut wire) = connected(PIPE, |builder| builder).await;
    let call = tokio::spawn(client.call_bytes(method::BYTES, request.clone()));
    let (last, before) = wire.up_to(|piece| !piece.more).await;
    let whole = before + last.wire_len();
    drop((wire, call));
    for (read, executed) in [
        (0, Executed::Never),
        (40_000, Executed::Never),
        (whole - PIPE - 1, Executed::Never),
        (whole - PIPE, Executed::Maybe),
        (whole, Executed::Maybe),
    ] {
        let (client, mut servers, mut wire) = connected(PIPE, |builder| builder).await;
        let call = tokio::spawn(client.call_bytes(method::BYTES, request.clone()));
        wire.io.read_exact(&mut vec![0; read]).await.unwrap();
        sleep(MS).await;
        drop(wire);
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Lost { .. }), "{error:?}");
        assert_eq!(error.executed(), executed, "{read} of {whole} bytes were read");
        // The next goes by a new connection.
        let next = tokio::spawn(client.call_bytes(method::BYTES, request.clone()));
        let mut wire = greet(&mut servers).await;
        let first = wire.piece().await;
        let id = first.id;
        assert!(wire.whole(first).await == request);
        wire.send(&response_opening(id, 2, b"o")).await;
        wire.send(&response_part(id, b"k", false)).await;
        assert_eq!(next.await.unwrap().unwrap(), "ok");
    }
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_had_begun_may_have_been_executed() {
    let (client, _servers, mut wire) = connected(NARROW, |builder| builder).await;
    let (call, id) = uploading(&client, &mut wire).await;
    wire.send(&response_opening(id, 100_000, &[7; 10])).await;
    sleep(SECOND).await;
    drop(wire);
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.executed(), Executed::Maybe, "{error:?}");
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_at_any_byte_of_a_long_call_fails_it_and_the_next_is_fine() {
    let harness = serve_budget().plain("it counts bytes");
    let body = Bytes::from(bytes(LEN));
    let (mut never, mut maybe) = (0, 0);
    for at in (0..2 * LEN as u64).step_by(50_001) {
        let (network, fault) = (harness.network.clone(), Mutex::new(Some(at)));
        let client = Client::with_connector("the test server", move || {
            // The first of its connections breaks in one direction or the other.
            let fault = fault.lock().unwrap().take();
            let behind =
                |at: Option<u64>| Direction { fault: at.map(|at| (at, Fault::Error(BROKEN))), ..Direction::default() };
            let reading = fault.filter(|&at| at < LEN as u64);
            let writing = fault.filter(|&at| at >= LEN as u64).map(|at| at - LEN as u64);
            let directions = [behind(reading), behind(writing)];
            let io = network.connect_as(PIPE, |io| Box::new(FailingAt::new(io, directions)));
            async { io }
        });
        let client = client.backoff(MS, 10 * MS).build();
        let call = client.call_bytes(method::BYTES, body.clone());
        match within(call).await.unwrap_err().executed() {
            Executed::Never => never += 1,
            _ => maybe += 1,
        }
        sleep(20 * MS).await;
        until_given_back(&harness).await;
        assert!(within(client.call_bytes(method::BYTES, body.clone())).await.unwrap() == body);
        drop(client);
        harness.assert_idle().await;
    }
    assert!(never >= 10 && maybe >= 10, "{never} never, {maybe} maybe");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drains_gets_the_rest_of_what_it_accepted() {
    let (client, _servers, mut wire) = connected(NARROW, |builder| builder).await;
    let (call, id) = uploading(&client, &mut wire).await;
    let mut bytes = Vec::new();
    encode_go_away(&mut bytes, id, GoAwayReason::Drain, "draining");
    wire.send(&bytes).await;
    wire.up_to(|piece| piece.kind == CONT && !piece.more).await;
    wire.send(&response_opening(id, 2, b"o")).await;
    wire.send(&response_part(id, b"k", false)).await;
    assert_eq!(call.await.unwrap().unwrap(), "ok");
    assert_eq!(wire.piece().await.kind, GO_AWAY);
    assert!(wire.next().await.is_none());
    until_client_idle(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_go_away_ends_the_uploads_of_calls_that_the_server_did_not_accept() {
    for others in [false, true] {
        let (client, _servers, mut wire) = connected(NARROW, |builder| builder).await;
        let other = tokio::spawn(client.call::<_, u64>(method::NONCE, (0_u64, 0_u32)));
        let other_id = wire.piece().await.id;
        let (call, id) = uploading(&client, &mut wire).await;
        let mut bytes = Vec::new();
        encode_go_away(&mut bytes, CallId::new(id.sequence() - 1, 0xffff), GoAwayReason::Drain, "draining");
        wire.send(&bytes).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::GoingAway { .. }), "{error:?}");
        if others {
            sleep(SECOND).await;
        }
        wire.send(&response(other_id, &1_u64)).await;
        let mut sent = 0;
        let mut said = false;
        while let Some(piece) = wire.next().await {
            said |= piece.kind == GO_AWAY;
            assert!(!said || piece.kind == GO_AWAY, "{} behind GOAWAY", piece.kind);
            sent += piece.wire_len();
        }
        assert_eq!(other.await.unwrap().unwrap(), 1);
        assert!(sent <= MAX_AHEAD + NARROW, "{sent} bytes came after the GOAWAY");
        until_client_idle(&client).await;
    }
}
