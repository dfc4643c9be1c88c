use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;

use crate::bucket::Bucket;
use crate::bucket::charge::{Charge, Price, Terms};
use crate::bucket::give_back::GiveBack;
use crate::bucket::hold::HoldSteps;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::{START, left, reserve};
use crate::bucket::wire::MOST_SLOW_RUNS;
use crate::key::Key;
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::store::operation::Operation as _;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::limits::{Several, TokenBuckets, terms_of};
use support::patient;
use support::redis_server::RedisServer;

fn bucket(store: &Store, name: &str, tokens: u32) -> TokenBucket {
    TokenBucket::new(store, name, Quota::non_refilling(tokens)).unwrap()
}

/// A call takes about 0.5 ms of the server's time, however many quotas there are.
#[test]
fn a_call_has_fewer_requests_under_more_quotas() {
    let store = Store::in_memory();
    for (limits, requests, steps) in [
        (1, 40, MOST_SLOW_RUNS),
        (3, 40, MOST_SLOW_RUNS / 3),
        (8, 15, MOST_SLOW_RUNS / 8),
    ] {
        let buckets: Vec<_> = (0..limits)
            .map(|n| bucket(&store, &format!("b{n}"), 1))
            .collect();
        let terms = Arc::new(terms_of(&buckets));
        let reserve = Charge {
            terms: Terms::All(Arc::clone(&terms)),
            price: Price::Same(1),
            wait: 0,
        };
        assert_eq!(reserve.most_runs(), requests);
        let hold = HoldSteps {
            each: smallvec::SmallVec::new(),
            terms: Some(terms),
            all_or_none: true,
        };
        assert_eq!(hold.most_runs(), steps);
    }
}

/// No two quotas have the same name.
#[test]
fn what_cannot_be_put_together_is_told() {
    let store = Store::in_memory();
    let hourly = TokenBucket::new(&store, "users", Quota::per_hour(1).named("hourly")).unwrap();
    let nine: [_; 9] = std::array::from_fn(|n| bucket(&store, &format!("b{n}"), 1));
    for (error, told) in [
        (
            TokenBuckets::new([bucket(&store, "a", 1), bucket(&store, "a", 2)]).unwrap_err(),
            "\"a\"",
        ),
        (TokenBuckets::new([]).unwrap_err(), "is 0"),
        (TokenBuckets::new(nine).unwrap_err(), "is 9"),
        (
            TokenBuckets::new([hourly, bucket(&store, "users.hourly", 1)]).unwrap_err(),
            "\"users.hourly\"",
        ),
    ] {
        assert!(
            error.is_invalid() && error.to_string().contains(told),
            "{error}"
        );
    }
}

/// A cancellation that runs twice gives back once, and nothing to a quota that never refills.
#[test]
fn what_may_run_twice_gives_back_once() {
    let quotas = Quotas::new([Quota::per_hour(1).burst(9), Quota::non_refilling(9)]).unwrap();
    let (mut bucket, now) = (Bucket::default(), START);
    let take = |bucket: &mut Bucket| reserve(bucket, &quotas, now, (2, 0));
    let decision = take(&mut bucket);
    let left = |bucket: &Bucket| {
        bucket
            .pairs(&quotas)
            .map(|(level, limit)| level.tokens(limit, now))
            .collect()
    };
    for expected in [[9, 7], [9, 7]] {
        GiveBack::safe_to_repeat(&decision.state, decision.cost.into()).apply(&mut bucket, now);
        let left: Vec<i64> = left(&bucket);
        assert_eq!(left, expected);
    }
    take(&mut bucket);
    take(&mut bucket);
    GiveBack::safe_to_repeat(&decision.state, decision.cost.into()).apply(&mut bucket, now);
    let left: Vec<i64> = left(&bucket);
    assert_eq!(left, [5, 3]);
}

#[test]
fn quotas_are_told_by_the_names_of_their_limits() {
    let two = Quotas::new([Quota::per_second(1), Quota::per_hour(5).named("hourly")]).unwrap();
    let one = Quotas::new([Quota::per_second(3)]).unwrap();
    let named = Quotas::new([Quota::per_second(3).named("fast")]).unwrap();
    let joined = Quotas::joined([("users", &two), ("all", &one), ("b", &named)].into_iter());
    let names: Vec<_> = joined.limits().iter().map(|limit| &*limit.name).collect();
    assert_eq!(names, ["users.q1", "users.hourly", "all", "b.fast"]);
    assert_eq!(joined.max_cost(), 1);
}

/// Threads use overlapping keys, and namespaces in different orders. There is no deadlock, and the charges add up.
#[test]
fn threads_that_share_some_keys_charge_all_or_none() {
    let store = Store::in_memory();
    let names = ["a", "b", "c"];
    let buckets = names.map(|name| bucket(&store, name, 10_000));
    let admitted: Arc<[AtomicUsize; 3]> = Arc::default();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (buckets, admitted) = (buckets.clone(), Arc::clone(&admitted));
            scope.spawn(move || {
                let order = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]][thread];
                let limits = TokenBuckets::new(order.map(|limit| buckets[limit].clone())).unwrap();
                for n in 0..20_000_usize {
                    let key = |limit: usize| (n * (limit + 1) / (thread + 1)) % 2;
                    let keys = order.map(key);
                    let decision = futures::executor::block_on(limits.allow(keys)).unwrap();
                    for (limit, key) in order.into_iter().zip(keys) {
                        if decision.is_admitted() && key == 0 {
                            admitted[limit].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    for (bucket, admitted) in buckets.iter().zip(&*admitted) {
        let left = futures::executor::block_on(bucket.peek(0_usize))
            .unwrap()
            .remaining() as usize;
        assert_eq!(
            10_000 - left,
            admitted.load(Ordering::Relaxed),
            "{}",
            bucket.name()
        );
    }
}

#[tokio::test]
async fn a_full_store_charges_and_holds_none() {
    let store = StoreBuilder::default().max_keys(2).in_memory().unwrap();
    let (a, b, c) = (
        bucket(&store, "a", 9),
        bucket(&store, "b", 9),
        bucket(&store, "c", 9),
    );
    let limits = TokenBuckets::new([a.clone(), b.clone(), c]).unwrap();
    let keys = ["k"; 3];
    for error in [
        limits.allow(keys).await.unwrap_err(),
        limits.authorize(keys, 2).await.unwrap_err(),
    ] {
        assert!(error.is_overloaded(), "{error}");
        assert_eq!([left(&a).await, left(&b).await], [(0, 9); 2]);
    }
    let two = TokenBuckets::new([a, b]).unwrap();
    assert!(two.allow(["k", "k"]).await.unwrap().is_admitted());
}

/// A call of the store contains the quotas once, for all its steps.
#[tokio::test]
async fn holds_under_other_quotas_leave_in_other_calls() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let limits = Several::new(&[bucket(&store, "users", 1), bucket(&store, "all", 1000)]).unwrap();
    let more = Quotas::new([Quota::non_refilling(5)]).unwrap();
    let richer = limits.map(|limit, bucket| {
        if limit == 0 {
            bucket.with_quotas(&more)
        } else {
            bucket.clone()
        }
    });
    let (limits, richer) = (TokenBuckets::<2>(limits), TokenBuckets::<2>(richer));
    // The first leaves alone.
    let hold = |user: u64| {
        let (limits, n) = if user.is_multiple_of(2) {
            (&richer, 5)
        } else {
            (&limits, 1)
        };
        limits.authorize([Key::from(user), Key::from("-")], [n, 1])
    };
    for hold in join_all((0..40).map(hold)).await {
        hold.unwrap().release().await.unwrap();
    }
}
