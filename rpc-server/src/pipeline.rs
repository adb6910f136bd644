//! The ordered list of handlers that every call of a connection passes: inbound first to last,
//! outbound last to first.

use std::{fmt, pin::Pin, time::Instant};

use rpc_core::{CallId, ConnectionInfo, Metadata, Refusal, Status, limit::ConcurrencyPermit};

use crate::{
    call::Call,
    method::MethodInfo,
    panics::{contain, drop_contained},
};

/// A stage of a connection's pipeline.
///
/// One is made for every connection and holds that connection's state; what connections share is an
/// `Arc` it was given. It runs in the connection's loop, so it must not block. What it decides it
/// returns; the connection acts.
///
/// ```
/// use rpc_core::Status;
/// use rpc_server::{Call, Decision, Handler};
///
/// /// Turns away who does not know the word.
/// struct Password;
///
/// impl Handler for Password {
///     fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
///         match call.metadata().get_str("password") {
///             Some("mellon") => Decision::Pass,
///             _ => Decision::Answer(Status::unauthenticated("speak, friend, and enter")),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler of a pipeline",
    label = "it does not implement `sluicegate::server::Handler`",
    note = "`impl Handler for {Self}` with the methods that it needs, such as `fn inbound(&mut self, call: &mut Call<'_>) -> Decision`"
)]
pub trait Handler: Send {
    /// What the handler wants to see; asked once, when it is added. What it does not want costs
    /// nothing. Everything by default.
    fn interest() -> Interest
    where
        Self: Sized,
    {
        Interest::ALL
    }

    /// Whether it limits load; asked once, when it is added. Such a handler does not see calls that are
    /// exempt from limits, which are those of the built-in health service. Not by default.
    fn limits_load() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// The connection's handshake is done.
    fn connected(&mut self, connection: &ConnectionInfo) {
        let _ = connection;
    }

    /// A call on its way in, once for each call. Its body has not been decoded, and may not have come yet, see
    /// [`Call::is_whole`]. A handler that lets it wait for the rest with [`Decision::AwaitBody`] is asked again
    /// when that is there. A handler that refuses a call for
    /// [`rpc_core::RefusalReason::ConcurrencyLimit`], or lets it wait and otherwise would refuse it for
    /// [`rpc_core::RefusalReason::QueueTimeout`], is asked again if writing finished responses gave permits
    /// back.
    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let _ = call;
        Decision::Pass
    }

    /// A response on its way out, whoever made it: the service, a handler further in, or the
    /// connection for an expired call. Handlers before the one that refused a call see the refusal.
    fn outbound(&mut self, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
        let _ = (call, response);
    }

    /// The bytes of a response other than a refusal have left; the call's permit is given back right
    /// after. A response that is lost with its connection is not told.
    fn written(&mut self, call: &CallInfo<'_>) {
        let _ = call;
    }

    /// The connection is gone, and every call of it has ended.
    fn closed(&mut self) {}
}

/// What a handler wants to see, besides calls on their way in; see [`Handler::interest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interest {
    /// Responses other than refusals on their way out.
    pub answers: bool,
    /// Refusals on their way out.
    pub refusals: bool,
    /// Responses that have been written.
    pub written: bool,
}

impl Interest {
    /// Everything.
    pub const ALL: Self = Self { answers: true, refusals: true, written: true };
    /// Calls on their way in, and nothing else.
    pub const INBOUND: Self = Self { answers: false, refusals: false, written: false };
    /// Calls on their way in, and refusals.
    pub const REFUSALS: Self = Self { refusals: true, ..Self::INBOUND };

    const fn or(self, other: Self) -> Self {
        Self {
            answers: self.answers || other.answers,
            refusals: self.refusals || other.refusals,
            written: self.written || other.written,
        }
    }
}

