//! Callers and the task of their connection under schedules drawn by shuttle.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p rpc-client --lib schedules`; `SLUICEGATE_SCHEDULES` says
//! how many schedules each test runs, by each of two ways to draw them. A sleep past the event that
//! ends a wait is a deadlock here, which shuttle finds and for which it prints the schedule.
//!
//! Everything is the client's own but the transport and the attempt to connect, which takes a runtime.
//! tokio's `Notify` is not looked into: threads change places before and after what it does. No timer
//! is ever armed.

use std::{
    collections::BTreeMap,
    env,
    io::{self, ErrorKind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use rpc_codec::{Decoded, Frame, FrameDecoder, GoAwayReason, Hello, OpenMessage, SendBounds, encode_go_away};
use rpc_core::{CallId, Executed, StatusCode};
use shuttle::{
    Config, Runner,
    future::block_on,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    sync::{Condvar, Mutex},
    thread,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Call, CallError, Client, Method, Untouched};

const ECHO: Method = Method::new("schedules", "echo");

type Echo = Call<Bytes, Bytes, Untouched>;

#[test]
fn every_call_is_answered_whoever_else_is_dropped_or_moved_and_waits_for_a_connection_room_or_a_greeting() {
    under_schedules(|| {
        // So little room that most wait for it.
        let (client, server, driving) = connected(Plan { calls_at_once: between(1, 2), ..Plan::STAY });
        let callers: Vec<_> = (0..3)
            .map(|n| {
                let client = client.clone();
                thread::spawn(move || {
                    for round in 0..2 {
                        whatever_a_caller_does(&client, n << 8 | round);
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert!(client.snapshot().calls == 0 && client.snapshot().waiting_for_room == 0);
        client.close();
        driving.join().unwrap();
        server.join().unwrap();
        assert!(client.snapshot().is_idle(), "{:?}", client.snapshot());
    });
}

#[test]
fn who_waits_for_room_is_sent_before_whoever_comes_later() {
    under_schedules(|| {
        let client = client();
        client.begin_attempt();
        let pipe = Arc::new(Pipe::new(ROOM));
        let driving = client.drive(End(Arc::clone(&pipe)));
        let driving = thread::spawn(move || block_on(driving));
        let server = {
            let pipe = Arc::clone(&pipe);
            thread::spawn(move || serve(&pipe, Plan { calls_at_once: 1, ..Plan::STAY }))
        };
        block_on(call_of(&client, 0, true)).expect("the connection stays");
        let mut calls: Vec<_> = (1..=3).map(|n| call_of(&client, n, false)).collect();
        // The first takes the room, the second is in line, and the third comes whenever it may.
        let first_is_answered = poll_once(&mut calls[0]).is_ready();
        let second_is_answered = poll_once(&mut calls[1]).is_ready();
        let callers: Vec<_> = (1..)
            .zip(calls)
            .skip(usize::from(first_is_answered))
            .filter(|&(n, _)| n != 2 || !second_is_answered)
            .map(|(n, call)| thread::spawn(move || check(n, block_on(call))))
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        client.close();
        driving.join().unwrap();
        server.join().unwrap();
        assert_eq!(*pipe.asked.lock().unwrap(), [0, 1, 2, 3].map(|n: u32| n.to_be_bytes().to_vec()));
    });
}

#[test]
fn a_long_request_is_not_too_long_for_a_server_that_says_at_any_moment_that_it_takes_it() {
    const LONG: usize = 64 * 1024 + 1;
    under_schedules(|| {
        let (client, server, driving) = connected(Plan { takes: 1 << 20, room: 1 << 20, ..Plan::STAY });
        let answer = block_on(client.call_bytes(ECHO, vec![7; LONG].into())).expect("it is taken");
        assert_eq!(answer, [7; 4][..]);
        client.close();
        driving.join().unwrap();
        server.join().unwrap();
    });
}

#[test]
fn every_wait_ends_when_the_connection_does() {
    under_schedules(|| {
        let ending = [Ending::HangUp, Ending::Break, Ending::GoAway][between(0, 2) as usize];
        let greets = between(0, 3) > 0;
        // Without a greeting it ends at once, or when it has read something.
        let after = between(0, if greets { 3 } else { 1 });
        let plan = Plan { calls_at_once: between(1, 2), greets, ends: Some((after, ending)), ..Plan::STAY };
        let (client, server, driving) = connected(plan);
        let callers: Vec<_> = (0..3)
            .map(|n| {
                let client = client.clone();
                thread::spawn(move || match call_of(&client, n, between(0, 1) == 0) {
                    mut call if between(0, 3) == 0 => drop(poll_once(&mut call)),
                    call => check(n, block_on(call)),
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        client.close();
        driving.join().unwrap();
        server.join().unwrap();
        assert!(client.snapshot().is_idle(), "{:?}", client.snapshot());
    });
}

#[test]
fn every_wait_for_a_connection_ends_when_the_attempt_fails_or_the_client_is_closed() {
    under_schedules(|| {
        let client = client();
        client.begin_attempt();
        let callers: Vec<_> = (0..3)
            .map(|n| {
                let client = client.clone();
                thread::spawn(move || {
                    let mut call = call_of(&client, n, n == 2);
                    if between(0, 1) == 0 && poll_once(&mut call).is_ready() {
                        return;
                    }
                    let error = moved_to_another_thread(call).unwrap_err();
                    assert_eq!(error.executed(), Executed::Never, "{error:?}");
                })
            })
            .collect();
        // Who waits for whatever it takes goes on to the next attempt, which there is no runtime for.
        if between(0, 1) == 0 {
            client.fail_attempt();
        } else {
            client.close();
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(client.snapshot().waiting_for_connection, 0);
    });
}

/// Runs `test` under many schedules: with threads drawn at random at every step, and with a random order
/// of preference that changes at three steps.
fn under_schedules(test: fn()) {
    under_as_many_schedules(1_000, test);
}

/// The same, `usually` so many by each of the two.
pub(crate) fn under_as_many_schedules(usually: usize, test: fn()) {
    let schedules = env::var("SLUICEGATE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(usually);
    run(RandomScheduler::new(schedules), test);
    run(PctScheduler::new(3, schedules), test);
}

fn run(scheduler: impl Scheduler + 'static, test: fn()) {
    let mut config = Config::new();
    config.stack_size = 512 * 1024;
    Runner::new(scheduler, config).run(test);
}

pub(crate) fn between(least: u32, most: u32) -> u32 {
    thread_rng().gen_range(least..=most)
}

pub(crate) fn client() -> Client {
    Client::builder("the scheduled server")
        .connect_timeout(Duration::MAX)
        .frame_timeout(Duration::MAX)
        .write_timeout(Duration::MAX)
        .keepalive_interval(None)
        .stream_window(WINDOW)
        .build()
}

/// A client whose attempt to connect is under way and succeeds, with the threads of its server and of the
/// connection.
fn connected(plan: Plan) -> (Client, thread::JoinHandle<()>, thread::JoinHandle<()>) {
    let client = client();
    client.begin_attempt();
    let pipe = Arc::new(Pipe::new(plan.room));
    let driving = client.drive(End(Arc::clone(&pipe)));
    (client, thread::spawn(move || serve(&pipe, plan)), thread::spawn(move || block_on(driving)))
}

fn call_of(client: &Client, nonce: u32, patient: bool) -> Echo {
    client.call_bytes(ECHO, Bytes::copy_from_slice(&nonce.to_be_bytes())).wait_for_ready(patient)
}

/// One of all that may become of a call, on a connection that stays.
fn whatever_a_caller_does(client: &Client, nonce: u32) {
    let mut call = call_of(client, nonce, between(0, 2) == 0);
    let answer = match between(0, 4) {
        0 => {
            let _ = poll_once(&mut call);
            return;
        }
        1 => {
            if let Poll::Ready(answer) = poll_once(&mut call) {
                answer
            } else {
                let _ = poll_once(&mut call);
                return;
            }
        }
        2 => match poll_once(&mut call) {
            Poll::Ready(answer) => answer,
            Poll::Pending => moved_to_another_thread(call),
        },
        _ => block_on(call),
    };
    assert_eq!(answer.expect("the connection stays"), nonce.to_be_bytes()[..]);
}

fn check(nonce: u32, answer: Result<Bytes, CallError>) {
    match answer {
        Ok(answer) => assert_eq!(answer, nonce.to_be_bytes()[..], "an answer for somebody else"),
        // Who would go on with the next connection finds no runtime to make it.
        Err(CallError::NoRuntime) => {}
        Err(error) => assert_eq!(error.code(), StatusCode::Unavailable, "{error:?}"),
    }
}

fn moved_to_another_thread(call: Echo) -> Result<Bytes, CallError> {
    thread::spawn(|| block_on(call)).join().unwrap()
}

/// Polls with this thread's own waker.
fn poll_once(call: &mut Echo) -> Poll<Result<Bytes, CallError>> {
    block_on(std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *call).poll(cx))))
}

/// What a server does.
#[derive(Clone, Copy)]
struct Plan {
    calls_at_once: u32,
    /// The longest frame and message.
    takes: u32,
    /// How much may be written to it that it has not read.
    room: usize,
    greets: bool,
    /// Behind so many answers it ends the connection; without a greeting there are none, and it counts reads.
    ends: Option<(u32, Ending)>,
}

impl Plan {
    const STAY: Self = Self { calls_at_once: 64, takes: 64 * 1024, room: ROOM, greets: true, ends: None };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    HangUp,
    Break,
    /// It accepts what it has answered and nothing else, and hangs up when the client has left.
    GoAway,
}

/// Echoes what it is asked, of what comes in parts the beginning, until it ends the connection or its client has left.
fn serve(pipe: &Pipe, plan: Plan) {
    if plan.greets {
        let mut hello = Hello::default();
        hello.advised_calls = plan.calls_at_once;
        (hello.max_frame, hello.max_message) = (plan.takes, plan.takes);
        pipe.answer(|out| hello.encode(out));
    }
    let (decoder, mut read, mut greeted) = (FrameDecoder::new(1 << 20), Vec::new(), false);
    let mut parted = BTreeMap::new();
    let (mut done, mut last, mut last_answered) = (0, CallId::CONNECTION, CallId::CONNECTION);
    loop {
        let mut taken = 0;
        if !greeted && let Ok(Some((_, len))) = Hello::decode(&read) {
            (greeted, taken) = (true, len);
        }
        while greeted && let Ok(Decoded::Frame { ref frame, len }) = decoder.decode(&read[taken..]) {
            taken += len;
            match frame {
                Frame::Request(request) => {
                    assert!(request.id > last, "ids increase");
                    last = request.id;
                    if request.more {
                        parted.insert(request.id, request.body.to_vec());
                        continue;
                    }
                    pipe.asked.lock().unwrap().push(request.body.to_vec());
                    if plan.greets && plan.ends.is_none_or(|(after, _)| done < after) {
                        (done, last_answered) = (done + 1, request.id);
                        pipe.answer(|out| echo(out, request.id, request.body));
                    }
                }
                Frame::Cont { id, more, part } => {
                    let body = parted.get_mut(id).expect("its first part came before");
                    body.extend_from_slice(part);
                    if !more {
                        pipe.answer(|out| echo(out, *id, &body[..4]));
                    }
                }
                Frame::Cancel { id } => assert!(*id <= last, "a call that never arrived is cancelled"),
                Frame::GoAway(_) => {}
                other => panic!("{other:?}"),
            }
        }
        read.drain(..taken);
        if let Some((_, ending)) = plan.ends.filter(|&(after, _)| done >= after) {
            return finish(pipe, ending, last_answered);
        }
        if !pipe.receive(&mut read) {
            return pipe.end(None);
        }
        done += u32::from(!plan.greets);
    }
}

fn finish(pipe: &Pipe, ending: Ending, last: CallId) {
    match ending {
        Ending::HangUp => pipe.end(None),
        Ending::Break => pipe.end(Some(ErrorKind::ConnectionReset)),
        Ending::GoAway => {
            pipe.answer(|out| encode_go_away(out, last, GoAwayReason::Drain, "enough"));
            // To the end, so that its client leaves in peace.
            while pipe.receive(&mut Vec::new()) {}
            pipe.end(None);
        }
    }
}

fn echo(out: &mut Vec<u8>, id: CallId, body: &[u8]) {
    let message = OpenMessage::response(out);
    out.extend_from_slice(body);
    let bounds = SendBounds { max_frame: 1 << 20, max_message: 1 << 20 };
    assert!(message.finish(out, id, bounds).expect("it fits").is_none());
}

/// A transport between a task and a thread.
pub(crate) struct Pipe {
    room: usize,
    /// What the server was asked, but for what came in parts.
    asked: Mutex<Vec<Vec<u8>>>,
    state: Mutex<PipeState>,
    /// The server waits for bytes, or for their end.
    arrived: Condvar,
}

#[derive(Default)]
struct PipeState {
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    client_left: bool,
    server_left: bool,
    broken: Option<ErrorKind>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl PipeState {
    fn wake(&mut self) -> impl Iterator<Item = Waker> + use<> {
        [self.reader.take(), self.writer.take()].into_iter().flatten()
    }
}

impl Pipe {
    pub(crate) fn new(room: usize) -> Self {
        Self { room, asked: Mutex::default(), state: Mutex::default(), arrived: Condvar::new() }
    }

    pub(crate) fn answer(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let wakers = {
            let mut state = self.state.lock().unwrap();
            write(&mut state.to_client);
            state.wake()
        };
        wakers.for_each(Waker::wake);
    }

    /// Waits for bytes. `false` at their end.
    pub(crate) fn receive(&self, read: &mut Vec<u8>) -> bool {
        let mut state = self.state.lock().unwrap();
        while state.to_server.is_empty() && !state.client_left {
            state = self.arrived.wait(state).unwrap();
        }
        let came = !state.to_server.is_empty();
        read.append(&mut state.to_server);
        let wakers = state.wake();
        drop(state);
        wakers.for_each(Waker::wake);
        came
    }

    pub(crate) fn end(&self, broken: Option<ErrorKind>) {
        let wakers = {
            let mut state = self.state.lock().unwrap();
            state.server_left = true;
            state.broken = broken;
            state.wake()
        };
        wakers.for_each(Waker::wake);
    }
}

/// The client's end. It takes a few bytes at once, and no more than there is room for.
pub(crate) struct End(pub(crate) Arc<Pipe>);

impl AsyncRead for End {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.state.lock().unwrap();
        if let Some(broken) = state.broken {
            return Poll::Ready(Err(broken.into()));
        }
        if state.to_client.is_empty() && !state.server_left {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = state.to_client.len().min(buf.remaining());
        buf.put_slice(&state.to_client[..len]);
        state.to_client.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.state.lock().unwrap();
        if state.server_left {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        let room = self.0.room - state.to_server.len();
        if room == 0 {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = buf.len().min(room);
        state.to_server.extend_from_slice(&buf[..len]);
        drop(state);
        self.0.arrived.notify_one();
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The server's end is there at once, so that nobody lingers, which takes a timer.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.state.lock().unwrap();
        (state.client_left, state.server_left) = (true, true);
        drop(state);
        self.0.arrived.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().client_left = true;
        self.0.arrived.notify_one();
    }
}

/// Two short items may be under way.
pub(crate) const WINDOW: u32 = 128;
/// Less than two requests, so that some wait behind others.
const ROOM: usize = 100;
