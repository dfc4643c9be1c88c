//! The stored quotas of an upstream: the script and the Rust code agree, also on forged values.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::tests::agreement::virtual_time::{VirtualTime, jump};
use crate::bucket::tests::fixtures::START;
use crate::key::Key;
use crate::learn::step::Learn;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::memory::manual_clock::ManualClock;
use crate::store::operation::Operation;
use support::redis_server::RedisServer;
use support::seed;

fn client(store: &Store) -> Client<Learn> {
    Namespace::new(store, "upstreams.learned").unwrap().client()
}

/// The stored quotas for the key `k`, and whether a level was corrected.
async fn read(client: &Client<Learn>) -> (String, bool) {
    let read = client.run("k".into(), Learn::read()).await.unwrap();
    (read.quotas.to_string(), read.corrects)
}

#[tokio::test]
async fn lua_and_rust_agree_on_what_is_learned() {
    let server = RedisServer::start().await;
    let mut time = VirtualTime::new(&server);
    let on_redis = client(&VirtualTime::store(&server));
    // Not in a store, whose sweeper may see a time before the clock is set back.
    let mut cells: HashMap<Key, <Learn as Operation>::Cell> = HashMap::new();
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let texts = [
        "",
        "10/s",
        "20/s, burst 1",
        "97/min, burst 2; 5/s, named \"a b\"",
    ];
    let mut now = START;
    for step in 0..4000 {
        // Keys do not expire by this clock.
        now += jump(&mut rng).clamp(-7_200_000_000, 60_000_000) / 8;
        time.set(now);
        let key = Key::from(format!("k{}", rng.random_range(0..20)));
        // Responses to requests of now, of before, and of a time of the clock before it was set back.
        let order = [
            0,
            now,
            now - rng.random_range(0..2_000_000),
            now + 1_000_000,
        ][rng.random_range(0..4)];
        let learn = Learn {
            order,
            quotas: texts[rng.random_range(0..texts.len())].into(),
            corrects: rng.random_bool(0.5),
        };
        let lua = on_redis.run(key.clone(), learn.clone()).await.unwrap();
        let rust = learn.clone().apply(cells.entry(key).or_default(), now);
        assert_eq!(lua, rust, "SEED={seed}, step {step} at {now}: {learn:?}");
    }
}

#[tokio::test]
async fn older_news_undoes_nothing() {
    let clock = ManualClock::at(0);
    let client = client(&clock.store());
    let learn = async |order: i64, quotas: &str, corrects| {
        let learn = Learn {
            order: START + order,
            quotas: quotas.into(),
            corrects,
        };
        let remembered = client.run("k".into(), learn).await.unwrap();
        (remembered.quotas.to_string(), remembered.corrects)
    };
    clock.set(START + 1000);
    assert_eq!(read(&client).await.0, "");
    assert_eq!(learn(500, "20/s", true).await, ("20/s".to_owned(), true));
    // The same discrepancy in another response, and a late response.
    assert_eq!(learn(600, "20/s", true).await, ("20/s".to_owned(), false));
    assert_eq!(learn(400, "10/s", false).await, ("20/s".to_owned(), false));
    assert_eq!(learn(0, "", false).await, ("20/s".to_owned(), false));
    clock.set(START + 200_000);
    assert_eq!(
        learn(150_000, "30/s", true).await,
        ("30/s".to_owned(), true)
    );
    // The clock is set back: quotas that are learned now are newer.
    clock.set(START - 3_600_000_000);
    assert_eq!(learn(-3_599_999_000, "40/s", false).await.0, "30/s");
    clock.set(START - 3_500_000_000);
    assert_eq!(
        learn(-3_500_000_000, "40/s", true).await,
        ("40/s".to_owned(), true)
    );
    // Six days without use, and eight.
    clock.set(START + 6 * 86_400_000_000);
    assert_eq!(learn(0, "", false).await.0, "40/s");
    clock.set(START + 13 * 86_400_000_000);
    assert_eq!(read(&client).await.0, "", "after seven days without use");
}

#[tokio::test]
async fn forged_and_foreign_values_are_not_believed() {
    let server = RedisServer::start().await;
    let store = Store::builder().prefix("p").redis(&server.url()).unwrap();
    let client = client(&store);
    let name = "p:{upstreams.learned:k}:learned";
    for forged in ["", "x", "1 2", "-1 0 5/s", "1e300 0 5/s", "0x10 0 5/s"] {
        server.cli(&["SET", name, forged]);
        assert_eq!(read(&client).await, (String::new(), false), "{forged}");
    }
    let far = "9".repeat(400);
    server.cli(&["SET", name, &format!("{far} {far} 5/s")]);
    assert_eq!(read(&client).await.0, "5/s");
    assert!(server.cli(&["PTTL", name]).trim().parse::<i64>().unwrap() > 6 * 86_400_000);
    server.cli(&["DEL", name]);
    server.cli(&["SADD", name, "a"]);
    let error = client.run("k".into(), Learn::read()).await.unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
}
