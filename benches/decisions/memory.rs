//! What a key costs the server.

use std::time::Duration;

use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{figure, note};

const NAME: &str = "redis-bytes-per-key";
const KEY: &str = "key-0000000000000001";

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    bench.server.empty();
    let store = Store::redis(&bench.server.url).unwrap();
    // Where a token does not come every whole number of microseconds, more digits are stored.
    let odd = measure(
        bench,
        &store,
        "odd",
        Quota::new(7, Duration::from_secs(3600)),
    );
    let plain = measure(bench, &store, "plain", Quota::per_hour(10));
    note(format!(
        "A key of 20 bytes: {odd} bytes with 7 tokens per hour, {plain} with 10 per hour."
    ));
    figure(
        NAME,
        "bytes in Redis of a key of 20 bytes",
        odd.max(plain) as f64,
    );
}

fn measure(bench: &Bench, store: &Store, family: &str, quota: Quota) -> u64 {
    let bucket = TokenBucket::new(store, family, quota).unwrap();
    assert!(
        bench
            .runtime
            .block_on(bucket.allow(KEY))
            .unwrap()
            .is_admitted()
    );
    let keys: Vec<String> = bench.server.query(&["KEYS", &format!("*{family}*")]);
    assert_eq!(keys.len(), 1, "{keys:?}");
    bench.server.query(&["MEMORY", "USAGE", &keys[0]])
}
