//! Whose call it is, and what limits each of those has.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rpc_core::{
    CallId, ConnectionInfo,
    limit::{ConcurrencyLimit, Rate, RateLimit, Ticks},
};

use super::{WaitQueue, make};
use crate::{
    Call,
    clock::Reading,
    error::BuildError,
    gauges::{TENANT, TENANT_RATE},
    live::ChangeError,
};

/// Limits for each tenant of a server: for each customer, account or team, whatever shares it.
///
/// A tenant is known by a name, from the metadata of its calls or from its connection. Anybody can claim any
/// name, so it should be one that was checked, such as by a proxy, or by a handler in front of the limits.
/// Calls without a name have the limits of one tenant together.
///
/// Tenants come and go by themselves. As many as [`Tenants::max_tenants`] have limits of their own; then
/// one that has no call in flight and has not used any of its rate is forgotten for a new one, and if there
/// is none, the new one shares one set of limits with all others that came too late.
/// So whoever makes names up costs a bounded amount of memory, and gains nothing: what is forgotten
/// had been refilled. Each connection keeps the tenant of its last call from being forgotten.
///
/// ```
/// use rpc_server::{TenantLimits, Tenants};
/// use rpc_core::limit::Rate;
///
/// let each = TenantLimits::new().max_concurrent_calls(16).rate(Rate::per_second(100.0).burst(20));
/// let tenants = Tenants::by_metadata("tenant", each)
///     .tenant("acme", TenantLimits::new().max_concurrent_calls(64));
/// ```
#[derive(Clone)]
pub struct Tenants {
    source: Source,
    each: TenantLimits,
    named: Vec<(String, TenantLimits)>,
    max_tenants: usize,
}

/// What limits one tenant has. What is not set is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TenantLimits {
    max_concurrent_calls: Option<u64>,
    rate: Option<Rate>,
}

#[derive(Clone)]
enum Source {
    Metadata(String),
    Connection(Arc<NameOf>),
}

type NameOf = dyn Fn(&ConnectionInfo) -> Option<String> + Send + Sync;

impl Tenants {
    /// The tenant of a call is named by this key of its metadata.
    pub fn by_metadata(key: impl Into<String>, each: TenantLimits) -> Self {
        Self::new(Source::Metadata(key.into()), each)
    }

    /// The tenant is that of the connection, which `name` makes of what is known about it: once, at the
    /// first call.
    pub fn by_connection(
        name: impl Fn(&ConnectionInfo) -> Option<String> + Send + Sync + 'static,
        each: TenantLimits,
    ) -> Self {
        Self::new(Source::Connection(Arc::new(name)), each)
    }

    fn new(source: Source, each: TenantLimits) -> Self {
        Self { source, each, named: Vec::new(), max_tenants: 10_000 }
    }

    /// A tenant with limits of its own, which is never forgotten.
    #[must_use]
    pub fn tenant(mut self, name: impl Into<String>, limits: TenantLimits) -> Self {
        self.named.push((name.into(), limits));
        self
    }

    /// How many tenants have limits of their own, besides those that are named here. One costs about half a
    /// kilobyte. Default: 10,000.
    #[must_use]
    pub fn max_tenants(mut self, max: usize) -> Self {
        self.max_tenants = max;
        self
    }
}

impl fmt::Debug for Tenants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::Metadata(key) => key,
            Source::Connection(_) => "the connection",
        };
        f.debug_struct("Tenants")
            .field("source", &source)
            .field("each", &self.each)
            .field("named", &self.named)
            .field("max_tenants", &self.max_tenants)
            .finish()
    }
}

impl TenantLimits {
    /// No limits.
    pub const fn new() -> Self {
        Self { max_concurrent_calls: None, rate: None }
    }

    /// Calls in flight of the tenant, on all of its connections.
    #[must_use]
    pub const fn max_concurrent_calls(mut self, max: u64) -> Self {
        self.max_concurrent_calls = Some(max);
        self
    }

    /// Calls per second of the tenant, on all of its connections. Whoever connects anew does not escape it.
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }
}

/// One tenant, while it is known.
#[derive(Debug)]
pub(crate) struct Tenant {
    name: Box<str>,
    pub(crate) calls: Arc<ConcurrencyLimit>,
    pub(crate) rate: Option<Arc<RateLimit>>,
}

/// The tenants that are known.
#[derive(Debug)]
pub(crate) struct TenantTable {
    settings: Tenants,
    named: HashMap<Box<str>, Arc<Tenant>>,
    /// Of calls that name none.
    nobody: Arc<Tenant>,
    /// Of those for whom there is no place.
    others: Arc<Tenant>,
    known: Mutex<Known>,
    forgotten: AtomicU64,
    shared: AtomicU64,
}

