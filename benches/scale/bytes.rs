//! Bytes of the server per key: from 10 000 of them, and the memory of ten times as many beside what follows from that.

use std::any::Any;
use std::f64::consts::LN_2;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt as _};
use tower_distributed::dedupe::{Claimed, Dedupe};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{
    BloomFilter, Mutex, Quota, RwLock, SingleFlight, Store, TokenBucket, WaitGroup,
};

use crate::common::Bench;
use crate::common::report::{note, number};
use crate::common::table::Table;
use crate::meter::Meter;
use crate::operations::patient;

const FEW: u64 = 10_000;
const MANY: u64 = 100_000;
const MIB: f64 = 1_048_576.0;
const LONG: Duration = Duration::from_secs(3600);
/// Of an answer.
const ANSWER: usize = 100;
const FILTER: u64 = 1_000_000;
const RATE: f64 = 1e-6;

/// Makes what a key needs; the state stays as long as what it returns.
type Make = Arc<dyn Fn(u64) -> BoxFuture<'static, Box<dyn Any + Send>> + Send + Sync>;

/// `u64`: how many keys there will be.
type Maker = fn(&Store, u64) -> Make;

pub fn run(bench: &Bench) {
    let columns = ["state", "bytes each", "computed MiB", "measured MiB"];
    let mut table = Table::new(
        "Bytes of the server, keys of 20 bytes, items of 36 bytes",
        columns,
    );
    let makes: [(&str, Maker); 9] = [
        ("token bucket: a key", bucket),
        ("mutex: held", held),
        ("mutex: idle, its fencing token", idle),
        ("permit: the first of a key", permit),
        ("permit: a further one of the key", further_permit),
        ("rw lock: the first reader of a key", reader),
        ("rw lock: a further reader of the key", further_reader),
        ("single flight: an answer of 100 bytes", answer),
        ("dedupe, exact: an item", item),
    ];
    let wanted = |title: &str| {
        bench
            .settings
            .only()
            .is_none_or(|part| title.contains(part))
    };
    for (title, make) in makes.into_iter().filter(|(title, _)| wanted(title)) {
        let each = grown(bench, make, FEW) / FEW as f64;
        let many = grown(bench, make, MANY);
        let [each, computed, measured] = [each, each * MANY as f64 / MIB, many / MIB].map(number);
        table.row([title.to_owned(), each, computed, measured]);
    }
    // The optimum of Bloom filters, in bytes.
    let each = (1.0 / RATE).ln() / LN_2.powi(2) / 8.0;
    let [each, computed, measured] = [
        each,
        each * FILTER as f64 / MIB,
        filter(bench, FILTER) / MIB,
    ]
    .map(number);
    table.row([
        "dedupe, filter at 1e-6, of the capacity".to_owned(),
        each,
        computed,
        measured,
    ]);
    table.print();
    note(format!(
        "Measured: {MANY} keys; the filter: a capacity of {FILTER}."
    ));
}

/// How much the memory of the server grows.
fn grown(bench: &Bench, make: Maker, keys: u64) -> f64 {
    let store = patient().redis(&bench.server.url).unwrap();
    let make = make(&store, keys);
    // Connections and scripts take memory too.
    drop(bench.runtime.block_on(make(u64::MAX)));
    bench.server.empty();
    let mut meter = Meter::new(&[&bench.server.url]);
    let before = meter.used_memory();
    let kept: Vec<_> = bench.runtime.block_on(
        stream::iter(0..keys)
            .map(|key| make(key))
            .buffer_unordered(512)
            .collect(),
    );
    let grown = meter.used_memory() - before;
    bench.server.empty();
    drop(kept);
    grown
}

fn key(number: u64) -> String {
    format!("key-{:016}", number % 10_000_000_000_000_000)
}

