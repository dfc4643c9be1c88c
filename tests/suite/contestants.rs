//! What the benches compare with sends our scripts by itself: it knows the wire format, and must follow it.

use deadpool_redis::redis;
use support::patient;
use support::recorded::Recorder;
use support::redis_server::RedisServer;
use tower_distributed::{BloomFilter, Quota, Store, TokenBucket};

#[allow(unreachable_pub, reason = "as in the benches")]
#[path = "../../benches/decisions/contestants/bare.rs"]
mod bare;
#[allow(unreachable_pub, reason = "as in the benches")]
#[path = "../../benches/once/one_script_each.rs"]
mod one_script_each;

#[tokio::test]
async fn the_scripts_do_for_the_benches_what_they_do_for_the_crate() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let bucket = TokenBucket::new(&store, "b", Quota::per_hour(3)).unwrap();
    bucket.allow("loads the script").await.unwrap();
    let recorder = Recorder::start(&server.url());
    assert!(bucket.allow("recorded").await.unwrap().is_admitted());
    let call = recorder.finish().remove(0);
    let connection = redis::Client::open(server.url())
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    let mut bare = bare::Bare::new(connection, call);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        ours.push(bucket.allow("k").await.unwrap().is_admitted());
        theirs.push(bare.allow("key").await);
    }
    assert_eq!(ours, [true, true, true, false, false]);
    assert_eq!(theirs, ours);

    let filter = BloomFilter::new(&store, "f", 1000, 0.01).unwrap();
    let mut bare = one_script_each::Bare::connect(&server.url(), &filter).await;
    assert!(filter.insert("by us").await.unwrap());
    assert!(!bare.check_and_insert(b"by us").await);
    assert!(bare.check_and_insert(b"by the script").await);
    assert!(!filter.insert("by the script").await.unwrap());
}
