//! Events about the values that upstreams send.

use std::fmt;
use std::sync::OnceLock;

use crate::telemetry::Event;
use crate::telemetry::counters::Throttled;

/// The events about values of upstreams that a namespace's layers read. Their counters are created at the first event.
pub(crate) struct UpstreamEvents {
    namespace: String,
    ignored: OnceLock<Throttled>,
    clamped: OnceLock<Throttled>,
}

impl UpstreamEvents {
    pub(crate) fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ignored: OnceLock::new(),
            clamped: OnceLock::new(),
        }
    }

    /// This number of values of one response cannot be read.
    pub(crate) fn ignored(&self, values: u64) {
        let what = format_args!("{values} fields of a response cannot be read");
        self.tell(&self.ignored, Event::UpstreamFieldIgnored, values, what);
    }

    /// This number of limits of one response are out of range.
    pub(crate) fn clamped(&self, limits: u64) {
        let what = format_args!("{limits} limits of a response are out of range");
        self.tell(&self.clamped, Event::UpstreamFieldClamped, limits, what);
    }

    /// The usage that a response states is above the maximum.
    #[cfg(feature = "http")]
    pub(crate) fn usage_clamped(&self, told: u64, most: u32) {
        let what = format_args!("a response tells a usage of {told} tokens: {most} are charged");
        self.tell(&self.clamped, Event::UpstreamFieldClamped, 1, what);
    }

    fn tell(
        &self,
        often: &OnceLock<Throttled>,
        event: Event,
        count: u64,
        what: fmt::Arguments<'_>,
    ) {
        if count > 0 {
            often
                .get_or_init(|| Throttled::new(&self.namespace, event))
                .tell(what);
        }
    }
}

debug!(UpstreamEvents, namespace);