/// What a handler decides about a call on its way in.
#[non_exhaustive]
pub enum Decision {
    /// On to the next handler.
    Pass,
    /// Turned away for a reason of the framework's, at no cost.
    Refuse(Refusal),
    /// Answered here; the service is not called.
    Answer(Status),
    /// Not before the body is there: the call stops here until all parts of it have come, while later calls go
    /// on, and then the handler is asked about it again. It counts in
    /// [`max_concurrent_calls_per_connection`](crate::ServerBuilder::max_concurrent_calls_per_connection), its
    /// body must come at [`min_body_rate`](crate::ServerBuilder::min_body_rate), and its deadline and its
    /// caller's cancellation end it, never executed. Of a call that [is whole](Call::is_whole), and as what a
    /// future decides, it is [`Decision::Pass`].
    AwaitBody,
    /// The call stops here until the future has decided, while later calls go on. It resumes
    /// behind this handler. Its deadline and its caller's cancellation end the wait and drop the
    /// future.
    Wait(Pin<Box<dyn Future<Output = Self> + Send>>),
    /// As [`Decision::Wait`], but not for ever.
    WaitUntil {
        /// When the wait ends.
        until: Instant,
        /// What the call is told if the future has not decided by then.
        otherwise: Refusal,
        /// What decides; dropped when the wait ends.
        future: Pin<Box<dyn Future<Output = Self> + Send>>,
    },
    /// On to the next handler, with a permit that the call carries from now on. What a future decides
    /// that has waited for one.
    Carry(ConcurrencyPermit),
    /// The connection is closed with this message for the peer; calls in flight are cancelled.
    Close(String),
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("Pass"),
            Self::Refuse(refusal) => f.debug_tuple("Refuse").field(refusal).finish(),
            Self::Answer(status) => f.debug_tuple("Answer").field(status).finish(),
            Self::AwaitBody => f.write_str("AwaitBody"),
            Self::Wait(_) => f.write_str("Wait"),
            Self::WaitUntil { until, otherwise, .. } => {
                f.debug_struct("WaitUntil").field("until", until).field("otherwise", otherwise).finish_non_exhaustive()
            }
            Self::Carry(permit) => f.debug_tuple("Carry").field(permit).finish(),
            Self::Close(message) => f.debug_tuple("Close").field(message).finish(),
        }
    }
}

/// A call whose response is on its way out.
#[derive(Clone, Copy, Debug)]
pub struct CallInfo<'a> {
    /// The id on its connection.
    pub id: CallId,
    /// The method, if the server has it.
    pub method: Option<&'a MethodInfo>,
}

/// A response on its way out.
#[derive(Debug)]
pub struct Outbound<'a> {
    answer: Answer<'a>,
    metadata: Metadata,
}

/// What a response says.
#[derive(Debug)]
#[non_exhaustive]
pub enum Answer<'a> {
    /// The service's reply, as it was encoded.
    Reply(&'a [u8]),
    /// A refusal; it is sent as it is.
    Refusal(&'a Refusal),
    /// A status.
    Status(Status),
}

impl<'a> Outbound<'a> {
    pub(crate) fn new(answer: Answer<'a>) -> Self {
        Self { answer, metadata: Metadata::new() }
    }

    /// What the response says.
    pub fn answer(&self) -> &Answer<'a> {
        &self.answer
    }

    /// Says `status` instead of what the response said. A refusal stays a refusal.
    pub fn replace(&mut self, status: Status) {
        if !matches!(self.answer, Answer::Refusal(_)) {
            self.answer = Answer::Status(status);
        }
    }

    /// The metadata that travels beside a reply. Metadata of a status is the status's own.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    pub(crate) fn into_parts(self) -> (Option<Status>, Metadata) {
        match self.answer {
            Answer::Status(status) => (Some(status), self.metadata),
            Answer::Reply(_) | Answer::Refusal(_) => (None, self.metadata),
        }
    }
}

/// The handlers of one connection, in order, by name.
#[derive(Default)]
pub struct Pipeline {
    handlers: Vec<Named>,
    /// What any of them wants to see.
    interest: Option<Interest>,
}

struct Named {
    name: &'static str,
    interest: Interest,
    limits_load: bool,
    handler: Box<dyn Handler>,
}

impl Pipeline {
    /// A pipeline without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler in front of all others.
    pub fn add_first(&mut self, name: &'static str, handler: impl Handler + 'static) -> &mut Self {
        self.insert(0, name, handler)
    }

    /// Adds a handler behind all others.
    pub fn add_last(&mut self, name: &'static str, handler: impl Handler + 'static) -> &mut Self {
        self.insert(self.handlers.len(), name, handler)
    }

    /// Adds a handler before the one named `other`.
    ///
    /// # Panics
    ///
    /// There is no handler of that name.
    pub fn add_before(&mut self, other: &str, name: &'static str, handler: impl Handler + 'static) -> &mut Self {
        self.insert(self.position(other), name, handler)
    }

    /// Adds a handler behind the one named `other`.
    ///
    /// # Panics
    ///
    /// There is no handler of that name.
    pub fn add_after(&mut self, other: &str, name: &'static str, handler: impl Handler + 'static) -> &mut Self {
        self.insert(self.position(other) + 1, name, handler)
    }

