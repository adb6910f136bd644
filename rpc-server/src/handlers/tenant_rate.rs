//! Turns away calls of a tenant whose calls come faster than its rate allows.

use std::sync::Arc;

use rpc_core::{
    CallId,
    limit::{RateLimit, RateToken},
};

use super::rate::{acquire, explain};
use crate::{
    Call,
    limits::{TenantOf, TenantTable},
    pipeline::{CallInfo, Decision, Handler, Interest, Outbound},
};

/// Spends tokens of the bucket of a call's tenant, if it has one.
#[derive(Debug)]
pub(crate) struct TenantRateHandler {
    tenant: TenantOf,
    /// The tokens of the last call that passed here.
    last: Option<(CallId, Arc<RateLimit>, RateToken)>,
}

impl TenantRateHandler {
    pub(crate) fn new(table: &Arc<TenantTable>) -> Self {
        Self { tenant: TenantOf::first(table), last: None }
    }
}

impl Handler for TenantRateHandler {
    fn interest() -> Interest {
        Interest::REFUSALS
    }

    fn limits_load() -> bool {
        true
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let tenant = self.tenant.call(call);
        let Some(limit) = &tenant.rate else { return Decision::Pass };
        match acquire(limit, call) {
            Ok(token) => {
                self.last = Some((call.id(), Arc::clone(limit), token));
                Decision::Pass
            }
            Err(refusal) => Decision::Refuse(explain(limit, refusal).with_tenant(tenant.name())),
        }
    }

    /// As [`super::RateHandler`] does.
    fn outbound(&mut self, call: &CallInfo<'_>, _: &mut Outbound<'_>) {
        if let Some((_, limit, token)) = self.last.take_if(|(id, ..)| *id == call.id) {
            limit.restore(token);
        }
    }
}
