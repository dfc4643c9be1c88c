//! All that this process tells and counts.

use std::sync::LazyLock;

use crate::{KEY, PASSWORD};
pub(crate) use support::seen::Event;
use support::seen::{Seen, named};

static SEEN: LazyLock<Seen> = LazyLock::new(|| {
    let seen = Seen::default();
    tracing::subscriber::set_global_default(seen.clone()).unwrap();
    metrics::set_global_recorder(seen.clone()).unwrap();
    seen
});

/// From here on all is seen, of all threads.
pub(crate) fn listen() {
    LazyLock::force(&SEEN);
}

/// The events with these fields.
pub(crate) fn events(fields: &[(&str, &str)]) -> Vec<Event> {
    let has = |event: &Event| {
        fields
            .iter()
            .all(|(field, value)| event.get(*field).is_some_and(|found| found == value))
    };
    SEEN.events().into_iter().filter(has).collect()
}

/// What a series has come to; of a histogram, the sum. 0 where it is none.
pub(crate) fn value(name: &str, labels: &[(&str, &str)]) -> f64 {
    SEEN.series_seen()
        .get(&named(name, labels))
        .map_or(0.0, |(value, _)| *value)
}

/// How often a series was touched.
pub(crate) fn touched(name: &str, labels: &[(&str, &str)]) -> u64 {
    SEEN.series_seen()
        .get(&named(name, labels))
        .map_or(0, |(_, touched)| *touched)
}

pub(crate) fn decisions(limiter: &str, namespace: &str, outcome: &str) -> f64 {
    let labels = [
        ("limiter", limiter),
        ("namespace", namespace),
        ("outcome", outcome),
    ];
    value("tower_distributed_decisions_total", &labels)
}

/// Neither a key nor a password is in anything that was told or counted by any test so far.
pub(crate) fn assert_no_secrets() {
    let (events, series) = (SEEN.events(), SEEN.series_seen());
    for secret in [KEY, PASSWORD] {
        let has = |event: &&Event| event.values().any(|value| value.contains(secret));
        assert_eq!(events.iter().find(has), None);
        assert_eq!(series.keys().find(|name| name.contains(secret)), None);
    }
    for event in events.iter() {
        assert_eq!(event["target"], "tower_distributed", "{event:?}");
        assert!(
            !event["event"].is_empty() && !event["message"].is_empty(),
            "{event:?}"
        );
    }
}
