//! The calls of one connection that are pending: where each is, and when it expires.

use std::{
    collections::HashMap,
    hash::BuildHasherDefault,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use rpc_core::{CallId, Context, Deadline, Executed, Refusal};
use slab::Slab;
use tokio::task::{AbortHandle, Id};

use crate::{
    body::Upload,
    call::Opening,
    clock::Reading,
    gauges::Share,
    method::IdHasher,
    pace::{LeastRate, Pace},
    panics::drop_contained,
    pipeline::Decision,
    ready::SlotWaker,
    stream::{Seat, Stream},
};

/// The pending calls of one connection.
///
/// ```text
///   pipeline --AwaitBody--> Receiving --whole--> pipeline --Wait--> Waiting --Pass--> pipeline
///   pipeline --Pass--> Slot (polled in place) ---> answered
///                        \-- too slow --> Task --/
/// ```
///
/// What waits for a permit has its body, and what waits for its body has no permit of what it comes to then.
///
/// Cancelling, expiry and the end of the connection take a call out of any of these states.
#[derive(Debug)]
pub(crate) struct InFlight {
    calls: Slab<Pending>,
    by_id: HashMap<CallId, usize, BuildHasherDefault<IdHasher>>,
    /// No call expires before this. It may be early, since a call that ends does not move it.
    next_expiry: Option<Instant>,
    /// Nothing that comes in parts has come too slowly before this; early in the same way.
    next_slow: Option<Instant>,
    /// No item that waits for its rate can have its token before this; early in the same way.
    next_token: Option<Instant>,
    /// No stream can be found idle before this; early in the same way.
    next_idle: Option<Instant>,
    least_rate: Option<LeastRate>,
    gauge: Share,
}

/// One pending call.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) id: CallId,
    pub(crate) method: u32,
    pub(crate) received: Instant,
    /// When its service was called, if it was.
    pub(crate) began: Instant,
    pub(crate) deadline: Deadline,
    pub(crate) place: Place,
    /// If it has items.
    pub(crate) stream: Option<Box<Seat>>,
}

/// Where a pending call is.
pub(crate) enum Place {
    /// Its future is in this slot of its method.
    Slot(u32),
    /// It runs in a task of its own or on the blocking pool, where its permit is, too.
    Task { abort: AbortHandle, context: Context },
    /// It waits in the pipeline at this position.
    Waiting(Box<Waiting>),
    /// It waits for the rest of its body.
    Receiving(Box<Receiving>),
}

/// A call whose body arrives in parts.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) opening: Opening,
    pub(crate) upload: Upload,
    /// The handler that is asked next, or their number if all have let it pass.
    pub(crate) at: usize,
    pub(crate) _gauge: Share,
}

/// A call that waits in the pipeline for a handler's future to decide.
pub(crate) struct Waiting {
    pub(crate) opening: Opening,
    pub(crate) upload: Upload,
    pub(crate) at: usize,
    pub(crate) future: HandlerFuture,
    pub(crate) waker: Arc<SlotWaker>,
    /// Without it, it waits until its deadline.
    pub(crate) patience: Option<Patience>,
    pub(crate) _gauge: Share,
}

/// How long a call waits in the pipeline.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(crate) until: Instant,
    /// What the call is told then.
    pub(crate) otherwise: Refusal,
}

/// What a handler waits for. A panic in its drop ends here and is counted: it must not take other
/// calls with it.
pub(crate) struct HandlerFuture {
    future: Pin<Box<dyn Future<Output = Decision> + Send>>,
    panics: Arc<AtomicU64>,
}

impl HandlerFuture {
    pub(crate) fn new(future: Pin<Box<dyn Future<Output = Decision> + Send>>, panics: &Arc<AtomicU64>) -> Self {
        Self { future, panics: Arc::clone(panics) }
    }

    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Decision> {
        self.future.as_mut().poll(cx)
    }
}

