use super::*;
use crate::token_bucket::TokenBuckets;
use crate::token_bucket::fixtures::one;
use crate::{Quota, Store};

fn bucket(name: &str, quota: Quota) -> TokenBucket {
    TokenBucket::new(&Store::in_memory(), name, quota).unwrap().with_max_wait(Duration::ZERO)
}

/// The limits `a` and `b` of 5 and 7 tokens.
fn two() -> (Limiter, [TokenBucket; 2]) {
    let store = Store::in_memory();
    let bucket = |name, tokens| TokenBucket::new(&store, name, Quota::non_refilling(tokens)).unwrap();
    let buckets = [bucket("a", 5), bucket("b", 7)];
    (Limiter::All(TokenBuckets::new(buckets.clone()).unwrap().several().clone()), buckets)
}

fn keys() -> Key {
    Key::of(["ann", "all"])
}

/// What a request is told at once.
fn told(limiter: &Limiter, quotas: Option<&Quotas>, key: Key, cost: u32, is_read: bool) -> &'static str {
    match limiter.begin(quotas, key.clone(), cost, is_read) {
        Begun::Admitted => "admitted",
        Begun::Decided(decided, of) => {
            assert_eq!(of, key);
            match decided {
                Ok(decision) if decision.is_admitted() => "admitted, with the decision",
                Ok(_) => "refused",
                Err(error) if error.is_exceeds_limit() => "impossible",
                Err(error) => panic!("{error}"),
            }
        }
        Begun::Pending(_) => "it waits",
    }
}

#[tokio::test]
async fn a_request_is_decided_at_once_in_memory_unless_it_waits() {
    let bucket = bucket("test", Quota::per_hour(10));
    let (limiter, raised) = (Limiter::One(bucket.clone()), one(Quota::per_hour(20)));
    for (is_read, admitted) in [(false, "admitted"), (true, "admitted, with the decision")] {
        let told = |quotas, cost| told(&limiter, quotas, "k".into(), cost, is_read);
        assert_eq!([told(None, 4), told(None, 7), told(None, 6)], [admitted, "refused", admitted]);
        assert_eq!([told(None, 11), told(Some(&raised), 21)], ["impossible"; 2]);
        assert_eq!([told(Some(&raised), 11), told(Some(&raised), 10)], ["refused", admitted]);
        bucket.reset("k").await.unwrap();
        let told = |wait, cost| {
            self::told(&limiter.with_max_wait(Duration::from_secs(wait)), None, "k".into(), cost, is_read)
        };
        assert_eq!([told(3600, 9), told(3600, 2)], ["admitted, with the decision", "it waits"]);
        assert_eq!([told(1, 10), told(3600, 11)], ["refused", "impossible"]);
        bucket.reset("k").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_acts_at_its_time_or_gives_its_tokens_back() {
    let bucket = bucket("test", Quota::per_second(1).burst(1));
    let limiter = Limiter::One(bucket.with_max_wait(Duration::from_secs(5)));
    let pending = || match limiter.begin(None, "k".into(), 1, true) {
        Begun::Pending(acquire) => acquire,
        _ => panic!("it does not wait"),
    };
    assert_eq!(told(&limiter, None, "k".into(), 1, true), "admitted, with the decision");
    let (began, first) = (tokio::time::Instant::now(), pending());
    drop(pending());
    let second = limiter.acquire(None, "k".into(), 1);
    for (acquire, expected) in [(first, 100), (second, 200)] {
        assert!(acquire.await.unwrap().is_admitted());
        assert_eq!(began.elapsed().as_millis() / 10, expected);
    }
}

#[tokio::test]
async fn a_refused_request_is_of_the_limit_that_refused_it() {
    let (limiter, _) = two();
    let refused = async |limiter: &Limiter, key: Key, cost| {
        let decision = limiter.acquire(None, key.clone(), cost).await.unwrap();
        limiter.refused(&key, &decision)
    };
    assert_eq!(refused(&limiter, keys(), 4).await, None);
    assert_eq!(refused(&limiter, keys(), 2).await, Some((0, "ann".into())));
    assert_eq!(refused(&limiter, Key::of(["bob", "all"]), 4).await, Some((1, "all".into())));
    // The first limit has no key.
    let key = Key::of_some([None, Some(&Key::from("all"))]);
    assert_eq!(refused(&limiter, key, 4).await, Some((1, "all".into())));
    let one = Limiter::One(bucket("test", Quota::per_hour(1)));
    assert_eq!([refused(&one, "k".into(), 1).await, refused(&one, "k".into(), 1).await], [None, None]);
}

#[test]
fn several_limits_neither_prefetch_nor_wait_each() {
    let hold = Duration::from_millis(10);
    let prefetching = bucket("a", Quota::per_second(1000)).with_max_wait(hold).prefetch(hold).unwrap();
    let limits = TokenBuckets::new([prefetching.cache_refusals(true)]).unwrap();
    let all = Limiter::All(limits.several().clone());
    let TokenBucket { max_wait, local, .. } = all.first();
    assert!(*max_wait == 0 && local.ahead.is_none() && local.refusals);
    assert!(all.prefetch(hold).is_err_and(|error| error.is_invalid()));
    let one = Limiter::One(bucket("b", Quota::per_second(1000))).prefetch(hold).unwrap();
    assert!(one.first().local.ahead.is_some() && one.cache_refusals(true).first().local.refusals);
}
