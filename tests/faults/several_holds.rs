//! Holds of several limits, on one server and on two, while replies are lost and processes end.

use std::time::Duration;

use tokio_test::task;
use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};

use support::patient;

use support::eventually;
use support::program::call_command;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);
const REQUESTS: u32 = 1000;
const TOKENS: u32 = 30_000;

/// A server, seen through a network that loses replies, and by a referee through one that does not.
struct Place {
    _server: RedisServer,
    proxy: FaultProxy,
    store: Store,
    referee: Store,
}

impl Place {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let store = Store::builder().timeout(SOON).redis(&proxy.url()).unwrap();
        let referee = patient!(server.url());
        Self {
            _server: server,
            proxy,
            store,
            referee,
        }
    }
}

fn buckets(requests: &Store, tokens: &Store) -> [TokenBucket; 2] {
    [
        TokenBucket::new(requests, "requests", Quota::per_hour(1).burst(REQUESTS)).unwrap(),
        TokenBucket::new(tokens, "tokens", Quota::per_hour(1).burst(TOKENS)).unwrap(),
    ]
}

/// Waits until nothing is held, and so much is left.
async fn come_to(referees: &[TokenBucket; 2], left: [u32; 2]) {
    for (referee, left) in referees.iter().zip(left) {
        eventually(
            &format!("{left} left of {}", referee.name()),
            SOON,
            async || {
                let state = referee.peek("k").await.unwrap();
                (state.held(), state.remaining()) == (0, left)
            },
        )
        .await;
    }
}

async fn lost_replies(first: &Place, second: &Place) {
    let limits = TokenBuckets::new(buckets(&first.store, &second.store)).unwrap();
    let referees = buckets(&first.referee, &second.referee);
    let (mut left, mut lost) = ([REQUESTS, TOKENS], 0);
    for n in 0..20 {
        let proxy = if n % 2 == 0 {
            &first.proxy
        } else {
            &second.proxy
        };
        proxy.drop_next_reply_after(call_command());
        match limits.authorize(["k", "k"], [1, 30]).await {
            Ok(hold) => drop(hold.release().await),
            Err(error) => {
                assert!(error.is_unavailable(), "{error}");
                lost += 1;
            }
        }
        come_to(&referees, left).await;
        let Ok(hold) = limits.authorize(["k", "k"], [1, 30]).await else {
            continue;
        };
        proxy.drop_next_reply_after(call_command());
        lost += u32::from(hold.capture([1, 20]).await.is_err());
        left = [left[0] - 1, left[1] - 20];
        come_to(&referees, left).await;
        let Ok(hold) = limits.authorize(["k", "k"], [1, 30]).await else {
            continue;
        };
        proxy.drop_next_reply_after(call_command());
        hold.usage()[1].set(5);
        drop(hold);
        left = [left[0] - 1, left[1] - 5];
        come_to(&referees, left).await;
    }
    assert!(lost > 0, "no reply was lost");
    assert!(left[0] < REQUESTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_holds_nothing_and_charges_once() {
    let place = Place::new().await;
    lost_replies(&place, &place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_of_one_of_two_servers_holds_nothing_and_charges_once() {
    let (first, second) = (Place::new().await, Place::new().await);
    lost_replies(&first, &second).await;
}

/// The process ends after the first of two limits was authorized.
#[tokio::test]
async fn what_a_crash_leaves_of_a_request_is_never_charged() {
    let (first, second) = (Place::new().await, Place::new().await);
    let ttl = Duration::from_millis(500);
    let held =
        buckets(&first.store, &second.store).map(|bucket| bucket.with_hold_ttl(ttl).unwrap());
    let limits = TokenBuckets::new(held).unwrap();
    let referees = buckets(&first.referee, &second.referee);
    second.proxy.stall();
    let mut asking = Box::pin(limits.authorize(["k", "k"], [1, 30]));
    eventually("the first is held", SOON, async || {
        assert!(futures::poll!(&mut asking).is_pending());
        referees[0].peek("k").await.unwrap().held() == 1
    })
    .await;
    // Nothing reaches the servers any more.
    first.proxy.cut();
    second.proxy.cut();
    come_to(&referees, [REQUESTS, TOKENS]).await;
    drop(asking);
}

/// Sends a call whose future is dropped and whose reply is lost: nobody learns that it ran.
async fn is_lost(proxy: &FaultProxy, call: impl Future) {
    let lost = proxy.replies_dropped();
    proxy.drop_next_reply_after(call_command());
    let mut call = task::spawn(call);
    assert!(call.poll().is_pending());
    drop(call);
    eventually("the reply to be lost", SOON, async || {
        proxy.replies_dropped() > lost
    })
    .await;
}

#[tokio::test]
async fn an_authorization_that_was_dropped_is_released() {
    let (first, second) = (Place::new().await, Place::new().await);
    for other in [&first, &second] {
        let referees = buckets(&first.referee, &other.referee);
        let [requests, tokens] = buckets(&first.store, &other.store);
        let limits = TokenBuckets::new([requests.clone(), tokens]).unwrap();
        assert!(
            limits
                .authorize(["k", "k"], [1, 30])
                .await
                .unwrap()
                .release()
                .await
                .unwrap()
        );
        is_lost(&first.proxy, limits.authorize(["k", "k"], [1, 30])).await;
        come_to(&referees, [REQUESTS, TOKENS]).await;
        assert!(
            requests
                .authorize("k", 1)
                .await
                .unwrap()
                .release()
                .await
                .unwrap()
        );
        is_lost(&first.proxy, requests.authorize("k", 1)).await;
        come_to(&referees, [REQUESTS, TOKENS]).await;
    }
}

#[tokio::test]
async fn an_authorization_that_was_not_sent_owes_no_release() {
    let place = Place::new().await;
    place.proxy.cut();
    let limits = TokenBuckets::new(buckets(&place.store, &place.store)).unwrap();
    assert!(
        limits
            .authorize(["k", "k"], [1, 30])
            .await
            .unwrap_err()
            .is_unavailable()
    );
    let [requests, _] = buckets(&place.store, &place.store);
    assert!(
        requests
            .authorize("k", 1)
            .await
            .unwrap_err()
            .is_unavailable()
    );
    place.store.shutdown(SOON).await.unwrap();
}

/// A limit in memory before one that all processes share.
#[tokio::test]
async fn limits_of_different_stores_go_together() {
    let place = Place::new().await;
    let bucket = |store: &Store, name, tokens| {
        TokenBucket::new(store, name, Quota::non_refilling(tokens)).unwrap()
    };
    let own = bucket(&Store::in_memory(), "own", 5);
    let limits = TokenBuckets::new([own.clone(), bucket(&place.store, "shared", 2)]).unwrap();
    for _ in 0..2 {
        let decision = limits.allow(["a", "k"]).await.unwrap();
        assert!(decision.is_admitted());
        assert_eq!(decision.state.balances().count(), 2);
    }
    assert_eq!(
        limits.allow(["a", "k"]).await.unwrap().refused_by(),
        Some("shared")
    );
    assert_eq!(own.peek("a").await.unwrap().remaining(), 3);
}