#[derive(Debug)]
struct Known {
    each: TenantLimits,
    queue: Option<WaitQueue>,
    by_name: HashMap<Box<str>, usize>,
    tenants: Vec<Arc<Tenant>>,
    /// Where to look next for one that can be forgotten.
    hand: usize,
}

/// The figures of the tenants at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantsSnapshot {
    /// Tenants that have limits of their own now.
    pub known: u64,
    /// Tenants that were forgotten for others.
    pub forgotten: u64,
    /// Calls of tenants for which there was no place, so that they shared one set of limits.
    pub shared: u64,
    /// Permits that are out, of all tenants.
    pub held: u64,
}

impl TenantTable {
    pub(crate) fn new(settings: &Tenants, queue: Option<WaitQueue>) -> Result<Self, BuildError> {
        let make = |name: &str, limits| Tenant::new(name, limits, queue).map(Arc::new);
        let named = settings.named.iter().map(|(name, limits)| Ok((name.as_str().into(), make(name, *limits)?)));
        let known = Known { each: settings.each, queue, by_name: HashMap::new(), tenants: Vec::new(), hand: 0 };
        Ok(Self {
            named: named.collect::<Result<_, _>>()?,
            nobody: make(NOBODY, settings.each)?,
            others: make(OTHERS, settings.each)?,
            known: Mutex::new(known),
            forgotten: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            settings: settings.clone(),
        })
    }

    /// Whether any tenant has a rate.
    pub(crate) fn have_rates(&self) -> bool {
        self.settings.each.rate.is_some() || self.named.values().any(|tenant| tenant.rate.is_some())
    }

    /// The least maximum of any tenant.
    pub(crate) fn least_max(&self) -> Option<u64> {
        self.named.values().chain([&self.nobody]).filter_map(|tenant| tenant.calls.max()).min()
    }

    /// The least burst of any tenant's rate.
    pub(crate) fn least_burst(&self) -> Option<u32> {
        let rates = self.named.values().chain([&self.nobody]).filter_map(|tenant| tenant.rate.as_ref());
        rates.map(|rate| rate.burst()).min()
    }

    /// The tenant named `name`; a new one if it is not known, or what the others share.
    fn find(&self, name: &str) -> Arc<Tenant> {
        if let Some(tenant) = self.named.get(name) {
            return Arc::clone(tenant);
        }
        let mut known = self.lock();
        if let Some(&at) = known.by_name.get(name) {
            return Arc::clone(&known.tenants[at]);
        }
        let place = if name.len() > MAX_NAME_LEN { None } else { self.place(&mut known) };
        let Some(at) = place else { return Arc::clone(&self.others) };
        let tenant = Tenant::new(name, known.each, known.queue).expect("checked when the limits were set");
        let tenant = Arc::new(tenant);
        known.by_name.insert(name.into(), at);
        match known.tenants.get_mut(at) {
            Some(place) => *place = Arc::clone(&tenant),
            None => known.tenants.push(Arc::clone(&tenant)),
        }
        tenant
    }

    /// Where a new tenant can be kept. Looks at a few of those that are known, so that it costs the same
    /// whoever comes.
    fn place(&self, known: &mut Known) -> Option<usize> {
        if known.tenants.len() < self.settings.max_tenants {
            return Some(known.tenants.len());
        }
        let now = Reading::now().ticks;
        for _ in 0..LOOKS.min(known.tenants.len()) {
            let at = known.hand;
            known.hand = (at + 1) % known.tenants.len();
            if known.tenants[at].can_be_forgotten(now) {
                let Known { by_name, tenants, .. } = known;
                by_name.remove(&tenants[at].name);
                self.forgotten.fetch_add(1, Ordering::Relaxed);
                return Some(at);
            }
        }
        None
    }

    /// Changes what limits each tenant has that is not named in the settings, also of those that are known.
    /// A rate can be changed, but neither be added nor taken away.
    pub(crate) fn set_each(&self, limits: TenantLimits) -> Result<(), ChangeError> {
        // Checks it before anything is changed.
        Tenant::new("", limits, None).map_err(ChangeError::Tenant)?;
        let mut known = self.lock();
        if known.each.rate.is_some() != limits.rate.is_some() {
            return Err(ChangeError::TenantRate);
        }
        known.each = limits;
        let now = Reading::now().ticks;
        known.tenants.iter().chain([&self.nobody, &self.others]).for_each(|tenant| tenant.set(limits, now));
        Ok(())
    }

