//! What a message takes of the server's memory once it was handled: exactly, and in a filter.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tower_distributed::dedupe::{Claimed, Dedupe};
use tower_distributed::{BloomFilter, Store};

use crate::common::Bench;
use crate::common::report::{figure, number};
use crate::common::table::Table;

const EXACT: &str = "dedupe-exact-bytes-per-message";
const FILTER: &str = "dedupe-filter-bytes-per-message";
const CAPACITY: u64 = 1_000_000;
const RATE: f64 = 1e-6;
const WEEK: Duration = Duration::from_secs(7 * 86_400);
/// How many messages there are when the memory is looked at.
const MARKS: [u64; 3] = [10_000, 100_000, 1_000_000];

pub fn run(bench: &Bench) {
    let store = || Store::redis(&bench.server.url).unwrap();
    if bench.settings.wants(EXACT) {
        bench.server.empty();
        let exact = Dedupe::exact(&store(), "bench")
            .capacity(CAPACITY)
            .remember_for(WEEK)
            .build()
            .unwrap();
        let bytes = fill(
            bench,
            "Exact, capacity 1 000 000, remember_for a week, ids of 36 bytes",
            &exact,
        );
        figure(
            EXACT,
            "bytes in Redis per message of 1 000 000, exact",
            bytes,
        );
    }
    if bench.settings.wants(FILTER) {
        bench.server.empty();
        let builder = BloomFilter::builder()
            .capacity(CAPACITY)
            .false_positive_rate(RATE);
        let open = |span| {
            Dedupe::new(&builder.remember_for(span).build(&store(), "bench").unwrap()).unwrap()
        };
        let title =
            format!("Filter, capacity {CAPACITY}, false_positive_rate {RATE}, remember_for a week");
        let measures = "bytes in Redis per message of 1 000 000, filter at 1e-6";
        figure(FILTER, measures, fill(bench, &title, &open(WEEK)));
        bench.server.empty();
        let title = "The same in its second generation, made by remember_for 1 s: as after a week";
        fill(bench, title, &open(Duration::from_secs(1)));
    }
}

/// Bytes a message once there are as many as it is for.
fn fill(bench: &Bench, title: &str, dedupe: &Dedupe) -> f64 {
    // Connections and scripts take memory too.
    bench
        .runtime
        .block_on(handle(dedupe, u64::MAX - 1000..u64::MAX));
    bench.server.empty();
    let before = used(bench);
    let (mut done, mut bytes) = (0, 0.0);
    let mut table = Table::new(title, ["messages", "bytes each"]);
    for mark in MARKS {
        bench.runtime.block_on(handle(dedupe, done..mark));
        done = mark;
        bytes = (used(bench) as f64 - before as f64) / mark as f64;
        table.row([mark.to_string(), number(bytes)]);
    }
    table.print();
    bytes
}

/// What the data set takes: without buffers of connections.
fn used(bench: &Bench) -> u64 {
    let info: String = bench.server.query(&["INFO", "memory"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory_dataset:"))
        .unwrap();
    line.trim().parse().unwrap()
}

async fn handle(dedupe: &Dedupe, messages: std::ops::Range<u64>) {
    let calls = stream::iter(messages).map(async |message| {
        match dedupe.try_claim(format!("{message:036x}")).await.unwrap() {
            Claimed::New(claim) => assert!(claim.confirm().await.unwrap()),
            Claimed::Duplicate => {}
        }
    });
    calls.buffer_unordered(512).collect::<()>().await;
}
