//! Events: emitted by `tracing` and counted by `metrics`.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::names::{EVENTS, Event};
use crate::error::Error;
use crate::telemetry::counters::Series;
use crate::telemetry::throttle::Throttle;

/// The fields of an event besides its name and its text. A field that is `None` is omitted.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(super) struct Fields<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) server: Option<&'a str>,
    pub(super) limiter: Option<&'a str>,
    /// How many times it happened since the previous event of this kind.
    pub(super) count: Option<u64>,
    /// How long it took.
    pub(super) seconds: Option<f64>,
}

/// Emits and counts an event in a namespace.
pub(crate) fn tell(namespace: &str, event: Event, detail: impl fmt::Display) {
    if !super::IS_ON {
        return;
    }
    emit(
        event,
        Fields {
            namespace: Some(namespace),
            ..Fields::default()
        },
        format_args!("{detail}"),
    );
    series(event, "namespace", &namespace.into()).count(1);
}

/// The number of throttles for the texts of misconfigured layers. Texts with the same throttle share one event a
/// second.
const TEXTS: usize = 64;

/// Reports that a layer or its primitive is misconfigured, if this is why a request was refused: at most once a second
/// for each text, which names the remedy. A missing extension has a separate event.
#[cold]
pub(crate) fn tell_invalid(error: &Error) {
    const LAYERS: &str = "layers";
    static THROTTLES: [Throttle; TEXTS] = [const { Throttle::new() }; TEXTS];
    if !super::IS_ON || error.is_no_extension() {
        return;
    }
    series(Event::Misconfigured, "namespace", &LAYERS.into()).count(1);
    let text = error.to_string();
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    if let Some(count) = THROTTLES[hasher.finish() as usize % TEXTS].note(1) {
        let fields = Fields {
            namespace: Some(LAYERS),
            count: Some(count),
            ..Fields::default()
        };
        emit(Event::Misconfigured, fields, format_args!("{text}"));
    }
}

/// The counter for an event in a namespace or of a server.
pub(super) fn series(event: Event, label: &'static str, value: &Arc<str>) -> Series {
    Series::new(&EVENTS, [(label, value), ("event", &event.name().into())])
}

#[cfg(feature = "tracing")]
pub(super) fn emit(event: Event, fields: Fields<'_>, detail: fmt::Arguments<'_>) {
    let Fields {
        namespace,
        server,
        limiter,
        count,
        seconds,
    } = fields;
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
        Event::OutageEnded
        | Event::Reconnected
        | Event::SubscriptionBack
        | Event::FunctionsMissing
        | Event::SettingChanged => at!(INFO),
        Event::Misconfigured => at!(ERROR),
        Event::BreakerOpened | Event::BreakerHalfOpen | Event::BreakerClosed => at!(DEBUG),
        _ => at!(WARN),
    }
}

#[cfg(not(feature = "tracing"))]
pub(super) fn emit(_: Event, _: Fields<'_>, _: fmt::Arguments<'_>) {}
