//! A recorder of the `metrics` facade that a test asks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// Keeps the last value of each counter and gauge, and how often each histogram was recorded to.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<BTreeMap<String, Arc<Value>>>>);

#[derive(Default)]
struct Value(AtomicU64);

impl Kept {
    fn value(&self, key: &Key) -> Arc<Value> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name().trim_start_matches(PREFIX), labels.join(","));
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }

    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).unwrap_or_else(|| panic!("no {name}")).0.load(SeqCst)
    }
}

/// The names that the docs of an exporter list with their labels, and that it has to be the names that it knows.
pub(crate) fn documented(exporter: &str) -> BTreeMap<&str, Vec<&str>> {
    let code = exporter.lines().filter(|line| !line.trim_start().starts_with("//"));
    let known: BTreeSet<_> = code.flat_map(|line| line.split('"')).filter(|text| text.starts_with(PREFIX)).collect();
    let rows = exporter.lines().filter(|line| line.starts_with("/// | `"));
    let documented: BTreeMap<_, _> = rows
        .map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let labels = cells[3].split(", ").map(|label| label.trim_matches('`')).filter(|label| !label.is_empty());
            (cells[1].trim_matches('`'), labels.collect())
        })
        .collect();
    assert_eq!(documented.keys().copied().collect::<BTreeSet<_>>(), known, "what is listed, and what is exported");
    documented
}

const PREFIX: &str = "sluicegate_";

impl Kept {
    /// Whatever was handed over has a name and labels that are documented.
    pub(crate) fn has_only(&self, documented: &BTreeMap<&str, Vec<&str>>) {
        for key in self.0.lock().unwrap().keys() {
            let (name, labels) = key.trim_end_matches('}').split_once('{').expect("a name and labels");
            let labels: Vec<_> = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0)).collect();
            assert_eq!(documented.get(&*format!("{PREFIX}{name}")), Some(&labels), "{key}");
        }
    }
}

impl CounterFn for Value {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, SeqCst);
    }

    fn absolute(&self, value: u64) {
        self.0.store(value, SeqCst);
    }
}

impl GaugeFn for Value {
    fn increment(&self, _: f64) {}

    fn decrement(&self, _: f64) {}

    fn set(&self, value: f64) {
        self.0.store(value as u64, SeqCst);
    }
}

impl HistogramFn for Value {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.value(key).into()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.value(key).into()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.value(key).into()
    }
}
