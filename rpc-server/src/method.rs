//! What a server can be asked: its methods by their ids.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

use rpc_codec::CallKind;
use rpc_core::{Context, MethodId, Status};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    blocking::{Blocking, BlockingMethod},
    error::BuildError,
    limits::MethodLimits,
    ready::Ready,
    unary::{ConnMethod, Shape, Typed, Unary, Untouched},
};

/// What a service gives to a server: its methods, by name.
///
/// `#[sluicegate::service]` writes the implementation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a server type that `#[sluicegate::service]` made",
    label = "a trait `Library` has the server type `LibraryServer`",
    note = "to serve an implementation of `Library`, give `LibraryServer::new(..)`, or `LibraryServer::from_arc(..)` of an `Arc`"
)]
pub trait Service {
    /// The name on the wire, `package.Service`.
    fn name(&self) -> &str;

    /// Adds every method to the server.
    fn register(self, methods: &mut ServiceMethods<'_>);
}

/// Where a [`Service`] puts its methods.
pub struct ServiceMethods<'a> {
    service: String,
    methods: &'a mut Methods,
    limits: MethodLimits,
    /// What puts methods within layers.
    #[cfg(feature = "tower")]
    pub(crate) wrap: Option<crate::tower::Wrap>,
}

impl<'a> ServiceMethods<'a> {
    pub(crate) fn new(service: String, methods: &'a mut Methods) -> Self {
        Self {
            service,
            methods,
            limits: MethodLimits::new(),
            #[cfg(feature = "tower")]
            wrap: None,
        }
    }
}

impl ServiceMethods<'_> {
    /// Sets what limits each method of the service has that are added from now on, unless its own options
    /// or the server's configuration say otherwise. A number is the default of each method, not their sum.
    pub fn limits(&mut self, limits: MethodLimits) {
        self.limits = limits;
    }

    /// Adds a method that takes the tuple `A` and returns `R`, both in the call's codec.
    pub fn unary<A, R, F, Fut>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        F: Fn(&Context, A) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Status>> + Send + 'static,
    {
        self.add::<Typed<A, R>, F, Fut>(name, options, handler);
    }

    /// Adds a method that takes and returns bytes, untouched by any codec.
    pub fn unary_bytes<F, Fut>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        F: Fn(&Context, bytes::Bytes) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<bytes::Bytes, Status>> + Send + 'static,
    {
        self.add::<Untouched, F, Fut>(name, options, handler);
    }

    /// Adds a method that blocks its thread: every call runs on tokio's blocking pool, as far as
    /// [`crate::ServerBuilder::max_blocking_calls`] lets it. It takes the tuple `A` and returns `R`,
    /// both in the call's codec.
    ///
    /// `handler` cannot be stopped once it has begun; [`Context::is_cancelled`] tells it that nobody
    /// waits any more. [`MethodOptions::spawn`] means nothing here.
    pub fn blocking<A, R, F>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        A: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        F: Fn(&Context, A) -> Result<R, Status> + Clone + Send + Sync + 'static,
    {
        self.add_blocking::<Typed<A, R>, F>(name, options, handler);
    }

    /// As [`ServiceMethods::blocking`], for bytes untouched by any codec.
    pub fn blocking_bytes<F>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        F: Fn(&Context, bytes::Bytes) -> Result<bytes::Bytes, Status> + Clone + Send + Sync + 'static,
    {
        self.add_blocking::<Untouched, F>(name, options, handler);
    }

    fn add_blocking<S, F>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        S: Shape,
        F: Fn(&Context, S::Args) -> Result<S::Reply, Status> + Clone + Send + Sync + 'static,
    {
        #[cfg(feature = "tower")]
        if self.wrap.is_some() {
            self.methods.not_layered.get_or_insert_with(|| format!("{}/{name}", self.service));
        }
        let info = MethodInfo::new(&self.service, name, S::UNTOUCHED, false).blocking();
        let run = Run::Blocking(Box::new(Blocking::<S, F>::new(handler)));
        self.add_method(info, run, options);
    }

    pub(crate) fn add<S, F, Fut>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        S: Shape,
        F: Fn(&Context, S::Args) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<S::Reply, Status>> + Send + 'static,
    {
        #[cfg(feature = "tower")]
        if let Some(wrap) = self.wrap.clone() {
            let layers = wrap(crate::tower::Next::method::<S, F, Fut>(handler));
            return self.add_layered::<S>(name, options, layers);
        }
        self.add_polled::<S, F, Fut>(name, options, handler);
    }

    fn add_polled<S, F, Fut>(&mut self, name: &str, options: MethodOptions, handler: F)
    where
        S: Shape,
        F: Fn(&Context, S::Args) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<S::Reply, Status>> + Send + 'static,
    {
        let make = move |index, ready: &Arc<Ready>| -> Box<dyn ConnMethod> {
            Box::new(Unary::<S, F, Fut>::new(handler.clone(), index, Arc::clone(ready)))
        };
        let info = MethodInfo::new(&self.service, name, S::UNTOUCHED, options.spawn).of_kind(S::KIND);
        self.add_method(info, Run::Polled(Box::new(make)), options);
    }

    /// Adds a method that is answered by way of its layers.
    #[cfg(feature = "tower")]
    fn add_layered<S: Shape>(&mut self, name: &str, options: MethodOptions, layers: crate::tower::Next) {
        use crate::tower::{InLayers, Request};

        let path: Arc<str> = format!("{}/{name}", self.service).into();
        let handler = move |context: &Context, (codec, body, items)| {
            layers.answer(Request { context: context.clone(), method: Arc::clone(&path), codec, body, items })
        };
        self.add_polled::<InLayers<S>, _, _>(name, options, handler);
    }

    fn add_method(&mut self, info: MethodInfo, run: Run, options: MethodOptions) {
        let info = Arc::new(info.described(options));
        let (limits, service_limits) = (options.limits(), self.limits.clone());
        self.methods.add(Method { info, run, limits, service_limits });
        for alias in options.aliases {
            let path = if alias.contains('/') { (*alias).to_owned() } else { format!("{}/{alias}", self.service) };
            self.methods.add_alias(path);
        }
    }
}

