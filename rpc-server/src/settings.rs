//! The settings of a server as they stand in a file.

use std::{collections::BTreeMap, time::Duration};

use rpc_codec::settings::{CodecName, OrOff, SettingsError, Size, Time, from_toml};
use serde::Deserialize;

use crate::{
    ServerBuilder,
    config::Config,
    limits::file::{AdaptiveEntry, MethodEntry, QueueEntry, RateEntry, ServiceEntry, TenantsEntry},
};

/// The settings of a server as a file has them, for [`ServerBuilder::settings`].
///
/// The names are those of the methods of [`ServerBuilder`]; limits of methods stand under `methods`, `services` and `pools`.
/// Whatever is left out stays as the builder has it, and what
/// is there is taken over what was set before; of a method's limits, each field by itself. Names that do not exist
/// are errors: of settings when the file is read, of services, methods and pools when the server is built. So are
/// settings that do not go together, as they are without a file.
///
/// Times have a unit (`"250ms"`, `"1m 30s"`), sizes are bytes (`65536`, `"64KiB"`; `"64KB"` are 64,000), codecs have
/// their names (`"bincode"`, `"postcard"`, `"json"`, `"messagepack"`), and what the builder takes `None` for can be
/// `"off"`.
///
/// These have defaults:
///
/// ```toml
#[doc = include_str!("settings.toml")]
/// ```
///
/// And these have none:
///
/// ```
/// use rpc_server::{Server, ServerSettings};
///
/// let settings = ServerSettings::from_toml(r#"
///     max_concurrent_calls = 64
///     max_bytes_in_flight = "100MiB"
///     rate = { per_second = 200, burst = 400 }
///     rate_per_connection = { tokens = 600, interval = "1m", burst = 10 }
///     wait_queue = { max_waiting = 128, max_wait = "500ms" }
///     adaptive_limit = { algorithm = "gradient2", start = 32, floor = 8, ceiling = 64 }
///     codecs = ["bincode"]
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
///     ## adaptive = { algorithm = "aimd", too_long = "50ms" }
///
///     [tenants]
///     metadata = "tenant"
///     max_tenants = 1_000
///     each = { max_concurrent_calls = 16, rate = { per_second = 100 } }
///     named.acme = { max_concurrent_calls = 48 }
/// "#).unwrap();
/// let server = Server::builder().settings(settings).build().unwrap();
/// assert_eq!(server.handle().snapshot().calls.max, Some(32), "adaptive limits begin where they are told to");
/// ```
///
/// A program with settings of its own has these among them, as it is [`Deserialize`]:
///
/// ```
/// # use rpc_server::ServerSettings;
/// #[derive(serde::Deserialize)]
/// struct Config {
///     title: String,
///     server: ServerSettings,
/// }
/// ```
///
/// Built with the feature `metrics`, it has `measure_calls` besides.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    max_concurrent_calls: Option<u64>,
    max_concurrent_calls_per_connection: Option<u64>,
    max_blocking_calls: Option<u64>,
    max_connections: Option<u64>,
    max_bytes_in_flight: Option<Size>,
    rate: Option<RateEntry>,
    rate_per_connection: Option<RateEntry>,
    item_rate: Option<RateEntry>,
    item_rate_per_connection: Option<RateEntry>,
    wait_queue: Option<QueueEntry>,
    concurrency_retry_delay: Option<Time>,
    shed_by_priority: Option<bool>,
    refuse_late_calls: Option<bool>,
    adaptive_limit: Option<AdaptiveEntry>,
    pools: BTreeMap<String, u64>,
    services: BTreeMap<String, ServiceEntry>,
    methods: BTreeMap<String, MethodEntry>,
    tenants: Option<TenantsEntry>,
    max_frame: Option<Size<u32>>,
    frame_budget: Option<Size>,
    max_message: Option<Size<u32>>,
    body_budget: Option<Size>,
    body_budget_per_connection: Option<Size>,
    stream_window: Option<Size<u32>>,
    min_body_rate: Option<OrOff<Size<u32>>>,
    write_high_water: Option<Size<usize>>,
    first_byte_timeout: Option<Time>,
    handshake_timeout: Option<Time>,
    frame_timeout: Option<Time>,
    idle_timeout: Option<OrOff<Time>>,
    keepalive_interval: Option<OrOff<Time>>,
    keepalive_timeout: Option<Time>,
    max_connection_age: Option<OrOff<Time>>,
    max_connection_age_grace: Option<OrOff<Time>>,
    control_frame_rate: Option<OrOff<RateEntry>>,
    write_timeout: Option<Time>,
    stream_idle_timeout: Option<OrOff<Time>>,
    drain_grace: Option<Time>,
    shutdown_notice: Option<Time>,
    spawn_calls: Option<bool>,
    trace_calls: Option<bool>,
    #[cfg(feature = "metrics")]
    measure_calls: Option<bool>,
    codecs: Option<Vec<CodecName>>,
    health: Option<bool>,
    describe: Option<bool>,
}

