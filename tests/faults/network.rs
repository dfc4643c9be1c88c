//! A network that stalls, and one that loses answers.

use std::time::{Duration, Instant};

use futures::poll;
use tower_distributed::{Quota, Store, TokenBucket};

use support::eventually;
use support::program::call_command;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// Short where it is to run out, long where it is not.
const TIMEOUT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(30);

async fn through_a_proxy(timeout: Duration) -> (RedisServer, FaultProxy, TokenBucket) {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::builder().timeout(timeout).redis(&proxy.url()).unwrap();
    let bucket = TokenBucket::new(&store, "net", Quota::per_hour(1).burst(10)).unwrap();
    // Connected, and the scripts known.
    bucket.allow_n("warm", 1).await.unwrap();
    bucket.peek("warm").await.unwrap();
    (server, proxy, bucket)
}

#[tokio::test]
async fn a_lost_answer_charges_and_is_not_asked_for_again() {
    let (_server, proxy, bucket) = through_a_proxy(LONG).await;
    let sent = proxy.requests_containing(call_command());
    proxy.drop_next_reply_after(call_command());
    let error = bucket.allow("k").await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(proxy.requests_containing(call_command()), sent + 1);
    // Charged once, though nobody was admitted: never the other way round.
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn a_stalled_server_costs_the_time_out_and_then_nothing() {
    let (_server, proxy, bucket) = through_a_proxy(TIMEOUT).await;
    proxy.stall();
    let began = Instant::now();
    let error = bucket.allow("k").await.unwrap_err();
    assert!(error.is_timeout() && error.is_unavailable(), "{error}");
    assert!(began.elapsed() >= TIMEOUT, "{:?}", began.elapsed());
    // The breaker opens: no more waiting, for nothing is sent.
    eventually("the breaker to open", Duration::from_secs(20), async || {
        !bucket.allow("k").await.unwrap_err().is_timeout()
    })
    .await;
    let sent = proxy.requests_containing(call_command());
    for _ in 0..100 {
        assert!(bucket.allow("k").await.unwrap_err().is_unavailable());
    }
    assert_eq!(proxy.requests_containing(call_command()), sent);
    proxy.heal();
    eventually("the breaker to close", Duration::from_secs(20), async || bucket.allow("k").await.is_ok())
        .await;
}

#[tokio::test]
async fn a_caller_that_leaves_a_slow_call_gets_it_undone() {
    let (_server, proxy, bucket) = through_a_proxy(LONG).await;
    proxy.stall();
    let mut call = Box::pin(bucket.allow_n("k", 3));
    assert!(poll!(call.as_mut()).is_pending());
    // Sent, and then left.
    tokio::task::yield_now().await;
    drop(call);
    proxy.heal();
    bucket.allow("another").await.unwrap();
    eventually("the tokens to come back", Duration::from_secs(20), async || {
        bucket.peek("k").await.is_ok_and(|state| state.remaining() == 10)
    })
    .await;
}

#[tokio::test]
async fn a_cut_network_heals() {
    let (_server, proxy, bucket) = through_a_proxy(LONG).await;
    for _ in 0..3 {
        proxy.cut();
        assert!(bucket.allow("other").await.unwrap_err().is_unavailable());
        proxy.heal();
        eventually("an answer", Duration::from_secs(20), async || bucket.allow("other").await.is_ok()).await;
    }
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 10);
}

/// A breaker whose prober is gone with its runtime does not stay open for ever.
#[test]
fn a_breaker_outlives_the_runtime_it_opened_on() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, proxy, bucket) = runtime().block_on(through_a_proxy(LONG));
    proxy.cut();
    runtime().block_on(eventually("the breaker to open", Duration::from_secs(20), async || {
        let error = bucket.allow("k").await.unwrap_err();
        error.to_string().contains("no call made")
    }));
    // No probe in between: the runtime is gone by now.
    proxy.heal();
    let allowed = async || bucket.allow("k").await.is_ok();
    runtime().block_on(eventually("an answer", Duration::from_secs(20), allowed));
    drop(server);
}

/// A runtime with calls in flight that then stands still concerns no other.
#[test]
fn a_runtime_that_stands_still_holds_up_no_other() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (still, moving) = (runtime(), runtime());
    let (_server, proxy, bucket) = still.block_on(through_a_proxy(TIMEOUT));
    proxy.stall();
    still.block_on(async {
        // Under way, the later ones with carriers; and then nobody drives this runtime any more.
        for _ in 0..5 {
            tokio::spawn({
                let bucket = bucket.clone();
                async move { bucket.allow("k").await }
            });
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    });
    proxy.heal();
    let told = moving.block_on(async {
        tokio::time::timeout(Duration::from_secs(20), bucket.allow("k")).await.expect("the call hangs")
    });
    assert!(told.is_ok(), "{told:?}");
}