impl fmt::Debug for ServiceMethods<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceMethods").field("service", &self.service).finish_non_exhaustive()
    }
}

/// How calls of one method are run, what else it is called, and how it is described.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MethodOptions {
    /// Run every call in a task of its own instead of polling it in its connection's task.
    pub spawn: bool,
    /// Calls in flight in the whole server, see [`MethodLimits::max_concurrent_calls`].
    pub max_concurrent_calls: Option<u64>,
    /// For how many calls a call counts, see [`MethodLimits::weight`].
    pub weight: Option<u32>,
    /// The pool in which calls count, see [`MethodLimits::pool`].
    pub pool: Option<&'static str>,
    exempt: bool,
    aliases: &'static [&'static str],
    signature: Option<Signature>,
    items: ItemTypes,
}

/// The types of items from the client and from the server as people write them; empty if nobody told.
type ItemTypes = (&'static str, &'static str);

/// A method as people write it.
#[derive(Clone, Copy, Debug)]
struct Signature {
    arguments: &'static [(&'static str, &'static str)],
    returns: &'static str,
}

impl MethodOptions {
    /// A method that is run as all are, and has one name.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            spawn: false,
            max_concurrent_calls: None,
            weight: None,
            pool: None,
            exempt: false,
            aliases: &[],
            signature: None,
            items: ("", ""),
        }
    }

    /// Further names on the wire by which the method is called: each a name of its service, or a whole
    /// path, `package.Service/method`. Handlers and figures see the method itself, whichever name a
    /// caller used; `#[rpc(alias = "..")]`.
    #[must_use]
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The names and types of its arguments, and the type it returns, as a description of the server
    /// tells them. They are for people, and nothing is checked against them.
    #[must_use]
    pub const fn signature(
        mut self,
        arguments: &'static [(&'static str, &'static str)],
        returns: &'static str,
    ) -> Self {
        self.signature = Some(Signature { arguments, returns });
        self
    }

    /// The types of its items from the client and from the server, each empty if there are none that way; for
    /// descriptions, as [`Self::signature`].
    #[must_use]
    pub const fn items(mut self, from_client: &'static str, from_server: &'static str) -> Self {
        self.items = (from_client, from_server);
        self
    }

    /// No limit of load turns its calls away. For what is ready at once and asked seldom.
    pub(crate) const fn exempt(mut self) -> Self {
        self.exempt = true;
        self
    }

    /// Whether every call runs in a task of its own; `#[rpc(spawn)]`.
    #[must_use]
    pub const fn spawn(mut self, spawn: bool) -> Self {
        self.spawn = spawn;
        self
    }

    /// Calls in flight in the whole server; `#[rpc(max_concurrent_calls = 8)]`.
    #[must_use]
    pub const fn max_concurrent_calls(mut self, max: u64) -> Self {
        self.max_concurrent_calls = Some(max);
        self
    }

    /// For how many calls a call counts; `#[rpc(weight = 4)]`.
    #[must_use]
    pub const fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// The pool in which calls count; `#[rpc(pool = "reports")]`.
    #[must_use]
    pub const fn pool(mut self, name: &'static str) -> Self {
        self.pool = Some(name);
        self
    }

    fn limits(&self) -> MethodLimits {
        let Self { max_concurrent_calls, weight, pool, .. } = *self;
        MethodLimits { max_concurrent_calls, weight, pool: pool.map(str::to_owned), ..MethodLimits::new() }
    }
}

