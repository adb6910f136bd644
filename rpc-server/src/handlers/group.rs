//! Turns away calls, or lets them wait, when any of the limits that concern them is reached.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rpc_core::{
    Refusal, RefusalReason,
    limit::{Admission, ConcurrencyLimit, ConcurrencyRefusal, Turn, WaitRefusal},
};

use super::{
    deadline::{micros, too_short},
    rate::jitter,
};
use crate::{
    Call,
    feedback::{SharedFeedback, Wait},
    gauges::{BYTES, Share, TENANT},
    limits::{Limits, Tenant, TenantOf},
    pipeline::{Decision, Handler, Interest},
};

/// Takes one permit for all limits of calls in flight that concern a call: of its connection, method, pool,
/// of blocking calls, of its tenant, of the server, and of bytes; all or nothing, narrow to wide.
///
/// A call whose body comes in parts is refused with the first of them if it could neither pass nor wait, and
/// otherwise takes its permit, or its place in a queue, when the body is there.
#[derive(Debug)]
pub(crate) struct GroupHandler {
    limits: Arc<Limits>,
    connection: Arc<ConcurrencyLimit>,
    /// Names the connection in queues.
    line: u64,
    waiting: Share,
    tenant: Option<TenantOf>,
    feedback: SharedFeedback,
    /// Whose calls the groups are of.
    of_tenant: Option<Arc<Tenant>>,
    /// By the methods' index: what calls of late took.
    groups: Vec<Groups>,
}

/// The groups of limits in which calls of one method counted of late, so that the next such call finds its
/// own without an allocation.
#[derive(Debug, Default)]
struct Groups {
    known: Vec<Group>,
    /// The one to be forgotten next.
    oldest: usize,
}

#[derive(Debug)]
struct Group {
    bytes: u32,
    limit: Arc<ConcurrencyLimit>,
}

impl GroupHandler {
    pub(crate) fn new(
        limits: Arc<Limits>,
        connection: Arc<ConcurrencyLimit>,
        line: u64,
        waiting: Share,
        feedback: SharedFeedback,
    ) -> Self {
        let tenant = limits.tenants().map(TenantOf::new);
        Self { limits, connection, line, waiting, tenant, feedback, of_tenant: None, groups: Vec::new() }
    }

    /// All limits that concern a call, and whose call it is.
    fn group(&mut self, call: &Call<'_>) -> (Arc<ConcurrencyLimit>, Option<&Tenant>) {
        let method = call.method().index();
        let bytes = if self.limits.counts_bytes() { call.body_len() } else { 0 };
        if self.groups.len() <= method as usize {
            self.groups.resize_with(method as usize + 1, Groups::default);
        }
        let tenant = self.tenant.as_mut().map(|tenant| tenant.call(call));
        // What is kept of a tenant keeps it from being forgotten, so it is kept of one.
        if let Some(tenant) = tenant
            && !self.of_tenant.as_ref().is_some_and(|known| Arc::ptr_eq(known, tenant))
        {
            self.groups.iter_mut().for_each(|groups| groups.known.clear());
            self.of_tenant = Some(Arc::clone(tenant));
        }
        let (limits, groups) = (&self.limits, &mut self.groups[method as usize]);
        let limit = match groups.find(bytes) {
            Some(limit) => limit,
            None => {
                let limit = limits.group(method, &self.connection, tenant, bytes);
                groups.add(Group { bytes, limit: Arc::clone(&limit) });
                limit
            }
        };
        (limit, tenant.map(|tenant| &**tenant))
    }

    /// What is said of a call whose body has only begun.
    #[cold]
    fn begun(&mut self, call: &Call<'_>) -> Decision {
        let (may_wait, line) = (self.limits.max_wait().is_some(), self.line);
        let retry_delay = self.limits.retry_delay();
        let (group, tenant) = self.group(call);
        let checked = if may_wait { group.check_or_wait(line) } else { group.check().map_err(WaitRefusal::Full) };
        match checked {
            Ok(()) => Decision::AwaitBody,
            Err(refusal) => Decision::Refuse(name_tenant(turn_away(&refusal, retry_delay), tenant)),
        }
    }

