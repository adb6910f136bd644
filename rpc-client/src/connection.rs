//! One connection as its callers see it; the task behind it is in `driver.rs`.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use rpc_codec::{CallKind, GoAwayReason, Hello, PART_LEN, Remainder, SendBounds, encode_credit, patch_id};
use rpc_core::{CallId, Deadline, Executed, Metadata};

use crate::{
    error::{CallError, LostCause},
    gauges::Load,
    items::Items,
    line::Line,
    queue::{self, Withdrawal},
    slots::Slots,
    sync::{Mutex, MutexGuard},
};

/// What the callers of a connection share with its task.
///
/// Callers append whole frames under a short lock, and the task writes what has come together. It
/// delivers all answers of a read, then takes one more turn, in which the callers that it woke
/// append their next calls without waking anybody; then it writes once.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Arc<str>,
    state: Mutex<State>,
    /// What the server takes: longest frame in the upper half, longest message in the lower. Beside
    /// the lock because a call is encoded outside of it.
    bounds: AtomicU64,
    /// Bytes of frames that the task holds and has not written, or that have not come completely.
    pub(crate) unwritten: AtomicUsize,
    pub(crate) partial: AtomicUsize,
    /// The credit of a stream from the server.
    pub(crate) window: u32,
}

/// What is changed under the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) slots: Slots,
    /// Frames that the task has not begun to write.
    pub(crate) out: Vec<u8>,
    /// Requests of which the first part has been queued, and calls that have items to be sent; in turn.
    uploads: VecDeque<Upload>,
    /// The credit of a stream to the server.
    server_window: u32,
    /// Calls that were given up since the task has looked.
    pub(crate) withdrawals: Vec<Withdrawal>,
    /// The most calls at once that the server welcomes.
    max_calls: usize,
    pub(crate) greeted: bool,
    /// Callers that wait for room; newcomers queue up behind them.
    pub(crate) room: Line,
    /// Callers that wait for the server to say what it takes.
    pub(crate) greeting: Line,
    pub(crate) task: Option<Waker>,
    /// The task will look at `out` anyway.
    pub(crate) task_is_awake: bool,
    pub(crate) closing: bool,
    /// Why no call is taken any more.
    pub(crate) ended: Option<CallError>,
    /// The task has ended what waited, and ends.
    pub(crate) over: bool,
    /// Nothing can be written any more. The task still reads what has come, and ends.
    pub(crate) broken: bool,
    /// It was left before it was known what it was worth.
    pub(crate) left_undecided: bool,
    /// The server has answered a call, so connecting to it was worth it.
    pub(crate) proved: bool,
}

/// A call of which there is more to be queued.
#[derive(Debug)]
struct Upload {
    id: CallId,
    /// What is left of its request; if nothing is, its items follow.
    request: Option<Remainder>,
}

/// What came of an attempt to send a call.
#[derive(Debug)]
pub(crate) enum Sent {
    /// It is on its way under this id.
    As(CallId),
    /// There are as many calls out as the server welcomes.
    NoRoom,
    /// The connection takes no calls any more; the next one may.
    Gone,
}

impl Connection {
    /// A connection on which `ids_used` ids count as used, and to whose server our window of streams is told.
    pub(crate) fn new(peer: Arc<str>, ids_used: u64, window: u32) -> Arc<Self> {
        let hello = Hello::default();
        let connection = Self {
            peer,
            state: Mutex::new(State {
                slots: Slots::with_ids_used(ids_used),
                out: Vec::new(),
                uploads: VecDeque::new(),
                server_window: hello.stream_window,
                withdrawals: Vec::new(),
                max_calls: hello.advised_calls as usize,
                greeted: false,
                room: Line::default(),
                greeting: Line::default(),
                task: None,
                task_is_awake: false,
                closing: false,
                ended: None,
                over: false,
                broken: false,
                left_undecided: false,
                proved: false,
            }),
            bounds: AtomicU64::new(0),
            unwritten: AtomicUsize::new(0),
            partial: AtomicUsize::new(0),
            window,
        };
        connection.set_bounds(&hello);
        Arc::new(connection)
    }

