//! Callers that send items or take them, and the connection they go by, under schedules drawn by shuttle: see
//! `schedules.rs`. A sleep past the item, the credit or the end that it was for is a deadlock here.

use std::{future::poll_fn, io::ErrorKind, pin::pin, sync::Arc, task::Poll};

use bytes::Bytes;
use futures::SinkExt;
use rpc_codec::{
    Decoded, Frame, FrameDecoder, Hello, OpenMessage, Plain, SendBounds, charge, encode_credit, encode_item,
    encode_status,
};
use rpc_core::{CallId, Status};
use shuttle::{future::block_on, thread};

use crate::{
    BothWays, CallError, Client, ClientStream, ItemSink, ItemStream, Method, ServerStream,
    schedules::{End, Pipe, WINDOW, between, client, under_as_many_schedules},
};

const STREAM: Method = Method::new("schedules", "stream");
const ITEMS: u32 = 5;
/// Three of these use up the least window of a server, and go in one part.
const LONG: usize = 30_000;
const BOUNDS: SendBounds = SendBounds { max_frame: 1 << 16, max_message: 1 << 16 };

type Sink = ItemSink<Bytes, Plain>;
type Items = ItemStream<Bytes, Plain>;

#[test]
fn a_caller_that_sends_is_woken_by_credit_and_by_room_whoever_polls_and_wherever() {
    under_as_many_schedules(300, || {
        let (client, server, driving) = connected(Plan::Take);
        let call: ClientStream<(), Bytes, Bytes, Plain, Plain> = client.client_stream(STREAM, ());
        let (mut sink, reply) = block_on(call.open()).expect("the connection stays");
        if between(0, 1) == 0 {
            sink.set_threshold(1);
        }
        let sender = thread::spawn(move || {
            for _ in 0..ITEMS {
                sink = whatever_a_sender_does(sink);
            }
            sink.end();
        });
        assert_eq!(block_on(reply).expect("it is answered"), ITEMS.to_be_bytes()[..]);
        sender.join().unwrap();
        leave(&client, server, driving);
    });
}

#[test]
fn a_caller_that_takes_is_woken_by_every_item_and_by_the_last_and_its_credit_comes_through() {
    under_as_many_schedules(300, || {
        let (client, server, driving) = connected(Plan::Send);
        let call: ServerStream<(), Bytes, Plain> = client.server_stream(STREAM, ());
        let mut items = block_on(call.open()).expect("the connection stays");
        let manual = between(0, 2) == 0;
        if manual {
            items.set_manual();
        }
        let mut taken = 0;
        loop {
            let came;
            (items, came) = whatever_a_taker_does(items);
            let Some(item) = came.expect("the connection stays") else { break };
            assert_eq!(item, [7; 3][..]);
            taken += 1;
            items.request(1);
        }
        assert_eq!(taken, ITEMS);
        leave(&client, server, driving);
    });
}

#[test]
fn a_long_item_is_not_too_long_for_a_server_that_says_at_any_moment_that_it_takes_it() {
    under_as_many_schedules(300, || {
        // To flush, to close and to end need no credit.
        let (client, server, driving) = connected([Plan::Take, Plan::TakeOne][between(0, 1) as usize]);
        let call: ClientStream<(), Bytes, Bytes, Plain, Plain> = client.client_stream(STREAM, ());
        let (mut sink, reply) = block_on(call.open()).expect("the connection stays");
        let item = Bytes::from(vec![7; (1 << 16) + 1]);
        match between(0, 3) {
            0 => {
                block_on(sink.send(item)).expect("it is taken");
                sink.end();
            }
            1 => {
                block_on(sink.feed(item)).expect("it is kept");
                block_on(sink.flush()).expect("it is taken");
                sink.end();
            }
            2 => {
                block_on(sink.feed(item)).expect("it is kept");
                block_on(sink.close()).expect("it is taken");
            }
            _ => {
                block_on(sink.feed(item)).expect("it is kept");
                sink.end();
            }
        }
        assert_eq!(block_on(reply).expect("it is answered"), 1_u32.to_be_bytes()[..]);
        leave(&client, server, driving);
    });
}

