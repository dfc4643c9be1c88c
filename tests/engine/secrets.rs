//! What is printed: no passwords, no scripts, and the host that cannot be reached.

use std::error::Error as _;
use std::fmt::Debug;
use std::time::Duration;

use tower_distributed::{
    BloomFilter, ConcurrencyLimitLayer, Dedupe, DedupeLayer, Mutex, Quota, RateLimitLayer, RwLock,
    RwLockLayer, Store, TokenBucket, WaitGroup,
};

use support::patient;

use support::redis_server::RedisServer;

const PASSWORD: &str = "hunter2";

/// Enough for a line or two in a log.
const MOST_BYTES: usize = 2_000;

/// What is wrong with how a value prints.
fn faults(name: &str, value: &dyn Debug) -> Vec<String> {
    let texts = [format!("{value:?}"), format!("{value:#?}")];
    let mut faults = Vec::new();
    if texts.iter().any(|text| text.contains(PASSWORD)) {
        faults.push(format!("{name} prints a password"));
    }
    if texts[0].len() > MOST_BYTES {
        faults.push(format!("{name} prints {} bytes", texts[0].len()));
    }
    faults
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Defect 9.
#[test]
fn debug_of_builders_and_stores_contains_no_password() {
    let url = format!("redis://user:{PASSWORD}@127.0.0.1:6379/3");
    let builder = Store::builder().prefix("shop").wakeups(&url).wakeups(url.replace("6379", "6380"));
    let store = builder.clone().redis(&url).unwrap();
    let mut told = faults("StoreBuilder", &builder);
    told.extend(faults("Store", &store));
    assert_none(&told);
}

/// Defect 9: a filter printed 185 KB of Lua.
#[tokio::test]
async fn debug_of_primitives_and_layers_is_short_and_contains_no_password() {
    let server = RedisServer::start().await;
    server.cli(&["ACL", "SETUSER", "user", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]);
    let url = format!("redis://user:{PASSWORD}@127.0.0.1:{}", server.port());
    let store = Store::builder().wakeups(&url).redis(&url).unwrap();
    let bucket = TokenBucket::new(&store, "bucket", Quota::per_hour(1)).unwrap();
    let group = WaitGroup::new(&store, "group", 3).unwrap();
    let mutex = Mutex::new(&store, "mutex").unwrap();
    let nodes = [&url, &format!("{url}/1"), &format!("{url}/2")].map(|url| Store::redis(url).unwrap());
    let quorum = Mutex::builder().build_quorum(nodes, "quorum").unwrap();
    let lock = RwLock::new(&store, "lock").unwrap();
    let filter = BloomFilter::new(&store, "filter", 1_000, 0.01).unwrap();
    let dedupe = Dedupe::builder().remember_forever().build(&filter).unwrap();
    // Everything has been in use.
    bucket.allow("k").await.unwrap();
    filter.insert("k").await.unwrap();
    let (permit, guard) = (group.add("k").await.unwrap(), mutex.lock("k").await.unwrap());
    let (reader, claim) = (lock.read("k").await.unwrap(), dedupe.try_claim("c").await.unwrap());

    let mut told = Vec::new();
    let values: [(&str, &dyn Debug); 12] = [
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
    ];
    for (name, value) in values {
        told.extend(faults(name, value));
    }
    let key: fn(&String) -> String = String::clone;
    told.extend(faults("RateLimitLayer", &RateLimitLayer::<String, ()>::new(bucket, key)));
    told.extend(faults("ConcurrencyLimitLayer", &ConcurrencyLimitLayer::new(group, key)));
    told.extend(faults("RwLockLayer", &RwLockLayer::new(lock, key)));
    told.extend(faults("DedupeLayer", &DedupeLayer::<String, (), ()>::new(dedupe, key)));
    assert_none(&told);
}

#[cfg(feature = "postcard")]
#[tokio::test]
async fn debug_of_single_flights_is_short_and_contains_no_password() {
    use tower_distributed::SingleFlight;

    let url = format!("redis://user:{PASSWORD}@127.0.0.1:6379");
    let store = patient!(url);
    let flight = SingleFlight::<u32, std::io::Error>::new(&store, "flight").unwrap();
    assert_none(&faults("SingleFlight", &flight));
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

async fn error_of(url: &str) -> tower_distributed::Error {
    let store = Store::builder().timeout(Duration::from_secs(5)).wakeups(url).redis(url).unwrap();
    let bucket = TokenBucket::new(&store, "bucket", Quota::per_hour(1)).unwrap();
    let error = bucket.allow("k").await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(!all_texts(&error).contains(PASSWORD), "an error tells the password: {}", all_texts(&error));
    // What is told at once afterwards says no less.
    let mut last = error;
    for _ in 0..5 {
        last = bucket.allow("k").await.unwrap_err();
        assert!(!all_texts(&last).contains(PASSWORD), "an error tells the password: {}", all_texts(&last));
    }
    last
}

/// Defect 9.
#[tokio::test]
async fn the_error_of_an_unreachable_server_names_its_address() {
    let error = error_of(&format!("redis://user:{PASSWORD}@127.0.0.1:1")).await;
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let error = error_of(&format!("redis://user:{PASSWORD}@no-such-host.invalid:6380")).await;
    assert!(error.to_string().contains("no-such-host.invalid:6380"), "{error}");
}

#[tokio::test]
async fn the_error_of_a_wrong_password_names_the_server_address() {
    let server = RedisServer::start().await;
    let address = format!("127.0.0.1:{}", server.port());
    let error = error_of(&format!("redis://user:{PASSWORD}@{address}")).await;
    assert!(error.to_string().contains(&address), "{error}");
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
        for error in [Store::redis(&url), Store::builder().wakeups(&url).redis(good)].map(Result::unwrap_err)
        {
            assert!(error.is_invalid(), "{error}");
            assert!(!all_texts(&error).contains(PASSWORD), "{}", all_texts(&error));
        }
    }
}
