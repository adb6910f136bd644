//! Handlers that a test makes of a function, or that note what they see.

use std::sync::{Arc, Mutex};

use sluicegate::{
    ConnectionInfo,
    server::{Answer, Call, CallInfo, Decision, Handler, Interest, Outbound},
};

use super::{Harness, Req, method};

/// What handlers saw, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Notes what it sees.
pub(crate) struct Noting(pub(crate) &'static str, pub(crate) Log);

impl Handler for Noting {
    fn connected(&mut self, _: &ConnectionInfo) {
        self.1.note(format!("{} connected", self.0));
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        self.1.note(format!("{} inbound {}", self.0, call.id().sequence()));
        Decision::Pass
    }

    fn outbound(&mut self, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
        let what = match response.answer() {
            Answer::Reply(body) => format!("reply of {}", body.len()),
            Answer::Refusal(refusal) => refusal.reason().name().to_owned(),
            Answer::Status(status) => status.code().name().to_owned(),
            _ => "something new".to_owned(),
        };
        self.1.note(format!("{} outbound {} {what}", self.0, call.id.sequence()));
    }

    fn written(&mut self, call: &CallInfo<'_>) {
        self.1.note(format!("{} written {}", self.0, call.id.sequence()));
    }

    fn closed(&mut self) {
        self.1.note(format!("{} closed", self.0));
    }
}

/// Decides by a function.
pub(crate) struct Deciding<F>(pub(crate) F);

impl<F: FnMut(&mut Call<'_>) -> Decision + Send> Handler for Deciding<F> {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        (self.0)(call)
    }
}

/// Changes responses by a function.
pub(crate) struct Changing<F>(pub(crate) F);

impl<F: FnMut(&CallInfo<'_>, &mut Outbound<'_>) + Send> Handler for Changing<F> {
    fn outbound(&mut self, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
        (self.0)(call, response);
    }
}

/// A server with one more handler behind the default ones.
pub(crate) fn with_handler<H: Handler + 'static>(make: impl Fn() -> H + Send + Sync + 'static) -> Harness {
    Harness::with(|builder| {
        builder.pipeline(move |pipeline, _| {
            pipeline.add_last("test", make());
        })
    })
}

/// A call of `echo` with metadata `wait`.
pub(crate) fn waiting(id: u64) -> Req {
    let mut request = Req::new(id, method::ECHO, (id.to_string(),));
    request.metadata.insert("wait", "").unwrap();
    request
}