impl ServerSettings {
    /// Reads TOML. Other formats are read through `serde`.
    ///
    /// # Errors
    ///
    /// It is no TOML, or has a name or a value that is not known; the message says where.
    pub fn from_toml(text: &str) -> Result<Self, SettingsError> {
        from_toml(text)
    }

    /// Sets what it has.
    pub(crate) fn apply(mut self, mut builder: ServerBuilder) -> ServerBuilder {
        if let Some(health) = self.health {
            builder = builder.health(health);
        }
        if let Some(describe) = self.describe {
            builder = builder.describe(describe);
        }
        if let Some(codecs) = self.codecs.take() {
            builder = builder.codecs(codecs.into_iter().map(|CodecName(codec)| codec));
        }
        self.set_bytes(&mut builder.config);
        self.set_times(&mut builder.config);
        self.set_limits_of_methods(&mut builder.config);
        self.set_limits(&mut builder.config);
        builder
    }

    fn set_bytes(&self, config: &mut Config) {
        set_some(&mut config.max_bytes_in_flight, self.max_bytes_in_flight.map(bytes));
        set(&mut config.max_frame, self.max_frame.map(bytes));
        set(&mut config.frame_budget, self.frame_budget.map(bytes));
        set(&mut config.max_message, self.max_message.map(bytes));
        set(&mut config.body_budget, self.body_budget.map(bytes));
        set(&mut config.body_budget_per_connection, self.body_budget_per_connection.map(bytes));
        set(&mut config.stream_window, self.stream_window.map(bytes));
        set(&mut config.min_body_rate, self.min_body_rate.map(|rate| rate.map(bytes)));
        set(&mut config.write_high_water, self.write_high_water.map(bytes));
    }

    fn set_times(&self, config: &mut Config) {
        let or_off = |setting: OrOff<Time>| setting.map(time);
        set(&mut config.first_byte_timeout, self.first_byte_timeout.map(time));
        set(&mut config.handshake_timeout, self.handshake_timeout.map(time));
        set(&mut config.frame_timeout, self.frame_timeout.map(time));
        set(&mut config.idle_timeout, self.idle_timeout.map(or_off));
        set(&mut config.keepalive_interval, self.keepalive_interval.map(or_off));
        set(&mut config.keepalive_timeout, self.keepalive_timeout.map(time));
        set(&mut config.max_connection_age, self.max_connection_age.map(or_off));
        set(&mut config.max_connection_age_grace, self.max_connection_age_grace.map(or_off));
        set(&mut config.write_timeout, self.write_timeout.map(time));
        set(&mut config.stream_idle_timeout, self.stream_idle_timeout.map(or_off));
        set(&mut config.drain_grace, self.drain_grace.map(time));
        set(&mut config.shutdown_notice, self.shutdown_notice.map(time));
        set(&mut config.concurrency_retry_delay, self.concurrency_retry_delay.map(time));
    }

    fn set_limits_of_methods(&mut self, config: &mut Config) {
        for (name, max) in std::mem::take(&mut self.pools) {
            // What is configured wins over what is in the program.
            config.pools.retain(|(known, _)| *known != name);
            config.pools.push((name, max));
        }
        for (name, entry) in std::mem::take(&mut self.services) {
            config.service_limits.push((name, entry.limits()));
        }
        for (name, entry) in std::mem::take(&mut self.methods) {
            let (limits, adaptive) = entry.limits();
            if let Some(adaptive) = adaptive {
                config.adaptive_methods.retain(|(known, _)| *known != name);
                config.adaptive_methods.push((name.clone(), adaptive));
            }
            config.method_limits.push((name, limits));
        }
    }

