//! Claims on the items of filters that are of another configuration, are replaced or cleared, spread over keys, or forget.

use std::time::Duration;

use tower_distributed::{BloomFilter, Dedupe};

use crate::claims::{becomes_free, claims, is_duplicate, is_forgotten, take};
use crate::stores::{Place, SOON};

fn forever(filter: &BloomFilter) -> Dedupe {
    Dedupe::builder().remember_forever().build(filter).unwrap()
}

pub(crate) async fn a_filter_of_another_configuration_is_told(place: &Place, name: &str) {
    let dedupe = claims(place, name);
    let (held, handled) = (take(&dedupe, "held").await, take(&dedupe, "handled").await);
    assert!(handled.confirm().await.unwrap());
    let bits = dedupe.filter().unwrap().size().bits.to_string();
    let other = BloomFilter::builder()
        .bits(1234)
        .hashes(5)
        .build(place, name)
        .unwrap();
    let forgets = BloomFilter::builder()
        .bits(1234)
        .hashes(5)
        .remember_for(Duration::from_secs(60));
    let forgets = Dedupe::new(&forgets.build(place, name).unwrap()).unwrap();
    for other in [forever(&other), forgets] {
        for item in ["held", "handled", "new"] {
            for error in [
                other.try_claim(item).await.unwrap_err(),
                other.claim(item, SOON).await.unwrap_err(),
                other.claim_anyway(item).await.unwrap_err(),
            ] {
                let text = error.to_string();
                assert!(error.is_invalid(), "{item}: {text}");
                assert!(
                    text.contains(&bits) && text.contains("1234"),
                    "{item}: {text}"
                );
            }
        }
    }
    assert!(held.is_held() && is_duplicate(&dedupe, "handled").await);
    assert!(held.confirm().await.unwrap());
    assert!(take(&dedupe, "new").await.confirm().await.unwrap());
}

/// While an item is handled its filter is replaced: that it was handled cannot be noted, which is not silent.
pub(crate) async fn a_filter_that_is_replaced_meanwhile_is_told(place: &Place, name: &str) {
    let dedupe = claims(place, name);
    let (one, two) = (take(&dedupe, "a").await, take(&dedupe, "b").await);
    dedupe.filter().unwrap().insert("c").await.unwrap();
    dedupe.filter().unwrap().clear().await.unwrap();
    let other = BloomFilter::builder()
        .bits(1234)
        .hashes(5)
        .build(place, name)
        .unwrap();
    other.insert("d").await.unwrap();
    for claim in [one, two] {
        let error = claim.confirm().await.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains("1234"),
            "{error}"
        );
    }
    let other = forever(&other);
    becomes_free(&other, "a").await;
    assert!(is_duplicate(&other, "d").await);
}

pub(crate) async fn a_filter_over_several_keys(place: &Place, name: &str) {
    let builder = BloomFilter::builder()
        .capacity(1000)
        .false_positive_rate(1e-9)
        .keys(5);
    let [filter, elsewhere] = [(); 2].map(|()| builder.build(place, name).unwrap());
    assert_eq!(filter.size().keys, 5);
    let [dedupe, other] = [forever(&filter), forever(&elsewhere)];
    let items: Vec<_> = (0..40).map(|number| format!("item {number}")).collect();
    for (number, item) in items.iter().enumerate() {
        let claim = take(&dedupe, item).await;
        assert!(other.try_claim(item).await.unwrap_err().is_refused());
        assert!(
            if number % 2 == 0 {
                claim.confirm().await
            } else {
                claim.release().await
            }
            .unwrap()
        );
    }
    let known = filter.contains_all(&items).await.unwrap();
    for (number, item) in items.iter().enumerate() {
        let handled = number % 2 == 0;
        assert_eq!(
            (known[number], is_duplicate(&dedupe, item).await),
            (handled, handled),
            "{item}"
        );
    }
}

pub(crate) async fn what_a_filter_forgets_is_new_again(place: &Place, name: &str) {
    let builder = BloomFilter::builder()
        .capacity(1000)
        .false_positive_rate(1e-9);
    let forgetting = builder
        .remember_for(Duration::from_secs(1))
        .build(place, name)
        .unwrap();
    let dedupe = Dedupe::new(&forgetting).unwrap();
    is_forgotten(&dedupe).await;

    let cleared = claims(place, &format!("{name}.cleared"));
    let held = take(&cleared, "held").await;
    assert!(take(&cleared, "a").await.confirm().await.unwrap());
    cleared.filter().unwrap().clear().await.unwrap();
    assert!(
        cleared.try_claim("held").await.unwrap_err().is_refused(),
        "claims are none of the filter's"
    );
    assert!(take(&cleared, "a").await.release().await.unwrap());
    assert!(held.confirm().await.unwrap());
    assert!(is_duplicate(&cleared, "held").await);
}