    /// As [`Self::set_each`], of one that is named in the settings.
    pub(crate) fn set_named(&self, name: &str, limits: TenantLimits) -> Result<(), ChangeError> {
        Tenant::new("", limits, None).map_err(ChangeError::Tenant)?;
        let tenant = self.named.get(name).ok_or_else(|| ChangeError::NotThere(format!("the tenant {name}")))?;
        if tenant.rate.is_some() != limits.rate.is_some() {
            return Err(ChangeError::TenantRate);
        }
        // One at a time, so that maximum and rate are of the same change.
        let _known = self.lock();
        tenant.set(limits, Reading::now().ticks);
        Ok(())
    }

    /// Sets how many may wait, for every tenant.
    pub(crate) fn set_max_waiting(&self, max_waiting: u64) {
        if let Some(queue) = &mut self.lock().queue {
            queue.max_waiting = max_waiting;
        }
        self.each_tenant(|tenant| {
            tenant.calls.set_max_waiting(max_waiting);
        });
    }

    pub(crate) fn snapshot(&self) -> TenantsSnapshot {
        let mut snapshot = TenantsSnapshot {
            known: self.named.len() as u64 + self.lock().tenants.len() as u64,
            forgotten: self.forgotten.load(Ordering::Relaxed),
            shared: self.shared.load(Ordering::Relaxed),
            held: 0,
        };
        self.each_tenant(|tenant| snapshot.held += tenant.calls.snapshot().held);
        snapshot
    }

