//! The limits of calls in flight that the connections of a server share, and how they go together.

#[cfg(feature = "config")]
pub(crate) mod file;
mod names;
mod settings;
mod tenants;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rpc_core::limit::{ConcurrencyLimit, PriorityGate, Rate, RateLimit};

pub use settings::{Adaptive, MethodLimits, WaitQueue};
pub use tenants::{TenantLimits, Tenants, TenantsSnapshot};

pub(crate) use self::{
    names::intern,
    tenants::{Tenant, TenantOf, TenantTable},
};
use crate::{
    config::Config,
    error::BuildError,
    gauges::{BLOCKING, BYTES, CONNECTION, CONNECTION_RATE, GLOBAL, GLOBAL_RATE, RESERVED_NAMES, TENANT, TENANT_RATE},
    method::{Method, Methods},
};

/// The limits of calls in flight of one server.
///
/// A call counts in all of those that concern it or in none, and they are asked from narrow to wide:
/// connection, method, pool, blocking calls, tenant, the whole server, bytes. If there are only the limits of the
/// server and of the connection, the pipeline has a handler that knows only these.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) global: Arc<ConcurrencyLimit>,
    pub(crate) blocking: Arc<ConcurrencyLimit>,
    pools: BTreeMap<&'static str, Arc<ConcurrencyLimit>>,
    /// By the methods' index.
    methods: Vec<OfMethod>,
    bytes: Option<Arc<ConcurrencyLimit>>,
    tenants: Option<Arc<TenantTable>>,
    queue: Option<Queue>,
    retry_delay: Duration,
    max_per_connection: AtomicU64,
    body_budget_per_connection: AtomicU64,
    /// Held by who changes what each connection has, and by who makes a connection's.
    changing: Mutex<()>,
    dry_run: AtomicBool,
    priority: Option<Arc<PriorityGate>>,
}

/// What concerns the calls of one method.
#[derive(Debug, Default)]
struct OfMethod {
    own: Option<Arc<ConcurrencyLimit>>,
    pool: Option<Arc<ConcurrencyLimit>>,
    weight: u64,
    blocking: bool,
    stream_idle_timeout: Option<Duration>,
}

/// What can be changed of queues while calls wait.
#[derive(Debug)]
struct Queue {
    max_waiting: AtomicU64,
    max_wait_us: AtomicU64,
}

impl Limits {
    /// # Errors
    ///
    /// A limit is zero, a call would weigh more than a limit it counts in, or a setting names what is
    /// not there.
    pub(crate) fn new(config: &Config, methods: &mut Methods) -> Result<Self, BuildError> {
        let make = |name, max| make(name, max, config.wait_queue);
        let mut pools = BTreeMap::new();
        for (name, max) in &config.pools {
            let name = intern(name);
            let limit = make(name, Some(*max))?;
            let is_method = methods.iter().any(|method| method.info.path() == name);
            if is_method || RESERVED_NAMES.contains(&name) || pools.insert(name, limit).is_some() {
                return Err(BuildError::NameTaken { name });
            }
        }
        let of_methods = of_methods(config, methods, &pools, make)?;
        let tenants = config.tenants.as_ref().map(|tenants| TenantTable::new(tenants, config.wait_queue));
        let limits = Self {
            global: make(GLOBAL, config.max_concurrent_calls)?,
            blocking: make(BLOCKING, Some(config.max_blocking_calls))?,
            pools,
            methods: of_methods,
            bytes: config.max_bytes_in_flight.map(|max| make(BYTES, Some(max))).transpose()?,
            tenants: tenants.transpose()?.map(Arc::new),
            queue: config.wait_queue.map(Queue::new),
            retry_delay: config.concurrency_retry_delay,
            max_per_connection: AtomicU64::new(config.max_concurrent_calls_per_connection),
            body_budget_per_connection: AtomicU64::new(config.body_budget_per_connection),
            changing: Mutex::new(()),
            dry_run: AtomicBool::new(false),
            priority: config.shed_by_priority.then(Arc::default),
        };
        limits.check_weights(config)?;
        limits.check_floors(config, methods)?;
        Ok(limits)
    }

