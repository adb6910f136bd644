//! Limits as they stand in a file.

use std::{collections::BTreeMap, time::Duration};

use rpc_core::limit::Rate;
use serde::Deserialize;

use super::{Adaptive, MethodLimits, TenantLimits, Tenants, WaitQueue};
use crate::ServerBuilder;

/// The limits of a server as a file has them, for [`ServerBuilder::limits`].
///
/// Whatever is left out stays as the builder has it. Names that do not exist are errors: of settings when the
/// file is read, of services, methods and pools when the server is built.
///
/// ```
/// use rpc_server::{LimitsFile, Server};
///
/// let file = LimitsFile::from_toml(r#"
///     max_concurrent_calls = 64
///     max_concurrent_calls_per_connection = 16
///     rate = { per_second = 200, burst = 400 }
///     rate_per_connection = { tokens = 600, interval_ms = 60_000, burst = 10 }
///     item_rate_per_connection = { per_second = 1_000 }
///     stream_idle_timeout_ms = 60_000
///     wait_queue = { max_waiting = 128, max_wait_ms = 500 }
///     max_bytes_in_flight = 100_000_000
///     shed_by_priority = true
///     refuse_late_calls = true
///     adaptive = { algorithm = "gradient2", start = 32, floor = 8, ceiling = 64 }
///
///     [pools]
///     reads = 48
///     writes = 16
///
///     ## The default of each method of a service:
///     ## [services."acme.v1.Library"]
///     ## max_concurrent_calls = 8
///     ## And of one:
///     ## [methods."acme.v1.Library/find"]
///     ## pool = "reads"
///     ## weight = 2
///     ## adaptive = { algorithm = "aimd", too_long_ms = 50 }
///
///     [tenants]
///     metadata = "tenant"
///     max_tenants = 1_000
///     each = { max_concurrent_calls = 16, rate = { per_second = 100 } }
///     named.acme = { max_concurrent_calls = 48 }
/// "#).unwrap();
/// let server = Server::builder().limits(file).build().unwrap();
/// assert_eq!(server.handle().snapshot().calls.max, Some(32), "adaptive limits begin where they are told to");
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsFile {
    max_concurrent_calls: Option<u64>,
    max_concurrent_calls_per_connection: Option<u64>,
    max_blocking_calls: Option<u64>,
    max_connections: Option<u64>,
    max_bytes_in_flight: Option<u64>,
    rate: Option<RateEntry>,
    rate_per_connection: Option<RateEntry>,
    item_rate: Option<RateEntry>,
    item_rate_per_connection: Option<RateEntry>,
    stream_idle_timeout_ms: Option<u64>,
    wait_queue: Option<QueueEntry>,
    concurrency_retry_delay_ms: Option<u64>,
    shed_by_priority: Option<bool>,
    refuse_late_calls: Option<bool>,
    adaptive: Option<AdaptiveEntry>,
    pools: BTreeMap<String, u64>,
    services: BTreeMap<String, ServiceEntry>,
    methods: BTreeMap<String, MethodEntry>,
    tenants: Option<TenantsEntry>,
}

/// A file that says nothing sensible: where, and what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct LimitsFileError(toml::de::Error);

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a rate is `per_second`, or `tokens` and `interval_ms`, and maybe `burst`"
)]
enum RateEntry {
    PerSecond { per_second: f64, burst: Option<u32> },
    Per { tokens: u64, interval_ms: u64, burst: Option<u32> },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueEntry {
    max_waiting: Option<u64>,
    max_wait_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "algorithm", rename_all = "lowercase", deny_unknown_fields)]
