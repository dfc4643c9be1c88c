//! The requests that are refused without the store.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::quota::Quota;
use crate::bucket::tests::fixtures::{START, state_of};
use crate::bucket::{Ask, Bucket};
use crate::clock;
use crate::key::Key;
use crate::store::Store;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::local::hot_keys::HotKeyCounter;
use crate::token_bucket::local::{Asked, Local};

/// The local state of a bucket, whose answers the test makes up.
struct Cache {
    local: Local,
    bucket: TokenBucket,
    key: Key,
}

impl Cache {
    fn of(local: Local, quota: Quota) -> Self {
        let bucket = TokenBucket::new(&Store::in_memory(), "local", quota).unwrap();
        Self {
            local,
            bucket,
            key: Key::from("k"),
        }
    }

    fn of_refusals(quota: Quota) -> Self {
        let local = Local {
            refusals: true,
            ..Local::default()
        };
        Self::of(local, quota)
    }

    fn ask(&self, now: i64, cost: i64, is_alone: bool) -> ControlFlow<Decision, Option<Asked>> {
        let (ask, key) = (Ask { cost, wait: 0 }, Cow::Borrowed(&self.key));
        self.local.answer(
            &self.bucket.clients,
            &self.bucket.quotas,
            key,
            || now,
            ask,
            is_alone,
        )
    }

    /// A request that is sent to the store.
    fn asks(&self, now: i64) -> Asked {
        self.ask(now, 1, true).continue_value().flatten().unwrap()
    }

    fn refuses(&self, now: i64, cost: i64) -> bool {
        self.ask(now, cost, true).is_break()
    }

    fn left(&self, tokens: i64) -> BucketState {
        let quotas = &self.bucket.quotas;
        let mut bucket = Bucket::full(quotas);
        bucket.charge(quotas, START, 10 - tokens);
        state_of(quotas, bucket)
    }
}

#[test]
fn a_refusal_is_known_for_a_second() {
    let (cache, now) = (
        Cache::of_refusals(Quota::per_hour(1).burst(10)),
        clock::micros(),
    );
    cache.asks(now).answered(true, &cache.left(0));
    assert!(cache.local.table.is_empty(), "what is admitted is not kept");
    cache.asks(now).answered(false, &cache.left(3));
    assert!(!cache.refuses(now, 3) && cache.refuses(now, 4));
    assert!(cache.refuses(now + 999_999, 4) && !cache.refuses(now + 1_000_000, 4));
    let refused = cache.ask(now, 4, true).break_value().unwrap();
    assert_eq!(
        (refused.is_local, refused.is_admitted(), refused.remaining()),
        (true, false, 3)
    );
    let without = Local {
        refusals: false,
        ..cache.local.clone()
    };
    let without = Cache {
        local: without,
        ..cache
    };
    assert!(matches!(
        without.ask(now, 4, true),
        ControlFlow::Continue(None)
    ));
}

/// Also of a key that is blocked until a later window.
#[test]
fn a_known_refusal_tells_what_the_store_told() {
    for quota in [
        Quota::per_hour(1).burst(10),
        Quota::per_calendar_day(10),
        Quota::non_refilling(10),
    ] {
        for blocked_for in [0, 1_000_000, 2 * 86_400_000_000] {
            let cache = Cache::of_refusals(quota.clone());
            let (now, mut told) = (clock::micros(), cache.left(3));
            told.bucket.blocked_until = START + blocked_for;
            cache.asks(now).answered(false, &told);
            let refused = cache.ask(now, 4, true).break_value().unwrap();
            assert_eq!(
                (format!("{:?}", refused.state), refused.cost),
                (format!("{told:?}"), 4)
            );
        }
    }
}

/// The tokens of requests without a reply are subtracted from the tokens that there can be.
#[test]
fn requests_in_flight_count_while_they_last() {
    let (cache, now) = (
        Cache::of_refusals(Quota::per_hour(1).burst(10)),
        clock::micros(),
    );
    cache.asks(now).answered(false, &cache.left(5));
    let ask = |cost, is_alone| cache.ask(now, cost, is_alone).continue_value().flatten();
    let (two, three) = (ask(2, true).unwrap(), ask(3, true).unwrap());
    assert!(ask(1, true).is_none() && cache.refuses(now, 1));
    // With other limits, they may not be charged.
    assert!(ask(5, false).is_some() && ask(6, false).is_none());
    drop(three);
    assert!(!cache.refuses(now, 3) && cache.refuses(now, 4));
    two.answered(true, &cache.left(1));
    assert!(!cache.refuses(now, 1) && cache.refuses(now, 2));
}

#[test]
fn a_key_that_is_asked_for_often_has_an_entry_unless_its_tokens_never_come_back() {
    let local = || Local {
        ahead: Some((10_000, Arc::new(HotKeyCounter::default()))),
        ..Local::default()
    };
    let seconds = Cache::of(local(), Quota::per_second(10));
    for times in 1..=16 {
        assert!(seconds.local.table.is_empty(), "after {times}");
        assert!(seconds.ask(5_000, 1, true).is_continue());
    }
    assert!(!seconds.local.table.is_empty());
    for other in [Quota::non_refilling(10), Quota::per_calendar_day(10)] {
        let other = Cache::of(local(), other);
        (0..100).for_each(|_| drop(other.ask(5_000, 1, true)));
        assert!(other.local.table.is_empty());
    }
}