    pub(crate) fn bounds(&self) -> SendBounds {
        let packed = self.bounds.load(Ordering::Relaxed);
        SendBounds { max_frame: (packed >> 32) as u32, max_message: packed as u32 }
    }

    /// Notes what the server has said it takes.
    pub(crate) fn greeted(&self, state: &mut State, hello: &Hello) {
        self.set_bounds(hello);
        state.greeted = true;
        state.max_calls = (hello.advised_calls as usize).clamp(1, MAX_CALLS);
        // Before they are woken whose credit that leaves.
        for id in state.slots.that_keep_long_items() {
            self.settle_long(state, id);
        }
        state.widen(hello.stream_window);
        state.wake_for_room();
        state.greeting.wake(usize::MAX, &mut state.slots.woken);
    }

    fn set_bounds(&self, hello: &Hello) {
        let packed = u64::from(hello.max_frame) << 32 | u64::from(hello.max_message);
        self.bounds.store(packed, Ordering::Relaxed);
    }

    /// Whether the server has said what it takes.
    pub(crate) fn is_greeted(&self) -> bool {
        self.lock().greeted
    }

    /// Whether it is worth waiting for the server to say what it takes.
    pub(crate) fn may_yet_greet(&self) -> bool {
        let state = self.lock();
        !state.greeted && state.ended.is_none() && !state.closing
    }

    /// Whether the server takes more than `bounds`, which it was asked for a moment ago, or may yet say so.
    pub(crate) fn may_take_more(&self, bounds: SendBounds) -> bool {
        // In this order: once it has greeted, what it takes is known.
        self.may_yet_greet() || self.bounds() != bounds
    }

    /// Appends a call of this kind whose id is still to be set, and takes what does not fit into its frame out of
    /// `remainder`; `waker` is woken when its answer is there. `has_place` for who has one from
    /// [`Self::wait_for_room`].
    pub(crate) fn send(
        &self,
        frame: &[u8],
        kind: CallKind,
        remainder: &mut Option<Remainder>,
        deadline: Deadline,
        has_place: bool,
        waker: &Waker,
    ) -> Sent {
        let (sent, task) = {
            let mut state = self.lock();
            if state.ended.is_some() || state.closing || state.slots.exhausted() {
                return Sent::Gone;
            }
            if !state.has_room() || (!state.room.is_empty() && !has_place) {
                return Sent::NoRoom;
            }
            let items = (kind != CallKind::Unary)
                .then(|| Items::new(kind, self.window, state.server_window, remainder.is_some()));
            let Some(id) = state.slots.insert(deadline, waker, items) else { return Sent::NoRoom };
            let start = state.out.len();
            state.out.extend_from_slice(frame);
            // Behind the copy, which would otherwise wait for this write.
            patch_id(&mut state.out[start..], id);
            if let Some(remainder) = remainder.take() {
                state.uploads.push_back(Upload { id, request: Some(remainder) });
            }
            (Sent::As(id), state.wake_task())
        };
        wake(task);
        sent
    }

    /// The answer of a call, if it is there.
    pub(crate) fn poll_answer(
        &self,
        id: CallId,
        body: &mut Vec<u8>,
        cx: &Context<'_>,
    ) -> Poll<Result<Metadata, Box<CallError>>> {
        let (taken, next, task) = {
            let mut state = self.lock();
            match state.slots.take(id, cx.waker(), body) {
                Ok(outcome) => (Ok(outcome), state.next_for_room(), state.last_one_out()),
                Err(replaced) => (Err(replaced), None, None),
            }
        };
        wake(next);
        wake(task);
        taken.map_or(Poll::Pending, Poll::Ready)
    }

