//! A handler with a decision of every kind.

use std::time::Duration;

use rpc_core::{Refusal, RefusalReason, Status};
use sluicegate::server::{Answer, Call, CallInfo, Decision, Handler, Outbound};
use tokio::time::sleep;

use crate::service::Probe;

/// Decides by a call's priority, at once, after a pause or at the gate, and touches some responses on their way out.
#[derive(Debug)]
pub(crate) struct Porter(pub(crate) Probe);

impl Handler for Porter {
    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let pause = Duration::from_millis(call.attempt().into());
        match call.priority() {
            1 => Decision::Answer(Status::permission_denied("not today")),
            2 => Decision::Refuse(Refusal::new(RefusalReason::RateLimit).with_retry_delay(pause)),
            3 => Decision::Close("out with you".to_owned()),
            4 => after(pause, || Decision::Pass),
            5 => after(pause, || Decision::Answer(Status::permission_denied("not today"))),
            6 => after(pause, || Decision::Close("out with you".to_owned())),
            7 => {
                let probe = self.0.clone();
                Decision::Wait(Box::pin(async move {
                    probe.pass_gate().await;
                    Decision::Pass
                }))
            }
            _ => Decision::Pass,
        }
    }

    fn outbound(&mut self, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
        match (call.id.sequence() % 4, response.answer()) {
            (1, Answer::Reply(_)) => {
                response.metadata_mut().insert("porter", "was here").expect("a short pair");
            }
            (2, _) => response.replace(Status::data_loss("the porter lost it")),
            _ => {}
        }
    }
}

fn after(pause: Duration, decide: impl FnOnce() -> Decision + Send + 'static) -> Decision {
    Decision::Wait(Box::pin(async move {
        sleep(pause).await;
        decide()
    }))
}