fn bucket(store: &Store, _: u64) -> Make {
    // Most quotas have a time between tokens that is no whole number of microseconds.
    let bucket = TokenBucket::new(store, "bench", Quota::new(7, LONG)).unwrap();
    Arc::new(move |number| {
        let bucket = bucket.clone();
        Box::pin(async move { Box::new(bucket.allow(key(number)).await.unwrap()) as _ })
    })
}

fn held(store: &Store, _: u64) -> Make {
    let mutex = Mutex::builder().ttl(LONG).build(store, "bench").unwrap();
    Arc::new(move |number| {
        let mutex = mutex.clone();
        Box::pin(async move { Box::new(mutex.lock(key(number)).await.unwrap()) as _ })
    })
}

fn idle(store: &Store, _: u64) -> Make {
    let mutex = Mutex::builder().ttl(LONG).build(store, "bench").unwrap();
    Arc::new(move |number| {
        let mutex = mutex.clone();
        Box::pin(
            async move { Box::new(mutex.lock(key(number)).await.unwrap().unlock().await) as _ },
        )
    })
}

fn permit(store: &Store, _: u64) -> Make {
    permits(store, key)
}

fn further_permit(store: &Store, _: u64) -> Make {
    permits(store, |_| "one".to_owned())
}

fn permits(store: &Store, key: fn(u64) -> String) -> Make {
    let group = WaitGroup::builder(1_000_000)
        .ttl(LONG)
        .build(store, "bench")
        .unwrap();
    Arc::new(move |number| {
        let group = group.clone();
        Box::pin(async move { Box::new(group.add(key(number)).await.unwrap()) as _ })
    })
}

fn reader(store: &Store, _: u64) -> Make {
    readers(store, key)
}

fn further_reader(store: &Store, _: u64) -> Make {
    readers(store, |_| "one".to_owned())
}

fn readers(store: &Store, key: fn(u64) -> String) -> Make {
    let lock = RwLock::builder().ttl(LONG).build(store, "bench").unwrap();
    Arc::new(move |number| {
        let lock = lock.clone();
        Box::pin(async move { Box::new(lock.read(key(number)).await.unwrap()) as _ })
    })
}

fn answer(store: &Store, _: u64) -> Make {
    let flight = SingleFlight::<String>::builder(Postcard)
        .ttl(LONG)
        .max_stored(1 << 30);
    let flight = flight.build(store, "bench").unwrap();
    Arc::new(move |number| {
        let flight = flight.clone();
        Box::pin(async move {
            Box::new(
                flight
                    .run(key(number), || async { "a".repeat(ANSWER) })
                    .await
                    .unwrap(),
            ) as _
        })
    })
}

fn item(store: &Store, capacity: u64) -> Make {
    handled(
        Dedupe::exact(store, "bench")
            .capacity(capacity)
            .remember_for(LONG)
            .build()
            .unwrap(),
    )
}

fn handled(dedupe: Dedupe) -> Make {
    Arc::new(move |number| {
        let dedupe = dedupe.clone();
        Box::pin(async move {
            let claimed = dedupe.try_claim(format!("{number:036}")).await.unwrap();
            let Claimed::New(claim) = claimed else {
                panic!("{number} is new")
            };
            Box::new(claim.confirm().await.unwrap()) as _
        })
    })
}

/// A filter has all of its memory from the first items on. Its second generation takes as much again.
fn filter(bench: &Bench, capacity: u64) -> f64 {
    let store = patient().redis(&bench.server.url).unwrap();
    bench.server.empty();
    let mut meter = Meter::new(&[&bench.server.url]);
    let before = meter.used_memory();
    let filter = BloomFilter::builder()
        .capacity(capacity)
        .false_positive_rate(RATE)
        .remember_for(LONG);
    let filter = filter.build(&store, "bench").unwrap();
    bench
        .runtime
        .block_on(filter.insert_all((0..1000_u32).map(u32::to_le_bytes)))
        .unwrap();
    meter.used_memory() - before
}