    /// The caller of a call has gone. The task takes back what has not begun to leave; only it knows what
    /// that is.
    pub(crate) fn abandon(&self, id: CallId) {
        let (_own, waker, next) = {
            let mut state = self.lock();
            let own = state.slots.take_waker(id);
            let mut waker = None;
            let had_parts_to_come = state.stop_upload(id);
            let has_items = state.slots.has_items(id);
            // None waits any more once the task has ended.
            if state.slots.abandon(id) {
                state.withdrawals.push(Withdrawal::new(id, had_parts_to_come).with_items(has_items));
                waker = state.wake_task();
            }
            (own, waker.or_else(|| state.last_one_out()), state.next_for_room())
        };
        wake(next);
        wake(waker);
    }

    /// Takes no calls any more; the task says goodbye when those that are out have ended.
    pub(crate) fn close(&self) {
        let (task, mut woken) = {
            let mut state = self.lock();
            state.closing = true;
            state.wake_all_waiting();
            (state.wake_task(), mem::take(&mut state.slots.woken))
        };
        woken.drain(..).for_each(Waker::wake);
        wake(task);
    }

    /// Why no call is taken any more.
    pub(crate) fn ended(&self) -> Option<CallError> {
        self.lock().ended.clone()
    }

    /// What it has in use.
    pub(crate) fn load(&self) -> Load {
        let state = self.lock();
        Load {
            calls: state.slots.used(),
            waiting: state.room.len() + state.greeting.len(),
            outbound: state.out.len()
                + state.uploads_len()
                + state.slots.items_to_send_len()
                + self.unwritten.load(Ordering::Relaxed),
            inbound: state.slots.answers_len() + self.partial.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs under the lock, so it cannot be poisoned with a half-made change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails what waits and takes nothing more. `writing` is what the task has taken, of which `sent` bytes have left.
    /// Returns whether the server had said that it would drain, and has done so: nobody has lost anything.
    pub(crate) fn end(&self, cause: &LostCause, writing: &[u8], sent: usize) -> bool {
        let mut wakers = Vec::new();
        let (drained, _task) = {
            let mut state = self.lock();
            let cause = &state.said(cause);
            let lost = |executed| CallError::Lost { peer: Arc::clone(&self.peer), executed, source: cause.clone() };
            let mut unsent = Vec::new();
            for (frames, sent) in [(writing, sent), (&state.out, 0)] {
                queue::add_unsent(frames, sent, |id| state.slots.has_items(id), &mut unsent);
            }
            unsent.extend(state.uploads.iter().filter(|upload| upload.request.is_some()).map(|upload| upload.id));
            unsent.sort_unstable();
            let waiting: Vec<_> = state.slots.waiting().collect();
            let closed = matches!(cause, LostCause::ServerClosed | LostCause::Io(_));
            let drained = closed && waiting.is_empty() && state.drains();
            for id in waiting {
                let executed = state.executed(id, unsent.binary_search(&id).is_ok());
                wakers.extend(state.slots.fail(id, lost(executed)));
            }
            state.wake_all_waiting();
            wakers.append(&mut state.slots.woken);
            state.ended.get_or_insert(lost(Executed::Never));
            state.over = true;
            state.out = Vec::new();
            state.uploads.clear();
            state.withdrawals = Vec::new();
            self.unwritten.store(0, Ordering::Relaxed);
            self.partial.store(0, Ordering::Relaxed);
            (drained, state.task.take())
        };
        wakers.into_iter().for_each(Waker::wake);
        drained
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.slots.used() < self.max_calls && self.out.len() < MAX_QUEUED_LEN
    }

    /// For how many calls more there is room.
    pub(crate) fn free(&self) -> usize {
        if self.has_room() { self.max_calls - self.slots.used() } else { 0 }
    }

    /// Who waits for room and may go on, now that there is room for one call more or one less waits.
    #[inline]
    pub(crate) fn next_for_room(&mut self) -> Option<Waker> {
        if self.room.is_empty() {
            return None;
        }
        let free = self.free();
        self.room.next(free)
    }

    /// There may be room for several calls more.
    pub(crate) fn wake_for_room(&mut self) {
        let free = self.free();
        self.room.wake(free, &mut self.slots.woken);
    }

    /// No more calls are taken.
    pub(crate) fn wake_all_waiting(&mut self) {
        for line in [&mut self.room, &mut self.greeting] {
            line.wake(usize::MAX, &mut self.slots.woken);
        }
    }

    /// Why the connection has ended, in the server's words if it has said that it would: one that has said why it breaks
    /// off and then does is believed. One that drains has promised to finish.
    pub(crate) fn said(&self, cause: &LostCause) -> LostCause {
        match (cause, self.farewell()) {
            (LostCause::ServerClosed | LostCause::Io(_), Some(said)) if !self.drains() => said,
            _ => cause.clone(),
        }
    }

    /// What the server has said when it took its leave.
    pub(crate) fn farewell(&self) -> Option<LostCause> {
        match &self.ended {
            Some(CallError::GoingAway { message, .. }) => Some(LostCause::GoneAway(Arc::clone(message))),
            _ => None,
        }
    }

    /// Whether the server has said that it drains.
    pub(crate) fn drains(&self) -> bool {
        matches!(&self.ended, Some(CallError::GoingAway { reason: GoAwayReason::Drain, .. }))
    }

    /// Gives back what is kept for the next call, when there has been none for long. What waits to be written stays.
    pub(crate) fn let_go(&mut self) {
        self.out.shrink_to_fit();
        self.withdrawals.shrink_to_fit();
        self.uploads.shrink_to_fit();
        self.room.let_go();
        self.greeting.let_go();
        self.slots.let_go();
    }

    /// Lets the server send so many bytes of a call's items more, unless it does not read what it is told: then that
    /// is noted, and it waits.
    pub(crate) fn give_credit(&mut self, id: CallId, bytes: u32) {
        let Some(items) = self.slots.items(id) else { return };
        if self.out.len() < MAX_QUEUED_LEN {
            items.inflow.give(bytes);
            encode_credit(&mut self.out, id, bytes);
        } else {
            items.withheld = items.withheld.saturating_add(bytes);
        }
    }

    /// Appends the credit to `out` that was withheld.
    pub(crate) fn give_withheld(&mut self, out: &mut Vec<u8>) {
        for (id, items) in self.slots.all_items().filter(|(_, items)| items.withheld > 0) {
            let bytes = mem::take(&mut items.withheld);
            items.inflow.give(bytes);
            encode_credit(out, id, bytes);
        }
    }

    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.out);
    }

