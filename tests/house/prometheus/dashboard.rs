//! `dashboard.json`.

use serde_json::Value;

use super::expression::problems;
use super::names::Names;

const FILE: &str = include_str!("../../../examples/prometheus/dashboard.json");

#[test]
fn every_panel_shows_metrics_that_exist_by_labels_that_they_have() {
    let (dashboard, names) = (
        serde_json::from_str::<Value>(FILE).unwrap(),
        Names::documented(),
    );
    let panels: Vec<_> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|panel| panel["type"] != "row")
        .collect();
    assert!(panels.len() >= 12, "{}", panels.len());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.')),
            "{title}"
        );
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let (expression, legend) = (
                target["expr"].as_str().unwrap(),
                target["legendFormat"].as_str().unwrap(),
            );
            let shown: Vec<_> = legend
                .split("{{")
                .skip(1)
                .filter_map(|rest| rest.split("}}").next())
                .collect();
            assert_eq!(
                problems(expression, &shown, &names),
                [""; 0],
                "{title}: {expression}"
            );
            let variables = expression
                .split("\"$")
                .skip(1)
                .filter_map(|rest| rest.split('"').next());
            variables.for_each(|variable| {
                assert!(has_variable(&dashboard, variable), "{title}: {variable}")
            });
        }
    }
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let all = Names::all();
    assert!(all.len() > 10, "{all:?}");
    for metric in all {
        assert!(FILE.contains(&metric), "{metric}");
    }
}

#[test]
fn every_variable_lists_values_of_a_label_that_exists() {
    let (dashboard, names) = (
        serde_json::from_str::<Value>(FILE).unwrap(),
        Names::documented(),
    );
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let mut queries = 0;
    for query in variables.filter_map(|variable| variable["query"]["query"].as_str()) {
        let inside = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'))
            .expect(query);
        let (expression, label) = inside.rsplit_once(", ").unwrap();
        assert_eq!(problems(expression, &[label], &names), [""; 0], "{query}");
        queries += 1;
    }
    assert_eq!(queries, 3);
}

fn has_variable(dashboard: &Value, name: &str) -> bool {
    dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .any(|variable| variable["name"] == name)
}
