//! What a filter takes of the server's memory, beside what no filter can do without.

use tower_distributed::{BloomFilter, Store};

use crate::common::Bench;
use crate::common::report::{Better, Versus, note};

const NAME: &str = "bloom-bytes-vs-optimum";
const CAPACITY: u64 = 10_000_000;
const RATE: f64 = 0.001;

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    bench.server.empty();
    let filter = BloomFilter::new(
        &Store::redis(&bench.server.url).unwrap(),
        "bench",
        CAPACITY,
        RATE,
    );
    let filter = filter.unwrap();
    // Arrays are made in full by the first item in each of them.
    bench
        .runtime
        .block_on(filter.insert_all((0..1000_u32).map(u32::to_le_bytes)))
        .unwrap();

    let keys: Vec<String> = bench.server.query(&["KEYS", "*"]);
    let usage = |key: &String| bench.server.query::<u64>(&["MEMORY", "USAGE", key]);
    let bytes: u64 = keys.iter().map(usage).sum();
    let optimum = CAPACITY as f64 * (1.0 / RATE).ln() / std::f64::consts::LN_2.powi(2) / 8.0;
    note(format!(
        "Capacity {CAPACITY}, rate {RATE}: {bytes} bytes in {} keys of Redis, {} arrays, {} bits, {} hashes; \
         optimum {optimum:.0} bytes",
        keys.len(),
        filter.size().keys,
        filter.size().bits,
        filter.size().hashes
    ));
    assert_eq!(
        keys.len(),
        2 * filter.size().keys as usize,
        "a configuration and an array each"
    );
    Versus {
        name: NAME,
        measures: "bytes of a filter for 10 000 000 items at 0.001",
        ours: bytes as f64,
        peer: "the least that any Bloom filter takes",
        theirs: optimum,
        ratio: bytes as f64 / optimum,
        better: Better::Lower,
    }
    .tell();
}
