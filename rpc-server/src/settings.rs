//! The settings of a server as they stand in a file.

use std::collections::BTreeMap;

use rpc_codec::settings::{CodecName, OrOff, SettingsError, Size, Time, from_toml, set};
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
/// their names (`"bincode"`, `"postcard"`, `"json"`, `"messagepack"`). What the builder takes `None` for can be `"off"`. So
/// can, also where the program has set them, `max_concurrent_calls`, `max_bytes_in_flight`, every rate, `wait_queue`, `tenants` and
/// `adaptive_limit` of the whole server; of methods their `adaptive`, and of methods and services their `stream_idle_timeout`.
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
    max_concurrent_calls: Option<OrOff<u64>>,
    max_concurrent_calls_per_connection: Option<u64>,
    max_blocking_calls: Option<u64>,
    max_connections: Option<u64>,
    max_connections_per_address: Option<OrOff<u64>>,
    max_bytes_in_flight: Option<OrOff<Size>>,
    rate: Option<OrOff<RateEntry>>,
    rate_per_connection: Option<OrOff<RateEntry>>,
    item_rate: Option<OrOff<RateEntry>>,
    item_rate_per_connection: Option<OrOff<RateEntry>>,
    wait_queue: Option<OrOff<QueueEntry>>,
    concurrency_retry_delay: Option<Time>,
    shed_by_priority: Option<bool>,
    refuse_late_calls: Option<bool>,
    adaptive_limit: Option<OrOff<AdaptiveEntry>>,
    pools: BTreeMap<String, u64>,
    services: BTreeMap<String, ServiceEntry>,
    methods: BTreeMap<String, MethodEntry>,
    tenants: Option<OrOff<TenantsEntry>>,
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
    min_write_rate: Option<OrOff<Size<u32>>>,
    stream_idle_timeout: Option<OrOff<Time>>,
    max_call_time: Option<OrOff<Time>>,
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
        set(&mut config.max_bytes_in_flight, or_off(self.max_bytes_in_flight, Size::get));
        set(&mut config.max_frame, self.max_frame.map(Size::get));
        set(&mut config.frame_budget, self.frame_budget.map(Size::get));
        set(&mut config.max_message, self.max_message.map(Size::get));
        set(&mut config.body_budget, self.body_budget.map(Size::get));
        set(&mut config.body_budget_per_connection, self.body_budget_per_connection.map(Size::get));
        set(&mut config.stream_window, self.stream_window.map(Size::get));
        set(&mut config.min_body_rate, or_off(self.min_body_rate, Size::get));
        set(&mut config.write_high_water, self.write_high_water.map(Size::get));
    }

    fn set_times(&self, config: &mut Config) {
        set(&mut config.first_byte_timeout, self.first_byte_timeout.map(Time::get));
        set(&mut config.handshake_timeout, self.handshake_timeout.map(Time::get));
        set(&mut config.frame_timeout, self.frame_timeout.map(Time::get));
        set(&mut config.idle_timeout, or_off(self.idle_timeout, Time::get));
        set(&mut config.keepalive_interval, or_off(self.keepalive_interval, Time::get));
        set(&mut config.keepalive_timeout, self.keepalive_timeout.map(Time::get));
        set(&mut config.max_connection_age, or_off(self.max_connection_age, Time::get));
        set(&mut config.max_connection_age_grace, or_off(self.max_connection_age_grace, Time::get));
        set(&mut config.write_timeout, self.write_timeout.map(Time::get));
        set(&mut config.min_write_rate, or_off(self.min_write_rate, Size::get));
        set(&mut config.stream_idle_timeout, or_off(self.stream_idle_timeout, Time::get));
        set(&mut config.max_call_time, or_off(self.max_call_time, Time::get));
        set(&mut config.drain_grace, self.drain_grace.map(Time::get));
        set(&mut config.shutdown_notice, self.shutdown_notice.map(Time::get));
        set(&mut config.concurrency_retry_delay, self.concurrency_retry_delay.map(Time::get));
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
                config.adaptive_methods.extend(adaptive.on().map(|adaptive| (name.clone(), adaptive.adaptive())));
            }
            config.method_limits.push((name, limits));
        }
    }

    fn set_limits(self, config: &mut Config) {
        set(&mut config.max_concurrent_calls, or_off(self.max_concurrent_calls, |max| max));
        set(&mut config.max_concurrent_calls_per_connection, self.max_concurrent_calls_per_connection);
        set(&mut config.max_blocking_calls, self.max_blocking_calls);
        set(&mut config.max_connections, self.max_connections);
        set(&mut config.max_connections_per_address, or_off(self.max_connections_per_address, |max| max));
        set(&mut config.rate, or_off(self.rate, RateEntry::rate));
        set(&mut config.rate_per_connection, or_off(self.rate_per_connection, RateEntry::rate));
        set(&mut config.item_rate, or_off(self.item_rate, RateEntry::rate));
        set(&mut config.item_rate_per_connection, or_off(self.item_rate_per_connection, RateEntry::rate));
        set(&mut config.control_frame_rate, or_off(self.control_frame_rate, RateEntry::rate));
        set(&mut config.wait_queue, or_off(self.wait_queue, QueueEntry::queue));
        set(&mut config.shed_by_priority, self.shed_by_priority);
        set(&mut config.refuse_late_calls, self.refuse_late_calls);
        set(&mut config.adaptive, or_off(self.adaptive_limit, AdaptiveEntry::adaptive));
        set(&mut config.tenants, or_off(self.tenants, TenantsEntry::tenants));
        set(&mut config.spawn_calls, self.spawn_calls);
        set(&mut config.trace_calls, self.trace_calls);
        #[cfg(feature = "metrics")]
        set(&mut config.measure_calls, self.measure_calls);
    }
}

