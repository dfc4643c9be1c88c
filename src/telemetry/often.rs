//! Events that can happen at each request.

use std::fmt;
use std::sync::Arc;

use super::names::Event;
use crate::telemetry::emit::{Fields, emit, series};
use crate::telemetry::series::Series;
use crate::telemetry::throttle::Throttle;

/// Counts every occurrence, and emits at most one event a second.
pub(crate) struct Throttled {
    event: Event,
    namespace: Arc<str>,
    throttle: Throttle,
    counted: Series,
}

impl Throttled {
    pub(crate) fn new(namespace: &str, event: Event) -> Self {
        let namespace: Arc<str> = namespace.into();
        let counted = series(event, "namespace", &namespace);
        Self {
            event,
            namespace,
            throttle: Throttle::new(),
            counted,
        }
    }

    pub(crate) fn tell(&self, detail: impl fmt::Display) {
        self.counted.count(1);
        if let Some(count) = self.throttle.note(1) {
            let fields = Fields {
                namespace: Some(&self.namespace),
                count: Some(count),
                ..Fields::default()
            };
            emit(self.event, fields, format_args!("{detail}"));
        }
    }
}
