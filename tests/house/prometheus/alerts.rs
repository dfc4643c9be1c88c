//! `alerts.yml`.

use std::path::Path;
use std::process::Command;

use yaml_rust2::{Yaml, YamlLoader};

use super::expression::problems;
use super::names::Names;

const FILE: &str = include_str!("../../../examples/prometheus/alerts.yml");

/// The guide whose sections the alerts name.
const GUIDE: &str = include_str!("../../../src/docs/guide/errors.md");
const PAGE: &str =
    "https://docs.rs/tower-distributed/latest/tower_distributed/guide/errors/index.html#";

/// The anchors of the guide, as rustdoc writes them.
fn sections() -> Vec<String> {
    let headings = GUIDE.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            line.trim_start_matches(['#', ' '])
                .to_lowercase()
                .replace(' ', "-")
        })
        .collect()
}

#[test]
fn every_alert_is_complete_and_names_metrics_and_labels_that_exist() {
    let (files, names) = (
        YamlLoader::load_from_str(FILE).unwrap(),
        Names::documented(),
    );
    let rules: Vec<_> = files[0]["groups"]
        .as_vec()
        .unwrap()
        .iter()
        .flat_map(rules)
        .collect();
    for alert in [
        "Outage",
        "BreakerOpen",
        "LeaseLost",
        "FilterNearlyFull",
        "FilterFull",
    ] {
        assert!(
            rules
                .iter()
                .any(|rule| text(&rule["alert"]) == format!("TowerDistributed{alert}")),
            "{alert}"
        );
    }
    for rule in rules {
        let alert = text(&rule["alert"]);
        let wait = text(&rule["for"]);
        assert!(
            wait.ends_with(['s', 'm']) && wait[..wait.len() - 1].parse::<u32>().is_ok(),
            "{alert}: {wait}"
        );
        assert!(
            ["warning", "critical"].contains(&text(&rule["labels"]["severity"])),
            "{alert}"
        );
        let [summary, runbook] =
            ["summary", "runbook"].map(|name| text(&rule["annotations"][name]));
        assert!(
            summary.ends_with('.') && runbook.ends_with('.') && runbook.len() > 60,
            "{alert}"
        );
        let url = text(&rule["annotations"]["runbook_url"]);
        let section = url
            .strip_prefix(PAGE)
            .unwrap_or_else(|| panic!("{alert}: {url}"));
        assert!(
            sections().contains(&section.to_owned()),
            "{alert}: the guide has no {section}"
        );
        let shown: Vec<_> = summary
            .split("$labels.")
            .skip(1)
            .filter_map(|rest| rest.split(' ').next())
            .collect();
        assert!(!shown.is_empty(), "{alert} does not say where");
        let expression = text(&rule["expr"]);
        assert_eq!(
            problems(expression, &shown, &names),
            [""; 0],
            "{alert}: {expression}"
        );
    }
}

fn rules(group: &Yaml) -> &[Yaml] {
    group["rules"].as_vec().unwrap()
}

fn text(yaml: &Yaml) -> &str {
    yaml.as_str()
        .unwrap_or_else(|| panic!("{yaml:?} is no text"))
}

/// What Prometheus itself says of the files, if its tool is on the PATH: on Debian, it is in the package prometheus.
#[test]
fn promtool_accepts_the_rules_and_their_tests_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/prometheus");
    for arguments in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
        ["check", "config", "prometheus.yml"],
    ] {
        let Ok(output) = Command::new("promtool")
            .args(arguments)
            .current_dir(&folder)
            .output()
        else {
            println!("SKIPPED: promtool is missing, so Prometheus does not check the alerts");
            return;
        };
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
}
