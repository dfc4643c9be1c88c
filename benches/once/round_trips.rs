//! How often deduplication asks Redis for a new message.

use std::sync::atomic::{AtomicU64, Ordering};

use tower::{Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::{BloomFilter, Dedupe, DedupeLayer, Store};

use crate::common::Bench;
use crate::common::report::figure;

const BEFORE: &str = "dedupe-round-trips-before";
const ALL: &str = "dedupe-round-trips";
const MESSAGES: u64 = 100;

pub fn run(bench: &Bench) {
    if !bench.settings.wants(BEFORE) && !bench.settings.wants(ALL) {
        return;
    }
    bench.server.empty();
    let filter = BloomFilter::new(
        &Store::redis(&bench.server.url).unwrap(),
        "bench",
        1_000_000,
        1e-6,
    );
    let dedupe = Dedupe::builder()
        .remember_forever()
        .build(&filter.unwrap())
        .unwrap();
    let calls_before_the_handler = AtomicU64::new(0);
    let mut service = ServiceBuilder::new()
        .layer(DedupeLayer::new(dedupe, |message: &u64| *message))
        .service(service_fn(async |_| {
            calls_before_the_handler.store(bench.server.script_calls(), Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(())
        }));
    let mut handle = |message| {
        bench
            .runtime
            .block_on(async { service.ready().await.unwrap().call(message).await.unwrap() });
    };
    // Loads the scripts.
    handle(0);
    let (mut before, mut all) = (0, 0);
    for message in 1..=MESSAGES {
        let calls = bench.server.script_calls();
        handle(message);
        before += calls_before_the_handler.load(Ordering::Relaxed) - calls;
        all += bench.server.script_calls() - calls;
    }
    figure(
        BEFORE,
        "script calls per new message before the handler",
        before as f64 / MESSAGES as f64,
    );
    figure(
        ALL,
        "script calls per new message in all",
        all as f64 / MESSAGES as f64,
    );
}