    /// Queues the next parts of requests, one of each in turn, as long as little waits to be written.
    /// Whether there are more.
    pub(crate) fn queue_parts(&mut self, max_frame: u32) -> bool {
        while self.out.len() < 2 * PART_LEN {
            let Some(Upload { id, request }) = self.uploads.pop_front() else { return false };
            match request {
                Some(remainder) => self.queue_part(id, remainder, max_frame),
                None => self.queue_items(id),
            }
        }
        !self.uploads.is_empty()
    }

    fn queue_part(&mut self, id: CallId, mut remainder: Remainder, max_frame: u32) {
        let mut last = false;
        self.append(|out| last = remainder.encode_part(out, id, max_frame));
        if !last {
            return self.uploads.push_back(Upload { id, request: Some(remainder) });
        }
        if let Some(items) = self.slots.items(id) {
            items.held_back = false;
            self.list_items(id);
        }
    }

    fn queue_items(&mut self, id: CallId) {
        let Some(items) = self.slots.items(id) else { return };
        items.queued = items.outflow.queue.take_part(&mut self.out);
        let (more, waker) = (items.queued, items.ready_sender());
        self.slots.woken.extend(waker);
        if more {
            self.uploads.push_back(Upload { id, request: None });
        }
    }

    /// Notes that a call may have items to be sent.
    pub(crate) fn list_items(&mut self, id: CallId) {
        let Some(items) = self.slots.items(id) else { return };
        if !items.queued && !items.held_back && !items.outflow.queue.is_empty() {
            items.queued = true;
            self.uploads.push_back(Upload { id, request: None });
        }
    }

