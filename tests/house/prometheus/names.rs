//! The metrics, labels and values that the documentation promises.

use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = include_str!("../../../src/docs/telemetry.md");

/// Labels that Prometheus adds.
const ADDED: [&str; 2] = ["job", "instance"];

/// What a metric is called by, and its labels.
#[derive(Debug)]
pub(crate) struct Names(BTreeMap<String, BTreeSet<String>>);

impl Names {
    /// Reads the table of metrics. A histogram has three names in Prometheus.
    pub(crate) fn documented() -> Self {
        let mut names = BTreeMap::new();
        for line in PAGE
            .lines()
            .filter(|line| line.starts_with("| `tower_distributed_"))
        {
            let cells: Vec<_> = line
                .split('|')
                .map(|cell| cell.replace('`', "").trim().to_owned())
                .collect();
            let labels: BTreeSet<_> = cells[3].split(", ").map(str::to_owned).collect();
            if cells[2] != "histogram" {
                names.insert(cells[1].clone(), labels);
                continue;
            }
            for part in ["sum", "count"] {
                names.insert(format!("{}_{part}", cells[1]), labels.clone());
            }
            let labels = labels.into_iter().chain(["le".to_owned()]).collect();
            names.insert(format!("{}_bucket", cells[1]), labels);
        }
        assert!(names.len() > 10, "{names:?}");
        Self(names)
    }

    /// The metrics, by the names that they have in the table.
    pub(crate) fn all() -> Vec<String> {
        let rows = PAGE
            .lines()
            .filter_map(|line| line.strip_prefix("| `tower_distributed_"));
        rows.filter_map(|row| row.split('`').next())
            .map(|name| format!("tower_distributed_{name}"))
            .collect()
    }

    pub(crate) fn has(&self, metric: &str) -> bool {
        self.0.contains_key(metric)
    }

    /// Whether a series of the metric can have the label in Prometheus.
    pub(crate) fn has_label(&self, metric: &str, label: &str) -> bool {
        ADDED.contains(&label)
            || self
                .0
                .get(metric)
                .is_some_and(|labels| labels.contains(label))
    }

    /// Whether the page names a value of this label. Servers and namespaces are the user's.
    pub(crate) fn has_value(label: &str, value: &str) -> bool {
        let begin = match label {
            "event" | "outcome" => return PAGE.contains(&format!("\n| `{value}` | ")),
            "result" => "`result`:".to_owned(),
            "limiter" | "kind" => format!("`{label}` is"),
            _ => return true,
        };
        let sentence = PAGE
            .split(&begin)
            .nth(1)
            .and_then(|rest| rest.split('.').next())
            .unwrap();
        sentence.contains(&format!("`{value}`"))
    }
}
