//! What is printed: no passwords, no scripts, and the host that cannot be reached.

use std::error::Error as _;
use std::fmt::Debug;
use std::time::Duration;

use tower_distributed::{
    BloomFilter, ConcurrencyLimitLayer, Dedupe, DedupeLayer, Mutex, Quota, RateLimitLayer, RwLock,
    RwLockLayer, Store, TokenBucket, WaitGroup,
};

use crate::scene::wide_bucket;
use support::patient;
use support::redis_server::RedisServer;

const PASSWORD: &str = "hunter2";

/// Enough for a line or two in a log.
const MOST_BYTES: usize = 2_000;

/// Each prints no password, and not much.
fn print_well(values: &[(&str, &dyn Debug)]) {
    let mut faults = Vec::new();
    for (name, value) in values {
        let texts = [format!("{value:?}"), format!("{value:#?}")];
        if texts.iter().any(|text| text.contains(PASSWORD)) {
            faults.push(format!("{name} prints a password"));
        }
        if texts[0].len() > MOST_BYTES {
            faults.push(format!("{name} prints {} bytes", texts[0].len()));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Defect 9.
#[test]
fn debug_of_builders_and_stores_contains_no_password() {
    let url = format!("redis://user:{PASSWORD}@127.0.0.1:6379/3");
    let builder = Store::builder()
        .prefix("shop")
        .wakeups(&url)
        .wakeups(url.replace("6379", "6380"));
    let store = builder.clone().redis(&url).unwrap();
    print_well(&[("StoreBuilder", &builder), ("Store", &store)]);
}

/// Defect 9: a filter printed 185 KB of Lua.
#[tokio::test]
async fn debug_of_primitives_and_layers_is_short_and_contains_no_password() {
    let server = RedisServer::start().await;
    server.cli(&[
        "ACL",
        "SETUSER",
        "user",
        "on",
        &format!(">{PASSWORD}"),
        "~*",
        "&*",
        "+@all",
    ]);
    let url = format!("redis://user:{PASSWORD}@127.0.0.1:{}", server.port());
    let store = patient!().wakeups(&url).redis(&url).unwrap();
    let bucket = TokenBucket::new(&store, "bucket", Quota::per_hour(1)).unwrap();
    let group = WaitGroup::new(&store, "group", 3).unwrap();
    let mutex = Mutex::new(&store, "mutex").unwrap();
    let nodes =
        [&url, &format!("{url}/1"), &format!("{url}/2")].map(|url| Store::redis(url).unwrap());
    let quorum = Mutex::builder().build_quorum(nodes, "quorum").unwrap();
    let lock = RwLock::new(&store, "lock").unwrap();
    let filter = BloomFilter::new(&store, "filter", 1_000, 0.01).unwrap();
    let dedupe = Dedupe::builder().remember_forever().build(&filter).unwrap();
    // Everything has been in use.
    bucket.allow("k").await.unwrap();
    filter.insert("k").await.unwrap();
    let (permit, guard) = (
        group.add("k").await.unwrap(),
        mutex.lock("k").await.unwrap(),
    );
    let (reader, claim) = (
        lock.read("k").await.unwrap(),
        dedupe.try_claim("c").await.unwrap(),
    );
    print_well(&[
        ("Store", &store),
        ("TokenBucket", &bucket),
        ("WaitGroup", &group),
        ("Permit", &permit),
        ("Mutex", &mutex),
        ("Mutex on a quorum", &quorum),
        ("MutexGuard", &guard),
        ("RwLock", &lock),
        ("RwLockReadGuard", &reader),
        ("BloomFilter", &filter),
        ("Dedupe", &dedupe),
        ("Claim", &claim),
    ]);
    let key: fn(&String) -> String = String::clone;
    print_well(&[
        (
            "RateLimitLayer",
            &RateLimitLayer::<String, ()>::new(bucket, key),
        ),
        (
            "ConcurrencyLimitLayer",
            &ConcurrencyLimitLayer::new(group, key),
        ),
        ("RwLockLayer", &RwLockLayer::new(lock, key)),
        (
            "DedupeLayer",
            &DedupeLayer::<String, (), ()>::new(dedupe, key),
        ),
    ]);
    #[cfg(feature = "postcard")]
    {
        use tower_distributed::SingleFlight;
        let flight = SingleFlight::<u32, std::io::Error>::new(&store, "flight").unwrap();
        print_well(&[("SingleFlight", &flight)]);
    }
}

/// All that an error says, in all ways it can be printed.
fn all_texts(error: &tower_distributed::Error) -> String {
    let mut texts = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        texts.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    texts
}

/// Defect 9. What is told at once once the breaker is open says no less.
#[tokio::test]
async fn the_error_of_a_wrong_password_names_the_server_address() {
    let server = RedisServer::start().await;
    let reached = format!("127.0.0.1:{}", server.port());
    for address in [&*reached, "127.0.0.1:1", "no-such-host.invalid:6380"] {
        let url = format!("redis://user:{PASSWORD}@{address}");
        let store = Store::builder()
            .timeout(Duration::from_secs(5))
            .wakeups(&url)
            .redis(&url)
            .unwrap();
        let (bucket, mut last) = (wide_bucket(&store), String::new());
        for _ in 0..6 {
            let error = bucket.allow("k").await.unwrap_err();
            assert!(error.is_unavailable(), "{error}");
            assert!(
                !all_texts(&error).contains(PASSWORD),
                "it tells the password: {}",
                all_texts(&error)
            );
            last = error.to_string();
        }
        assert!(last.contains(address), "{last}");
    }
}

#[test]
fn the_error_of_a_bad_url_contains_no_password() {
    for url in [
        format!("http://user:{PASSWORD}@127.0.0.1"),
        format!("redis://user:{PASSWORD}@127.0.0.1:port"),
        format!("redis://user:{PASSWORD}@127.0.0.1/db"),
        format!("{PASSWORD}@127.0.0.1"),
    ] {
        let good = "redis://127.0.0.1/";
        for error in [
            Store::redis(&url),
            Store::builder().wakeups(&url).redis(good),
        ]
        .map(Result::unwrap_err)
        {
            assert!(error.is_invalid(), "{error}");
            assert!(
                !all_texts(&error).contains(PASSWORD),
                "{}",
                all_texts(&error)
            );
        }
    }
}