    fn set_limits(self, config: &mut Config) {
        set_some(&mut config.max_concurrent_calls, self.max_concurrent_calls);
        set(&mut config.max_concurrent_calls_per_connection, self.max_concurrent_calls_per_connection);
        set(&mut config.max_blocking_calls, self.max_blocking_calls);
        set(&mut config.max_connections, self.max_connections);
        set_some(&mut config.rate, self.rate.map(RateEntry::rate));
        set_some(&mut config.rate_per_connection, self.rate_per_connection.map(RateEntry::rate));
        set_some(&mut config.item_rate, self.item_rate.map(RateEntry::rate));
        set_some(&mut config.item_rate_per_connection, self.item_rate_per_connection.map(RateEntry::rate));
        set(&mut config.control_frame_rate, self.control_frame_rate.map(|rate| rate.map(RateEntry::rate)));
        set_some(&mut config.wait_queue, self.wait_queue.map(QueueEntry::queue));
        set(&mut config.shed_by_priority, self.shed_by_priority);
        set(&mut config.refuse_late_calls, self.refuse_late_calls);
        set_some(&mut config.adaptive, self.adaptive_limit.map(AdaptiveEntry::adaptive));
        set_some(&mut config.tenants, self.tenants.map(TenantsEntry::tenants));
        set(&mut config.spawn_calls, self.spawn_calls);
        set(&mut config.trace_calls, self.trace_calls);
        #[cfg(feature = "metrics")]
        set(&mut config.measure_calls, self.measure_calls);
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

fn bytes<T>(Size(bytes): Size<T>) -> T {
    bytes
}

fn time(Time(time): Time) -> Duration {
    time
}

#[cfg(test)]
mod tests {
    use rpc_core::limit::Rate;

    use super::*;
    use crate::Server;

    fn settings(text: &str) -> ServerSettings {
        ServerSettings::from_toml(text).unwrap()
    }

    fn error(text: &str) -> String {
        ServerSettings::from_toml(text).unwrap_err().to_string()
    }

    /// Each setting of a server, by its name.
    fn list(builder: &ServerBuilder) -> BTreeMap<String, String> {
        let mut all =
            BTreeMap::from([("health and describe".to_owned(), format!("{:?}", (builder.health, builder.describe)))]);
        let text = format!("{:#?}", builder.config);
        // One level deep it is a setting; deeper, what belongs to the one before.
        let mut name = String::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
            if let Some((setting, _)) = line.split_once(':').filter(|_| !line.starts_with(' ')) {
                setting.clone_into(&mut name);
            }
            all.entry(name.clone()).or_default().push_str(line);
        }
        all
    }

    #[test]
    fn the_file_of_defaults_has_the_defaults() {
        let left = list(&Server::builder().settings(settings(include_str!("settings.toml"))));
        assert_eq!(left, list(&Server::builder()));
    }

    #[test]
    fn a_file_can_set_each_setting_of_a_server() {
        let text = r#"
            max_concurrent_calls = 1
            max_concurrent_calls_per_connection = 2
            max_blocking_calls = 3
            max_connections = 4
            max_bytes_in_flight = "5MiB"
            rate = { per_second = 6 }
            rate_per_connection = { tokens = 7, interval = "1m", burst = 8 }
            item_rate = { per_second = 35 }
            item_rate_per_connection = { per_second = 36 }
            wait_queue = { max_waiting = 9, max_wait = "10ms" }
            concurrency_retry_delay = "11ms"
            shed_by_priority = true
            refuse_late_calls = true
            adaptive_limit = { algorithm = "gradient2" }
            pools = { reads = 12 }
            max_frame = "13MiB"
            frame_budget = "14MiB"
            max_message = "15MiB"
            body_budget = "16MiB"
            body_budget_per_connection = "17MiB"
            stream_window = "18MiB"
            min_body_rate = "off"
            write_high_water = "19MiB"
            first_byte_timeout = "20s"
            handshake_timeout = "21s"
            frame_timeout = "22s"
            idle_timeout = "23s"
            keepalive_interval = "off"
            keepalive_timeout = "24s"
            max_connection_age = "25s"
            max_connection_age_grace = "26s"
            control_frame_rate = { per_second = 27 }
            write_timeout = "28s"
            stream_idle_timeout = "37s"
            drain_grace = "29s"
            shutdown_notice = "31s"
            spawn_calls = true
            trace_calls = true
            codecs = []
            health = true
            describe = true
            services.S = { max_concurrent_calls = 32 }
            methods."S/m" = { weight = 33, adaptive = { algorithm = "aimd", too_long = "34ms" } }
            tenants = { metadata = "tenant" }
        "#;
        let text = if cfg!(feature = "metrics") { format!("measure_calls = true\n{text}") } else { text.to_owned() };
        let (set, unset) = (list(&Server::builder().settings(settings(&text))), list(&Server::builder()));
        assert_eq!(set.keys().collect::<Vec<_>>(), unset.keys().collect::<Vec<_>>());
        let missing: Vec<_> = set.keys().filter(|name| set[*name] == unset[*name]).collect();
        // It is not set: it says what is wrong with codecs.
        assert_eq!(missing, ["unsupported_codec"], "a setting that files do not have");
    }

    #[test]
    fn a_name_that_is_not_known_is_an_error_that_names_it_wherever_it_stands() {
        for text in [
            "max_concurent_calls = 64",
            "wait_queue = { max_wating = 5 }",
            "rate = { per_second = 5, brust = 1 }",
            "control_frame_rate = { per_second = 5, brust = 1 }",
            "adaptive_limit = { algorithm = \"vegas\" }",
            "adaptive_limit = { algorithm = \"aimd\" }",
            "codecs = [\"yaml\"]",
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
        let file = settings("max_concurrent_calls = 5\npools = { reads = 3 }");
        let server = Server::builder().max_concurrent_calls(9).max_blocking_calls(7).pool("reads", 8).settings(file);
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
            let built = Server::builder().settings(settings(text)).build();
            assert!(built.unwrap_err().to_string().starts_with("there is no"), "{text}");
        }
        for text in ["max_concurrent_calls = 0", "rate = { per_second = 0 }", "wait_queue = { max_wait = \"0s\" }"] {
            assert!(Server::builder().settings(settings(text)).build().is_err(), "{text}");
        }
    }

    #[test]
    fn the_health_which_no_limit_counts_has_none() {
        for name in ["services.\"sluicegate.Health\"", "methods.\"sluicegate.Health/check\""] {
            let builder = Server::builder().health(true).settings(settings(&format!("[{name}]\nweight = 2")));
            let error = builder.build().unwrap_err().to_string();
            assert!(error.starts_with("no limit counts calls of sluicegate.Health"), "{error}");
        }
        let adaptive = "[methods.\"sluicegate.Health/check\"]\nadaptive = { algorithm = \"gradient2\" }";
        assert!(Server::builder().health(true).settings(settings(adaptive)).build().is_err());
    }

    #[test]
    fn settings_that_do_not_go_together_are_both_named() {
        for (text, said) in [
            ("max_message = \"32MiB\"", "max_message (33554432) must not exceed body_budget_per_connection (16777216)"),
            ("max_frame = \"1KiB\"", "the least max_frame (65536) must not exceed max_frame (1024)"),
            ("max_frame = \"1MiB\"\nframe_budget = 5", "max_frame (1048576) must not exceed frame_budget (5)"),
            ("stream_window = 5", "the least stream_window (65536) must not exceed stream_window (5)"),
            ("max_bytes_in_flight = 5", "max_message (4194304) must not exceed max_bytes_in_flight (5)"),
            ("keepalive_timeout = \"0s\"", "keepalive_timeout must not be zero"),
        ] {
            let built = Server::builder().settings(settings(text)).build();
            assert_eq!(built.unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn rates_are_those_of_the_program() {
        let rate = |text: &str| settings(text).rate.unwrap().rate();
        assert_eq!(rate("rate = { per_second = 200, burst = 400 }"), Rate::per_second(200.0).burst(400));
        assert_eq!(rate("rate = { per_second = 0.5 }"), Rate::per_second(0.5));
        let minute = Rate::per(600, Duration::from_secs(60));
        assert_eq!(rate("rate = { tokens = 600, interval = \"1m\" }"), minute);
    }
}