/// A setting that a file has, which is `None` if that says that it is off.
fn or_off<T, U>(setting: Option<OrOff<T>>, value: impl FnOnce(T) -> U) -> Option<Option<U>> {
    setting.map(|setting| setting.on().map(value))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rpc_core::limit::Rate;

    use super::*;
    use crate::{Adaptive, MethodLimits, Server, TenantLimits, Tenants, WaitQueue};

    fn settings(text: &str) -> ServerSettings {
        ServerSettings::from_toml(text).unwrap()
    }

    fn error(text: &str) -> String {
        ServerSettings::from_toml(text).unwrap_err().to_string()
    }

    /// Each setting of a server, by its name.
    fn list(builder: &ServerBuilder) -> BTreeMap<String, String> {
        let mut all = fields(&builder.config);
        all.insert("health".to_owned(), format!("{:?}", builder.health));
        all.insert("describe".to_owned(), format!("{:?}", builder.describe));
        all
    }

    /// What a struct shows of each of its fields, by its name.
    fn fields(of: &impl std::fmt::Debug) -> BTreeMap<String, String> {
        let text = format!("{of:#?}");
        // One level deep it is a field; deeper, what belongs to the one before.
        let (mut all, mut name) = (BTreeMap::<_, String>::new(), String::new());
        for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
            match line.split_once(": ").filter(|_| !line.starts_with(' ')) {
                Some((field, value)) => {
                    field.clone_into(&mut name);
                    all.insert(name.clone(), value.to_owned());
                }
                None => all.entry(name.clone()).or_default().push_str(line),
            }
        }
        all
    }

    #[test]
    fn the_file_of_defaults_has_the_defaults_and_all_there_are() {
        let defaults = settings(include_str!("settings.toml"));
        let shown = fields(&defaults);
        let missing: Vec<_> = shown.iter().filter(|(_, value)| ["None,", "{},"].contains(&value.as_str())).collect();
        let without_default = [
            "adaptive_limit",
            "codecs",
            "item_rate",
            "item_rate_per_connection",
            "max_bytes_in_flight",
            "max_concurrent_calls",
            "methods",
            "pools",
            "rate",
            "rate_per_connection",
            "services",
            "tenants",
            "wait_queue",
        ];
        // What is measured is not in every build, so it is not in the file.
        let missing = missing.into_iter().map(|(name, _)| name).filter(|name| *name != "measure_calls");
        assert_eq!(missing.collect::<Vec<_>>(), without_default);
        assert_eq!(list(&Server::builder().settings(defaults)), list(&Server::builder()));
    }

    #[test]
    fn a_file_sets_each_setting_of_a_server_and_no_other() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let text = r#"
            max_concurrent_calls = 1
            max_concurrent_calls_per_connection = 2
            max_blocking_calls = 3
            max_connections = 4
            max_connections_per_address = 45
            max_bytes_in_flight = "5MiB"
            rate = { per_second = 6 }
            rate_per_connection = { tokens = 7, interval = "1m", burst = 8 }
            item_rate = { per_second = 35 }
            item_rate_per_connection = { per_second = 36 }
            wait_queue = { max_waiting = 9, max_wait = "10ms" }
            concurrency_retry_delay = "11ms"
            shed_by_priority = true
            adaptive_limit = { algorithm = "gradient2", start = 41, floor = 42, ceiling = 43 }
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
            min_write_rate = "off"
            stream_idle_timeout = "37s"
            max_call_time = "38s"
            drain_grace = "29s"
            shutdown_notice = "31s"
            codecs = []
            services.S = { max_concurrent_calls = 32, pool = "reads" }
            methods."S/m" = { weight = 33, adaptive = { algorithm = "aimd", too_long = "34ms", start = 44 } }
            tenants = { metadata = "tenant", max_tenants = 38, each = { max_concurrent_calls = 39 }, named.N = { rate = { per_second = 40 } } }
        "#;
        const MIB: u32 = 1 << 20;
        let tenants = Tenants::by_metadata("tenant", TenantLimits::new().max_concurrent_calls(39))
            .tenant("N", TenantLimits::new().rate(Rate::per_second(40.0)))
            .max_tenants(38);
        let said = Server::builder()
            .max_concurrent_calls(1)
            .max_concurrent_calls_per_connection(2)
            .max_blocking_calls(3)
            .max_connections(4)
            .max_connections_per_address(45)
            .max_bytes_in_flight((5 * MIB).into())
            .rate(Rate::per_second(6.0))
            .rate_per_connection(Rate::per(7, s(60)).burst(8))
            .item_rate(Rate::per_second(35.0))
            .item_rate_per_connection(Rate::per_second(36.0))
            .wait_queue(WaitQueue::of(9).max_wait(ms(10)))
            .concurrency_retry_delay(ms(11))
            .shed_by_priority(true)
            .adaptive_limit(Adaptive::gradient2().start(41).floor(42).ceiling(43))
            .pool("reads", 12)
            .max_frame(13 * MIB)
            .frame_budget((14 * MIB).into())
            .max_message(15 * MIB)
            .body_budget((16 * MIB).into())
            .body_budget_per_connection((17 * MIB).into())
            .stream_window(18 * MIB)
            .min_body_rate(None)
            .write_high_water(19 * MIB as usize)
            .first_byte_timeout(s(20))
            .handshake_timeout(s(21))
            .frame_timeout(s(22))
            .idle_timeout(s(23))
            .keepalive_interval(None)
            .keepalive_timeout(s(24))
            .max_connection_age(s(25))
            .max_connection_age_grace(s(26))
            .control_frame_rate(Rate::per_second(27.0))
            .write_timeout(s(28))
            .min_write_rate(None)
            .stream_idle_timeout(s(37))
            .max_call_time(s(38))
            .drain_grace(s(29))
            .shutdown_notice(s(31))
            .codecs([])
            .service_limits("S", MethodLimits::new().max_concurrent_calls(32).pool("reads"))
            .method_limits("S/m", MethodLimits::new().weight(33))
            .adaptive_method_limit("S/m", Adaptive::aimd(ms(34)).start(44))
            .tenants(tenants);
        let (set, said, unset) =
            (list(&Server::builder().settings(settings(text))), list(&said), list(&Server::builder()));
        assert_eq!(set, said);
        let missing: Vec<_> = set.keys().filter(|name| set[*name] == unset[*name]).map(String::as_str).collect();
        // The last is not set: it says what is wrong with codecs. The others are one of two: see the next test.
        let mut switches =
            vec!["describe", "health", "refuse_late_calls", "spawn_calls", "trace_calls", "unsupported_codec"];
        if cfg!(feature = "metrics") {
            switches.insert(2, "measure_calls");
        }
        assert_eq!(missing, switches, "a setting that files do not have");
    }

    #[test]
    fn each_switch_is_its_own() {
        let changed = |builder: ServerBuilder| {
            let (set, unset) = (list(&builder), list(&Server::builder()));
            set.into_iter().filter(|(name, value)| unset[name] != *value).collect::<Vec<_>>()
        };
        let builder = Server::builder;
        let switches = [
            ("describe", builder().describe(true)),
            ("health", builder().health(true)),
            #[cfg(feature = "metrics")]
            ("measure_calls", builder().measure_calls(true)),
            ("refuse_late_calls", builder().refuse_late_calls(true)),
            ("shed_by_priority", builder().shed_by_priority(true)),
            ("spawn_calls", builder().spawn_calls(true)),
            ("trace_calls", builder().trace_calls(true)),
        ];
        for (name, switched) in switches {
            let set = changed(builder().settings(settings(&format!("{name} = true"))));
            assert_eq!(set.len(), 1, "{name}");
            assert_eq!(set, changed(switched), "{name}");
        }
    }

    #[test]
    fn what_the_program_has_set_can_be_switched_off() {
        let limits = MethodLimits::new().stream_idle_timeout(Duration::from_secs(1));
        let set = Server::builder()
            .max_concurrent_calls(1)
            .max_bytes_in_flight(2 << 20)
            .rate(Rate::per_second(3.0))
            .rate_per_connection(Rate::per_second(4.0))
            .item_rate(Rate::per_second(5.0))
            .item_rate_per_connection(Rate::per_second(6.0))
            .max_call_time(Duration::from_secs(7))
            .wait_queue(WaitQueue::default())
            .adaptive_limit(Adaptive::gradient2())
            .adaptive_method_limit("S/m", Adaptive::gradient2())
            .method_limits("S/m", limits.clone())
            .tenants(Tenants::by_metadata("tenant", TenantLimits::new()));
        let off = [
            "max_concurrent_calls",
            "max_bytes_in_flight",
            "rate",
            "rate_per_connection",
            "item_rate",
            "item_rate_per_connection",
            "max_call_time",
            "wait_queue",
            "adaptive_limit",
            "tenants",
        ];
        let mut text = off.map(|name| format!("{name} = 'off'\n")).concat();
        text.push_str("methods.'S/m' = { stream_idle_timeout = 'off', adaptive = 'off' }");
        let unset = Server::builder()
            .method_limits("S/m", limits)
            .method_limits("S/m", MethodLimits::new().stream_idle_timeout(Duration::MAX));
        assert_eq!(list(&set.settings(settings(&text))), list(&unset));
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
            "[services.a]\nadaptive = { algorithm = \"gradient2\" }",
            "rate = \"none\"",
            "rate = 5",
            "max_concurrent_calls = -1",
            "wait_queue = { max_wait = \"0\" }",
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
        let rate = |text: &str| settings(text).rate.and_then(OrOff::on).unwrap().rate();
        assert_eq!(rate("rate = { per_second = 200, burst = 400 }"), Rate::per_second(200.0).burst(400));
        assert_eq!(rate("rate = { per_second = 0.5 }"), Rate::per_second(0.5));
        let minute = Rate::per(600, Duration::from_secs(60));
        assert_eq!(rate("rate = { tokens = 600, interval = \"1m\" }"), minute);
    }
}
