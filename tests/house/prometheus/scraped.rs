//! The example as a process: what it serves at `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::{Client, StatusCode};

use super::names::Names;
use support::example::ServingExample;
use support::redis_server::RedisServer;

/// Names of series, each with its labels, and its value.
type Series = BTreeMap<String, f64>;

/// The series, and the names of metrics that are described.
async fn scrape(example: &ServingExample) -> (Series, BTreeSet<String>) {
    let response = Client::new()
        .get(format!("{}/metrics", example.base))
        .send()
        .await
        .unwrap();
    assert_eq!(
        response.headers()["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let text = response.text().await.unwrap();
    let described = text.lines().filter_map(|line| {
        let (name, help) = line.strip_prefix("# HELP ")?.split_once(' ')?;
        (!help.is_empty()).then(|| name.to_owned())
    });
    let described = described.collect();
    let series = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let series = series.map(|line| {
        line.rsplit_once(' ')
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .unwrap()
    });
    (series.collect(), described)
}

/// The sum of all series that have these parts.
fn sum(series: &Series, parts: &[&str]) -> f64 {
    let of = |name: &str| parts.iter().all(|part| name.contains(part));
    series
        .iter()
        .filter(|(name, _)| of(name))
        .map(|(_, value)| value)
        .sum()
}

async fn get(example: &ServingExample, path: &str) -> StatusCode {
    Client::new()
        .get(format!("{}/{path}", example.base))
        .send()
        .await
        .unwrap()
        .status()
}

async fn post(example: &ServingExample, path: &str) -> StatusCode {
    let request = Client::new()
        .post(format!("{}/{path}", example.base))
        .header("webhook-id", "evt_1");
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn the_metrics_of_the_dashboard_are_served_with_the_documented_labels() {
    let server = RedisServer::start().await;
    let example = ServingExample::start("prometheus", Some(&server.url()));
    for _ in 0..12 {
        get(&example, "limited").await;
    }
    let one = tokio::join!(
        get(&example, "report/7"),
        get(&example, "report/7"),
        get(&example, "export")
    );
    assert_eq!(one, (StatusCode::OK, StatusCode::OK, StatusCode::OK));
    let billed = tokio::join!(post(&example, "billing"), post(&example, "billing"));
    assert!(billed.0 != billed.1, "{billed:?}");
    assert_eq!(post(&example, "webhook").await, StatusCode::OK);
    assert_eq!(post(&example, "webhook").await, StatusCode::CONFLICT);

    let (series, described) = scrape(&example).await;
    let names = Names::documented();
    for name in series.keys() {
        let (metric, labels) = name
            .strip_suffix('}')
            .and_then(|name| name.split_once('{'))
            .unwrap();
        assert!(names.has(metric), "{name} is not documented");
        // A histogram is described once, without the ends of its series.
        let of = ["_bucket", "_sum", "_count"].map(|end| metric.strip_suffix(end));
        let of = of.into_iter().flatten().next().unwrap_or(metric);
        assert!(described.contains(of), "{of} is not described");
        for label in labels
            .split("\",")
            .map(|label| label.split_once('=').unwrap().0)
        {
            assert!(
                names.has_label(metric, label),
                "{name}: {label} is not documented"
            );
        }
    }
    assert!(
        sum(
            &series,
            &["call_seconds_bucket", "result=\"ok\"", "le=\"+Inf\""]
        ) > 0.0,
        "{series:?}"
    );
    assert!(
        sum(&series, &["batch_operations_count"]) > 0.0,
        "{series:?}"
    );
    assert!(
        series
            .keys()
            .any(|name| name.starts_with("tower_distributed_filter_fill_ratio{")),
        "{series:?}"
    );
    let limiters = [
        "token_bucket",
        "single_flight",
        "mutex",
        "dedupe",
        "wait_group",
    ];
    let limiters = limiters.map(|limiter| format!("limiter=\"{limiter}\""));
    for part in ["queue_operations", "leases_held"]
        .into_iter()
        .chain(limiters.iter().map(String::as_str))
    {
        assert!(
            series.keys().any(|name| name.contains(part)),
            "{part}: {series:?}"
        );
    }
}