    fn each_tenant(&self, mut look: impl FnMut(&Tenant)) {
        self.named.values().chain([&self.nobody, &self.others]).for_each(|tenant| look(tenant));
        self.lock().tenants.iter().for_each(|tenant| look(tenant));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing of users runs under it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    fn new(name: &str, limits: TenantLimits, queue: Option<WaitQueue>) -> Result<Self, BuildError> {
        let rate = limits.rate.map(|rate| RateLimit::new(TENANT_RATE, rate).map(Arc::new)).transpose();
        Ok(Self {
            name: name.into(),
            calls: make(TENANT, limits.max_concurrent_calls, queue)?,
            rate: rate.map_err(|source| BuildError::Rate { limit: TENANT_RATE, source })?,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Nobody else knows it, so nothing of it is in flight and nobody waits; and it has all of its
    /// tokens, so one that comes again under its name has no more than it would have had.
    fn can_be_forgotten(self: &Arc<Self>, now: Ticks) -> bool {
        let is_alone = Arc::strong_count(self) == 1 && Arc::strong_count(&self.calls) == 1;
        is_alone && self.rate.as_ref().is_none_or(|rate| rate.tokens_available(now) == rate.burst())
    }

    fn set(&self, limits: TenantLimits, now: Ticks) {
        self.calls.set_max(limits.max_concurrent_calls).expect("checked before");
        if let (Some(limit), Some(rate)) = (&self.rate, limits.rate) {
            limit.reconfigure(rate, now).expect("checked before");
        }
    }
}

/// What one connection knows of tenants: that of its last call, who most often makes the next one.
#[derive(Debug)]
pub(crate) struct TenantOf {
    table: Arc<TenantTable>,
    last: Option<Arc<Tenant>>,
    /// The last call, if it is of those without a place: it stays theirs, however often it is asked for.
    of_others: Option<CallId>,
    /// Whether it counts calls of those: one handler of a pipeline does.
    counts: bool,
}

impl TenantOf {
    /// For the first handler that asks of each call.
    pub(crate) fn first(table: &Arc<TenantTable>) -> Self {
        Self { table: Arc::clone(table), last: None, of_others: None, counts: true }
    }

    /// For one behind it.
    pub(crate) fn behind(table: &Arc<TenantTable>) -> Self {
        Self { counts: false, ..Self::first(table) }
    }

    /// Whose call it is.
    pub(crate) fn call(&mut self, call: &Call<'_>) -> &Arc<Tenant> {
        let Self { table, last, of_others, counts } = self;
        let tenant = match &table.settings.source {
            Source::Connection(name) => &*last.get_or_insert_with(|| match name(call.connection()) {
                Some(name) => table.find(&name),
                None => Arc::clone(&table.nobody),
            }),
            Source::Metadata(key) => {
                let Some(name) = call.metadata().get_str(key) else { return &table.nobody };
                let is_known = last.as_ref().is_some_and(|last| last.name() == name);
                if !is_known && *of_others != Some(call.id()) {
                    *last = Some(table.find(name));
                    *of_others = None;
                }
                last.as_ref().expect("just set")
            }
        };
        if Arc::ptr_eq(tenant, &table.others) && of_others.replace(call.id()) != Some(call.id()) {
            table.shared.fetch_add(u64::from(*counts), Ordering::Relaxed);
        }
        tenant
    }
}

/// What calls of nobody and of those without a place are told.
const NOBODY: &str = "(none)";
const OTHERS: &str = "(others)";
/// Longer names have no place.
const MAX_NAME_LEN: usize = 128;
/// How many tenants are looked at to find one that can be forgotten.
const LOOKS: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn table(limits: TenantLimits, max: usize) -> TenantTable {
        TenantTable::new(&Tenants::by_metadata("tenant", limits).max_tenants(max), None).unwrap()
    }

    fn known(table: &TenantTable) -> (u64, u64, u64) {
        let TenantsSnapshot { known, forgotten, shared, .. } = table.snapshot();
        (known, forgotten, shared)
    }

    #[test]
    fn a_tenant_is_the_same_whoever_names_it_and_others_are_others() {
        let table = table(TenantLimits::new().max_concurrent_calls(1), 10);
        let (a, b) = (table.find("a"), table.find("b"));
        assert!(Arc::ptr_eq(&a, &table.find("a")) && !Arc::ptr_eq(&a, &b));
        let _permit = a.calls.try_acquire().unwrap();
        assert!(a.calls.try_acquire().is_err() && b.calls.try_acquire().is_ok());
    }

    #[test]
    fn any_number_of_names_cost_as_many_places_as_there_are() {
        let names =
            if std::env::var("SLUICEGATE_SIEGE").is_ok_and(|size| size == "full") { 10_000_000 } else { 10_000 };
        let table = table(TenantLimits::new().max_concurrent_calls(1), 20);
        for n in 0..names {
            assert_eq!(table.find(&n.to_string()).name(), n.to_string());
            assert!(n % 1_000 > 0 || table.lock().by_name.capacity() <= 64);
        }
        assert_eq!(known(&table), (20, names - 20, 0));
    }

    #[test]
    fn a_tenant_with_a_call_in_flight_is_not_forgotten_and_the_rest_share_what_others_have() {
        let table = table(TenantLimits::new().max_concurrent_calls(1), 2);
        let permits = ["a", "b"].map(|name| table.find(name).calls.try_acquire().unwrap());
        let (c, d) = (table.find("c"), table.find("d"));
        assert!(Arc::ptr_eq(&c, &d) && c.name() == OTHERS);
        assert_eq!(known(&table), (2, 0, 0));
        assert!(table.find("a").calls.try_acquire().is_err(), "it is the same as before");
        drop(permits);
        assert_eq!(table.find("c").name(), "c");
        assert_eq!(known(&table), (2, 1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_that_spent_of_its_rate_is_forgotten_only_when_it_has_been_refilled() {
        let table = table(TenantLimits::new().rate(Rate::per(1, Duration::from_millis(20)).burst(1)), 1);
        let spend =
            |table: &TenantTable| table.find("a").rate.as_ref().unwrap().try_acquire(1, Reading::now().ticks).is_ok();
        assert!(spend(&table));
        assert_eq!(table.find("b").name(), OTHERS, "or to come back would be as good as to wait");
        assert!(!spend(&table));
        tokio::time::advance(Duration::from_millis(21)).await;
        assert_eq!(table.find("b").name(), "b");
    }

    #[test]
    fn a_name_without_end_has_no_place() {
        let table = table(TenantLimits::new(), 10);
        assert_eq!(table.find(&"x".repeat(128)).name(), "x".repeat(128));
        assert_eq!(table.find(&"x".repeat(129)).name(), OTHERS);
    }

    #[test]
    fn limits_are_changed_for_those_who_are_there_and_those_who_come() {
        let settings = Tenants::by_metadata("tenant", TenantLimits::new().max_concurrent_calls(1));
        let settings = settings.tenant("acme", TenantLimits::new().max_concurrent_calls(5));
        let table = TenantTable::new(&settings, None).unwrap();
        let before = table.find("before");
        let max = |name: &str| table.find(name).calls.max();
        table.set_each(TenantLimits::new().max_concurrent_calls(3)).unwrap();
        assert_eq!((before.calls.max(), max("after"), max("acme")), (Some(3), Some(3), Some(5)));
        table.set_named("acme", TenantLimits::new().max_concurrent_calls(6)).unwrap();
        let nobody = table.set_named("nobody", TenantLimits::new()).unwrap_err();
        assert_eq!(nobody.to_string(), "the server was built without the tenant nobody");
        assert_eq!(max("acme"), Some(6));
        let rate = TenantLimits::new().rate(Rate::per_second(1.0));
        for added in [table.set_each(rate), table.set_named("acme", rate)] {
            assert!(matches!(added, Err(ChangeError::TenantRate)), "there was no rate: {added:?}");
        }
        assert!(table.set_each(TenantLimits::new().max_concurrent_calls(0)).is_err());
        assert_eq!(max("before"), Some(3));
    }
}
