use super::super::*;
use crate::bucket::quota::Quota;
use crate::store::Store;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::limits::TokenBuckets;

fn quotas() -> [Quota; 2] {
    [
        Quota::per_hour(10).named("ten"),
        Quota::per_hour(6).named("six"),
    ]
}

/// The names of the quotas that lack tokens.
fn violated(refused: &Decision) -> Vec<String> {
    assert!(!refused.is_admitted() && refused.delay().is_zero() && refused.retry_after().is_some());
    let names: Vec<_> = refused
        .violated()
        .map(|balance| balance.name.to_owned())
        .collect();
    assert_eq!(refused.refused_by(), names.first().map(String::as_str));
    names
}

#[tokio::test]
async fn a_refusal_names_the_quotas_that_lack_tokens() {
    let bucket = TokenBucket::new(&Store::in_memory(), "test", quotas()).unwrap();
    let admitted = bucket.allow_n("k", 4).await.unwrap();
    assert!(
        admitted.is_admitted()
            && admitted.refused_by().is_none()
            && admitted.retry_after().is_none()
    );
    for cost in [3, 6] {
        let refused = bucket.allow_n("k", cost).await.unwrap();
        assert_eq!(
            (violated(&refused), refused.cost, refused.remaining()),
            (vec!["six".into()], cost, 2)
        );
    }
    bucket.charge("k", 1).await.unwrap();
    assert_eq!(violated(&bucket.allow_n("k", 6).await.unwrap()).len(), 2);
}

#[tokio::test]
async fn a_refusal_of_several_limits_has_a_cost_for_each() {
    let store = Store::in_memory();
    let bucket = |name, tokens| TokenBucket::new(&store, name, Quota::per_hour(tokens)).unwrap();
    let limits = TokenBuckets::new([bucket("ten", 10), bucket("six", 6)]).unwrap();
    assert!(limits.allow_n(["k", "k"], 4).await.unwrap().is_admitted());
    for (costs, expected) in [
        ([6, 3], &["six"][..]),
        ([7, 2], &["ten"]),
        ([7, 3], &["ten", "six"]),
    ] {
        let refused = limits.allow_n(["k", "k"], costs).await.unwrap();
        assert_eq!(violated(&refused), expected);
        let minutes = refused.retry_after().unwrap().as_secs_f64() / 60.0;
        assert_eq!(minutes.round(), if costs[1] == 3 { 10.0 } else { 6.0 });
    }
}

#[test]
fn refusals_from_the_cache_are_counted_apart() {
    let outcome = |admitted, is_local| {
        let free = Decision::free(Quotas::new(quotas()).unwrap());
        Outcome::of(&Decision {
            admitted,
            is_local,
            ..free
        })
    };
    assert_eq!(
        [outcome(true, false), outcome(true, true)],
        [Outcome::Admitted; 2]
    );
    assert_eq!(outcome(false, false), Outcome::Refused);
    assert_eq!(outcome(false, true), Outcome::RefusedFromCache);
}
