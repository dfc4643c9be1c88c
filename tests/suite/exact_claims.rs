//! Claims without false positives: what those on a filter do not have.

use std::time::Duration;

use tower_distributed::Store;
use tower_distributed::dedupe::{Dedupe, ExactBuilder};

use crate::claims::{is_duplicate, is_forgotten, take};
use crate::stores::{Place, SOON};
use support::eventually;

const DAY: Duration = Duration::from_secs(86_400);

fn builder(store: &Store, name: &str) -> ExactBuilder {
    Dedupe::exact(store, name)
        .capacity(10_000)
        .remember_for(DAY)
}

fn claims(place: &Place, name: &str) -> Dedupe {
    builder(place, name).build().unwrap()
}

pub(crate) async fn no_new_item_is_taken_for_a_duplicate(place: &Place, name: &str) {
    // Far above what it is for.
    let dedupe = builder(place, name).capacity(1).build().unwrap();
    for item in 0..500_u32 {
        assert!(
            take(&dedupe, item.to_le_bytes())
                .await
                .confirm()
                .await
                .unwrap()
        );
    }
    for item in 0..500_u32 {
        assert!(is_duplicate(&dedupe, item.to_le_bytes()).await);
    }
    for (capacity, span) in [(1, Duration::from_secs(1)), (100_000_000_000, 3650 * DAY)] {
        let name = format!("{name}-{capacity}");
        let dedupe = Dedupe::exact(place, &name)
            .capacity(capacity)
            .remember_for(span)
            .build()
            .unwrap();
        assert!(take(&dedupe, "a").await.confirm().await.unwrap());
        assert!(is_duplicate(&dedupe, "a").await || span == Duration::from_secs(1));
    }
}

pub(crate) async fn what_is_old_is_new_again(place: &Place, name: &str) {
    let dedupe = builder(place, name)
        .remember_for(Duration::from_secs(1))
        .build()
        .unwrap();
    is_forgotten(&dedupe).await;
    let pattern = place.part(&format!("{name}:*"), "exact:?");
    if let Some(server) = place.server_of(&pattern) {
        let left = || server.query::<Vec<String>>(&["KEYS", &pattern]).unwrap();
        eventually("its slices to expire by themselves", SOON, async || {
            left().is_empty()
        })
        .await;
    }
}

pub(crate) async fn other_settings_under_one_name_are_told(place: &Place, name: &str) {
    let dedupe = claims(place, name);
    assert!(take(&dedupe, "a").await.confirm().await.unwrap());
    for (other, named) in [
        (
            builder(place, name).capacity(1_000_000),
            ["70 buckets", "6945 buckets"],
        ),
        (
            builder(place, name).remember_for(2 * DAY),
            ["86400s", "172800s"],
        ),
    ] {
        let other = other.build().unwrap();
        for item in ["a", "b"] {
            for error in [
                other.try_claim(item).await.unwrap_err(),
                other.claim_anyway(item).await.unwrap_err(),
            ] {
                let text = error.to_string();
                assert!(
                    error.is_invalid() && named.iter().all(|part| text.contains(part)),
                    "{text}"
                );
            }
        }
    }
    assert!(is_duplicate(&claims(place, name), "a").await);
}

#[test]
fn settings_out_of_range_are_told() {
    let (store, name) = (&Store::in_memory(), "handled");
    let of = |builder: ExactBuilder| {
        let error = builder.build().unwrap_err();
        assert!(error.is_invalid(), "{error}");
        error.to_string()
    };
    let text = of(Dedupe::exact(store, name));
    assert!(
        text.contains("remember_for must be set") && text.contains(name),
        "{text}"
    );
    for span in [
        Duration::ZERO,
        Duration::from_micros(1_000_500),
        3651 * DAY,
        Duration::MAX,
    ] {
        let text = of(builder(store, name).remember_for(span));
        assert!(
            text.contains("1 s to 10 years") && text.contains(&format!("{span:?}")),
            "{text}"
        );
    }
    for capacity in [0, 100_000_000_001, u64::MAX] {
        let text = of(builder(store, name).capacity(capacity));
        assert!(
            text.contains("1 to 100000000000") && text.contains(&capacity.to_string()),
            "{text}"
        );
    }
    for ttl in [Duration::ZERO, 2 * DAY] {
        assert!(of(builder(store, name).ttl(ttl)).contains(&format!("{ttl:?}")));
    }
    assert!(of(builder(store, "a name")).contains("\"a name\""));
}
