//! A Redis that is slow and healthy.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::Store;

use crate::scene::{is_served, open, wide_bucket};
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// The time-outs of a store are those by default, six times as long.
const TIMEOUT: Duration = Duration::from_secs(3);

const CALLERS: usize = 100;

/// How often each caller calls: the first time while the store connects, then at about the same time as the others.
const CALLS: usize = 3;

/// Calls through a network that delivers each reply so late; what of them was not served, and why.
async fn failures(
    server: &RedisServer,
    late: Duration,
    is_new: bool,
    keys: usize,
) -> Option<String> {
    let proxy = FaultProxy::start(server.port()).await;
    let builder = Store::builder()
        .timeout(TIMEOUT)
        .queue_timeout(2 * TIMEOUT)
        .connect_timeout(4 * TIMEOUT);
    let bucket = &wide_bucket(&builder.redis(&proxy.url()).unwrap());
    if !is_new {
        assert!(is_served(&bucket.allow("warm").await));
    }
    proxy.delay_replies(late);
    let callers = (0..CALLERS).map(|caller| async move {
        let mut errors = Vec::new();
        for _ in 0..CALLS {
            errors.extend(bucket.allow((caller % keys).to_string()).await.err());
        }
        errors
    });
    let errors: Vec<_> = join_all(callers).await.into_iter().flatten().collect();
    proxy.delay_replies(Duration::ZERO);
    assert!(is_served(&bucket.allow("next").await));
    let first = errors.first()?;
    Some(format!(
        "{late:?}, {is_new}: {} calls failed, the first: {first}",
        errors.len()
    ))
}

/// Defect 5: callers that waited for another call, or for a connection, failed. Below the time-out all are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_are_served_by_a_slow_server() {
    let server = RedisServer::start().await;
    // A server without the library takes one answer more.
    wide_bucket(&open(&server.url()))
        .allow("first")
        .await
        .unwrap();
    // How late answers are, in tenths, whether the store has to connect, and how many keys there are.
    let ways = [
        (3, true, 1),
        (6, true, 1),
        (6, true, CALLERS),
        (6, false, 10),
    ];
    let told =
        ways.map(|(tenths, is_new, keys)| failures(&server, TIMEOUT * tenths / 10, is_new, keys));
    let told: Vec<_> = join_all(told).await.into_iter().flatten().collect();
    assert!(told.is_empty(), "\n{}", told.join("\n"));
}
