//! Limits as they stand in a file; the file itself is [`crate::ServerSettings`].

use std::{collections::BTreeMap, time::Duration};

use rpc_codec::settings::{OrOff, Time};
use rpc_core::limit::Rate;
use serde::Deserialize;

use super::{Adaptive, MethodLimits, TenantLimits, Tenants, WaitQueue};

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a rate is `per_second`, or `tokens` and `interval`, and maybe `burst`"
)]
pub(crate) enum RateEntry {
    PerSecond { per_second: f64, burst: Option<u32> },
    Per { tokens: u64, interval: Time, burst: Option<u32> },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueEntry {
    max_waiting: Option<u64>,
    max_wait: Option<Time>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "algorithm", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum AdaptiveEntry {
    Gradient2 { start: Option<u64>, floor: Option<u64>, ceiling: Option<u64> },
    Aimd { too_long: Time, start: Option<u64>, floor: Option<u64>, ceiling: Option<u64> },
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MethodEntry {
    max_concurrent_calls: Option<u64>,
    weight: Option<u32>,
    pool: Option<String>,
    stream_idle_timeout: Option<OrOff<Time>>,
    adaptive: Option<OrOff<AdaptiveEntry>>,
}

/// The same of a service, of whose methods no two share what is adaptive.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "MethodEntry")]
pub(crate) struct ServiceEntry(MethodEntry);

impl TryFrom<MethodEntry> for ServiceEntry {
    type Error = &'static str;

    fn try_from(entry: MethodEntry) -> Result<Self, Self::Error> {
        match entry.adaptive {
            None => Ok(Self(entry)),
            Some(_) => Err("what is `adaptive` is set of a method, not of a service"),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantsEntry {
    metadata: String,
    max_tenants: Option<usize>,
    #[serde(default)]
    each: TenantEntry,
    #[serde(default)]
    named: BTreeMap<String, TenantEntry>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TenantEntry {
    max_concurrent_calls: Option<u64>,
    rate: Option<RateEntry>,
}

impl RateEntry {
    pub(crate) fn rate(self) -> Rate {
        let (rate, burst) = match self {
            Self::PerSecond { per_second, burst } => (Rate::per_second(per_second), burst),
            Self::Per { tokens, interval: Time(interval), burst } => (Rate::per(tokens, interval), burst),
        };
        burst.map_or(rate, |burst| rate.burst(burst))
    }
}

impl QueueEntry {
    pub(crate) fn queue(self) -> WaitQueue {
        let queue = self.max_waiting.map_or_else(WaitQueue::default, WaitQueue::of);
        self.max_wait.map_or(queue, |Time(max)| queue.max_wait(max))
    }
}

impl AdaptiveEntry {
    pub(crate) fn adaptive(self) -> Adaptive {
        let (mut adaptive, bounds) = match self {
            Self::Gradient2 { start, floor, ceiling } => (Adaptive::gradient2(), [start, floor, ceiling]),
            Self::Aimd { too_long: Time(too_long), start, floor, ceiling } => {
                (Adaptive::aimd(too_long), [start, floor, ceiling])
            }
        };
        let [start, floor, ceiling] = bounds;
        if let Some(start) = start {
            adaptive = adaptive.start(start);
        }
        if let Some(floor) = floor {
            adaptive = adaptive.floor(floor);
        }
        match ceiling {
            Some(ceiling) => adaptive.ceiling(ceiling),
            None => adaptive,
        }
    }
}

impl ServiceEntry {
    pub(crate) fn limits(self) -> MethodLimits {
        self.0.limits().0
    }
}

impl MethodEntry {
    pub(crate) fn limits(self) -> (MethodLimits, Option<OrOff<AdaptiveEntry>>) {
        let Self { max_concurrent_calls, weight, pool, stream_idle_timeout, adaptive } = self;
        // Not `None`, which is what the server has.
        let stream_idle_timeout = stream_idle_timeout.map(|timeout| timeout.on().map_or(Duration::MAX, Time::get));
        (MethodLimits { max_concurrent_calls, weight, pool, stream_idle_timeout }, adaptive)
    }
}

impl TenantsEntry {
    pub(crate) fn tenants(self) -> Tenants {
        let mut tenants = Tenants::by_metadata(self.metadata, self.each.limits());
        for (name, entry) in self.named {
            tenants = tenants.tenant(name, entry.limits());
        }
        match self.max_tenants {
            Some(max) => tenants.max_tenants(max),
            None => tenants,
        }
    }
}

impl TenantEntry {
    fn limits(self) -> TenantLimits {
        let limits = TenantLimits::new();
        let limits = self.max_concurrent_calls.map_or(limits, |max| limits.max_concurrent_calls(max));
        self.rate.map_or(limits, |rate| limits.rate(rate.rate()))
    }
}
