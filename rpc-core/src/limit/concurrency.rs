//! How many calls may be in flight: two counters that only grow.

use std::{mem, sync::Arc};

use super::{
    queue::WaitQueue,
    sync::{AtomicU64, Ordering},
};

/// Bounds how many calls are in flight at once, or how many bytes, or whatever is counted in units.
///
/// It counts two things, and both only grow: permits acquired and permits released. What is in flight
/// is their difference, so it cannot drift from the counters that are exported, and it cannot fall
/// below zero. Without a maximum it refuses nobody and still counts, so a maximum set later finds
/// the calls that are running.
///
/// ```
/// # use rpc_core::limit::ConcurrencyLimit;
/// let limit = ConcurrencyLimit::new("reports", Some(1)).unwrap();
/// let permit = limit.try_acquire().unwrap();
/// assert_eq!(limit.try_acquire().unwrap_err().in_flight, 1);
/// drop(permit);
/// assert!(limit.try_acquire().is_ok());
/// ```
#[derive(Debug)]
pub struct ConcurrencyLimit {
    name: &'static str,
    acquired: AtomicU64,
    released: AtomicU64,
    /// `u64::MAX` is no maximum.
    max: AtomicU64,
    /// The maximum that newcomers are held to: the real one, or 0 while others wait. So that nobody
    /// overtakes who waits, and nobody who does not looks for a queue.
    open: AtomicU64,
    high_water: AtomicU64,
    /// Whether it counts itself, or only joins those that do.
    counts: bool,
    /// The wider limits that every call counts in as well, narrow to wide.
    wider: Box<[Share]>,
    queue: Option<WaitQueue>,
}

/// What one unit of a limit takes of a wider one.
#[derive(Debug)]
struct Share {
    limit: Arc<ConcurrencyLimit>,
    units: u64,
}

impl ConcurrencyLimit {
    /// A limit of `max` calls in flight, or none; `name` is what refusals call it.
    ///
    /// # Errors
    ///
    /// A maximum of 0 is a mistake in configuration: it would refuse every call.
    pub fn new(name: &'static str, max: Option<u64>) -> Result<Arc<Self>, ConcurrencyError> {
        Ok(Arc::new(Self::make(name, max)?))
    }

    /// A limit within a wider one, such as that of a connection within that of the server: a call
    /// that passes counts in both, a call that either refuses in none. One permit stands for all.
    ///
    /// # Errors
    ///
    /// Those of [`ConcurrencyLimit::new`].
    pub fn within(wider: Arc<Self>, name: &'static str, max: Option<u64>) -> Result<Arc<Self>, ConcurrencyError> {
        let wider = [Share { limit: wider, units: 1 }].into();
        Ok(Arc::new(Self { wider, ..Self::make(name, max)? }))
    }

    /// A limit for whose permits up to `max_waiting` calls can wait, see
    /// [`ConcurrencyLimit::acquire_or_wait`].
    ///
    /// # Errors
    ///
    /// Those of [`ConcurrencyLimit::new`].
    pub fn with_queue(name: &'static str, max: Option<u64>, max_waiting: u64) -> Result<Arc<Self>, ConcurrencyError> {
        Ok(Arc::new(Self { queue: Some(WaitQueue::new(max_waiting)), ..Self::make(name, max)? }))
    }

    /// Several limits as one: a call that passes takes so many units of each, a call that any of them
    /// refuses takes nothing. They are asked in the order given, which should be from narrow to wide.
    /// One permit stands for all.
    ///
    /// Only they count, so it has neither a maximum nor figures of its own; and whatever they lie
    /// within counts only if it is given as well. A limit may stand in any number of such groups.
    ///
    /// A call that a wide limit refuses was counted in the narrow ones for a moment, and could make
    /// them refuse another. But the wide one had no room in that moment, so the other would hardly have
    /// passed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use rpc_core::limit::ConcurrencyLimit;
    /// let server = ConcurrencyLimit::new("server", Some(64)).unwrap();
    /// let reports = ConcurrencyLimit::new("reports", Some(2)).unwrap();
    /// // A report is as much work as eight other calls.
    /// let report = ConcurrencyLimit::all_of([(Arc::clone(&reports), 1), (Arc::clone(&server), 8)]);
    ///
    /// let permits = [report.try_acquire().unwrap(), report.try_acquire().unwrap()];
    /// assert_eq!(report.try_acquire().unwrap_err().limit, "reports");
    /// assert_eq!(server.snapshot().held, 16);
    /// # drop(permits);
    /// ```
    pub fn all_of(limits: impl IntoIterator<Item = (Arc<Self>, u64)>) -> Arc<Self> {
        let wider = limits.into_iter().map(|(limit, units)| Share { limit, units }).collect();
        Arc::new(Self { counts: false, wider, ..Self::make("", None).expect("no maximum is not zero") })
    }