    fn uploads_len(&self) -> usize {
        self.uploads.iter().filter_map(|upload| upload.request.as_ref()).map(Remainder::len).sum()
    }

    /// The server's window is known.
    fn widen(&mut self, window: u32) {
        self.server_window = self.server_window.max(window);
        let woken: Vec<_> = self.slots.all_items().filter_map(|(_, items)| items.widen(window)).collect();
        self.slots.woken.extend(woken);
    }

    /// Sends no more parts and items of a call that has ended. Whether there were parts of its request.
    pub(crate) fn stop_upload(&mut self, id: CallId) -> bool {
        let mut had_parts = false;
        self.uploads.retain(|upload| {
            had_parts |= upload.id == id && upload.request.is_some();
            upload.id != id
        });
        had_parts
    }

    /// What a call that waits is told about it. A request that has not left completely cannot have been
    /// executed, unless its answer has begun.
    pub(crate) fn executed(&self, id: CallId, incomplete: bool) -> Executed {
        if incomplete && !self.slots.has_parts_to_come(id) { Executed::Never } else { Executed::Maybe }
    }

    /// The waker of the task if it waits for the last call to end, and that has happened.
    pub(crate) fn last_one_out(&mut self) -> Option<Waker> {
        if self.closing && self.slots.used() == 0 { self.wake_task() } else { None }
    }

    /// The waker to be woken when the lock is released; none if the task is awake.
    pub(crate) fn wake_task(&mut self) -> Option<Waker> {
        if mem::replace(&mut self.task_is_awake, true) { None } else { self.task.clone() }
    }
}

/// Keeps `waker` to be woken later. The one that was kept before is returned to be dropped outside of the lock: it is
/// another's code, and may be the last that holds a task with calls of this connection in it.
#[must_use]
pub(crate) fn keep(known: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    if known.as_ref().is_some_and(|known| known.will_wake(waker)) { None } else { known.replace(waker.clone()) }
}

pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// With more than this waiting to be written, further calls wait.
pub(crate) const MAX_QUEUED_LEN: usize = 1024 * 1024;
/// Slots are named by 16 bits.
const MAX_CALLS: usize = 1 << 16;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{
        io,
        pin::{Pin, pin},
        task::Wake,
    };

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;
    use crate::{config::Config, driver::Driver};

    /// A waker that notes, when its last owner drops it, whether the connection could be used.
    struct Own(Arc<Connection>, Arc<AtomicUsize>);

    impl Wake for Own {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Own {
        fn drop(&mut self) {
            let free = self.0.state.try_lock().is_ok();
            self.1.fetch_add(if free { 1 } else { 1_000 }, Ordering::Relaxed);
        }
    }

    /// A transport that keeps nobody's waker. The server says HELLO, and after a while no more.
    struct Silent(Vec<u8>, Arc<AtomicUsize>);

    impl AsyncRead for Silent {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            buf.put_slice(&mem::take(&mut self.0));
            let over = self.1.load(Ordering::Relaxed) > 0;
            if over || !buf.filled().is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
        }
    }

    impl AsyncWrite for Silent {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn the_wakers_of_the_task_are_dropped_where_the_connection_may_be_used() {
        let connection = Connection::new("the server".into(), 0, 1024);
        let (dropped, over, mut hello) = (Arc::default(), Arc::default(), Vec::new());
        Hello::default().encode(&mut hello);
        let config = Config { keepalive_interval: None, ..Config::default() };
        let driver = Driver::new(Silent(hello, Arc::clone(&over)), Arc::clone(&connection), Arc::default(), &config);
        let mut run = pin!(driver.run());
        let mut poll = || {
            let waker = Waker::from(Arc::new(Own(Arc::clone(&connection), Arc::clone(&dropped))));
            run.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        for replaced in 0..5 {
            assert!(!poll());
            assert_eq!(dropped.load(Ordering::Relaxed), replaced);
        }
        over.store(1, Ordering::Relaxed);
        assert!(poll());
        assert_eq!(dropped.load(Ordering::Relaxed), 6, "with that of the last turn");
    }
}
