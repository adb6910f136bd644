//! How the server and its services are, and the service that tells it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rpc_codec::builtin::{HEALTH_SERVICE, Health};
use rpc_core::Status;

use crate::method::{MethodOptions, Service, ServiceMethods};

/// How the server and its services are. The server's own state, set by its user, and that it is leaving.
#[derive(Debug)]
pub(crate) struct HealthState {
    leaving: AtomicBool,
    /// By the service's name; the server's own is under the empty one.
    services: RwLock<BTreeMap<String, Health>>,
}

impl HealthState {
    pub(crate) fn new(services: impl IntoIterator<Item = String>) -> Self {
        let all = services.into_iter().chain([String::new()]).map(|name| (name, Health::Serving));
        Self { leaving: AtomicBool::new(false), services: RwLock::new(all.collect()) }
    }

    /// From now on, nothing is better than draining.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// The worst that is known of the service; of the server, if `service` is empty.
    pub(crate) fn of(&self, service: &str) -> Option<Health> {
        let services = self.services.read().unwrap_or_else(PoisonError::into_inner);
        let own = *services.get(service)?;
        let server = services.get("").copied().unwrap_or(Health::Serving);
        let leaving = if self.leaving.load(Ordering::Acquire) { Health::Draining } else { Health::Serving };
        [own, server, leaving].into_iter().max_by_key(|health| u8::from(*health))
    }

    /// `false` if there is no such service.
    pub(crate) fn set(&self, service: &str, health: Health) -> bool {
        let mut services = self.services.write().unwrap_or_else(PoisonError::into_inner);
        services.get_mut(service).map(|known| *known = health).is_some()
    }

    fn list(&self) -> Vec<(String, Health)> {
        let services = self.services.read().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<_> = services.keys().cloned().collect();
        drop(services);
        names.into_iter().filter_map(|name| self.of(&name).map(|health| (name, health))).collect()
    }
}

/// The service that tells the health. Its calls pass no limit of load: a server that is full is not ill.
pub(crate) struct HealthService(pub(crate) Arc<HealthState>);

impl Service for HealthService {
    fn name(&self) -> &str {
        HEALTH_SERVICE
    }

    fn register(self, methods: &mut ServiceMethods<'_>) {
        let (checked, listed) = (Arc::clone(&self.0), self.0);
        let options = MethodOptions::new().exempt();
        methods.unary(
            "check",
            options.signature(&[("service", "String")], "Health"),
            move |_, (service,): (String,)| {
                let health = checked.of(&service);
                async move { health.ok_or_else(|| Status::not_found("the server has no such service")) }
            },
        );
        methods.unary("list", options.signature(&[], "Vec<(String, Health)>"), move |_, (): ()| {
            let all = listed.list();
            async move { Ok(all) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_that_is_known_counts() {
        let state = HealthState::new(["a.B".to_owned(), "a.C".to_owned()]);
        assert_eq!(
            (state.of(""), state.of("a.B"), state.of("a.D")),
            (Some(Health::Serving), Some(Health::Serving), None)
        );
        assert!(state.set("a.B", Health::NotServing) && !state.set("a.D", Health::NotServing));
        assert_eq!((state.of(""), state.of("a.B")), (Some(Health::Serving), Some(Health::NotServing)));
        state.leave();
        assert_eq!((state.of(""), state.of("a.B")), (Some(Health::Draining), Some(Health::NotServing)));
        assert!(state.set("", Health::NotServing));
        assert_eq!(state.of("a.C"), Some(Health::NotServing));
        assert_eq!(state.list().len(), 3);
    }
}
