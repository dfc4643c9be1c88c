//! The clock of the server is set back: an answer is served for no longer than its ttl.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lease::agreement::virtual_time::CLOCK;
use crate::lease::key_state::KeyState;
use crate::lease::kind::Kind;
use crate::single_flight::answer::Flight;
use crate::single_flight::outcome::Postcard;
use crate::single_flight::{SingleFlight, stored};
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::store::client::Namespace;
use crate::store::memory::manual_clock::ManualClock;
use support::redis_server::RedisServer;

const NOON: i64 = 1_760_000_000_000_000;
const TTL: Duration = Duration::from_millis(300);
const STALE: Duration = Duration::from_millis(500);

async fn serves_no_answer_beyond_its_ttl(store: &Store, set: &mut dyn FnMut(i64)) {
    set(NOON);
    let answers: Namespace<KeyState<<Flight as Kind>::Holders>> = Namespace::open(store, "flights");
    let flights: SingleFlight<u64> = SingleFlight::builder(Postcard)
        .ttl(TTL)
        .stale_while_revalidate(STALE)
        .build(store, "flights")
        .unwrap();
    let (runs, mut now) = (AtomicU64::new(0), NOON);
    let ask = async || {
        let number = runs.fetch_add(1, Ordering::Relaxed) + 1;
        flights
            .run("k", move || async move { number })
            .await
            .unwrap()
    };
    for back in [7_200_000_000, 1_000_000, 301_000, 299_000, 2_000, 1] {
        let before = ask().await;
        assert_eq!(ask().await, before, "it is fresh");
        now -= back;
        set(now);
        if let Some(answer) = stored::look(&answers, "k".into()).await.unwrap() {
            assert!(answer.fresh_for <= TTL, "{answer:?}");
        }
        // Each caller sends a new query after the time for which an answer is fresh, and stale.
        let after = ask().await;
        assert_eq!(ask().await, after, "it is stored");
        now += (TTL + STALE).as_micros() as i64;
        set(now);
        assert!(
            ask().await > after,
            "set back by {back} µs, it is served for longer than its ttl"
        );
        now += 10_000_000;
        set(now);
    }
}

#[tokio::test]
async fn an_answer_in_memory_is_served_no_longer_than_its_ttl() {
    let clock = ManualClock::at(NOON);
    serves_no_answer_beyond_its_ttl(&clock.store(), &mut |now| clock.set(now)).await;
}

#[tokio::test]
async fn an_answer_in_redis_is_served_no_longer_than_its_ttl() {
    let server = RedisServer::start().await;
    let mut clock = server.client().unwrap();
    let builder = StoreBuilder::default().timeout(Duration::from_secs(30));
    let store = builder.with_clock(&server.url(), CLOCK).unwrap();
    let mut set = |now: i64| {
        clock
            .query::<()>(redis::cmd("SET").arg("clock").arg(now))
            .unwrap()
    };
    serves_no_answer_beyond_its_ttl(&store, &mut set).await;
}
