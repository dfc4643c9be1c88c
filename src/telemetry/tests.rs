//! Tests that all names are as documented. Changing a name fails here.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::names::{Event, METRICS, Outcome};

const PAGE: &str = include_str!("../docs/telemetry.md");

const EVENTS: [&str; 34] = [
    "outage_began",
    "outage_ended",
    "breaker_opened",
    "breaker_half_open",
    "breaker_closed",
    "reconnected",
    "subscription_lost",
    "subscription_back",
    "functions_missing",
    "overloaded",
    "lease_lost",
    "body_outlived_lease",
    "degraded",
    "answer_too_large",
    "answer_not_encodable",
    "answer_over_budget",
    "answer_not_published",
    "flight_lost",
    "flight_given_up",
    "detached_given_up",
    "answer_foreign",
    "answer_garbled",
    "claim_lost",
    "claim_not_confirmed",
    "filter_nearly_full",
    "filter_full",
    "peer_missing",
    "extension_missing",
    "misconfigured",
    "upstream_field_ignored",
    "upstream_field_clamped",
    "forwarding_header_untrusted",
    "setting_changed",
    "setting_ignored",
];

const OUTCOMES: [&str; 10] = [
    "admitted",
    "refused",
    "refused_from_cache",
    "shared",
    "failed_open",
    "failed_closed",
    "local_share",
    "overloaded",
    "shadowed",
    "filter_full",
];

/// The name, kind, labels and unit of each metric.
const PROMISED: [[&str; 4]; 14] = [
    ["tower_distributed_decisions_total", "counter", "limiter, namespace, outcome", "decisions"],
    ["tower_distributed_events_total", "counter", "event, namespace, server", "events"],
    ["tower_distributed_call_seconds", "histogram", "server, result", "seconds"],
    ["tower_distributed_batch_operations", "histogram", "server", "operations"],
    ["tower_distributed_queue_operations", "gauge", "server", "operations"],
    ["tower_distributed_reconnects_total", "counter", "server", "connections"],
    ["tower_distributed_breakers_open", "gauge", "server", "breakers"],
    ["tower_distributed_leases_held", "gauge", "kind, namespace", "leases"],
    ["tower_distributed_leases_lost_total", "counter", "kind, namespace", "leases"],
    ["tower_distributed_leases_renewed_total", "counter", "kind, namespace", "renewals"],
    ["tower_distributed_filter_fill_ratio", "gauge", "namespace", "ratio"],
    ["tower_distributed_adaptive_limit", "gauge", "namespace", "permits"],
    ["tower_distributed_adaptive_in_flight", "gauge", "namespace", "permits"],
    ["tower_distributed_adaptive_latency_seconds", "gauge", "namespace", "seconds"],
];

/// The rows of the table in the documentation whose first column has this title, by their first columns.
fn table(title: &str) -> BTreeMap<String, Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.replace('`', "").trim().to_owned()).collect()
    };
    let lines = PAGE.lines().skip_while(|line| !line.starts_with(&format!("| {title} |"))).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|')).map(cells);
    rows.map(|row| (row[0].clone(), row[1..].to_vec())).collect()
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn every_event_has_its_promised_name_and_a_row_in_the_table() {
    let names: Vec<_> = Event::ALL.iter().map(|event| event.name()).collect();
    assert_eq!(names, EVENTS);
    let table = table("event");
    assert_eq!(table.keys().cloned().collect::<BTreeSet<_>>(), set(EVENTS));
    for (event, row) in table {
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&row[0].as_str()), "{event}: {row:?}");
        assert!(!row[2].is_empty(), "{event}");
    }
}

#[test]
fn every_metric_has_its_promised_name_labels_and_unit_and_a_row_in_the_table() {
    let declared: Vec<_> = METRICS
        .iter()
        .map(|metric| [metric.name, metric.kind, &metric.labels.join(", "), metric.unit].map(str::to_owned))
        .collect();
    assert_eq!(declared, PROMISED.map(|metric| metric.map(str::to_owned)));
    let table = table("metric");
    assert_eq!(table.len(), PROMISED.len(), "{:?}", table.keys());
    for [name, columns @ ..] in PROMISED {
        assert_eq!(table[name][..3], columns, "{name}");
    }
}

#[test]
fn every_outcome_has_its_promised_name_and_a_row_in_the_table() {
    let names: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
    assert_eq!(names, OUTCOMES);
    assert_eq!(table("outcome").into_keys().collect::<BTreeSet<_>>(), set(OUTCOMES));
    for (index, outcome) in Outcome::ALL.iter().enumerate() {
        assert_eq!(*outcome as usize, index);
    }
}

#[test]
fn the_labels_limiter_and_kind_have_the_values_that_the_page_names() {
    for (constructor, label) in [("Decisions::new(\"", "`limiter` is"), ("Leases::new(\"", "`kind` is")] {
        let line = PAGE.split(label).nth(1).unwrap().split('.').next().unwrap();
        let documented: BTreeSet<_> = line.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let mut used = BTreeSet::new();
        for (_, text) in sources() {
            used.extend(
                text.split(constructor).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()),
            );
        }
        assert_eq!(used, documented, "{label}");
    }
}

/// Only this folder uses the crates `tracing` and `metrics`. So these tests see every name.
#[test]
fn only_this_folder_tells() {
    for (path, text) in sources() {
        for word in ["tracing::", "metrics::", "\"tower_distributed"] {
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            assert!(!lines.into_iter().any(|line| line.contains(word)), "{} has {word}", path.display());
        }
    }
}

/// All source files outside this folder.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("src/telemetry") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files
}
