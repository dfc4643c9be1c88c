//! Filters of deduplications: how full they are is told, and no item is lost silently.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::dedupe::{Claimed, Dedupe, FilterFull};
use tower_distributed::{BloomFilter, DedupeLayer, Store};

use crate::seen::{decisions, events, listen, value};
use support::redis_server::RedisServer;

const CAPACITY: u64 = 400;

fn dedupe(store: &Store, name: &str, when_full: FilterFull) -> Dedupe {
    let builder = BloomFilter::builder()
        .capacity(CAPACITY)
        .false_positive_rate(1e-9);
    let filter = builder
        .remember_for(Duration::from_secs(7 * 86_400))
        .build(store, name)
        .unwrap();
    Dedupe::builder()
        .on_filter_full(when_full)
        .build(&filter)
        .unwrap()
}

/// How many of these new items are claimed, and confirmed. So many at a time that none sees what the others fill.
async fn handle(dedupe: &Dedupe, items: std::ops::Range<u64>) -> u64 {
    let mut handled = 0;
    for first in items.clone().step_by(20) {
        let calls = (first..(first + 20).min(items.end)).map(async |item| {
            match dedupe.try_claim(item.to_le_bytes()).await.unwrap() {
                Claimed::New(claim) => u64::from(claim.confirm().await.unwrap()),
                Claimed::Duplicate => 0,
            }
        });
        handled += join_all(calls).await.into_iter().sum::<u64>();
    }
    handled
}

/// How often it was told that a filter is nearly full, and that it is full.
fn told(name: &str) -> [usize; 2] {
    ["filter_nearly_full", "filter_full"]
        .map(|event| events(&[("event", event), ("namespace", name)]).len())
}

fn gauge(name: &str) -> f64 {
    value(
        "tower_distributed_filter_fill_ratio",
        &[("namespace", name)],
    )
}

async fn stores() -> (RedisServer, [(&'static str, Store); 2]) {
    let server = RedisServer::start().await;
    let on_redis = Store::builder()
        .timeout(Duration::from_secs(10))
        .redis(&server.url())
        .unwrap();
    (
        server,
        [("memory", Store::in_memory()), ("redis", on_redis)],
    )
}

#[tokio::test]
async fn a_filter_at_five_times_its_capacity_loses_nothing_silently() {
    listen();
    let (_server, stores) = stores().await;
    for (place, store) in &stores {
        let name = &format!("open-{place}");
        let dedupe = dedupe(store, name, FilterFull::FailOpen);
        assert_eq!((dedupe.fill(), told(name)), (None, [0, 0]));
        let percent = |percent: u64| CAPACITY * percent / 100;
        for (from, to, expected) in [
            (0, 70, [0, 0]),
            (70, 90, [1, 0]),
            (90, 120, [1, 1]),
            (120, 200, [1, 1]),
            (200, 500, [1, 1]),
        ] {
            let items = percent(from)..percent(to);
            assert_eq!(
                handle(&dedupe, items.clone()).await,
                items.end - items.start,
                "{place}: {from} %"
            );
            assert_eq!(told(name), expected, "{place} at {to} %");
            // What is seen is seen by the last that was confirmed; a filter that is crowded tells it less exactly.
            let fill = to as f64 / 100.0;
            assert!(
                (gauge(name) / fill - 1.0).abs() < 0.15,
                "{place} at {to} %: {}",
                gauge(name)
            );
            assert!(
                dedupe
                    .fill()
                    .is_some_and(|known| (known / fill - 1.0).abs() < 0.15)
            );
        }
        let [open, admitted] =
            ["filter_full", "admitted"].map(|outcome| decisions("dedupe", name, outcome));
        assert_eq!(open + admitted, (5 * CAPACITY) as f64);
        assert!(
            open > CAPACITY as f64 / 10.0,
            "the filter was never wrong: this shows nothing"
        );
        // Duplicates are refused where that is set.
        let name = &format!("closed-{place}");
        let handled = handle(
            &self::dedupe(store, name, FilterFull::FailClosed),
            0..5 * CAPACITY,
        )
        .await;
        assert!(
            handled < 5 * CAPACITY,
            "the filter was never wrong: this shows nothing"
        );
        assert_eq!(told(name), [1, 1]);
        assert_eq!(
            decisions("dedupe", name, "refused"),
            (5 * CAPACITY - handled) as f64
        );
        assert_eq!(decisions("dedupe", name, "filter_full"), 0.0);
    }
}

/// The layer, with and without a place to look duplicates up.
#[tokio::test]
async fn the_layer_handles_what_a_full_filter_takes_for_a_duplicate() {
    listen();
    let (_server, stores) = stores().await;
    for (place, store) in &stores {
        let name = &format!("layer-{place}");
        let dedupe = dedupe(store, name, FilterFull::FailOpen);
        let layer = DedupeLayer::new(dedupe.clone(), |item: &u64| item.to_le_bytes().to_vec());
        let echo = tower::service_fn(async |item: u64| Ok::<_, tower::BoxError>(item));
        let service = tower::Layer::layer(&layer, echo);
        for item in 0..3 * CAPACITY {
            assert_eq!(
                tower::ServiceExt::oneshot(service.clone(), item)
                    .await
                    .unwrap(),
                item,
                "{place}"
            );
        }
        assert!(
            decisions("dedupe", name, "filter_full") > 0.0,
            "the filter was never wrong"
        );
        let known = layer.confirm_duplicate(|_: &u64| std::future::ready(true));
        let service = tower::Layer::layer(&known, echo);
        tower::ServiceExt::oneshot(service, 1).await.unwrap_err();
    }
}
