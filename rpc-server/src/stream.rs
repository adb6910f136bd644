//! What a connection and a service share of one stream.

use std::{
    mem,
    sync::{Arc, PoisonError, atomic::AtomicU64},
    task::{Poll, Wake, Waker},
    time::Instant,
};

use rpc_codec::{CallKind, FlowError, FrameQueue, Inflow, Intake, Outflow, SendBounds, charge, late_frames};
use rpc_core::{
    CallId, ItemSender, Status,
    limit::{ConcurrencyRefusal, RateShare, RateWait},
};

use crate::{
    budgets::{Budgets, Kept},
    clock::{self, Reading},
    gauges::Share,
    idle::IdleWatch,
    item_rate::ItemPace,
    pace::Pace,
    ready::{Key, Ready},
    sync::{AtomicBool, Mutex, MutexGuard, Ordering},
};

/// One call's items, both ways, between its connection and its service.
///
/// The service may run anywhere. Each end does its part under a short lock, with no user code in it, and
/// wakes the other: the connection through its list of what is ready, the service by its waker.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: CallId,
    pub(crate) kind: CallKind,
    pub(crate) bounds: SendBounds,
    /// What the client may send, and what it takes.
    windows: Windows,
    ready: Arc<Ready>,
    /// Whether the connection is going to look.
    listed: AtomicBool,
    state: Mutex<State>,
}

/// The windows of the two ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) server: u32,
    pub(crate) client: u32,
}

#[derive(Debug)]
struct State {
    outflow: Outflow,
    inflow: Inflow,
    threshold: usize,
    /// The writer has the stream among those it takes from.
    in_writer: bool,
    /// Credit that the client is to be given.
    grant: u32,
    /// What the client's items have taken of the budgets.
    kept: Kept,
    sender: Option<Waker>,
    receiver: Option<Waker>,
    /// The service, when it waits for nothing but the end.
    watcher: Option<Waker>,
    /// The service, when its next item waits for a token.
    paced: Option<Waker>,
    /// How fast the service is handed items, until it has its end of the stream.
    pace: Option<Box<ItemPace>>,
    /// The wait for the token of its next item.
    token: Option<Token>,
    /// An item came or went since the stream was last looked at.
    moved: bool,
    /// Why nothing goes or comes any more.
    closed: Option<Status>,
    /// It was closed before the client had sent all of its items and the service had taken them.
    cut_short: bool,
    held: Share,
}

/// A token for which an item waits.
#[derive(Debug)]
struct Token {
    /// Until it has come.
    wait: Option<Arc<RateWait>>,
    /// When to look whether it has.
    again: Instant,
}

/// What a connection finds when it looks.
#[derive(Debug)]
pub(crate) struct Found {
    /// Credit for the client.
    pub(crate) grant: u32,
    /// The writer is to take items.
    pub(crate) to_writer: bool,
    /// An item waits for its token.
    pub(crate) paced: bool,
}

/// The connection's hold on a stream. Its drop closes the stream, whatever ends the call.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) stream: Arc<Stream>,
    /// How fast an item of the client's comes, of which parts are to come.
    pub(crate) item: Option<Pace>,
    /// If the stream may not be idle for ever.
    pub(crate) idle: Option<IdleWatch>,
    _open: Share,
}

impl Seat {
    /// Opens the stream of a call. `open` counts streams, `held` the bytes in them.
    ///
    /// In a box: calls without items carry one word for it.
    pub(crate) fn new(stream: Stream, open: &Arc<AtomicU64>) -> Box<Self> {
        let mut open = Share::of(open);
        open.set(1);
        Box::new(Self { stream: Arc::new(stream), item: None, idle: None, _open: open })
    }
}

/// Why an item was not taken.
#[derive(Debug)]
pub(crate) enum Unkept {
    /// The client broke a rule.
    Rule(FlowError),
    /// There is no room for it.
    Full(ConcurrencyRefusal),
}

impl From<FlowError> for Unkept {
    fn from(error: FlowError) -> Self {
        Self::Rule(error)
    }
}

impl From<ConcurrencyRefusal> for Unkept {
    fn from(refusal: ConcurrencyRefusal) -> Self {
        Self::Full(refusal)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.stream.close(&Status::cancelled("the caller has gone"));
    }
}