    /// Whether there is more than the limits of the server and of the connection.
    pub(crate) fn are_many(&self) -> bool {
        let plain = |of: &OfMethod| of.own.is_none() && of.pool.is_none() && of.weight == 1;
        self.queue.is_some() || self.bytes.is_some() || self.tenants.is_some() || !self.methods.iter().all(plain)
    }

    /// The limit of a new connection, alone.
    pub(crate) fn of_connection(&self) -> Arc<ConcurrencyLimit> {
        let max = Some(self.max_per_connection());
        match &self.queue {
            Some(queue) => ConcurrencyLimit::with_queue(CONNECTION, max, queue.max_waiting.load(Ordering::Relaxed)),
            None => ConcurrencyLimit::new(CONNECTION, max),
        }
        .expect("it is never zero")
    }

    /// The limit of a new connection within that of the server, where there are no others.
    pub(crate) fn of_plain_connection(&self) -> Arc<ConcurrencyLimit> {
        let max = Some(self.max_per_connection());
        ConcurrencyLimit::within(Arc::clone(&self.global), CONNECTION, max).expect("it is never zero")
    }

    /// All limits in which a call counts that claims so many bytes.
    pub(crate) fn group(
        &self,
        method: u32,
        connection: &Arc<ConcurrencyLimit>,
        tenant: Option<&Arc<Tenant>>,
        bytes: u32,
    ) -> Arc<ConcurrencyLimit> {
        let of = &self.methods[method as usize];
        let blocking = of.blocking.then_some(&self.blocking);
        let narrow_to_wide = [
            Some((connection, of.weight)),
            of.own.as_ref().map(|own| (own, 1)),
            of.pool.as_ref().map(|pool| (pool, of.weight)),
            blocking.map(|blocking| (blocking, of.weight)),
            tenant.map(|tenant| (&tenant.calls, of.weight)),
            Some((&self.global, of.weight)),
            self.bytes.as_ref().map(|limit| (limit, u64::from(bytes))),
        ];
        let limits = narrow_to_wide.into_iter().flatten().map(|(limit, units)| (Arc::clone(limit), units));
        ConcurrencyLimit::all_of(limits)
    }

    /// Whether calls of one method differ in what they take.
    pub(crate) fn counts_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// What sheds calls by their classes, if they are to be shed.
    pub(crate) fn priority(&self) -> Option<&Arc<PriorityGate>> {
        self.priority.as_ref()
    }

    /// The tenants, if there are any.
    pub(crate) fn tenants(&self) -> Option<&Arc<TenantTable>> {
        self.tenants.as_ref()
    }

    /// A method's own limit.
    pub(crate) fn of_method(&self, index: usize) -> Option<&Arc<ConcurrencyLimit>> {
        self.methods[index].own.as_ref()
    }

    /// How long a stream of this method may be idle.
    pub(crate) fn stream_idle_timeout(&self, method: u32) -> Option<Duration> {
        self.methods[method as usize].stream_idle_timeout
    }

    /// How long a call may wait, if it may.
    pub(crate) fn max_wait(&self) -> Option<Duration> {
        let queue = self.queue.as_ref().filter(|_| !self.is_dry_run())?;
        Some(Duration::from_micros(queue.max_wait_us.load(Ordering::Relaxed)))
    }

    /// About how long a call that is refused should wait.
    pub(crate) fn retry_delay(&self) -> Duration {
        self.retry_delay
    }

    pub(crate) fn max_per_connection(&self) -> u64 {
        self.max_per_connection.load(Ordering::Relaxed)
    }

    /// Where the maximum of each connection is kept; never zero.
    pub(crate) fn max_per_connection_word(&self) -> &AtomicU64 {
        &self.max_per_connection
    }

    /// Where the budget of each connection for bodies in parts is kept; never zero.
    pub(crate) fn body_budget_per_connection_word(&self) -> &AtomicU64 {
        &self.body_budget_per_connection
    }

