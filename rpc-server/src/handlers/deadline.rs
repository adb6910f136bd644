//! Turns away calls whose deadline had passed when they arrived.

use std::time::Duration;

use rpc_core::{Refusal, RefusalReason};

use crate::{
    Call,
    feedback::{Feedback, SharedFeedback, Wait},
    pipeline::{Decision, Handler, Interest},
};

/// Refuses a call that could only be late. It is never executed, and costs no limit anything.
#[derive(Debug, Default)]
pub struct DeadlineHandler {
    feedback: SharedFeedback,
}

impl DeadlineHandler {
    /// A handler that looks at the deadline of each call.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Self::new`]; and one that has less time left than it usually takes is refused, too.
    pub(crate) fn with(feedback: SharedFeedback) -> Self {
        Self { feedback }
    }
}

impl Handler for DeadlineHandler {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        if call.deadline().is_expired(call.let_in()) {
            return Decision::Refuse(expired(call.age()));
        }
        match &self.feedback {
            Some(feedback) if !call.method().is_exempt() => pass_in_time(feedback, call),
            _ => Decision::Pass,
        }
    }
}

/// The refusal of a call whose deadline has passed, and which was so old when it was received.
#[cold]
pub(crate) fn expired(age: Duration) -> Refusal {
    Refusal::new(RefusalReason::DeadlineExpired).with_limit("", 0, micros(age))
}

/// Refuses a call that has less time left than such calls take.
#[inline(never)]
fn pass_in_time(feedback: &Feedback, call: &Call<'_>) -> Decision {
    let left = call.deadline().remaining(call.let_in());
    match feedback.would_be_late(call.method().index(), left, Wait::default()) {
        Some(usual) => Decision::Refuse(too_short(usual, left.unwrap_or_default())),
        None => Decision::Pass,
    }
}

/// The refusal of a call that takes longer than there is time.
pub(super) fn too_short(usual: Duration, left: Duration) -> Refusal {
    Refusal::new(RefusalReason::DeadlineTooShort).with_limit("", micros(usual), micros(left))
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