/// One method of a server, as handlers see it.
#[derive(Debug)]
pub struct MethodInfo {
    id: MethodId,
    path: String,
    untouched: bool,
    blocking: bool,
    kind: CallKind,
    index: u32,
    weight: u32,
    exempt: bool,
    spawn: AtomicBool,
    slow_polls: AtomicU32,
    usual_reply: AtomicUsize,
    signature: Option<Signature>,
    items: ItemTypes,
}

impl MethodInfo {
    pub(crate) fn new(service: &str, name: &str, untouched: bool, spawn: bool) -> Self {
        Self {
            id: MethodId::of(service, name),
            path: format!("{service}/{name}"),
            untouched,
            blocking: false,
            kind: CallKind::Unary,
            index: 0,
            weight: 1,
            exempt: false,
            spawn: AtomicBool::new(spawn),
            slow_polls: AtomicU32::new(0),
            usual_reply: AtomicUsize::new(0),
            signature: None,
            items: ("", ""),
        }
    }

    fn described(self, options: MethodOptions) -> Self {
        Self { signature: options.signature, items: options.items, exempt: options.exempt, ..self }
    }

    /// The method as one that blocks, which never runs in its connection's task.
    fn blocking(self) -> Self {
        Self { blocking: true, spawn: AtomicBool::new(true), ..self }
    }

    fn of_kind(self, kind: CallKind) -> Self {
        Self { kind, ..self }
    }

    /// The id on the wire.
    pub fn id(&self) -> MethodId {
        self.id
    }

    /// `package.Service/Method`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The names and types of the arguments as people write them, if they were told.
    pub fn arguments(&self) -> Option<&'static [(&'static str, &'static str)]> {
        self.signature.map(|signature| signature.arguments)
    }

    /// The type that is returned as people write it, if it was told.
    pub fn returns(&self) -> Option<&'static str> {
        self.signature.map(|signature| signature.returns)
    }

    /// The types of items from the client and from the server as people write them; empty if there are none
    /// that way, or nobody told.
    pub fn items(&self) -> (&'static str, &'static str) {
        self.items
    }

    /// Whether the method takes and returns bytes that no codec touches.
    pub fn is_untouched(&self) -> bool {
        self.untouched
    }

    /// Which ways items of its calls go.
    pub fn kind(&self) -> CallKind {
        self.kind
    }

    /// Whether no limit of load turns its calls away, as with those of the built-in health service.
    pub fn is_exempt(&self) -> bool {
        self.exempt
    }

    /// Whether calls block the thread they run on, and so run on tokio's blocking pool.
    pub fn is_blocking(&self) -> bool {
        self.blocking
    }

    /// Whether calls run elsewhere than in their connection's task: because they block, by option, or
    /// because their polls were slow.
    pub fn is_spawned(&self) -> bool {
        self.spawn.load(Ordering::Relaxed)
    }

    /// For how many calls a call counts in rates, and in limits of calls in flight other than the
    /// method's own.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Which of the server's methods it is.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// How long replies are of late in bytes, where calls run in tasks: as the longest, or less.
    pub(crate) fn usual_reply(&self) -> usize {
        self.usual_reply.load(Ordering::Relaxed)
    }

    /// Notes how long a reply was. Long ones are forgotten slowly.
    pub(crate) fn note_reply(&self, bytes: usize) {
        let usual = self.usual_reply();
        let now = bytes.max(usual - usual / 8);
        if now != usual {
            self.usual_reply.store(now, Ordering::Relaxed);
        }
    }

    /// Notes how long a poll took. `true` when this one made the method run in tasks of its own.
    pub(crate) fn note_poll(&self, slow: bool) -> bool {
        if !slow {
            self.slow_polls.store(0, Ordering::Relaxed);
            return false;
        }
        // Several connections may count at once; the flag is set by one of them.
        self.slow_polls.fetch_add(1, Ordering::Relaxed) + 1 >= SLOW_POLLS && !self.spawn.swap(true, Ordering::Relaxed)
    }
}