    fn make(name: &'static str, max: Option<u64>) -> Result<Self, ConcurrencyError> {
        let max = max_to_word(max)?;
        Ok(Self {
            name,
            acquired: AtomicU64::new(0),
            released: AtomicU64::new(0),
            max: AtomicU64::new(max),
            open: AtomicU64::new(max),
            high_water: AtomicU64::new(0),
            counts: true,
            wider: Box::default(),
            queue: None,
        })
    }

    /// Takes a permit if fewer than the maximum are out, here and in all wider limits, and nobody waits
    /// for one of them.
    ///
    /// # Errors
    ///
    /// A refusal takes nothing and writes nothing. It is true: at one moment during this call, as
    /// many permits were out as it says, or others waited for those that were not.
    pub fn try_acquire(self: &Arc<Self>) -> Result<ConcurrencyPermit, ConcurrencyRefusal> {
        match self.admit(1, 0) {
            Ok(()) => Ok(ConcurrencyPermit { limit: Some(Arc::clone(self)) }),
            Err(full) => Err(full.refusal),
        }
    }

    /// Takes `units` at once, all or none, here and in all wider limits. For what is not counted in
    /// calls, such as bytes.
    ///
    /// # Errors
    ///
    /// As for [`ConcurrencyLimit::try_acquire`].
    pub fn try_reserve(self: &Arc<Self>, units: u64) -> Result<Reservation, ConcurrencyRefusal> {
        match self.admit(units, 0) {
            Ok(()) => Ok(Reservation { limit: Arc::clone(self), units }),
            Err(full) => Err(full.refusal),
        }
    }

    /// Whether [`ConcurrencyLimit::try_acquire`] would give a permit at this moment. It takes none and counts
    /// nothing: for refusing at once what will need a permit only later, when it is asked for again.
    ///
    /// # Errors
    ///
    /// As for [`ConcurrencyLimit::try_acquire`], and as true.
    pub fn check(&self) -> Result<(), ConcurrencyRefusal> {
        self.look().map_err(|full| full.refusal)
    }

    /// What [`ConcurrencyLimit::admit`] would say to one more, who has waited nowhere.
    pub(super) fn look(&self) -> Result<(), Full> {
        if self.counts {
            self.look_here(1).map_err(|refusal| Full { refusal, at: 0 })?;
        }
        for (at, share) in self.wider.iter().enumerate() {
            share.limit.look_here(share.units).map_err(|refusal| Full { refusal, at: at + 1 })?;
        }
        Ok(())
    }

    fn look_here(&self, units: u64) -> Result<(), ConcurrencyRefusal> {
        let open = self.open.load(Ordering::Relaxed);
        // In this order no more than were in flight when the first was read: who is refused is so rightly.
        let acquired = self.acquired.load(Ordering::Acquire);
        let in_flight = acquired.saturating_sub(self.released.load(Ordering::Acquire));
        if open.checked_sub(in_flight).is_none_or(|room| room < units) {
            let max = self.max.load(Ordering::Relaxed);
            return Err(ConcurrencyRefusal { limit: self.name, max, in_flight, units });
        }
        Ok(())
    }

    /// Counts units here and in all wider limits, or in none. Of those who wait for the first `turns` of
    /// these limits, none is held to come first.
    pub(super) fn admit(&self, units: u64, turns: usize) -> Result<(), Full> {
        if self.counts {
            self.admit_here(units, turns > 0).map_err(|refusal| Full { refusal, at: 0 })?;
        }
        for (at, share) in self.wider.iter().enumerate() {
            if let Err(refusal) = share.limit.admit_here(units * share.units, turns > at + 1) {
                self.give_back(units, at);
                return Err(Full { refusal, at: at + 1 });
            }
        }
        Ok(())
    }