impl Stream {
    pub(crate) fn new(
        id: CallId,
        kind: CallKind,
        bounds: SendBounds,
        windows: Windows,
        ready: &Arc<Ready>,
        held: &Arc<AtomicU64>,
    ) -> Self {
        let state = State {
            outflow: Outflow::new(if kind.server_sends() { windows.client } else { 0 }),
            inflow: Inflow::new(if kind.client_sends() { windows.server } else { 0 }),
            threshold: ItemSender::<()>::DEFAULT_THRESHOLD,
            in_writer: false,
            grant: 0,
            kept: Kept::default(),
            sender: None,
            receiver: None,
            watcher: None,
            paced: None,
            pace: None,
            token: None,
            moved: false,
            closed: None,
            cut_short: false,
            held: Share::of(held),
        };
        let (ready, state) = (Arc::clone(ready), Mutex::new(state));
        Self { id, kind, bounds, windows, ready, listed: AtomicBool::new(false), state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing of a user's runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the connection look.
    fn list(&self) {
        if !self.listed.swap(true, Ordering::AcqRel) {
            self.ready.push(Key::Stream(self.id));
        }
    }

    /// Polls, and has `waker` woken by the one that `whose` finds if that is pending.
    ///
    /// A waker is another's code, to be cloned as well as to be dropped: neither is done under the lock.
    fn poll<R>(
        &self,
        waker: &Waker,
        whose: fn(&mut State) -> &mut Option<Waker>,
        mut poll: impl FnMut(&mut State) -> Poll<R>,
    ) -> Poll<R> {
        {
            let mut state = self.lock();
            let polled = poll(&mut state);
            if polled.is_ready() || whose(&mut state).as_ref().is_some_and(|known| known.will_wake(waker)) {
                return polled;
            }
        }
        let mut waker = Some(waker.clone());
        let mut state = self.lock();
        // It may have happened meanwhile.
        let polled = poll(&mut state);
        if polled.is_pending() {
            mem::swap(whose(&mut state), &mut waker);
        }
        drop(state);
        polled
    }
}

/// Whoever serves the line of a rate has the connection look.
impl Wake for Stream {
    fn wake(self: Arc<Self>) {
        self.list();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.list();
    }
}

/// What the connection does.
impl Stream {
    /// What is to be done for the service. What it asks for from now on lists the stream anew.
    pub(crate) fn look(&self) -> Found {
        self.listed.store(false, Ordering::Release);
        let mut state = self.lock();
        let grant = mem::take(&mut state.grant);
        state.inflow.give(grant);
        let to_writer = !state.in_writer && !state.outflow.queue.is_empty();
        state.in_writer |= to_writer;
        Found { grant, to_writer, paced: state.token.is_some() }
    }

    /// Moves items of about a part's length into `out`. Whether there are more; the writer forgets the
    /// stream if not.
    pub(crate) fn take_part(&self, out: &mut Vec<u8>) -> bool {
        let (more, waker) = {
            let mut state = self.lock();
            let more = state.outflow.queue.take_part(out);
            state.in_writer = more;
            state.moved = true;
            state.note_held();
            (more, state.ready_sender())
        };
        wake(waker);
        more
    }

    /// The service has ended by itself: what waits goes before its answer.
    pub(crate) fn finish(&self) -> FrameQueue {
        let (queue, closed) = {
            let mut state = self.lock();
            let queue = mem::take(&mut state.outflow.queue);
            let why = Status::failed_precondition("the method that the stream belongs to has returned");
            (queue, state.close(&why))
        };
        closed.tell();
        queue
    }

    /// Nothing goes or comes any more, because of `why` unless that has been said.
    pub(crate) fn close(&self, why: &Status) {
        let closed = self.lock().close(why);
        closed.tell();
    }

    /// An item has come, or its first part. What it needs is taken of the budgets before any of it is kept;
    /// if they are used up, it is not.
    pub(crate) fn add_item(
        &self,
        len: u32,
        part: &[u8],
        more: bool,
        max: u32,
        budgets: &Budgets,
    ) -> Result<(), Unkept> {
        self.receive(|state| {
            state.inflow.check(len, max)?;
            if more || state.inflow.is_wanted() {
                state.kept.item_comes(charge(len as usize) as u64, more, self.windows.server, budgets)?;
            }
            Ok(state.inflow.add(len, part, more, max)?)
        })
    }

    /// A further part of an item has come.
    pub(crate) fn add_part(&self, part: &[u8], more: bool) -> Result<(), FlowError> {
        self.receive(|state| {
            let complete = state.inflow.add_part(part, more)?;
            if complete {
                state.kept.item_is_complete(state.inflow.is_wanted());
            }
            Ok(complete)
        })
    }

    /// The client has sent its last item.
    pub(crate) fn end(&self) -> Result<(), FlowError> {
        self.receive(|state| state.inflow.end().map(|()| true))
    }

    fn receive<E>(&self, change: impl FnOnce(&mut State) -> Result<bool, E>) -> Result<(), E> {
        let waker = {
            let mut state = self.lock();
            let wakes = change(&mut state)?;
            state.moved = true;
            state.note_held();
            if wakes { state.receiver.take() } else { None }
        };
        wake(waker);
        Ok(())
    }

    /// The client gives credit. Whether an item has paid for that.
    pub(crate) fn add_credit(&self, bytes: u32) -> Result<bool, FlowError> {
        let (paid, waker) = {
            let mut state = self.lock();
            (state.outflow.add_credit(bytes)?, state.ready_sender())
        };
        wake(waker);
        Ok(paid)
    }

    /// Has the service handed items as `pace` says; before it begins.
    pub(crate) fn set_pace(&self, pace: ItemPace) {
        self.lock().pace = Some(Box::new(pace));
    }

    /// Wakes the service if its next item has its token. If it waits for one, when to look again.
    ///
    /// With the token it leaves the line, whatever the service does before it asks for the item: those behind are to
    /// wait for connections that are busy, and not for services that are.
    pub(crate) fn look_for_token(&self, now: Reading) -> Option<Instant> {
        let wait = Arc::clone(self.lock().token.as_ref()?.wait.as_ref()?);
        // It serves others as well, and wakes their connections.
        let polled = wait.poll(now.ticks);
        let (_wait, service) = {
            let mut state = self.lock();
            let token = state.token.as_mut()?;
            if let Err(after) = polled {
                token.again = now.instant + after;
                return Some(token.again);
            }
            (token.wait.take(), state.paced.take())
        };
        wake(service);
        None
    }

    /// The same when the time has come to look.
    pub(crate) fn look_in_time(&self, now: Reading) -> Option<Instant> {
        let again = self.lock().token.as_ref().filter(|token| token.wait.is_some())?.again;
        if again <= now.instant { self.look_for_token(now) } else { Some(again) }
    }

    /// Whether anything happened since this was asked last. A service that has items is at work, unless it waits for
    /// the client to take what it sends; and so is one that owes nothing but its answer.
    pub(crate) fn has_moved(&self) -> bool {
        let mut state = self.lock();
        let stands = state.sender.is_some() && !state.is_ready();
        let answers = !self.kind.server_sends() && (state.inflow.has_ended() || !state.inflow.is_wanted());
        mem::take(&mut state.moved) || (state.kept.is_at_work() && !stands) || answers
    }

    /// Whether parts of an item are to come.
    pub(crate) fn is_within_item(&self) -> bool {
        self.lock().inflow.is_within_item()
    }

    /// Whether the client has sent its last item, if it sends any.
    pub(crate) fn has_all(&self) -> bool {
        !self.kind.client_sends() || self.lock().inflow.has_ended()
    }

    /// How many frames of the stream an honest client may still have under way, but for parts of items.
    pub(crate) fn frames_to_come(&self) -> u64 {
        let state = self.lock();
        let ends = u64::from(self.kind.client_sends() && !state.inflow.has_ended());
        late_frames(state.inflow.credit()) + ends + state.outflow.credits_to_come(self.windows.client)
    }
}

/// What the service does.
impl Stream {
    /// How much may be sent at once, as credit and as bytes that may become pending. If nothing may be,
    /// `waker` is woken when that has changed.
    pub(crate) fn poll_send(&self, waker: &Waker) -> Poll<Result<(i64, usize), Status>> {
        self.poll(
            waker,
            |state| &mut state.sender,
            |state| {
                if let Some(why) = &state.closed {
                    return Poll::Ready(Err(why.clone()));
                }
                if state.is_ready() {
                    return Poll::Ready(Ok((state.outflow.credit(), state.threshold - state.outflow.queue.len())));
                }
                Poll::Pending
            },
        )
    }

    /// Whoever waited in [`Self::poll_send`] does something else.
    pub(crate) fn stop_waiting_to_send(&self) {
        let _waker = self.lock().sender.take();
    }

    /// Waits until the stream is closed, and says why.
    pub(crate) fn poll_closed(&self, waker: &Waker) -> Poll<Status> {
        self.poll(waker, |state| &mut state.watcher, |state| state.closed.clone().map_or(Poll::Pending, Poll::Ready))
    }

    /// Puts items into the queue. Those for which there is no credit are refused: the client would end the connection,
    /// which other calls share.
    pub(crate) fn push(&self, batch: &mut Vec<u8>, items: u64, charged: i64) -> Result<(), Status> {
        {
            let mut state = self.lock();
            if let Some(why) = &state.closed {
                return Err(why.clone());
            }
            if state.outflow.credit() <= 0 {
                return Err(Status::internal("an item was put into a stream without asking whether there is room"));
            }
            state.outflow.push(batch, items, charged);
            state.moved = true;
            state.note_held();
        }
        self.list();
        Ok(())
    }

    /// Whether an item may be sent now.
    pub(crate) fn is_ready(&self) -> bool {
        let state = self.lock();
        state.closed.is_none() && state.is_ready()
    }

    /// Bytes of items that the connection has not taken.
    pub(crate) fn pending(&self) -> usize {
        self.lock().outflow.queue.len()
    }

    pub(crate) fn set_threshold(&self, bytes: usize) {
        let waker = {
            let mut state = self.lock();
            state.threshold = bytes;
            state.ready_sender()
        };
        wake(waker);
    }

    /// Takes what has come, once `intake` has been consumed. `Ready(false)` behind the last item. If
    /// nothing has come, `waker` is woken when something does.
    pub(crate) fn poll_take(&self, intake: &mut Intake, waker: &Waker) -> Poll<Result<bool, Status>> {
        self.poll(
            waker,
            |state| &mut state.receiver,
            |state| {
                let come = intake.refill(&mut state.inflow);
                // That the service is through with what it had counts as well.
                state.moved |= state.kept.is_at_work();
                state.kept.all_taken(self.windows.server);
                if come {
                    state.note_held();
                    return Poll::Ready(Ok(true));
                }
                // What has lost items does not look like one that is whole.
                if state.inflow.has_ended() && !state.cut_short {
                    return Poll::Ready(Ok(false));
                }
                state.closed.clone().map_or(Poll::Pending, |why| Poll::Ready(Err(why)))
            },
        )
    }

    /// How fast the service is to be handed items, if not as they come.
    pub(crate) fn take_pace(&self) -> Option<Box<ItemPace>> {
        self.lock().pace.take()
    }

    /// Waits in the line of `rate` for a token, and wakes `waker` when it has come; or says why the stream was closed.
    pub(crate) fn wait_for_token(self: &Arc<Self>, rate: &mut RateShare, waker: &Waker) -> Poll<Status> {
        let wait = Some(Arc::new(rate.wait(Waker::from(Arc::clone(self)))));
        let mut token = Some(Token { wait, again: clock::now() });
        let mut waker = Some(waker.clone());
        {
            let mut state = self.lock();
            // Who is closed has left the line, and does not come back.
            if let Some(why) = &state.closed {
                return Poll::Ready(why.clone());
            }
            mem::swap(&mut state.paced, &mut waker);
            mem::swap(&mut state.token, &mut token);
        }
        self.list();
        Poll::Pending
    }

    /// Waits until the token has come; or says why the stream was closed.
    pub(crate) fn poll_token(&self, waker: &Waker) -> Poll<Result<(), Status>> {
        self.poll(
            waker,
            |state| &mut state.paced,
            |state| match (&state.closed, &state.token) {
                (Some(why), _) => Poll::Ready(Err(why.clone())),
                (None, Some(token)) if token.wait.is_some() => Poll::Pending,
                (None, _) => {
                    state.token = None;
                    Poll::Ready(Ok(()))
                }
            },
        )
    }

    /// Has the connection give credit to the client.
    pub(crate) fn grant(&self, bytes: u32) {
        {
            let mut state = self.lock();
            if bytes == 0 || state.closed.is_some() || state.inflow.has_ended() {
                return;
            }
            state.grant = state.grant.saturating_add(bytes);
        }
        self.list();
    }

    /// Nobody takes the client's items any more.
    pub(crate) fn stop_receiving(&self) {
        let _left = {
            let mut state = self.lock();
            state.inflow.stop();
            state.kept.nothing_wanted();
            state.note_held();
            (state.token.take(), state.paced.take())
        };
    }

    /// The window that the client was promised.
    pub(crate) fn window(&self) -> u32 {
        self.windows.server
    }
}

impl State {
    fn is_ready(&self) -> bool {
        self.outflow.is_ready(self.threshold)
    }

    fn ready_sender(&mut self) -> Option<Waker> {
        if self.is_ready() { self.sender.take() } else { None }
    }

    fn close(&mut self, why: &Status) -> Closed {
        self.closed.get_or_insert_with(|| why.clone());
        self.outflow.queue.clear();
        self.cut_short |= !self.inflow.has_ended() || !self.inflow.is_empty();
        self.inflow.close();
        self.kept.closed();
        self.note_held();
        let Self { sender, receiver, watcher, paced, token, .. } = self;
        Closed { wakers: [sender, receiver, watcher, paced].map(Option::take), token: token.take() }
    }

    fn note_held(&mut self) {
        let bytes = self.outflow.queue.len() + self.inflow.len();
        self.held.set(bytes);
    }
}

/// What a stream that is closed leaves, for outside of the lock.
#[must_use]
struct Closed {
    wakers: [Option<Waker>; 4],
    token: Option<Token>,
}

impl Closed {
    /// Wakes who waits, and leaves the line.
    fn tell(self) {
        self.wakers.into_iter().for_each(wake);
        drop(self.token);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use rpc_core::limit::{ConcurrencyLimit, Rate, RateLimit};

    use super::*;

    const BOUNDS: SendBounds = SendBounds { max_frame: 1 << 16, max_message: 1 << 16 };

    fn client_stream() -> Stream {
        let windows = Windows { server: 1 << 16, client: 0 };
        Stream::new(CallId::new(1, 0), CallKind::ClientStream, BOUNDS, windows, &Arc::default(), &Arc::default())
    }

    fn add_items(stream: &Stream, count: usize) {
        let limit = || ConcurrencyLimit::new("bytes", Some(1 << 20)).unwrap();
        let budgets = Budgets::new(limit(), limit());
        for _ in 0..count {
            stream.add_item(1, &[7], false, 1_000, &budgets).unwrap();
        }
    }

    fn take(stream: &Stream, intake: &mut Intake) -> Poll<Result<bool, Status>> {
        while intake.next_item().is_some() {}
        stream.poll_take(intake, Waker::noop())
    }

    /// A waker that looks, when its last owner drops it, whether the stream could be used.
    struct Own(Arc<Stream>, Arc<AtomicU64>);

    impl Wake for Own {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Own {
        fn drop(&mut self) {
            let free = self.0.state.try_lock().is_ok();
            self.1.fetch_add(if free { 1 } else { 1_000 }, Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_waits_may_use_the_stream_in_the_drop_of_a_waker() {
        let windows = Windows { server: 1 << 16, client: 0 };
        let stream =
            Stream::new(CallId::new(1, 0), CallKind::BothWays, BOUNDS, windows, &Arc::default(), &Arc::default());
        let (stream, dropped) = (Arc::new(stream), Arc::default());
        let rate = Arc::new(RateLimit::new("items", Rate::per_second(1.0).burst(1)).unwrap());
        let polls: [&dyn Fn(&Waker) -> bool; 5] = [
            &|waker| stream.poll_send(waker).is_pending(),
            &|waker| stream.poll_closed(waker).is_pending(),
            &|waker| stream.poll_take(&mut Intake::new(1 << 16), waker).is_pending(),
            &|waker| stream.wait_for_token(&mut RateShare::new(Arc::clone(&rate)), waker).is_pending(),
            &|waker| stream.poll_token(waker).is_pending(),
        ];
        let waker = || Waker::from(Arc::new(Own(Arc::clone(&stream), Arc::clone(&dropped))));
        for poll in polls {
            for _ in 0..3 {
                assert!(poll(&waker()));
            }
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 5 * 3 - 4, "those that were replaced");
        stream.close(&Status::cancelled("closed"));
        assert_eq!(dropped.load(Ordering::Relaxed), 5 * 3, "and those that were woken");
    }

    #[test]
    fn a_stream_that_lost_items_says_why_and_not_that_it_has_ended() {
        let why = Status::deadline_exceeded("too late");
        for (taken, lost) in [(0, 2), (2, 2)] {
            let (stream, mut intake) = (client_stream(), Intake::new(1 << 16));
            if taken > 0 {
                add_items(&stream, taken);
                assert_eq!(take(&stream, &mut intake), Poll::Ready(Ok(true)));
            }
            add_items(&stream, lost);
            stream.end().unwrap();
            stream.close(&why);
            // Its drop closes it anew.
            stream.close(&Status::cancelled("gone"));
            assert_eq!(take(&stream, &mut intake), Poll::Ready(Err(why.clone())), "{taken} taken");
        }
    }

    #[test]
    fn a_stream_of_which_all_was_taken_has_ended_whatever_ends_its_call() {
        let (stream, mut intake) = (client_stream(), Intake::new(1 << 16));
        add_items(&stream, 2);
        stream.end().unwrap();
        assert_eq!(take(&stream, &mut intake), Poll::Ready(Ok(true)));
        assert!(stream.finish().is_empty());
        stream.close(&Status::cancelled("gone"));
        assert_eq!(take(&stream, &mut intake), Poll::Ready(Ok(false)));
    }
}