/// So many slow polls on end make a method run in tasks of its own: one may be a page fault or a
/// preempted thread, this many are the method.
const SLOW_POLLS: u32 = 8;

pub(crate) struct Method {
    pub(crate) info: Arc<MethodInfo>,
    pub(crate) run: Run,
    /// As its options have them.
    pub(crate) limits: MethodLimits,
    /// As its service has them for each of its methods.
    pub(crate) service_limits: MethodLimits,
}

impl Method {
    /// Sets what its calls weigh, before there are any.
    pub(crate) fn set_weight(&mut self, weight: u32) {
        Arc::get_mut(&mut self.info).expect("nobody has seen it yet").weight = weight;
    }
}

/// How calls of a method are run.
pub(crate) enum Run {
    /// They are futures; this makes what polls those of one connection.
    Polled(MakeMethod),
    /// They block, on the blocking pool.
    Blocking(Box<dyn BlockingMethod>),
}

pub(crate) type MakeMethod = Box<dyn Fn(u32, &Arc<Ready>) -> Box<dyn ConnMethod> + Send + Sync>;

/// All methods of a server.
#[derive(Default)]
pub(crate) struct Methods {
    methods: Vec<Method>,
    by_id: HashMap<MethodId, u32, BuildHasherDefault<IdHasher>>,
    /// Further paths of methods.
    aliases: Vec<(String, u32)>,
    collision: Option<(String, String)>,
    /// A method that blocks and was to be layered.
    #[cfg(feature = "tower")]
    not_layered: Option<String>,
}

