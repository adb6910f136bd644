//! A service that sends or takes items and the connection they go by, under schedules drawn by shuttle: see
//! `schedules.rs`. A wake-up that is lost is a deadlock here.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rpc_codec::{CallKind, Intake, SendBounds, charge, encode_item};
use rpc_core::{
    CallId, Status,
    limit::{ConcurrencyLimit, Rate, RateLimit, RateShare, RateWait},
};
use shuttle::{
    future::block_on,
    rand::{Rng, thread_rng},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
};

use crate::{
    budgets::Budgets,
    clock::Reading,
    ready::{Key, Ready},
    schedules::under_schedules,
    stream::{Stream, Windows},
};

const ID: CallId = CallId::new(1, 0);
const ITEMS: usize = 5;
/// Two items may be under way, and one pending stops a producer that was told so.
const WINDOW: u32 = 128;
const BOUNDS: SendBounds = SendBounds { max_frame: 1 << 16, max_message: 1 << 16 };

fn stream(ready: &Arc<Ready>) -> Arc<Stream> {
    let windows = Windows { server: WINDOW, client: WINDOW };
    Arc::new(Stream::new(ID, CallKind::BothWays, BOUNDS, windows, ready, &Arc::default()))
}

fn send(stream: &Stream) -> Result<(), Status> {
    block_on(poll_fn(|cx| stream.poll_send(cx.waker())))?;
    let mut batch = Vec::new();
    let len = encode_item::<()>(&mut batch, ID, BOUNDS, |_| Ok(())).expect("an empty item");
    stream.push(&mut batch, 1, charge(len))
}

/// The same, by one of all who may wait: who asks once and goes away, then whoever comes, here or on another thread.
fn send_somehow(stream: &Arc<Stream>) -> Result<(), Status> {
    let how = thread_rng().gen_range(0..4);
    if how < 2 {
        let _ = block_on(poll_fn(|cx| Poll::Ready(stream.poll_send(cx.waker()))));
    }
    if how % 2 == 0 {
        return send(stream);
    }
    let stream = Arc::clone(stream);
    thread::spawn(move || send(&stream)).join().unwrap()
}

/// Waits for items in one of the same ways. Whether there are any.
fn take_somehow(stream: &Arc<Stream>, mut intake: Intake) -> (Intake, bool) {
    let how = thread_rng().gen_range(0..4);
    if how < 2
        && let Poll::Ready(came) = block_on(poll_fn(|cx| Poll::Ready(stream.poll_take(&mut intake, cx.waker()))))
    {
        return (intake, came.expect("nobody closes it"));
    }
    let stream = Arc::clone(stream);
    let mut take = move || {
        let came = block_on(poll_fn(|cx| stream.poll_take(&mut intake, cx.waker()))).expect("nobody closes it");
        (std::mem::replace(&mut intake, Intake::new(WINDOW)), came)
    };
    if how % 2 == 0 { take() } else { thread::spawn(take).join().unwrap() }
}

/// The connection as far as it looks at what is listed, until `enough` has been come to.
fn look(
    stream: &Stream,
    ready: &Ready,
    cx: &Context<'_>,
    mut found: impl FnMut(&Stream, u32, usize) -> bool,
) -> Poll<()> {
    let mut keys = Vec::new();
    ready.take(cx.waker(), &mut keys);
    let mut enough = false;
    for key in keys {
        assert_eq!(key, Key::Stream(ID));
        let looked = stream.look();
        let mut out = Vec::new();
        while looked.to_writer && stream.take_part(&mut out) {}
        enough |= found(stream, looked.grant, out.len() / 16);
    }
    if enough { Poll::Ready(()) } else { Poll::Pending }
}

#[test]
fn a_sender_that_waits_for_credit_or_room_is_woken_by_either() {
    under_schedules(|| {
        let ready = Arc::new(Ready::default());
        let stream = stream(&ready);
        stream.set_threshold(1);
        let sender = {
            let stream = Arc::clone(&stream);
            thread::spawn(move || (0..ITEMS).for_each(|_| send_somehow(&stream).expect("nobody closes it")))
        };
        let mut taken = 0;
        block_on(poll_fn(|cx| {
            look(&stream, &ready, cx, |stream, _, items| {
                taken += items;
                for _ in 0..items {
                    assert_eq!(stream.add_credit(64), Ok(true));
                }
                taken == ITEMS
            })
        }));
        sender.join().unwrap();
    });
}

#[test]
fn a_sender_that_waits_is_woken_when_the_stream_is_closed() {
    under_schedules(|| {
        let ready = Arc::new(Ready::default());
        let stream = stream(&ready);
        let sender = {
            let stream = Arc::clone(&stream);
            thread::spawn(move || {
                while send_somehow(&stream).is_ok() {}
                block_on(poll_fn(|cx| stream.poll_closed(cx.waker())))
            })
        };
        stream.close(&Status::aborted("enough"));
        assert_eq!(sender.join().unwrap(), Status::aborted("enough"));
    });
}

