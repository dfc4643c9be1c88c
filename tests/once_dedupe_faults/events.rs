//! The events that are told.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static TOLD: LazyLock<Mutex<HashMap<(String, String), usize>>> = LazyLock::new(|| {
    tracing::subscriber::set_global_default(Counts).unwrap();
    Mutex::default()
});

/// From here on events are counted.
pub(crate) fn listen() {
    LazyLock::force(&TOLD);
}

/// How often an event was told of a family.
pub(crate) fn told(family: &str, event: &str) -> usize {
    TOLD.lock().unwrap().get(&(family.to_owned(), event.to_owned())).copied().unwrap_or(0)
}

struct Counts;

#[derive(Default)]
struct Fields(HashMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Counts {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tower_distributed"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut field = |name| fields.0.remove(name).unwrap_or_default();
        let key = (field("namespace"), field("event"));
        *TOLD.lock().unwrap().entry(key).or_default() += 1;
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
