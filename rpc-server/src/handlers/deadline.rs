//! Turns away calls whose deadline had passed when they arrived.

use rpc_core::{Refusal, RefusalReason};

use crate::{
    Call,
    pipeline::{Decision, Handler, Interest},
};

/// Refuses a call that could only be late. It is never executed, and costs no limit anything.
#[derive(Debug, Default)]
pub struct DeadlineHandler(());

impl DeadlineHandler {
    /// A handler that looks at the deadline of each call.
    pub fn new() -> Self {
        Self(())
    }
}

impl Handler for DeadlineHandler {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        if call.deadline().is_expired(call.received()) {
            let age_us = u64::try_from(call.age().as_micros()).unwrap_or(u64::MAX);
            return Decision::Refuse(Refusal::new(RefusalReason::DeadlineExpired).with_limit("", 0, age_us));
        }
        Decision::Pass
    }
}
