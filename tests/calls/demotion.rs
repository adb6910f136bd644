//! A method that computes is moved away from its connection, and whoever reads the log hears of it.
//!
//! The one test here has the process to itself: what is logged elsewhere decides what is logged at all.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::support::{Harness, Req, assert_idle_soon, method};

/// Keeps what is logged as a warning.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

#[tokio::test]
async fn a_method_that_computes_is_moved_after_eight_slow_polls_and_that_is_told_once() {
    let warnings = Warnings::default();
    let _logging = tracing::subscriber::set_default(warnings.clone());
    let harness = Harness::new();
    let mut peer = harness.peer().await;
    let spin = |id| Req::new(id, method::SPIN, (1_000_u64,)).bytes();
    let mut calls = 0;
    while harness.snapshot().methods_demoted == 0 {
        calls += 1;
        assert!(calls <= 20, "it is polled in place for ever");
        peer.send(&spin(calls)).await;
        let () = peer.reply(calls).await;
    }
    // The first one is what makes the connection look.
    assert_eq!(calls, 9);
    for id in 10..40 {
        peer.send(&spin(id)).await;
        let () = peer.reply(id).await;
    }
    // Another connection is told nothing new.
    let mut other = harness.peer().await;
    for id in 1..20 {
        other.send(&spin(id)).await;
        let () = other.reply(id).await;
    }
    assert_eq!(harness.snapshot().methods_demoted, 1);
    let told: Vec<_> = std::mem::take(&mut *warnings.0.lock().unwrap());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("method=\"test.Probe/spin\"") && told[0].contains("tasks of their own"), "{told:?}");
    other.part().await;
    peer.part().await;
    assert_idle_soon(&harness.handle).await;
}