#[test]
fn every_wait_of_a_stream_ends_with_the_call_the_other_half_or_the_connection() {
    under_as_many_schedules(300, || {
        let ending = [Plan::Fail, Plan::HangUp, Plan::Break, Plan::Ignore][between(0, 3) as usize];
        let (client, server, driving) = connected(ending);
        let call: BothWays<(), Bytes, Bytes, Plain, Plain> = client.both_ways(STREAM, ());
        // It may be over before it is open.
        if let Ok((mut sink, mut items)) = block_on(call.open()) {
            // Sends until there is no more credit, and waits for that.
            let sender = thread::spawn(move || while block_on(sink.send(Bytes::from_static(&[7; LONG]))).is_ok() {});
            let taker = thread::spawn(move || {
                if ending == Plan::Ignore {
                    // Drops what it takes with, which ends the call for whoever sends.
                    return poll_once(&mut items).is_ready();
                }
                block_on(items.message()).is_err()
            });
            let ended = taker.join().unwrap();
            assert!(ended || ending == Plan::Ignore, "{ending:?}");
            sender.join().unwrap();
        }
        leave(&client, server, driving);
    });
}

/// One of all ways to send an item; what it was sent with is given back.
fn whatever_a_sender_does(mut sink: Sink) -> Sink {
    let item = Bytes::from_static(&[7; LONG]);
    match between(0, 3) {
        0 => {
            // Asks, and goes away; the next one who asks may be on another thread.
            let _ = block_on(poll_fn(|cx| Poll::Ready(pin!(sink.ready()).poll(cx).is_ready())));
            block_on(sink.send(item)).expect("the connection stays");
            sink
        }
        1 => {
            let _ = block_on(poll_fn(|cx| Poll::Ready(pin!(sink.ready()).poll(cx).is_ready())));
            let elsewhere = thread::spawn(move || {
                block_on(sink.send(item)).expect("the connection stays");
                sink
            });
            elsewhere.join().unwrap()
        }
        2 => {
            // Its future is polled here, then there.
            let mut sending = Box::pin(async move {
                sink.send(item).await.expect("the connection stays");
                sink
            });
            match block_on(poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx)))) {
                Poll::Ready(sink) => sink,
                Poll::Pending => thread::spawn(move || block_on(sending)).join().unwrap(),
            }
        }
        _ => {
            block_on(sink.send(item)).expect("the connection stays");
            sink
        }
    }
}

type Came = Result<Option<Bytes>, CallError>;

/// One of all ways to take an item.
fn whatever_a_taker_does(mut items: Items) -> (Items, Came) {
    match between(0, 3) {
        0 => match poll_once(&mut items) {
            Poll::Ready(came) => (items, came),
            Poll::Pending => {
                let came = block_on(items.message());
                (items, came)
            }
        },
        1 => match poll_once(&mut items) {
            Poll::Ready(came) => (items, came),
            Poll::Pending => thread::spawn(move || {
                let came = block_on(items.message());
                (items, came)
            })
            .join()
            .unwrap(),
        },
        2 => {
            let mut taking = Box::pin(async move {
                let came = items.message().await;
                (items, came)
            });
            match block_on(poll_fn(|cx| Poll::Ready(taking.as_mut().poll(cx)))) {
                Poll::Ready(taken) => taken,
                Poll::Pending => thread::spawn(move || block_on(taking)).join().unwrap(),
            }
        }
        _ => {
            let came = block_on(items.message());
            (items, came)
        }
    }
}

/// Asks for an item, and goes away.
fn poll_once(items: &mut Items) -> Poll<Came> {
    block_on(poll_fn(|cx| Poll::Ready(pin!(items.message()).poll(cx))))
}