    /// Takes the handler named `name` out; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.handlers.len();
        self.handlers.retain(|named| named.name != name);
        self.interest = self.handlers.iter().map(|named| named.interest).reduce(Interest::or);
        self.handlers.len() < before
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.handlers.iter().map(|named| named.name)
    }

    /// Tells every handler that the connection is open.
    pub fn connected(&mut self, connection: &ConnectionInfo) {
        self.handlers.iter_mut().for_each(|named| named.handler.connected(connection));
    }

    /// Passes `call` through the handlers from position `from` on. The first that does not let it
    /// pass stops it: its position, and its decision.
    pub fn inbound(&mut self, from: usize, call: &mut Call<'_>) -> Option<(usize, Decision)> {
        let exempt = call.method().is_exempt();
        for (at, named) in self.handlers.iter_mut().enumerate().skip(from) {
            if exempt && named.limits_load {
                continue;
            }
            match named.handler.inbound(call) {
                Decision::Pass => {}
                decision => return Some((at, decision)),
            }
        }
        None
    }

    /// Whether any handler wants to see responses other than refusals.
    pub fn wants_answers(&self) -> bool {
        self.interest.is_some_and(|interest| interest.answers)
    }

    /// Whether any handler wants to see what has been written.
    pub fn wants_written(&self) -> bool {
        self.interest.is_some_and(|interest| interest.written)
    }

    /// Passes a response through the handlers before position `upto`, last to first.
    pub fn outbound(&mut self, upto: usize, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
        for named in self.handlers[..upto].iter_mut().rev() {
            let refused = matches!(response.answer, Answer::Refusal(_));
            if if refused { named.interest.refusals } else { named.interest.answers } {
                named.handler.outbound(call, response);
            }
        }
    }

    /// Tells the handlers, last to first, that a response has been written.
    pub fn written(&mut self, call: &CallInfo<'_>) {
        for named in self.handlers.iter_mut().rev().filter(|named| named.interest.written) {
            named.handler.written(call);
        }
    }

    /// Tells the handlers, last to first, that the connection is gone.
    pub fn closed(&mut self) {
        for named in self.handlers.iter_mut().rev() {
            named.handler.closed();
        }
    }

    /// Tells the handlers, last to first, that the connection is gone, and drops them; how many panics
    /// there were. One that panics does not keep the others from being told.
    pub(crate) fn close(&mut self) -> u64 {
        let closed = self.handlers.iter_mut().rev().map(|named| contain("a handler", || named.handler.closed()));
        let panics = closed.filter(Result::is_err).count() as u64;
        panics + self.clear()
    }

    /// Drops the handlers one by one; how many of the drops panicked.
    fn clear(&mut self) -> u64 {
        self.interest = None;
        self.handlers.drain(..).rev().map(|named| u64::from(drop_contained("a handler's drop", named))).sum()
    }

    /// The number of handlers.
    pub fn len(&self) -> usize {
        self.handlers.len()
    }

    /// Whether there are no handlers.
    pub fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    fn insert<H: Handler + 'static>(&mut self, at: usize, name: &'static str, handler: H) -> &mut Self {
        assert!(!self.names().any(|known| known == name), "the pipeline has a handler named {name}");
        let interest = H::interest();
        self.interest = Some(self.interest.map_or(interest, |known| known.or(interest)));
        self.handlers.insert(at, Named { name, interest, limits_load: H::limits_load(), handler: Box::new(handler) });
        self
    }

    fn position(&self, name: &str) -> usize {
        let found = self.names().position(|known| known == name);
        found.unwrap_or_else(|| {
            let names: Vec<_> = self.names().collect();
            panic!("the pipeline has no handler named {name:?}, only those that are configured: {names:?}")
        })
    }
}

/// One by one: two panics at once would end the process.
impl Drop for Pipeline {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use rpc_core::RefusalReason;

    use super::*;
    use crate::call::testing::CallParts;

    type Log = Arc<Mutex<Vec<String>>>;

    struct Noting {
        name: &'static str,
        log: Log,
        refuse: bool,
    }

    impl Noting {
        fn note(&self, what: &str) {
            self.log.lock().unwrap().push(format!("{} {what}", self.name));
        }
    }

    impl Handler for Noting {
        fn inbound(&mut self, _: &mut Call<'_>) -> Decision {
            self.note("in");
            if self.refuse { Decision::Refuse(Refusal::new(RefusalReason::Draining)) } else { Decision::Pass }
        }

