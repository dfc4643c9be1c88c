//! The metrics and labels that an expression of PromQL names.

use super::names::Names;

/// What is wrong with an expression, or with the labels that its results are shown by.
pub(crate) fn problems(expression: &str, shown: &[&str], names: &Names) -> Vec<String> {
    let mut problems = Vec::new();
    let metrics: Vec<_> = metrics(expression).collect();
    for (metric, matchers) in &metrics {
        if !names.has(metric) {
            problems.push(format!("there is no metric {metric}"));
        }
        for (label, value) in matchers {
            if !names.has_label(metric, label) {
                problems.push(format!("{metric} has no label {label}"));
            }
            let alternatives = value.split('|').filter(|value| !value.starts_with('$'));
            problems.extend(
                alternatives
                    .filter(|value| !Names::has_value(label, value))
                    .map(|value| format!("{label} is never {value}")),
            );
        }
    }
    let groups: Vec<_> = grouped(expression).collect();
    for label in groups.iter().chain(shown) {
        if !metrics
            .iter()
            .all(|(metric, _)| names.has_label(metric, label))
        {
            problems.push(format!("{metrics:?} have no label {label}"));
        }
    }
    for label in shown {
        if !groups.is_empty() && !groups.contains(label) {
            problems.push(format!(
                "{label} is shown, and the results are grouped by {groups:?}"
            ));
        }
    }
    if metrics.is_empty() {
        problems.push(format!("no metric of the crate in {expression}"));
    }
    problems
}

/// Each metric of the crate with its matchers: label and value.
fn metrics(expression: &str) -> impl Iterator<Item = (String, Vec<(&str, &str)>)> {
    const PREFIX: &str = "tower_distributed_";
    expression.split(PREFIX).skip(1).map(|rest| {
        let end = rest
            .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .unwrap_or(rest.len());
        let matchers = rest[end..]
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'))
            .map(|(inside, _)| inside);
        (
            format!("{PREFIX}{}", &rest[..end]),
            matchers
                .into_iter()
                .flat_map(|inside| inside.split(", "))
                .map(matcher)
                .collect(),
        )
    })
}

fn matcher(text: &str) -> (&str, &str) {
    let (label, value) = text.split_once(['=', '!']).expect(text);
    (
        label,
        value.trim_start_matches(['=', '~']).trim_matches('"'),
    )
}

/// The labels after each `by`.
fn grouped(expression: &str) -> impl Iterator<Item = &str> {
    let lists = expression
        .split("by (")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    lists.flat_map(|list| list.split(", "))
}

#[test]
fn wrong_names_are_found() {
    let names = Names::documented();
    for (expression, problem) in [
        (
            "rate(tower_distributed_decision_total[1m])",
            "there is no metric tower_distributed_decision_total",
        ),
        (
            "tower_distributed_call_seconds",
            "there is no metric tower_distributed_call_seconds",
        ),
        (
            "tower_distributed_breakers_open{namespace=\"a\"}",
            "has no label namespace",
        ),
        (
            "sum by (job, le) (tower_distributed_call_seconds_count)",
            "have no label le",
        ),
        (
            "tower_distributed_events_total{event=~\"lease_lost|lease_lots\"}",
            "event is never lease_lots",
        ),
        (
            "tower_distributed_decisions_total{outcome=\"denied\"}",
            "outcome is never denied",
        ),
        (
            "tower_distributed_decisions_total{limiter!=\"permit\"}",
            "limiter is never permit",
        ),
        (
            "tower_distributed_call_seconds_count{result=\"failed\"}",
            "result is never failed",
        ),
        ("up", "no metric of the crate"),
    ] {
        let found = problems(expression, &[], &names);
        assert!(
            found.len() == 1 && found[0].contains(problem),
            "{expression}: {found:?}"
        );
    }
    let right = "sum by (job, server, le) (rate(tower_distributed_call_seconds_bucket{result=\"error\"}[5m]))";
    assert_eq!(problems(right, &["server"], &names), [""; 0]);
    assert_eq!(problems(right, &["result"], &names).len(), 1);
}