    #[inline]
    fn admit_here(&self, units: u64, is_turn: bool) -> Result<(), ConcurrencyRefusal> {
        let max = if is_turn { &self.max } else { &self.open }.load(Ordering::Relaxed);
        let mut acquired = self.acquired.load(Ordering::Acquire);
        loop {
            // After `acquired`, never before: then a difference that is too large was real at this
            // moment. Acquire, so that what earlier holders did is visible to the next.
            let released = self.released.load(Ordering::Acquire);
            // More released than acquired means that `acquired` is old; the swap will find out.
            let in_flight = acquired.saturating_sub(released);
            if max.checked_sub(in_flight).is_none_or(|room| room < units) {
                let max = self.max.load(Ordering::Relaxed);
                return Err(ConcurrencyRefusal { limit: self.name, max, in_flight, units });
            }
            // If the swap succeeds, `acquired` is exact and `released` can only have grown since.
            // Adding first and undoing would refuse a neighbour who sees the addition meanwhile.
            match self.acquired.compare_exchange_weak(acquired, acquired + units, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.note_high_water(in_flight + units);
                    return Ok(());
                }
                Err(current) => acquired = current,
            }
        }
    }

    /// Counts units as released, here and in all wider limits.
    ///
    /// Never a part of who drops: most drops are of what has been taken over, and those should be short.
    #[inline(never)]
    pub(super) fn release(&self, units: u64) {
        self.give_back(units, self.wider.len());
    }

    /// Counts units as released, here and in as many of the wider limits.
    fn give_back(&self, units: u64, wider: usize) {
        if self.counts {
            self.release_here(units);
        }
        for share in &self.wider[..wider] {
            share.limit.release_here(units * share.units);
        }
    }

    fn release_here(&self, units: u64) {
        self.released.fetch_add(units, Ordering::Release);
        if let Some(queue) = &self.queue {
            queue.has_room(self);
        }
    }

    /// Changes the maximum while calls run, also to less than are in flight: those finish, and calls
    /// pass again once fewer than `max` are left.
    ///
    /// # Errors
    ///
    /// Those of [`ConcurrencyLimit::new`]; the old maximum then stays.
    pub fn set_max(&self, max: Option<u64>) -> Result<(), ConcurrencyError> {
        let max = max_to_word(max)?;
        match &self.queue {
            Some(queue) => queue.set_max(self, max),
            None => {
                self.max.store(max, Ordering::Relaxed);
                self.open.store(max, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Where calls wait for its permits, if they can.
    pub(super) fn queue(&self) -> Option<&WaitQueue> {
        self.queue.as_ref()
    }

    /// The limit at a position: its own is 0, behind it are the wider ones.
    pub(super) fn limit_at(self: &Arc<Self>, at: usize) -> &Arc<Self> {
        at.checked_sub(1).map_or(self, |wider| &self.wider[wider].limit)
    }

    /// How many more units may be taken at this moment.
    pub(super) fn room(&self) -> u64 {
        let acquired = self.acquired.load(Ordering::Acquire);
        let in_flight = acquired.saturating_sub(self.released.load(Ordering::Acquire));
        self.max.load(Ordering::Relaxed).saturating_sub(in_flight)
    }

    /// Stores the maximum. Newcomers are held to it, or to nothing at all while others wait.
    pub(super) fn store_max(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Lets newcomers in as far as there is room, or not at all.
    pub(super) fn open(&self, open: bool) {
        let max = if open { self.max.load(Ordering::Relaxed) } else { 0 };
        self.open.store(max, Ordering::Relaxed);
    }

    /// The name it was given.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The most calls in flight, if there is a maximum.
    pub fn max(&self) -> Option<u64> {
        word_to_max(self.max.load(Ordering::Relaxed))
    }

    /// The figures of one moment: they fit each other exactly, also while calls come and go.
    pub fn snapshot(&self) -> ConcurrencySnapshot {
        let mut acquired = self.acquired.load(Ordering::Acquire);
        let released = loop {
            let released = self.released.load(Ordering::Acquire);
            // It only grows, so being the same before and after means being the same in between.
            match self.acquired.load(Ordering::Acquire) {
                same if same == acquired => break released,
                newer => acquired = newer,
            }
        };
        let held = acquired - released;
        // An admission is noted just after it was made, so it may not be noted yet.
        let high_water = self.high_water.load(Ordering::Relaxed).max(held);
        ConcurrencySnapshot { max: self.max(), held, acquired, released, high_water }
    }

    fn note_high_water(&self, in_flight: u64) {
        // Loaded first: a new high is rare, and a write by every call would not be free.
        if in_flight > self.high_water.load(Ordering::Relaxed) {
            self.high_water.fetch_max(in_flight, Ordering::Relaxed);
        }
    }
}

/// The right of one call to be in flight within one [`ConcurrencyLimit`].
///
/// Dropping it is the only way to give it back. It cannot be cloned, and travels with the call
/// inside a [`CallPermit`](super::CallPermit) until the response has been written.
#[must_use = "dropping the permit ends the call's claim"]
#[derive(Debug)]
pub struct ConcurrencyPermit {
    /// `None` once [`Releases`] has taken the claim over.
    limit: Option<Arc<ConcurrencyLimit>>,
}

/// Which limit refused, see [`ConcurrencyLimit::limit_at`].
pub(super) struct Full {
    pub(super) refusal: ConcurrencyRefusal,
    pub(super) at: usize,
}

impl ConcurrencyPermit {
    /// The permit of a call that counts in `limit` already.
    pub(super) fn of_admitted(limit: &Arc<ConcurrencyLimit>) -> Self {
        Self { limit: Some(Arc::clone(limit)) }
    }

    /// Whether it counts in `limit`, as the narrowest of its chain.
    pub fn is_of(&self, limit: &Arc<ConcurrencyLimit>) -> bool {
        self.limit.as_ref().is_some_and(|own| Arc::ptr_eq(own, limit))
    }
}

impl Drop for ConcurrencyPermit {
    #[inline]
    fn drop(&mut self) {
        if let Some(limit) = &self.limit {
            limit.release(1);
        }
    }
}

/// Units of a [`ConcurrencyLimit`] that are taken until this is dropped.
#[must_use = "dropping the reservation gives it back"]
#[derive(Debug)]
pub struct Reservation {
    limit: Arc<ConcurrencyLimit>,
    units: u64,
}

impl Reservation {
    /// How much is taken.
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// Takes so much more that it is `units`, or gives back what is above them.
    ///
    /// # Errors
    ///
    /// As for [`ConcurrencyLimit::try_reserve`], of what is taken in addition; then it stays as it was. Giving
    /// back never fails.
    pub fn resize(&mut self, units: u64) -> Result<(), ConcurrencyRefusal> {
        if let Some(more) = units.checked_sub(self.units) {
            self.limit.admit(more, 0).map_err(|full| full.refusal)?;
        } else {
            self.limit.release(self.units - units);
        }
        self.units = units;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.limit.release(self.units);
    }
}

/// Permits that are given back together when this is dropped.
///
/// Responses leave in batches, and one change of a counter for a batch is cheaper than one for each
/// call. Permits of another limit than the last one's are not kept waiting for it.
#[derive(Debug, Default)]
pub struct Releases {
    limit: Option<Arc<ConcurrencyLimit>>,
    calls: u64,
}

impl Releases {
    /// Gives `permit` back when this is dropped, or before.
    #[inline]
    pub fn add(&mut self, mut permit: ConcurrencyPermit) {
        let Some(limit) = permit.limit.take() else { return };
        if self.limit.as_ref().is_some_and(|known| Arc::ptr_eq(known, &limit)) {
            self.calls += 1;
        } else {
            drop(mem::replace(self, Self { limit: Some(limit), calls: 1 }));
        }
    }
}

impl Drop for Releases {
    fn drop(&mut self) {
        if let Some(limit) = &self.limit {
            limit.release(self.calls);
        }
    }
}

/// A call turned away because as many as allowed are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{in_flight} calls are in flight in {limit}, of {max}")]
#[non_exhaustive]
pub struct ConcurrencyRefusal {
    /// The limit that refused: the one asked, or a wider one.
    pub limit: &'static str,
    /// The most calls in flight.
    pub max: u64,
    /// Calls in flight; more than `max` if that was lowered meanwhile, and fewer if others wait.
    pub in_flight: u64,
    /// What the call takes of the limit. More than `max` can never pass.
    pub units: u64,
}

impl ConcurrencyRefusal {
    /// Whether the call would be refused even if nothing were in flight.
    pub const fn never_passes(&self) -> bool {
        self.units > self.max
    }
}

/// A maximum that no limit can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConcurrencyError {
    /// Such a limit would refuse every call.
    #[error("a maximum of zero calls in flight would refuse every call; for no limit, leave it out")]
    ZeroMax,
}

/// The figures of a [`ConcurrencyLimit`] at one moment: `acquired == released + held`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConcurrencySnapshot {
    /// The most calls in flight, if there is a maximum.
    pub max: Option<u64>,
    /// Permits that are out.
    pub held: u64,
    /// Permits ever acquired.
    pub acquired: u64,
    /// Permits ever given back.
    pub released: u64,
    /// The most permits ever out at once. A release in the very moment of an admission may count
    /// as later than it.
    pub high_water: u64,
}

fn max_to_word(max: Option<u64>) -> Result<u64, ConcurrencyError> {
    match max {
        Some(0) => Err(ConcurrencyError::ZeroMax),
        max => Ok(max.unwrap_or(u64::MAX)),
    }
}

fn word_to_max(word: u64) -> Option<u64> {
    (word != u64::MAX).then_some(word)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU64},
        thread,
    };

    use proptest::prelude::*;

    use super::*;

    fn limit(max: impl Into<Option<u64>>) -> Arc<ConcurrencyLimit> {
        ConcurrencyLimit::new("test", max.into()).unwrap()
    }

    #[test]
    fn zero_is_a_mistake_and_any_other_maximum_is_taken_at_its_word() {
        assert_eq!(ConcurrencyLimit::new("test", Some(0)).unwrap_err(), ConcurrencyError::ZeroMax);
        for max in [1, u64::from(u32::MAX), u64::MAX - 1] {
            assert_eq!(limit(max).max(), Some(max));
        }
        assert_eq!(limit(u64::MAX).max(), None);
        let limit = limit(7);
        assert_eq!(limit.set_max(Some(0)), Err(ConcurrencyError::ZeroMax));
        assert_eq!((limit.max(), limit.name()), (Some(7), "test"));
    }

    #[test]
    fn to_check_says_what_an_attempt_would_and_takes_nothing() {
        let (narrow, wide) = (limit(3), limit(8));
        let both = ConcurrencyLimit::all_of([(Arc::clone(&narrow), 1), (Arc::clone(&wide), 4)]);
        let within = ConcurrencyLimit::within(Arc::clone(&wide), "within", Some(1)).unwrap();
        let mut permits = Vec::new();
        for _ in 0..2 {
            let before = (narrow.snapshot(), wide.snapshot());
            assert_eq!((both.check(), within.check()), (Ok(()), Ok(())));
            assert_eq!((narrow.snapshot(), wide.snapshot()), before);
            permits.push(both.try_acquire().unwrap());
        }
        let refusal = both.try_acquire().unwrap_err();
        let before = (narrow.snapshot(), wide.snapshot());
        assert_eq!(both.check(), Err(refusal));
        assert_eq!(within.check().unwrap_err().in_flight, 8);
        assert_eq!((narrow.snapshot(), wide.snapshot()), before);
        narrow.set_max(Some(1)).unwrap();
        assert_eq!((both.check().unwrap_err().max, narrow.check().unwrap_err().in_flight), (1, 2));
        drop(permits);
        assert_eq!(both.check(), Ok(()));
    }

    #[test]
    fn a_refusal_takes_nothing_and_says_what_is_in_flight() {
        let limit = limit(2);
        let permits = [limit.try_acquire().unwrap(), limit.try_acquire().unwrap()];
        let before = limit.snapshot();
        for _ in 0..100 {
            assert_eq!(
                limit.try_acquire().unwrap_err(),
                ConcurrencyRefusal { limit: limit.name(), max: 2, in_flight: 2, units: 1 }
            );
        }
        assert_eq!(limit.snapshot(), before);
        drop(permits);
        assert_eq!(limit.snapshot().held, 0);
    }

    #[test]
    fn no_maximum_still_counts_so_one_set_later_finds_what_runs() {
        let limit = limit(None);
        let running: Vec<_> = (0..3).map(|_| limit.try_acquire().unwrap()).collect();
        assert_eq!(limit.snapshot().held, 3);
        limit.set_max(Some(4)).unwrap();
        let fourth = limit.try_acquire().unwrap();
        assert_eq!(limit.try_acquire().unwrap_err().in_flight, 4);
        drop((running, fourth));
        limit.set_max(None).unwrap();
        let all: Vec<_> = (0..100).map(|_| limit.try_acquire().unwrap()).collect();
        drop(all);
        let expected = ConcurrencySnapshot { max: None, held: 0, acquired: 104, released: 104, high_water: 100 };
        assert_eq!(limit.snapshot(), expected);
    }

    #[test]
    fn a_maximum_below_what_is_in_flight_holds_once_enough_have_ended() {
        let limit = limit(8);
        let mut permits: Vec<_> = (0..8).map(|_| limit.try_acquire().unwrap()).collect();
        limit.set_max(Some(3)).unwrap();
        while permits.len() >= 3 {
            let in_flight = permits.len() as u64;
            let refusal = ConcurrencyRefusal { limit: limit.name(), max: 3, in_flight, units: 1 };
            assert_eq!(limit.try_acquire().unwrap_err(), refusal);
            permits.pop();
        }
        permits.push(limit.try_acquire().unwrap());
        assert!(limit.try_acquire().is_err());
    }

    #[test]
    fn permits_given_back_together_go_back_to_their_own_limits_and_wider_ones() {
        let wide = limit(None);
        let [one, two] = ["one", "two"].map(|name| ConcurrencyLimit::within(Arc::clone(&wide), name, None).unwrap());
        let mut releases = Releases::default();
        for limit in [&one, &one, &two, &one] {
            releases.add(limit.try_acquire().unwrap());
        }
        assert_eq!(wide.snapshot().held, 1, "only those of the last limit wait");
        drop(releases);
        let held = [&wide, &one, &two].map(|limit| (limit.snapshot().held, limit.snapshot().released));
        assert_eq!(held, [(0, 4), (0, 3), (0, 1)]);
    }

    #[test]
    fn units_are_reserved_all_or_none_in_every_limit_of_the_chain() {
        let wide = limit(100);
        let narrow = ConcurrencyLimit::within(Arc::clone(&wide), "narrow", Some(80)).unwrap();
        let first = narrow.try_reserve(60).unwrap();
        let refusal = narrow.try_reserve(21).unwrap_err();
        assert_eq!((refusal.limit, refusal.max, refusal.in_flight), ("narrow", 80, 60));
        let _other = wide.try_reserve(30).unwrap();
        assert_eq!(narrow.try_reserve(11).unwrap_err().limit, "test");
        assert_eq!((narrow.snapshot().held, wide.snapshot().held), (60, 90));
        drop(first);
        assert_eq!((narrow.snapshot().held, wide.snapshot().held), (0, 30));
        assert!(narrow.try_reserve(u64::MAX).is_err() && narrow.try_reserve(70).is_ok());
    }

    #[test]
    fn a_reservation_grows_if_there_is_room_and_shrinks_always() {
        let limit = limit(100);
        let _other = limit.try_reserve(30).unwrap();
        let mut bytes = limit.try_reserve(10).unwrap();
        bytes.resize(70).unwrap();
        let refusal = bytes.resize(71).unwrap_err();
        assert_eq!((refusal.in_flight, refusal.units), (100, 1));
        assert_eq!((bytes.units(), limit.snapshot().held), (70, 100), "it stays as it was");
        limit.set_max(Some(1)).unwrap();
        bytes.resize(20).unwrap();
        assert_eq!((bytes.units(), limit.snapshot().held), (20, 50));
        drop(bytes);
        assert_eq!(limit.snapshot().held, 30);
    }

    #[test]
    fn of_two_calls_at_once_on_a_limit_of_one_exactly_one_passes() {
        let limit = limit(1);
        let (start, decided) = (AtomicU64::new(0), AtomicU64::new(0));
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 1..=1_000 {
                        meet(&start, 2 * round);
                        let permit = limit.try_acquire();
                        passed.fetch_add(u64::from(permit.is_ok()), Ordering::Relaxed);
                        meet(&decided, 2 * round);
                        assert_eq!(passed.load(Ordering::Relaxed), round);
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(limit.snapshot().held, 0);
    }

    /// A barrier that both leave within nanoseconds; std's wakes one long after the other.
    fn meet(arrived: &AtomicU64, all: u64) {
        arrived.fetch_add(1, Ordering::AcqRel);
        for spins in 0_u64.. {
            match arrived.load(Ordering::Acquire) {
                count if count >= all => break,
                _ if spins % 1_000 == 999 => thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    #[test]
    fn many_threads_never_exceed_the_limit_and_every_sample_adds_up() {
        let limit = limit(3);
        let (running, most, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let samples = scope.spawn(|| {
                let mut samples = 0_u64;
                while !done.load(Ordering::Acquire) {
                    let sample = limit.snapshot();
                    assert_eq!(sample.acquired, sample.released + sample.held);
                    assert!(sample.held <= 3 && sample.held <= sample.high_water && sample.high_water <= 3);
                    samples += 1;
                }
                samples
            });
            let workers: Vec<_> = (0..6)
                .map(|_| {
                    scope.spawn(|| {
                        for call in 0..20_000 {
                            if let Ok(permit) = limit.try_acquire() {
                                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                                // Now and then, a holder is away while others try.
                                if call % 100 == 0 {
                                    thread::yield_now();
                                }
                                running.fetch_sub(1, Ordering::SeqCst);
                                drop(permit);
                            }
                        }
                    })
                })
                .collect();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::Release);
            assert!(samples.join().unwrap() > 0);
        });
        assert!(most.into_inner() <= 3);
        assert_eq!(limit.snapshot().held, 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Acquire,
        Release(usize),
        ReleaseTogether(usize),
        SetMax(Option<u64>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Acquire),
            3 => any::<usize>().prop_map(Step::Release),
            1 => (0_usize..4).prop_map(Step::ReleaseTogether),
            1 => proptest::option::of(1_u64..6).prop_map(Step::SetMax),
        ]
    }

    proptest! {
        #[test]
        fn every_decision_is_that_of_a_list_of_permits(steps in prop::collection::vec(step(), 0..200)) {
            let limit = limit(3);
            let (mut max, mut acquired, mut high_water) = (Some(3), 0, 0);
            let mut permits = Vec::new();
            for step in steps {
                let in_flight = permits.len() as u64;
                match step {
                    Step::Acquire => match limit.try_acquire() {
                        Ok(permit) => {
                            prop_assert!(max.is_none_or(|max| in_flight < max));
                            permits.push(permit);
                            acquired += 1;
                            high_water = high_water.max(in_flight + 1);
                        }
                        Err(refusal) => {
                            prop_assert!(Some(refusal.max) == max && in_flight >= refusal.max);
                            prop_assert_eq!(refusal.in_flight, in_flight);
                        }
                    },
                    Step::Release(at) if !permits.is_empty() => drop(permits.swap_remove(at % permits.len())),
                    Step::Release(_) => {}
                    Step::ReleaseTogether(calls) => {
                        let mut releases = Releases::default();
                        permits.drain(..calls.min(permits.len())).for_each(|permit| releases.add(permit));
                    }
                    Step::SetMax(new) => {
                        limit.set_max(new).unwrap();
                        max = new;
                    }
                }
                let held = permits.len() as u64;
                let expected = ConcurrencySnapshot { max, held, acquired, released: acquired - held, high_water };
                prop_assert_eq!(limit.snapshot(), expected);
            }
        }
    }

    #[test]
    fn a_call_counts_in_a_limit_and_the_wider_one_or_in_neither() {
        let wide = ConcurrencyLimit::new("wide", Some(2)).unwrap();
        let narrow = |name| ConcurrencyLimit::within(Arc::clone(&wide), name, Some(2)).unwrap();
        let (a, b) = (narrow("a"), narrow("b"));
        let first = a.try_acquire().unwrap();
        let second = b.try_acquire().unwrap();
        let refusal = a.try_acquire().unwrap_err();
        assert_eq!((refusal.limit, refusal.max, refusal.in_flight), ("wide", 2, 2));
        assert_eq!(a.snapshot().held, 1, "what the narrow limit gave is back");
        drop(second);
        let third = a.try_acquire().unwrap();
        assert_eq!(a.try_acquire().unwrap_err().limit, "a");
        drop((first, third));
        assert_eq!([wide.snapshot().held, a.snapshot().held, b.snapshot().held], [0; 3]);
    }
}