impl Drop for HandlerFuture {
    fn drop(&mut self) {
        let future = mem::replace(&mut self.future, Box::pin(std::future::pending()));
        if drop_contained("a handler's drop", future) {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A call of which something comes too slowly.
#[derive(Debug)]
pub(crate) struct Slow {
    pub(crate) key: usize,
    pub(crate) of: InParts,
    /// The rate that it broke.
    pub(crate) rate: LeastRate,
    /// Bytes that have come.
    pub(crate) arrived: usize,
}

/// What comes in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InParts {
    Body,
    Item,
}

impl InFlight {
    /// No calls; bodies and items of later ones come at `least_rate` or faster.
    pub(crate) fn new(least_rate: Option<LeastRate>, gauge: Share) -> Self {
        Self {
            calls: Slab::new(),
            by_id: HashMap::default(),
            next_expiry: None,
            next_slow: None,
            next_token: None,
            next_idle: None,
            least_rate,
            gauge,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The key that the next [`InFlight::insert`] will give.
    pub(crate) fn next_key(&self) -> usize {
        self.calls.vacant_key()
    }

    pub(crate) fn insert(&mut self, call: Pending) -> usize {
        if let Some(expiry) = call.expiry() {
            self.next_expiry = earlier(self.next_expiry, Some(expiry));
        }
        if let (Some(pace), Some(rate)) = (call.place.upload().and_then(Upload::pace), self.least_rate) {
            self.next_slow = earlier(self.next_slow, pace.too_slow_at(rate));
        }
        if let Some(idle) = call.stream.as_ref().and_then(|seat| seat.idle.as_ref()) {
            self.next_idle = earlier(self.next_idle, Some(idle.due()));
        }
        let id = call.id;
        let key = self.calls.insert(call);
        self.by_id.insert(id, key);
        self.gauge.set(self.calls.len());
        key
    }

    pub(crate) fn get_mut(&mut self, key: usize) -> Option<&mut Pending> {
        self.calls.get_mut(key)
    }

    /// The stream of a call that has one.
    pub(crate) fn stream(&self, key: usize) -> Option<&Arc<Stream>> {
        self.calls.get(key)?.stream.as_ref().map(|seat| &seat.stream)
    }

    pub(crate) fn remove(&mut self, key: usize) -> Option<Pending> {
        let call = self.calls.try_remove(key)?;
        self.by_id.remove(&call.id);
        self.gauge.set(self.calls.len());
        Some(call)
    }

    pub(crate) fn key_of(&self, id: CallId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// The key of the call that runs in this task. It looks at every call: for tasks that ended without
    /// a word, which are few.
    pub(crate) fn key_of_task(&self, task: Id) -> Option<usize> {
        let runs_it = |place: &Place| matches!(place, Place::Task { abort, .. } if abort.id() == task);
        self.calls.iter().find(|(_, call)| runs_it(&call.place)).map(|(key, _)| key)
    }

    /// When to look for expired calls next.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.next_expiry
    }

    /// The keys of calls that have expired at `now`, or waited for as long as they may.
    ///
    /// It walks through all calls, of which there are not many, and at most once for each distinct
    /// deadline: cheaper than keeping a heap on the path of every call.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<usize> {
        if self.next_expiry.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let (expired, later): (Vec<_>, Vec<_>) = self
            .calls
            .iter()
            .filter_map(|(key, call)| Some((key, call.expiry()?)))
            .partition(|&(_, expiry)| expiry <= now);
        self.next_expiry = later.into_iter().map(|(_, expiry)| expiry).min();
        expired.into_iter().map(|(key, _)| key).collect()
    }

    /// Notes that an item in parts has begun with a first one.
    pub(crate) fn item_begins(&mut self, key: usize, first: usize, now: Instant) {
        let Some(seat) = self.calls.get_mut(key).and_then(|call| call.stream.as_mut()) else { return };
        let pace = seat.item.insert(Pace::begin(first, now));
        if let Some(rate) = self.least_rate {
            self.next_slow = earlier(self.next_slow, pace.too_slow_at(rate));
        }
    }

    /// Notes a further part of it.
    pub(crate) fn item_came(&mut self, key: usize, bytes: usize, more: bool) {
        let Some(seat) = self.calls.get_mut(key).and_then(|call| call.stream.as_mut()) else { return };
        match &mut seat.item {
            Some(pace) if more => pace.came(bytes),
            item => *item = None,
        }
    }

    /// When to look for what comes too slowly next.
    pub(crate) fn next_slow(&self) -> Option<Instant> {
        self.next_slow
    }

    /// The calls whose bodies or items have come too slowly at `now` though they were warned. Others are
    /// warned.
    pub(crate) fn too_slow(&mut self, now: Instant) -> Vec<Slow> {
        let Some(rate) = self.least_rate.filter(|_| self.next_slow.is_some_and(|next| next <= now)) else {
            return Vec::new();
        };
        let mut slow = Vec::new();
        self.next_slow = None;
        for (key, call) in &mut self.calls {
            for (of, pace) in call.paces_mut() {
                if pace.is_too_slow(rate, now) {
                    slow.push(Slow { key, of, rate, arrived: pace.arrived() });
                    break;
                }
                self.next_slow = earlier(self.next_slow, pace.too_slow_at(rate));
            }
        }
        slow
    }

    /// Notes when to look whether the item of a stream has its token.
    pub(crate) fn note_token(&mut self, at: Instant) {
        self.next_token = earlier(self.next_token, Some(at));
    }

    /// When to look for items next that wait for tokens.
    pub(crate) fn next_token(&self) -> Option<Instant> {
        self.next_token
    }

    /// Wakes the services whose next items have their tokens at `now`.
    pub(crate) fn wake_paced(&mut self, now: Instant) {
        if self.next_token.is_none_or(|next| next > now) {
            return;
        }
        let (reading, streams) = (Reading::at(now), self.calls.iter().filter_map(|(_, call)| call.stream.as_ref()));
        self.next_token = streams.filter_map(|seat| seat.stream.look_in_time(reading)).min();
    }

    /// When to look for idle streams next.
    pub(crate) fn next_idle(&self) -> Option<Instant> {
        self.next_idle
    }

    /// The keys of calls on whose streams nothing has happened for as long as may be, and how long that is.
    pub(crate) fn idle_streams(&mut self, now: Instant) -> Vec<(usize, Duration)> {
        if self.next_idle.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let mut idle = Vec::new();
        self.next_idle = None;
        for (key, call) in &mut self.calls {
            let Some(seat) = &mut call.stream else { continue };
            let Some(watch) = &mut seat.idle else { continue };
            if watch.due() <= now && watch.look(seat.stream.has_moved(), now) {
                idle.push((key, watch.timeout()));
            } else {
                self.next_idle = earlier(self.next_idle, Some(watch.due()));
            }
        }
        idle
    }

    /// Counts a `pause` up to `now` in which we did not read against nobody.
    pub(crate) fn skip(&mut self, pause: Duration, now: Instant) {
        // Where to look next stays: too early is harmless.
        for (_, call) in &mut self.calls {
            call.paces_mut().for_each(|(_, pace)| pace.skip(pause, now));
        }
    }

    /// The keys of calls whose bodies are not complete.
    pub(crate) fn incomplete(&self) -> Vec<usize> {
        let incomplete = |place: &Place| place.upload().is_some_and(|upload| !upload.is_complete());
        self.calls.iter().filter(|(_, call)| incomplete(&call.place)).map(|(key, _)| key).collect()
    }

    /// The keys of calls whose clients have not sent the last of their items.
    pub(crate) fn unended(&self) -> Vec<usize> {
        let unended = |call: &Pending| call.stream.as_ref().is_some_and(|seat| !seat.stream.has_all());
        self.calls.iter().filter(|(_, call)| unended(call)).map(|(key, _)| key).collect()
    }

    /// All calls.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.calls.iter().map(|(_, call)| call)
    }

    /// The keys of all calls.
    pub(crate) fn keys(&self) -> Vec<usize> {
        self.calls.iter().map(|(key, _)| key).collect()
    }
}

impl Pending {
    /// When it ends if nothing else happens.
    fn expiry(&self) -> Option<Instant> {
        earlier(self.deadline.instant(), self.patience().map(|patience| patience.until))
    }

    /// What of it is coming in parts.
    fn paces_mut(&mut self) -> impl Iterator<Item = (InParts, &mut Pace)> {
        let body = self.place.upload_mut().and_then(Upload::pace_mut);
        let item = self.stream.as_mut().and_then(|seat| seat.item.as_mut());
        body.map(|pace| (InParts::Body, pace)).into_iter().chain(item.map(|pace| (InParts::Item, pace)))
    }

    fn patience(&self) -> Option<&Patience> {
        match &self.place {
            Place::Waiting(waiting) => waiting.patience.as_ref(),
            Place::Receiving(_) | Place::Slot(_) | Place::Task { .. } => None,
        }
    }

    /// What it is told if it has waited for as long as it may, before its deadline.
    pub(crate) fn waited_enough(&self, now: Instant) -> Option<Refusal> {
        let patience = self.patience().filter(|_| !self.deadline.is_expired(now))?;
        (patience.until <= now).then_some(patience.otherwise)
    }
}

impl Place {
    /// What is to be said of a call that ends here: whether its service has been called.
    pub(crate) fn executed(&self) -> Executed {
        match self {
            Self::Waiting(_) | Self::Receiving(_) => Executed::Never,
            Self::Slot(_) | Self::Task { .. } => Executed::Maybe,
        }
    }

    fn upload(&self) -> Option<&Upload> {
        match self {
            Self::Waiting(waiting) => Some(&waiting.upload),
            Self::Receiving(receiving) => Some(&receiving.upload),
            Self::Slot(_) | Self::Task { .. } => None,
        }
    }

    /// The body, while the call has not been started.
    pub(crate) fn upload_mut(&mut self) -> Option<&mut Upload> {
        match self {
            Self::Waiting(waiting) => Some(&mut waiting.upload),
            Self::Receiving(receiving) => Some(&mut receiving.upload),
            Self::Slot(_) | Self::Task { .. } => None,
        }
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "Slot({slot})"),
            Self::Task { .. } => f.write_str("Task"),
            Self::Waiting(waiting) => write!(f, "Waiting(at {})", waiting.at),
            Self::Receiving(receiving) => write!(f, "Receiving({} bytes)", receiving.upload.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, VecDeque},
        sync::Mutex,
        task::{Wake, Waker},
    };

    use rpc_codec::{CallKind, SendBounds};
    use rpc_core::limit::{Rate, RateLimit, RateShare};

    use super::*;
    use crate::{idle::IdleWatch, stream::Windows};

    #[test]
    fn calls_expire_at_their_deadlines_and_not_before() {
        let mut calls = InFlight::new(None, Share::of(&Arc::new(AtomicU64::new(0))));
        let now = Instant::now();
        let mut insert = |sequence, deadline| {
            let (id, place) = (CallId::new(sequence, 0), Place::Slot(0));
            calls.insert(Pending { id, method: 0, received: now, began: now, deadline, place, stream: None })
        };
        let second = Duration::from_secs(1);
        let late = insert(1, Deadline::after(now, second * 3));
        let soon = insert(2, Deadline::after(now, second));
        insert(3, Deadline::NONE);
        assert_eq!(calls.next_expiry(), Some(now + second));
        assert!(calls.expired(now).is_empty());
        assert_eq!(calls.expired(now + second), [soon]);
        assert_eq!(calls.next_expiry(), Some(now + second * 3));
        calls.remove(soon);
        assert_eq!(calls.expired(now + second * 3), [late]);
        assert_eq!(calls.next_expiry(), None);
        assert_eq!(calls.key_of(CallId::new(2, 0)), None);
        assert_eq!(calls.len(), 2);
    }

    #[test]
    fn whatever_comes_and_goes_calls_expire_as_in_a_sorted_list() {
        let (start, tick) = (Instant::now(), Duration::from_millis(1));
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut calls = InFlight::new(None, Share::of(&Arc::new(AtomicU64::new(0))));
            let mut model: BTreeMap<CallId, Option<Instant>> = BTreeMap::new();
            let (mut now, mut gone) = (start, vec![CallId::new(0, 0)]);
            for sequence in 1..300 {
                match random.u8(..8) {
                    // Also several in one tick, and some that have expired already.
                    0..=3 => {
                        let expiry = (random.u8(..4) > 0).then(|| start + tick * random.u32(..60));
                        let deadline = expiry.map_or(Deadline::NONE, Deadline::at);
                        let (id, place) = (CallId::new(sequence, 0), Place::Slot(0));
                        let key = calls.next_key();
                        let call = Pending { id, method: 0, received: now, began: now, deadline, place, stream: None };
                        assert_eq!(calls.insert(call), key);
                        model.insert(id, expiry);
                    }
                    4 | 5 if !model.is_empty() => {
                        let id = *model.keys().nth(random.usize(..model.len())).unwrap();
                        let key = calls.key_of(id).unwrap();
                        assert_eq!(calls.remove(key).map(|call| call.id), Some(id));
                        model.remove(&id);
                        gone.push(id);
                    }
                    // An old name does not find whoever has the place now.
                    6 => assert_eq!(calls.key_of(gone[random.usize(..gone.len())]), None),
                    _ => {
                        now += tick * random.u32(..5);
                        let mut expired: Vec<_> =
                            calls.expired(now).into_iter().map(|key| calls.remove(key).unwrap().id).collect();
                        expired.sort_unstable();
                        let is_due = |expiry: &Option<Instant>| expiry.is_some_and(|expiry| expiry <= now);
                        let due: Vec<_> = model.extract_if(.., |_, expiry| is_due(expiry)).map(|(id, _)| id).collect();
                        assert_eq!(expired, due, "seed {seed}");
                        gone.extend(due);
                        assert!(calls.next_expiry().is_none_or(|next| next > now), "seed {seed}: it would spin");
                    }
                }
                let first = model.values().flatten().min();
                assert!(
                    first.is_none_or(|first| calls.next_expiry().is_some_and(|next| next <= *first)),
                    "seed {seed}"
                );
                assert_eq!((calls.len(), calls.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }

    /// A pending call of a server stream.
    fn streaming(calls: &mut InFlight, sequence: u64, idle: Option<IdleWatch>) -> (usize, Arc<Stream>) {
        let (id, place) = (CallId::new(sequence, 0), Place::Slot(0));
        let bounds = SendBounds { max_frame: 1 << 16, max_message: 1 << 16 };
        let windows = Windows { server: 1 << 16, client: 1 << 30 };
        let stream = Stream::new(id, CallKind::ServerStream, bounds, windows, &Arc::default(), &Arc::default());
        let mut seat = Seat::new(stream, &Arc::default());
        seat.idle = idle;
        let (stream, now) = (Arc::clone(&seat.stream), Instant::now());
        let (deadline, stream_seat) = (Deadline::NONE, Some(seat));
        let call = Pending { id, method: 0, received: now, began: now, deadline, place, stream: stream_seat };
        (calls.insert(call), stream)
    }

    #[test]
    fn whatever_moves_and_goes_streams_are_found_idle_in_their_time_and_no_others() {
        let (start, tick) = (Instant::now(), Duration::from_millis(1));
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut calls = InFlight::new(None, Share::of(&Arc::new(AtomicU64::new(0))));
            // When each may be idle from, for how long, and where it is.
            let mut model: BTreeMap<usize, (Instant, Duration, Arc<Stream>)> = BTreeMap::new();
            let mut now = start;
            for sequence in 1..1_000 {
                match random.u8(..8) {
                    0 => {
                        // Now and then one that may be idle for ever, and one whose time never comes.
                        let timeout = [tick * 16, tick * 80, Duration::MAX][random.usize(..3)];
                        let watch = IdleWatch::begin(timeout, now).filter(|_| random.u8(..8) > 0);
                        let watched = watch.is_some();
                        let (key, stream) = streaming(&mut calls, sequence, watch);
                        if watched {
                            model.insert(key, (now, timeout, stream));
                        }
                    }
                    1 if !model.is_empty() => {
                        let one = random.usize(..model.len());
                        let (since, _, stream) = model.values_mut().nth(one).unwrap();
                        *since = now;
                        stream.push(&mut vec![7], 1, 64).unwrap();
                    }
                    2 if random.u8(..4) == 0 && !model.is_empty() => {
                        let key = *model.keys().nth(random.usize(..model.len())).unwrap();
                        model.remove(&key);
                        calls.remove(key).unwrap();
                    }
                    _ => now += tick,
                }
                for (key, told) in calls.idle_streams(now) {
                    let (since, timeout, _) = model.remove(&key).expect("one that may not be idle for ever");
                    let quiet = now - since;
                    assert!(
                        timeout <= quiet && quiet <= timeout + timeout / 8,
                        "seed {seed}: {quiet:?} of {timeout:?}"
                    );
                    assert_eq!(told, timeout);
                    calls.remove(key).unwrap();
                }
                assert!(calls.next_idle().is_none_or(|next| next > now), "seed {seed}: it would spin");
                for (since, timeout, _) in model.values() {
                    assert!(now - *since <= *timeout + *timeout / 8, "seed {seed}: it is late");
                    assert!(calls.next_idle().is_some_and(|next| next <= now + *timeout / 8), "seed {seed}");
                }
            }
        }
    }

    /// Notes who is woken.
    struct Service(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Service {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn services_that_wait_for_tokens_are_woken_one_by_one_in_the_order_of_asking_and_nobody_in_vain() {
        let period = Duration::from_millis(5);
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut calls = InFlight::new(None, Share::of(&Arc::new(AtomicU64::new(0))));
            let rate = Arc::new(RateLimit::new("items", Rate::per(1, period).burst(1)).unwrap());
            let (start, woken) = (Instant::now(), Arc::default());
            rate.try_acquire(1, Reading::at(start).ticks).unwrap();
            let streams: Vec<_> = (1..=8).map(|sequence| streaming(&mut calls, sequence, None)).collect();
            let share = || RateShare::new(Arc::clone(&rate));
            let mut shares: Vec<_> = streams.iter().map(|_| share()).collect();
            let (mut line, mut now, mut had) = (VecDeque::new(), start, 0);
            let ask = |who: usize, share: &mut RateShare, line: &mut VecDeque<usize>| {
                let service = Waker::from(Arc::new(Service(who, Arc::clone(&woken))));
                let stream = &streams[who].1;
                assert!(stream.wait_for_token(share, &service).is_pending());
                line.push_back(who);
            };
            (0..streams.len()).for_each(|who| ask(who, &mut shares[who], &mut line));
            // As the connection does for those who are listed.
            let look = |calls: &mut InFlight, now| {
                for (_, stream) in &streams {
                    if let Some(at) = stream.look_for_token(Reading::at(now)) {
                        calls.note_token(at);
                    }
                }
            };
            look(&mut calls, now);
            while had < 200 {
                let next = calls.next_token().expect("somebody waits");
                assert!(next > now, "seed {seed}: it would spin");
                now = next;
                calls.wake_paced(now);
                let due = std::mem::take(&mut *woken.lock().unwrap());
                if due.is_empty() {
                    continue;
                }
                had += 1;
                let who = line.pop_front().unwrap();
                assert_eq!((due, now), (vec![who], start + period * had), "seed {seed}");
                assert!(streams[who].1.poll_token(Waker::noop()).is_ready());
                // One that waits goes now and then, and another one comes behind the others.
                if random.u8(..4) == 0 {
                    let gone = line.remove(random.usize(..line.len())).unwrap();
                    streams[gone].1.stop_receiving();
                    shares[gone] = share();
                    ask(gone, &mut shares[gone], &mut line);
                }
                ask(who, &mut shares[who], &mut line);
                look(&mut calls, now);
            }
        }
    }
}