    /// Nobody else changes what each connection has, or makes a connection's, while it is held. So of two changes
    /// at once all connections have the same one, and one that is new has no old value.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether limits only count what they would refuse.
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run.load(Ordering::Relaxed)
    }

    pub(crate) fn set_dry_run(&self, dry_run: bool) {
        self.dry_run.store(dry_run, Ordering::Relaxed);
    }

    /// Sets how many may wait and how long, at the limits that connections share. Whether there are queues.
    pub(crate) fn set_wait_queue(&self, settings: WaitQueue) -> bool {
        let Some(queue) = &self.queue else { return false };
        let new = Queue::new(settings);
        queue.max_waiting.store(settings.max_waiting, Ordering::Relaxed);
        queue.max_wait_us.store(new.max_wait_us.into_inner(), Ordering::Relaxed);
        for limit in [&self.global, &self.blocking].into_iter().chain(self.named()) {
            limit.set_max_waiting(settings.max_waiting);
        }
        if let Some(tenants) = &self.tenants {
            tenants.set_max_waiting(settings.max_waiting);
        }
        true
    }

    /// How many calls of one connection may be pending: in flight, or waiting for it.
    pub(crate) fn max_pending(&self) -> u64 {
        self.max_per_connection().saturating_add(self.max_waiting().unwrap_or(0))
    }

    /// How many calls may wait at each limit, if there are queues.
    pub(crate) fn max_waiting(&self) -> Option<u64> {
        self.queue.as_ref().map(|queue| queue.max_waiting.load(Ordering::Relaxed))
    }

    /// The limits that bear a name of the user's choice, and those that are there only if they were set.
    pub(crate) fn named(&self) -> impl Iterator<Item = &Arc<ConcurrencyLimit>> {
        let of_methods = self.methods.iter().filter_map(|of| of.own.as_ref());
        self.pools.values().chain(of_methods).chain(&self.bytes)
    }

    /// The heaviest call of each limit passes it when nothing else is in flight, and each rate when its bucket
    /// is full.
    fn check_weights(&self, config: &Config) -> Result<(), BuildError> {
        // Of zero it will hear otherwise.
        let floor = config.adaptive.as_ref().map(|adaptive| (ADAPTIVE_FLOOR, adaptive.floor.max(1)));
        let burst = |name, rate: Option<Rate>| Some((name, u64::from(RateLimit::new(name, rate?).ok()?.burst())));
        let of_tenants = self.tenants.as_ref();
        let of_all = [
            Some((CONNECTION, self.max_per_connection())),
            of_tenants.and_then(|tenants| Some((TENANT, tenants.least_max()?))),
            floor,
            burst(CONNECTION_RATE, config.rate_per_connection),
            of_tenants.and_then(|tenants| Some((TENANT_RATE, tenants.least_burst()?.into()))),
            burst(GLOBAL_RATE, config.rate),
        ];
        for of in &self.methods {
            let shared = [of.pool.as_ref(), of.blocking.then_some(&self.blocking), Some(&self.global)];
            let shared = shared.into_iter().flatten().filter_map(|limit| Some((limit.name(), limit.max()?)));
            let all = of_all.iter().flatten().copied().chain(shared);
            if let Some((other, other_value)) = all.into_iter().find(|(_, most)| *most < of.weight) {
                let setting = "the weight of a method";
                return Err(BuildError::Relation { setting, value: of.weight, other, other_value });
            }
        }
        Ok(())
    }

    /// What is to be there at least fits into what there is at most: for each method, for the server, and for
    /// all methods together.
    fn check_floors(&self, config: &Config, methods: &Methods) -> Result<(), BuildError> {
        let floor_of = |adaptive: &Adaptive| (ADAPTIVE_FLOOR, adaptive.floor);
        let all_methods = config.adaptive_methods.iter().map(|(_, adaptive)| adaptive.floor);
        let of_server = [
            config.adaptive.as_ref().map(floor_of),
            Some(("the floors of adaptive limits together", all_methods.fold(0, u64::saturating_add))),
        ];
        let of_server = of_server.into_iter().flatten().map(|floor| (floor, self.global.max()));
        let of_methods = config.adaptive_methods.iter().filter_map(|(path, adaptive)| {
            let index = methods.iter().position(|method| method.info.path() == path)?;
            Some((floor_of(adaptive), self.of_method(index)?.max()))
        });
        for ((setting, value), max) in of_server.chain(of_methods) {
            if let Some(other_value) = max.filter(|max| value > *max) {
                return Err(BuildError::Relation { setting, value, other: "max_concurrent_calls", other_value });
            }
        }
        Ok(())
    }
}

const ADAPTIVE_FLOOR: &str = "the floor of an adaptive limit";

