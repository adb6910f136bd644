//! What `tracing` is told on a thread: spans with their fields, and events with the span they were in.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Fields as text, by name.
pub(crate) type Fields = BTreeMap<String, String>;

/// A subscriber that keeps everything of ours, and of tests; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Traces(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    spans: Vec<Span>,
    events: Vec<(Option<usize>, Fields)>,
    /// Warnings and errors.
    troubles: usize,
    /// Spans that are entered, the innermost last. Tests have one thread, or ask for one span only.
    entered: Vec<usize>,
}

/// A span as it is told.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) name: &'static str,
    pub(crate) fields: Fields,
    pub(crate) handles: usize,
}

impl Traces {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap()
    }

    /// The spans of this name so far.
    pub(crate) fn spans(&self, name: &str) -> Vec<Span> {
        self.kept().spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// The events that say `message`, with the fields of the span they were in.
    pub(crate) fn events(&self, message: &str) -> Vec<(Option<Span>, Fields)> {
        let kept = self.kept();
        let said = kept.events.iter().filter(|(_, fields)| fields.get("message").is_some_and(|text| text == message));
        said.map(|(span, fields)| (span.map(|at| kept.spans[at].clone()), fields.clone())).collect()
    }

    /// How many events were warnings or errors.
    pub(crate) fn troubles(&self) -> usize {
        self.kept().troubles
    }
}

struct Note<'a>(&'a mut Fields);

impl Visit for Note<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

fn at(id: &Id) -> usize {
    usize::try_from(id.into_u64()).unwrap() - 1
}

impl Subscriber for Traces {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["rpc_", "calls", "client"].iter().any(|ours| metadata.target().starts_with(ours))
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        span.record(&mut Note(&mut fields));
        let mut kept = self.kept();
        kept.spans.push(Span { name: span.metadata().name(), fields, handles: 1 });
        Id::from_u64(kept.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Note(&mut self.kept().spans[at(span)].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Note(&mut fields));
        let mut kept = self.kept();
        let within = kept.entered.last().copied();
        kept.events.push((within, fields));
        kept.troubles += usize::from(*event.metadata().level() <= Level::WARN);
    }

    fn enter(&self, span: &Id) {
        self.kept().entered.push(at(span));
    }

    fn exit(&self, span: &Id) {
        let mut kept = self.kept();
        let innermost = kept.entered.iter().rposition(|entered| *entered == at(span)).expect("it was entered");
        kept.entered.remove(innermost);
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.kept().spans[at(span)].handles += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let span = &mut self.kept().spans[at(&span)];
        span.handles -= 1;
        span.handles == 0
    }
}