/// A client whose attempt to connect is under way and succeeds, with the threads of its server and of the
/// connection.
fn connected(plan: Plan) -> (Client, thread::JoinHandle<()>, thread::JoinHandle<()>) {
    let client = client();
    client.begin_attempt();
    let pipe = Arc::new(Pipe::new(1 << 20));
    let driving = client.drive(End(Arc::clone(&pipe)));
    (client, thread::spawn(move || serve(&pipe, plan)), thread::spawn(move || block_on(driving)))
}

fn leave(client: &Client, server: thread::JoinHandle<()>, driving: thread::JoinHandle<()>) {
    client.close();
    driving.join().unwrap();
    server.join().unwrap();
    assert!(client.snapshot().is_idle(), "{:?}", client.snapshot());
}

/// What a server does with its one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Takes all items, gives credit for each, and says how many there were.
    Take,
    /// Takes items, gives no credit, and says at the end how many there were.
    TakeOne,
    /// Sends items as far as it has credit, and the end behind the last.
    Send,
    /// Answers with an error as soon as it is asked.
    Fail,
    /// Hangs up as soon as it is asked.
    HangUp,
    Break,
    /// Nothing, to the end.
    Ignore,
}

fn serve(pipe: &Pipe, plan: Plan) {
    let mut hello = Hello::default();
    hello.max_message = 1 << 20;
    pipe.answer(|out| hello.encode(out));
    let (decoder, mut read, mut greeted) = (FrameDecoder::new(1 << 20), Vec::new(), false);
    let (mut taken, mut left, mut credit) = (0_u32, ITEMS, i64::from(WINDOW));
    loop {
        let mut at = 0;
        if !greeted && let Ok(Some((_, len))) = Hello::decode(&read) {
            (greeted, at) = (true, len);
        }
        while greeted && let Ok(Decoded::Frame { ref frame, len }) = decoder.decode(&read[at..]) {
            at += len;
            match (plan, frame) {
                (Plan::HangUp, Frame::Request(_)) => return pipe.end(None),
                (Plan::Break, Frame::Request(_)) => return pipe.end(Some(ErrorKind::ConnectionReset)),
                (Plan::Fail, Frame::Request(request)) => pipe.answer(|out| {
                    encode_status(out, request.id, &Status::aborted("enough"), 1 << 16).expect("it is short");
                }),
                (Plan::Send, Frame::Request(request)) => send(pipe, request.id, &mut left, &mut credit),
                (Plan::Send, Frame::Credit { id, bytes }) => {
                    credit += i64::from(*bytes);
                    send(pipe, *id, &mut left, &mut credit);
                }
                (Plan::Take, Frame::Item { id, len, .. }) => {
                    taken += 1;
                    pipe.answer(|out| encode_credit(out, *id, charge(*len as usize) as u32));
                }
                (Plan::TakeOne, Frame::Item { .. }) => taken += 1,
                (Plan::Take | Plan::TakeOne, Frame::End { id }) => {
                    pipe.answer(|out| reply(out, *id, &taken.to_be_bytes()))
                }
                _ => {}
            }
        }
        read.drain(..at);
        if !pipe.receive(&mut read) {
            return pipe.end(None);
        }
    }
}

/// Sends what is left as far as it is covered.
fn send(pipe: &Pipe, id: CallId, left: &mut u32, credit: &mut i64) {
    while *credit > 0 && *left > 0 {
        pipe.answer(|out| {
            let len = encode_item::<()>(out, id, BOUNDS, |out| {
                out.extend_from_slice(&[7; 3]);
                Ok(())
            });
            *credit -= charge(len.expect("it is short"));
        });
        *left -= 1;
        if *left == 0 {
            pipe.answer(|out| reply(out, id, &[]));
        }
    }
}

fn reply(out: &mut Vec<u8>, id: CallId, body: &[u8]) {
    let message = OpenMessage::response(out);
    out.extend_from_slice(body);
    assert!(message.finish(out, id, BOUNDS).expect("it fits").is_none());
}
