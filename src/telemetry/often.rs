//! Events that can happen at each request.

use std::fmt;
use std::sync::Arc;

use super::emit::series;
#[cfg(feature = "tracing")]
use super::emit::{Fields, emit};
use super::names::Event;
use super::series::Series;

/// Counts every occurrence, and emits at most one event a second.
pub(crate) struct Often {
    #[cfg(feature = "tracing")]
    told: (Event, Arc<str>, super::throttle::Throttle),
    counted: Series,
}

impl Often {
    pub(crate) fn new(namespace: &str, event: Event) -> Self {
        let namespace: Arc<str> = namespace.into();
        Self {
            counted: series(event, "namespace", &namespace),
            #[cfg(feature = "tracing")]
            told: (event, namespace, super::throttle::Throttle::new()),
        }
    }

    #[cfg_attr(not(feature = "tracing"), allow(unused_variables))]
    pub(crate) fn tell(&self, detail: impl fmt::Display) {
        self.counted.count(1);
        #[cfg(feature = "tracing")]
        {
            let (event, namespace, throttle) = &self.told;
            if let Some(count) = throttle.note(1) {
                let fields = Fields { namespace: Some(namespace), count: Some(count), ..Fields::default() };
                emit(*event, fields, format_args!("{detail}"));
            }
        }
    }
}
