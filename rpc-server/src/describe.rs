//! The service that tells what the server has, where it is switched on.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rpc_codec::{
    CallKind, CodecId,
    builtin::{DESCRIBE_SERVICE, Description, MethodDescription, ServiceDescription},
};
use rpc_core::limit::RateLimit;

use crate::{
    config::Config,
    limits::{MethodLimits, limits_of},
    method::{MethodInfo, MethodOptions, Methods, Service, ServiceMethods},
};

/// What the server has when it is built, itself not counted.
pub(crate) fn description(config: &Config, methods: &Methods) -> Description {
    let mut description = Description::default();
    for method in methods.iter() {
        let path = method.info.path();
        let (service, name) = path.rsplit_once('/').unwrap_or(("", path));
        let aliases = methods.aliases_of(&method.info).map(ToOwned::to_owned).collect();
        let mut method = of_method(name, &method.info, limits_of(config, method));
        method.aliases = aliases;
        match description.services.iter_mut().find(|known| known.name == service) {
            Some(known) => known.methods.push(method),
            None => {
                let mut of_service = ServiceDescription::default();
                of_service.name = service.to_owned();
                of_service.methods.push(method);
                description.services.push(of_service);
            }
        }
    }
    let codecs = [&[CodecId::BYTES], CodecId::supported()].concat();
    description.codecs =
        codecs.iter().filter(|codec| config.codecs.contains(**codec)).map(ToString::to_string).collect();
    description.limits = limits(config);
    description.pools = config.pools.iter().cloned().collect();
    description
}

fn of_method(name: &str, method: &MethodInfo, limits: MethodLimits) -> MethodDescription {
    let arguments = method.arguments().unwrap_or_default().iter();
    let (from_client, from_server) = method.items();
    let kind = method.kind().name();
    let mut described = MethodDescription::default();
    described.name = name.to_owned();
    described.arguments = arguments.map(|(name, ty)| ((*name).to_owned(), (*ty).to_owned())).collect();
    described.returns = method.returns().unwrap_or_default().to_owned();
    described.kind = kind.strip_prefix("a ").unwrap_or(kind).to_owned();
    (described.items_from_client, described.items_from_server) = (from_client.to_owned(), from_server.to_owned());
    described.untouched = method.is_untouched();
    described.blocking = method.is_blocking();
    described.weight = limits.weight.unwrap_or(1);
    (described.max_concurrent_calls, described.pool) = (limits.max_concurrent_calls, limits.pool);
    // Without items it means nothing.
    described.stream_idle_timeout = limits.stream_idle_timeout.filter(|_| method.kind() != CallKind::Unary).map(ms);
    described
}

fn limits(config: &Config) -> BTreeMap<String, u64> {
    // Those that cannot be are told when the server is built.
    let per_second = |rate| RateLimit::new("", rate).ok().map(|limit| limit.rate_per_second().round() as u64);
    let limits = [
        ("rate", config.rate.and_then(per_second)),
        ("rate_per_connection", config.rate_per_connection.and_then(per_second)),
        ("item_rate", config.item_rate.and_then(per_second)),
        ("item_rate_per_connection", config.item_rate_per_connection.and_then(per_second)),
        ("stream_idle_timeout", config.stream_idle_timeout.map(ms)),
        ("max_call_time", config.max_call_time.map(ms)),
        ("max_concurrent_calls", config.max_concurrent_calls),
        ("max_concurrent_calls_per_connection", Some(config.max_concurrent_calls_per_connection)),
        ("max_bytes_in_flight", config.max_bytes_in_flight),
        ("max_waiting", config.wait_queue.map(|queue| queue.max_waiting)),
        ("max_wait", config.wait_queue.map(|queue| ms(queue.max_wait))),
        ("max_blocking_calls", Some(config.max_blocking_calls)),
        ("max_connections", Some(config.max_connections)),
        ("max_connections_per_address", config.max_connections_per_address),
        ("max_frame", Some(config.max_frame.into())),
        ("frame_budget", Some(config.frame_budget)),
        ("max_message", Some(config.max_message.into())),
        ("body_budget", Some(config.body_budget)),
        ("body_budget_per_connection", Some(config.body_budget_per_connection)),
        ("stream_window", Some(config.stream_window.into())),
        ("min_body_rate", config.min_body_rate.map(u64::from)),
        ("handshake_timeout", Some(ms(config.handshake_timeout))),
        ("frame_timeout", Some(ms(config.frame_timeout))),
        ("idle_timeout", config.idle_timeout.map(ms)),
        ("keepalive_interval", config.keepalive_interval.map(ms)),
        ("keepalive_timeout", Some(ms(config.keepalive_timeout))),
        ("max_connection_age", config.max_connection_age.map(ms)),
        ("write_timeout", Some(ms(config.write_timeout))),
        ("min_write_rate", config.min_write_rate.map(u64::from)),
        ("drain_grace", Some(ms(config.drain_grace))),
    ];
    limits.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The service that tells it. It passes every limit, as any other.
pub(crate) struct DescribeService(pub(crate) Description);

impl Service for DescribeService {
    fn name(&self) -> &str {
        DESCRIBE_SERVICE
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        let description = Arc::new(self.0);
        let options = MethodOptions::new().signature(&[], "Description");
        methods.unary("describe", options, move |_, (): ()| {
            let description = Arc::clone(&description);
            async move { Ok(Description::clone(&description)) }
        });
    }
}
