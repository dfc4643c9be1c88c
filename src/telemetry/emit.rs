//! Events, told by `tracing` and counted by `metrics`.

use std::fmt;
use std::sync::Arc;

use super::names::{EVENTS, Event};
use super::series::Series;

/// What an event says besides its name and its text. What is `None` is left out.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(super) struct Fields<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) server: Option<&'a str>,
    pub(super) limiter: Option<&'a str>,
    /// How often it happened since the last such event.
    pub(super) count: Option<u64>,
    /// How long it took.
    pub(super) seconds: Option<f64>,
}

/// Tells of an event in a namespace, and counts it.
pub(crate) fn tell(namespace: &str, event: Event, detail: impl fmt::Display) {
    emit(event, Fields { namespace: Some(namespace), ..Fields::default() }, format_args!("{detail}"));
    series(event, "namespace", &namespace.into()).count(1);
}

/// What counts an event of a namespace or a server.
pub(super) fn series(event: Event, label: &'static str, value: &Arc<str>) -> Series {
    Series::new(&EVENTS, [(label, value), ("event", &event.name().into())])
}

#[cfg(feature = "tracing")]
pub(super) fn emit(event: Event, fields: Fields<'_>, detail: fmt::Arguments<'_>) {
    let Fields { namespace, server, limiter, count, seconds } = fields;
    macro_rules! at {
        ($level:ident) => {
            tracing::event!(
                target: super::names::TARGET,
                tracing::Level::$level,
                namespace,
                server,
                limiter,
                count,
                seconds,
                event = event.name(),
                "{detail}"
            )
        };
    }
    match event {
        Event::OutageEnded | Event::Reconnected | Event::SubscriptionBack => at!(INFO),
        Event::BreakerOpened | Event::BreakerHalfOpen | Event::BreakerClosed => at!(DEBUG),
        _ => at!(WARN),
    }
}

#[cfg(not(feature = "tracing"))]
pub(super) fn emit(_: Event, _: Fields<'_>, _: fmt::Arguments<'_>) {}
