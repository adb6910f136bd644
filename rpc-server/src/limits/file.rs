//! Limits as they stand in a file; the file itself is [`crate::ServerSettings`].

use std::collections::BTreeMap;

use rpc_codec::settings::Time;
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
pub(crate) struct ServiceEntry {
    max_concurrent_calls: Option<u64>,
    weight: Option<u32>,
    pool: Option<String>,
    stream_idle_timeout: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MethodEntry {
    max_concurrent_calls: Option<u64>,
    weight: Option<u32>,
    pool: Option<String>,
    stream_idle_timeout: Option<Time>,
    adaptive: Option<AdaptiveEntry>,
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
        adaptive = start.map_or(adaptive.clone(), |start| adaptive.start(start));
        adaptive = floor.map_or(adaptive.clone(), |floor| adaptive.floor(floor));
        ceiling.map_or(adaptive.clone(), |ceiling| adaptive.ceiling(ceiling))
    }
}

impl ServiceEntry {
    pub(crate) fn limits(self) -> MethodLimits {
        let Self { max_concurrent_calls, weight, pool, stream_idle_timeout } = self;
        let stream_idle_timeout = stream_idle_timeout.map(|Time(timeout)| timeout);
        MethodLimits { max_concurrent_calls, weight, pool, stream_idle_timeout }
    }
}

impl MethodEntry {
    pub(crate) fn limits(self) -> (MethodLimits, Option<Adaptive>) {
        let Self { max_concurrent_calls, weight, pool, stream_idle_timeout, adaptive } = self;
        let stream_idle_timeout = stream_idle_timeout.map(|Time(timeout)| timeout);
        let limits = MethodLimits { max_concurrent_calls, weight, pool, stream_idle_timeout };
        (limits, adaptive.map(AdaptiveEntry::adaptive))
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
