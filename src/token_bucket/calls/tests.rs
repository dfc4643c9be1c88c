use futures_util::FutureExt as _;

use super::*;
use crate::bucket::give_back::Rule;
use crate::bucket::quota::Quota;
use crate::clock;
use crate::key::Key;
use crate::token_bucket::TokenBucket;
use support::patient;
use support::redis_server::RedisServer;

fn in_memory() -> TokenBucket {
    TokenBucket::new(&Store::in_memory(), "test", Quota::per_hour(100)).unwrap()
}

async fn left(bucket: &TokenBucket) -> u32 {
    bucket.peek("k").await.unwrap().remaining()
}

/// The cache of refusals learns the calls of this process at once.
#[tokio::test]
async fn tokens_that_are_given_back_are_asked_for_at_once() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let bucket = TokenBucket::new(&store, "test", Quota::per_hour(100))
        .unwrap()
        .cache_refusals(true);
    bucket.allow_n("k", 100).await.unwrap();
    while !bucket.allow("k").await.unwrap().is_local {}
    bucket.give_back("k", 1).await.unwrap();
    assert!(bucket.allow("k").await.unwrap().is_admitted());
}

/// The next request of this process waits for it.
#[tokio::test]
async fn a_cancellation_is_under_way_until_it_is_done() {
    let (bucket, key) = (in_memory(), Key::from("k"));
    let decision = bucket.allow("k").await.unwrap();
    let cancel = bucket.returned(&key, GiveBack::new(&decision.state, 1, Rule::IfLatest));
    let under_way = || bucket.clients.returning.end(&key).is_some();
    assert!(under_way());
    drop(cancel);
    assert!(!under_way());
}

#[tokio::test(start_paused = true)]
async fn an_admission_that_is_not_used_is_taken_back_less_what_its_time_has_brought() {
    let bucket = in_memory();
    for (age, expected) in [(-5, 100), (36 * 20 + 18, 79), (36 * 70, 40)] {
        let decision = bucket.allow_n("k", 60).await.unwrap();
        let sent = clock::micros() - age * 1_000_000;
        bucket.take_back(&"k".into(), &decision.state, 60, sent);
        assert_eq!(left(&bucket).await, expected, "{age}");
        bucket.reset("k").await.unwrap();
    }
}

#[tokio::test]
async fn background_work_in_memory_is_done_on_return() {
    let bucket = in_memory();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    bucket.detached(async { sender.send(()).unwrap() });
    assert!(receiver.now_or_never().is_some_and(|sent| sent.is_ok()));
    bucket.charge_detached("k".into(), 30);
    assert_eq!(left(&bucket).await, 70);
    bucket.block_detached("k".into(), Duration::from_secs(60));
    assert!(!bucket.allow("k").await.unwrap().is_admitted());
}

#[tokio::test]
async fn buckets_beside_are_others_in_the_same_store() {
    let bucket = in_memory();
    let beside = bucket.beside(":bans", Quota::non_refilling(3)).unwrap();
    assert_eq!(
        (beside.name(), beside.quotas().max_cost(), beside.max_wait),
        ("test:bans", 3, 0)
    );
    assert!(beside.count("k".into()).await.unwrap().is_admitted());
    assert_eq!((left(&bucket).await, left(&beside).await), (100, 2));
    let again = TokenBucket::of(beside.clients.clone(), beside.quotas.clone(), 0);
    assert_eq!(left(&again).await, 2);
}

#[test]
fn spans_are_whole_microseconds_rounded_up() {
    let spans = [
        (0, 0),
        (1, 1),
        (1000, 1),
        (1001, 2),
        (u64::MAX, 18_446_744_073_709_552),
    ];
    for (nanos, micros) in spans {
        assert_eq!(to_micros(Duration::from_nanos(nanos)), micros.min(MAX_SPAN));
    }
    assert_eq!(to_micros(Duration::MAX), MAX_SPAN);
}