#[test]
fn a_receiver_is_woken_by_every_item_and_by_the_last_and_its_credit_comes_through() {
    under_schedules(|| {
        let ready = Arc::new(Ready::default());
        let stream = stream(&ready);
        let receiver = {
            let stream = Arc::clone(&stream);
            thread::spawn(move || {
                let (mut intake, mut taken) = (Intake::new(WINDOW), 0);
                loop {
                    let came;
                    (intake, came) = take_somehow(&stream, intake);
                    if !came {
                        break;
                    }
                    while intake.next_item().is_some() {
                        taken += 1;
                        stream.grant(intake.due());
                    }
                }
                taken
            })
        };
        // Two items are covered by the window; the others by what comes back.
        let limit = || ConcurrencyLimit::new("bytes", Some(1 << 20)).expect("it is not zero");
        let (mine, whole) = (limit(), limit());
        let budgets = Budgets::new(mine, Arc::clone(&whole));
        let mut left = ITEMS;
        let mut credit = WINDOW;
        let mut send = |stream: &Stream, more: u32| {
            credit += more;
            while credit > 0 && left > 0 {
                (credit, left) = (credit - 64, left - 1);
                stream.add_item(1, &[7], false, 1_000, &budgets).expect("it was paid for");
            }
            left == 0
        };
        if !send(&stream, 0) {
            block_on(poll_fn(|cx| look(&stream, &ready, cx, |stream, grant, _| send(stream, grant))));
        }
        stream.end().expect("once");
        assert_eq!(receiver.join().unwrap(), ITEMS);
        assert_eq!(whole.snapshot().held, 0, "it is drained");
    });
}

#[test]
fn a_receiver_of_a_stream_that_is_closed_has_all_of_it_or_is_told_that_it_has_not() {
    under_schedules(|| {
        let stream = stream(&Arc::default());
        let receiver = {
            let stream = Arc::clone(&stream);
            thread::spawn(move || {
                let (mut intake, mut taken) = (Intake::new(WINDOW), 0);
                loop {
                    match block_on(poll_fn(|cx| stream.poll_take(&mut intake, cx.waker()))) {
                        Ok(true) => {}
                        Ok(false) => break assert_eq!(taken, 2, "it looks whole"),
                        Err(why) => break assert_eq!(why, Status::aborted("enough")),
                    }
                    while intake.next_item().is_some() {
                        taken += 1;
                    }
                }
            })
        };
        let limit = || ConcurrencyLimit::new("bytes", Some(1 << 20)).expect("it is not zero");
        let whole = limit();
        let budgets = Budgets::new(limit(), Arc::clone(&whole));
        for _ in 0..2 {
            stream.add_item(1, &[7], false, 1_000, &budgets).expect("the window covers it");
        }
        stream.end().expect("once");
        stream.close(&Status::aborted("enough"));
        receiver.join().unwrap();
        stream.stop_receiving();
        assert_eq!(whole.snapshot().held, 0, "nothing is kept of it");
    });
}

/// Time in which something happens: whoever has a timer moves it on, and nobody else.
struct Time {
    start: Reading,
    ms: AtomicU32,
}

impl Time {
    fn now(&self) -> Reading {
        Reading::at(self.start.instant + Duration::from_millis(self.ms.load(Ordering::SeqCst).into()))
    }
}

/// A connection that has one stream, as far as the line of a rate is concerned, for as long as the stream is open.
fn look_for_tokens(stream: &Stream, ready: &Ready, time: &Time, done: impl Fn() -> bool) {
    let mut keys = Vec::new();
    block_on(poll_fn(|cx| {
        ready.take(cx.waker(), &mut keys);
        let listed = !keys.is_empty() && stream.look().paced;
        let waits = if listed { stream.look_for_token(time.now()) } else { stream.look_in_time(time.now()) };
        // Who is first in line. The others are to be woken.
        if waits.is_some_and(|again| again < time.now().instant + RateWait::LONGEST) {
            time.ms.fetch_add(1, Ordering::SeqCst);
            cx.waker().wake_by_ref();
        }
        keys.clear();
        if done() { Poll::Ready(()) } else { Poll::Pending }
    }));
}

#[test]
fn receivers_that_wait_for_tokens_are_woken_by_them_and_when_their_streams_are_closed() {
    under_schedules(|| {
        let burst = thread_rng().gen_range(1..6);
        let rate = Rate::per_second(1_000.0).burst(burst);
        let limit = Arc::new(RateLimit::new("items", rate).expect("such a rate can be"));
        let time = Arc::new(Time { start: Reading::now(), ms: AtomicU32::new(0) });
        // Full, empty, or between.
        (0..thread_rng().gen_range(0..=burst)).for_each(|_| drop(limit.try_acquire(1, time.start.ticks)));
        let threads: Vec<_> = (0..2)
            .flat_map(|_| {
                let (ready, done) = (Arc::new(Ready::default()), Arc::new(AtomicBool::new(false)));
                let stream = stream(&ready);
                let closes = thread_rng().gen_range(0..3) == 0;
                let (receiver, finished, time) = (Arc::clone(&stream), Arc::clone(&done), Arc::clone(&time));
                let mut share = RateShare::new(Arc::clone(&limit));
                let waker = Arc::clone(&ready);
                let service = thread::spawn(move || {
                    let mut waits = false;
                    for _ in 0..2 {
                        let ended = block_on(poll_fn(|cx| match std::mem::replace(&mut waits, true) {
                            true => receiver.poll_token(cx.waker()).map(|token| token.is_err()),
                            false => receiver.wait_for_token(&mut share, cx.waker()).map(|_| true),
                        }));
                        if ended {
                            break;
                        }
                        waits = false;
                    }
                    receiver.stop_receiving();
                    finished.store(true, Ordering::SeqCst);
                    waker.wake_connection();
                });
                let connection = thread::spawn(move || {
                    if closes {
                        stream.close(&Status::cancelled("closed"));
                    }
                    look_for_tokens(&stream, &ready, &time, || done.load(Ordering::SeqCst));
                });
                [service, connection]
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let later = Reading::at(time.now().instant + Duration::from_millis(burst.into()));
        assert!(RateShare::new(limit).try_take(later.ticks), "somebody is still in line");
    });
}