enum AdaptiveEntry {
    Gradient2 { start: Option<u64>, floor: Option<u64>, ceiling: Option<u64> },
    Aimd { too_long_ms: u64, start: Option<u64>, floor: Option<u64>, ceiling: Option<u64> },
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ServiceEntry {
    max_concurrent_calls: Option<u64>,
    weight: Option<u32>,
    pool: Option<String>,
    stream_idle_timeout_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MethodEntry {
    max_concurrent_calls: Option<u64>,
    weight: Option<u32>,
    pool: Option<String>,
    stream_idle_timeout_ms: Option<u64>,
    adaptive: Option<AdaptiveEntry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantsEntry {
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

impl LimitsFile {
    /// Reads TOML. Other formats are read through `serde`.
    ///
    /// # Errors
    ///
    /// It is no TOML, or has a name or a value that is not known; the message says where.
    pub fn from_toml(text: &str) -> Result<Self, LimitsFileError> {
        toml::from_str(text).map_err(LimitsFileError)
    }

    /// Sets what it has.
    pub(crate) fn apply(self, mut builder: ServerBuilder) -> ServerBuilder {
        let config = &mut builder.config;
        set_some(&mut config.max_concurrent_calls, self.max_concurrent_calls);
        set(&mut config.max_concurrent_calls_per_connection, self.max_concurrent_calls_per_connection);
        set(&mut config.max_blocking_calls, self.max_blocking_calls);
        set(&mut config.max_connections, self.max_connections);
        set_some(&mut config.max_bytes_in_flight, self.max_bytes_in_flight);
        set_some(&mut config.rate, self.rate.map(RateEntry::rate));
        set_some(&mut config.rate_per_connection, self.rate_per_connection.map(RateEntry::rate));
        set_some(&mut config.item_rate, self.item_rate.map(RateEntry::rate));
        set_some(&mut config.item_rate_per_connection, self.item_rate_per_connection.map(RateEntry::rate));
        set_some(&mut config.stream_idle_timeout, self.stream_idle_timeout_ms.map(Duration::from_millis));
        set_some(&mut config.wait_queue, self.wait_queue.map(QueueEntry::queue));
        set(&mut config.concurrency_retry_delay, self.concurrency_retry_delay_ms.map(Duration::from_millis));
        set(&mut config.shed_by_priority, self.shed_by_priority);
        set(&mut config.refuse_late_calls, self.refuse_late_calls);
        set_some(&mut config.adaptive, self.adaptive.map(AdaptiveEntry::adaptive));
        for (name, max) in self.pools {
            // What is configured wins over what is in the program.
            config.pools.retain(|(known, _)| *known != name);
            config.pools.push((name, max));
        }
        for (name, ServiceEntry { max_concurrent_calls, weight, pool, stream_idle_timeout_ms }) in self.services {
            let stream_idle_timeout = stream_idle_timeout_ms.map(Duration::from_millis);
            let limits = MethodLimits { max_concurrent_calls, weight, pool, stream_idle_timeout };
            config.service_limits.push((name, limits));
        }
        for (name, entry) in self.methods {
            let MethodEntry { max_concurrent_calls, weight, pool, stream_idle_timeout_ms, adaptive } = entry;
            let stream_idle_timeout = stream_idle_timeout_ms.map(Duration::from_millis);
            if let Some(adaptive) = adaptive {
                config.adaptive_methods.retain(|(known, _)| *known != name);
                config.adaptive_methods.push((name.clone(), adaptive.adaptive()));
            }
            let limits = MethodLimits { max_concurrent_calls, weight, pool, stream_idle_timeout };
            config.method_limits.push((name, limits));
        }
        set_some(&mut config.tenants, self.tenants.map(TenantsEntry::tenants));
        builder
    }
}

fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

fn set_some<T>(setting: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *setting = value;
    }
}

impl RateEntry {
    fn rate(self) -> Rate {
        let (rate, burst) = match self {
            Self::PerSecond { per_second, burst } => (Rate::per_second(per_second), burst),
            Self::Per { tokens, interval_ms, burst } => (Rate::per(tokens, Duration::from_millis(interval_ms)), burst),
        };
        burst.map_or(rate, |burst| rate.burst(burst))
    }
}

impl QueueEntry {
    fn queue(self) -> WaitQueue {
        let queue = self.max_waiting.map_or_else(WaitQueue::default, WaitQueue::of);
        self.max_wait_ms.map_or(queue, |ms| queue.max_wait(Duration::from_millis(ms)))
    }
}

impl AdaptiveEntry {
    fn adaptive(self) -> Adaptive {
        let (mut adaptive, bounds) = match self {
            Self::Gradient2 { start, floor, ceiling } => (Adaptive::gradient2(), [start, floor, ceiling]),
            Self::Aimd { too_long_ms, start, floor, ceiling } => {
                (Adaptive::aimd(Duration::from_millis(too_long_ms)), [start, floor, ceiling])
            }
        };
        let [start, floor, ceiling] = bounds;
        adaptive = start.map_or(adaptive.clone(), |start| adaptive.start(start));
        adaptive = floor.map_or(adaptive.clone(), |floor| adaptive.floor(floor));
        ceiling.map_or(adaptive.clone(), |ceiling| adaptive.ceiling(ceiling))
    }
}

impl TenantsEntry {
    fn tenants(self) -> Tenants {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;

    fn error(text: &str) -> String {
        LimitsFile::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn a_name_that_is_not_known_is_an_error_that_names_it_wherever_it_stands() {
        for text in [
            "max_concurent_calls = 64",
            "wait_queue = { max_wating = 5 }",
            "rate = { per_second = 5, brust = 1 }",
            "adaptive = { algorithm = \"vegas\" }",
            "adaptive = { algorithm = \"aimd\" }",
            "[services.a]\nrate = 5",
            "[methods.\"a/b\"]\nmax_calls = 5",
            "[tenants]\nmetadata = \"tenant\"\neach = { weight = 5 }",
            "[tenants]\neach = {}",
        ] {
            let message = error(text);
            assert!(message.contains("line"), "{message}");
        }
        assert!(error("max_concurent_calls = 64").contains("max_concurent_calls"));
        assert!(error("rate = { per_second = 5, brust = 1 }").contains("a rate is `per_second`"));
    }

    #[test]
    fn what_is_left_out_stays_and_what_is_said_wins() {
        let file = LimitsFile::from_toml("max_concurrent_calls = 5\npools = { reads = 3 }").unwrap();
        let server = Server::builder().max_concurrent_calls(9).max_blocking_calls(7).pool("reads", 8).limits(file);
        let limits = server.build().unwrap().handle().limits().list();
        let max = |name| limits.iter().find(|limit| limit.name == name).unwrap().figures.max;
        assert_eq!([max("global"), max("blocking"), max("reads")], [Some(5), Some(7), Some(3)]);
    }

    #[test]
    fn what_the_server_does_not_have_is_refused_when_it_is_built() {
        for text in [
            "[services.Nothing]",
            "[methods.\"Nothing/at_all\"]",
            "[methods.\"N/a\"]\nadaptive = { algorithm = \"gradient2\" }",
        ] {
            let built = Server::builder().limits(LimitsFile::from_toml(text).unwrap()).build();
            assert!(built.unwrap_err().to_string().starts_with("there is no"), "{text}");
        }
        for text in [
            "max_concurrent_calls = 0",
            "rate = { per_second = 0 }",
            "item_rate = { per_second = 0 }",
            "stream_idle_timeout_ms = 0",
            "wait_queue = { max_wait_ms = 0 }",
        ] {
            assert!(Server::builder().limits(LimitsFile::from_toml(text).unwrap()).build().is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_those_of_the_program() {
        let rate = |text: &str| LimitsFile::from_toml(text).unwrap().rate.unwrap().rate();
        assert_eq!(rate("rate = { per_second = 200, burst = 400 }"), Rate::per_second(200.0).burst(400));
        assert_eq!(rate("rate = { per_second = 0.5 }"), Rate::per_second(0.5));
        let minute = Rate::per(600, Duration::from_secs(60));
        assert_eq!(rate("rate = { tokens = 600, interval_ms = 60000 }"), minute);
    }
}