impl Queue {
    fn new(queue: WaitQueue) -> Self {
        // Less than a microsecond is not nothing.
        let max_wait_us = u64::try_from(queue.max_wait.as_micros()).unwrap_or(u64::MAX).max(1);
        Self { max_waiting: AtomicU64::new(queue.max_waiting), max_wait_us: AtomicU64::new(max_wait_us) }
    }
}

fn make(name: &'static str, max: Option<u64>, queue: Option<WaitQueue>) -> Result<Arc<ConcurrencyLimit>, BuildError> {
    match queue {
        Some(queue) => ConcurrencyLimit::with_queue(name, max, queue.max_waiting),
        None => ConcurrencyLimit::new(name, max),
    }
    .map_err(|source| BuildError::Concurrency { limit: name, source })
}

/// What attributes and configuration say of a method together.
pub(crate) fn limits_of(config: &Config, method: &Method) -> MethodLimits {
    let find = |limits: &[(String, MethodLimits)], name: &str| {
        // Of each field, what was said last counts: a file that sets one leaves the others as they were.
        let said = limits.iter().rev().filter(|(known, _)| known == name);
        said.fold(MethodLimits::default(), |later, (_, earlier)| later.or(earlier))
    };
    let path = method.info.path();
    find(&config.method_limits, path)
        .or(&method.limits)
        .or(&find(&config.service_limits, service_of(path)))
        .or(&method.service_limits)
}

/// A name of those that have limits and that none counts: it would be accepted without effect.
fn exempt_with_limits<'a>(config: &'a Config, methods: &Methods) -> Option<&'a str> {
    let limits = config.service_limits.iter().chain(&config.method_limits).map(|(name, _)| name);
    let mut names = limits.chain(config.adaptive_methods.iter().map(|(name, _)| name)).map(String::as_str);
    names.find(|name| {
        let is_named = |path: &str| path == *name || service_of(path) == *name;
        methods.iter().any(|method| method.info.is_exempt() && is_named(method.info.path()))
    })
}

fn service_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(service, _)| service)
}

/// Makes the limits of each method.
fn of_methods(
    config: &Config,
    methods: &mut Methods,
    pools: &BTreeMap<&'static str, Arc<ConcurrencyLimit>>,
    make: impl Fn(&'static str, Option<u64>) -> Result<Arc<ConcurrencyLimit>, BuildError>,
) -> Result<Vec<OfMethod>, BuildError> {
    let paths: BTreeSet<_> = methods.iter().map(|method| method.info.path().to_owned()).collect();
    let services: BTreeSet<_> = paths.iter().map(|path| service_of(path).to_owned()).collect();
    let unknown = |what, name: &str| BuildError::Unknown { what, name: name.to_owned() };
    if let Some((name, _)) = config.service_limits.iter().find(|(name, _)| !services.contains(name)) {
        return Err(unknown("service", name));
    }
    if let Some((name, _)) = config.method_limits.iter().find(|(name, _)| !paths.contains(name)) {
        return Err(unknown("method", name));
    }
    if let Some(name) = exempt_with_limits(config, methods) {
        return Err(BuildError::Exempt { name: name.to_owned() });
    }
    let mut all = Vec::new();
    for method in methods.iter_mut() {
        let path = method.info.path().to_owned();
        let limits = limits_of(config, method);
        let weight = limits.weight.unwrap_or(1);
        if weight == 0 {
            return Err(BuildError::Zero { setting: "the weight of a method" });
        }
        method.set_weight(weight);
        let stream_idle_timeout = limits.stream_idle_timeout.or(config.stream_idle_timeout);
        if stream_idle_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(BuildError::Zero { setting: "the stream_idle_timeout of a method" });
        }
        let pool = limits.pool.map(|name| pools.get(&*name).cloned().ok_or_else(|| unknown("pool", &name)));
        let is_adaptive = config.adaptive_methods.iter().any(|(name, _)| *name == path);
        let max = limits.max_concurrent_calls;
        all.push(OfMethod {
            own: (is_adaptive || max.is_some()).then(|| make(intern(&path), max)).transpose()?,
            pool: pool.transpose()?,
            weight: weight.into(),
            blocking: method.info.is_blocking(),
            stream_idle_timeout,
        });
    }
    Ok(all)
}