    #[cold]
    fn wait(&mut self, call: &Call<'_>, turn: Turn, max_wait: Duration) -> Decision {
        let tenant = self.tenant.as_mut().map(|tenant| Arc::clone(tenant.call(call)));
        let limit = turn.at().expect("it waits");
        if let Some(feedback) = &self.feedback {
            let wait = Wait { ahead: limit.waiting().saturating_sub(1), at_once: limit.max().unwrap_or(0) };
            // Of what is left it has waited nothing yet, whatever it was asked before.
            let left = call.deadline().remaining(call.let_in());
            if let Some(takes) = feedback.would_be_late(call.method().index(), left, wait) {
                return Decision::Refuse(too_short(takes, left.unwrap_or_default()));
            }
        }
        let otherwise = Refusal::new(RefusalReason::QueueTimeout)
            .with_limit(limit.name(), micros(max_wait), limit.waiting())
            .with_retry_delay(with_jitter(self.limits.retry_delay()));
        let otherwise = name_tenant(otherwise, tenant.as_deref());
        let mut waiting = self.waiting.another();
        waiting.set(1);
        let future = Box::pin(Queued { turn, tenant, retry_delay: self.limits.retry_delay(), _waiting: waiting });
        // Not since it was received: a body may take longer to come than a call may wait.
        match call.let_in().checked_add(max_wait) {
            Some(until) => Decision::WaitUntil { until, otherwise, future },
            None => Decision::Wait(future),
        }
    }
}

impl Handler for GroupHandler {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn limits_load() -> bool {
        true
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        if !call.is_whole() {
            return self.begun(call);
        }
        let (max_wait, retry_delay) = (self.limits.max_wait(), self.limits.retry_delay());
        let line = self.line;
        let (group, tenant) = self.group(call);
        let Some(max_wait) = max_wait else {
            return match group.try_acquire() {
                Ok(permit) => {
                    call.carry(permit);
                    Decision::Pass
                }
                Err(refusal) => Decision::Refuse(name_tenant(refuse(&refusal, retry_delay), tenant)),
            };
        };
        match group.acquire_or_wait(line) {
            Admission::Pass(permit) => {
                call.carry(permit);
                Decision::Pass
            }
            Admission::Wait(turn) => self.wait(call, turn, max_wait),
            Admission::Refuse(refusal) => Decision::Refuse(name_tenant(turn_away(&refusal, retry_delay), tenant)),
        }
    }
}

impl Groups {
    fn find(&self, bytes: u32) -> Option<Arc<ConcurrencyLimit>> {
        self.known.iter().find(|group| group.bytes == bytes).map(|group| Arc::clone(&group.limit))
    }

    /// Keeps a group in place of the one that was kept for longest, if there are many.
    fn add(&mut self, group: Group) {
        if self.known.len() < MAX_GROUPS {
            self.known.push(group);
        } else {
            self.known[self.oldest] = group;
            self.oldest = (self.oldest + 1) % MAX_GROUPS;
        }
    }
}

/// A call's wait for its turn. It counts as waiting for as long as it lives.
struct Queued {
    turn: Turn,
    tenant: Option<Arc<Tenant>>,
    retry_delay: Duration,
    _waiting: Share,
}

impl Future for Queued {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let retry_delay = self.retry_delay;
        Pin::new(&mut self.turn).poll(cx).map(|turn| match turn {
            Ok(permit) => Decision::Carry(permit),
            Err(refusal) => {
                let refusal = turn_away(&refusal, retry_delay);
                Decision::Refuse(name_tenant(refusal, self.tenant.as_deref()))
            }
        })
    }
}

/// Says whose limit it was, if it was that of a tenant.
fn name_tenant(refusal: Refusal, tenant: Option<&Tenant>) -> Refusal {
    match tenant.filter(|_| refusal.limit() == TENANT) {
        Some(tenant) => refusal.with_tenant(tenant.name()),
        None => refusal,
    }
}

fn with_jitter(delay: Duration) -> Duration {
    delay.saturating_add(jitter(delay))
}

fn turn_away(refusal: &WaitRefusal, retry_delay: Duration) -> Refusal {
    match *refusal {
        WaitRefusal::Full(full) => refuse(&full, retry_delay),
        WaitRefusal::QueueFull { limit, max_waiting, waiting } => Refusal::new(RefusalReason::QueueFull)
            .with_limit(limit, max_waiting, waiting)
            .with_retry_delay(with_jitter(retry_delay)),
        _ => Refusal::new(RefusalReason::ConcurrencyLimit).with_retry_delay(retry_delay),
    }
}

fn refuse(refusal: &ConcurrencyRefusal, retry_delay: Duration) -> Refusal {
    let ConcurrencyRefusal { limit, max, in_flight, units, .. } = *refusal;
    if refusal.never_passes() {
        return Refusal::new(RefusalReason::ConcurrencyNeverPasses).with_limit(limit, max, units);
    }
    let reason = if limit == BYTES { RefusalReason::BodyBudget } else { RefusalReason::ConcurrencyLimit };
    Refusal::new(reason).with_limit(limit, max, in_flight).with_retry_delay(with_jitter(retry_delay))
}

/// Lengths of bodies that calls of one method had of late; a connection has its usual ones.
const MAX_GROUPS: usize = 8;
