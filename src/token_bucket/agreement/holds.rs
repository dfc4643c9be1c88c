//! Holds, among all other operations on the same buckets; and states that nobody of ours has stored.

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::runs::{Both, random_runs};
use super::virtual_time::VirtualTime;
use crate::token_bucket::holds::{HoldStep, OnEnd, Verb};
use crate::{Quota, Quotas, TokenBucket};
use support::redis_server::RedisServer;

/// Ids that are found in each other's records, at the wrong place.
const IDS: [u128; 5] =
    [0, 1 << 120, u128::from_be_bytes([1; 16]), u128::MAX, 0x0101_0101_0000_0000_0101_0101_0000_0000];

/// Random steps on the holds of some keys, in one call.
pub(super) fn step(rng: &mut StdRng, both: &mut Both, quotas: &Quotas) {
    let mut runs = random_runs(rng, |rng, _| Some(random_step(rng, quotas)));
    if rng.random_bool(0.4) {
        runs.truncate(1);
    }
    if !runs.is_empty() {
        both.call(&runs);
    }
}

pub(super) fn random_step(rng: &mut StdRng, quotas: &Quotas) -> HoldStep {
    let most = quotas.max_cost();
    let amount = match rng.random_range(0..8) {
        0 => most,
        1 => rng.random_range(1..=most),
        2 => u32::MAX,
        _ => rng.random_range(1..=most.min(3)),
    };
    let ttl = *[1, 1000, 500_000, 500_000, 3_000_000, 70_000_000, 86_400_000_000].choose(rng).unwrap();
    let verb = match rng.random_range(0..10) {
        0..4 => Verb::Authorize { amount, ttl },
        4..6 => Verb::Extend { amount, ttl },
        6 => Verb::Extend { amount: 0, ttl },
        7 => Verb::Capture { amount: 0, late: 0 },
        _ => Verb::Capture { amount, late: *[0, 0, 1, 5, u32::MAX].choose(rng).unwrap() },
    };
    let on_end = *[OnEnd::Capture, OnEnd::Release].choose(rng).unwrap();
    HoldStep { quotas: quotas.clone(), id: *IDS.choose(rng).unwrap(), on_end, verb }
}

#[tokio::test]
async fn a_forged_state_is_not_a_bucket() {
    let server = RedisServer::start().await;
    let mut time = VirtualTime::new(&server);
    let now = 1_760_000_000_000_000;
    time.set(now);
    let bucket =
        TokenBucket::new(&VirtualTime::store(&server), "forged", Quota::per_second(10).burst(20)).unwrap();
    let hold = bucket.authorize("k", 7).await.unwrap();
    let keys: Vec<String> = time.client.query(redis::cmd("KEYS").arg("*forged*")).unwrap();
    let key = keys.first().unwrap();
    let stored: Vec<u8> = time.client.query(redis::cmd("GET").arg(key)).unwrap();
    let records = &stored[stored.iter().rposition(|byte| *byte == b'|').unwrap() + 1..];
    let (plain, next, last) = (format!("{now} 0 100000 1 20 {now}"), now + 1_000_000, now + 2_000_000);
    let good = |head: &str| [head.as_bytes(), records].concat();
    let forged = [
        good(&format!("{plain}|7 7 {next} {last}")),
        good(&format!("{plain}|7 7 {next}|")),
        good(&format!("{plain}|-7 7 {next} {last}|")),
        good(&format!("{plain}|7 8 {next} {last}|")),
        good(&format!("{plain}|0 0 {next} {last}|")),
        good(&format!("{plain}|7 7 {last} {next}|")),
        good(&format!("{plain}|7 7 {next} 9007199254740993|")),
        good(&format!("{plain}|4294967296 7 {next} {last}|")),
        good(&format!("{now} 0 100000 1 20|7 7 {next} {last}|")),
        good(&format!("x|7 7 {next} {last}|")),
        good("|1 1 1 1|"),
        [good(&format!("{plain}|7 7 {next} {last}|")), vec![0]].concat(),
        format!("{plain}|7 7 {next} {last}|").into_bytes(),
        // Records that are read only when a hold has ended.
        [format!("{plain}|7 7 {now} {last}|").as_bytes(), &[255; 29]].concat(),
        [format!("{plain}|7 7 {now} {last}|").as_bytes(), &[0; 29]].concat(),
    ];
    for value in forged {
        time.client.query::<()>(redis::cmd("SET").arg(key).arg(&value)).unwrap();
        let is_wrong = |error: Option<crate::Error>, what: &str| {
            let text = error.map_or_else(String::new, |error| format!("{error} {error:?}"));
            assert!(text.contains("not a bucket"), "{what} of {:?}: {text}", String::from_utf8_lossy(&value));
        };
        is_wrong(bucket.peek("k").await.err(), "peek");
        is_wrong(bucket.allow("k").await.err(), "allow");
        is_wrong(bucket.charge("k", 1).await.err(), "charge");
        is_wrong(bucket.authorize("k", 1).await.err(), "authorize");
        let after: Vec<u8> = time.client.query(redis::cmd("GET").arg(key)).unwrap();
        assert_eq!(after, value, "it is left as it is");
    }
    time.client.query::<()>(redis::cmd("DEL").arg(key)).unwrap();
    assert!(hold.capture(3).await.unwrap().ended);
}

#[tokio::test]
async fn a_capture_in_an_outage_is_sent_when_the_server_is_back() {
    let server = RedisServer::start().await;
    let store =
        crate::Store::builder().timeout(std::time::Duration::from_millis(200)).redis(&server.url()).unwrap();
    let bucket = TokenBucket::new(&store, "outage", Quota::per_hour(1000)).unwrap();
    let holds = [bucket.authorize("k", 400).await.unwrap(), bucket.authorize("k", 300).await.unwrap()];
    let [first, second] = holds;
    second.usage().set(20);
    // Each call of the store fails, while this client can end that.
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let failed = first.capture(100).await;
    assert!(failed.is_err_and(|error| error.is_unavailable()));
    drop(second);
    let clone = bucket.clone();
    drop(bucket);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let settles = async {
        loop {
            if let Ok(state) = clone.peek("k").await
                && state.held() == 0
            {
                return state.remaining();
            }
        }
    };
    let left = tokio::time::timeout(std::time::Duration::from_secs(10), settles).await.unwrap();
    assert_eq!(left, 880, "each is charged once");
}
