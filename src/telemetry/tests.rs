//! Tests that all names are as documented.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::names::{Event, METRICS, Outcome};

const PAGE: &str = include_str!("../docs/telemetry.md");

/// The rows of the table in the documentation whose first column has this title, by their first columns.
fn table(title: &str) -> BTreeMap<String, Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.replace('`', "").trim().to_owned())
            .collect()
    };
    let lines = PAGE
        .lines()
        .skip_while(|line| !line.starts_with(&format!("| {title} |")))
        .skip(2);
    let rows = lines.take_while(|line| line.starts_with('|')).map(cells);
    rows.map(|row| (row[0].clone(), row[1..].to_vec()))
        .collect()
}

/// The page promises the names: if a name changes here, it must change there.
#[test]
fn every_event_metric_and_outcome_has_its_row_in_the_tables() {
    let events: BTreeSet<_> = Event::ALL
        .iter()
        .map(|event| event.name().to_owned())
        .collect();
    let table = self::table("event");
    assert_eq!(
        (events.len(), table.keys().cloned().collect()),
        (Event::ALL.len(), events)
    );
    for (event, row) in table {
        assert!(
            ["ERROR", "WARN", "INFO", "DEBUG"].contains(&row[0].as_str()),
            "{event}: {row:?}"
        );
        assert!(!row[2].is_empty(), "{event}");
    }
    let declared: BTreeMap<_, _> = METRICS
        .iter()
        .map(|metric| {
            (
                metric.name,
                [metric.kind, &metric.labels.join(", "), metric.unit].map(str::to_owned),
            )
        })
        .collect();
    let table = self::table("metric");
    assert_eq!(
        (declared.len(), table.len()),
        (METRICS.len(), METRICS.len()),
        "{:?}",
        table.keys()
    );
    for (name, columns) in declared {
        assert_eq!(table[name][..3], columns, "{name}");
    }
    for metric in METRICS {
        let text = table[metric.name][3].as_str();
        // A link is shown as its text.
        let text = text.replace("](crate::ConcurrencyLimitLayer::adaptive)", "");
        let text = text.replace('[', "");
        assert!(text.starts_with(metric.help), "{}: {text}", metric.name);
    }
    let outcomes: BTreeSet<_> = Outcome::ALL
        .iter()
        .map(|outcome| outcome.name().to_owned())
        .collect();
    assert_eq!(
        (outcomes.len(), self::table("outcome").into_keys().collect()),
        (Outcome::ALL.len(), outcomes)
    );
    for (index, outcome) in Outcome::ALL.iter().enumerate() {
        assert_eq!(*outcome as usize, index);
    }
}

#[test]
fn the_labels_limiter_and_kind_have_the_values_that_the_page_names() {
    for (constructor, label) in [
        ("Decisions::new(\"", "`limiter` is"),
        ("Leases::new(\"", "`kind` is"),
    ] {
        let line = PAGE.split(label).nth(1).unwrap().split('.').next().unwrap();
        let documented: BTreeSet<_> = line
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect();
        let name = |rest: &str| rest.split('"').next().unwrap().to_owned();
        let names = |text: &str| {
            text.split(constructor)
                .skip(1)
                .map(name)
                .collect::<Vec<_>>()
        };
        let used: BTreeSet<_> = sources().iter().flat_map(|(_, text)| names(text)).collect();
        assert_eq!(used, documented, "{label}");
    }
}

/// Only this folder uses the crates `tracing` and `metrics`. So these tests see every name.
#[test]
fn only_this_folder_tells() {
    for (path, text) in sources() {
        for word in ["tracing::", "metrics::", "\"tower_distributed"] {
            let lines = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            assert!(
                !lines.into_iter().any(|line| line.contains(word)),
                "{} has {word}",
                path.display()
            );
        }
    }
}

/// All source files of other modules.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("src/telemetry") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("src/telemetry.rs")
            {
                files.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files
}
