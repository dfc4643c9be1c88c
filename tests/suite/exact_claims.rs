//! Claims without false positives: what those on a filter do not have.

use std::time::Duration;

use tower_distributed::Store;
use tower_distributed::dedupe::{Dedupe, ExactBuilder};

use crate::claims::{is_duplicate, is_forgotten, take};
use crate::stores::{Place, SOON};
use support::eventually;

const DAY: Duration = Duration::from_secs(86_400);

fn builder(store: &Store, name: &str) -> ExactBuilder {
    Dedupe::exact(store, name).capacity(10_000).remember_for(DAY)
}

fn claims(place: &Place, name: &str) -> Dedupe {
    builder(place, name).build().unwrap()
}

/// Where the bucket of the only item of a test is kept.
fn bucket(place: &Place, name: &str, item: &str) -> Option<String> {
    let keys = |bucket: u32| place.part(&format!("{name}:{bucket}"), "exact:?");
    let of_any = |bucket: u32| {
        let pattern = keys(bucket);
        let found: Vec<String> = place.server_of(&pattern)?.query(&["KEYS", &pattern]).unwrap();
        (!found.is_empty()).then(|| format!("{name}:{bucket}"))
    };
    (0..70).find_map(of_any).or_else(|| panic!("{item} is nowhere"))
}

pub(crate) async fn no_new_item_is_taken_for_a_duplicate(place: &Place, name: &str) {
    // Far above what it is for.
    let dedupe = builder(place, name).capacity(1).build().unwrap();
    for item in 0..500_u32 {
        assert!(take(&dedupe, item.to_le_bytes()).await.confirm().await.unwrap());
    }
    for item in 0..500_u32 {
        assert!(is_duplicate(&dedupe, item.to_le_bytes()).await);
    }
    for (capacity, span) in [(1, Duration::from_secs(1)), (100_000_000_000, 3650 * DAY)] {
        let name = format!("{name}-{capacity}");
        let dedupe = Dedupe::exact(place, &name).capacity(capacity).remember_for(span).build().unwrap();
        assert!(take(&dedupe, "a").await.confirm().await.unwrap());
        assert!(is_duplicate(&dedupe, "a").await || span == Duration::from_secs(1));
    }
}

pub(crate) async fn what_is_old_is_new_again(place: &Place, name: &str) {
    let dedupe = builder(place, name).remember_for(Duration::from_secs(1)).build().unwrap();
    is_forgotten(&dedupe).await;
    let pattern = place.part(&format!("{name}:*"), "exact:?");
    if let Some(server) = place.server_of(&pattern) {
        let left = || server.query::<Vec<String>>(&["KEYS", &pattern]).unwrap();
        eventually("its slices to expire by themselves", SOON, async || left().is_empty()).await;
    }
}

pub(crate) async fn every_key_has_a_time_to_live(place: &Place, name: &str) {
    let dedupe = claims(place, name);
    let held = take(&dedupe, "a").await;
    assert!(dedupe.claim("a", Duration::from_millis(20)).await.unwrap_err().is_waited_too_long());
    assert!(held.confirm().await.unwrap());
    assert!(take(&dedupe, "a megabyte is 16 bytes").await.confirm().await.unwrap());
    if place.server_of(&place.part(&format!("{name}:layout"), "layout")).is_none() {
        return;
    }
    let state = bucket(place, name, "a").unwrap();
    for state in [state, format!("{name}:layout")] {
        let server = place.server_of(&place.part(&state, "layout")).unwrap();
        let beginning = format!("{}:{{{state}}}:", place.prefix);
        let mut kept = support::keys::keys_without_ttl(server);
        kept.retain(|key| key.starts_with(&beginning));
        assert_eq!(kept, [""; 0]);
        assert!(!server.query::<Vec<String>>(&["KEYS", &format!("{beginning}*")]).unwrap().is_empty());
    }
}

pub(crate) async fn other_settings_under_one_name_are_told(place: &Place, name: &str) {
    let dedupe = claims(place, name);
    assert!(take(&dedupe, "a").await.confirm().await.unwrap());
    for (other, named) in [
        (builder(place, name).capacity(1_000_000), ["70 buckets", "6945 buckets"]),
        (builder(place, name).remember_for(2 * DAY), ["86400s", "172800s"]),
    ] {
        let other = other.build().unwrap();
        for item in ["a", "b"] {
            for error in
                [other.try_claim(item).await.unwrap_err(), other.claim_anyway(item).await.unwrap_err()]
            {
                let text = error.to_string();
                assert!(error.is_invalid() && named.iter().all(|part| text.contains(part)), "{text}");
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
    assert!(text.contains("remember_for must be set") && text.contains(name), "{text}");
    for span in [Duration::ZERO, Duration::from_micros(1_000_500), 3651 * DAY, Duration::MAX] {
        let text = of(builder(store, name).remember_for(span));
        assert!(text.contains("1 s to 10 years") && text.contains(&format!("{span:?}")), "{text}");
    }
    for capacity in [0, 100_000_000_001, u64::MAX] {
        let text = of(builder(store, name).capacity(capacity));
        assert!(text.contains("1 to 100000000000") && text.contains(&capacity.to_string()), "{text}");
    }
    for ttl in [Duration::ZERO, 2 * DAY] {
        assert!(of(builder(store, name).ttl(ttl)).contains(&format!("{ttl:?}")));
    }
    assert!(of(builder(store, "a name")).contains("\"a name\""));
}
