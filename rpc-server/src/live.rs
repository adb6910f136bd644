//! Limits while calls run: read, changed, tried out.

use std::{sync::Arc, time::Duration};

use rpc_core::limit::{ConcurrencyError, ConcurrencySnapshot, Rate, RateError};
use tokio::time::{Instant, timeout_at};

use crate::{
    Snapshot,
    clock::Reading,
    error::BuildError,
    gauges::{
        CONNECTION, CONNECTION_BODIES, CONNECTION_ITEM_RATE, CONNECTION_RATE, CONNECTIONS, GLOBAL_BODIES,
        GLOBAL_FRAMES, GLOBAL_ITEM_RATE, GLOBAL_RATE,
    },
    limits::{TenantLimits, WaitQueue},
    peer::{Holder, Peer},
    server::ServerCore,
};

/// The limits of a server that runs, by the names that refusals give them; see
/// [`crate::ServerHandle::limits`].
///
/// Limits of calls in flight: `global`, `connection`, `blocking`, a pool's name, a method's
/// `package.Service/Method`, and of what else is counted: `connections`, `bytes`, `global bodies`,
/// `connection bodies`, `global frames`. Rates: `global rate` and `connection rate`, and of items `global item rate`
/// and `connection item rate`. What is said of a connection holds for those that are open and those to come. Those of
/// methods, pools, bytes, queues and tenants, and rates, can be changed if the server was built with them.
///
/// ```
/// # use rpc_server::Server;
/// let server = Server::builder().max_concurrent_calls(64).pool("reports", 8).build().unwrap();
/// let limits = server.handle().limits();
/// limits.set_max("reports", Some(4)).unwrap();
/// assert_eq!(limits.list().iter().find(|limit| limit.name == "reports").unwrap().figures.max, Some(4));
/// ```
#[derive(Clone, Debug)]
pub struct LiveLimits {
    core: Arc<ServerCore>,
}

/// One limit at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitInfo {
    /// What refusals call it.
    pub name: &'static str,
    /// What of it is in use; `acquired == released + held` always.
    pub figures: ConcurrencySnapshot,
    /// Calls that wait for it; of `global frames`, connections.
    pub waiting: u64,
    /// How many may; `None` if it has no queue.
    pub max_waiting: Option<u64>,
}