        fn outbound(&mut self, _: &CallInfo<'_>, response: &mut Outbound<'_>) {
            self.note("out");
            response.metadata_mut().insert("by", self.name).unwrap();
        }

        fn written(&mut self, _: &CallInfo<'_>) {
            self.note("written");
        }

        fn closed(&mut self) {
            self.note("closed");
        }
    }

    struct InboundOnly;

    impl Handler for InboundOnly {
        fn interest() -> Interest {
            Interest::INBOUND
        }

        fn outbound(&mut self, _: &CallInfo<'_>, _: &mut Outbound<'_>) {
            panic!("it did not want to see this");
        }

        fn written(&mut self, _: &CallInfo<'_>) {
            panic!("it did not want to see this");
        }
    }

    fn noting(name: &'static str, log: &Log) -> Noting {
        Noting { name, log: Arc::clone(log), refuse: false }
    }

    fn taken(log: &Log) -> Vec<String> {
        std::mem::take(&mut log.lock().unwrap())
    }

    const INFO: CallInfo<'_> = CallInfo { id: CallId::new(1, 0), method: None };

    #[test]
    fn calls_pass_first_to_last_and_responses_last_to_first() {
        let log = Log::default();
        let mut pipeline = Pipeline::new();
        pipeline.add_last("b", noting("b", &log)).add_last("d", noting("d", &log));
        pipeline.add_before("b", "a", noting("a", &log)).add_after("b", "c", InboundOnly);
        assert_eq!(pipeline.names().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        let mut parts = CallParts::default();
        assert!(pipeline.inbound(0, &mut parts.call()).is_none());
        assert_eq!(taken(&log), ["a in", "b in", "d in"]);
        let mut response = Outbound::new(Answer::Reply(b"body"));
        pipeline.outbound(pipeline.len(), &INFO, &mut response);
        assert_eq!(taken(&log), ["d out", "b out", "a out"]);
        assert_eq!(response.into_parts().1.iter().count(), 3);
        pipeline.written(&INFO);
        pipeline.closed();
        assert_eq!(taken(&log).len(), 6);
    }

    #[test]
    fn a_refused_call_stops_and_only_the_handlers_before_see_the_refusal() {
        let log = Log::default();
        let mut pipeline = Pipeline::new();
        pipeline.add_last("a", noting("a", &log));
        pipeline.add_last("b", Noting { refuse: true, ..noting("b", &log) });
        pipeline.add_last("c", noting("c", &log));
        let mut parts = CallParts::default();
        let (at, decision) = pipeline.inbound(0, &mut parts.call()).unwrap();
        let Decision::Refuse(refusal) = decision else { panic!("{decision:?}") };
        assert_eq!((at, refusal.reason()), (1, RefusalReason::Draining));
        let mut response = Outbound::new(Answer::Refusal(&refusal));
        pipeline.outbound(at, &INFO, &mut response);
        response.replace(Status::internal("not this"));
        assert!(matches!(response.answer(), Answer::Refusal(_)), "a refusal stays a refusal");
        assert_eq!(taken(&log), ["a in", "b in", "a out"]);
    }

    #[test]
    fn a_call_resumes_at_its_place() {
        let log = Log::default();
        let mut pipeline = Pipeline::new();
        pipeline.add_last("a", noting("a", &log)).add_last("b", noting("b", &log));
        pipeline.inbound(1, &mut CallParts::default().call());
        assert_eq!(taken(&log), ["b in"]);
    }

    #[test]
    fn nothing_is_shown_when_nobody_wants_to_see_it() {
        let mut pipeline = Pipeline::new();
        pipeline.add_last("quiet", InboundOnly);
        assert!(!pipeline.wants_answers() && !pipeline.wants_written());
        pipeline.outbound(1, &INFO, &mut Outbound::new(Answer::Reply(&[])));
        pipeline.written(&INFO);
        pipeline.add_last("curious", noting("curious", &Log::default()));
        assert!(pipeline.wants_answers() && pipeline.wants_written());
        assert!(pipeline.remove("curious") && !pipeline.remove("curious"));
        assert!(!pipeline.wants_answers());
    }
    #[test]
    #[should_panic = r#"no handler named "concurency", only those that are configured: ["a", "concurrency"]"#]
    fn a_name_that_is_not_there_is_told_beside_those_that_are() {
        let mut pipeline = Pipeline::new();
        pipeline.add_last("a", InboundOnly).add_last("concurrency", InboundOnly);
        pipeline.add_before("concurency", "b", InboundOnly);
    }
}