impl Methods {
    pub(crate) fn find(&self, id: MethodId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn get(&self, index: u32) -> &Method {
        &self.methods[index as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.methods.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Method> {
        self.methods.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Method> {
        self.methods.iter_mut()
    }

    /// The names of all services, each once and in order.
    pub(crate) fn services(&self) -> Vec<String> {
        let mut services: Vec<String> = Vec::new();
        for method in self.iter() {
            let path = method.info.path();
            let service = path.rsplit_once('/').map_or("", |(service, _)| service);
            if services.last().is_none_or(|last| last != service) && !services.iter().any(|known| known == service) {
                services.push(service.to_owned());
            }
        }
        services
    }

    /// The further paths of a method.
    pub(crate) fn aliases_of(&self, method: &MethodInfo) -> impl Iterator<Item = &str> {
        let of_method = move |index: u32| self.get(index).info.id == method.id;
        self.aliases.iter().filter(move |(_, index)| of_method(*index)).map(|(path, _)| &**path)
    }

    pub(crate) fn any_blocking(&self) -> bool {
        self.methods.iter().any(|method| method.info.is_blocking())
    }

    /// Whether every method has an id of its own.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        #[cfg(feature = "tower")]
        if let Some(method) = &self.not_layered {
            return Err(BuildError::LayeredBlocking { method: method.clone() });
        }
        match &self.collision {
            None => Ok(()),
            Some((first, second)) => Err(BuildError::MethodCollision { first: first.clone(), second: second.clone() }),
        }
    }

    fn add(&mut self, mut method: Method) {
        let index = self.methods.len() as u32;
        Arc::get_mut(&mut method.info).expect("nobody has seen it yet").index = index;
        self.name(method.info.id, &method.info.path, index);
        self.methods.push(method);
    }

    /// Another path of the method that was added last.
    fn add_alias(&mut self, path: String) {
        self.name(MethodId::of_path(&path), &path, self.methods.len() as u32 - 1);
        self.aliases.push((path, self.methods.len() as u32 - 1));
    }

    fn name(&mut self, id: MethodId, path: &str, index: u32) {
        if let Some(other) = self.by_id.insert(id, index) {
            let known = self.paths().find(|(known, _)| MethodId::of_path(known) == id);
            let first = known.map_or_else(|| format!("number {other}"), |(known, _)| known.to_owned());
            self.collision.get_or_insert((first, path.to_owned()));
        }
    }

    /// Every path and the method it names, aliases last.
    fn paths(&self) -> impl Iterator<Item = (&str, u32)> {
        let own = self.methods.iter().zip(0..).map(|(method, index)| (&*method.info.path, index));
        own.chain(self.aliases.iter().map(|(path, index)| (&**path, *index)))
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.methods.iter().map(|method| &method.info.path)).finish()
    }
}

/// A hasher for ids that are numbers already: one multiplication spreads them.
///
/// A peer may choose ids that collide. What they are looked up in is bounded, so a collision costs
/// it no more than a walk through that table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The odd number nearest to 2^64 / golden ratio, as in Fibonacci hashing (Knuth, TAOCP 6.4).
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(service: &str, names: &[&str]) -> Methods {
        let mut methods = Methods::default();
        let mut registry = ServiceMethods::new(service.to_owned(), &mut methods);
        for name in names {
            registry.unary(name, MethodOptions::default(), |_: &Context, (): ()| async { Ok(()) });
        }
        methods
    }

    #[test]
    fn methods_are_found_by_their_path() {
        let methods = register("a.B", &["one", "two"]);
        let found = methods.find(MethodId::of_path("a.B/two")).unwrap();
        assert_eq!(methods.get(found).info.path(), "a.B/two");
        assert_eq!(methods.find(MethodId::of_path("a.B/three")), None);
    }

    #[test]
    fn two_methods_of_one_id_are_refused_by_name() {
        let error = register("a.B", &["one", "one"]).check().unwrap_err();
        assert_eq!(error.to_string(), "the methods a.B/one and a.B/one have the same id");
    }

    #[test]
    fn a_method_is_found_by_its_aliases_too() {
        let mut methods = Methods::default();
        let mut registry = ServiceMethods::new("a.B".to_owned(), &mut methods);
        let options = MethodOptions::new().aliases(&["uno", "old.B/one"]);
        registry.unary("one", options, |_: &Context, (): ()| async { Ok(()) });
        for path in ["a.B/one", "a.B/uno", "old.B/one"] {
            let found = methods.find(MethodId::of_path(path)).unwrap();
            assert_eq!(methods.get(found).info.path(), "a.B/one");
        }
        assert!(methods.check().is_ok());
        let mut registry = ServiceMethods::new("old.B".to_owned(), &mut methods);
        registry.unary("one", MethodOptions::new(), |_: &Context, (): ()| async { Ok(()) });
        let error = methods.check().unwrap_err();
        assert_eq!(error.to_string(), "the methods old.B/one and old.B/one have the same id");
    }

    #[test]
    fn only_slow_polls_on_end_move_a_method_into_tasks() {
        let methods = register("a.B", &["one"]);
        let info = &methods.get(0).info;
        for _ in 0..SLOW_POLLS - 1 {
            assert!(!info.note_poll(true));
        }
        info.note_poll(false);
        for _ in 0..SLOW_POLLS - 1 {
            assert!(!info.note_poll(true));
        }
        assert!(!info.is_spawned());
        assert!(info.note_poll(true) && info.is_spawned());
        assert!(!info.note_poll(true), "it is told once");
    }
}