/// A limit cannot be changed like that. It stays as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The server was not built with it.
    #[error("the server was built without {0}")]
    NotThere(String),
    /// Such a maximum cannot be.
    #[error(transparent)]
    Concurrency(#[from] ConcurrencyError),
    /// The rate cannot be.
    #[error("the rate cannot be")]
    Rate(#[from] RateError),
    /// The limits of a tenant cannot be.
    #[error("the limits of a tenant cannot be")]
    Tenant(#[source] BuildError),
    /// Tenants have a rate, or have none, for as long as the server lives.
    #[error("a rate of tenants can be changed, but neither be added nor taken away")]
    TenantRate,
    /// It has to be limited.
    #[error("{0} always has a maximum")]
    Unlimited(&'static str),
    /// It must not be zero.
    #[error("{0} must not be zero")]
    Zero(&'static str),
}

impl LiveLimits {
    pub(crate) fn new(core: &Arc<ServerCore>) -> Self {
        Self { core: Arc::clone(core) }
    }

    /// All limits of calls in flight, and of what else is counted, that are not those of one
    /// connection or tenant.
    pub fn list(&self) -> Vec<LimitInfo> {
        let limits = &self.core.limits;
        let gauges = &self.core.gauges;
        let always = [&limits.global, &limits.blocking, &gauges.connections, &gauges.bodies, &gauges.frames];
        let all = always.into_iter().chain(limits.named());
        let info = all.map(|limit| LimitInfo {
            name: limit.name(),
            figures: limit.snapshot(),
            waiting: limit.waiting(),
            max_waiting: limit.max_waiting(),
        });
        info.collect()
    }

    /// Sets the maximum of a limit, also to less than is in use: it then holds as soon as enough has been
    /// given back. `None` is no limit. Calls that wait and now have room are let in.
    ///
    /// # Errors
    ///
    /// There is no such limit, or the maximum is zero; or it is none, of `connection`, `connections`, bodies or frames.
    pub fn set_max(&self, name: &str, max: Option<u64>) -> Result<(), ChangeError> {
        let core = &self.core;
        let of_connections = match name {
            CONNECTION => Some((CONNECTION, core.limits.max_per_connection_word())),
            CONNECTION_BODIES => Some((CONNECTION_BODIES, core.limits.body_budget_per_connection_word())),
            _ => None,
        };
        if let Some((name, word)) = of_connections {
            let max = max.ok_or(ChangeError::Unlimited(name))?;
            if max == 0 {
                return Err(ConcurrencyError::ZeroMax.into());
            }
            let _changing = core.limits.changing();
            word.store(max, std::sync::atomic::Ordering::Relaxed);
            for peer in self.peers() {
                if let Some(limit) = peer.limit(name) {
                    limit.set_max(Some(max))?;
                }
            }
            return Ok(());
        }
        let gauges = &core.gauges;
        match (name, max) {
            (CONNECTIONS, None) => return Err(ChangeError::Unlimited(CONNECTIONS)),
            (GLOBAL_BODIES, None) => return Err(ChangeError::Unlimited(GLOBAL_BODIES)),
            (GLOBAL_FRAMES, None) => return Err(ChangeError::Unlimited(GLOBAL_FRAMES)),
            _ => {}
        }
        let always = [&core.limits.global, &core.limits.blocking, &gauges.connections, &gauges.bodies, &gauges.frames];
        let limit = always.into_iter().chain(core.limits.named()).find(|limit| limit.name() == name);
        limit.ok_or_else(|| ChangeError::NotThere(name.to_owned()))?.set_max(max)?;
        Ok(())
    }

    /// Sets a rate by its name. What a bucket owes stays owed; an item that waits for it asks again within a second.
    ///
    /// # Errors
    ///
    /// The server was built without it, or the rate cannot be.
    pub fn set_rate(&self, name: &str, rate: Rate) -> Result<(), ChangeError> {
        rate.check()?;
        let now = Reading::now().ticks;
        let not_there = || ChangeError::NotThere(name.to_owned());
        match name {
            GLOBAL_RATE | GLOBAL_ITEM_RATE => {
                self.core.global_rate(name).ok_or_else(not_there)?.reconfigure(rate, now)?;
            }
            CONNECTION_RATE | CONNECTION_ITEM_RATE => {
                let _changing = self.core.limits.changing();
                *self.core.connection_rate(name).as_mut().ok_or_else(not_there)? = rate;
                for peer in self.peers() {
                    if let Some(limit) = peer.rate(name) {
                        limit.reconfigure(rate, now)?;
                    }
                }
            }
            _ => return Err(not_there()),
        }
        Ok(())
    }

    /// Sets how many calls may wait at each limit, and how long; those who wait already stay as they are.
    ///
    /// # Errors
    ///
    /// The server was built without queues; or the time is zero.
    pub fn set_wait_queue(&self, queue: WaitQueue) -> Result<(), ChangeError> {
        if queue.max_wait.is_zero() {
            return Err(ChangeError::Zero("the longest wait"));
        }
        let _changing = self.core.limits.changing();
        if !self.core.limits.set_wait_queue(queue) {
            return Err(ChangeError::NotThere("queues".to_owned()));
        }
        for limit in self.peers().iter().filter_map(|peer| peer.limit(CONNECTION)) {
            limit.set_max_waiting(queue.max_waiting);
        }
        Ok(())
    }

    /// Sets what limits each tenant has that the settings do not name, also those who are there.
    ///
    /// # Errors
    ///
    /// The server was built without tenants, or a rate is added or taken away, or a limit cannot be.
    pub fn set_each_tenant(&self, limits: TenantLimits) -> Result<(), ChangeError> {
        let tenants = self.core.limits.tenants().ok_or_else(|| ChangeError::NotThere("tenants".to_owned()))?;
        tenants.set_each(limits)
    }

    /// Sets the limits of a tenant that the settings name.
    ///
    /// # Errors
    ///
    /// They do not name it, or as for [`Self::set_each_tenant`].
    pub fn set_tenant(&self, name: &str, limits: TenantLimits) -> Result<(), ChangeError> {
        let tenants = self.core.limits.tenants().ok_or_else(|| ChangeError::NotThere("tenants".to_owned()))?;
        tenants.set_named(name, limits)
    }

    /// Lets calls pass that a limit would refuse, and counts them in [`Snapshot::would_refuse`]. For finding out
    /// what a limit would do before it does it. Such a call has no permit; nobody begins to wait, while those
    /// that wait already wait on; and what bounds memory holds all the same: calls pending on a connection,
    /// bodies in parts, connections.
    ///
    /// Default: false.
    pub fn set_dry_run(&self, dry_run: bool) {
        self.core.limits.set_dry_run(dry_run);
    }

    /// The calls that hold permits or wait for them, of all connections. Each connection answers for itself in
    /// its next turn. One that does not within a second, because a service keeps its thread, is left out.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn holders(&self) -> Vec<Holder> {
        // Asked all at once; they may be gone before they answer.
        let answers: Vec<_> = self.peers().iter().map(|peer| peer.ask()).collect();
        let until = Instant::now() + ANSWER_TIME;
        let mut holders = Vec::new();
        for answer in answers {
            // An answer that is there counts, however long another was waited for.
            if let Ok(Ok(of_connection)) = timeout_at(until, answer).await {
                holders.extend(of_connection);
            }
        }
        holders
    }

    /// All figures of the server.
    pub fn snapshot(&self) -> Snapshot {
        self.core.gauges.snapshot()
    }

    fn peers(&self) -> Vec<Arc<Peer>> {
        self.core.peers()
    }
}

const ANSWER_TIME: Duration = Duration::from_secs(1);
