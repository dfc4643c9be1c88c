use std::num::NonZeroU32;

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
async fn other_quotas_are_those_of_the_first_limit() {
    let (limiter, buckets) = two();
    let raised = one(Quota::non_refilling(6));
    let told = |quotas, cost| told(&limiter, quotas, keys(), cost, true);
    assert_eq!([told(None, 6), told(Some(&raised), 7)], ["impossible"; 2]);
    assert_eq!([told(Some(&raised), 6), told(Some(&raised), 1)], ["admitted, with the decision", "refused"]);
    assert_eq!(buckets[1].peek("all").await.unwrap().remaining(), 1);
    let limiter = limiter.with(Some(&raised));
    let of: Vec<_> = limiter.buckets().iter().map(|bucket| bucket.quotas().max_cost()).collect();
    assert_eq!(of, [6, 7]);
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

#[tokio::test]
async fn what_costs_more_is_charged_to_the_quotas_of_its_decision() {
    let bucket = bucket("test", Quota::per_hour(10));
    let (limiter, raised) = (Limiter::One(bucket.clone()), one(Quota::per_hour(20)));
    for (quotas, minutes) in [(None, 102), (Some(&raised), 21)] {
        let mut decision = limiter.acquire(quotas, "k".into(), 1).await.unwrap();
        limiter.charge(&decision, 25);
        decision.key = Some("k".into());
        limiter.charge(&decision, 25);
        // It is debt under these quotas: 10 or 20 tokens an hour.
        let state = bucket.with_quotas(quotas.unwrap_or(bucket.quotas())).peek("k").await.unwrap();
        assert_eq!((state.available_after(1).unwrap().as_secs_f64() / 60.0).round() as u32, minutes);
        bucket.reset("k").await.unwrap();
    }
    let (limiter, buckets) = two();
    let decision = Decision { key: Some(keys()), ..limiter.acquire(None, keys(), 1).await.unwrap() };
    limiter.charge(&decision, 2);
    assert_eq!(buckets[0].peek("ann").await.unwrap().remaining(), 2);
    assert_eq!(buckets[1].peek("all").await.unwrap().remaining(), 4);
}

#[tokio::test]
async fn the_first_limit_is_blocked_and_learns() {
    let minute = Duration::from_secs(60);
    let one = bucket("test", Quota::per_hour(1));
    Limiter::One(one.clone()).block(&"k".into(), minute);
    let (limiter, buckets) = two();
    limiter.block(&keys(), minute);
    for (bucket, key, is_blocked) in
        [(&one, "k", true), (&buckets[0], "ann", true), (&buckets[1], "all", false)]
    {
        assert_eq!(!bucket.peek(key).await.unwrap().blocked_for().is_zero(), is_blocked, "{key}");
    }
    limiter.block(&Key::of_some([None, Some(&Key::from("all"))]), minute);
    assert!(buckets[1].peek("all").await.unwrap().blocked_for().is_zero());
    let learns: Vec<_> = limiter.learning().buckets().iter().map(|bucket| bucket.learned.is_some()).collect();
    assert_eq!(learns, [true, false]);
}

#[tokio::test]
async fn a_local_share_has_a_part_of_the_quotas() {
    let (one, (several, _)) = (Limiter::One(bucket("test", Quota::per_hour(60))), two());
    for (limiter, expected) in [(one, &[20][..]), (several, &[1, 2])] {
        let share = limiter.learning().local_share(Sharing::Named(NonZeroU32::new(3).unwrap()));
        let of = share.standing_in_for(&limiter);
        let most: Vec<_> = of.buckets().iter().map(|bucket| bucket.quotas().max_cost()).collect();
        assert_eq!(most, expected);
        assert!(of.buckets().iter().all(|bucket| bucket.learned.is_none()));
        // It has tokens of its own.
        let key = || if most.len() == 1 { "k".into() } else { keys() };
        assert!(limiter.acquire(None, key(), 1).await.unwrap().is_admitted());
        let mut asked = limiter.acquire(None, key(), most[0]);
        asked.ask_share(&share);
        let decision = asked.await.unwrap();
        assert!(decision.is_admitted() && decision.remaining() == 0);
    }
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
